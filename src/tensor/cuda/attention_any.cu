// SPDX-License-Identifier: Apache-2.0
/* attention_any: attention of any float dtype, any widths, with a mask and
 * dropout: what attention_mma.cu does not do. A block of 128 threads has one
 * row: of queries, or of keys for their gradients; it goes through the rows of
 * the other side 128 at a time, a score for each thread. */
#include <oarsong/span.h>

#include "base/half.h"
#include "device/cuda/cuda_block.h"
#include "tensor/cuda/attention_job.h"

#define DEVICE static inline __device__

enum { THREADS = 128 };

/* ---- numbers ------------------------------------------------------------- */

template <class T> DEVICE T load(const void *data, int dtype, int64_t i)
{
    switch (dtype) {
    case OAR_F16: return (T)oari_f16_bits_to_f32(((const uint16_t *)data)[i]);
    case OAR_BF16: return (T)oari_bf16_bits_to_f32(((const uint16_t *)data)[i]);
    case OAR_F64: return (T)((const double *)data)[i];
    }
    return (T)((const float *)data)[i];
}

template <class T> DEVICE void store(void *data, int dtype, int64_t i, T x)
{
    switch (dtype) {
    case OAR_F16:
        ((uint16_t *)data)[i] = oari_f16_bits_from_f32((float)x);
        break;
    case OAR_BF16:
        ((uint16_t *)data)[i] = oari_bf16_bits_from_f32((float)x);
        break;
    case OAR_F64: ((double *)data)[i] = (double)x; break;
    default: ((float *)data)[i] = (float)x;
    }
}

DEVICE float exponential(float x)
{
    return expf(x);
}
DEVICE double exponential(double x)
{
    return exp(x);
}
DEVICE float logarithm(float x)
{
    return logf(x);
}
DEVICE double logarithm(double x)
{
    return log(x);
}

/* The sum, or the largest, of what all threads give; room: THREADS numbers. */
template <class T> DEVICE T over_block(T x, T *room, bool largest)
{
    __syncthreads();
    room[threadIdx.x] = x;
    for (int n = THREADS / 2; n > 0; n /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < n) {
            T other = room[threadIdx.x + n];

            if (largest)
                room[threadIdx.x] =
                    other > room[threadIdx.x] ? other : room[threadIdx.x];
            else
                room[threadIdx.x] += other;
        }
    }
    __syncthreads();
    return room[0];
}

/* Number i of the row of uniform numbers of a seed, as base/rng.c makes it. */
DEVICE float draw(uint64_t seed, uint64_t i)
{
    uint64_t block = i / 4;
    uint32_t w[4] = { (uint32_t)block, (uint32_t)(block >> 32), 0, 0 };
    uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);

    for (int turn = 0; turn < 10; turn++) {
        uint64_t x = (uint64_t)0xd2511f53u * w[0];
        uint64_t y = (uint64_t)0xcd9e8d57u * w[2];

        w[0] = (uint32_t)(y >> 32) ^ w[1] ^ low;
        w[1] = (uint32_t)y;
        w[2] = (uint32_t)(x >> 32) ^ w[3] ^ high;
        w[3] = (uint32_t)x;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
    return (float)(w[i & 3] >> 8) * 0x1p-24f;
}

/* ---- one score ----------------------------------------------------------- */

/* A head, and where its operands begin. */
struct head_place {
    int outer, head;
};

DEVICE int64_t begin(const oari_cuda_heads &a, head_place at, int shared,
                     int row)
{
    return at.outer * a.outer + at.head / shared * a.head + row * a.row;
}

template <class T>
DEVICE T dot(const T *row, const void *data, int64_t at, int width, int dtype)
{
    T sum = 0;

    for (int i = 0; i < width; i++)
        sum += row[i] * load<T>(data, dtype, at + i);
    return sum;
}

/* A score with its mask; minus infinity if it is not seen. */
template <class T>
DEVICE T mask_score(const oari_cuda_attention &a, head_place at, int row,
                    int key, T score)
{
    int64_t i, left = at.outer;

    if (row >= a.t || key >= a.s || (a.causal && key > row))
        return (T)-INFINITY;
    if (a.mask == NULL)
        return score;
    i = row * a.mask_stride[a.mask_dims - 2] +
        key * a.mask_stride[a.mask_dims - 1];
    if (a.mask_dims > 2)
        i += at.head * a.mask_stride[a.mask_dims - 3];
    for (int d = a.mask_dims - 4; d >= 0; left /= a.mask_dim[d--])
        i += left % a.mask_dim[d] * a.mask_stride[d];
    if (a.mask_dtype == OAR_BOOL)
        return ((const uint8_t *)a.mask)[i] ? score : (T)-INFINITY;
    return score + load<T>(a.mask, a.mask_dtype, i);
}

/* What dropout multiplies the probability of a key by. */
template <class T>
DEVICE T keep_factor(const oari_cuda_attention &a, head_place at, int row,
                     int key)
{
    uint64_t head, i;

    if (a.dropout == 0)
        return 1;
    head = (uint64_t)(at.outer * a.all_heads + a.first_head + at.head);
    i = (head * (uint64_t)a.t + (uint64_t)row) * (uint64_t)a.s + (uint64_t)key;
    if ((double)draw(a.seed, i) < a.dropout)
        return 0;
    return (T)(a.dropout < 1 ? 1 / (1 - a.dropout) : 0);
}

template <class T>
DEVICE void load_row(const oari_cuda_attention &a, T *row, const void *data,
                     int64_t at, int width)
{
    for (int i = (int)threadIdx.x; i < width; i += THREADS)
        row[i] = load<T>(data, a.dtype, at + i);
}

/* sum [width] += factor[j] times row first + j of an operand, for n rows. */
template <class T>
DEVICE void mix(const oari_cuda_attention &a, T *sum, const T *factor,
                const oari_cuda_heads &from, head_place at, int shared,
                int first, int n, int width)
{
    for (int i = (int)threadIdx.x; i < width; i += THREADS)
        for (int j = 0; j < n; j++)
            if (factor[j] != 0)
                sum[i] +=
                    factor[j] * load<T>(from.data, a.dtype,
                                        begin(from, at, shared, first + j) + i);
}

template <class T>
DEVICE void put_row(const oari_cuda_attention &a, const oari_cuda_heads &to,
                    int64_t at, const T *sum, T factor, int add, int width)
{
    for (int i = (int)threadIdx.x; i < width; i += THREADS) {
        T x = sum[i] * factor;

        if (add)
            x += load<T>(to.data, a.dtype, at + i);
        store<T>(to.data, a.dtype, at + i, x);
    }
}

DEVICE int least(int a, int b)
{
    return a < b ? a : b;
}

DEVICE int keys_seen(const oari_cuda_attention &a, int row)
{
    return a.causal ? least(a.s, row + 1) : a.s;
}

/* ---- forward ------------------------------------------------------------- */

template <class T>
DEVICE void attend_row(const oari_cuda_attention &a, T *shared)
{
    const int64_t which = blockIdx.x / (unsigned)a.t;
    const int row = (int)(blockIdx.x % (unsigned)a.t), end = keys_seen(a, row);
    const head_place at = { (int)(which / a.heads), (int)(which % a.heads) };
    T *q = shared, *sum = q + a.d, *p = sum + a.e, *room = p + THREADS;
    T most = (T)-INFINITY, total = 0;

    load_row(a, q, a.q.data, begin(a.q, at, 1, row), a.d);
    for (int i = (int)threadIdx.x; i < a.e; i += THREADS)
        sum[i] = 0;
    for (int first = 0; first < end; first += THREADS) {
        int key = first + (int)threadIdx.x;
        T score = (T)-INFINITY, top, factor, made;

        __syncthreads();
        if (key < end)
            score =
                dot(q, a.k.data, begin(a.k, at, a.shared, key), a.d, a.dtype) *
                (T)a.scale;
        score = mask_score(a, at, row, key, score);
        top = over_block(score, room, true);
        top = top > most ? top : most;
        if (top == (T)-INFINITY)
            continue;
        factor = exponential(most - top);
        made = exponential(score - top);
        total = total * factor + over_block(made, room, false);
        most = top;
        p[threadIdx.x] =
            key < end ? made * keep_factor<T>(a, at, row, key) : (T)0;
        for (int i = (int)threadIdx.x; i < a.e; i += THREADS)
            sum[i] *= factor;
        __syncthreads();
        mix(a, sum, p, a.v, at, a.shared, first, least(THREADS, end - first),
            a.e);
    }
    __syncthreads();
    if (threadIdx.x == 0) /* a row that sees nothing has a score of 0 */
        ((T *)a.lse)[which * a.t + row] =
            total > 0 ? most + logarithm(total) : (T)0;
    put_row(a, a.out, begin(a.out, at, 1, row), sum,
            total > 0 ? 1 / total : (T)0, 0, a.e);
}

/* ---- backward ------------------------------------------------------------ */

/* dq of a row; its delta first. The gradients of the row's scores are kept for
 * the mask; those of keys that the row does not see are zero. */
template <class T> DEVICE void back_row(const oari_cuda_attention &a, T *shared)
{
    const int64_t which = blockIdx.x / (unsigned)a.t;
    const int row = (int)(blockIdx.x % (unsigned)a.t), end = keys_seen(a, row);
    const head_place at = { (int)(which / a.heads), (int)(which % a.heads) };
    const T lse = ((const T *)a.lse)[which * a.t + row];
    T *q = shared, *g = q + a.d, *sum = g + a.e, *p = sum + a.d,
      *room = p + THREADS;
    T *kept = a.dscores != NULL
                  ? (T *)a.dscores + (which * a.t + row) * (int64_t)a.s
                  : NULL;
    T delta = 0;

    for (int key = end + (int)threadIdx.x; kept != NULL && key < a.s;
         key += THREADS)
        kept[key] = 0;
    load_row(a, q, a.q.data, begin(a.q, at, 1, row), a.d);
    load_row(a, g, a.out.data, begin(a.out, at, 1, row), a.e);
    for (int i = (int)threadIdx.x; i < a.d; i += THREADS)
        sum[i] = 0;
    __syncthreads();
    for (int pass = 0; pass < 2; pass++)
        for (int first = 0; first < end; first += THREADS) {
            int key = first + (int)threadIdx.x;
            T prob = 0, grad = 0;

            if (key < end) {
                prob = exponential(
                    mask_score(a, at, row, key,
                               dot(q, a.k.data, begin(a.k, at, a.shared, key),
                                   a.d, a.dtype) *
                                   (T)a.scale) -
                    lse);
                grad = dot(g, a.v.data, begin(a.v, at, a.shared, key), a.e,
                           a.dtype) *
                       keep_factor<T>(a, at, row, key);
            }
            if (pass == 0) {
                delta += over_block(prob * grad, room, false);
                continue;
            }
            __syncthreads();
            p[threadIdx.x] = prob * (grad - delta);
            if (kept != NULL && key < end)
                kept[key] = p[threadIdx.x];
            __syncthreads();
            mix(a, sum, p, a.k, at, a.shared, first,
                least(THREADS, end - first), a.d);
        }
    __syncthreads();
    if (threadIdx.x == 0)
        ((T *)a.delta)[which * a.t + row] = delta;
    if (a.dq.data != NULL)
        put_row(a, a.dq, begin(a.dq, at, 1, row), sum, (T)a.scale, a.add_q,
                a.d);
}

/* dk and dv of a key, from all heads that use it. */
template <class T> DEVICE void back_key(const oari_cuda_attention &a, T *shared)
{
    const int64_t which = blockIdx.x / (unsigned)a.s;
    const int key = (int)(blockIdx.x % (unsigned)a.s);
    const int kv_heads = a.heads / a.shared;
    head_place at = { (int)(which / kv_heads), (int)(which % kv_heads) };
    T *k = shared, *v = k + a.d, *dk = v + a.e, *dv = dk + a.d, *p = dv + a.e,
      *ds = p + THREADS;
    const int kv = at.head;

    load_row(a, k, a.k.data, begin(a.k, at, 1, key), a.d);
    load_row(a, v, a.v.data, begin(a.v, at, 1, key), a.e);
    for (int i = (int)threadIdx.x; i < a.d; i += THREADS)
        dk[i] = 0;
    for (int i = (int)threadIdx.x; i < a.e; i += THREADS)
        dv[i] = 0;
    for (at.head = kv * a.shared; at.head < (kv + 1) * a.shared; at.head++) {
        int64_t rows = ((int64_t)at.outer * a.heads + at.head) * a.t;

        for (int first = a.causal ? key / THREADS * THREADS : 0; first < a.t;
             first += THREADS) {
            int row = first + (int)threadIdx.x;
            T prob = 0, grad = 0, keep = 0;

            __syncthreads();
            if (row < a.t) {
                prob = exponential(
                    mask_score(
                        a, at, row, key,
                        dot(k, a.q.data, begin(a.q, at, 1, row), a.d, a.dtype) *
                            (T)a.scale) -
                    ((const T *)a.lse)[rows + row]);
                keep = keep_factor<T>(a, at, row, key);
                grad =
                    dot(v, a.out.data, begin(a.out, at, 1, row), a.e, a.dtype) *
                        keep -
                    ((const T *)a.delta)[rows + row];
            }
            p[threadIdx.x] = prob * keep;
            ds[threadIdx.x] = prob * grad;
            __syncthreads();
            mix(a, dk, ds, a.q, at, 1, first, least(THREADS, a.t - first), a.d);
            mix(a, dv, p, a.out, at, 1, first, least(THREADS, a.t - first),
                a.e);
        }
    }
    __syncthreads();
    at.head = kv;
    if (a.dk.data != NULL)
        put_row(a, a.dk, begin(a.dk, at, 1, key), dk, (T)a.scale, a.add_k, a.d);
    if (a.dv.data != NULL)
        put_row(a, a.dv, begin(a.dv, at, 1, key), dv, (T)1, a.add_v, a.e);
}

#define KERNELS(name, type)                                \
    extern "C" __global__ void __launch_bounds__(THREADS)  \
        oari_attend_any_##name(oari_cuda_attention a)      \
    {                                                      \
        OARI_SHARED_MEMORY(type, shared);                  \
        attend_row(a, shared);                             \
    }                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)  \
        oari_attend_any_back_##name(oari_cuda_attention a) \
    {                                                      \
        OARI_SHARED_MEMORY(type, shared);                  \
        back_row(a, shared);                               \
    }                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)  \
        oari_attend_any_keys_##name(oari_cuda_attention a) \
    {                                                      \
        OARI_SHARED_MEMORY(type, shared);                  \
        back_key(a, shared);                               \
    }

KERNELS(f32, float)
KERNELS(f64, double)
