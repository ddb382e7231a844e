/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm_layer: a layer that normalises groups of channels. */
#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"

typedef struct group_norm {
    int64_t groups;
    double eps;
    int affine;
} group_norm;

static oar_tensor *group_norm_forward(oar_tape *tape, oar_module *module,
                                      oar_tensor *x)
{
    const group_norm *n = oar_module_self(module);
    oar_tensor *weight = n->affine ? oar_module_param(module, 0) : NULL;
    oar_tensor *bias = n->affine ? oar_module_param(module, 1) : NULL;

    return oar_group_norm(tape, x, n->groups, weight, bias, n->eps);
}

static const oar_module_class group_norm_class = {
    .size = sizeof group_norm_class,
    .name = "group_norm",
    .self_size = sizeof(group_norm),
    .forward = group_norm_forward,
};

oar_status oar_group_norm_create(int64_t groups, int64_t channels,
                                 const oar_group_norm_opts *opts,
                                 oar_module **module)
{
    oar_group_norm_opts o;
    oar_module *made;
    oar_status status = OAR_OK;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (groups < 1 || channels < 1 || channels % groups != 0)
        return oari_fail(OAR_E_ARG,
                         "group_norm of %lld channels in %lld groups: the "
                         "groups divide the channels",
                         (long long)channels, (long long)groups);
    if (!(o.eps >= 0))
        return oari_fail(OAR_E_ARG,
                         "group_norm with eps %g: it is not negative", o.eps);
    OARI_TRY(oari_layer_dtype("group_norm", o.dtype));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "group_norm_create: nowhere to give it");
    OARI_TRY(oar_module_create(&group_norm_class, &made));
    *(group_norm *)oar_module_self(made) =
        (group_norm){ groups, o.eps > 0 ? o.eps : 1e-5, !o.no_affine };
    if (!o.no_affine)
        status = oari_layer_affine(made, o.dtype, channels, 1);
    return oari_layer_give(status, made, module);
}
