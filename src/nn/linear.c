/* SPDX-License-Identifier: Apache-2.0 */
/* linear: x times a weight, plus a bias. */
#include <oarsong/layers.h>
#include <oarsong/ops.h>

#include "base/status.h"
#include "nn/build.h"

static oar_tensor *linear_forward(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    oar_tensor *weight = oar_module_param(module, 0);
    oar_tensor *bias = oar_module_param(module, 1); /* NULL without one */

    return oar_linear(tape, x, weight, bias);
}

const oar_module_class oari_linear_class = { .size = sizeof oari_linear_class,
                                             .name = "linear",
                                             .forward = linear_forward };

oar_status oar_linear_create(int64_t in, int64_t out, uint64_t seed,
                             const oar_linear_opts *opts, oar_module **module)
{
    oar_linear_opts o;
    oar_module *made;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "linear_create: nowhere to give it");
    if (in < 0 || out < 0)
        return oari_fail(OAR_E_ARG,
                         "linear from %lld to %lld: neither may be negative",
                         (long long)in, (long long)out);
    OARI_TRY(oari_layer_dtype("linear", o.dtype));
    OARI_TRY(oar_module_create(&oari_linear_class, &made));
    return oari_layer_give(oari_layer_uniform(made, o.dtype, OAR_SHAPE(out, in),
                                              o.no_bias ? -1 : out, seed),
                           made, module);
}
