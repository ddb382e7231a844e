/* SPDX-License-Identifier: Apache-2.0 */
/* activation: modules without parameters that act on each element. */
#include <oarsong/layers.h>
#include <oarsong/ops.h>

static oar_tensor *relu_forward(oar_tape *tape, oar_module *module,
                                oar_tensor *x)
{
    return oar_relu(tape, x);
}

static const oar_module_class relu_class = { .size = sizeof relu_class,
                                             .name = "relu",
                                             .forward = relu_forward };

oar_status oar_relu_create(oar_module **module)
{
    return oar_module_create(&relu_class, module);
}
