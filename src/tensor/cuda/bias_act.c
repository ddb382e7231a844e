/* SPDX-License-Identifier: Apache-2.0 */
/* bias_act: starts the kernels of bias_act.cu. How rows are divided depends on
 * the shape only. This file has no state. */
#include "tensor/cuda/bias_act_job.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/operands.h"

enum {
    WARP = 32,
    THREADS = WARP * OARI_BIAS_WARPS,
    BLOCKS = 528, /* about so many, all at a time, keep a GPU busy */
    ROWS = 64     /* of a block, at least */
};

int oari_cuda_act_kind(oari_unary_kind kind)
{
    switch ((int)kind) {
    case OARI_UNARY_relu: return OARI_ACT_RELU;
    case OARI_UNARY_gelu: return OARI_ACT_GELU;
    case OARI_UNARY_gelu_tanh: return OARI_ACT_GELU_TANH;
    case OARI_UNARY_silu: return OARI_ACT_SILU;
    }
    return -1;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* `a` says the shape and the dtype. */
static void divide_rows(oari_bias_act_job *job, const oari_array *a)
{
    oari_rows r = oari_rows_of(a->at.shape);
    int64_t wide = job->is_packed
                       ? OARI_PACK_BYTES / (int64_t)oar_dtype_size(a->dtype)
                       : 1;

    job->rows = r.count;
    job->width = r.width;
    job->tiles = divide_up(r.width, WARP * wide);
    job->chunk = divide_up(r.count, divide_up(BLOCKS, job->tiles));
    job->chunk = job->chunk < ROWS ? ROWS : job->chunk;
    job->chunks = r.count > 0 ? divide_up(r.count, job->chunk) : 1;
}

/* Starts the pass over all chunks, and what adds up their sums. */
static oar_status start_back(oari_pool *pool, const oari_array *grad,
                             oari_bias_act_job *job)
{
    static oari_float_kernels passes =
        OARI_FLOAT_KERNELS("bias_act", "oari_act_back");
    static oari_float_kernels totals =
        OARI_FLOAT_KERNELS("bias_act", "oari_bias_total");
    const oar_dtype work = oari_work_dtype(grad->dtype);
    const unsigned bytes =
        (unsigned)((job->is_packed ? OARI_PACK_BYTES : 8) * THREADS) *
        (unsigned)(oar_dtype_size(work) / oar_dtype_size(grad->dtype));
    oar_tensor *partial = NULL;
    oar_status status;

    if (job->sums != NULL && job->chunks > 1) {
        partial = oari_tensor_make_on(pool, grad->device, work,
                                      OAR_SHAPE(job->chunks * job->width));
        if (partial == NULL)
            return oar_last_error()->status;
        job->partial = partial->storage->data;
    }
    status = oari_start_float(&passes, grad, job->tiles * job->chunks, THREADS,
                              job->sums != NULL ? bytes : 0, job);
    if (status == OAR_OK && partial != NULL)
        status = oari_start_float(&totals, grad,
                                  divide_up(job->width, OARI_BIAS_COLUMNS),
                                  THREADS, THREADS * sizeof(double), job);
    oari_tensor_drop(pool, partial);
    return status;
}

/* Whether sums may go there: numbers of the matrix's dtype, or f32. */
static int takes_sums(const oari_array *to, const oari_array *a)
{
    return oari_layout_is_rows(&to->at) &&
           (to->dtype == a->dtype || to->dtype == oari_work_dtype(a->dtype));
}

oar_status oari_cuda_act(oari_unary_kind kind, const oari_array *to,
                         const oari_array *a)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("bias_act", "oari_act");
    oari_bias_act_job job = { .from = oari_array_data(a),
                              .to = oari_array_data(to),
                              .kind = oari_cuda_act_kind(kind) };
    int64_t count = oari_shape_count(a->at.shape), each = 1;

    if (job.kind < 0 || !oari_layout_is_rows(&a->at) ||
        !oari_layout_is_rows(&to->at) || to->dtype != a->dtype)
        return oari_cuda_unary(kind, to, a);
    job.rows = 1;
    job.width = count;
    job.is_packed = oari_is_packed(a, count) && oari_is_packed(to, count);
    if (job.is_packed)
        each = OARI_PACK_BYTES / (int64_t)oar_dtype_size(a->dtype);
    return oari_start_float(
        &kernels, to, oari_blocks_for(count / each, THREADS), THREADS, 0, &job);
}

oar_status oari_cuda_act_back(oari_pool *pool, const oari_cuda_act_grad *g)
{
    const oari_array *grad = g->grad;
    int64_t width = oari_rows_of(grad->at.shape).width;
    oari_bias_act_job job = { .from = oari_array_data(grad),
                              .pre = oari_array_data(g->pre),
                              .to = oari_array_data(g->to),
                              .again = oari_data_of(g->again),
                              .sums = oari_data_of(g->sums),
                              .add = g->add,
                              .kind = oari_cuda_act_kind(g->kind) };

    if (g->sums != NULL && !takes_sums(g->sums, grad))
        return oari_fail(OAR_E_UNSUPPORTED, "sums of columns in %s of %s",
                         oar_dtype_name(g->sums->dtype),
                         oar_dtype_name(grad->dtype));
    job.is_wide = g->sums != NULL && g->sums->dtype != grad->dtype;
    job.is_packed =
        oari_is_packed(grad, width) && oari_is_packed(g->pre, width) &&
        oari_is_packed(g->to, width) && oari_is_packed(g->again, width);
    divide_rows(&job, grad);
    return start_back(pool, grad, &job);
}
