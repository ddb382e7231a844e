/* SPDX-License-Identifier: Apache-2.0 */
/* embedding_layer: a table whose rows stand for indices. */
#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"

typedef struct embedding {
    oar_embedding_opts opts;
} embedding;

static oar_tensor *embedding_forward(oar_tape *tape, oar_module *module,
                                     oar_tensor *x)
{
    const embedding *e = oar_module_self(module);

    return oar_embedding_with(tape, oar_module_param(module, 0), x, &e->opts);
}

static const oar_module_class embedding_class = {
    .size = sizeof embedding_class,
    .name = "embedding",
    .self_size = sizeof(embedding),
    .forward = embedding_forward,
};

/* The table, with zeros in the row of the padding. The caller owns it. */
static oar_tensor *new_table(int64_t count, int64_t width, uint64_t seed,
                             const oar_embedding_layer_opts *o)
{
    double deviation = o->deviation > 0 ? o->deviation : 1;
    int64_t row = o->padding < 0 ? o->padding + count : o->padding;
    oar_tensor *table =
        oar_normal(NULL, o->dtype, OAR_SHAPE(count, width), seed, 0, deviation);
    oar_tensor *zero;

    if (table == NULL || !o->has_padding)
        return table;
    zero = oar_select(NULL, table, 0, row);
    if (zero == NULL) {
        oar_tensor_release(table);
        return NULL;
    }
    oar_tensor_fill(zero, 0);
    oar_tensor_release(zero);
    return table;
}

oar_status oar_embedding_create_with(int64_t count, int64_t width,
                                     uint64_t seed,
                                     const oar_embedding_layer_opts *opts,
                                     oar_module **module)
{
    oar_embedding_layer_opts o;
    oar_module *made;
    embedding *e;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (count < 0 || width < 0)
        return oari_fail(OAR_E_ARG, "embedding [%lld, %lld]: no such sizes",
                         (long long)count, (long long)width);
    if (!(o.deviation >= 0))
        return oari_fail(OAR_E_ARG,
                         "embedding with deviation %g: it is not negative",
                         o.deviation);
    if (o.has_padding && (o.padding < -count || o.padding >= count))
        return oari_fail(OAR_E_ARG,
                         "embedding [%lld, %lld] with padding %lld: no such "
                         "row",
                         (long long)count, (long long)width,
                         (long long)o.padding);
    OARI_TRY(oari_layer_dtype("embedding", o.dtype));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "embedding_create: nowhere to give it");
    OARI_TRY(oar_module_create(&embedding_class, &made));
    e = oar_module_self(made);
    e->opts = (oar_embedding_opts){ .size = sizeof e->opts,
                                    .has_padding = o.has_padding,
                                    .padding = o.padding };
    return oari_layer_give(
        oari_layer_param(made, "weight", new_table(count, width, seed, &o)),
        made, module);
}

oar_status oar_embedding_create(int64_t count, int64_t width, uint64_t seed,
                                double deviation, oar_dtype dtype,
                                oar_module **module)
{
    oar_embedding_layer_opts opts = { .size = sizeof opts,
                                      .deviation = deviation,
                                      .dtype = dtype };

    return oar_embedding_create_with(count, width, seed, &opts, module);
}
