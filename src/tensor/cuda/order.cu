// SPDX-License-Identifier: Apache-2.0
/* order: rows in order, by the places that their elements come from, and
 * indices that are checked. A block sorts a row by the digits of its keys, the
 * least first, so equal elements keep their order. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/numbers.cuh"
#include "tensor/cuda/order_job.h"

enum { DIGITS = 256, WARPS = OARI_ORDER_THREADS / WARP };

/* A u64 in the order of the elements, as the cpu's: a zero is a zero, whatever
 * its sign, and a NaN is larger than infinity. */
DEVICE uint64_t key_of(const oari_order_job &job, int64_t at)
{
    uint64_t all = ~(uint64_t)0 >> (64 - 8 * job.bytes), key;

    if (job.is_float) {
        double x = load_as<double>(job.from, job.dtype, at);
        uint64_t sign = (uint64_t)1 << (8 * job.bytes - 1);

        if (x == 0)
            key = sign;
        else if (x != x)
            key = all;
        else {
            key = job.bytes == 4 ? ((const uint32_t *)job.from)[at]
                                 : ((const uint64_t *)job.from)[at];
            key = key & sign ? ~key & all : key | sign;
        }
    } else {
        key = (uint64_t)load_as<int64_t>(job.from, job.dtype, at);
        if (job.is_signed)
            key += (uint64_t)1 << (8 * job.bytes - 1);
        key &= all;
    }
    return job.descending ? key ^ all : key;
}

struct order_room {
    unsigned count[DIGITS], next[DIGITS], found[WARPS][DIGITS];
};

/* The lanes of the warp whose digit is this lane's; -1: there is none. */
DEVICE unsigned lanes_like(int digit)
{
    unsigned same = ALL_LANES;

    for (int bit = 0; bit <= 8; bit++) {
        int set = (digit >> bit) & 1;
        unsigned lanes = __ballot_sync(ALL_LANES, set);

        same &= set ? lanes : ~lanes;
    }
    return same;
}

/* Moves keys and places to where they belong by one digit. */
DEVICE void move_by_digit(order_room &room, int shift, int64_t width,
                          const uint64_t *key, const uint64_t *place,
                          uint64_t *to_key, uint64_t *to_place)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    unsigned before = 0;

    room.count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < width; i += OARI_ORDER_THREADS)
        atomicAdd(&room.count[(key[i] >> shift) & (DIGITS - 1)], 1u);
    __syncthreads();
    for (int d = 0; d < (int)threadIdx.x; d++)
        before += room.count[d];
    room.next[threadIdx.x] = before;
    for (int64_t first = 0; first < width; first += OARI_ORDER_THREADS) {
        int64_t i = first + threadIdx.x;
        int digit = i < width ? (int)(key[i] >> shift) & (DIGITS - 1) : -1;
        unsigned same = lanes_like(digit), ahead;

        for (int w = 0; w < WARPS; w++)
            room.found[w][threadIdx.x] = 0;
        __syncthreads();
        ahead = (unsigned)__popc(same & ((1u << lane) - 1u));
        if (digit >= 0 && ahead == 0)
            room.found[warp][digit] = (unsigned)__popc(same);
        __syncthreads();
        if (digit >= 0) {
            unsigned at = room.next[digit] + ahead;

            for (int w = 0; w < warp; w++)
                at += room.found[w][digit];
            to_key[at] = key[i];
            to_place[at] = place[i];
        }
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            room.next[threadIdx.x] += room.found[w][threadIdx.x];
        __syncthreads();
    }
}

extern "C" __global__ void
oari_order_rows(const __grid_constant__ oari_order_job job)
{
    __shared__ order_room room;

    for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
        uint64_t *key = job.scratch + row * 4 * job.width;
        uint64_t *place = key + job.width;
        uint64_t *other = key + 2 * job.width;

        for (int64_t i = threadIdx.x; i < job.width; i += OARI_ORDER_THREADS) {
            key[i] = key_of(job, row * job.width + i);
            place[i] = (uint64_t)i;
        }
        __syncthreads();
        for (int digit = 0; digit < job.bytes; digit++) {
            uint64_t *was = key;

            move_by_digit(room, 8 * digit, job.width, key, place, other,
                          other + job.width);
            __syncthreads();
            key = other;
            place = other + job.width;
            other = was;
        }
        for (int64_t i = threadIdx.x; i < job.keep; i += OARI_ORDER_THREADS)
            job.to[row * job.keep + i] = (int64_t)place[i];
        __syncthreads();
    }
}

extern "C" __global__ void
oari_checked_index(const __grid_constant__ oari_checked_job job)
{
    EACH(i, job.count) {
        uint64_t left = i;
        int64_t at = 0, value;

#pragma unroll 1
        for (int d = job.ndim - 1; d >= 0; d--) {
            uint64_t rows = left / (uint64_t)job.dim[d];

            at += (int64_t)(left - rows * (uint64_t)job.dim[d]) * job.stride[d];
            left = rows;
        }
        value = job.from[at];
        if (value < 0 || value >= job.limit) {
            oari_index_report(job.check, (oari_index_op)job.op, (int64_t)i,
                              value, job.limit);
            value = 0;
        }
        job.to[i] = value;
    }
}
