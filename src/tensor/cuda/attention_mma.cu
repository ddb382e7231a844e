// SPDX-License-Identifier: Apache-2.0
/* attention_mma: attention of halves by small products (mma.sync), after
 * FlashAttention-2: scores live in registers only.
 *
 * Forward: a block of four warps has 64 or 128 queries and goes through the
 * keys. Backward: a block has one head of keys, or a part of them, tile by
 * tile, and goes through the queries; scores are computed turned (keys are
 * rows), so that probabilities and their gradients are operands of dv and dk
 * as they are. What a tile of keys gives to dq is added to sums in memory that
 * no other block touches: no atomics, one order. */
#include "device/cuda/cuda_block.h"
#include "tensor/cuda/attention_job.h"
#include "tensor/cuda/mma.h"

enum { WARPS = 4, THREADS = 32 * WARPS };

#define LOG2_E 1.4426950408889634f

OARI_DEVICE int smaller(int a, int b)
{
    return a < b ? a : b;
}

OARI_DEVICE uint16_t *head_of(const oari_cuda_heads &a, int outer, int head)
{
    return (uint16_t *)a.data + outer * a.outer + head * a.head;
}

/* ---- tiles in shared memory ---------------------------------------------- */

/* Where 8 halves of a row lie. Places are permuted such that eight rows of one
 * column, or a row, are in different banks. */
template <int width> OARI_DEVICE int place(int row, int chunk)
{
    int turn = width == 32 ? row >> 1 & 3 : row & 7;

    return row * width + ((chunk ^ turn) << 3);
}

/* Begins to copy rows first .. of a head; rows from `end` on are zeros. */
template <int width, int rows>
OARI_DEVICE void copy_rows(uint16_t *tile, const uint16_t *from, int64_t stride,
                           int first, int end)
{
    enum { CHUNKS = width / 8, STEPS = rows * CHUNKS / THREADS };
    int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;

#pragma unroll
    for (int i = 0; i < STEPS; i++, row += THREADS / CHUNKS) {
        bool valid = first + row < end;
        int64_t at = valid ? (first + row) * stride : 0;

        oari_copy_16(tile + place<width>(row, chunk), from + at + chunk * 8,
                     valid ? 16 : 0);
    }
}

/* The operand A from rows of it: 16 rows, 16 columns. */
template <int width>
OARI_DEVICE void load_rows(uint32_t out[4], const uint16_t *tile, int row,
                           int chunk, int lane)
{
    oari_load_4(out,
                tile + place<width>(row + (lane & 15), chunk + (lane >> 4)));
}

/* The operands B of two products from rows of B turned. */
template <int width>
OARI_DEVICE void load_columns(uint32_t out[4], const uint16_t *tile, int row,
                              int chunk, int lane)
{
    oari_load_4(out, tile + place<width>(row + (lane & 7) + (lane >> 4 << 3),
                                         chunk + (lane >> 3 & 1)));
}

/* The same from rows of B. */
template <int width>
OARI_DEVICE void load_turned(uint32_t out[4], const uint16_t *tile, int row,
                             int chunk, int lane)
{
    oari_load_4_turned(
        out, tile + place<width>(row + (lane & 15), chunk + (lane >> 4)));
}

/* A from rows of A turned. */
template <int width>
OARI_DEVICE void load_rows_turned(uint32_t out[4], const uint16_t *tile,
                                  int row, int chunk, int lane)
{
    oari_load_4_turned(out,
                       tile + place<width>(row + (lane & 7) + (lane >> 4 << 3),
                                           chunk + (lane >> 3 & 1)));
}

/* Writes the warp's `rows` rows of a tile to rows first .. of a head. */
template <class T, int width, int rows>
OARI_DEVICE void store_rows(uint16_t *to, int64_t stride, int first, int end,
                            int add, const uint16_t *tile, int row, int lane)
{
    enum { CHUNKS = width / 8 };

    for (int i = lane; i < rows * CHUNKS; i += 32) {
        int r = i / CHUNKS, c = i % CHUNKS;
        uint16_t *at = to + (int64_t)(first + r) * stride + c * 8;
        uint4 made = *(const uint4 *)(tile + place<width>(row + r, c));

        if (first + r >= end)
            continue;
        if (add) {
            uint4 old = *(const uint4 *)at;
            uint32_t *y = &made.x;
            const uint32_t *x = &old.x;

            for (int k = 0; k < 4; k++)
                y[k] = oari_pack(oari_widen((uint16_t)x[k], T()) +
                                     oari_widen((uint16_t)y[k], T()),
                                 oari_widen((uint16_t)(x[k] >> 16), T()) +
                                     oari_widen((uint16_t)(y[k] >> 16), T()),
                                 T());
        }
        *(uint4 *)at = made;
    }
}

/* Puts 16 rows of results into a tile, as halves. */
template <class T, int width>
OARI_DEVICE void keep_tile(uint16_t *tile, int row, const float (*c)[4],
                           float low, float high, int lane)
{
    int g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int n = 0; n < width / 8; n++) {
        *(uint32_t *)(tile + place<width>(row + g, n) + 2 * t) =
            oari_pack(c[n][0] * low, c[n][1] * low, T());
        *(uint32_t *)(tile + place<width>(row + g + 8, n) + 2 * t) =
            oari_pack(c[n][2] * high, c[n][3] * high, T());
    }
}

/* ---- forward ------------------------------------------------------------- */

/* Hides the scores of keys that a row does not see, or that are none. */
template <int tiles>
OARI_DEVICE void hide_keys(const oari_cuda_attention &a, float (*s)[4], int row,
                           int key, int lane)
{
    row += lane >> 2;
    key += (lane & 3) * 2;
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = key + n * 8 + (i & 1), r = row + (i >> 1) * 8;

            if (k >= a.s || (a.causal && k > r))
                s[n][i] = -INFINITY;
        }
}

/* Makes scores probabilities without their divisor, and scales what was summed
 * so far to the new maximum. */
template <int tiles, int width>
OARI_DEVICE void soften(float (*s)[4], float (*o)[4], float *most, float *total,
                        float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = most[i], sum = 0, base, factor;

#pragma unroll
        for (int n = 0; n < tiles; n++)
            top = fmaxf(top, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        base = top * scale;
        factor = oari_exp2(most[i] * scale - base);
        most[i] = top;
#pragma unroll
        for (int n = 0; n < tiles; n++) {
            s[n][2 * i] = oari_exp2(s[n][2 * i] * scale - base);
            s[n][2 * i + 1] = oari_exp2(s[n][2 * i + 1] * scale - base);
            sum += s[n][2 * i] + s[n][2 * i + 1];
        }
        total[i] = total[i] * factor + sum;
#pragma unroll
        for (int n = 0; n < width / 8; n++) {
            o[n][2 * i] *= factor;
            o[n][2 * i + 1] *= factor;
        }
    }
}

/* mt: groups of 16 queries of a warp; bn: keys at once. */
template <class T, int width, int mt, int bn>
OARI_DEVICE void attend(const oari_cuda_attention &a, uint16_t *shared)
{
    enum { ROWS = 64 * mt, STEPS = width / 16, TILE = bn * width };
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int tiles = (a.t + ROWS - 1) / ROWS;
    const int which = (int)(blockIdx.x / (unsigned)tiles);
    const int first = (tiles - 1 - (int)(blockIdx.x % (unsigned)tiles)) * ROWS;
    const int outer = which / a.heads, head = which % a.heads;
    const int own = warp * 16 * mt, row = first + own;
    const int keys = a.causal ? smaller(a.s, first + ROWS) : a.s;
    const uint16_t *k = head_of(a.k, outer, head / a.shared);
    const uint16_t *v = head_of(a.v, outer, head / a.shared);
    const float scale = (float)a.scale * LOG2_E;
    uint16_t *queries = shared, *values = shared + ROWS * width;
    uint32_t qf[mt][STEPS][4];
    float o[mt][width / 8][4] = {}, most[mt][2], total[mt][2];

    copy_rows<width, ROWS>(queries, head_of(a.q, outer, head), a.q.row, first,
                           a.t);
    copy_rows<width, bn>(values, k, a.k.row, 0, a.s);
    copy_rows<width, bn>(values + TILE, v, a.v.row, 0, a.s);
    oari_copy_commit();
#pragma unroll
    for (int m = 0; m < mt; m++)
        for (int i = 0; i < 2; i++) {
            most[m][i] = -INFINITY;
            total[m][i] = 0;
        }
    for (int key = 0, stage = 0; key < keys; key += bn, stage ^= 1) {
        const uint16_t *kt = values + stage * 2 * TILE, *vt = kt + TILE;
        uint16_t *next = values + (stage ^ 1) * 2 * TILE;
        float s[mt][bn / 8][4] = {};
        uint32_t b[4];

        oari_copy_wait<0>();
        __syncthreads();
        if (key + bn < keys) {
            copy_rows<width, bn>(next, k, a.k.row, key + bn, a.s);
            copy_rows<width, bn>(next + TILE, v, a.v.row, key + bn, a.s);
        }
        oari_copy_commit();
        if (key == 0)
#pragma unroll
            for (int m = 0; m < mt; m++)
#pragma unroll
                for (int i = 0; i < STEPS; i++)
                    load_rows<width>(qf[m][i], queries, own + m * 16, i * 2,
                                     lane);
        if (a.causal && key > row + 16 * mt - 1)
            continue;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int n = 0; n < bn / 16; n++) {
                load_columns<width>(b, kt, n * 16, i * 2, lane);
#pragma unroll
                for (int m = 0; m < mt; m++) {
                    oari_mma(s[m][2 * n], qf[m][i], b[0], b[1], T());
                    oari_mma(s[m][2 * n + 1], qf[m][i], b[2], b[3], T());
                }
            }
#pragma unroll
        for (int m = 0; m < mt; m++) {
            if (key + bn > a.s || (a.causal && key + bn - 1 > row + m * 16))
                hide_keys<bn / 8>(a, s[m], row + m * 16, key, lane);
            soften<bn / 8, width>(s[m], o[m], most[m], total[m], scale);
        }
#pragma unroll
        for (int i = 0; i < bn / 16; i++) {
            uint32_t p[mt][4];

#pragma unroll
            for (int m = 0; m < mt; m++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    p[m][n] =
                        oari_pack(s[m][2 * i + (n >> 1)][(n & 1) * 2],
                                  s[m][2 * i + (n >> 1)][(n & 1) * 2 + 1], T());
#pragma unroll
            for (int n = 0; n < width / 16; n++) {
                load_turned<width>(b, vt, i * 16, n * 2, lane);
#pragma unroll
                for (int m = 0; m < mt; m++) {
                    oari_mma(o[m][2 * n], p[m], b[0], b[1], T());
                    oari_mma(o[m][2 * n + 1], p[m], b[2], b[3], T());
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < mt; m++) {
        int at = row + m * 16 + (lane >> 2);
        float *lse = (float *)a.lse + (int64_t)which * a.t;

#pragma unroll
        for (int i = 0; i < 2; i++) {
            total[m][i] += __shfl_xor_sync(0xffffffffu, total[m][i], 1);
            total[m][i] += __shfl_xor_sync(0xffffffffu, total[m][i], 2);
            if ((lane & 3) == 0 && at + i * 8 < a.t)
                lse[at + i * 8] =
                    most[m][i] * (float)a.scale + logf(total[m][i]);
        }
        keep_tile<T, width>(queries, own + m * 16, o[m], 1 / total[m][0],
                            1 / total[m][1], lane);
    }
    __syncwarp();
    store_rows<T, width, 16 * mt>(head_of(a.out, outer, head), a.out.row, row,
                                  a.t, 0, queries, own, lane);
}

/* ---- backward ------------------------------------------------------------ */

/* delta = each row's sum of the result times its gradient. */
template <class T, int width>
OARI_DEVICE void sum_rows(const oari_cuda_attention &a)
{
    enum { CHUNKS = width / 8 };
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t row = i / CHUNKS, rows = (int64_t)a.outer * a.heads * a.t;
    int head = (int)(row % a.heads), at = (int)(row / a.heads % a.t);
    int outer = (int)(row / a.heads / a.t), chunk = (int)(i % CHUNKS) * 8;
    float sum = 0;

    if (row < rows) {
        uint4 x = *(const uint4 *)(head_of(a.out, outer, head) +
                                   at * a.out.row + chunk);
        uint4 y = *(const uint4 *)(head_of(a.result, outer, head) +
                                   at * a.result.row + chunk);
        const uint32_t *p = &x.x, *q = &y.x;

        for (int k = 0; k < 4; k++)
            sum += oari_widen((uint16_t)p[k], T()) *
                       oari_widen((uint16_t)q[k], T()) +
                   oari_widen((uint16_t)(p[k] >> 16), T()) *
                       oari_widen((uint16_t)(q[k] >> 16), T());
    }
#pragma unroll
    for (int k = CHUNKS / 2; k > 0; k /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, k);
    if (row < rows && chunk == 0)
        ((float *)a.delta)[((int64_t)outer * a.heads + head) * a.t + at] = sum;
}

/* dq's rows of a tile of bm queries, of which each warp has a quarter of the
 * columns. */
template <class T, int width, int bm>
OARI_DEVICE void store_dq(const oari_cuda_attention &a, int outer, int head,
                          int first, const float (*dq)[width / 32][4])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const float scale = (float)a.scale;
    uint16_t *to =
        head_of(a.dq, outer, head) + warp * (width / 4) + (lane & 3) * 2;

#pragma unroll
    for (int m = 0; m < bm / 16; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = first + m * 16 + (lane >> 2) + i * 8;

            if (row >= a.t)
                continue;
#pragma unroll
            for (int n = 0; n < width / 32; n++) {
                uint32_t *at = (uint32_t *)(to + row * a.dq.row + n * 8);
                float x = dq[m][n][2 * i] * scale;
                float y = dq[m][n][2 * i + 1] * scale;

                if (a.add_q) {
                    x += oari_widen((uint16_t)*at, T());
                    y += oari_widen((uint16_t)(*at >> 16), T());
                }
                *at = oari_pack(x, y, T());
            }
        }
}

/* Where this thread's part of a tile of dq begins among the sums. */
template <int width, int bm>
OARI_DEVICE float4 *sums_at(const oari_cuda_attention &a, int part, int outer,
                            int head, int tile)
{
    int64_t all = (int64_t)a.outer * a.heads;
    int64_t at =
        ((part * all + (int64_t)outer * a.heads + head) * a.tiles + tile) *
        (bm * width / 4);

    return (float4 *)a.sums + at + threadIdx.x;
}

/* What a loop over the queries of a tile of keys needs. */
struct back_shared {
    uint16_t *k, *v;
    uint16_t *q, *out; /* two stages each */
    uint16_t *grads;   /* of the scores */
    float4 *sums;      /* of dq, before this tile of keys */
    float *rows;       /* lse and delta, two stages */
};

template <int width, int bm>
OARI_DEVICE void copy_queries(const oari_cuda_attention &a,
                              const back_shared &at, int stage, int outer,
                              int head, int first)
{
    int64_t rows = ((int64_t)outer * a.heads + head) * a.t;
    int i = (int)threadIdx.x & (bm - 1), row = first + i;

    copy_rows<width, bm>(at.q + stage * bm * width, head_of(a.q, outer, head),
                         a.q.row, first, a.t);
    copy_rows<width, bm>(at.out + stage * bm * width,
                         head_of(a.out, outer, head), a.out.row, first, a.t);
    if ((int)threadIdx.x < 2 * bm) {
        const float *from = (int)threadIdx.x < bm ? (const float *)a.lse
                                                  : (const float *)a.delta;

        oari_copy_4(at.rows + stage * 2 * bm + threadIdx.x,
                    from + (row < a.t ? rows + row : 0), row < a.t);
    }
}

/* The probabilities, turned: s [keys, queries] of 16 keys from `key` on. */
template <int bm>
OARI_DEVICE void restore(const oari_cuda_attention &a, float (*s)[4],
                         const float *lse, float scale, int key, int query,
                         bool edge, int lane)
{
    key += lane >> 2;
    query += (lane & 3) * 2;
#pragma unroll
    for (int n = 0; n < bm / 8; n++) {
        float2 at = *(const float2 *)(lse + n * 8 + (lane & 3) * 2);

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float less = (i & 1 ? at.y : at.x) * LOG2_E;

            s[n][i] = oari_exp2(s[n][i] * scale - less);
        }
        if (edge)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int k = key + (i >> 1) * 8, r = query + n * 8 + (i & 1);

                if (k >= a.s || (a.causal && k > r))
                    s[n][i] = 0;
            }
    }
}

/* c [16 mt rows of this warp, bm] = rows of `left` times rows of `right`. */
template <class T, int width, int mt, int bm>
OARI_DEVICE void row_products(float (*c)[bm / 8][4], const uint16_t *left,
                              const uint16_t *right, int own, int lane)
{
#pragma unroll
    for (int i = 0; i < width / 16; i++) {
        uint32_t a[mt][4], b[4];

#pragma unroll
        for (int m = 0; m < mt; m++)
            load_rows<width>(a[m], left, own + m * 16, i * 2, lane);
#pragma unroll
        for (int n = 0; n < bm / 16; n++) {
            load_columns<width>(b, right, n * 16, i * 2, lane);
#pragma unroll
            for (int m = 0; m < mt; m++) {
                oari_mma(c[m][2 * n], a[m], b[0], b[1], T());
                oari_mma(c[m][2 * n + 1], a[m], b[2], b[3], T());
            }
        }
    }
}

/* c [16 mt, width] += the matrix in registers times rows of `right`. */
template <class T, int width, int mt, int bm>
OARI_DEVICE void mix_keys(float (*c)[width / 8][4], uint32_t (*p)[bm / 16][4],
                          const uint16_t *right, int lane)
{
#pragma unroll
    for (int i = 0; i < bm / 16; i++)
#pragma unroll
        for (int n = 0; n < width / 16; n++) {
            uint32_t b[4];

            load_turned<width>(b, right, i * 16, n * 2, lane);
#pragma unroll
            for (int m = 0; m < mt; m++) {
                oari_mma(c[m][2 * n], p[m][i], b[0], b[1], T());
                oari_mma(c[m][2 * n + 1], p[m][i], b[2], b[3], T());
            }
        }
}

/* Accumulators as operands A. */
template <class T, int bm>
OARI_DEVICE void as_operand(uint32_t (*p)[4], const float (*s)[4])
{
#pragma unroll
    for (int i = 0; i < bm / 16; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            p[i][n] = oari_pack(s[2 * i + (n >> 1)][(n & 1) * 2],
                                s[2 * i + (n >> 1)][(n & 1) * 2 + 1], T());
}

/* One tile of queries with one of keys: adds to dk and dv, and leaves the
 * gradients of the scores in shared memory. */
template <class T, int width, int mt, int bm>
OARI_DEVICE void back_tile(const oari_cuda_attention &a, const back_shared &at,
                           int stage, int key, int query,
                           float (*dk)[width / 8][4], float (*dv)[width / 8][4])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int own = warp * 16 * mt;
    const uint16_t *q = at.q + stage * bm * width;
    const uint16_t *out = at.out + stage * bm * width;
    const float *lse = at.rows + stage * 2 * bm, *delta = lse + bm;
    float s[mt][bm / 8][4] = {}, d[mt][bm / 8][4] = {};
    uint32_t p[mt][bm / 16][4];

    row_products<T, width, mt, bm>(s, at.k, q, own, lane);
#pragma unroll
    for (int m = 0; m < mt; m++) {
        int k = key + own + m * 16;
        bool edge = k + 16 > a.s || (a.causal && k + 15 > query);

        restore<bm>(a, s[m], lse, (float)a.scale * LOG2_E, k, query, edge,
                    lane);
        as_operand<T, bm>(p[m], s[m]);
    }
    row_products<T, width, mt, bm>(d, at.v, out, own, lane);
    mix_keys<T, width, mt, bm>(dv, p, out, lane);
#pragma unroll
    for (int m = 0; m < mt; m++) {
#pragma unroll
        for (int n = 0; n < bm / 8; n++) {
            float2 less = *(const float2 *)(delta + n * 8 + (lane & 3) * 2);

#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][n][i] *= d[m][n][i] - (i & 1 ? less.y : less.x);
        }
        as_operand<T, bm>(p[m], s[m]);
#pragma unroll
        for (int i = 0; i < bm / 16; i++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                *(uint32_t *)(at.grads +
                              place<bm>(own + m * 16 + (lane >> 2) +
                                            (n & 1) * 8,
                                        2 * i + (n >> 1)) +
                              (lane & 3) * 2) = p[m][i][n];
    }
    mix_keys<T, width, mt, bm>(dk, p, q, lane);
}

/* dq [bm, width / 4 of this warp] += the gradients of scores times k. */
template <class T, int width, int bm>
OARI_DEVICE void mix_queries(const uint16_t *grads, const uint16_t *k, int keys,
                             float (*dq)[width / 32][4])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;

#pragma unroll 4
    for (int i = 0; i < keys; i += 16) {
        uint32_t a[bm / 16][4], b[4];

#pragma unroll
        for (int m = 0; m < bm / 16; m++)
            load_rows_turned<bm>(a[m], grads, i, m * 2, lane);
#pragma unroll
        for (int n = 0; n < width / 64; n++) {
            load_turned<width>(b, k, i, warp * (width / 32) + n * 2, lane);
#pragma unroll
            for (int m = 0; m < bm / 16; m++) {
                oari_mma(dq[m][2 * n], a[m], b[0], b[1], T());
                oari_mma(dq[m][2 * n + 1], a[m], b[2], b[3], T());
            }
        }
    }
}

/* dq += this thread's part of a tile, which lies like the sums. */
template <int width, int bm>
OARI_DEVICE void add_sums(float (*dq)[width / 32][4], const float4 *sums)
{
#pragma unroll
    for (int m = 0; m < bm / 16; m++)
#pragma unroll
        for (int n = 0; n < width / 32; n++) {
            float4 more = sums[(m * (width / 32) + n) * THREADS];

            dq[m][n][0] += more.x;
            dq[m][n][1] += more.y;
            dq[m][n][2] += more.z;
            dq[m][n][3] += more.w;
        }
}

template <int width, int bm>
OARI_DEVICE void keep_sums(float4 *sums, const float (*dq)[width / 32][4])
{
#pragma unroll
    for (int m = 0; m < bm / 16; m++)
#pragma unroll
        for (int n = 0; n < width / 32; n++)
            sums[(m * (width / 32) + n) * THREADS] =
                make_float4(dq[m][n][0], dq[m][n][1], dq[m][n][2], dq[m][n][3]);
}

/* Begins to copy this thread's part of the sums of a tile. */
template <int width, int bm>
OARI_DEVICE void copy_sums(float4 *to, const float4 *sums)
{
#pragma unroll
    for (int i = 0; i < bm / 16 * (width / 32); i++)
        oari_copy_16(to + threadIdx.x + i * THREADS, sums + i * THREADS, 16);
}

/* A tile of queries of a head. */
struct query_tile {
    int head, tile;
};

/* dk and dv of one tile of keys, and what it gives to dq. In a turn the next
 * tile of queries is on its way, and so is what dq has so far of this one. */
template <class T, int width, int mt, int bm>
OARI_DEVICE void back_keys(const oari_cuda_attention &a, const back_shared &at,
                           int part, int outer, int kv, int block)
{
    enum { KEYS = 64 * mt };
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int key = block * KEYS, own = warp * 16 * mt;
    const int begin = a.causal ? key / bm : 0;
    const int turns = ((int)a.tiles - begin) * a.shared;
    const int last = (a.s - 1) / KEYS;
    const bool wanted = a.dq.data != NULL, more = wanted && block != part;
    float dk[mt][width / 8][4] = {}, dv[mt][width / 8][4] = {};
    query_tile now = { kv * a.shared, begin };

    copy_rows<width, KEYS>(at.k, head_of(a.k, outer, kv), a.k.row, key, a.s);
    copy_rows<width, KEYS>(at.v, head_of(a.v, outer, kv), a.v.row, key, a.s);
    if (turns > 0)
        copy_queries<width, bm>(a, at, 0, outer, now.head, begin * bm);
    oari_copy_commit();
    if (turns > 0 && more)
        copy_sums<width, bm>(
            at.sums, sums_at<width, bm>(a, part, outer, now.head, now.tile));
    oari_copy_commit();
    for (int i = 0; i < turns; i++) {
        const int query = now.tile * bm;
        const int seen = a.causal ? smaller(KEYS, query + bm - key) : KEYS;
        query_tile next = { now.head, now.tile + 1 };

        if (next.tile == (int)a.tiles)
            next = { now.head + 1, begin };
        oari_copy_wait<1>();
        __syncthreads();
        if (i + 1 < turns)
            copy_queries<width, bm>(a, at, ~i & 1, outer, next.head,
                                    next.tile * bm);
        oari_copy_commit();
        if (own < seen)
            back_tile<T, width, mt, bm>(a, at, i & 1, key, query, dk, dv);
        oari_copy_wait<1>();
        __syncthreads();
        if (wanted) {
            float dq[bm / 16][width / 32][4] = {};

            mix_queries<T, width, bm>(at.grads, at.k, seen, dq);
            if (more)
                add_sums<width, bm>(dq, at.sums + threadIdx.x);
            if (a.parts == 1 &&
                block ==
                    (a.causal ? smaller(last, (query + bm - 1) / KEYS) : last))
                store_dq<T, width, bm>(a, outer, now.head, query, dq);
            else
                keep_sums<width, bm>(
                    sums_at<width, bm>(a, part, outer, now.head, now.tile), dq);
        }
        if (i + 1 < turns && more)
            copy_sums<width, bm>(
                at.sums,
                sums_at<width, bm>(a, part, outer, next.head, next.tile));
        oari_copy_commit();
        now = next;
    }
    oari_copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < mt; m++) {
        keep_tile<T, width>(at.k, own + m * 16, dk[m], (float)a.scale,
                            (float)a.scale, lane);
        keep_tile<T, width>(at.v, own + m * 16, dv[m], 1, 1, lane);
    }
    __syncwarp();
    if (a.dk.data != NULL)
        store_rows<T, width, 16 * mt>(head_of(a.dk, outer, kv), a.dk.row,
                                      key + own, a.s, a.add_k, at.k, own, lane);
    if (a.dv.data != NULL)
        store_rows<T, width, 16 * mt>(head_of(a.dv, outer, kv), a.dv.row,
                                      key + own, a.s, a.add_v, at.v, own, lane);
    __syncthreads();
}

/* mt: groups of 16 keys of a warp; bm: queries at once. */
template <class T, int width, int mt, int bm>
OARI_DEVICE void attend_back(const oari_cuda_attention &a, uint16_t *shared)
{
    enum { KEYS = 64 * mt };
    const int kv_heads = a.heads / a.shared;
    const int part = (int)(blockIdx.x % (unsigned)a.parts);
    const int which = (int)(blockIdx.x / (unsigned)a.parts);
    back_shared at;

    at.k = shared;
    at.v = at.k + KEYS * width;
    at.q = at.v + KEYS * width;
    at.out = at.q + 2 * bm * width;
    at.grads = at.out + 2 * bm * width;
    at.sums = (float4 *)(at.grads + KEYS * bm);
    at.rows = (float *)(at.sums + bm * width / 4);
    for (int block = part; block * KEYS < a.s; block += a.parts)
        back_keys<T, width, mt, bm>(a, at, part, which / kv_heads,
                                    which % kv_heads, block);
}

/* dq = the sums of all parts, in their order. */
template <class T, int width, int keys, int bm>
OARI_DEVICE void add_parts(const oari_cuda_attention &a)
{
    const int tile = (int)(blockIdx.x % (unsigned)a.tiles);
    const int which = (int)(blockIdx.x / (unsigned)a.tiles);
    const int outer = which / a.heads, head = which % a.heads;
    float dq[bm / 16][width / 32][4] = {};

    for (int part = 0; part < a.parts; part++) {
        if (part * keys >= a.s || (a.causal && part * keys / bm > tile))
            break;
        add_sums<width, bm>(dq, sums_at<width, bm>(a, part, outer, head, tile));
    }
    store_dq<T, width, bm>(a, outer, head, tile * bm, dq);
}

/* ---- kernels ------------------------------------------------------------- */

#define KERNELS(half, width, forward_mt, bn, mt, bm)               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)       \
        oari_attend_##half##_##width(oari_cuda_attention a)        \
    {                                                              \
        OARI_SHARED_MEMORY(uint16_t, shared);                      \
        attend<oari_##half, width, forward_mt, bn>(a, shared);     \
    }                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)       \
        oari_attend_back_##half##_##width(oari_cuda_attention a)   \
    {                                                              \
        OARI_SHARED_MEMORY(uint16_t, shared);                      \
        attend_back<oari_##half, width, mt, bm>(a, shared);        \
    }                                                              \
    extern "C" __global__ void oari_attend_delta_##half##_##width( \
        oari_cuda_attention a)                                     \
    {                                                              \
        sum_rows<oari_##half, width>(a);                           \
    }                                                              \
    extern "C" __global__ void oari_attend_parts_##half##_##width( \
        oari_cuda_attention a)                                     \
    {                                                              \
        add_parts<oari_##half, width, 64 * mt, bm>(a);             \
    }

KERNELS(bf16, 64, 2, 64, 2, 32)
#ifndef ONLY_ONE
KERNELS(bf16, 128, 1, 64, 1, 32)
KERNELS(f16, 64, 2, 64, 2, 32)
KERNELS(f16, 128, 1, 64, 1, 32)
#endif
