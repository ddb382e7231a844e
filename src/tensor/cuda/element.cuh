// SPDX-License-Identifier: Apache-2.0
/* tensor/cuda/element.cuh: what kernels of layers have in common: elements of
 * the four float dtypes, computed in f32 (f64 for f64); packs of 16 bytes; and
 * sums over a warp or a block, always in the same order. */
#ifndef OARI_TENSOR_CUDA_ELEMENT_CUH
#define OARI_TENSOR_CUDA_ELEMENT_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "device/cuda/cuda_block.h"

#define DEVICE static inline __device__

enum { WARP = 32, MOST_WARPS = 32 };
static const unsigned ALL_LANES = 0xffffffffu;

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

/* What elements of a type are computed in. */
template <class T> struct work_of {
    typedef float type;
};
template <> struct work_of<double> {
    typedef double type;
};

DEVICE float widen(float x)
{
    return x;
}

DEVICE double widen(double x)
{
    return x;
}

DEVICE float widen(bf16 x)
{
    return oari_bits_to_f32((uint32_t)x.bits << 16);
}

DEVICE float widen(f16 x)
{
#ifdef __CUDA_ARCH__
    float wide;

    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
#else
    return oari_f16_bits_to_f32(x.bits);
#endif
}

DEVICE void narrow(float x, float *to)
{
    *to = x;
}

DEVICE void narrow(double x, double *to)
{
    *to = x;
}

DEVICE void narrow(float x, bf16 *to)
{
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    to->bits = oari_bf16_bits_from_f32(x);
#endif
}

DEVICE void narrow(float x, f16 *to)
{
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    to->bits = oari_f16_bits_from_f32(x);
#endif
}

template <class T> DEVICE T narrowed(typename work_of<T>::type x)
{
    T made;

    narrow(x, &made);
    return made;
}

/* Element i of an array of T or, if is_wide, of what T is computed in. */
template <class T>
DEVICE typename work_of<T>::type load_either(const void *from, int is_wide,
                                             int64_t i)
{
    return is_wide ? ((const typename work_of<T>::type *)from)[i]
                   : widen(((const T *)from)[i]);
}

template <class T>
DEVICE void store_either(void *to, int is_wide, int64_t i,
                         typename work_of<T>::type x)
{
    if (is_wide)
        ((typename work_of<T>::type *)to)[i] = x;
    else
        narrow(x, (T *)to + i);
}

/* ---- packs --------------------------------------------------------------- */

/* Elements of T in 16 bytes. */
template <class T> struct in_pack {
    static const int count = 16 / sizeof(T);
};

/* V elements, moved at once. V is 1 or in_pack<T>::count. */
template <class T, int V> struct pack {
    T x[V];
};

template <class T, int V> DEVICE pack<T, V> load_pack(const T *from)
{
    pack<T, V> made;

    if (V > 1) {
        uint4 raw = *(const uint4 *)from;

        memcpy(&made, &raw, sizeof made);
    } else {
        made.x[0] = *from;
    }
    return made;
}

template <class T, int V> DEVICE void store_pack(T *to, const pack<T, V> &made)
{
    if (V > 1) {
        uint4 raw;

        memcpy(&raw, &made, sizeof made);
        *(uint4 *)to = raw;
    } else {
        *to = made.x[0];
    }
}

DEVICE void widen_two(uint32_t both, float *to, bf16)
{
    to[0] = oari_bits_to_f32(both << 16);
    to[1] = oari_bits_to_f32(both & 0xffff0000u);
}

DEVICE void widen_two(uint32_t both, float *to, f16)
{
    to[0] = widen(f16{ (uint16_t)both });
    to[1] = widen(f16{ (uint16_t)(both >> 16) });
}

DEVICE uint32_t narrow_two(const float *from, bf16)
{
#ifdef __CUDA_ARCH__
    uint32_t both;

    asm("cvt.rn.bf16x2.f32 %0,%1,%2;"
        : "=r"(both)
        : "f"(from[1]), "f"(from[0]));
    return both;
#else
    return oari_bf16_bits_from_f32(from[0]) |
           (uint32_t)oari_bf16_bits_from_f32(from[1]) << 16;
#endif
}

DEVICE uint32_t narrow_two(const float *from, f16)
{
#ifdef __CUDA_ARCH__
    uint32_t both;

    asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(both) : "f"(from[1]), "f"(from[0]));
    return both;
#else
    return oari_f16_bits_from_f32(from[0]) |
           (uint32_t)oari_f16_bits_from_f32(from[1]) << 16;
#endif
}

/* All numbers of a pack; of halves two at a time. */
template <class T, int V>
DEVICE void widen_all(const pack<T, V> &from, typename work_of<T>::type *to)
{
    if constexpr (sizeof(T) == 2 && V > 1) {
        uint32_t word[V / 2];

        memcpy(word, &from, sizeof from);
        for (int k = 0; k < V / 2; k++)
            widen_two(word[k], to + 2 * k, T());
    } else {
        for (int k = 0; k < V; k++)
            to[k] = widen(from.x[k]);
    }
}

template <class T, int V>
DEVICE void narrow_all(const typename work_of<T>::type *from, pack<T, V> *to)
{
    if constexpr (sizeof(T) == 2 && V > 1) {
        uint32_t word[V / 2];

        for (int k = 0; k < V / 2; k++)
            word[k] = narrow_two(from + 2 * k, T());
        memcpy(to, word, sizeof *to);
    } else {
        for (int k = 0; k < V; k++)
            narrow(from[k], &to->x[k]);
    }
}

/* V elements from i on of an array of T or, if is_wide, of what T is computed
 * in. For V above 1 the array is aligned to 16 bytes, and i a multiple of V. */
template <class T, int V>
DEVICE void load_numbers(const void *from, int is_wide, int64_t i,
                         typename work_of<T>::type *to)
{
    typedef typename work_of<T>::type W;

    if (is_wide) {
        const int step = V > 1 ? in_pack<W>::count : 1;

        for (int at = 0; at < V; at += step) {
            pack<W, step> part = load_pack<W, step>((const W *)from + i + at);

            for (int k = 0; k < step; k++)
                to[at + k] = part.x[k];
        }
    } else {
        widen_all(load_pack<T, V>((const T *)from + i), to);
    }
}

/* The same for writing. */
template <class T, int V>
DEVICE void store_numbers(void *to, int is_wide, int64_t i,
                          const typename work_of<T>::type *from)
{
    typedef typename work_of<T>::type W;

    if (is_wide) {
        const int step = V > 1 ? in_pack<W>::count : 1;

        for (int at = 0; at < V; at += step) {
            pack<W, step> part;

            for (int k = 0; k < step; k++)
                part.x[k] = from[at + k];
            store_pack<W, step>((W *)to + i + at, part);
        }
    } else {
        pack<T, V> part;

        narrow_all(from, &part);
        store_pack<T, V>((T *)to + i, part);
    }
}

/* ---- sums ---------------------------------------------------------------- */

template <class W> DEVICE W warp_sum(W x)
{
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, apart);
    return x;
}

template <class W> DEVICE W warp_max(W x)
{
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        W other = __shfl_xor_sync(ALL_LANES, x, apart);

        x = other > x || other != other ? other : x;
    }
    return x;
}

/* The sum over all threads of a block of whole warps, in every thread. `room`
 * is shared memory for MOST_WARPS numbers, free again after the call. */
template <class W> DEVICE W block_sum(W x, W *room)
{
    int warps = (int)blockDim.x / WARP;
    int lane = (int)threadIdx.x % WARP;

    x = warp_sum(x);
    if (lane == 0)
        room[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? room[lane] : (W)0);
    __syncthreads();
    return x;
}

/* Sums of two numbers at once over a warp. */
template <class W> DEVICE void warp_sums(W *x)
{
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        W first = __shfl_xor_sync(ALL_LANES, x[0], apart);
        W second = __shfl_xor_sync(ALL_LANES, x[1], apart);

        x[0] += first;
        x[1] += second;
    }
}

/* The same over a block: warps in their order. room has space for
 * 2 * MOST_WARPS, and the call after the next may use the same. */
template <class W> DEVICE void block_sums(W *x, W *room)
{
    int warps = (int)blockDim.x / WARP;

    warp_sums(x);
    if (warps == 1)
        return;
    if (threadIdx.x % WARP == 0) {
        room[threadIdx.x / WARP] = x[0];
        room[MOST_WARPS + threadIdx.x / WARP] = x[1];
    }
    __syncthreads();
    x[0] = x[1] = 0;
    for (int w = 0; w < warps; w++) {
        x[0] += room[w];
        x[1] += room[MOST_WARPS + w];
    }
}

/* ---- rows in registers --------------------------------------------------- */

/* Packs of this thread, PARTS at most: part i begins at column
 * (i * group + me) * V of job.width; group is a warp's or a block's threads. */
#define EACH_PART(i, at)                                               \
    _Pragma("unroll") for (int i = 0; i < PARTS;                       \
                           i++) if (int64_t at =                       \
                                        (i * group + me) * (int64_t)V; \
                                    at < job.width)

/* Reads this thread's packs of `rows` rows, ROWS at most. */
template <class T, int ROWS, int PARTS, class Job>
DEVICE void load_rows(const Job &job, const void *from, int64_t row, int rows,
                      int64_t group, int64_t me,
                      pack<T, in_pack<T>::count> (&a)[ROWS][PARTS])
{
    const int V = in_pack<T>::count;

#pragma unroll
    for (int r = 0; r < ROWS; r++)
        EACH_PART(i, at)
        {
            if (r < rows)
                a[r][i] = load_pack<T, V>((const T *)from +
                                          (row + r) * job.width + at);
        }
}

/* ---- arithmetic ---------------------------------------------------------- */

DEVICE float root_of(float x)
{
    return sqrtf(x);
}

DEVICE double root_of(double x)
{
    return sqrt(x);
}

DEVICE float exp_of(float x)
{
    return expf(x);
}

DEVICE double exp_of(double x)
{
    return exp(x);
}

/* 2^x and 1/x by one instruction each, to about 2e-7; below 2^-126 they are 0 or
 * infinite. */
DEVICE float quick_exp2(float x)
{
#ifdef __CUDA_ARCH__
    float y;

    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

DEVICE float quick_inverse(float x)
{
#ifdef __CUDA_ARCH__
    float y;

    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1 / x;
#endif
}

/* The exponential of a number that is, or becomes, a T. For halves it is
 * shorter, and as good after rounding. */
template <class T> DEVICE float exp_as(float x, T)
{
    return exp2f(x * 1.4426950408889634f);
}

DEVICE float exp_as(float x, float)
{
    return expf(x);
}

DEVICE double exp_as(double x, double)
{
    return exp(x);
}

DEVICE float log_of(float x)
{
    return logf(x);
}

DEVICE double log_of(double x)
{
    return log(x);
}

DEVICE float log1p_of(float x)
{
    return log1pf(x);
}

DEVICE double log1p_of(double x)
{
    return log1p(x);
}

/* Defines four kernels, NAME_f32 and so on, of function<T>(job). */
#define OARI_KERNELS(name, function, job_type) \
    OARI_KERNELS_OF(, name, function, job_type)

/* The same for blocks of `threads`, of which a processor is to hold several. */
#define OARI_KERNELS_BOUND(threads, blocks, name, function, job_type)   \
    OARI_KERNELS_OF(__launch_bounds__(threads, blocks), name, function, \
                    job_type)

#define OARI_KERNELS_OF(bound, name, function, job_type)          \
    OARI_KERNEL_OF(bound, name##_f32, function<float>, job_type)  \
    OARI_KERNEL_OF(bound, name##_f64, function<double>, job_type) \
    OARI_KERNEL_OF(bound, name##_f16, function<f16>, job_type)    \
    OARI_KERNEL_OF(bound, name##_bf16, function<bf16>, job_type)

#define OARI_KERNEL_OF(bound, name, function, job_type) \
    extern "C" __global__ void bound name(              \
        const __grid_constant__ job_type job)           \
    {                                                   \
        function(job);                                  \
    }

#endif
