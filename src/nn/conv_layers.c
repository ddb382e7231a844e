/* SPDX-License-Identifier: Apache-2.0 */
/* conv_layers: convolution over one dim, transposed convolutions, and adaptive
 * pooling. */
#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"

/* ---- convolutions -------------------------------------------------------- */

#define CONVOLUTION(fn)                                                        \
    static oar_tensor *fn##_forward(oar_tape *tape, oar_module *module,        \
                                    oar_tensor *x)                             \
    {                                                                          \
        return oar_##fn(tape, x, oar_module_param(module, 0),                  \
                        oar_module_param(module, 1), oar_module_self(module)); \
    }                                                                          \
    static const oar_module_class fn##_class = {                               \
        .size = sizeof fn##_class,                                             \
        .name = #fn,                                                           \
        .self_size = sizeof(oar_##fn##_opts),                                  \
        .forward = fn##_forward,                                               \
    };

CONVOLUTION(conv1d)
CONVOLUTION(conv_transpose1d)
CONVOLUTION(conv_transpose2d)

/* A layer that is wanted. Where there is one dim, it is number 1. */
typedef struct request {
    const oar_module_class *kind;
    int64_t in, out;
    int dims, kernel[2];
    uint64_t seed;
    oar_conv_transpose2d_layer_opts o; /* what all have among them */
} request;

static oar_status add_params(oar_module *module, const request *r)
{
    int transposed = r->kind != &conv1d_class;
    int64_t rows = transposed ? r->in : r->out;
    int64_t columns = (transposed ? r->out : r->in) / r->o.groups;
    oar_shape shape =
        r->dims == 1 ? OAR_SHAPE(rows, columns, r->kernel[1])
                     : OAR_SHAPE(rows, columns, r->kernel[0], r->kernel[1]);

    return oari_layer_uniform(module, r->o.dtype, shape,
                              r->o.no_bias ? -1 : r->out, r->seed);
}

/* Fills in the defaults and gives the module, whose own options are still to be
 * set. */
static oar_status create_conv(request *r, oar_module **module)
{
    oar_conv_transpose2d_layer_opts *o = &r->o;
    oar_module *made;

    o->groups = o->groups != 0 ? o->groups : 1;
    if (r->in < 1 || r->out < 1 || o->groups < 1 || r->in % o->groups != 0 ||
        r->out % o->groups != 0)
        return oari_fail(OAR_E_ARG,
                         "%s from %lld to %lld channels in %d groups: the "
                         "groups divide both",
                         r->kind->name, (long long)r->in, (long long)r->out,
                         o->groups);
    for (int i = 2 - r->dims; i < 2; i++) {
        int stride = o->stride[i] != 0 ? o->stride[i] : 1;
        int dilation = o->dilation[i] != 0 ? o->dilation[i] : 1;
        int more = o->output_padding[i];

        if (r->kernel[i] < 1 || stride < 1 || o->padding[i] < 0 ||
            dilation < 1 || more < 0 || (more >= stride && more >= dilation))
            return oari_fail(
                OAR_E_ARG,
                "%s with kernel %d, stride %d, padding %d, dilation %d, output "
                "padding %d: none may be negative, and the last is below the "
                "stride or the dilation",
                r->kind->name, r->kernel[i], stride, o->padding[i], dilation,
                more);
    }
    OARI_TRY(oari_layer_dtype(r->kind->name, o->dtype));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "%s_create: nowhere to give it",
                         r->kind->name);
    OARI_TRY(oar_module_create(r->kind, &made));
    return oari_layer_give(add_params(made, r), made, module);
}

oar_status oar_conv1d_create(int64_t in, int64_t out, int kernel, uint64_t seed,
                             const oar_conv1d_layer_opts *opts,
                             oar_module **module)
{
    request r = { .kind = &conv1d_class,
                  .in = in,
                  .out = out,
                  .dims = 1,
                  .kernel = { 1, kernel },
                  .seed = seed };
    oar_conv1d_layer_opts o;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    r.o = (oar_conv_transpose2d_layer_opts){ .stride = { 1, o.stride },
                                             .padding = { 0, o.padding },
                                             .dilation = { 1, o.dilation },
                                             .groups = o.groups,
                                             .no_bias = o.no_bias,
                                             .dtype = o.dtype };
    OARI_TRY(create_conv(&r, module));
    *(oar_conv1d_opts *)oar_module_self(*module) =
        (oar_conv1d_opts){ sizeof(oar_conv1d_opts), o.stride, o.padding,
                           o.dilation, o.groups };
    return OAR_OK;
}

oar_status
oar_conv_transpose1d_create(int64_t in, int64_t out, int kernel, uint64_t seed,
                            const oar_conv_transpose1d_layer_opts *opts,
                            oar_module **module)
{
    request r = { .kind = &conv_transpose1d_class,
                  .in = in,
                  .out = out,
                  .dims = 1,
                  .kernel = { 1, kernel },
                  .seed = seed };
    oar_conv_transpose1d_layer_opts o;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    r.o = (oar_conv_transpose2d_layer_opts){
        .stride = { 1, o.stride },
        .padding = { 0, o.padding },
        .output_padding = { 0, o.output_padding },
        .dilation = { 1, o.dilation },
        .groups = o.groups,
        .no_bias = o.no_bias,
        .dtype = o.dtype
    };
    OARI_TRY(create_conv(&r, module));
    *(oar_conv_transpose1d_opts *)oar_module_self(*module) =
        (oar_conv_transpose1d_opts){ sizeof(oar_conv_transpose1d_opts),
                                     o.stride,
                                     o.padding,
                                     o.output_padding,
                                     o.dilation,
                                     o.groups };
    return OAR_OK;
}

oar_status oar_conv_transpose2d_create(
    int64_t in, int64_t out, int kh, int kw, uint64_t seed,
    const oar_conv_transpose2d_layer_opts *opts, oar_module **module)
{
    request r = { .kind = &conv_transpose2d_class,
                  .in = in,
                  .out = out,
                  .dims = 2,
                  .kernel = { kh, kw },
                  .seed = seed };
    oar_conv_transpose2d_opts *self;

    OARI_TRY(oari_opts_read(&r.o, sizeof r.o, opts));
    OARI_TRY(create_conv(&r, module));
    self = oar_module_self(*module);
    self->size = sizeof *self;
    for (int i = 0; i < 2; i++) {
        self->stride[i] = r.o.stride[i];
        self->padding[i] = r.o.padding[i];
        self->output_padding[i] = r.o.output_padding[i];
        self->dilation[i] = r.o.dilation[i];
    }
    self->groups = r.o.groups;
    return OAR_OK;
}

/* ---- adaptive pooling ---------------------------------------------------- */

typedef struct sides {
    int height, width;
} sides;

static oar_tensor *pool1d_forward(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    const sides *s = oar_module_self(module);

    return oar_adaptive_avg_pool1d(tape, x, s->width);
}

static oar_tensor *pool2d_forward(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    const sides *s = oar_module_self(module);

    return oar_adaptive_avg_pool2d(tape, x, s->height, s->width);
}

static const oar_module_class pool1d_class = { .size = sizeof pool1d_class,
                                               .name = "adaptive_avg_pool1d",
                                               .self_size = sizeof(sides),
                                               .forward = pool1d_forward };
static const oar_module_class pool2d_class = { .size = sizeof pool2d_class,
                                               .name = "adaptive_avg_pool2d",
                                               .self_size = sizeof(sides),
                                               .forward = pool2d_forward };

static oar_status create_pool(const oar_module_class *kind, sides s,
                              oar_module **module)
{
    oar_module *made;

    if (s.height < 1 || s.width < 1)
        return oari_fail(OAR_E_ARG, "%s to [%d, %d]: at least one", kind->name,
                         s.height, s.width);
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "%s_create: nowhere to give it",
                         kind->name);
    OARI_TRY(oar_module_create(kind, &made));
    *(sides *)oar_module_self(made) = s;
    *module = made;
    return OAR_OK;
}

oar_status oar_adaptive_avg_pool1d_create(int length, oar_module **module)
{
    return create_pool(&pool1d_class, (sides){ 1, length }, module);
}

oar_status oar_adaptive_avg_pool2d_create(int height, int width,
                                          oar_module **module)
{
    return create_pool(&pool2d_class, (sides){ height, width }, module);
}
