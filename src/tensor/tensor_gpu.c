/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_gpu: tensors on a GPU.
 *
 * Between devices bytes are copied row by row without gaps, in one dtype; what
 * is neither goes through a copy that is, on the side where it is: so the bytes
 * that travel are those of the tensor, and conversion happens where `from` is a
 * GPU's on the GPU. */
#include "tensor/tensor_gpu.h"

#include <oarsong/device.h>

#include "base/status.h"
#include "device/cuda/cuda_elementwise.h"
#include "tensor/cpu/kernels.h"

static const oar_device cpu = { OAR_CPU, 0 };

/* ---- making -------------------------------------------------------------- */

oar_tensor *oari_tensor_on(oar_device device, oar_dtype dtype, oar_shape shape)
{
    oari_layout at = oari_layout_rows(shape);
    oar_storage *storage;
    oar_tensor *made;
    size_t bytes;

    if (oari_shape_check("a tensor", shape, dtype) != OAR_OK)
        return NULL;
    bytes = (size_t)oari_shape_count(shape) * oar_dtype_size(dtype);
    if (oari_storage_make(device, bytes, bytes, OARI_PRIVATE, &storage) !=
        OAR_OK)
        return NULL;
    made = oari_tensor_over(NULL, storage, dtype, &at);
    oar_storage_release(storage); /* the tensor has its own reference */
    return made;
}

/* ---- on one GPU ---------------------------------------------------------- */

static void *data_of(const oar_tensor *t)
{
    oari_array a = oari_array_of(t);

    return oari_array_data(&a);
}

static oari_cuda_array array_of(const oar_tensor *t)
{
    return (oari_cuda_array){ data_of(t), t->dtype, t->at.stride };
}

static oari_cuda_shape shape_of(const oar_tensor *t)
{
    return (oari_cuda_shape){ t->at.shape.ndim, t->at.shape.dim };
}

static oar_status assign_here(const oar_tensor *to, const oar_tensor *from)
{
    oar_device at = to->storage->device;

    if (to->count == 0)
        return OAR_OK;
    if (at.kind == OAR_CPU) {
        oari_array a = oari_array_of(to), b = oari_array_of(from);

        oari_copy(&a, &b);
        return OAR_OK;
    }
    return oari_cuda_assign(at.index, shape_of(to), array_of(to),
                            array_of(from), oar_stream_current(at));
}

/* ---- from one device to another ------------------------------------------ */

static int is_plain(const oar_tensor *t, oar_dtype dtype)
{
    return t->dtype == dtype && oari_layout_is_rows(&t->at);
}

/* The bytes, row by row, all of one dtype. The stream is that of the GPU; of
 * two, `to` waits for what the other has done. */
static oar_status move_bytes(const oar_tensor *to, const oar_tensor *from)
{
    oar_device there = to->storage->device, here = from->storage->device;
    oar_device gpu = there.kind == OAR_CUDA ? there : here;

    if (there.kind == OAR_CUDA && here.kind == OAR_CUDA)
        OARI_TRY(oar_stream_synchronize(here, oar_stream_current(here)));
    return oar_device_copy(data_of(to), there, data_of(from), here,
                           (size_t)to->count * oar_dtype_size(to->dtype),
                           oar_stream_current(gpu));
}

/* `from` is plain. */
static oar_status move_plain(const oar_tensor *to, const oar_tensor *from)
{
    oar_tensor *landing;
    oar_status status;

    if (is_plain(to, from->dtype))
        return move_bytes(to, from);
    landing = oari_tensor_on(to->storage->device, from->dtype, to->at.shape);
    if (landing == NULL)
        return oar_last_error()->status;
    status = move_bytes(landing, from);
    if (status == OAR_OK)
        status = assign_here(to, landing);
    oar_tensor_release(landing);
    return status;
}

oar_status oari_gpu_assign(const oar_tensor *to, const oar_tensor *from)
{
    oar_tensor *plain;
    oar_status status;

    if (to->storage->device.kind == from->storage->device.kind &&
        to->storage->device.index == from->storage->device.index)
        return assign_here(to, from);
    if (to->count == 0)
        return OAR_OK;
    if (is_plain(from, to->dtype))
        return move_plain(to, from);
    plain = oari_tensor_on(from->storage->device, to->dtype, from->at.shape);
    if (plain == NULL)
        return oar_last_error()->status;
    status = assign_here(plain, from);
    if (status == OAR_OK)
        status = move_plain(to, plain);
    oar_tensor_release(plain);
    return status;
}

/* ---- numbers on the host ------------------------------------------------- */

/* A tensor over numbers of the caller's; NULL on failure. */
static oar_tensor *over_numbers(oar_dtype dtype, oar_shape shape, void *data)
{
    oari_layout at = oari_layout_rows(shape);
    size_t bytes = (size_t)oari_shape_count(shape) * oar_dtype_size(dtype);
    oar_storage *storage;
    oar_tensor *made;

    if (oari_storage_over(data, bytes, NULL, NULL, &storage) != OAR_OK)
        return NULL;
    made = oari_tensor_over(NULL, storage, dtype, &at);
    oar_storage_release(storage);
    return made;
}

oar_status oari_gpu_read(const oar_tensor *from, oar_dtype dtype, void *data)
{
    oar_tensor *numbers = over_numbers(dtype, from->at.shape, data);
    oar_status status =
        numbers != NULL ? oari_gpu_assign(numbers, from) : OAR_E_NOMEM;

    oar_tensor_release(numbers);
    return status;
}

oar_status oari_gpu_write(const oar_tensor *to, oar_dtype dtype, void *data)
{
    oar_tensor *numbers = over_numbers(dtype, to->at.shape, data);
    oar_status status =
        numbers != NULL ? oari_gpu_assign(to, numbers) : OAR_E_NOMEM;

    oar_tensor_release(numbers);
    return status;
}

oar_status oari_gpu_fill(const oar_tensor *to, double value)
{
    oar_tensor *one;
    oar_status status;

    if (oari_layout_is_rows(&to->at))
        return oar_device_fill(oar_span_on(to->storage->device, data_of(to),
                                           (size_t)to->count, to->dtype),
                               value, oar_stream_current(to->storage->device));
    one = oari_tensor_on(cpu, to->dtype, to->at.shape);
    if (one == NULL)
        return oar_last_error()->status;
    oari_fill(&(oari_array){ one->storage->data, one->dtype, one->at }, value);
    status = oari_gpu_assign(to, one);
    oar_tensor_release(one);
    return status;
}

/* ---- arithmetic ---------------------------------------------------------- */

oar_status oari_gpu_add(const oar_tensor *to, const oar_tensor *a,
                        const oar_tensor *b)
{
    oari_layout left = oari_layout_expand(&a->at, to->at.shape);
    oari_layout right = oari_layout_expand(&b->at, to->at.shape);
    oar_device at = to->storage->device;

    if (to->count == 0)
        return OAR_OK;
    return oari_cuda_add(
        at.index, shape_of(to), array_of(to), 0,
        (oari_cuda_array){ data_of(a), a->dtype, left.stride },
        (oari_cuda_array){ data_of(b), b->dtype, right.stride },
        oar_stream_current(at));
}

oar_status oari_gpu_scale(const oar_tensor *to, const oar_tensor *a,
                          double factor)
{
    oar_device at = to->storage->device;

    if (to->count == 0)
        return OAR_OK;
    return oari_cuda_scale(at.index, shape_of(to), array_of(to), 0, array_of(a),
                           factor, oar_stream_current(at));
}
