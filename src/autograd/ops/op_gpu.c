/* SPDX-License-Identifier: Apache-2.0 */
/* op_gpu: tensors on a GPU: making them, moving them, and the few operations
 * they have. None of them is recorded: what wants a gradient is refused. */
#include "autograd/ops/op_gpu.h"

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/dtype.h"
#include "base/status.h"
#include "tensor/tensor_gpu.h"

static oar_status check_no_grad(const char *name, oar_tape *tape,
                                const oar_tensor *a)
{
    if (!oari_tensor_attached(a))
        return oari_fail(OAR_E_STATE, "%s of a tensor %s %s", name,
                         oari_shape_text(a->at.shape).text, oari_absence(a));
    if (!oari_grad_wanted(tape, a))
        return OAR_OK;
    return oari_fail(OAR_E_DEVICE,
                     "%s of a tensor %s that wants a gradient: there are none "
                     "on GPUs yet",
                     name, oari_shape_text(a->at.shape).text);
}

/* Gives the result if all went well, else nothing. */
static oar_tensor *give_result(oar_tape *tape, oar_tensor *out,
                               oar_status status)
{
    if (out != NULL && status != OAR_OK) {
        oar_tensor_release(out);
        return NULL;
    }
    return oari_keep(tape, out);
}

/* ---- making and moving --------------------------------------------------- */

oar_tensor *oar_empty_on(oar_tape *tape, oar_device device, oar_dtype dtype,
                         oar_shape shape)
{
    if (device.kind == OAR_CPU)
        return oar_empty(tape, dtype, shape);
    if (oari_shape_check("empty_on", shape, dtype) != OAR_OK)
        return NULL;
    return oari_keep(tape, oari_tensor_on(device, dtype, shape));
}

oar_tensor *oar_to(oar_tape *tape, const oar_tensor *a, oar_device device)
{
    oar_tensor *out;

    if (a == NULL) {
        oari_null("to");
        return NULL;
    }
    if (check_no_grad("to", tape, a) != OAR_OK)
        return NULL;
    out = oari_tensor_on(device, a->dtype, a->at.shape);
    return out != NULL ? give_result(tape, out, oari_gpu_assign(out, a)) : NULL;
}

oar_device oar_tensor_device(const oar_tensor *tensor)
{
    return tensor != NULL && tensor->storage != NULL
               ? tensor->storage->device
               : oar_device_of(OAR_CPU, 0);
}

/* ---- operations ---------------------------------------------------------- */

oar_tensor *oari_contiguous_on_gpu(oar_tape *tape, oar_tensor *a)
{
    if (check_no_grad("contiguous", tape, a) != OAR_OK)
        return NULL;
    if (oari_layout_is_rows(&a->at))
        return tape != NULL ? a : oar_tensor_retain(a);
    return oar_to(tape, a, a->storage->device);
}

oar_tensor *oari_cast_on_gpu(oar_tape *tape, oar_tensor *a, oar_dtype dtype)
{
    oar_tensor *out;

    if (check_no_grad("cast", tape, a) != OAR_OK)
        return NULL;
    out = oari_tensor_on(a->storage->device, dtype, a->at.shape);
    return out != NULL ? give_result(tape, out, oari_gpu_assign(out, a)) : NULL;
}

oar_tensor *oari_scale_on_gpu(oar_tape *tape, oar_tensor *a, double factor)
{
    oar_tensor *out;

    if (check_no_grad("scale", tape, a) != OAR_OK ||
        oari_check_number("scale", a) != OAR_OK)
        return NULL;
    out = oari_tensor_on(a->storage->device, a->dtype, a->at.shape);
    return out != NULL ? give_result(tape, out, oari_gpu_scale(out, a, factor))
                       : NULL;
}

static oar_status check_add(oar_tape *tape, const oar_tensor *a,
                            const oar_tensor *b, oar_shape *shape)
{
    oar_device x = oar_tensor_device(a), y = oar_tensor_device(b);

    if (x.kind != y.kind || x.index != y.index)
        return oari_fail(
            OAR_E_DEVICE, "add of %s on %s and %s on %s",
            oari_shape_text(a->at.shape).text, oar_device_text(x).text,
            oari_shape_text(b->at.shape).text, oar_device_text(y).text);
    OARI_TRY(check_no_grad("add", tape, a));
    OARI_TRY(check_no_grad("add", tape, b));
    OARI_TRY(oari_check_number("add", a));
    OARI_TRY(oari_check_same_dtype("add", a, b));
    if (oari_shape_broadcast(a->at.shape, b->at.shape, shape))
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "add of %s and %s: they do not broadcast",
                     oari_shape_text(a->at.shape).text,
                     oari_shape_text(b->at.shape).text);
}

oar_tensor *oari_add_on_gpu(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    oar_shape shape;
    oar_tensor *out;

    if (check_add(tape, a, b, &shape) != OAR_OK)
        return NULL;
    out = oari_tensor_on(a->storage->device, a->dtype, shape);
    return out != NULL ? give_result(tape, out, oari_gpu_add(out, a, b)) : NULL;
}
