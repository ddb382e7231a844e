// SPDX-License-Identifier: Apache-2.0
/* embedding: rows of a table by index, and the sums of rows by index. Sums are
 * made without atomics, in the order of the picks: the picks are sorted by row
 * (radix sort, stable, 8 bits a pass), and one thread adds up all that goes to
 * an element. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/embedding_job.h"

/* ---- picking ------------------------------------------------------------- */

template <class U>
DEVICE void copy_row(char *to, const char *from, int64_t bytes)
{
    for (int64_t i = threadIdx.x % WARP; i < bytes / (int64_t)sizeof(U);
         i += WARP) {
        U x;

        if (from != NULL)
            x = ((const U *)from)[i];
        else
            memset(&x, 0, sizeof x);
        ((U *)to)[i] = x;
    }
}

extern "C" __global__ void
oari_pick_rows(const __grid_constant__ oari_pick_job job)
{
    int64_t pick =
        (int64_t)blockIdx.x * OARI_PICK_WARPS + (int64_t)(threadIdx.x / WARP);
    int64_t chosen, row;
    const char *from;
    char *to;

    if (pick >= job.picks)
        return;
    chosen = job.index[pick];
    row = chosen - job.first;
    if (row < 0 || row >= job.count)
        row = -1;
    if (threadIdx.x % WARP == 0) {
        if (chosen < 0 || chosen >= job.vocabulary)
            oari_index_report(job.check, OARI_INDEX_EMBEDDING, pick, chosen,
                              job.vocabulary);
        if (job.row != NULL)
            job.row[pick] = row;
    }
    from = row >= 0 ? job.table + row * job.bytes : NULL;
    to = job.to + pick * job.bytes;
    switch (job.unit) {
    case 16: copy_row<uint4>(to, from, job.bytes); break;
    case 8: copy_row<uint64_t>(to, from, job.bytes); break;
    case 4: copy_row<uint32_t>(to, from, job.bytes); break;
    case 2: copy_row<uint16_t>(to, from, job.bytes); break;
    default: copy_row<uint8_t>(to, from, job.bytes);
    }
}

extern "C" __global__ void
oari_positions(const __grid_constant__ oari_positions_job job)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < job.count; i += step)
        job.to[i] = i;
}

/* ---- sorting ------------------------------------------------------------- */

DEVICE uint32_t sort_key(const oari_sort_job &job, int64_t i)
{
    int64_t row;

    if (job.row == NULL)
        return job.key[i];
    row = job.row[i];
    return row >= 0 && row < job.rows ? (uint32_t)row : 0xffffffffu;
}

DEVICE int digit_of(const oari_sort_job &job, uint32_t key)
{
    return (int)(key >> job.shift) & (OARI_SORT_DIGITS - 1);
}

/* How many of each digit each block has. */
extern "C" __global__ void
oari_sort_count(const __grid_constant__ oari_sort_job job)
{
    __shared__ unsigned count[OARI_SORT_DIGITS];
    int64_t first = (int64_t)blockIdx.x * OARI_SORT_SHARE;
    int64_t end = first + OARI_SORT_SHARE;

    end = end < job.picks ? end : job.picks;
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x)
        atomicAdd(&count[digit_of(job, sort_key(job, i))], 1u);
    __syncthreads();
    job.count[(int64_t)threadIdx.x * job.blocks + blockIdx.x] =
        count[threadIdx.x];
}

/* One block; thread d has digit d: counts become first places. */
extern "C" __global__ void
oari_sort_scan(const __grid_constant__ oari_sort_job job)
{
    __shared__ unsigned total[OARI_SORT_DIGITS];
    uint32_t *mine = job.count + (int64_t)threadIdx.x * job.blocks;
    unsigned sum = 0, before = 0;

    for (int64_t b = 0; b < job.blocks; b++)
        sum += mine[b];
    total[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 0; d < (int)threadIdx.x; d++)
        before += total[d];
    for (int64_t b = 0; b < job.blocks; b++) {
        unsigned here = mine[b];

        mine[b] = before;
        before += here;
    }
}

enum { SORT_WARPS = OARI_SORT_THREADS / WARP };

/* The lanes of the warp whose digit is this lane's. Lanes without an element
 * have digit -1. */
DEVICE unsigned equals_of(int digit)
{
    unsigned same = ALL_LANES;

    for (int bit = 0; bit <= OARI_SORT_BITS; bit++) {
        int set = (digit >> bit) & 1;
        unsigned lanes = __ballot_sync(ALL_LANES, set);

        same &= set ? lanes : ~lanes;
    }
    return same;
}

/* Moves each element to its place: 256 at a time, in order. */
extern "C" __global__ void
oari_sort_move(const __grid_constant__ oari_sort_job job)
{
    __shared__ unsigned next[OARI_SORT_DIGITS];
    __shared__ unsigned found[SORT_WARPS][OARI_SORT_DIGITS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t first = (int64_t)blockIdx.x * OARI_SORT_SHARE;
    int64_t end = first + OARI_SORT_SHARE;

    end = end < job.picks ? end : job.picks;
    next[threadIdx.x] =
        job.count[(int64_t)threadIdx.x * job.blocks + blockIdx.x];
    for (; first < end; first += OARI_SORT_THREADS) {
        int64_t i = first + threadIdx.x;
        uint32_t key = i < end ? sort_key(job, i) : 0;
        int digit = i < end ? digit_of(job, key) : -1;
        unsigned same = equals_of(digit), before;

        for (int w = 0; w < SORT_WARPS; w++)
            found[w][threadIdx.x] = 0;
        __syncthreads();
        before = (unsigned)__popc(same & ((1u << lane) - 1u));
        if (digit >= 0 && before == 0)
            found[warp][digit] = (unsigned)__popc(same);
        __syncthreads();
        if (digit >= 0) {
            unsigned at = next[digit] + before;

            for (int w = 0; w < warp; w++)
                at += found[w][digit];
            job.to_key[at] = key;
            job.to_place[at] = job.place != NULL ? job.place[i] : (uint32_t)i;
        }
        __syncthreads();
        for (int w = 0; w < SORT_WARPS; w++)
            next[threadIdx.x] += found[w][threadIdx.x];
        __syncthreads();
    }
}

/* ---- adding -------------------------------------------------------------- */

/* A warp for each pick that is the first of its row; columns by blockIdx.y. */
template <class T> DEVICE void add_rows(const oari_add_rows_job &job)
{
    typedef typename work_of<T>::type W;
    int64_t first =
        (int64_t)blockIdx.x * OARI_PICK_WARPS + (int64_t)(threadIdx.x / WARP);
    uint32_t key;

    if (first >= job.picks)
        return;
    key = job.key[first];
    if ((int64_t)key >= job.count || (int64_t)key == job.skip ||
        (first > 0 && job.key[first - 1] == key))
        return;
    for (int64_t column = (int64_t)blockIdx.y * WARP + threadIdx.x % WARP;
         column < job.width; column += (int64_t)gridDim.y * WARP) {
        int64_t at = (int64_t)key * job.width + column;
        W sum = load_either<T>(job.to, job.is_wide, at);

        for (int64_t i = first; i < job.picks && job.key[i] == key; i++)
            sum += widen(
                ((const T *)
                     job.grad)[(int64_t)job.place[i] * job.width + column]);
        store_either<T>(job.to, job.is_wide, at, sum);
    }
}

OARI_KERNELS(oari_add_rows, add_rows, oari_add_rows_job)
