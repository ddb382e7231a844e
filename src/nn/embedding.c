/* SPDX-License-Identifier: Apache-2.0 */
/* embedding: a table whose rows stand for indices. */
#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"

static oar_tensor *embedding_forward(oar_tape *tape, oar_module *module,
                                     oar_tensor *x)
{
    return oar_embedding(tape, oar_module_param(module, 0), x);
}

static const oar_module_class embedding_class = {
    .size = sizeof embedding_class,
    .name = "embedding",
    .forward = embedding_forward,
};

oar_status oar_embedding_create(int64_t count, int64_t width, uint64_t seed,
                                double deviation, oar_dtype dtype,
                                oar_module **module)
{
    oar_module *made;
    oar_status status;

    if (module == NULL)
        return oari_fail(OAR_E_ARG, "embedding_create: nowhere to give it");
    if (count < 0 || width < 0)
        return oari_fail(OAR_E_ARG,
                         "embedding [%lld, %lld]: neither may be negative",
                         (long long)count, (long long)width);
    if (!(deviation >= 0))
        return oari_fail(OAR_E_ARG,
                         "embedding with deviation %g: it is not negative",
                         deviation);
    OARI_TRY(oari_layer_dtype("embedding", dtype));
    OARI_TRY(oar_module_create(&embedding_class, &made));
    status =
        oari_layer_param(made, "weight",
                         oar_normal(NULL, dtype, OAR_SHAPE(count, width), seed,
                                    0, deviation > 0 ? deviation : 1));
    return oari_layer_give(status, made, module);
}
