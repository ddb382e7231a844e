/* SPDX-License-Identifier: Apache-2.0 */
/* order: starts the kernels of order.cu. This file has no state. */
#include "tensor/cuda/order.h"

#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/job_start.h"
#include "tensor/cuda/order_job.h"

#define KERNEL(text) \
    static oari_cuda_kernel_ref ref = { .file = "order", .name = text }

enum { SCRATCH_BYTES = 64 << 20 };

/* index [rows, keep] = where the first of each row of a come from. Some rows at
 * a time, as many as the scratch memory has room for. */
static oar_status order_rows(const oari_array *index, const oari_array *a,
                             int64_t keep, int descending)
{
    KERNEL("oari_order_rows");
    oari_rows all = oari_rows_of(a->at.shape);
    int64_t each = 4 * all.width, at_once;
    oari_order_job job = { .width = all.width,
                           .keep = keep,
                           .dtype = (int)a->dtype,
                           .bytes = (int)oar_dtype_size(a->dtype),
                           .is_float = oari_dtype_is_float(a->dtype),
                           .is_signed =
                               oari_job_numbers_of(a->dtype) == OARI_JOB_SIGNED,
                           .descending = descending };
    oar_status status = OAR_OK;
    oar_tensor *scratch;

    if (all.count == 0 || all.width == 0 || keep == 0)
        return OAR_OK;
    at_once = SCRATCH_BYTES / 8 / each > 0 ? SCRATCH_BYTES / 8 / each : 1;
    at_once = at_once < all.count ? at_once : all.count;
    scratch = oari_tensor_make_on(NULL, a->device, OAR_U64,
                                  OAR_SHAPE(at_once * each));
    if (scratch == NULL)
        return oar_last_error()->status;
    job.scratch = scratch->storage->data;
    for (int64_t row = 0; row < all.count && status == OAR_OK; row += at_once) {
        job.rows = all.count - row < at_once ? all.count - row : at_once;
        job.from =
            (const char *)oari_array_data(a) + row * all.width * job.bytes;
        job.to = (int64_t *)oari_array_data(index) + row * keep;
        status = oari_start_one(&ref, a, oari_blocks_for(job.rows, 1),
                                OARI_ORDER_THREADS, 0, &job);
    }
    oari_tensor_drop(NULL, scratch);
    return status;
}

oar_status oari_cuda_sort(const oari_array *index, const oari_array *a,
                          int descending, uint64_t *scratch)
{
    (void)scratch; /* the cpu's, of one row */
    return order_rows(index, a, oari_rows_of(a->at.shape).width, descending);
}

oar_status oari_cuda_topk(const oari_array *value, const oari_array *index,
                          const oari_array *a)
{
    OARI_TRY(order_rows(index, a, oari_rows_of(index->at.shape).width, 1));
    return oari_cuda_gather(value, a, a->at.shape.ndim - 1, index);
}

oar_status oari_cuda_checked_index(const oari_array *to,
                                   const oari_array *index, int op,
                                   int64_t limit)
{
    KERNEL("oari_checked_index");
    int device = to->device.index;
    oari_checked_job job = { .from = oari_array_data(index),
                             .to = oari_array_data(to),
                             .count = oari_shape_count(index->at.shape),
                             .limit = limit,
                             .ndim = index->at.shape.ndim,
                             .op = op };

    for (int d = 0; d < job.ndim; d++) {
        job.dim[d] = index->at.shape.dim[d];
        job.stride[d] = index->at.stride[d];
    }
    OARI_TRY(oari_index_check_of(device, &job.check));
    OARI_TRY(oari_cuda_start_flat(to->device, &ref, job.count, &job));
    return oari_index_checked(device, oar_stream_current(to->device));
}
