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
    oar_dropout_place_fn place; /* of its input in a whole; NULL: it is whole */
    void *arg;
    void (*drop)(void *arg);
} dropout;

static oar_tensor *dropout_forward(oar_tape *tape, oar_module *module,
                                   oar_tensor *x)
{
    dropout *d = oar_module_self(module);
    oar_part_place place = { .size = sizeof place };
    uint64_t seed;

    if (!oar_module_training(module) || d->p == 0)
        return tape == NULL ? oar_tensor_retain(x) : x;
    if (d->place != NULL && d->place(d->arg, x, &place) != OAR_OK)
        return NULL;
    seed = d->next_seed;
    d->next_seed += !oari_replaying(tape); /* else it was written down */
    return d->place != NULL ? oar_dropout_part(tape, x, d->p, seed, &place)
                            : oar_dropout(tape, x, d->p, seed);
}

static void dropout_destroy(void *self)
{
    const dropout *d = self;

    if (d->drop != NULL)
        d->drop(d->arg);
}

static const oar_counter_entry dropout_counters[] = {
    { "next_seed", offsetof(dropout, next_seed) }, { NULL, 0 }
};

const oar_module_class oari_dropout_class = {
    .size = sizeof oari_dropout_class,
    .name = "dropout",
    .self_size = sizeof(dropout),
    .forward = dropout_forward,
    .destroy = dropout_destroy,
    .counters = dropout_counters,
};

oar_status oar_dropout_create(double p, uint64_t seed, oar_module **module)
{
    oar_module *made;

    if (module == NULL)
        return oari_fail(OAR_E_ARG, "dropout_create: nowhere to give it");
    if (!(p >= 0 && p <= 1))
        return oari_fail(OAR_E_ARG, "dropout with p %g: from 0 to 1", p);
    OARI_TRY(oar_module_create(&oari_dropout_class, &made));
    *(dropout *)oar_module_self(made) = (dropout){ .p = p, .next_seed = seed };
    *module = made;
    return OAR_OK;
}

oar_status oar_dropout_place_by(oar_module *module, oar_dropout_place_fn place,
                                void *arg, void (*drop)(void *arg))
{
    dropout *d;

    if (!oar_module_is(module, &oari_dropout_class))
        return oari_fail(OAR_E_ARG,
                         "dropout_place_by of a %s: it is no dropout",
                         module != NULL ? oar_module_name(module) : "NULL");
    d = oar_module_self(module);
    dropout_destroy(d);
    d->place = place;
    d->arg = arg;
    d->drop = drop;
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
