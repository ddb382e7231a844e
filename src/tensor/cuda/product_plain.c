/* SPDX-License-Identifier: Apache-2.0 */
/* product_plain: starts the kernel of product_plain.cu. */
#include "base/status.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/job_start.h"
#include "tensor/cuda/product_plain_job.h"

enum { MOST_Z = 65535 };

/* The stride of an array's leading dim that stands at d among `leads`; 0 where
 * it is repeated or not there. */
static int64_t batch_stride(const oari_array *a, int d, int leads)
{
    int at = d - (leads - (a->at.shape.ndim - 2));

    return at >= 0 && a->at.shape.dim[at] > 1 ? a->at.stride[at] : 0;
}

static int64_t batch_size(const oari_array *a, int d, int leads)
{
    int at = d - (leads - (a->at.shape.ndim - 2));

    return at >= 0 ? a->at.shape.dim[at] : 1;
}

static void set_matrices(oari_product_job *job, const oari_array *to,
                         const oari_array *a, const oari_array *b)
{
    int t = to->at.shape.ndim - 2, x = a->at.shape.ndim - 2;
    int y = b->at.shape.ndim - 2;

    job->m = a->at.shape.dim[x];
    job->k = a->at.shape.dim[x + 1];
    job->n = b->at.shape.dim[y + 1];
    job->to_row = to->at.stride[t];
    job->to_column = to->at.stride[t + 1];
    job->a_row = a->at.stride[x];
    job->a_column = a->at.stride[x + 1];
    job->b_row = b->at.stride[y];
    job->b_column = b->at.stride[y + 1];
}

/* Leading dims in which `to` is repeated are summed over. */
static void set_batches(oari_product_job *job, const oari_array *to,
                        const oari_array *a, const oari_array *b)
{
    int leads = a->at.shape.ndim > b->at.shape.ndim ? a->at.shape.ndim
                                                    : b->at.shape.ndim;

    leads = (to->at.shape.ndim > leads ? to->at.shape.ndim : leads) - 2;
    job->batches = job->sums = 1;
    for (int d = 0; d < leads; d++) {
        int64_t x = batch_size(a, d, leads), y = batch_size(b, d, leads);
        int64_t both = x != 1 ? x : y, own = batch_size(to, d, leads);

        if (own == both) {
            job->dim[job->dims] = both;
            job->to_batch[job->dims] = batch_stride(to, d, leads);
            job->a_batch[job->dims] = batch_stride(a, d, leads);
            job->b_batch[job->dims++] = batch_stride(b, d, leads);
            job->batches *= both;
        } else {
            job->sum_dim[job->sum_dims] = both;
            job->a_sum[job->sum_dims] = batch_stride(a, d, leads);
            job->b_sum[job->sum_dims++] = batch_stride(b, d, leads);
            job->sums *= both;
        }
    }
}

oar_status oari_cuda_matmul_plain(oari_pool *pool, const oari_array *to,
                                  int add, const oari_array *a,
                                  const oari_array *b)
{
    static oari_cuda_kernel_ref ref = { .file = "product_plain",
                                        .name = "oari_product_plain" };
    oari_product_job job = { .to = oari_array_data(to),
                             .a = oari_array_data(a),
                             .b = oari_array_data(b),
                             .to_dtype = (int)to->dtype,
                             .a_dtype = (int)a->dtype,
                             .b_dtype = (int)b->dtype,
                             .wide = to->dtype == OAR_F64,
                             .add = add };
    oari_cuda_grid grid = { .threads = { OARI_PRODUCT_TILE, OARI_PRODUCT_TILE,
                                         1 } };

    set_matrices(&job, to, a, b);
    set_batches(&job, to, a, b);
    if (job.m * job.n * job.batches == 0)
        return OAR_OK;
    if (job.batches > MOST_Z ||
        (job.m + OARI_PRODUCT_TILE - 1) / OARI_PRODUCT_TILE > MOST_Z)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "a product of %s and %s on %s: more than %d matrices "
                         "or blocks of rows",
                         oari_shape_text(a->at.shape).text,
                         oari_shape_text(b->at.shape).text,
                         oar_device_text(to->device).text, (int)MOST_Z);
    grid.blocks[0] =
        (unsigned)((job.n + OARI_PRODUCT_TILE - 1) / OARI_PRODUCT_TILE);
    grid.blocks[1] =
        (unsigned)((job.m + OARI_PRODUCT_TILE - 1) / OARI_PRODUCT_TILE);
    grid.blocks[2] = (unsigned)job.batches;
    return oari_cuda_start(to->device.index, &ref, &grid,
                           oar_stream_current(to->device), (void *[]){ &job });
}
