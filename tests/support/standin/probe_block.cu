// SPDX-License-Identifier: Apache-2.0
// standin/probe_block.cu: kernels whose threads meet, for the tests of the
// stand-in itself; the faulty ones are faulty on purpose.
#include "device/cuda/cuda_block.h"

#define THREAD \
    ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x)
#define THREADS (blockDim.x * blockDim.y * blockDim.z)
#define ALL     0xffffffffu

// ---- right ones ------------------------------------------------------------

// to[block] = the sum of the block's part of from, by shuffles, then by static
// shared memory.
extern "C" __global__ void probe_sum(float *to, const float *from)
{
    __shared__ float warp_sum[32];
    unsigned warps = (THREADS + 31) / 32;
    float x = from[blockIdx.x * THREADS + THREAD];
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL, x, step);
    if (THREAD % 32 == 0)
        warp_sum[THREAD / 32] = x;
    __syncthreads();
    if (THREAD < 32) {
        x = THREAD < warps ? warp_sum[THREAD] : 0;
        for (unsigned step = 16; step > 0; step /= 2)
            x += __shfl_down_sync(ALL, x, step);
        if (THREAD == 0)
            to[blockIdx.x] = x;
    }
}

// Each block turns its part of from around, by dynamic shared memory.
extern "C" __global__ void probe_reverse(int *to, const int *from)
{
    OARI_SHARED_MEMORY(int, part);
    unsigned at = blockIdx.x * THREADS + THREAD;
    part[THREAD] = from[at];
    __syncthreads();
    to[at] = part[THREADS - 1 - THREAD];
}

// to[0..7]: votes and sums over a warp; to[8]: how many threads came.
extern "C" __global__ void probe_votes(unsigned *to)
{
    unsigned lane = THREAD % 32;
    unsigned odd = __ballot_sync(ALL, lane & 1);
    unsigned sum = __reduce_add_sync(ALL, lane);
    unsigned any = (unsigned)__any_sync(ALL, lane == 7);
    unsigned all = (unsigned)__all_sync(ALL, lane < 31);
    unsigned up = __shfl_up_sync(ALL, lane, 3);
    unsigned first = __shfl_sync(ALL, lane + 100, 2, 8);
    int early = __syncthreads_or(THREAD == 5);
    int count = __syncthreads_count(lane < 4);
    if (THREAD == 33) {
        to[0] = odd;
        to[1] = sum;
        to[2] = any;
        to[3] = all;
        to[4] = up;
        to[5] = first;
        to[6] = (unsigned)early;
        to[7] = (unsigned)count;
    }
    if (lane < 16)
        __syncwarp(0xffffu); // half of the lanes
    atomicAdd(&to[8], 1u);
    atomicMax(&to[9], THREAD);
}

// The order in which blocks and threads begin.
extern "C" __global__ void probe_order(unsigned *next, unsigned *to)
{
    to[atomicAdd(next, 1)] = blockIdx.x * THREADS + THREAD;
}

// All lanes' registers at once, as mma.sync has them.
extern "C" __global__ void probe_meet(int *to)
{
#ifndef __CUDACC__
    struct given_and_sum {
        int given, sum;
    } mine = { (int)THREAD, 0 };
    standin::warp_meet(
        mine,
        [](given_and_sum *const lane[32]) {
            for (int i = 0; i < 32; i++)
                lane[i]->sum = lane[i]->given + 10 * lane[31 - i]->given;
        },
        "probe");
    to[THREAD] = mine.sum;
#endif
}

// A copy is there when it has been waited for.
extern "C" __global__ void probe_late_copy(int *to, const int *from, int wait)
{
#ifndef __CUDACC__
    OARI_SHARED_MEMORY(int, part);
    standin::copy_later(&part[THREAD], &from[THREAD], sizeof *part);
    standin::commit_copies();
    if (wait)
        standin::wait_copies(0, { "wait", __FILE__, __LINE__ });
    to[THREAD] = part[THREAD];
#endif
}

// Whether every access of these kernels is looked at (access.cc).
extern "C" __attribute__((visibility("default"))) int standin_looks()
{
#ifdef STANDIN_LOOKS
    return 1;
#else
    return 0;
#endif
}

// ---- faulty ones -----------------------------------------------------------

// Reads what its neighbour may not have written.
extern "C" __global__ void probe_missing_barrier(int *to, const int *from)
{
    __shared__ int part[64];
    part[THREAD] = from[THREAD];
    to[THREAD] = part[(THREAD + 32) % 64];
}

extern "C" __global__ void probe_divergent_barrier(int *to)
{
    if (THREAD < 40)
        __syncthreads();
    else
        __syncthreads();
    to[THREAD] = 1;
}

extern "C" __global__ void probe_early_end(int *to, unsigned count)
{
    if (THREAD >= count)
        return;
    __syncthreads();
    to[THREAD] = 1;
}

extern "C" __global__ void probe_missing_lanes(int *to, unsigned count)
{
    int x = (int)THREAD;
    if (THREAD < count)
        x = __shfl_down_sync(ALL, x, 1);
    to[THREAD] = x;
}

extern "C" __global__ void probe_not_in_mask(int *to)
{
    to[THREAD] = __shfl_sync(0xffu, (int)THREAD, 0);
}

// Shared memory that nobody wrote, and memory behind it.
extern "C" __global__ void probe_unwritten(float *to)
{
    OARI_SHARED_MEMORY(float, part);
    if (THREAD != 3)
        part[THREAD] = 1;
    __syncthreads();
    to[THREAD] = part[THREAD];
}

// Memory of the host, by an address that no parameter has.
extern "C" __global__ void probe_host_memory(int *to)
{
    const int *host = *(const int **)to;
    if (THREAD == 2)
        to[THREAD] = *host;
}

extern "C" __global__ void probe_behind_the_end(float *to)
{
    OARI_SHARED_MEMORY(float, part);
    part[THREAD] = 1;
    __syncthreads();
    to[THREAD] = part[THREAD];
}
