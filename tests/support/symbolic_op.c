/* SPDX-License-Identifier: Apache-2.0 */
/* symbolic_op: what each collective means, written down once more, without
 * looking at how the library says it. */
#include <string.h>

#include "support/symbolic.h"

static uint64_t scramble(uint64_t a)
{
    a = (a ^ a >> 33) * 0xff51afd7ed558ccdu;
    a = (a ^ a >> 29) * 0xc4ceb9fe1a85ec53u;
    return a ^ a >> 32;
}

/* Some empty, some short, some up to twice the usual. */
static size_t any_size(uint64_t seed, size_t usual)
{
    uint64_t drawn = scramble(seed);

    switch (drawn % 4) {
    case 0: return 0;
    case 1: return drawn / 4 % 3;
    default: return drawn / 4 % (2 * usual + 1);
    }
}

size_t symbolic_part(const symbolic_op *o, int r)
{
    if (o->req.object && o->req.kind == OAR_COLL_BROADCAST)
        return o->req.count;
    return o->req.ragged ? any_size(o->parts * 131 + (uint64_t)r, o->req.count)
                         : o->req.count;
}

size_t symbolic_pair(const symbolic_op *o, int r, int q)
{
    uint64_t pair = (uint64_t)r * SYMBOLIC_RANKS + (uint64_t)q;

    return o->req.ragged ? any_size(o->parts * 8191 + pair, o->req.count)
                         : o->req.count;
}

static size_t before(const symbolic_op *o, int r)
{
    size_t at = 0;

    for (int i = 0; i < r; i++)
        at += symbolic_part(o, i);
    return at;
}

static size_t row_before(const symbolic_op *o, int rank, int to)
{
    size_t at = 0;

    for (int q = 0; q < to; q++)
        at += symbolic_pair(o, rank, q);
    return at;
}

static size_t column_before(const symbolic_op *o, int rank, int from)
{
    size_t at = 0;

    for (int q = 0; q < from; q++)
        at += symbolic_pair(o, q, rank);
    return at;
}

int symbolic_reduces(oar_coll kind)
{
    return kind == OAR_COLL_ALL_REDUCE || kind == OAR_COLL_REDUCE ||
           kind == OAR_COLL_REDUCE_SCATTER;
}

static int is_in_place(const symbolic_op *o, int rank)
{
    return !o->req.object && (o->in_place >> rank & 1);
}

static symbolic_region apart(symbolic_memory memory, size_t count)
{
    return (symbolic_region){ memory, 0, count };
}

symbolic_region symbolic_input(const symbolic_op *o, int rank)
{
    int n = o->req.ranks, root = rank == o->req.root;
    int place = is_in_place(o, rank);
    size_t part = symbolic_part(o, rank);

    switch (o->req.kind) {
    case OAR_COLL_BROADCAST:
        if (o->req.object)
            return apart(SYMBOLIC_IN, root ? o->req.count : 0);
        return apart(SYMBOLIC_OUT, o->req.count);
    case OAR_COLL_ALL_REDUCE:
        return apart(place ? SYMBOLIC_OUT : SYMBOLIC_IN, o->req.count);
    case OAR_COLL_REDUCE:
        return apart(place && root ? SYMBOLIC_OUT : SYMBOLIC_IN, o->req.count);
    case OAR_COLL_GATHER: place &= root; /* fall through */
    case OAR_COLL_ALL_GATHER:
        return place ? (symbolic_region){ SYMBOLIC_OUT, before(o, rank), part }
                     : apart(SYMBOLIC_IN, part);
    case OAR_COLL_SCATTER: return apart(SYMBOLIC_IN, root ? before(o, n) : 0);
    case OAR_COLL_REDUCE_SCATTER: return apart(SYMBOLIC_IN, before(o, n));
    case OAR_COLL_ALL_TO_ALL: return apart(SYMBOLIC_IN, row_before(o, rank, n));
    default: return apart(SYMBOLIC_IN, 0);
    }
}

symbolic_region symbolic_output(const symbolic_op *o, int rank)
{
    int n = o->req.ranks, root = rank == o->req.root;
    int place = is_in_place(o, rank);
    size_t part = symbolic_part(o, rank);

    switch (o->req.kind) {
    case OAR_COLL_BROADCAST:
        if (o->req.object)
            return apart(SYMBOLIC_OUT, root ? 0 : o->req.count);
        return apart(SYMBOLIC_OUT, o->req.count);
    case OAR_COLL_ALL_REDUCE: return apart(SYMBOLIC_OUT, o->req.count);
    case OAR_COLL_REDUCE: return apart(SYMBOLIC_OUT, root ? o->req.count : 0);
    case OAR_COLL_GATHER: return apart(SYMBOLIC_OUT, root ? before(o, n) : 0);
    case OAR_COLL_ALL_GATHER: return apart(SYMBOLIC_OUT, before(o, n));
    case OAR_COLL_SCATTER: place &= root; /* fall through */
    case OAR_COLL_REDUCE_SCATTER:
        return place ? (symbolic_region){ SYMBOLIC_IN, before(o, rank), part }
                     : apart(SYMBOLIC_OUT, part);
    case OAR_COLL_ALL_TO_ALL:
        return apart(SYMBOLIC_OUT, column_before(o, rank, n));
    default: return apart(SYMBOLIC_OUT, 0);
    }
}

static symbolic_origin in_parts(const symbolic_op *o, size_t i)
{
    int r = 0;

    for (; i >= symbolic_part(o, r); r++)
        i -= symbolic_part(o, r);
    return (symbolic_origin){ r, i };
}

static symbolic_origin in_columns(const symbolic_op *o, int rank, size_t i)
{
    int r = 0;

    for (; i >= symbolic_pair(o, r, rank); r++)
        i -= symbolic_pair(o, r, rank);
    return (symbolic_origin){ r, row_before(o, r, rank) + i };
}

symbolic_origin symbolic_origin_of(const symbolic_op *o, int rank, size_t i)
{
    switch (o->req.kind) {
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: return in_parts(o, i);
    case OAR_COLL_SCATTER:
        return (symbolic_origin){ o->req.root, before(o, rank) + i };
    case OAR_COLL_REDUCE_SCATTER:
        return (symbolic_origin){ 0, before(o, rank) + i };
    case OAR_COLL_ALL_TO_ALL: return in_columns(o, rank, i);
    default: return (symbolic_origin){ o->req.root, i };
    }
}

/* ---- the plan request ---------------------------------------------------- */

static size_t at_part[SYMBOLIC_RANKS + 1], at_out[SYMBOLIC_RANKS + 1];
static size_t at_theirs[SYMBOLIC_RANKS];

static void request_rows(const symbolic_op *o, oari_plan_request *req,
                         int sizes_known)
{
    int n = req->ranks;

    for (int r = 0; r <= n; r++) {
        at_part[r] = row_before(o, req->rank, r);
        at_out[r] = column_before(o, req->rank, r);
    }
    req->at = at_part;
    req->out_at = at_out;
    req->count = 0;
    if (!sizes_known)
        return;
    for (int r = 0; r < n; r++) {
        at_theirs[r] = row_before(o, r, req->rank);
        for (int q = 0; q < n; q++)
            if (symbolic_pair(o, r, q) > req->longest_part)
                req->longest_part = symbolic_pair(o, r, q);
    }
    req->their_at = at_theirs;
}

/* Whether the rank knows all parts of the row. */
static int knows_parts(const oari_plan_request *req, int sizes_known)
{
    int root = req->rank == req->root;

    switch (req->kind) {
    case OAR_COLL_BROADCAST: return 0;
    case OAR_COLL_GATHER:
        return sizes_known ? root || req->shm_ranks != 0 : root && !req->object;
    case OAR_COLL_SCATTER: return root || (sizes_known && req->shm_ranks != 0);
    case OAR_COLL_ALL_GATHER: return sizes_known || !req->object;
    default: return 1;
    }
}

oari_plan_request symbolic_request(const symbolic_op *o, int rank,
                                   int sizes_known)
{
    oari_plan_request req = o->req;
    int vector = req.kind == OAR_COLL_BROADCAST;

    req.rank = rank;
    req.sizes_known = sizes_known;
    if (!req.ragged)
        return req;
    if (req.kind == OAR_COLL_ALL_TO_ALL) {
        request_rows(o, &req, sizes_known);
        return req;
    }
    if (!vector)
        req.count = symbolic_part(o, rank);
    if (req.object && !sizes_known && (vector || req.kind == OAR_COLL_SCATTER))
        req.count = vector && rank == req.root ? req.count : 0;
    for (int r = 0; r <= req.ranks; r++)
        at_part[r] = before(o, r);
    req.at = knows_parts(&req, sizes_known) ? at_part : NULL;
    return req;
}
