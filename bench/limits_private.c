/* SPDX-License-Identifier: Apache-2.0 */
/* limits_private: what bench/limits measures, where a rank's memory is its own.
 *
 *   sums      go through shared chunks, copied in and out
 *   copies    are made by the system from process to process
 *             (process_vm_readv); left out where it refuses
 *
 * Up to 1 KiB it makes no difference: see bench/limits.
 *
 *   limits_private [--ranks N] [--sizes 65536,...] [--budget-ms 200]
 */
#include "limits.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHUNK_BYTES = 256 << 10 };

/* Shared by all processes. */
typedef struct shared_area {
    pid_t pid[MAX_RANKS];
    float *in[MAX_RANKS], *out[MAX_RANKS]; /* as each rank sees its own */
    _Atomic int refused;                   /* to read another process */
    _Alignas(4096) unsigned char chunk[MAX_RANKS][2][CHUNK_BYTES];
} shared_area;

struct floor_memory {
    shared_area *a;
    float *mine, *in; /* private */
};

/* ---- sums, through shared chunks ----------------------------------------- */

/* Each copies what the others sum of this chunk to where they see it, sums its
 * own slice of all, shows it, and copies the others' back. Chunks are used in
 * turn, so that nobody waits before filling the next. */
static void staged_chunk(bare *b, size_t at, size_t n, int turn)
{
    shared_area *a = b->memory->a;
    float *own = b->memory->mine + at,
          *shown = (float *)a->chunk[b->rank][turn];
    size_t start = slice_at(b, n, b->rank), end = slice_at(b, n, b->rank + 1);

    memcpy(shown, own, start * sizeof *own);
    memcpy(shown + end, own + end, (n - end) * sizeof *own);
    meet(b);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            add_to(own + start, (float *)a->chunk[r][turn] + start,
                   end - start);
    memcpy(shown + start, own + start, (end - start) * sizeof *own);
    meet(b);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            memcpy(own + slice_at(b, n, r),
                   (float *)a->chunk[r][turn] + slice_at(b, n, r),
                   (slice_at(b, n, r + 1) - slice_at(b, n, r)) * sizeof *own);
}

static void all_reduce(bare *b)
{
    size_t step = CHUNK_BYTES / sizeof(float);
    int turn = 0;

    for (size_t at = 0; at < b->count; at += step, turn ^= 1)
        staged_chunk(b, at, b->count - at < step ? b->count - at : step, turn);
}

/* Every chunk has as much of each rank's part. */
static void reduce_scatter(bare *b)
{
    struct floor_memory *m = b->memory;
    size_t step = CHUNK_BYTES / sizeof(float) / (size_t)b->ranks;
    int turn = 0;

    for (size_t at = 0; at < b->part; at += step, turn ^= 1) {
        size_t n = b->part - at < step ? b->part - at : step;
        const float *own = m->in + (size_t)b->rank * b->part + at;

        for (int r = 0; r < b->ranks; r++)
            if (r != b->rank)
                memcpy((float *)m->a->chunk[b->rank][turn] + (size_t)r * step,
                       m->in + (size_t)r * b->part + at, n * sizeof(float));
        meet(b);
        memcpy(m->mine + at, own, n * sizeof(float));
        for (int r = 0; r < b->ranks; r++)
            if (r != b->rank)
                add_to(m->mine + at,
                       (float *)m->a->chunk[r][turn] + (size_t)b->rank * step,
                       n);
    }
}

static void reduce(bare *b)
{
    struct floor_memory *m = b->memory;
    size_t step = CHUNK_BYTES / sizeof(float);
    int turn = 0;

    for (int root = 0; root < b->ranks; root++)
        for (size_t at = 0; at < b->count; at += step, turn ^= 1) {
            size_t n = b->count - at < step ? b->count - at : step;

            if (b->rank != root)
                memcpy(m->a->chunk[b->rank][turn], m->in + at,
                       n * sizeof(float));
            meet(b);
            if (b->rank != root)
                continue;
            memcpy(m->mine + at, m->in + at, n * sizeof(float));
            for (int r = 0; r < b->ranks; r++)
                if (r != root)
                    add_to(m->mine + at, (float *)m->a->chunk[r][turn], n);
        }
}

/* ---- copies, by the system ----------------------------------------------- */

static void read_from(bare *b, int peer, const float *at, float *to,
                      size_t bytes)
{
    struct iovec here = { to, bytes };
    struct iovec there = { (void *)(uintptr_t)at, bytes };

    if (process_vm_readv(b->memory->a->pid[peer], &here, 1, &there, 1, 0) !=
        (ssize_t)bytes)
        atomic_store(&b->memory->a->refused, 1);
}

static void write_to(bare *b, int peer, float *at, float *from, size_t bytes)
{
    struct iovec here = { from, bytes }, there = { at, bytes };

    if (process_vm_writev(b->memory->a->pid[peer], &here, 1, &there, 1, 0) !=
        (ssize_t)bytes)
        atomic_store(&b->memory->a->refused, 1);
}

static void read_parts(bare *b, size_t at)
{
    struct floor_memory *m = b->memory;
    size_t bytes = b->part * sizeof(float);

    meet(b);
    for (int i = 0; i < b->ranks; i++) {
        int r = (b->rank + i) % b->ranks;
        float *to = m->mine + (size_t)r * b->part;

        if (r == b->rank)
            memcpy(to, m->in + at, bytes);
        else
            read_from(b, r, m->a->in[r] + at, to, bytes);
    }
    meet(b);
}

static void all_gather(bare *b)
{
    read_parts(b, 0);
}

static void all_to_all(bare *b)
{
    read_parts(b, (size_t)b->rank * b->part);
}

static void broadcast(bare *b)
{
    struct floor_memory *m = b->memory;

    for (int root = 0; root < b->ranks; root++) {
        meet(b);
        if (b->rank != root)
            read_from(b, root, m->a->in[root], m->in, b->bytes);
        meet(b);
    }
}

static void gather(bare *b)
{
    struct floor_memory *m = b->memory;
    size_t bytes = b->part * sizeof(float), at = (size_t)b->rank * b->part;

    for (int root = 0; root < b->ranks; root++) {
        meet(b);
        if (b->rank == root)
            memcpy(m->mine + at, m->in, bytes);
        else
            write_to(b, root, m->a->out[root] + at, m->in, bytes);
        meet(b);
    }
}

static void scatter(bare *b)
{
    struct floor_memory *m = b->memory;
    size_t bytes = b->part * sizeof(float), at = (size_t)b->rank * b->part;

    for (int root = 0; root < b->ranks; root++) {
        meet(b);
        if (b->rank == root)
            memcpy(m->mine, m->in + at, bytes);
        else
            read_from(b, root, m->a->in[root] + at, m->mine, bytes);
        meet(b);
    }
}

/* One way is a flag and a copy. */
static void ping_pong(bare *b)
{
    struct floor_memory *m = b->memory;
    unsigned v = ++b->turn;
    int peer = !b->rank;

    if (b->rank == 0)
        atomic_store_explicit(b->a->step[0], v, memory_order_release);
    await(b, b->a->step[peer], v);
    read_from(b, peer, b->rank == 1 ? m->a->in[0] : m->a->out[1], m->mine,
              b->bytes);
    if (b->rank == 1)
        atomic_store_explicit(b->a->step[1], v, memory_order_release);
}

/* ---- all of them --------------------------------------------------------- */

static const floor_op sums[] = {
    { "allreduce-private", all_reduce, 0, 1 },
    { "reduce-private", reduce, 0, 0 },
    { "reduce_scatter-private", reduce_scatter, 1, 1 },
};
static const floor_op copies[] = {
    { "allgather-private", all_gather, 1, 1 },
    { "alltoall-private", all_to_all, 1, 1 },
    { "broadcast-private", broadcast, 0, 0 },
    { "gather-private", gather, 1, 0 },
    { "scatter-private", scatter, 1, 0 },
    { "p2p-private", ping_pong, 0, 2 }, /* the last */
};

static oar_status run_rank(oar_group *group, void *arg)
{
    const settings *s = arg;
    struct floor_memory m = *s->memory;
    size_t read = sizeof copies / sizeof *copies - (s->ranks != 2);
    bare b = { .a = s->area,
               .rank = oar_group_rank(group),
               .ranks = s->ranks,
               .memory = &m };
    int next = (b.rank + 1) % b.ranks;

    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    m.mine = take_private(s->largest + 4096);
    m.in = take_private(s->largest + 4096);
    m.a->pid[b.rank] = getpid();
    m.a->in[b.rank] = m.in;
    m.a->out[b.rank] = m.mine;
    pin(&b);
    meet(&b);
    read_from(&b, next, m.a->in[next], m.mine, 8);
    meet(&b);
    if (atomic_load(&m.a->refused))
        read = 0;
    for (int i = 0; i < s->sizes; i++) {
        time_size(&b, s->size[i], sums, sizeof sums / sizeof *sums,
                  s->budget_ms);
        time_size(&b, s->size[i], copies, read, s->budget_ms);
    }
    free(m.mine);
    free(m.in);
    return OAR_OK;
}

int main(int argc, char **argv)
{
    struct floor_memory memory = { .mine = NULL };
    settings s;

    read_settings(&s, argc, argv);
    memory.a = map_shared(sizeof *memory.a);
    s.memory = &memory;
    return run_ranks(&s, run_rank);
}
