/* SPDX-License-Identifier: Apache-2.0 */
/* rows: starts the kernels of softmax.cu and rows.cu. It has no state. */
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/rows_job.h"

enum {
    WARP = 32,
    MOST_THREADS = 256, /* of a row: a processor has several rows then */
    KEPT_THREADS = 512, /* of one in shared memory, at least */
    TOTAL_THREADS = 1024,
    MOST_SHARED = 99 << 10 /* bytes of a block that every GPU allows */
};

/* Threads for a row: one for each pack, in whole warps. */
static unsigned threads_for(int64_t width, oar_dtype dtype, int is_packed)
{
    int64_t packs =
        is_packed ? width * (int64_t)oar_dtype_size(dtype) / OARI_PACK_BYTES
                  : width;
    int64_t threads = (packs + WARP - 1) / WARP * WARP;

    return (unsigned)(threads < WARP           ? WARP
                      : threads > MOST_THREADS ? MOST_THREADS
                                               : threads);
}

/* Threads for a row that waits in shared memory, two of which fit a processor:
 * so many that few are idle in the last round. */
static unsigned threads_for_shared(int64_t width, oar_dtype dtype)
{
    int64_t packs = width * (int64_t)oar_dtype_size(dtype) / OARI_PACK_BYTES;
    int64_t best = KEPT_THREADS, least = INT64_MAX;

    if (packs < KEPT_THREADS)
        return threads_for(width, dtype, 1);
    for (int64_t n = KEPT_THREADS; n <= OARI_ROWS_KEPT_THREADS; n += WARP)
        if ((packs + n - 1) / n * n < least) {
            least = (packs + n - 1) / n * n;
            best = n;
        }
    return (unsigned)best;
}

/* ---- softmax ------------------------------------------------------------- */

static oar_status start_softmax(const oari_array *to, int add,
                                const oari_array *x, const oari_array *grad,
                                int is_log)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("softmax", "oari_softmax");
    oari_rows r = oari_rows_of(to->at.shape);
    oari_softmax_job job = { .x = oari_array_data(x),
                             .grad = oari_data_of(grad),
                             .to = oari_array_data(to),
                             .rows = r.count,
                             .width = r.width,
                             .add = add,
                             .is_log = is_log,
                             .is_packed = oari_is_packed(x, r.width) &&
                                          oari_is_packed(to, r.width) &&
                                          oari_is_packed(grad, r.width) };

    int64_t packs =
        r.width * (int64_t)oar_dtype_size(to->dtype) / OARI_PACK_BYTES;
    unsigned threads = threads_for(r.width, to->dtype, job.is_packed);
    int64_t blocks;

    if (r.width == 0)
        return OAR_OK;
    job.in_registers =
        job.is_packed && packs <= OARI_ROWS_PARTS * WARP * OARI_ROWS_WARPS;
    job.by_block = packs > OARI_ROWS_PARTS * WARP;
    if (job.in_registers)
        threads = WARP * OARI_ROWS_WARPS;
    blocks = r.count;
    if (job.in_registers && grad == NULL) /* two for each warp or block */
        blocks = (blocks + 1) / 2;
    if (job.in_registers && !job.by_block)
        blocks = (blocks + OARI_ROWS_WARPS - 1) / OARI_ROWS_WARPS;
    return oari_start_float(&kernels, to, blocks, threads, 4 * OARI_SUM_BYTES,
                            &job);
}

oar_status oari_cuda_softmax(const oari_array *to, const oari_array *a)
{
    return start_softmax(to, 0, a, NULL, 0);
}

oar_status oari_cuda_softmax_back(const oari_array *to, int add,
                                  const oari_array *grad,
                                  const oari_array *result)
{
    return start_softmax(to, add, result, grad, 0);
}

oar_status oari_cuda_log_softmax(const oari_array *to, const oari_array *a)
{
    return start_softmax(to, 0, a, NULL, 1);
}

oar_status oari_cuda_log_softmax_back(const oari_array *to, int add,
                                      const oari_array *grad,
                                      const oari_array *result)
{
    return start_softmax(to, add, result, grad, 1);
}

/* ---- cross entropy ------------------------------------------------------- */

static oar_status start_entropy(const oari_cuda_entropy *e,
                                oari_entropy_job *job)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("rows", "oari_cross_entropy");
    static oari_float_kernels kept =
        OARI_FLOAT_KERNELS("rows", "oari_cross_entropy_kept");
    oari_rows r = oari_rows_of(e->logits->at.shape);
    int64_t bytes;
    int in_shared;

    job->logits = oari_array_data(e->logits);
    job->weight = oari_data_of(e->rule->weight);
    job->target = oari_array_data(e->target);
    job->target_stride = e->target->at.stride[0];
    job->lse = oari_array_data(e->lse);
    job->sums = e->sums != NULL ? oari_array_data(e->sums) : NULL;
    job->rows = r.count;
    job->classes = r.width;
    job->ignore = e->rule->ignore;
    job->smoothing = e->rule->smoothing;
    job->has_ignore = e->rule->has_ignore;
    job->each = e->each;
    job->by_weight = e->by_weight;
    job->is_packed =
        oari_is_packed(e->logits, r.width) &&
        (job->to == NULL || (uintptr_t)job->to % OARI_PACK_BYTES == 0);
    bytes =
        OARI_ROWS_ROOM + r.width * (int64_t)oar_dtype_size(e->logits->dtype);
    in_shared = job->is_packed && job->to != NULL && !job->has_lse &&
                bytes <= MOST_SHARED;
    OARI_TRY(oari_index_check_of(e->logits->device.index, &job->check));
    return oari_start_float(
        in_shared ? &kept : &kernels, e->logits, r.width > 0 ? r.count : 0,
        in_shared ? threads_for_shared(r.width, e->logits->dtype)
                  : threads_for(r.width, e->logits->dtype, job->is_packed),
        in_shared ? (unsigned)bytes : OARI_SUM_BYTES, job);
}

oar_status oari_cuda_entropy_total(const oari_cuda_entropy *e,
                                   const oari_array *to, const oari_array *loss)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("rows", "oari_entropy_total");
    oari_rows r = oari_rows_of(e->logits->at.shape);
    oari_entropy_total_job job = { .loss = oari_data_of(loss),
                                   .weight = oari_data_of(e->rule->weight),
                                   .target = oari_array_data(e->target),
                                   .target_stride = e->target->at.stride[0],
                                   .rows = e->target->at.shape.dim[0],
                                   .classes = r.width,
                                   .ignore = e->rule->ignore,
                                   .sums = oari_array_data(e->sums),
                                   .to = oari_data_of(to),
                                   .has_ignore = e->rule->has_ignore,
                                   .by_weight = e->by_weight };

    return oari_start_float(&kernels, e->logits, 1, TOTAL_THREADS,
                            OARI_SUM_BYTES, &job);
}

oar_status oari_cuda_cross_entropy(const oari_cuda_entropy *e,
                                   const oari_array *loss,
                                   const oari_array *grad_to)
{
    oari_entropy_job job = { .loss = oari_data_of(loss),
                             .to = oari_data_of(grad_to) };

    OARI_TRY(start_entropy(e, &job));
    return oari_index_checked(e->logits->device.index,
                              oar_stream_current(e->logits->device));
}

oar_status oari_cuda_cross_entropy_back(const oari_cuda_entropy *e,
                                        const oari_array *to, int add,
                                        const oari_array *grad)
{
    oari_entropy_job job = { .to = oari_array_data(to),
                             .grad = oari_data_of(grad),
                             .has_lse = 1,
                             .add = add };

    return start_entropy(e, &job);
}
