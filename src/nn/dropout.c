/* SPDX-License-Identifier: Apache-2.0 */
/* dropout, and flatten: modules without parameters that are no functions of
 * single elements. */
#include <oarsong/layers.h>

#include "autograd/replay.h"
#include "base/status.h"
#include "nn/build.h"

/* ---- dropout ------------------------------------------------------------- */

typedef struct dropout {
    double p;
    uint64_t next_seed;
} dropout;

static oar_tensor *dropout_forward(oar_tape *tape, oar_module *module,
                                   oar_tensor *x)
{
    dropout *d = oar_module_self(module);

    if (!oar_module_training(module) || d->p == 0)
        return tape == NULL ? oar_tensor_retain(x) : x;
    if (oari_replaying(tape)) /* with the seed that was written down */
        return oar_dropout(tape, x, d->p, d->next_seed);
    return oar_dropout(tape, x, d->p, d->next_seed++);
}

static const oar_counter_entry dropout_counters[] = {
    { "next_seed", offsetof(dropout, next_seed) }, { NULL, 0 }
};

static const oar_module_class dropout_class = { .size = sizeof dropout_class,
                                                .name = "dropout",
                                                .self_size = sizeof(dropout),
                                                .forward = dropout_forward,
                                                .counters = dropout_counters };

oar_status oar_dropout_create(double p, uint64_t seed, oar_module **module)
{
    oar_module *made;

    if (module == NULL)
        return oari_fail(OAR_E_ARG, "dropout_create: nowhere to give it");
    if (!(p >= 0 && p <= 1))
        return oari_fail(OAR_E_ARG, "dropout with p %g: from 0 to 1", p);
    OARI_TRY(oar_module_create(&dropout_class, &made));
    *(dropout *)oar_module_self(made) = (dropout){ p, seed };
    *module = made;
    return OAR_OK;
}

/* ---- flatten ------------------------------------------------------------- */

typedef struct flatten {
    int from;
} flatten;

static oar_tensor *flatten_forward(oar_tape *tape, oar_module *module,
                                   oar_tensor *x)
{
    int from = ((const flatten *)oar_module_self(module))->from;
    oar_shape shape = oar_tensor_shape(x);

    if (x != NULL && shape.ndim <= from) {
        oari_fail(OAR_E_SHAPE, "flatten of %s from dim %d: it has %d dims",
                  oari_shape_text(shape).text, from, shape.ndim);
        return NULL;
    }
    for (int i = from + 1; i < shape.ndim; i++)
        shape.dim[from] *= shape.dim[i];
    shape.ndim = from + 1;
    return oar_reshape(tape, x, shape);
}

static const oar_module_class flatten_class = { .size = sizeof flatten_class,
                                                .name = "flatten",
                                                .self_size = sizeof(flatten),
                                                .forward = flatten_forward };

oar_status oar_flatten_create(int from, oar_module **module)
{
    oar_module *made;

    if (from < 0 || from >= OAR_MAX_DIMS)
        return oari_fail(OAR_E_ARG, "flatten from dim %d: from 0 to %d", from,
                         OAR_MAX_DIMS - 1);
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "flatten_create: nowhere to give it");
    OARI_TRY(oar_module_create(&flatten_class, &made));
    ((flatten *)oar_module_self(made))->from = from;
    *module = made;
    return OAR_OK;
}
