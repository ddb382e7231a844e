/* SPDX-License-Identifier: Apache-2.0 */
/* move: between devices bytes are copied row by row without gaps, in one dtype;
 * what is neither goes through a copy that is, on the side where it is: so the
 * bytes that travel are those of the tensor, and conversion happens where
 * `from` is a GPU's on the GPU. */
#include "tensor/move.h"

#include <oarsong/device.h>

#include "base/status.h"
#include "tensor/kernel_table.h"

static int is_plain(const oari_array *a, oar_dtype dtype)
{
    return a->dtype == dtype && oari_layout_is_rows(&a->at);
}

/* The bytes, row by row, all of one dtype. The stream is that of the GPU; of
 * two, `to` waits for what the other has done. */
static oar_status move_bytes(const oari_array *to, const oari_array *from)
{
    oar_device there = to->device, here = from->device;
    oar_device gpu = there.kind == OAR_CUDA ? there : here;

    if (there.kind == OAR_CUDA && here.kind == OAR_CUDA)
        OARI_TRY(oar_stream_synchronize(here, oar_stream_current(here)));
    return oar_device_copy(
        oari_array_data(to), there, oari_array_data(from), here,
        (size_t)oari_shape_count(to->at.shape) * oar_dtype_size(to->dtype),
        oar_stream_current(gpu));
}

/* `from` is plain. */
static oar_status move_plain(oari_pool *pool, const oari_array *to,
                             const oari_array *from)
{
    oar_tensor *landing;
    oar_status status;
    oari_array there;

    if (is_plain(to, from->dtype))
        return move_bytes(to, from);
    landing = oari_tensor_make_on(pool, to->device, from->dtype, to->at.shape);
    if (landing == NULL)
        return oar_last_error()->status;
    there = oari_array_of(landing);
    status = move_bytes(&there, from);
    if (status == OAR_OK)
        status = OARI_KERNEL(to, copy, to, &there);
    oari_tensor_drop(pool, landing);
    return status;
}

oar_status oari_move(oari_pool *pool, const oari_array *to,
                     const oari_array *from)
{
    oar_tensor *plain;
    oar_status status;
    oari_array here;

    if (oari_shape_count(to->at.shape) == 0)
        return OAR_OK;
    if (oari_device_equal(to->device, from->device))
        return OARI_KERNEL(to, copy, to, from);
    if (is_plain(from, to->dtype))
        return move_plain(pool, to, from);
    plain = oari_tensor_make_on(pool, from->device, to->dtype, from->at.shape);
    if (plain == NULL)
        return oar_last_error()->status;
    here = oari_array_of(plain);
    status = OARI_KERNEL(from, copy, &here, from);
    if (status == OAR_OK)
        status = move_plain(pool, to, &here);
    oari_tensor_drop(pool, plain);
    return status;
}
