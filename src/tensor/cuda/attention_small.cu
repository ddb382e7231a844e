// SPDX-License-Identifier: Apache-2.0
/* attention_small: attention of f32 with at most 64 positions and heads of at
 * most 32 numbers, without a mask or dropout: all of a head fits the shared
 * memory of a block, which does the whole pass. The 256 threads are 16 by 16;
 * a thread has every 16th row and every 16th column of a product. */
#include "device/cuda/cuda_block.h"
#include "tensor/cuda/attention_job.h"

#define DEVICE static inline __device__

enum {
    SIDE = OARI_SMALL_SIDE,
    WIDE = OARI_SMALL_WIDTH,
    PITCH = WIDE + 1,  /* of a row of an operand */
    SCORES = SIDE + 1, /* of a row of scores */
    ACROSS = 16,       /* threads of each side */
    ROWS = SIDE / ACROSS,
    COLUMNS = WIDE / ACROSS,
    THREADS = ACROSS * ACROSS,
    WARP = 32
};

struct place {
    int outer, head;
};

DEVICE place place_of(const oari_cuda_attention &a)
{
    return { (int)blockIdx.x / a.heads, (int)blockIdx.x % a.heads };
}

DEVICE float *row_of(const oari_cuda_heads &h, place at, int row)
{
    return (float *)h.data + at.outer * h.outer + at.head * h.head +
           row * h.row;
}

/* Fills up with zeros what is beyond the rows and columns that there are. */
DEVICE void load_tile(float *tile, const oari_cuda_heads &from, place at,
                      int rows, int width)
{
    for (int i = (int)threadIdx.x; i < SIDE * WIDE; i += THREADS) {
        int row = i / WIDE, column = i % WIDE;

        tile[row * PITCH + column] =
            row < rows && column < width ? row_of(from, at, row)[column] : 0;
    }
}

/* sum[i][j] = row i of a times row j of b. */
DEVICE void multiply_rows(const float *a, const float *b,
                          float (&sum)[ROWS][ROWS])
{
    int y = (int)threadIdx.x / ACROSS, x = (int)threadIdx.x % ACROSS;

    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++)
            sum[i][j] = 0;
#pragma unroll 4
    for (int c = 0; c < WIDE; c++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROWS; j++)
                sum[i][j] += a[(y + i * ACROSS) * PITCH + c] *
                             b[(x + j * ACROSS) * PITCH + c];
}

/* to [rows, width] = or += factor times scores (turned, if by_column) times b.
 */
DEVICE void mix_rows(const float *scores, bool by_column, const float *b,
                     const oari_cuda_heads &to, place at, int rows, int width,
                     float factor, int add)
{
    int y = (int)threadIdx.x / ACROSS, x = (int)threadIdx.x % ACROSS;
    float sum[ROWS][COLUMNS] = {};

    if (to.data == NULL)
        return;
#pragma unroll 4
    for (int k = 0; k < SIDE; k++)
        for (int i = 0; i < ROWS; i++) {
            int row = y + i * ACROSS;
            float p =
                by_column ? scores[k * SCORES + row] : scores[row * SCORES + k];

            for (int j = 0; j < COLUMNS; j++)
                sum[i][j] += p * b[k * PITCH + x + j * ACROSS];
        }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            int row = y + i * ACROSS, column = x + j * ACROSS;

            if (row < rows && column < width) {
                float *here = row_of(to, at, row) + column;

                *here = sum[i][j] * factor + (add ? *here : 0);
            }
        }
}

DEVICE bool sees(const oari_cuda_attention &a, int row, int key)
{
    return row < a.t && key < a.s && (!a.causal || key <= row);
}

DEVICE float warp_sum(float x)
{
    for (int with = WARP / 2; with > 0; with /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, with);
    return x;
}

DEVICE float warp_most(float x)
{
    for (int with = WARP / 2; with > 0; with /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, x, with);

        x = other > x ? other : x;
    }
    return x;
}

/* ---- forward ------------------------------------------------------------- */

/* A warp has a row: makes probabilities of its scores. Rows beyond the last get
 * zeros. */
DEVICE void make_probabilities(const oari_cuda_attention &a, float *p)
{
    int lane = (int)threadIdx.x % WARP;

    for (int row = (int)threadIdx.x / WARP; row < SIDE; row += THREADS / WARP) {
        float *first = p + row * SCORES + lane, *second = first + WARP;
        float most = warp_most(*first > *second ? *first : *second);
        float one = row < a.t ? expf(*first - most) : 0;
        float two = row < a.t ? expf(*second - most) : 0;
        float total = warp_sum(one + two);

        *first = row < a.t ? one / total : 0;
        *second = row < a.t ? two / total : 0;
        if (lane == 0 && row < a.t)
            ((float *)a.lse)[(int64_t)blockIdx.x * a.t + row] =
                most + logf(total);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    oari_attend_small(const __grid_constant__ oari_cuda_attention a)
{
    OARI_SHARED_MEMORY(float, shared);
    float *q = shared, *k = q + SIDE * PITCH, *v = k + SIDE * PITCH,
          *p = v + SIDE * PITCH;
    int y = (int)threadIdx.x / ACROSS, x = (int)threadIdx.x % ACROSS;
    float sum[ROWS][ROWS];
    place at = place_of(a);

    load_tile(q, a.q, at, a.t, a.d);
    load_tile(k, a.k, at, a.s, a.d);
    load_tile(v, a.v, at, a.s, a.e);
    __syncthreads();
    multiply_rows(q, k, sum);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) {
            int row = y + i * ACROSS, key = x + j * ACROSS;

            p[row * SCORES + key] =
                sees(a, row, key) ? sum[i][j] * (float)a.scale : -INFINITY;
        }
    __syncthreads();
    make_probabilities(a, p);
    __syncthreads();
    mix_rows(p, false, v, a.out, at, a.t, a.e, 1, 0);
}

/* ---- backward ------------------------------------------------------------ */

/* ds = p (dp - the sum of p dp over the row), where dp is. */
DEVICE void make_score_gradients(const float *p, float *ds)
{
    int lane = (int)threadIdx.x % WARP;

    for (int row = (int)threadIdx.x / WARP; row < SIDE; row += THREADS / WARP) {
        const float *one = p + row * SCORES + lane, *two = one + WARP;
        float *first = ds + row * SCORES + lane, *second = first + WARP;
        float delta = warp_sum(*one * *first + *two * *second);

        *first = *one * (*first - delta);
        *second = *two * (*second - delta);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    oari_attend_small_back(const __grid_constant__ oari_cuda_attention a)
{
    OARI_SHARED_MEMORY(float, shared);
    float *q = shared, *k = q + SIDE * PITCH, *v = k + SIDE * PITCH,
          *g = v + SIDE * PITCH, *p = g + SIDE * PITCH, *ds = p + SIDE * SCORES;
    int y = (int)threadIdx.x / ACROSS, x = (int)threadIdx.x % ACROSS;
    const float *lse = (const float *)a.lse + (int64_t)blockIdx.x * a.t;
    float score[ROWS][ROWS], grad[ROWS][ROWS];
    place at = place_of(a);

    load_tile(q, a.q, at, a.t, a.d);
    load_tile(k, a.k, at, a.s, a.d);
    load_tile(v, a.v, at, a.s, a.e);
    load_tile(g, a.out, at, a.t, a.e);
    __syncthreads();
    multiply_rows(q, k, score);
    multiply_rows(g, v, grad);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) {
            int row = y + i * ACROSS, key = x + j * ACROSS;

            p[row * SCORES + key] =
                sees(a, row, key)
                    ? expf(score[i][j] * (float)a.scale - lse[row])
                    : 0;
            ds[row * SCORES + key] = grad[i][j];
        }
    __syncthreads();
    make_score_gradients(p, ds);
    __syncthreads();
    mix_rows(ds, false, k, a.dq, at, a.t, a.d, (float)a.scale, a.add_q);
    mix_rows(ds, true, q, a.dk, at, a.s, a.d, (float)a.scale, a.add_k);
    mix_rows(p, true, g, a.dv, at, a.s, a.e, 1, a.add_v);
}
