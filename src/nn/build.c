/* SPDX-License-Identifier: Apache-2.0 */
/* build: the steps that every layer's constructor has. */
#include "nn/build.h"

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

oar_status oari_layer_give(oar_status status, oar_module *made,
                           oar_module **module)
{
    if (status != OAR_OK)
        oar_module_release(made);
    else
        *module = made;
    return status;
}

void oari_layer_drop(oar_tape *tape, const oar_module *child, oar_tensor *x)
{
    if (child->hooks[OAR_BEFORE_BACKWARD].first == NULL &&
        child->hooks[OAR_AFTER_BACKWARD].first == NULL)
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
