/* SPDX-License-Identifier: Apache-2.0 */
/* embedding_layer: a table whose rows stand for indices. */
#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"
#include "tensor/lazy.h"

typedef struct embedding {
    oar_embedding_opts opts;
} embedding;

static oar_tensor *embedding_forward(oar_tape *tape, oar_module *module,
                                     oar_tensor *x)
{
    const embedding *e = oar_module_self(module);

    return oar_embedding_with(tape, oar_module_param(module, 0), x, &e->opts);
}

const oar_module_class oari_embedding_class = {
    .size = sizeof oari_embedding_class,
    .name = "embedding",
    .self_size = sizeof(embedding),
    .forward = embedding_forward,
};

/* The table, with zeros in the row of the padding. The caller owns it. */
static oar_tensor *new_table(int64_t count, int64_t width, uint64_t seed,
                             const oar_embedding_layer_opts *o)
{
    oar_shape shape = OAR_SHAPE(count, width);
    int64_t all = o->vocabulary > 0 ? o->vocabulary : count;
    int64_t row = (o->padding < 0 ? o->padding + all : o->padding) - o->first;
    oari_initializer rule = { .distribution = OARI_NORMAL,
                              .dtype = o->dtype,
                              .number = { 0,
                                          o->deviation > 0 ? o->deviation : 1 },
                              .seed = seed,
                              .first = o->first * width };

    if (oari_shape_check("embedding", shape, o->dtype) != OAR_OK)
        return NULL;
    if (o->has_padding && row >= 0 && row < count) {
        rule.zero_first = row * width;
        rule.zero_count = width;
    }
    return oari_tensor_initialized(NULL, shape, &rule);
}

oar_status oar_embedding_create_with(int64_t count, int64_t width,
                                     uint64_t seed,
                                     const oar_embedding_layer_opts *opts,
                                     oar_module **module)
{
    oar_embedding_layer_opts o;
    oar_module *made;
    embedding *e;
    int64_t all;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (count < 0 || width < 0)
        return oari_fail(OAR_E_ARG, "embedding [%lld, %lld]: no such sizes",
                         (long long)count, (long long)width);
    if (!(o.deviation >= 0))
        return oari_fail(OAR_E_ARG,
                         "embedding with deviation %g: it is not negative",
                         o.deviation);
    all = o.vocabulary > 0 ? o.vocabulary : count;
    if (o.vocabulary < 0 || o.first < 0 || count > all ||
        o.first > all - count || (width > 0 && all > INT64_MAX / width))
        return oari_fail(OAR_E_ARG,
                         "embedding [%lld, %lld] as rows from %lld on of a "
                         "vocabulary of %lld: it does not fit",
                         (long long)count, (long long)width, (long long)o.first,
                         (long long)o.vocabulary);
    if (o.has_padding && (o.padding < -all || o.padding >= all))
        return oari_fail(OAR_E_ARG,
                         "embedding [%lld, %lld] with padding %lld: no such "
                         "row",
                         (long long)count, (long long)width,
                         (long long)o.padding);
    OARI_TRY(oari_layer_dtype("embedding", o.dtype));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "embedding_create: nowhere to give it");
    OARI_TRY(oar_module_create(&oari_embedding_class, &made));
    e = oar_module_self(made);
    e->opts = (oar_embedding_opts){ .size = sizeof e->opts,
                                    .has_padding = o.has_padding,
                                    .padding = o.padding,
                                    .vocabulary = o.vocabulary,
                                    .first = o.first };
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

oar_status oar_embedding_describe(const oar_module *module,
                                  oar_embedding_opts *opts)
{
    const embedding *e;

    if (!oar_module_is(module, &oari_embedding_class))
        return oari_fail(OAR_E_ARG,
                         "embedding_describe of a %s: it is no embedding",
                         module != NULL ? oar_module_name(module) : "NULL");
    e = oar_module_self((oar_module *)(uintptr_t)module);
    return oari_struct_give(opts, &e->opts, sizeof e->opts, "embedding_opts");
}
