// SPDX-License-Identifier: Apache-2.0
/* embedding: rows of a table by index, and the sums of rows by index. Sums are
 * made without atomics, in the order of the picks: the picks are sorted by row
 * (radix sort, stable, 8 bits a pass), the first of each row is noted, and one
 * thread adds up all that goes to an element. */
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
    int64_t first = (int64_t)blockIdx.x * job.share;
    int64_t end = first + job.share;

    end = end < job.picks ? end : job.picks;
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x)
        atomicAdd(&count[digit_of(job, sort_key(job, i))], 1u);
    __syncthreads();
    job.count[(int64_t)blockIdx.x * OARI_SORT_DIGITS + threadIdx.x] =
        count[threadIdx.x];
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

/* Where this block's first element of digit threadIdx.x goes: behind all smaller
 * digits, and behind this digit of the blocks before. */
DEVICE unsigned first_place(const oari_sort_job &job, unsigned *room)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    unsigned all = 0, before = 0, sum;

#pragma unroll 16
    for (int64_t b = 0; b < job.blocks; b++) {
        unsigned here = job.count[b * OARI_SORT_DIGITS + threadIdx.x];

        all += here;
        before += b < (int64_t)blockIdx.x ? here : 0;
    }
    sum = all; /* of the digits up to this one */
    for (int apart = 1; apart < WARP; apart *= 2) {
        unsigned other = __shfl_up_sync(ALL_LANES, sum, (unsigned)apart);

        sum += lane >= apart ? other : 0;
    }
    if (lane == WARP - 1)
        room[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        sum += room[w];
    return sum - all + before;
}

/* Moves each element to its place: 256 at a time, in order. */
extern "C" __global__ void
oari_sort_move(const __grid_constant__ oari_sort_job job)
{
    __shared__ unsigned next[OARI_SORT_DIGITS];
    __shared__ unsigned found[SORT_WARPS][OARI_SORT_DIGITS];
    __shared__ unsigned room[SORT_WARPS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t first = (int64_t)blockIdx.x * job.share;
    int64_t end = first + job.share;

    end = end < job.picks ? end : job.picks;
    next[threadIdx.x] = first_place(job, room);
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

/* start[row] = the first of the sorted picks of a row, and its place. */
extern "C" __global__ void
oari_find_starts(const __grid_constant__ oari_add_rows_job job)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < job.picks && (int64_t)job.key[i] < job.count &&
        (i == 0 || job.key[i - 1] != job.key[i]))
        job.start[job.key[i]] = make_int2((int)i, (int)job.place[i]);
}

enum { AHEAD = 4 }; /* rows that are read before they are added */

/* Adds the picks from `first` on that are of a row, V columns from `at` on; the
 * place of the first is known. */
template <class T, int V>
DEVICE void add_picks(const oari_add_rows_job &job, int2 start, uint32_t row,
                      int64_t at, typename work_of<T>::type *sum)
{
    const int lane = (int)threadIdx.x % WARP;
    const bool mine = at < job.width;
    int64_t first = (int64_t)start.x + 1;
    pack<T, V> part[AHEAD] = {};
    int count = WARP;

    if (mine)
        part[0] = load_pack<T, V>((const T *)job.grad +
                                  (int64_t)start.y * job.width + at);
    for (bool begins = true; count == WARP; first += WARP) {
        int64_t i = first + lane;
        bool is = i < job.picks && job.key[i] == row;
        uint32_t place = i < job.picks ? job.place[i] : 0;

        count = __popc(__ballot_sync(ALL_LANES, is));
        if (begins && mine)
            for (int v = 0; v < V; v++)
                sum[v] += widen(part[0].x[v]);
        begins = false;
        for (int j = 0; j < count; j += AHEAD) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int64_t from = __shfl_sync(ALL_LANES, place, (j + k) % WARP);

                if (j + k < count && mine)
                    part[k] = load_pack<T, V>((const T *)job.grad +
                                              from * job.width + at);
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (j + k < count && mine)
                    for (int v = 0; v < V; v++)
                        sum[v] += widen(part[k].x[v]);
        }
    }
}

/* A warp for each row; columns by blockIdx.y. */
template <class T, int V> DEVICE void add_row(const oari_add_rows_job &job)
{
    typedef typename work_of<T>::type W;
    int64_t row =
        (int64_t)blockIdx.x * OARI_PICK_WARPS + (int64_t)(threadIdx.x / WARP);
    int64_t at =
        ((int64_t)blockIdx.y * WARP + (int64_t)(threadIdx.x % WARP)) * V;
    int2 start;
    W sum[V];

    if (row >= job.count)
        return;
    start = job.start[row];
    if (row == job.skip)
        start.x = -1;
    if (job.add && start.x < 0)
        return;
    for (int v = 0; v < V; v++)
        sum[v] = 0;
    if (job.add && at < job.width)
        load_numbers<T, V>(job.to, job.is_wide, row * job.width + at, sum);
    if (start.x >= 0)
        add_picks<T, V>(job, start, (uint32_t)row, at, sum);
    if (at < job.width)
        store_numbers<T, V>(job.to, job.is_wide, row * job.width + at, sum);
}

template <class T> DEVICE void add_rows(const oari_add_rows_job &job)
{
    if (job.is_packed)
        add_row<T, in_pack<T>::count>(job);
    else
        add_row<T, 1>(job);
}

OARI_KERNELS(oari_add_rows, add_rows, oari_add_rows_job)
