/* SPDX-License-Identifier: Apache-2.0 */
/* norm_layers: layer norm and RMS norm over the last dim. */
#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"

typedef struct norm {
    double eps;
} norm;

static oar_tensor *layer_norm_forward(oar_tape *tape, oar_module *module,
                                      oar_tensor *x)
{
    const norm *n = oar_module_self(module);

    return oar_layer_norm(tape, x, oar_module_param(module, 0),
                          oar_module_param(module, 1), n->eps);
}

static oar_tensor *rms_norm_forward(oar_tape *tape, oar_module *module,
                                    oar_tensor *x)
{
    const norm *n = oar_module_self(module);

    return oar_rms_norm(tape, x, oar_module_param(module, 0), n->eps);
}

const oar_module_class oari_layer_norm_class = {
    .size = sizeof oari_layer_norm_class,
    .name = "layer_norm",
    .self_size = sizeof(norm),
    .forward = layer_norm_forward,
};

const oar_module_class oari_rms_norm_class = {
    .size = sizeof oari_rms_norm_class,
    .name = "rms_norm",
    .self_size = sizeof(norm),
    .forward = rms_norm_forward,
};

int oari_norm_fuses(const oar_module *module, const oar_tensor *x)
{
    return x != NULL && oar_tensor_device(x).kind == OAR_CUDA &&
           oar_module_is(module, &oari_layer_norm_class) &&
           oari_layer_is_plain(module);
}

oar_tensor *oari_norm_of_sum(oar_tape *tape, oar_module *module, oar_tensor *a,
                             oar_tensor *b, oar_tensor **sum)
{
    const norm *n = oar_module_self(module);

    return oar_add_layer_norm(tape, a, b, oar_module_param(module, 0),
                              oar_module_param(module, 1), n->eps, sum);
}

static oar_status create_norm(const oar_module_class *kind, int64_t width,
                              double eps, oar_dtype dtype, oar_module **module)
{
    oar_module *made;

    if (module == NULL)
        return oari_fail(OAR_E_ARG, "%s_create: nowhere to give it",
                         kind->name);
    if (width < 0 || !(eps >= 0))
        return oari_fail(OAR_E_ARG,
                         "%s of width %lld with eps %g: neither "
                         "may be negative",
                         kind->name, (long long)width, eps != 0 ? eps : 1e-5);
    OARI_TRY(oari_layer_dtype(kind->name, dtype));
    OARI_TRY(oar_module_create(kind, &made));
    ((norm *)oar_module_self(made))->eps = eps > 0 ? eps : 1e-5;
    return oari_layer_give(
        oari_layer_affine(made, dtype, width, kind == &oari_layer_norm_class),
        made, module);
}

oar_status oar_layer_norm_create(int64_t width, double eps, oar_dtype dtype,
                                 oar_module **module)
{
    return create_norm(&oari_layer_norm_class, width, eps, dtype, module);
}

oar_status oar_rms_norm_create(int64_t width, double eps, oar_dtype dtype,
                               oar_module **module)
{
    return create_norm(&oari_rms_norm_class, width, eps, dtype, module);
}

double oar_norm_eps(const oar_module *module)
{
    if (!oar_module_is(module, &oari_layer_norm_class) &&
        !oar_module_is(module, &oari_rms_norm_class))
        return 0;
    return ((const norm *)oar_module_self((oar_module *)(uintptr_t)module))
        ->eps;
}
