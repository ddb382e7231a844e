// SPDX-License-Identifier: Apache-2.0
/* draw: dropout and rotary positions, element by element. The random numbers
 * are those of base/rng.c: Philox 4x32-10, by their counters. */
#include "tensor/cuda/draw_job.h"
#include "tensor/cuda/element.cuh"

/* ---- dropout ------------------------------------------------------------- */

/* The four words of a block of the row of a seed, stream 0. */
DEVICE void philox(uint64_t seed, uint64_t block, uint32_t word[4])
{
    uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = 0, d = 0;

#pragma unroll
    for (int turn = 0; turn < 10; turn++) {
        uint64_t first = (uint64_t)0xd2511f53u * a;
        uint64_t second = (uint64_t)0xcd9e8d57u * c;

        a = (uint32_t)(second >> 32) ^ b ^ low;
        b = (uint32_t)second;
        c = (uint32_t)(first >> 32) ^ d ^ high;
        d = (uint32_t)first;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
    word[0] = a;
    word[1] = b;
    word[2] = c;
    word[3] = d;
}

DEVICE int is_kept(const oari_dropout_job &job, const uint32_t word[4],
                   uint64_t position)
{
    return word[position % 4] >> 8 >= job.least;
}

template <class T>
DEVICE void drop_one(const oari_dropout_job &job,
                     typename work_of<T>::type factor, int64_t i, int kept)
{
    typedef typename work_of<T>::type W;
    W y = kept ? widen(((const T *)job.x)[i]) * factor : (W)0;
    T *to = (T *)job.to + i;

    narrow(job.add ? y + widen(*to) : y, to);
}

DEVICE uint64_t position_of(const oari_dropout_job &job, int64_t i)
{
    int64_t at = job.first;

    for (int d = job.ndim - 1; d >= 0; i /= job.dim[d--])
        at += i % job.dim[d] * job.stride[d];
    return (uint64_t)at;
}

/* A pack of elements whose positions follow each other, from `position` on, and
 * what is added to it. */
template <class T, int V>
DEVICE void drop_pack(const oari_dropout_job &job, uint64_t seed,
                      uint64_t position, pack<T, V> *a,
                      const pack<T, V> &before)
{
    typedef typename work_of<T>::type W;
    const int PER_BLOCK = V < 4 ? V : 4;
    const W factor = (W)job.factor;
    W y[V], more[V];

    widen_all(*a, y);
#pragma unroll
    for (int b = 0; b < V; b += PER_BLOCK) {
        uint32_t word[4];

        philox(seed, (uint32_t)((position + b) / 4), word);
#pragma unroll
        for (int k = 0; k < PER_BLOCK; k++) {
            uint32_t drawn = V >= 4 ? word[k] : word[(position + k) % 4];

            y[b + k] = drawn >= job.bound ? y[b + k] * factor : (W)0;
        }
    }
    if (job.add) {
        widen_all(before, more);
        for (int k = 0; k < V; k++)
            y[k] += more[k];
    }
    narrow_all(y, a);
}

/* Positions begin at a multiple of 4, and are below 2^34, so that each block of random words is for
 * elements of one pack. Several packs are read at once, and their random numbers
 * made side by side. */
template <class T>
DEVICE void drop_packs(const oari_dropout_job &job, uint64_t seed)
{
    const int V = in_pack<T>::count, PACKS = OARI_DROPOUT_PACKS;
    const int64_t apart = (int64_t)blockDim.x * V;
    const int64_t first =
        (int64_t)blockIdx.x * PACKS * apart + (int64_t)threadIdx.x * V;
    const T *x = (const T *)job.x;
    T *to = (T *)job.to;
    pack<T, V> a[PACKS] = {}, before[PACKS] = {};

#pragma unroll
    for (int n = 0; n < PACKS; n++) {
        const int64_t i = first + n * apart;

        if (i >= job.count)
            continue;
        a[n] = load_pack<T, V>(x + i);
        if (job.add)
            before[n] = load_pack<T, V>(to + i);
    }
#pragma unroll
    for (int n = 0; n < PACKS; n++)
        drop_pack<T, V>(job, seed, (uint64_t)(job.first + first + n * apart),
                        &a[n], before[n]);
#pragma unroll
    for (int n = 0; n < PACKS; n++)
        if (first + n * apart < job.count)
            store_pack<T, V>(to + first + n * apart, a[n]);
}

/* Where positions follow each other, a thread takes the four elements of a
 * block of random words. */
template <class T> DEVICE void drop(const oari_dropout_job &job)
{
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    const typename work_of<T>::type factor =
        (typename work_of<T>::type)job.factor;
    uint64_t seed = job.seed + (job.salt != nullptr ? *job.salt : 0);
    uint32_t word[4];

    if (job.is_packed) {
        drop_packs<T>(job, seed);
        return;
    }
    if (job.ndim == 0) {
        int64_t skip = job.first % 4;

        for (int64_t b = thread; 4 * b < job.count + skip; b += step) {
            philox(seed, (uint64_t)(job.first / 4 + b), word);
            for (int k = 0; k < 4; k++) {
                int64_t i = 4 * b - skip + k;

                if (i >= 0 && i < job.count)
                    drop_one<T>(job, factor, i,
                                is_kept(job, word, (uint64_t)k));
            }
        }
        return;
    }
    for (int64_t i = thread; i < job.count; i += step) {
        uint64_t position = position_of(job, i);

        philox(seed, position / 4, word);
        drop_one<T>(job, factor, i, is_kept(job, word, position));
    }
}

OARI_KERNELS(oari_dropout, drop, oari_dropout_job)

/* ---- rotary -------------------------------------------------------------- */

/* In f64, as the host does. */
extern "C" __global__ void
oari_rotary_angles(const __grid_constant__ oari_angles_job job)
{
    const int64_t half = job.d / 2;
    int64_t step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < job.t * half; i += step) {
        int64_t k = i % half, row = i / half;
        double turn = (double)(job.first + row) *
                      pow(job.base, -(double)k / (double)half);
        int64_t at = row * job.d + k;

        if (job.is_f64) {
            ((double *)job.angle)[at] = cos(turn);
            ((double *)job.angle)[at + half] = sin(turn);
        } else {
            ((float *)job.angle)[at] = (float)cos(turn);
            ((float *)job.angle)[at + half] = (float)sin(turn);
        }
    }
}

/* Turns numbers p of the first half and q of the second. */
template <class W>
DEVICE void turn(const oari_rotary_job &job, W cosine, W sine, W *p, W *q)
{
    W s = job.back ? -sine : sine, left = *p * cosine - *q * s;

    *q = *q * cosine + *p * s;
    *p = left;
}

/* A pack of each half of a head at a time. */
template <class T> DEVICE void rotate_packs(const oari_rotary_job &job)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const uint32_t half = (uint32_t)job.d / 2, parts = half / V;
    const uint32_t packs = (uint32_t)(job.count / V);
    const uint32_t step = gridDim.x * blockDim.x;

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < packs;
         i += step) {
        uint32_t head = i / parts, k = (i - head * parts) * V;
        uint32_t row = head / (uint32_t)job.heads;
        int64_t at = (int64_t)head * job.d + k;
        const T *x = (const T *)job.x + at;
        T *to = (T *)job.to + at;
        W p[V], q[V], c[V], s[V];

        load_numbers<T, V>(x, 0, 0, p);
        load_numbers<T, V>(x, 0, half, q);
        if (head - row * (uint32_t)job.heads < (uint32_t)job.turned) {
            int64_t angle = (int64_t)(row % (uint32_t)job.t) * job.d + k;

            load_numbers<T, V>(job.angle, 1, angle, c);
            load_numbers<T, V>(job.angle, 1, angle + half, s);
#pragma unroll
            for (int n = 0; n < V; n++)
                turn(job, c[n], s[n], &p[n], &q[n]);
        }
        if (job.add) {
            load_numbers<T, V>(to, 0, 0, c);
            load_numbers<T, V>(to, 0, half, s);
#pragma unroll
            for (int n = 0; n < V; n++) {
                p[n] += c[n];
                q[n] += s[n];
            }
        }
        store_numbers<T, V>(to, 0, 0, p);
        store_numbers<T, V>(to, 0, half, q);
    }
}

template <class T> DEVICE void rotate(const oari_rotary_job &job)
{
    typedef typename work_of<T>::type W;
    const int64_t half = job.d / 2;
    int64_t step = (int64_t)gridDim.x * blockDim.x;

    if (job.is_packed) {
        rotate_packs<T>(job);
        return;
    }
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < job.count; i += step) {
        int64_t k = i % half, head = i / half;
        const W *angle =
            (const W *)job.angle + head / job.heads % job.t * job.d + k;
        const T *x = (const T *)job.x + head * job.d + k;
        T *to = (T *)job.to + head * job.d + k;
        W p = widen(x[0]), q = widen(x[half]);

        if (head % job.heads < job.turned)
            turn(job, angle[0], angle[half], &p, &q);
        if (job.add) {
            p += widen(to[0]);
            q += widen(to[half]);
        }
        narrow(p, to);
        narrow(q, to + half);
    }
}

OARI_KERNELS(oari_rotary, rotate, oari_rotary_job)
