/* SPDX-License-Identifier: Apache-2.0 */
/* reductions: starts the kernels of reductions.cu and, for sums of rows or
 * columns of f32 and halves, of sums.cu.
 *
 * A result of few elements, or one of many results, is a thread's; else it is a
 * block's. Where that leaves most of a GPU idle the elements are divided into
 * segments, whose partial results are joined by a second kernel. */
#include <math.h>

#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/job_start.h"
#include "tensor/cuda/sums_job.h"

enum {
    BLOCK = 256,
    FEW = 64,          /* elements that a thread takes alone */
    MANY = 1 << 17,    /* threads that keep a GPU busy */
    MANY_BLOCKS = 512, /* so many blocks do too */
    MOST_SEGMENTS = 256
};

#define KERNEL_IN(variable, path, text) \
    static oari_cuda_kernel_ref variable = { .file = (path), .name = text }
#define KERNEL(variable, text) KERNEL_IN(variable, "reductions", text)

/* ---- jobs ---------------------------------------------------------------- */

/* Appends a dim to those of a job, joined with the last one if they lie alike.
 */
static void add_dim(int *dims, int64_t *size, int64_t length, int arrays,
                    int64_t *const *stride, const int64_t *given)
{
    int joined = *dims > 0, at;

    if (length == 1)
        return;
    for (int k = 0; k < arrays && joined; k++)
        joined = stride[k][*dims - 1] == given[k] * length;
    at = joined ? *dims - 1 : (*dims)++;
    size[at] = joined ? size[at] * length : length;
    for (int k = 0; k < arrays; k++)
        stride[k][at] = given[k];
}

/* `small` broadcasts to `large`: the dims in which it is repeated go. Of the
 * backward kernels the result is large, and grad and result are small. */
static oari_reduce_job make_job(const oari_array *to, const oari_array *a,
                                const oari_array *grad,
                                const oari_array *result)
{
    const oari_array *small = grad != NULL ? grad : to;
    oar_shape shape = a->at.shape;
    oari_reduce_job job = { .to = oari_job_array_of(to),
                            .a = oari_job_array_of(a),
                            .results = 1,
                            .each = 1,
                            .segments = 1,
                            .factor = 1,
                            .numbers = oari_job_numbers_of(a->dtype) };
    oari_layout y = oari_layout_expand(&to->at, shape), g = y, r = y;
    int64_t *kept[] = { job.to.stride, job.a.stride, job.grad.stride,
                        job.result.stride };
    int64_t *over[] = { job.over_stride, job.to_stride };
    int shift = shape.ndim - small->at.shape.ndim;

    if (grad != NULL) {
        job.grad = oari_job_array_of(grad);
        job.result = oari_job_array_of(result);
        g = oari_layout_expand(&grad->at, shape);
        r = oari_layout_expand(&result->at, shape);
    }
    for (int d = 0; d < shape.ndim; d++) {
        int64_t length = shape.dim[d];
        int goes = d < shift || small->at.shape.dim[d - shift] != length;

        if (goes) {
            job.each *= length;
            add_dim(&job.over_dims, job.over, length, 2, over,
                    (int64_t[]){ a->at.stride[d], y.stride[d] });
        } else {
            job.results *= length;
            add_dim(&job.kept_dims, job.kept, length, 4, kept,
                    (int64_t[]){ y.stride[d], a->at.stride[d], g.stride[d],
                                 r.stride[d] });
        }
    }
    return job;
}

/* ---- starting ------------------------------------------------------------ */

static oar_status start_blocks(oar_device device, oari_reduce_job *job)
{
    KERNEL(ref, "oari_reduce_blocks");
    oari_cuda_grid grid = { { (unsigned)job->results, (unsigned)job->segments,
                              1 },
                            { BLOCK, 1, 1 },
                            0 };

    return oari_cuda_start(device.index, &ref, &grid,
                           oar_stream_current(device), (void *[]){ job });
}

/* By threads where neighbours then read neighbours, or results are many. */
static int takes_threads(const oari_reduce_job *job)
{
    return job->each <= FEW || job->results >= MANY ||
           (job->results >= 32 && job->kept_dims > 0 &&
            job->a.stride[job->kept_dims - 1] == 1);
}

static int64_t choose_segments(const oari_reduce_job *job, int by_threads)
{
    int64_t wanted =
        by_threads ? MANY / job->results : MANY_BLOCKS / job->results;
    int64_t most = job->each / (by_threads ? FEW : 4 * BLOCK);
    int64_t segments = wanted < most ? wanted : most;

    segments = segments < MOST_SEGMENTS ? segments : MOST_SEGMENTS;
    if (segments <= 1)
        return 1;
    /* so many that none is empty */
    most = (job->each + segments - 1) / segments;
    return (job->each + most - 1) / most;
}

/* ---- sums of rows and columns -------------------------------------------- */

enum {
    EIGHT = 8,
    FEW_ROWS = 16,    /* so few are left to the kernels for all */
    WARP_ROW = 2048,  /* elements that a warp adds up */
    SUM_BLOCKS = 528, /* that keep a GPU busy, all at a time */
    MOST_SHARES = 512,
    SUM_THREADS = 32 * OARI_SUMS_WARPS
};

static int is_short_float(int dtype)
{
    return dtype == OAR_F32 || dtype == OAR_F16 || dtype == OAR_BF16;
}

/* Returns whether sums.cu can do it; *columns: as sums of columns. */
static int is_rows_or_columns(const oari_reduce_job *job, int *columns)
{
    int64_t across;

    if (job->kind != OARI_REDUCE_SUM || !is_short_float(job->a.dtype) ||
        !is_short_float(job->to.dtype) || (uintptr_t)job->a.data % 16 != 0 ||
        job->kept_dims > 1 || job->over_dims != 1 || job->each == 0)
        return 0;
    *columns = job->kept_dims == 1 && job->a.stride[0] == 1;
    across = *columns              ? job->over_stride[0]
             : job->kept_dims == 1 ? job->a.stride[0]
                                   : 0;
    if (across % EIGHT != 0)
        return 0;
    if (*columns)
        return job->each >= FEW_ROWS && job->results % EIGHT == 0;
    return job->over_stride[0] == 1 && job->each % EIGHT == 0;
}

/* Divides `each` into shares of whole `units`, about so many. */
static void set_shares(oari_sums_job *job, int64_t wanted, int64_t least,
                       int64_t unit)
{
    int64_t most = job->each / least;

    job->segments = wanted < most ? wanted : most;
    job->segments = job->segments < 1 ? 1 : job->segments;
    if (job->segments > MOST_SHARES)
        job->segments = MOST_SHARES;
    job->share = (job->each + job->segments - 1) / job->segments;
    job->share = (job->share + unit - 1) / unit * unit;
    job->segments = (job->each + job->share - 1) / job->share;
}

static oar_status start_sums(oar_device device, int columns, oari_sums_job *job,
                             int64_t blocks)
{
    static oari_cuda_kernel_ref sums[2][2] = {
        /* of rows, of columns */
        { { .file = "sums", .name = "oari_sum_rows_f32" },
          { .file = "sums", .name = "oari_sum_rows_half" } },
        { { .file = "sums", .name = "oari_sum_columns_f32" },
          { .file = "sums", .name = "oari_sum_columns_half" } }
    };
    KERNEL_IN(joins, "sums", "oari_sum_parts");
    oari_cu_stream stream = oar_stream_current(device);
    oari_cuda_grid grid = { { (unsigned)blocks, (unsigned)job->segments, 1 },
                            { SUM_THREADS, 1, 1 },
                            0 };

    OARI_TRY(oari_cuda_start(device.index,
                             &sums[columns][job->a_dtype != OAR_F32], &grid,
                             stream, (void *[]){ job }));
    if (job->segments == 1)
        return OAR_OK;
    grid.blocks[0] = (unsigned)((job->results + 31) / 32);
    grid.blocks[1] = 1;
    grid.threads[0] = 32 * OARI_SUMS_PART_WARPS;
    return oari_cuda_start(device.index, &joins, &grid, stream,
                           (void *[]){ job });
}

static oar_status run_sums(oari_pool *pool, const oari_array *to,
                           const oari_reduce_job *from, int columns)
{
    oari_sums_job job = { .a = from->a.data,
                          .to = from->to.data,
                          .results = from->results,
                          .each = from->each,
                          .stride = columns ? from->over_stride[0]
                                            : from->a.stride[0],
                          .to_stride = from->to.stride[0],
                          .factor = from->factor,
                          .a_dtype = from->a.dtype,
                          .to_dtype = from->to.dtype,
                          .add = from->add,
                          .by_block = !columns && from->each > WARP_ROW };
    int64_t blocks =
        columns ? (job.results + OARI_SUMS_COLUMNS - 1) / OARI_SUMS_COLUMNS
        : job.by_block
            ? job.results
            : (job.results + 2 * OARI_SUMS_WARPS - 1) / (2 * OARI_SUMS_WARPS);
    oar_tensor *partial = NULL;
    oar_status status;

    if (columns)
        set_shares(&job, SUM_BLOCKS / blocks, 8 * OARI_SUMS_WARPS, 1);
    else
        set_shares(&job, job.by_block ? SUM_BLOCKS / blocks : 1,
                   EIGHT * SUM_THREADS, EIGHT);
    if (job.segments > 1) {
        partial = oari_tensor_make_on(pool, to->device, OAR_F32,
                                      OAR_SHAPE(job.segments * job.results));
        if (partial == NULL)
            return oar_last_error()->status;
        job.partial = partial->storage->data;
    }
    status = start_sums(to->device, columns, &job, blocks);
    oari_tensor_drop(pool, partial);
    return status;
}

/* ---- all reductions ------------------------------------------------------ */

static oar_status run_reduction(oari_pool *pool, const oari_array *to,
                                oari_reduce_job *job)
{
    oar_device device = to->device;
    int columns;
    KERNEL(threads, "oari_reduce_threads");
    KERNEL(joins, "oari_reduce_segments");
    int by_threads = takes_threads(job);
    oar_tensor *partial = NULL;
    oar_status status;

    if (job->each == 0 && job->kind == OARI_REDUCE_MAX)
        return oari_cuda_fill(to, -INFINITY); /* of integers: the least */
    if (job->each == 0 && job->kind == OARI_REDUCE_MIN)
        return oari_cuda_fill(to, INFINITY);
    if (job->results == 0)
        return OAR_OK;
    if (is_rows_or_columns(job, &columns) && job->results < INT32_MAX)
        return run_sums(pool, to, job, columns);
    job->segments = choose_segments(job, by_threads);
    if (job->segments > 1) {
        partial = oari_tensor_make_on(pool, device, OAR_F64,
                                      OAR_SHAPE(job->segments * job->results));
        if (partial == NULL)
            return oar_last_error()->status;
        job->partial = partial->storage->data;
    }
    status = by_threads
                 ? oari_cuda_start_flat(device, &threads,
                                        job->results * job->segments, job)
                 : start_blocks(device, job);
    if (status == OAR_OK && job->segments > 1)
        status = oari_cuda_start_flat(device, &joins, job->results, job);
    oari_tensor_drop(pool, partial);
    return status;
}

/* ---- the calls ----------------------------------------------------------- */

/* Of bools: as on the cpu. */
static int kind_on(oari_reduce_kind kind, oar_dtype dtype)
{
    if (dtype != OAR_BOOL)
        return (int)kind;
    return (int)(kind == OARI_REDUCE_SUM ? OARI_REDUCE_SET
                 : kind == OARI_REDUCE_MAX || kind == OARI_REDUCE_ANY
                     ? OARI_REDUCE_ANY
                     : OARI_REDUCE_ALL);
}

oar_status oari_cuda_reduce_over(oari_pool *pool, oari_reduce_kind kind,
                                 const oari_array *to, const oari_array *a,
                                 double factor)
{
    oari_reduce_job job = make_job(to, a, NULL, NULL);

    job.kind = kind_on(kind, a->dtype);
    if (oari_dtype_is_float(a->dtype) && kind < OARI_REDUCE_ANY)
        job.factor = factor;
    return run_reduction(pool, to, &job);
}

oar_status oari_cuda_sum_to(oari_pool *pool, const oari_array *to, int add,
                            const oari_array *a)
{
    oari_reduce_job job;

    if (oari_shape_equal(to->at.shape, a->at.shape))
        return oari_cuda_scale(to, add, a, 1);
    job = make_job(to, a, NULL, NULL);
    job.kind = OARI_REDUCE_SUM;
    job.add = add;
    return run_reduction(pool, to, &job);
}

oar_status oari_cuda_sum_all(const oari_array *to, const oari_array *a,
                             double factor)
{
    oari_array one = *to;

    one.at.shape = OAR_SCALAR;
    return oari_cuda_reduce_over(NULL, OARI_REDUCE_SUM, &one, a, factor);
}

oar_status oari_cuda_var(oari_pool *pool, const oari_array *to,
                         const oari_array *mean, const oari_array *a,
                         double divisor)
{
    int64_t results = oari_shape_count(to->at.shape);
    double each = (double)oari_shape_count(a->at.shape) / (double)results;
    oari_reduce_job job = make_job(to, a, NULL, NULL);

    OARI_TRY(oari_cuda_reduce_over(pool, OARI_REDUCE_SUM, mean, a, 1 / each));
    job.kind = OARI_JOB_SPREAD;
    job.centre = oari_array_data(mean);
    job.factor = 1 / divisor;
    return run_reduction(pool, to, &job);
}

oar_status oari_cuda_extreme_back(oari_pool *pool, const oari_array *to,
                                  int add, const oari_array *grad,
                                  const oari_array *a, const oari_array *result)
{
    KERNEL(ref, "oari_reduce_extreme_back");
    oari_reduce_job job = make_job(to, a, grad, result);

    job.add = add;
    return oari_cuda_start_flat(to->device, &ref, job.results, &job);
}

oar_status oari_cuda_prod_back(oari_pool *pool, const oari_array *to, int add,
                               const oari_array *grad, const oari_array *a)
{
    KERNEL(ref, "oari_reduce_prod_back");
    oari_reduce_job job = make_job(to, a, grad, grad);

    job.add = add;
    return oari_cuda_start_flat(to->device, &ref, job.results, &job);
}
