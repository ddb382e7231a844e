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

#pragma unroll 32
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

DEVICE void read_pick(const oari_sort_job &job, int64_t i, int64_t end,
                      uint32_t *key, uint32_t *place)
{
    if (i >= end)
        return;
    *key = sort_key(job, i);
    *place = job.place != NULL ? job.place[i] : (uint32_t)i;
}

/* Moves each element to its place: 256 at a time, in order; the next are read
 * ahead. */
extern "C" __global__ void
oari_sort_move(const __grid_constant__ oari_sort_job job)
{
    __shared__ unsigned next[OARI_SORT_DIGITS];
    __shared__ unsigned found[SORT_WARPS][OARI_SORT_DIGITS];
    __shared__ unsigned room[SORT_WARPS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t first = (int64_t)blockIdx.x * job.share;
    int64_t end = first + job.share;
    uint32_t next_key = 0, next_place = 0;

    end = end < job.picks ? end : job.picks;
    read_pick(job, first + threadIdx.x, end, &next_key, &next_place);
    next[threadIdx.x] = first_place(job, room);
    for (; first < end; first += OARI_SORT_THREADS) {
        int64_t i = first + threadIdx.x, later = i + OARI_SORT_THREADS;
        uint32_t key = next_key, place = next_place;
        int digit = i < end ? digit_of(job, key) : -1;
        unsigned same = equals_of(digit), before;

        read_pick(job, later, end, &next_key, &next_place);
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
            job.to_place[at] = place;
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

/* rows that are read before they are added, and packs of a lane of each */
enum { AHEAD = 4, PARTS = OARI_ADD_PARTS };

/* A lane's packs of a row of the gradient, PARTS at most: those of the warp's
 * columns, from `column` on. */
template <class T, int V> struct row_packs {
    pack<T, V> x[PARTS];
};

#define EACH_PACK(i, at, column)                                               \
    _Pragma("unroll") for (int i = 0; i < PARTS;                               \
                           i++) if (int64_t at =                               \
                                        (column) +                             \
                                        (i * WARP + (int)threadIdx.x % WARP) * \
                                            V;                                 \
                                    at < job.width)

template <class T, int V>
DEVICE void load_row(const oari_add_rows_job &job, int64_t place,
                     int64_t column, row_packs<T, V> *to)
{
    EACH_PACK(i, at, column)
    to->x[i] = load_pack<T, V>((const T *)job.grad + place * job.width + at);
}

template <class T, int V>
DEVICE void add_packs(const row_packs<T, V> &from,
                      typename work_of<T>::type (&sum)[PARTS][V])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        typename work_of<T>::type x[V];

        widen_all(from.x[i], x);
        for (int v = 0; v < V; v++)
            sum[i][v] += x[v];
    }
}

/* What is read of a row of the table before it is its turn: its first pick, and a
 * lane's of the 32 after that. */
template <class T, int V> struct first_picks {
    int2 start;
    row_packs<T, V> row;
    uint32_t key, place;
};

DEVICE int2 start_of(const oari_add_rows_job &job, int64_t row)
{
    return row < job.count && row != job.skip ? job.start[row]
                                              : make_int2(-1, -1);
}

/* A lane's of the picks from `first` on. */
template <class T, int V>
DEVICE void read_picks(const oari_add_rows_job &job, int64_t first,
                       first_picks<T, V> *p)
{
    int64_t i = first + (int64_t)(threadIdx.x % WARP);

    p->key = i < job.picks ? job.key[i] : 0xffffffffu;
    p->place = i < job.picks ? job.place[i] : 0;
}

template <class T, int V>
DEVICE void read_first(const oari_add_rows_job &job, int2 start, int64_t column,
                       first_picks<T, V> *p)
{
    p->start = start;
    if (start.x < 0)
        return;
    load_row(job, start.y, column, &p->row);
    read_picks(job, (int64_t)start.x + 1, p);
}

/* Adds all picks of a row in their order. */
template <class T, int V>
DEVICE void add_picks(const oari_add_rows_job &job, first_picks<T, V> p,
                      uint32_t row, int64_t column,
                      typename work_of<T>::type (&sum)[PARTS][V])
{
    int64_t first = (int64_t)p.start.x + 1;
    int count = WARP;

    add_packs(p.row, sum);
    while (count == WARP) {
        count = __popc(__ballot_sync(ALL_LANES, p.key == row));
        for (int j = 0; j < count; j += AHEAD) {
            row_packs<T, V> part[AHEAD] = {};

#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int64_t from = __shfl_sync(ALL_LANES, p.place, (j + k) % WARP);

                if (j + k < count)
                    load_row(job, from, column, &part[k]);
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (j + k < count)
                    add_packs(part[k], sum);
        }
        first += WARP;
        if (count == WARP)
            read_picks(job, first, &p);
    }
}

/* A warp takes every row that is a multiple of all warps after its first; columns
 * by blockIdx.y. While it adds one row up, the first picks of the next are read,
 * and where those of the one after begin. */
template <class T, int V> DEVICE void add_row(const oari_add_rows_job &job)
{
    const int64_t step = (int64_t)gridDim.x * OARI_PICK_WARPS;
    const int64_t column = (int64_t)blockIdx.y * PARTS * WARP * V;
    int64_t row =
        (int64_t)blockIdx.x * OARI_PICK_WARPS + (int64_t)(threadIdx.x / WARP);
    int2 start = start_of(job, row + step);
    first_picks<T, V> next = {};

    read_first(job, start_of(job, row), column, &next);
    for (; row < job.count; row += step) {
        first_picks<T, V> p = next;
        typename work_of<T>::type sum[PARTS][V] = {};

        read_first(job, start, column, &next);
        start = start_of(job, row + 2 * step);
        if (job.add && p.start.x < 0)
            continue;
        if (job.add)
            EACH_PACK(i, at, column)
        load_numbers<T, V>(job.to, job.is_wide, row * job.width + at, sum[i]);
        if (p.start.x >= 0)
            add_picks<T, V>(job, p, (uint32_t)row, column, sum);
        EACH_PACK(i, at, column)
        store_numbers<T, V>(job.to, job.is_wide, row * job.width + at, sum[i]);
    }
}

template <class T> DEVICE void add_rows(const oari_add_rows_job &job)
{
    if (job.is_packed)
        add_row<T, in_pack<T>::count>(job);
    else
        add_row<T, 1>(job);
}

OARI_KERNELS_BOUND(OARI_PICK_WARPS *WARP, 2, oari_add_rows, add_rows,
                   oari_add_rows_job)
