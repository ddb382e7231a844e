/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise: copies, sums and multiples of arrays on a GPU. */
#include "base/status.h"
#include "device/cuda/cuda_elementwise.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/kernel_table.h"
#include "tensor/move.h"

/* An array with the strides that it has when it broadcasts to a shape. */
typedef struct expanded {
    oari_layout at;
    oari_cuda_array array;
} expanded;

static oari_cuda_array expand(expanded *e, const oari_array *a, oar_shape shape)
{
    e->at = oari_layout_expand(&a->at, shape);
    e->array = (oari_cuda_array){ oari_array_data(a), a->dtype, e->at.stride };
    return e->array;
}

static oari_cuda_shape shape_of(const oari_array *a)
{
    return (oari_cuda_shape){ a->at.shape.ndim, a->at.shape.dim };
}

oar_status oari_cuda_copy(const oari_array *to, const oari_array *from)
{
    expanded y, a;

    return oari_cuda_assign(
        to->device.index, shape_of(to), expand(&y, to, to->at.shape),
        expand(&a, from, to->at.shape), oar_stream_current(to->device));
}

oar_status oari_cuda_scale(const oari_array *to, int add, const oari_array *a,
                           double factor)
{
    expanded y, x;

    return oari_cuda_scale_array(
        to->device.index, shape_of(to), expand(&y, to, to->at.shape), add,
        expand(&x, a, to->at.shape), factor, oar_stream_current(to->device));
}

oar_status oari_cuda_fill(const oari_array *to, double value)
{
    oar_tensor *numbers;
    oari_array from;
    oar_status status;

    if (oari_layout_is_rows(&to->at))
        return oar_device_fill(
            oar_span_on(to->device, oari_array_data(to),
                        (size_t)oari_shape_count(to->at.shape), to->dtype),
            value, oar_stream_current(to->device));
    numbers = oari_tensor_make(NULL, to->dtype, to->at.shape);
    if (numbers == NULL)
        return OAR_E_NOMEM;
    from = oari_array_of(numbers);
    oari_fill(&from, value);
    status = oari_move(NULL, to, &from);
    oar_tensor_release(numbers);
    return status;
}

oar_status oari_cuda_binary(oari_binary_kind kind, const oari_array *to,
                            const oari_array *a, const oari_array *b)
{
    expanded y, left, right;

    if (kind != OARI_ADD)
        return oari_no_kernel(to, "binary");
    return oari_cuda_add_arrays(
        to->device.index, shape_of(to), expand(&y, to, to->at.shape), 0,
        expand(&left, a, to->at.shape), expand(&right, b, to->at.shape),
        oar_stream_current(to->device));
}

/* Sums over the dims that `to` was broadcast along, on the cpu. */
oar_status oari_cuda_sum_to(oari_pool *pool, const oari_array *to, int add,
                            const oari_array *a)
{
    oar_tensor *from, *sums;
    oar_status status = OAR_E_NOMEM;
    oari_array x, y;

    if (oari_shape_equal(to->at.shape, a->at.shape))
        return oari_cuda_scale(to, add, a, 1);
    from = oari_tensor_make(pool, a->dtype, a->at.shape);
    sums = oari_tensor_make(pool, to->dtype, to->at.shape);
    if (from != NULL && sums != NULL) {
        x = oari_array_of(from);
        y = oari_array_of(sums);
        status = oari_move(pool, &x, a);
        if (status == OAR_OK && add)
            status = oari_move(pool, &y, to);
        if (status == OAR_OK)
            status = oari_sum_to(pool, &y, add, &x);
        if (status == OAR_OK)
            status = oari_move(pool, to, &y);
    }
    oari_tensor_drop(pool, from);
    oari_tensor_drop(pool, sums);
    return status;
}
