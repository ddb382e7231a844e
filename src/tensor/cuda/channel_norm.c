/* SPDX-License-Identifier: Apache-2.0 */
/* channel_norm: starts the kernels of channel_norm.cu. This file has no state.
 */
#include "tensor/cuda/channel_norm.h"

#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cuda/channel_job.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/job_start.h"

#define KERNEL(ref, text) \
    static oari_cuda_kernel_ref ref = { .file = "channel_norm", .name = text }

enum {
    WARP = 32,
    WANTED_BLOCKS = 1024, /* so that every multiprocessor has some */
    LEAST_EACH = 2048,    /* numbers of a segment that a block adds up */
    LEAST_OF_THREAD = 64, /* the same of a thread */
    MOST_SEGMENTS = 1024,
    WHOLE_PACKS = 16,      /* numbers, of any dtype */
    MOST_PACKED = 1 << 30, /* elements that are moved by packs */
    NORM_THREADS = 256,
    CHANNEL_WARPS = OARI_CHANNEL_THREADS / WARP,
    SHORT_SEGMENT = 512 /* numbers that a warp adds up by itself */
};

typedef struct extent {
    int64_t images, channels, inner;
} extent;

static extent extent_of(const oari_array *x)
{
    extent e = { x->at.shape.dim[0], x->at.shape.dim[1], 1 };

    for (int i = 2; i < x->at.shape.ndim; i++)
        e.inner *= x->at.shape.dim[i];
    return e;
}

/* ---- sums ---------------------------------------------------------------- */

static int adds_by_threads(const extent *e)
{
    return e->inner < 32 || e->channels > INT32_MAX;
}

/* Whether kernels can move an array by packs that lie within a plane. */
static int has_packs(const extent *e, const oari_array *a)
{
    return e->images * e->channels * e->inner < MOST_PACKED &&
           oari_dtype_is_float(a->dtype) && oari_is_packed(a, e->inner);
}

/* Cuts the numbers of a channel into segments, none of them empty, of whole
 * packs. */
static void set_segments(oari_channel_sums_job *job, const extent *e)
{
    int64_t all = e->images * e->inner;
    int64_t least = adds_by_threads(e) ? LEAST_OF_THREAD : LEAST_EACH;
    int64_t wanted = adds_by_threads(e)
                         ? WANTED_BLOCKS * OARI_CHANNEL_THREADS / e->channels
                         : WANTED_BLOCKS / e->channels;
    int64_t most = (all + least - 1) / least;
    int64_t segments = wanted < most ? wanted : most;

    segments = segments < MOST_SEGMENTS ? segments : MOST_SEGMENTS;
    segments = segments > 1 ? segments : 1;
    job->each = (all + segments - 1) / segments;
    job->each = (job->each + WHOLE_PACKS - 1) / WHOLE_PACKS * WHOLE_PACKS;
    job->segments = job->each > 0 ? (all + job->each - 1) / job->each : 1;
}

static oar_status start_packs(const oari_array *x, oari_channel_sums_job *job)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("channel_norm", "oari_channel_sums_packs");
    int64_t blocks = job->channels;

    job->is_short = job->each <= SHORT_SEGMENT;
    if (job->is_short)
        blocks = (blocks + CHANNEL_WARPS - 1) / CHANNEL_WARPS;
    return oari_start_float_grid(&kernels, x, blocks, job->segments,
                                 OARI_CHANNEL_THREADS, 0, job);
}

/* Gives the sums of segments, in *partial; grad: NULL, or with a gradient. */
static oar_status start_sums(oari_pool *pool, const extent *e,
                             const oari_array *x, const oari_array *grad,
                             oari_channel_sums_job *job, oar_tensor **partial)
{
    KERNEL(blocks, "oari_channel_sums_blocks");
    KERNEL(threads, "oari_channel_sums_threads");
    oari_cuda_grid grid = { .threads = { OARI_CHANNEL_THREADS, 1, 1 } };

    job->x = oari_array_data(x);
    job->x_dtype = (int)x->dtype;
    if (grad != NULL) {
        job->grad = oari_array_data(grad);
        job->grad_dtype = (int)grad->dtype;
    }
    job->images = e->images;
    job->channels = e->channels;
    job->inner = e->inner;
    set_segments(job, e);
    *partial = oari_tensor_make_on(pool, x->device, OAR_F64,
                                   OAR_SHAPE(job->segments, 2, e->channels));
    if (*partial == NULL)
        return oar_last_error()->status;
    job->partial = (*partial)->storage->data;
    if (adds_by_threads(e))
        return oari_cuda_start_flat(x->device, &threads,
                                    e->channels * job->segments, job);
    if (has_packs(e, x) &&
        (grad == NULL || (grad->dtype == x->dtype && has_packs(e, grad))))
        return start_packs(x, job);
    grid.blocks[0] = (unsigned)e->channels;
    grid.blocks[1] = (unsigned)job->segments;
    grid.blocks[2] = 1;
    return oari_cuda_start(x->device.index, &blocks, &grid,
                           oar_stream_current(x->device), (void *[]){ job });
}

/* ---- moments ------------------------------------------------------------- */

oar_status oari_cuda_channel_moments(oari_pool *pool, const oari_array *stats,
                                     const oari_array *x, int64_t groups)
{
    KERNEL(ref, "oari_channel_moments");
    extent e = extent_of(x);
    oari_channel_sums_job sums = { .shared = 1 };
    oari_channel_moments_job job;
    oar_tensor *partial = NULL;
    oar_status status;

    if (groups > 0) /* every group of an image is a channel of one image */
        e = (extent){ 1, e.images * groups, e.channels / groups * e.inner };
    if (e.channels == 0)
        return OAR_OK;
    if (e.images * e.inner == 0)
        return oari_cuda_fill(stats, 0);
    status = start_sums(pool, &e, x, NULL, &sums, &partial);
    job = (oari_channel_moments_job){ .partial = sums.partial,
                                      .x = sums.x,
                                      .stats = oari_array_data(stats),
                                      .images = e.images,
                                      .channels = e.channels,
                                      .inner = e.inner,
                                      .segments = sums.segments,
                                      .x_dtype = sums.x_dtype };
    if (status == OAR_OK)
        status = oari_cuda_start_flat(x->device, &ref, e.channels, &job);
    oari_tensor_drop(pool, partial);
    return status;
}

oar_status oari_cuda_merge_moments(const oari_array *stats,
                                   const oari_array *all)
{
    KERNEL(ref, "oari_merge_moments");
    oari_merge_moments_job job = {
        .all = oari_array_data(all),
        .stats = oari_array_data(stats),
        .channels = (oari_shape_count(stats->at.shape) - 1) / 2,
        .parts = all->at.shape.dim[0]
    };

    return oari_cuda_start_flat(stats->device, &ref, job.channels, &job);
}

oar_status oari_cuda_channel_stats(const oari_array *mean,
                                   const oari_array *rstd,
                                   const oari_array *stats,
                                   const oari_running *running, double eps)
{
    KERNEL(ref, "oari_channel_stats");
    oari_channel_stats_job job = { .stats = oari_data_of(stats),
                                   .mean = oari_array_data(mean),
                                   .rstd = oari_array_data(rstd),
                                   .channels = oari_shape_count(mean->at.shape),
                                   .eps = eps };

    if (running != NULL && running->mean != NULL) {
        job.running_mean = oari_array_data(running->mean);
        job.running_var = oari_array_data(running->var);
        job.mean_dtype = (int)running->mean->dtype;
        job.var_dtype = (int)running->var->dtype;
        job.batches = oari_data_of(running->batches);
        job.momentum = running->momentum;
    }
    return oari_start_one(&ref, mean, 1, OARI_CHANNEL_THREADS, 0, &job);
}

/* ---- element by element -------------------------------------------------- */

static oari_channel_norm_job make_job(const oari_array *to, const oari_array *x,
                                      const oari_array *mean,
                                      const oari_array *rstd, int64_t groups,
                                      const oari_array *weight)
{
    extent e = extent_of(x);

    return (oari_channel_norm_job){
        .to = oari_array_data(to),
        .x = oari_array_data(x),
        .weight = oari_data_of(weight),
        .mean = oari_array_data(mean),
        .rstd = oari_array_data(rstd),
        .elements = e.images * e.channels * e.inner,
        .channels = e.channels,
        .inner = e.inner,
        .wide = groups > 0 ? e.channels / groups : 0,
        .to_dtype = (int)to->dtype,
        .x_dtype = (int)x->dtype,
        .param_dtype = (int)(weight != NULL ? weight->dtype : x->dtype),
        .is_f64 = x->dtype == OAR_F64
    };
}

/* grad: NULL, or of a job with a gradient. */
static oar_status start_norm(const oari_array *to, const oari_array *x,
                             const oari_array *grad, oari_channel_norm_job *job)
{
    static oari_float_kernels packs =
        OARI_FLOAT_KERNELS("channel_norm", "oari_channel_norm_packs");
    KERNEL(ref, "oari_channel_norm");
    int64_t each = OARI_PACK_BYTES / (int64_t)oar_dtype_size(to->dtype);
    extent e = extent_of(x);

    if (grad != NULL) {
        job->grad = oari_array_data(grad);
        job->grad_dtype = (int)grad->dtype;
    }
    if (to->dtype != x->dtype || !has_packs(&e, to) || !has_packs(&e, x) ||
        (grad != NULL && (grad->dtype != to->dtype || !has_packs(&e, grad))))
        return oari_cuda_start_flat(to->device, &ref, job->elements, job);
    return oari_start_float(&packs, to,
                            oari_blocks_for(job->elements / each, NORM_THREADS),
                            NORM_THREADS, 0, job);
}

oar_status oari_cuda_channel_norm(const oari_array *to, const oari_array *x,
                                  const oari_array *mean,
                                  const oari_array *rstd, int64_t groups,
                                  const oari_array *weight,
                                  const oari_array *bias)
{
    oari_channel_norm_job job =
        make_job(to, x, mean, rstd, groups, weight != NULL ? weight : bias);

    job.weight = oari_data_of(weight);
    job.bias = oari_data_of(bias);
    return start_norm(to, x, NULL, &job);
}

/* ---- backward ------------------------------------------------------------ */

static oar_status total_sums(const oari_norm_back *n, const extent *e,
                             const oari_channel_sums_job *sums, int64_t groups,
                             const oari_array *to)
{
    KERNEL(total, "oari_channel_total");
    KERNEL(params, "oari_channel_params");
    const oari_array *d = n->dweight != NULL ? n->dweight : n->dbias;
    int64_t count = oari_shape_count(n->mean->at.shape);
    oari_channel_total_job job = {
        .partial = sums->partial,
        .rstd = oari_array_data(n->rstd),
        .weight = oari_data_of(n->weight),
        .tilt = oari_array_data(to),
        .dweight = oari_data_of(n->dweight),
        .dbias = oari_data_of(n->dbias),
        .planes = sums->channels,
        .channels = e->channels,
        .segments = sums->segments,
        .wide = groups > 0 ? e->channels / groups : 0,
        .param_dtype = n->weight != NULL ? (int)n->weight->dtype : 0,
        .dweight_dtype = n->dweight != NULL ? (int)n->dweight->dtype : 0,
        .dbias_dtype = n->dbias != NULL ? (int)n->dbias->dtype : 0
    };

    job.sum = job.tilt + count;
    OARI_TRY(oari_cuda_start_flat(n->x->device, &total, count * WARP, &job));
    if (d == NULL)
        return OAR_OK;
    return oari_cuda_start_flat(n->x->device, &params, e->channels * WARP,
                                &job);
}

/* Writes zeros: there is nothing to add up. */
static oar_status clear_sums(const oari_norm_back *n, const oari_array *sums)
{
    OARI_TRY(oari_cuda_fill(sums, 0));
    if (n->dweight != NULL)
        OARI_TRY(oari_cuda_fill(n->dweight, 0));
    return n->dbias != NULL ? oari_cuda_fill(n->dbias, 0) : OAR_OK;
}

oar_status oari_cuda_channel_sums(oari_pool *pool, const oari_norm_back *n,
                                  int64_t groups, const oari_array *sums)
{
    extent e = extent_of(n->x), planes = e;
    oari_channel_sums_job job = { .mean = oari_array_data(n->mean),
                                  .shared = 1 };
    oar_tensor *partial = NULL;
    oar_status status;

    if (e.images * e.channels * e.inner == 0)
        return clear_sums(n, sums);
    if (groups > 0) { /* of each plane */
        planes = (extent){ 1, e.images * e.channels, e.inner };
        job.shared = e.channels / groups;
    }
    status = start_sums(pool, &planes, n->x, n->grad, &job, &partial);
    if (status == OAR_OK)
        status = total_sums(n, &e, &job, groups, sums);
    oari_tensor_drop(pool, partial);
    return status;
}

oar_status oari_cuda_channel_norm_back(const oari_norm_back *n, int64_t groups,
                                       const oari_array *sums,
                                       const oari_array *count)
{
    oari_channel_norm_job job =
        make_job(n->dx, n->x, n->mean, n->rstd, groups, n->weight);

    job.add = n->add;
    if (sums != NULL) {
        job.tilt = oari_array_data(sums);
        job.sum = job.tilt + oari_shape_count(n->mean->at.shape);
        job.count_at = oari_array_data(count);
    }
    return start_norm(n->dx, n->x, n->grad, &job);
}
