/* SPDX-License-Identifier: Apache-2.0 */
/* activation: modules without parameters that act on each element. */
#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"

#define ACTIVATION(fn)                                                      \
    static oar_tensor *fn##_forward(oar_tape *tape, oar_module *module,     \
                                    oar_tensor *x)                          \
    {                                                                       \
        return oar_##fn(tape, x);                                           \
    }                                                                       \
    static const oar_module_class fn##_class = { .size = sizeof fn##_class, \
                                                 .name = #fn,               \
                                                 .forward = fn##_forward };

ACTIVATION(relu)
ACTIVATION(gelu)
ACTIVATION(gelu_tanh)
ACTIVATION(silu)
ACTIVATION(tanh)
ACTIVATION(sigmoid)
ACTIVATION(softplus)

static const oar_module_class *const classes[] = {
    [OAR_RELU] = &relu_class,           [OAR_GELU] = &gelu_class,
    [OAR_GELU_TANH] = &gelu_tanh_class, [OAR_SILU] = &silu_class,
    [OAR_TANH] = &tanh_class,           [OAR_SIGMOID] = &sigmoid_class,
    [OAR_SOFTPLUS] = &softplus_class,
};

oar_status oar_activation_create(oar_activation kind, oar_module **module)
{
    if ((int)kind < OAR_RELU || (int)kind > OAR_SOFTPLUS)
        return oari_fail(OAR_E_ARG, "there is no activation %d", (int)kind);
    return oar_module_create(classes[kind], module);
}

oar_status oar_relu_create(oar_module **module)
{
    return oar_activation_create(OAR_RELU, module);
}

/* ---- after a linear layer ------------------------------------------------ */

/* Returns OAR_ACTIVATION_DEFAULT for any other module. */
static oar_activation kind_of(const oar_module *module)
{
    for (int kind = OAR_RELU; kind <= OAR_SOFTPLUS; kind++)
        if (oar_module_is(module, classes[kind]))
            return (oar_activation)kind;
    return OAR_ACTIVATION_DEFAULT;
}

int oari_layers_fuse(const oar_module *linear, const oar_module *activation,
                     const oar_tensor *x)
{
    return x != NULL && oar_tensor_device(x).kind == OAR_CUDA &&
           oar_module_is(linear, &oari_linear_class) &&
           oari_layer_is_plain(linear) &&
           kind_of(activation) != OAR_ACTIVATION_DEFAULT &&
           oari_layer_is_plain(activation);
}

oar_tensor *oari_layers_fused(oar_tape *tape, const oar_module *linear,
                              const oar_module *activation, oar_tensor *x)
{
    return oar_linear_act(tape, x, oar_module_param(linear, 0),
                          oar_module_param(linear, 1), kind_of(activation));
}

/* ---- leaky relu ---------------------------------------------------------- */

static oar_tensor *leaky_relu_forward(oar_tape *tape, oar_module *module,
                                      oar_tensor *x)
{
    const double *slope = oar_module_self(module);

    return oar_leaky_relu(tape, x, *slope);
}

static const oar_module_class leaky_relu_class = {
    .size = sizeof leaky_relu_class,
    .name = "leaky_relu",
    .self_size = sizeof(double),
    .forward = leaky_relu_forward,
};

oar_status oar_leaky_relu_create(double slope, oar_module **module)
{
    oar_module *made;

    if (module == NULL)
        return oari_fail(OAR_E_ARG, "leaky_relu_create: nowhere to give it");
    OARI_TRY(oar_module_create(&leaky_relu_class, &made));
    *(double *)oar_module_self(made) = slope;
    *module = made;
    return OAR_OK;
}
