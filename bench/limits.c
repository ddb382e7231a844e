/* SPDX-License-Identifier: Apache-2.0 */
/* limits: what the bare machine needs for the work of each collective, with N
 * processes over shared memory and nothing of the library between them.
 *
 *   allreduce          meet, each sums its slice of all buffers into all, meet
 *   reduce             the same into the root's
 *   reduce_scatter     meet, each sums its part of all buffers into its own
 *   allgather          meet, each copies everybody's part, meet
 *   alltoall           the same with other parts
 *   broadcast          meet, each copies the root's buffer, meet; every root
 *   gather, scatter    meet, each copies its part to or from the root's, meet
 *   p2p                a flag and a copy, there and back, one way
 *   barrier            each stores a flag and waits for the others'
 *
 * Up to 1 KiB data and flag travel together in one line each, two of them in
 * turn, so that one meeting is enough. With more processes than cores a waiting
 * one yields. Prints the csv of `oarsong bench`, with "floor" for the peer.
 *
 *   limits [--ranks N] [--sizes 8,1024,...] [--budget-ms 200]
 */
#include "limits.h"

enum { LINE_BYTES = 1024, PIECE = 2048 };

typedef struct line {
    _Alignas(128) _Atomic unsigned stamp;
    float data[LINE_BYTES / 4];
} line;

struct floor_memory {
    line (*line)[2]; /* shared, by rank */
    unsigned exchange;
    float *buffer[MAX_RANKS]; /* shared, one for each rank */
    float *mine;              /* private */
};

/* Shows one line and waits for the others'; which of the two was used. */
static unsigned exchange(bare *b, const void *data, size_t bytes)
{
    struct floor_memory *m = b->memory;
    unsigned v = ++m->exchange;
    line *shown = &m->line[b->rank][v & 1];

    memcpy(shown->data, data, bytes);
    atomic_store_explicit(&shown->stamp, v, memory_order_release);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            await(b, &m->line[r][v & 1].stamp, v);
    return v & 1;
}

static int is_small(const bare *b)
{
    return b->bytes <= LINE_BYTES;
}

/* ---- sums ---------------------------------------------------------------- */

WIDE static void sum_both(float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i] + y[i];
        x[i] = v;
        y[i] = v;
    }
}

WIDE static void sum_to(float *restrict to, const float *restrict x,
                        const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = x[i] + y[i];
}

/* The sum over all ranks' elements from `at` on, in pieces that stay in the
 * first cache. */
static void sum_all(const bare *b, float *const *from, size_t at, float *to,
                    size_t n)
{
    for (size_t done = 0; done < n; done += PIECE) {
        size_t m = n - done < PIECE ? n - done : PIECE;
        const float *first = from[0] + at + done;
        if (b->ranks == 1)
            memcpy(to + done, first, m * sizeof *to);
        else
            sum_to(to + done, first, from[1] + at + done, m);
        for (int r = 2; r < b->ranks; r++)
            add_to(to + done, from[r] + at + done, m);
    }
}

/* Shows a line and sums part of all ranks'. */
static void sum_lines(bare *b, size_t at, size_t n)
{
    struct floor_memory *m = b->memory;
    float *from[MAX_RANKS];
    unsigned which = exchange(b, m->buffer[b->rank], b->bytes);

    for (int r = 0; r < b->ranks; r++)
        from[r] = m->line[r][which].data;
    sum_all(b, from, at, m->mine, n);
}

static void sum_slice(const bare *b, float *const *buffer, size_t count)
{
    size_t at = slice_at(b, count, b->rank);
    size_t end = slice_at(b, count, b->rank + 1);
    float sum[PIECE];

    if (b->ranks == 2) {
        sum_both(buffer[0] + at, buffer[1] + at, end - at);
        return;
    }
    for (; at < end; at += PIECE) {
        size_t n = end - at < PIECE ? end - at : PIECE;
        sum_all(b, buffer, at, sum, n);
        for (int r = 0; r < b->ranks; r++)
            memcpy(buffer[r] + at, sum, n * sizeof *sum);
    }
}

static void all_reduce(bare *b)
{
    if (is_small(b)) {
        sum_lines(b, 0, b->count);
        return;
    }
    meet(b);
    sum_slice(b, b->memory->buffer, b->count);
    meet(b);
}

/* Into the input of the root, which no other rank reads at that place. */
static void reduce(bare *b)
{
    size_t at = slice_at(b, b->count, b->rank);
    size_t end = slice_at(b, b->count, b->rank + 1);

    for (int root = 0; root < b->ranks; root++) {
        if (is_small(b)) {
            sum_lines(b, 0, b->rank == root ? b->count : 0);
            continue;
        }
        meet(b);
        for (int r = 0; r < b->ranks; r++)
            if (r != root)
                add_to(b->memory->buffer[root] + at, b->memory->buffer[r] + at,
                       end - at);
        meet(b);
    }
}

static void reduce_scatter(bare *b)
{
    size_t at = (size_t)b->rank * b->part;

    if (is_small(b)) {
        sum_lines(b, at, b->part);
        return;
    }
    meet(b);
    sum_all(b, b->memory->buffer, at, b->memory->mine, b->part);
    meet(b);
}

/* ---- copies -------------------------------------------------------------- */

/* Each part from its rank, at 0 or, when parts are dealt out, at ours. */
static void copy_parts(bare *b, size_t at, size_t shown)
{
    struct floor_memory *m = b->memory;
    size_t bytes = b->part * sizeof(float);
    int small = is_small(b);
    unsigned which = 0;

    if (small)
        which = exchange(b, m->buffer[b->rank], shown);
    else
        meet(b);
    for (int i = 0; i < b->ranks; i++) {
        int r = (b->rank + i) % b->ranks; /* not all from one at once */
        const float *from = small ? m->line[r][which].data : m->buffer[r];
        memcpy(m->mine + (size_t)r * b->part, from + at, bytes);
    }
    if (!small)
        meet(b);
}

static void all_gather(bare *b)
{
    copy_parts(b, 0, b->part * sizeof(float));
}

static void all_to_all(bare *b)
{
    copy_parts(b, (size_t)b->rank * b->part, b->bytes);
}

/* Into the buffer that is sent when it is this rank's turn: as with one buffer
 * a rank, what is copied was written by another core. */
static void broadcast(bare *b)
{
    struct floor_memory *m = b->memory;

    for (int root = 0; root < b->ranks; root++) {
        if (is_small(b)) {
            unsigned which =
                exchange(b, m->buffer[root], b->rank == root ? b->bytes : 0);
            if (b->rank != root)
                memcpy(m->mine, m->line[root][which].data, b->bytes);
            continue;
        }
        meet(b);
        if (b->rank != root)
            memcpy(m->buffer[b->rank], m->buffer[root], b->bytes);
        meet(b);
    }
}

static void gather(bare *b)
{
    struct floor_memory *m = b->memory;
    size_t bytes = b->part * sizeof(float);

    for (int root = 0; root < b->ranks; root++) {
        if (is_small(b)) {
            unsigned which = exchange(b, m->mine, bytes);
            for (int r = 0; b->rank == root && r < b->ranks; r++)
                memcpy(m->mine + (size_t)r * b->part, m->line[r][which].data,
                       bytes);
            continue;
        }
        meet(b);
        memcpy(m->buffer[root] + (size_t)b->rank * b->part, m->mine, bytes);
        meet(b);
    }
}

static void scatter(bare *b)
{
    struct floor_memory *m = b->memory;
    size_t bytes = b->part * sizeof(float), at = (size_t)b->rank * b->part;

    for (int root = 0; root < b->ranks; root++) {
        if (is_small(b)) {
            unsigned which =
                exchange(b, m->buffer[root], b->rank == root ? b->bytes : 0);
            memcpy(m->mine, m->line[root][which].data + at, bytes);
            continue;
        }
        meet(b);
        memcpy(m->mine, m->buffer[root] + at, bytes);
        meet(b);
    }
}

/* One way is a flag and a copy. */
static void ping_pong(bare *b)
{
    struct floor_memory *m = b->memory;
    unsigned v = ++b->turn;
    int peer = !b->rank;

    if (b->rank > 1)
        return;
    if (b->rank == 0)
        atomic_store_explicit(b->a->step[0], v, memory_order_release);
    await(b, b->a->step[peer], v);
    memcpy(b->rank == 1 ? m->buffer[1] : m->mine, m->buffer[peer], b->bytes);
    if (b->rank == 1)
        atomic_store_explicit(b->a->step[1], v, memory_order_release);
}

/* ---- all of them --------------------------------------------------------- */

static const floor_op barrier_op = { "barrier", meet, 0, 1 };
static const floor_op floors[] = {
    { "allreduce", all_reduce, 0, 1 },
    { "reduce", reduce, 0, 0 },
    { "reduce_scatter", reduce_scatter, 1, 1 },
    { "allgather", all_gather, 1, 1 },
    { "alltoall", all_to_all, 1, 1 },
    { "broadcast", broadcast, 0, 0 },
    { "gather", gather, 1, 0 },
    { "scatter", scatter, 1, 0 },
    { "p2p", ping_pong, 0, 2 }, /* the last */
};

static oar_status run_rank(oar_group *group, void *arg)
{
    const settings *s = arg;
    struct floor_memory m = *s->memory;
    size_t ops = sizeof floors / sizeof *floors - (s->ranks != 2);
    bare b = { .a = s->area,
               .rank = oar_group_rank(group),
               .ranks = s->ranks,
               .memory = &m };

    m.mine = take_private(s->largest + 4096);
    memset(m.buffer[b.rank], 0, s->largest + 4096);
    pin(&b);
    meet(&b);
    time_one(&b, &barrier_op, s->budget_ms);
    for (int i = 0; i < s->sizes; i++)
        time_size(&b, s->size[i], floors, ops, s->budget_ms);
    free(m.mine);
    return OAR_OK;
}

int main(int argc, char **argv)
{
    struct floor_memory memory = { .exchange = 0 };
    settings s;

    read_settings(&s, argc, argv);
    memory.line = map_shared(MAX_RANKS * sizeof *memory.line);
    for (int r = 0; r < s.ranks; r++)
        memory.buffer[r] = map_shared(s.largest + 4096);
    s.memory = &memory;
    return run_ranks(&s, run_rank);
}
