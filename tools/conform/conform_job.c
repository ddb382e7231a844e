/* SPDX-License-Identifier: Apache-2.0 */
/* conform_job: one collective with its buffers, from the layout to the
 * comparison. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

/* How many elements a buffer has: none, count, this rank's part, all parts. */
typedef enum extent { NONE, WHOLE, PART, ALL } extent;

typedef struct job_shape {
    extent in, out;
    int rooted; /* 1: the larger buffer is the root's only */
    int folds, ragged, shared_result;
} job_shape;

static const job_shape shapes[KINDS] = {
    [K_BROADCAST] = { NONE, WHOLE, .rooted = 1, .shared_result = 1 },
    [K_ALL_REDUCE] = { WHOLE, WHOLE, .folds = 1, .shared_result = 1 },
    [K_REDUCE] = { WHOLE, WHOLE, .rooted = 1, .folds = 1 },
    [K_GATHER] = { PART, ALL, .rooted = 1 },
    [K_SCATTER] = { ALL, PART, .rooted = 1 },
    [K_ALL_GATHER] = { PART, ALL, .shared_result = 1 },
    [K_REDUCE_SCATTER] = { ALL, PART, .folds = 1 },
    [K_ALL_TO_ALL] = { ALL, ALL, .ragged = 0 },
    [K_GATHER_V] = { PART, ALL, .rooted = 1, .ragged = 1 },
    [K_SCATTER_V] = { ALL, PART, .rooted = 1, .ragged = 1 },
    [K_ALL_GATHER_V] = { PART, ALL, .ragged = 1, .shared_result = 1 },
    [K_REDUCE_SCATTER_V] = { ALL, PART, .folds = 1, .ragged = 1 },
    [K_ALL_TO_ALL_V] = { ALL, ALL, .ragged = 1 },
};

int kind_reduces(conform_kind k)
{
    return shapes[k].folds;
}

int kind_rooted(conform_kind k)
{
    return shapes[k].rooted || k == K_BROADCAST_BYTES || k == K_GATHER_BYTES ||
           k == K_SCATTER_BYTES;
}

int kind_ragged(conform_kind k)
{
    return shapes[k].ragged;
}

int kind_can_be_in_place(conform_kind k)
{
    return shapes[k].in != NONE &&
           !(shapes[k].in == ALL && shapes[k].out == ALL);
}

static int is_all_to_all(const conform_job *j)
{
    return j->t.kind == K_ALL_TO_ALL || j->t.kind == K_ALL_TO_ALL_V;
}

/* ---- layout -------------------------------------------------------------- */

/* Elements that rank `from` has for rank `to`; where only one of them matters
 * it is the part of that one. */
static size_t part_of(const conform_job *j, int from, int to)
{
    size_t count = j->t.count;

    if (!shapes[j->t.kind].ragged || count == 0)
        return count;
    if (!is_all_to_all(j))
        from = 0;
    return (from + to) % 3 == 1 ? 0 : count + (size_t)(from + 2 * to);
}

static size_t offset_of(const conform_job *j, int from, int to)
{
    size_t sum = 0;

    for (int r = 0; r < to; r++)
        sum += part_of(j, from, r);
    return sum;
}

static void set_counts(conform_job *j)
{
    for (int r = 0; r < j->size; r++) {
        j->in_counts[r] = part_of(j, j->rank, r);
        j->out_counts[r] =
            is_all_to_all(j) ? part_of(j, r, j->rank) : part_of(j, j->rank, r);
    }
}

static size_t total(const conform_job *j, const size_t *counts)
{
    size_t sum = 0;

    for (int r = 0; r < j->size; r++)
        sum += counts[r];
    return sum;
}

static size_t elements(const conform_job *j, extent e, const size_t *counts)
{
    switch (e) {
    case WHOLE: return j->t.count;
    case PART: return part_of(j, 0, j->rank);
    case ALL: return total(j, counts);
    default: return 0;
    }
}

/* Whether this rank has no buffer on the side that is the root's only. */
static int is_without(const conform_job *j, int out)
{
    const job_shape *s = &shapes[j->t.kind];

    if (!s->rooted || j->t.kind == K_BROADCAST || j->rank == j->t.root)
        return 0;
    return out ? s->out == ALL || s->out == WHOLE : s->in == ALL;
}

static int is_private(const conform_job *j, int out)
{
    switch (j->t.where) {
    case PRIVATE: return 1;
    case MIXED: return j->rank == j->size - 1;
    case CROSSED: return !out;
    default: return 0;
    }
}

/* A buffer with guards in a quarter of the slot: in or out, shared or not. */
static void *take_room(conform_context *d, conform_job *j, int out,
                       size_t bytes, int slot, int slots)
{
    size_t each = d->room / (size_t)slots / 2 / 64 * 64;
    unsigned char *area = is_private(j, out) ? d->private : d->shared;
    unsigned char *at = area + (size_t)(2 * slot + out) * each;

    if (bytes + 2 * CONFORM_GUARD + 64 > each)
        abort(); /* the areas were made for the largest trial */
    at += oar_dtype_size(j->t.dtype) * (j->seed % 5 % (64 / 8));
    memset(at, 0xa5, CONFORM_GUARD);
    memset(at + CONFORM_GUARD + bytes, 0xa5, CONFORM_GUARD);
    j->guarded[out] = at;
    j->guarded_bytes[out] = bytes;
    return at + CONFORM_GUARD;
}

/* The smaller buffer as a piece of the larger. */
static void put_in_place(conform_job *j)
{
    const job_shape *s = &shapes[j->t.kind];
    size_t at = offset_of(j, 0, j->rank) * oar_dtype_size(j->t.dtype);

    if (s->in == WHOLE)
        j->in.data = j->out.data;
    else if (s->in == PART)
        j->in.data = (unsigned char *)j->out.data + at;
    else
        j->out.data = (unsigned char *)j->in.data + at;
}

static void take_rooms(conform_context *d, conform_job *j, int slot, int slots)
{
    const job_shape *s = &shapes[j->t.kind];
    size_t size = oar_dtype_size(j->t.dtype);
    int join = j->t.in_place && !is_without(j, 0) && !is_without(j, 1);

    j->guarded[0] = j->guarded[1] = NULL;
    j->in = oar_span_of(NULL, elements(j, s->in, j->in_counts), j->t.dtype);
    j->out = oar_span_of(NULL, elements(j, s->out, j->out_counts), j->t.dtype);
    if (is_without(j, 0))
        j->in.count = 0;
    if (is_without(j, 1))
        j->out.count = 0;
    if (!join || s->in == ALL)
        j->in.data = take_room(d, j, 0, j->in.count * size, slot, slots);
    if (!join || s->in != ALL)
        j->out.data = take_room(d, j, 1, j->out.count * size, slot, slots);
    if (join)
        put_in_place(j);
}

void job_fill(conform_job *j)
{
    size_t size = oar_dtype_size(j->t.dtype);
    oar_span into = j->t.kind == K_BROADCAST ? j->out : j->in;

    if (j->out.count > 0)
        memset(j->out.data, 0x5a, j->out.count * size);
    if (into.count > 0 && (j->t.kind != K_BROADCAST || j->rank == j->t.root))
        value_fill(j, j->rank, 0, into.count, into.data);
    gpu_bring(j);
}

void job_prepare(conform_context *d, conform_job *j, const conform_trial *t,
                 oar_group *group, int slot, int slots)
{
    j->t = *t;
    j->d = d;
    j->group = group;
    j->rank = oar_group_rank(group);
    j->size = oar_group_size(group);
    j->seed = value_mix(d->s->seed, (uint64_t)t->kind << 32 ^
                                        (uint64_t)t->dtype << 24 ^
                                        (uint64_t)t->op << 16 ^ t->count);
    set_counts(j);
    take_rooms(d, j, slot, slots);
    job_fill(j);
}

/* ---- the call ------------------------------------------------------------ */

static oar_reduce_op op_of(const conform_job *j)
{
    return OAR_REDUCE_OP(j->t.op, value_factor(j, j->rank));
}

/* Counts are the root's only where the larger buffer is. */
static const size_t *counts_of(const conform_job *j, const size_t *counts)
{
    return shapes[j->t.kind].rooted && j->rank != j->t.root ? NULL : counts;
}

static oar_status post_ragged(const conform_job *j, const oar_call_opts *opts,
                              oar_work **work)
{
    const size_t *in = counts_of(j, j->in_counts);
    const size_t *out = counts_of(j, j->out_counts);
    oar_group *g = j->group;
    int root = j->t.root;

    switch (j->t.kind) {
    case K_GATHER_V:
        return oar_gather_v(g, j->in, j->out, out, root, opts, work);
    case K_SCATTER_V:
        return oar_scatter_v(g, j->in, in, j->out, root, opts, work);
    case K_ALL_GATHER_V:
        return oar_all_gather_v(g, j->in, j->out, out, opts, work);
    case K_REDUCE_SCATTER_V:
        return oar_reduce_scatter_v(g, j->in, in, j->out, op_of(j), opts, work);
    default: return oar_all_to_all_v(g, j->in, in, j->out, out, opts, work);
    }
}

static oar_status post(const conform_job *j, const oar_call_opts *opts,
                       oar_work **work)
{
    oar_group *g = j->group;
    int root = j->t.root;

    switch (j->t.kind) {
    case K_BROADCAST: return oar_broadcast(g, j->out, root, opts, work);
    case K_ALL_REDUCE:
        if (j->t.in_place)
            return oar_all_reduce(g, j->out, op_of(j), opts, work);
        return oar_all_reduce_into(g, j->in, j->out, op_of(j), opts, work);
    case K_REDUCE:
        return oar_reduce(g, j->in, j->out, op_of(j), root, opts, work);
    case K_GATHER: return oar_gather(g, j->in, j->out, root, opts, work);
    case K_SCATTER: return oar_scatter(g, j->in, j->out, root, opts, work);
    case K_ALL_GATHER: return oar_all_gather(g, j->in, j->out, opts, work);
    case K_REDUCE_SCATTER:
        return oar_reduce_scatter(g, j->in, j->out, op_of(j), opts, work);
    case K_ALL_TO_ALL: return oar_all_to_all(g, j->in, j->out, opts, work);
    default: return post_ragged(j, opts, work);
    }
}

oar_status job_post(const conform_job *j, const oar_call_opts *opts,
                    oar_work **work)
{
    oar_call_opts o = opts != NULL ? *opts : oar_call_opts_init();
    conform_job there = *j;

    o.stream = j->d->stream;
    there.in = gpu_span(j, j->in);
    there.out = gpu_span(j, j->out);
    return post(&there, &o, work);
}

/* ---- the comparison ------------------------------------------------------ */

/* The parts of out, each from the rank it comes from. */
static void check_parts(conform_context *d, const conform_job *j)
{
    const unsigned char *at = j->out.data;
    size_t size = oar_dtype_size(j->t.dtype);

    if (j->out.count == 0)
        return;
    for (int r = 0; r < j->size; r++) {
        size_t start = is_all_to_all(j) ? offset_of(j, r, j->rank) : 0;
        check_run(d, j, at, j->out_counts[r], r, start);
        at += j->out_counts[r] * size;
    }
}

void job_check(conform_context *d, const conform_job *j)
{
    const job_shape *s = &shapes[j->t.kind];
    size_t bytes = j->out.count * oar_dtype_size(j->t.dtype);

    gpu_fetch(j);
    if (s->out == ALL)
        check_parts(d, j);
    else if (j->t.kind == K_BROADCAST)
        check_run(d, j, j->out.data, j->out.count, j->t.root, 0);
    else
        check_run(d, j, j->out.data, j->out.count, s->folds ? -1 : j->t.root,
                  s->out == PART ? offset_of(j, 0, j->rank) : 0);
    if (!j->t.in_place && s->in != NONE)
        check_run(d, j, j->in.data, j->in.count, j->rank, 0);
    check_guards(d, j);
    if (s->shared_result && bytes > 0)
        check_hash(d, j->out.data, bytes);
}
