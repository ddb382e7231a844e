/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_attention: starts the kernels of attention on a GPU: for halves with
 * heads of 64 or 128 those for Hopper GPUs (cuda_attention_90.c) or those of
 * attention_mma.cu, for short sequences of f32 those of attention_small.cu, for
 * everything else those of attention_any.cu. This file has no state. */
#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/cuda.h"
#include "tensor/cuda/attention_job.h"
#include "tensor/cuda/cuda_attention_90.h"
#include "tensor/cuda/cuda_kernels.h"

enum {
    THREADS = 128,
    ENOUGH = 264, /* blocks: fewer, and the keys of a head are divided */
    ROUND = 64    /* numbers: where parts of the scratch memory begin */
};

/* The tiles of a kernel of attention_mma.cu, as its KERNELS say. */
typedef struct tiles {
    int rows, keys_at_once; /* of queries of a block; forward */
    int keys, queries;      /* of a tile; backward */
} tiles;

static tiles tiles_of(int64_t width)
{
    return width == 64 ? (tiles){ 128, 64, 128, 32 }
                       : (tiles){ 64, 64, 64, 32 };
}

/* ---- which kernels ------------------------------------------------------- */

/* Whether 16 bytes of every row can be moved at once; NULL is fine. */
static int is_aligned(const oari_head_strides *s)
{
    return (s->outer | s->head | s->row) % 8 == 0 &&
           (uintptr_t)s->data % 16 == 0;
}

static int is_for_mma(const oari_attention *a)
{
    return oari_dtype_is_half(a->dtype) && a->d == a->e &&
           (a->d == 64 || a->d == 128) && a->mask.data == NULL &&
           a->dropout == 0 && is_aligned(&a->q) && is_aligned(&a->k) &&
           is_aligned(&a->v);
}

static int is_back_for_mma(const oari_attention *a)
{
    return is_for_mma(a) && a->result.data != NULL && is_aligned(&a->result) &&
           is_aligned(&a->out) && is_aligned(&a->dq) && is_aligned(&a->dk) &&
           is_aligned(&a->dv);
}

static int64_t count_parts(const oari_attention *a)
{
    int64_t heads = a->outer * (a->heads / a->k.shared);
    int64_t keys = tiles_of(a->d).keys, most = (a->s + keys - 1) / keys;
    int64_t parts = (ENOUGH + heads - 1) / heads;

    return parts < most ? parts : most;
}

static int64_t count_rows(const oari_attention *a)
{
    return (a->outer * a->heads * a->t + ROUND - 1) / ROUND * ROUND;
}

static int64_t count_tiles(const oari_attention *a)
{
    return (a->t + tiles_of(a->d).queries - 1) / tiles_of(a->d).queries;
}

int64_t oari_cuda_attend_scratch(const oari_attention *a)
{
    int64_t rows = count_rows(a);

    if (a->dmask.data != NULL)
        return rows + a->outer * a->heads * a->t * a->s;
    if (rows == 0 || a->s == 0 || !is_back_for_mma(a))
        return rows;
    if (oari_attend_90_is_for(a))
        return oari_attend_90_scratch(a);
    return rows + count_parts(a) * a->outer * a->heads * count_tiles(a) *
                      tiles_of(a->d).queries * a->d;
}

/* ---- jobs ---------------------------------------------------------------- */

static oari_cuda_heads heads_of(const oari_head_strides *s)
{
    return (oari_cuda_heads){ s->data, s->outer, s->head, s->row };
}

static oar_status make_job(const oari_attention *a, oari_cuda_attention *job)
{
    const oari_layout *mask = &a->mask.at;

    *job = (oari_cuda_attention){ .q = heads_of(&a->q),
                                  .k = heads_of(&a->k),
                                  .v = heads_of(&a->v),
                                  .out = heads_of(&a->out),
                                  .result = heads_of(&a->result),
                                  .dq = heads_of(&a->dq),
                                  .dk = heads_of(&a->dk),
                                  .dv = heads_of(&a->dv),
                                  .lse = a->lse,
                                  .delta = a->scratch,
                                  .outer = (int)a->outer,
                                  .heads = (int)a->heads,
                                  .shared = (int)a->k.shared,
                                  .t = (int)a->t,
                                  .s = (int)a->s,
                                  .d = (int)a->d,
                                  .e = (int)a->e,
                                  .causal = a->causal,
                                  .add_q = a->add_q,
                                  .add_k = a->add_k,
                                  .add_v = a->add_v,
                                  .scale = a->scale,
                                  .dtype = (int)a->dtype,
                                  .dropout = a->dropout,
                                  .seed = a->seed,
                                  .all_heads = a->all_heads,
                                  .first_head = a->first_head };
    if (a->outer * a->heads > INT32_MAX / (a->t + a->s + 1))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "attention of %lld x %lld heads of %lld positions on "
                         "a GPU: too large",
                         (long long)a->outer, (long long)a->heads,
                         (long long)a->t);
    if (a->mask.data == NULL)
        return OAR_OK;
    job->mask = oari_array_data(&a->mask);
    job->mask_dtype = (int)a->mask.dtype;
    job->mask_dims = mask->shape.ndim;
    for (int i = 0; i < mask->shape.ndim; i++) {
        job->mask_dim[i] = mask->shape.dim[i];
        job->mask_stride[i] = mask->stride[i];
    }
    return OAR_OK;
}

/* ---- halves by mma ------------------------------------------------------- */

/* A kernel for each half and width. */
typedef struct mma_kernels {
    oari_cuda_kernel_ref of[2][2]; /* [f16, bf16][64, 128] */
} mma_kernels;

#define MMA_KERNELS(kernel)                                             \
    {                                                                   \
        {                                                               \
            { { .file = "attention_mma", .name = kernel "_f16_64" },    \
              { .file = "attention_mma", .name = kernel "_f16_128" } }, \
            {                                                           \
                { .file = "attention_mma", .name = kernel "_bf16_64" }, \
                {                                                       \
                    .file = "attention_mma", .name = kernel "_bf16_128" \
                }                                                       \
            }                                                           \
        }                                                               \
    }

static oar_status start_mma(const oari_attention *a, mma_kernels *kernels,
                            int64_t blocks, int64_t shared_bytes,
                            oari_cuda_attention *job)
{
    oari_cuda_grid grid = { { (unsigned)blocks, 1, 1 },
                            { THREADS, 1, 1 },
                            (unsigned)shared_bytes };

    return oari_cuda_start(
        a->device.index, &kernels->of[a->dtype == OAR_BF16][a->d == 128], &grid,
        oar_stream_current(a->device), (void *[]){ job });
}

static oar_status attend_by_mma(const oari_attention *a,
                                oari_cuda_attention *job)
{
    static mma_kernels kernels = MMA_KERNELS("oari_attend");
    const tiles by = tiles_of(a->d);
    const int64_t blocks = (a->t + by.rows - 1) / by.rows * a->outer * a->heads;

    return start_mma(a, &kernels, blocks,
                     (by.rows + 4 * by.keys_at_once) * a->d * 2, job);
}

static oar_status back_by_mma(const oari_attention *a, oari_cuda_attention *job)
{
    static mma_kernels delta = MMA_KERNELS("oari_attend_delta");
    static mma_kernels back = MMA_KERNELS("oari_attend_back");
    static mma_kernels parts = MMA_KERNELS("oari_attend_parts");
    const tiles by = tiles_of(a->d);
    const int64_t rows = a->outer * a->heads * a->t;
    const int64_t shared =
        (2 * by.keys * a->d + 4 * by.queries * a->d + by.keys * by.queries) *
            2 +
        by.queries * a->d * 4 + 4 * by.queries * 4;

    job->sums = (float *)a->scratch + count_rows(a);
    job->parts = (int)count_parts(a);
    job->tiles = count_tiles(a);
    OARI_TRY(start_mma(a, &delta, (rows * (a->d / 8) + THREADS - 1) / THREADS,
                       0, job));
    OARI_TRY(start_mma(a, &back,
                       a->outer * (a->heads / a->k.shared) * job->parts, shared,
                       job));
    if (job->parts == 1 || a->dq.data == NULL)
        return OAR_OK;
    return start_mma(a, &parts, a->outer * a->heads * job->tiles, 0, job);
}

/* ---- short sequences of f32 ---------------------------------------------- */

static int is_small(const oari_attention *a)
{
    return a->dtype == OAR_F32 && a->t > 0 && a->s > 0 &&
           a->t <= OARI_SMALL_SIDE && a->s <= OARI_SMALL_SIDE &&
           a->d <= OARI_SMALL_WIDTH && a->e <= OARI_SMALL_WIDTH &&
           a->k.shared == 1 && a->mask.data == NULL && a->dropout == 0;
}

/* A block has a head; so many of its operands and of its matrices of scores are
 * in shared memory. */
static oar_status start_small(const oari_attention *a,
                              oari_cuda_kernel_ref *kernel, unsigned operands,
                              unsigned scores, oari_cuda_attention *job)
{
    oari_cuda_grid grid = { { (unsigned)(a->outer * a->heads), 1, 1 },
                            { OARI_SMALL_THREADS, 1, 1 },
                            (operands * (OARI_SMALL_WIDTH + 1) +
                             scores * (OARI_SMALL_SIDE + 1)) *
                                OARI_SMALL_SIDE * (unsigned)sizeof(float) };

    return oari_cuda_start(a->device.index, kernel, &grid,
                           oar_stream_current(a->device), (void *[]){ job });
}

static oar_status attend_small(const oari_attention *a,
                               oari_cuda_attention *job)
{
    static oari_cuda_kernel_ref kernel = { .file = "attention_small",
                                           .name = "oari_attend_small" };

    return start_small(a, &kernel, 3, 1, job);
}

static oar_status back_small(const oari_attention *a, oari_cuda_attention *job)
{
    static oari_cuda_kernel_ref kernel = { .file = "attention_small",
                                           .name = "oari_attend_small_back" };

    return start_small(a, &kernel, 4, 2, job);
}

/* ---- everything else ----------------------------------------------------- */

static oar_status start_any(const oari_attention *a, oari_cuda_kernel_ref of[2],
                            int64_t blocks, int64_t numbers,
                            oari_cuda_attention *job)
{
    const int wide = a->dtype == OAR_F64;
    oari_cuda_grid grid = { { (unsigned)blocks, 1, 1 },
                            { THREADS, 1, 1 },
                            (unsigned)(numbers + 2 * THREADS) *
                                (wide ? 8u : 4u) };

    return oari_cuda_start(a->device.index, &of[wide], &grid,
                           oar_stream_current(a->device), (void *[]){ job });
}

static oar_status attend_any(const oari_attention *a, oari_cuda_attention *job)
{
    static oari_cuda_kernel_ref of[] = {
        { .file = "attention_any", .name = "oari_attend_any_f32" },
        { .file = "attention_any", .name = "oari_attend_any_f64" }
    };

    return start_any(a, of, a->outer * a->heads * a->t, a->d + a->e, job);
}

/* The gradient of a mask is the sum of those of the scores that it was repeated
 * for: dims in which it does not move are one element of it. */
static oar_status sum_to_mask(const oari_attention *a, void *dscores)
{
    oari_array to = a->dmask;
    oari_array from = { .data = dscores,
                        .dtype = to.dtype,
                        .at = oari_layout_rows(to.at.shape),
                        .device = to.device };

    for (int i = 0; i < to.at.shape.ndim; i++)
        if (to.at.stride[i] == 0)
            to.at.shape.dim[i] = 1;
    return oari_cuda_sum_to(a->pool, &to, 1, &from);
}

static oar_status back_any(const oari_attention *a, oari_cuda_attention *job)
{
    static oari_cuda_kernel_ref rows[] = {
        { .file = "attention_any", .name = "oari_attend_any_back_f32" },
        { .file = "attention_any", .name = "oari_attend_any_back_f64" }
    };
    static oari_cuda_kernel_ref keys[] = {
        { .file = "attention_any", .name = "oari_attend_any_keys_f32" },
        { .file = "attention_any", .name = "oari_attend_any_keys_f64" }
    };

    if (a->dmask.data != NULL) /* behind the deltas */
        job->dscores = (char *)a->scratch +
                       (size_t)count_rows(a) * oar_dtype_size(a->dmask.dtype);
    if (a->t > 0)
        OARI_TRY(start_any(a, rows, a->outer * a->heads * a->t, 2 * a->d + a->e,
                           job));
    if (job->dscores != NULL && a->t > 0 && a->s > 0)
        OARI_TRY(sum_to_mask(a, job->dscores));
    if (a->s == 0 || (a->dk.data == NULL && a->dv.data == NULL))
        return OAR_OK;
    return start_any(a, keys, a->outer * (a->heads / a->k.shared) * a->s,
                     2 * a->d + 2 * a->e, job);
}

/* ---- both ---------------------------------------------------------------- */

oar_status oari_cuda_attend(const oari_attention *a)
{
    oari_cuda_attention job;

    OARI_TRY(make_job(a, &job));
    if (a->outer * a->heads * a->t == 0)
        return OAR_OK;
    if (a->s > 0 && is_for_mma(a) && is_aligned(&a->out))
        return oari_attend_90_is_for(a) ? oari_attend_90(a, &job)
                                        : attend_by_mma(a, &job);
    if (is_small(a))
        return attend_small(a, &job);
    return attend_any(a, &job);
}

oar_status oari_cuda_attend_back(const oari_attention *a)
{
    oari_cuda_attention job;

    OARI_TRY(make_job(a, &job));
    if (a->outer * a->heads * (a->t + a->s) == 0)
        return OAR_OK;
    if (a->s > 0 && a->t > 0 && is_back_for_mma(a))
        return oari_attend_90_is_for(a) ? oari_attend_90_back(a, &job)
                                        : back_by_mma(a, &job);
    if (is_small(a))
        return back_small(a, &job);
    return back_any(a, &job);
}
