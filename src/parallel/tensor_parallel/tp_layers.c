/* SPDX-License-Identifier: Apache-2.0 */
/* tp_layers: layers of which each rank has a part. Their parameters have the
 * names of the plain layers'. */
#include <string.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

typedef oar_tensor *(*layer_fn)(oar_tape *tape, oar_module *module,
                                const oari_tp_layer *l, oar_tensor *x);

/* Runs a forward, without a tape on one that does not record. */
static oar_tensor *run_layer(layer_fn forward, oar_tape *tape,
                             oar_module *module, oar_tensor *x)
{
    const oari_tp_layer *l = oar_module_self(module);
    oar_tensor *y;

    if (tape != NULL)
        return forward(tape, module, l, x);
    if (oar_tape_create(&tape) != OAR_OK)
        return NULL;
    oar_tape_record(tape, 0);
    y = oar_tensor_retain(forward(tape, module, l, x));
    oar_tape_destroy(tape);
    return y;
}

/* Returns a parameter that every rank has all of. If each rank uses it for its
 * own rows, its gradients are added up. */
static oar_tensor *whole_param(oar_tape *tape, const oari_tp_layer *l,
                               oar_tensor *param)
{
    return l->tp->sequence && param != NULL
               ? oar_tp_copy(tape, param, l->tp->group)
               : param;
}

/* ---- linear -------------------------------------------------------------- */

static int64_t last_dim(const oar_tensor *x)
{
    oar_shape shape = oar_tensor_shape(x);

    return shape.ndim > 0 ? shape.dim[shape.ndim - 1] : 1;
}

static oar_tensor *column(oar_tape *tape, oar_module *module,
                          const oari_tp_layer *l, oar_tensor *x)
{
    int64_t width = l->cut[0].whole.dim[1];
    oar_tensor *y;

    if (x != NULL && last_dim(x) != width) {
        oari_fail(OAR_E_SHAPE,
                  "\"%s\" is OAR_TP_COLUMN: it takes all %lld inputs, and rank "
                  "%d gives it %lld; behind another column layer it has to be "
                  "OAR_TP_ROW, or that one has to gather",
                  l->name, (long long)width, l->tp->rank,
                  (long long)last_dim(x));
        return NULL;
    }
    y = oar_linear(tape, oari_tp_enter(l->tp, tape, x),
                   oar_module_param(module, 0), oar_module_param(module, 1));
    return l->gather ? oar_tp_gather(tape, y, l->tp->group, -1,
                                     l->cut[0].whole.dim[0])
                     : y;
}

static oar_tensor *row(oar_tape *tape, oar_module *module,
                       const oari_tp_layer *l, oar_tensor *x)
{
    oar_tensor *bias = oar_module_param(module, 1);
    oar_tensor *y;

    if (x != NULL && last_dim(x) != l->cut[0].count[0]) {
        oari_fail(OAR_E_SHAPE,
                  "\"%s\" is OAR_TP_ROW: rank %d takes %lld of its %lld "
                  "inputs, and gives it %lld; it has to follow an "
                  "OAR_TP_COLUMN layer of that width that does not gather",
                  l->name, l->tp->rank, (long long)l->cut[0].count[0],
                  (long long)l->cut[0].whole.dim[1], (long long)last_dim(x));
        return NULL;
    }
    y = oar_linear(tape, x, oar_module_param(module, 0), NULL);
    y = oari_tp_leave(l->tp, tape, y, 0);
    return bias != NULL ? oar_add(tape, y, whole_param(tape, l, bias)) : y;
}

/* ---- embedding ----------------------------------------------------------- */

/* Returns the index of each row of this rank, given one for each row of all, or
 * of the last of the dims that the rows were made of. */
static oar_tensor *index_rows(oar_tape *tape, const oari_tp *tp, oar_tensor *x)
{
    int64_t n = oar_tensor_count(x), first, all;
    int64_t own = oari_tp_rows(tp, &first, &all);
    const int64_t *from;
    oar_tensor *index;
    int64_t *to;

    if (oar_tensor_dtype(x) != OAR_I64 || !oar_tensor_is_contiguous(x) ||
        (n == 0 ? own > 0 : all % n != 0)) {
        oari_fail(OAR_E_SHAPE,
                  "sequence parallel: an embedding of %lld positions for %lld "
                  "rows",
                  (long long)n, (long long)all);
        return NULL;
    }
    if (oar_tensor_device(x).kind != OAR_CPU && n > 0) {
        index = oar_reshape(tape, x, OAR_SHAPE(1, n));
        index = oar_expand(tape, index, OAR_SHAPE(all / n, n));
        index = oar_reshape(tape, oar_contiguous(tape, index), OAR_SHAPE(all));
        return oar_narrow(tape, index, 0, first, own);
    }
    index = oar_empty(tape, OAR_I64, OAR_SHAPE(own));
    from = oar_tensor_const_data(x);
    to = oar_tensor_data(index);
    for (int64_t i = 0; index != NULL && i < own; i++)
        to[i] = from[(first + i) % n];
    return index;
}

static oar_tensor *embedding(oar_tape *tape, oar_module *module,
                             const oari_tp_layer *l, oar_tensor *x)
{
    oar_tensor *table = oar_module_param(module, 0);

    if (l->style == OAR_TP_SEQUENCE)
        return oar_embedding_with(tape, whole_param(tape, l, table),
                                  index_rows(tape, l->tp, x), &l->table);
    return oari_tp_leave(l->tp, tape,
                         oar_embedding_with(tape, table, x, &l->table),
                         oari_tp_key(x));
}

/* ---- norms --------------------------------------------------------------- */

/* Weight and bias lie side by side, so that their gradients are added up at
 * once. */
static oar_tensor *norm_rows(oar_tape *tape, const oari_tp_layer *l,
                             oar_tensor *x, oar_tensor *weight,
                             oar_tensor *bias)
{
    int64_t width = oar_tensor_count(weight);
    oar_tensor *both;

    if (bias == NULL)
        return oar_rms_norm(tape, x, whole_param(tape, l, weight), l->eps);
    both = oar_cat(tape, 2, (oar_tensor *[]){ weight, bias }, 0);
    both = oar_tp_copy(tape, both, l->tp->group);
    return oar_layer_norm(tape, x, oar_narrow(tape, both, 0, 0, width),
                          oar_narrow(tape, both, 0, width, width), l->eps);
}

static oar_tensor *norm(oar_tape *tape, oar_module *module,
                        const oari_tp_layer *l, oar_tensor *x)
{
    oar_tensor *weight = oar_module_param(module, 0);
    oar_tensor *bias = oar_module_param(module, 1);
    oar_tensor *y;

    if (l->tp->sequence)
        y = norm_rows(tape, l, x, weight, bias);
    else if (l->is_rms)
        y = oar_rms_norm(tape, x, weight, l->eps);
    else
        y = oar_layer_norm(tape, x, weight, bias, l->eps);
    return l->style == OAR_TP_LAST_NORM ? oari_tp_enter(l->tp, tape, y) : y;
}

/* ---- classes ------------------------------------------------------------- */

static void layer_destroy(void *self)
{
    oari_tp_layer *l = self;

    oari_free(l->name);
    oari_tp_release(l->tp);
}

#define TP_CLASS(fn, text)                                              \
    static oar_tensor *fn##_forward(oar_tape *tape, oar_module *module, \
                                    oar_tensor *x)                      \
    {                                                                   \
        return run_layer(fn, tape, module, x);                          \
    }                                                                   \
    static const oar_module_class fn##_class = {                        \
        .size = sizeof fn##_class,                                      \
        .name = text,                                                   \
        .self_size = sizeof(oari_tp_layer),                             \
        .forward = fn##_forward,                                        \
        .destroy = layer_destroy,                                       \
    }
TP_CLASS(column, "tp_column_linear");
TP_CLASS(row, "tp_row_linear");
TP_CLASS(embedding, "tp_embedding");
TP_CLASS(norm, "tp_norm");

oari_tp_layer *oari_tp_layer_of(const oar_module *module)
{
    static const oar_module_class *const known[] = { &column_class, &row_class,
                                                     &embedding_class,
                                                     &norm_class };
    oar_module *mine;

    memcpy(&mine, &module, sizeof mine);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (oar_module_is(module, known[i]))
            return oar_module_self(mine);
    return NULL;
}

oar_status oari_tp_layer_create(oari_tp *tp, const oar_module *plain,
                                const char *name, const oari_tp_layer *layer,
                                oar_module **made)
{
    oar_layer_kind kind = oar_layer_kind_of(plain);
    const oar_module_class *class =
        layer->style == OAR_TP_ROW ? &row_class : &column_class;
    oari_tp_layer *l;

    if (kind == OAR_LAYER_EMBEDDING)
        class = &embedding_class;
    else if (kind != OAR_LAYER_LINEAR)
        class = &norm_class;
    OARI_TRY(oar_module_create(class, made));
    l = oar_module_self(*made);
    *l = *layer;
    l->tp = oari_tp_retain(tp);
    l->name = oari_strdup(name);
    if (l->name == NULL)
        return OAR_E_NOMEM;
    l->eps = oar_norm_eps(plain);
    l->is_rms = kind == OAR_LAYER_RMS_NORM;
    l->table.size = sizeof l->table;
    if (kind != OAR_LAYER_EMBEDDING)
        return OAR_OK;
    OARI_TRY(oar_embedding_describe(plain, &l->table));
    if (l->style == OAR_TP_VOCABULARY) {
        l->table.vocabulary = l->cut[0].whole.dim[0];
        l->table.first = l->cut[0].first[0];
    }
    return OAR_OK;
}
