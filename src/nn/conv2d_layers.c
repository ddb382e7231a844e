/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d_layers: convolution and pooling layers. */
#include <oarsong/layers.h>

#include "autograd/ops/windows.h"
#include "base/status.h"
#include "nn/build.h"

/* ---- conv2d -------------------------------------------------------------- */

static oar_tensor *conv2d_forward(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    return oar_conv2d(tape, x, oar_module_param(module, 0),
                      oar_module_param(module, 1), oar_module_self(module));
}

static const oar_module_class conv2d_class = {
    .size = sizeof conv2d_class,
    .name = "conv2d",
    .self_size = sizeof(oar_conv2d_opts),
    .forward = conv2d_forward,
};

oar_status oar_conv2d_create(int64_t in, int64_t out, int kh, int kw,
                             uint64_t seed, const oar_conv2d_layer_opts *opts,
                             oar_module **module)
{
    oar_conv2d_layer_opts o;
    oar_conv2d_opts self;
    oar_module *made;
    int groups;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    groups = o.groups != 0 ? o.groups : 1;
    if (in < 1 || out < 1 || kh < 1 || kw < 1 || groups < 1 ||
        in % groups != 0 || out % groups != 0)
        return oari_fail(OAR_E_ARG,
                         "conv2d from %lld to %lld channels with a kernel "
                         "[%d, %d] and %d groups: each is at least 1, and the "
                         "groups divide the channels",
                         (long long)in, (long long)out, kh, kw, groups);
    OARI_TRY(oari_layer_dtype("conv2d", o.dtype));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "conv2d_create: nowhere to give it");
    self = (oar_conv2d_opts){
        .size = sizeof self,
        .stride = { o.stride[0], o.stride[1] },
        .padding = { o.padding[0], o.padding[1] },
        .dilation = { o.dilation[0], o.dilation[1] },
        .groups = o.groups,
    };
    OARI_TRY(oari_check_conv_opts("conv2d", &self));
    OARI_TRY(oar_module_create(&conv2d_class, &made));
    *(oar_conv2d_opts *)oar_module_self(made) = self;
    return oari_layer_give(
        oari_layer_uniform(made, o.dtype, OAR_SHAPE(out, in / groups, kh, kw),
                           o.no_bias ? -1 : out, seed),
        made, module);
}

/* ---- pooling ------------------------------------------------------------- */

typedef struct pool {
    int height, width;
    oar_pool2d_opts opts;
} pool;

#define POOL(fn)                                                            \
    static oar_tensor *fn##_forward(oar_tape *tape, oar_module *module,     \
                                    oar_tensor *x)                          \
    {                                                                       \
        const pool *p = oar_module_self(module);                            \
                                                                            \
        return oar_##fn(tape, x, p->height, p->width, &p->opts);            \
    }                                                                       \
    static const oar_module_class fn##_class = { .size = sizeof fn##_class, \
                                                 .name = #fn,               \
                                                 .self_size = sizeof(pool), \
                                                 .forward = fn##_forward };

POOL(max_pool2d)
POOL(avg_pool2d)

static oar_status create_pool(const oar_module_class *kind, int height,
                              int width, const oar_pool2d_opts *opts,
                              oar_module **module)
{
    pool p = { height, width, { 0 } };
    oar_module *made;

    OARI_TRY(oari_opts_read(&p.opts, sizeof p.opts, opts));
    p.opts.size = sizeof p.opts;
    OARI_TRY(oari_check_pool2d_opts(kind->name, height, width, &p.opts));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "%s_create: nowhere to give it",
                         kind->name);
    OARI_TRY(oar_module_create(kind, &made));
    *(pool *)oar_module_self(made) = p;
    *module = made;
    return OAR_OK;
}

oar_status oar_max_pool2d_create(int height, int width,
                                 const oar_pool2d_opts *opts,
                                 oar_module **module)
{
    return create_pool(&max_pool2d_class, height, width, opts, module);
}

oar_status oar_avg_pool2d_create(int height, int width,
                                 const oar_pool2d_opts *opts,
                                 oar_module **module)
{
    return create_pool(&avg_pool2d_class, height, width, opts, module);
}
