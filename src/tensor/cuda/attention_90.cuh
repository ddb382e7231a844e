/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/attention_90.cuh: what the kernels of attention for Hopper GPUs
 * have in common. */
#ifndef OARI_TENSOR_CUDA_ATTENTION_90_CUH
#define OARI_TENSOR_CUDA_ATTENTION_90_CUH

#include "tensor/cuda/hopper.h"

#define LOG2_E 1.4426950408889634f

OARI_DEVICE int smaller(int a, int b)
{
    return a < b ? a : b;
}

OARI_DEVICE uint16_t *head_of(const oari_cuda_heads &a, int outer, int head)
{
    return (uint16_t *)a.data + outer * a.outer + head * a.head;
}

/* ---- tiles that are copied and used in turn ------------------------------ */

/* One of several places of a ring, and the parity of its use. */
struct ring_place {
    int at;
    unsigned parity;
};

template <int places> OARI_DEVICE void move_on(ring_place &ring)
{
    if (++ring.at == places) {
        ring.at = 0;
        ring.parity ^= 1;
    }
}

/* Says for this warp that a tile may be overwritten. */
OARI_DEVICE void release(uint64_t *empty)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        oari_barrier_arrive(empty);
}

/* ---- sums of dq ---------------------------------------------------------- */

/* The first tile of queries that sees a tile of keys. */
OARI_DEVICE int first_tile(const oari_cuda_attention &a, int block)
{
    return a.causal
               ? smaller(block * (OARI_BACK_90_KEYS / OARI_BACK_90_QUERIES),
                         (int)a.tiles)
               : 0;
}

/* The number of a tile of queries of a head among all. */
OARI_DEVICE int64_t tile_number(const oari_cuda_attention &a, int outer,
                                int head, int tile)
{
    return ((int64_t)outer * a.heads + head) * a.tiles + tile;
}

/* Where the sums of a tile lie: for each 8 columns, 4 of each of 128 threads,
 * as a warpgroup has them after a product. */
template <int width>
OARI_DEVICE float *sums_at(const oari_cuda_attention &a, int part, int outer,
                           int head, int tile)
{
    int64_t all = (int64_t)a.outer * a.heads * a.tiles;

    return a.sums + (part * all + tile_number(a, outer, head, tile)) *
                        OARI_BACK_90_QUERIES * width;
}

/* The sums of 8 halves. */
template <class T> OARI_DEVICE uint4 add_halves(const uint4 &a, const uint4 &b)
{
    const uint32_t *x = &a.x, *y = &b.x;
    uint4 made;

#pragma unroll
    for (int k = 0; k < 4; k++)
        (&made.x)[k] = oari_pack(oari_widen((uint16_t)x[k], T()) +
                                     oari_widen((uint16_t)y[k], T()),
                                 oari_widen((uint16_t)(x[k] >> 16), T()) +
                                     oari_widen((uint16_t)(y[k] >> 16), T()),
                                 T());
    return made;
}

#endif
