/* SPDX-License-Identifier: Apache-2.0 */
/* bench_op: the operations that `oarsong bench` times. */
#include "bench.h"

enum {
    WINDOW = 32, /* messages under way in a stream */
    TAG = 0      /* NCCL knows no other */
};

static const struct {
    const char *name, *csv;
} kinds[] = {
#define X(name, text, csv) { text, csv },
    BENCH_KIND_LIST(X)
#undef X
};

const char *bench_kind_name(bench_kind kind)
{
    return kinds[kind].name;
}

const char *bench_kind_csv(bench_kind kind)
{
    return kinds[kind].csv;
}

int bench_kind_folds(bench_kind kind)
{
    return kind == BENCH_ALL_REDUCE || kind == BENCH_REDUCE ||
           kind == BENCH_REDUCE_SCATTER;
}

int bench_kind_parts(bench_kind kind)
{
    return kind == BENCH_ALL_GATHER || kind == BENCH_REDUCE_SCATTER ||
           kind == BENCH_ALL_TO_ALL || kind == BENCH_GATHER ||
           kind == BENCH_SCATTER;
}

int bench_kind_rooted(bench_kind kind)
{
    return kind == BENCH_BROADCAST || kind == BENCH_REDUCE ||
           kind == BENCH_GATHER || kind == BENCH_SCATTER;
}

/* Broadcast is in place by nature. */
int bench_kind_in_place(bench_kind kind)
{
    return kind < BENCH_BARRIER && kind != BENCH_ALL_TO_ALL;
}

static double ops_in_one(const bench_plan *p)
{
    if (bench_kind_rooted(p->kind))
        return p->ranks;
    return p->kind == BENCH_P2P ? 2 : p->kind == BENCH_STREAM ? WINDOW : 1;
}

double bench_ops(const bench_point *at)
{
    return ops_in_one(at->p) * (double)at->row;
}

static int is_message(bench_kind kind)
{
    return kind == BENCH_P2P || kind == BENCH_STREAM;
}

int bench_takes_part(const bench_point *at)
{
    return !is_message(at->p->kind) || at->rank < 2;
}

/* ---- buffers ------------------------------------------------------------- */

static void *part_at(const bench_point *at, void *whole)
{
    size_t bytes = at->count * oar_dtype_size(at->p->dtype);

    return (unsigned char *)whole + (size_t)at->rank * bytes;
}

static void lay_parts(bench_point *at, size_t ranks)
{
    int small_in =
        at->p->kind == BENCH_ALL_GATHER || at->p->kind == BENCH_GATHER;
    oar_span *small = small_in ? &at->in : &at->out;
    oar_span *large = small_in ? &at->out : &at->in;

    large->count = at->count * ranks;
    if (at->p->kind == BENCH_ALL_TO_ALL)
        small->count = large->count;
    if (at->in_place)
        small->data = part_at(at, large->data);
}

void bench_lay_out(bench_point *at, size_t bytes)
{
    const bench_plan *p = at->p;
    size_t size = oar_dtype_size(p->dtype);
    size_t parts = bench_kind_parts(p->kind) ? (size_t)p->ranks : 1;

    at->count = bytes / size / parts;
    if (at->count == 0 && p->kind != BENCH_BARRIER && bytes != 0)
        at->count = 1;
    at->bytes = at->count * size * parts;
    at->in = oar_span_of(at->first, at->count, p->dtype);
    at->out = oar_span_of(at->second, at->count, p->dtype);
    at->in.device = at->out.device = at->device;
    if (parts > 1)
        lay_parts(at, parts);
    else if (at->in_place)
        at->in.data = at->out.data;
}

/* ---- operations ---------------------------------------------------------- */

static oar_span only_at(const bench_point *at, int root, oar_span span)
{
    if (at->rank != root)
        span.count = 0;
    return span;
}

/* In place is the root's only: the others have no larger buffer. */
static oar_status at_root(const bench_point *at, int root)
{
    oar_span in = at->in, out = at->out;

    switch (at->p->kind) {
    case BENCH_BROADCAST:
        return oar_broadcast(at->group, out, root, NULL, NULL);
    case BENCH_REDUCE:
        return oar_reduce(at->group, in, only_at(at, root, out), at->p->op,
                          root, NULL, NULL);
    case BENCH_GATHER:
        return oar_gather(at->group, in, only_at(at, root, out), root, NULL,
                          NULL);
    default:
        return oar_scatter(at->group, only_at(at, root, in), out, root, NULL,
                           NULL);
    }
}

static oar_status every_root(const bench_point *at)
{
    oar_status status = OAR_OK;

    for (int root = 0; root < at->p->ranks && status == OAR_OK; root++)
        status = at_root(at, root);
    return status;
}

static oar_status ping_pong(const bench_point *at)
{
    int first = at->rank == 0, peer = !at->rank;
    oar_status status = OAR_OK;

    if (first)
        status = oar_send(at->group, at->in, peer, TAG, NULL, NULL);
    if (status == OAR_OK)
        status = oar_recv(at->group, at->out, peer, TAG, NULL, NULL);
    if (status == OAR_OK && !first)
        status = oar_send(at->group, at->out, peer, TAG, NULL, NULL);
    return status;
}

/* A window of messages, and an empty one back. */
static oar_status stream(const bench_point *at)
{
    oar_span none = oar_span_of(NULL, 0, OAR_U8);
    oar_work *work[WINDOW] = { NULL };
    oar_status status = OAR_OK, end;

    for (int i = 0; i < WINDOW && status == OAR_OK; i++)
        status = at->rank == 0
                     ? oar_send(at->group, at->in, 1, TAG, NULL, &work[i])
                     : oar_recv(at->group, at->out, 0, TAG, NULL, &work[i]);
    end = oar_work_wait_all(WINDOW, work);
    for (int i = 0; i < WINDOW; i++)
        oar_work_release(work[i]);
    if (status != OAR_OK || end != OAR_OK)
        return status != OAR_OK ? status : end;
    return at->rank == 0 ? oar_recv(at->group, none, 1, TAG, NULL, NULL)
                         : oar_send(at->group, none, 0, TAG, NULL, NULL);
}

oar_status bench_operate(const bench_point *at)
{
    switch (at->p->kind) {
    case BENCH_ALL_REDUCE:
        return oar_all_reduce_into(at->group, at->in, at->out, at->p->op, NULL,
                                   NULL);
    case BENCH_ALL_GATHER:
        return oar_all_gather(at->group, at->in, at->out, NULL, NULL);
    case BENCH_REDUCE_SCATTER:
        return oar_reduce_scatter(at->group, at->in, at->out, at->p->op, NULL,
                                  NULL);
    case BENCH_ALL_TO_ALL:
        return oar_all_to_all(at->group, at->in, at->out, NULL, NULL);
    case BENCH_BARRIER: return oar_barrier(at->group, NULL, NULL);
    case BENCH_P2P: return bench_takes_part(at) ? ping_pong(at) : OAR_OK;
    case BENCH_STREAM: return bench_takes_part(at) ? stream(at) : OAR_OK;
    default: return every_root(at);
    }
}
