/* SPDX-License-Identifier: Apache-2.0 */
/* build: the steps that every layer's constructor has. */
#include "nn/build.h"

#include <math.h>

#include <oarsong/tape.h>

#include "autograd/saved.h"
#include "base/dtype.h"
#include "base/status.h"
#include "nn/module.h"

oar_status oari_layer_dtype(const char *name, oar_dtype dtype)
{
    OARI_TRY(oari_check_dtype(name, dtype));
    if (oari_dtype_is_float(dtype))
        return OAR_OK;
    return oari_fail(OAR_E_DTYPE, "%s of %s: only floats", name,
                     oar_dtype_name(dtype));
}

oar_status oari_layer_param(oar_module *module, const char *name,
                            oar_tensor *made)
{
    if (made == NULL)
        return oar_last_error()->status;
    return oar_module_add_param(module, name, made);
}

oar_status oari_layer_buffer(oar_module *module, const char *name,
                             oar_tensor *made)
{
    if (made == NULL)
        return oar_last_error()->status;
    return oar_module_add_buffer(module, name, made);
}

oar_status oari_layer_child(oar_module *module, const char *name,
                            oar_status status, oar_module *made)
{
    if (status != OAR_OK)
        return status;
    return oar_module_add_child(module, name, made);
}

oar_status oari_layer_uniform(oar_module *module, oar_dtype dtype,
                              oar_shape weight, int64_t biases, uint64_t seed)
{
    double fan_in = 1, bound;

    for (int i = 1; i < weight.ndim; i++)
        fan_in *= (double)weight.dim[i];
    bound = fan_in > 0 ? 1 / sqrt(fan_in) : 0;
    OARI_TRY(oari_layer_param(
        module, "weight",
        oar_uniform(NULL, dtype, weight, seed, -bound, bound)));
    if (biases < 0)
        return OAR_OK;
    return oari_layer_param(
        module, "bias",
        oar_uniform(NULL, dtype, OAR_SHAPE(biases), seed + 1, -bound, bound));
}

oar_status oari_layer_affine(oar_module *module, oar_dtype dtype, int64_t width,
                             int has_bias)
{
    OARI_TRY(oari_layer_param(module, "weight",
                              oar_full(NULL, dtype, OAR_SHAPE(width), 1)));
    if (!has_bias)
        return OAR_OK;
    return oari_layer_param(module, "bias",
                            oar_zeros(NULL, dtype, OAR_SHAPE(width)));
}

oar_status oari_layer_give(oar_status status, oar_module *made,
                           oar_module **module)
{
    if (status != OAR_OK)
        oar_module_release(made);
    else
        *module = made;
    return status;
}

int oari_layer_is_open(const oar_module *module)
{
    if (module->replaced || module->maps[OAR_BEFORE_FORWARD].first != NULL ||
        module->maps[OAR_AFTER_FORWARD].first != NULL)
        return 1;
    for (int i = 0; i < module->entries; i++)
        if (module->entry[i].child != NULL &&
            oari_layer_is_open(module->entry[i].child))
            return 1;
    return 0;
}

int oari_layer_is_plain(const oar_module *module)
{
    for (int moment = 0; moment < OARI_MOMENTS; moment++)
        if (module->hooks[moment].first != NULL)
            return 0;
    return !oari_layer_is_open(module);
}

void oari_layer_drop(oar_tape *tape, const oar_module *maker,
                     const oar_module *user, oar_tensor *x)
{
    if (maker != NULL && (maker->hooks[OAR_BEFORE_BACKWARD].first != NULL ||
                          maker->hooks[OAR_AFTER_BACKWARD].first != NULL ||
                          oari_layer_is_open(maker)))
        return;
    if (user == NULL || !oari_layer_is_open(user))
        oari_tape_drop(tape, x);
}

oar_tensor *oari_forward_alone(oari_forward_fn forward, oar_module *module,
                               oar_tensor *x)
{
    oar_tape *tape;
    oar_tensor *y;

    if (oar_tape_create(&tape) != OAR_OK)
        return NULL;
    oar_tape_record(tape, 0);
    y = oar_tensor_retain(forward(tape, module, x));
    oar_tape_destroy(tape);
    return y;
}
