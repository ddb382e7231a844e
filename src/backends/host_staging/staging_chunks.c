/* SPDX-License-Identifier: Apache-2.0 */
/* staging_chunks: a collective on device memory, piece by piece: while one
 * piece is combined on the host, the next comes down and the one before goes
 * up.
 *
 * A buffer is a row of parts (or one part: of a part of its own, and of what is
 * combined as a whole). Piece k of a row is elements k * width and following of
 * each of its parts, packed; so every rank cuts alike, and each piece is a
 * collective of its own among parts of any size.
 */
#include "backends/host_staging/staging.h"
#include "base/status.h"

enum {
    AHEAD = 2,            /* pieces that come down while one is combined */
    SOME = 8,             /* pieces, if a buffer is not small */
    LEAST_BYTES = 1 << 20 /* of a piece of several */
};

static int is_whole(oar_coll kind) /* without parts */
{
    return kind == OAR_COLL_ALL_REDUCE || kind == OAR_COLL_BROADCAST ||
           kind == OAR_COLL_REDUCE;
}

static size_t part_count(const hosted_side *s, int part)
{
    return s->counts != NULL ? s->counts[part] : s->each;
}

/* ---- what there is to move ----------------------------------------------- */

static hosted_side one_part(const oar_span *span)
{
    return (hosted_side){ span->data, span->data != NULL, span->count, NULL };
}

static hosted_side row_of(const oar_span *span, const size_t *counts, int ranks)
{
    return (hosted_side){ span->data,
                          span->data != NULL || counts != NULL ? ranks : 0,
                          span->count / (size_t)ranks, counts };
}

static void find_sides(hosted_passage *p)
{
    const oar_collective *c = p->call;
    int ranks = p->h->ranks;

    switch (c->kind) {
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER:
        p->in = one_part(&c->in);
        p->out = row_of(&c->out, c->out_counts, ranks);
        break;
    case OAR_COLL_SCATTER:
    case OAR_COLL_REDUCE_SCATTER:
        p->in = row_of(&c->in, c->in_counts, ranks);
        p->out = one_part(&c->out);
        break;
    case OAR_COLL_ALL_TO_ALL:
        p->in = row_of(&c->in, c->in_counts, ranks);
        p->out = row_of(&c->out, c->out_counts, ranks);
        break;
    default:
        p->in = one_part(&c->in);
        p->out = one_part(&c->out);
        break;
    }
    if (c->kind == OAR_COLL_BROADCAST && p->h->rank != c->root)
        p->in.parts = 0;
    if (c->kind == OAR_COLL_BROADCAST && p->h->rank == c->root)
        p->out.parts = 0;
}

static size_t longest(const hosted_side *s)
{
    size_t most = 0;

    for (int i = 0; i < s->parts; i++)
        if (part_count(s, i) > most)
            most = part_count(s, i);
    return most;
}

/* Elements of a part in a piece: as many as there is room for, but so that one
 * piece goes up while another comes down. Parts of any size are not known to
 * all ranks. */
static size_t width_of(const hosted_passage *p)
{
    size_t parts = is_whole(p->call->kind) ? 1 : (size_t)p->h->ranks;
    size_t in = longest(&p->in), out = longest(&p->out);
    size_t some = (in > out ? in : out) / SOME + HOSTED_LINE;
    size_t least = LEAST_BYTES / (parts * p->element);
    size_t room = p->h->slot_bytes / (parts * p->element);

    if (p->call->ragged)
        return room;
    some = some > least ? some / HOSTED_LINE * HOSTED_LINE : least;
    return some < room ? some : room;
}

/* How many pieces: where not every rank knows every part, they ask. */
static oar_status count_pieces(hosted_passage *p)
{
    const oar_collective *c = p->call;
    size_t in = longest(&p->in), out = longest(&p->out);
    uint64_t most = in > out ? in : out;
    int known = !c->ragged || c->kind == OAR_COLL_ALL_GATHER ||
                c->kind == OAR_COLL_REDUCE_SCATTER;
    oar_call_opts o = hosted_patience();

    if (!known)
        OARI_TRY(oar_all_reduce(p->h->inner, oar_span_of(&most, 1, OAR_U64),
                                OAR_MAX, &o, NULL));
    p->pieces = (most + p->width - 1) / p->width;
    return OAR_OK;
}

/* ---- one piece ----------------------------------------------------------- */

size_t hosted_slice(const hosted_passage *p, const hosted_side *s, int part,
                    size_t piece)
{
    size_t count = part_count(s, part), first = piece * p->width;
    size_t left = count > first ? count - first : 0;

    return left < p->width ? left : p->width;
}

/* Moves a piece of one side between the device and its packed form. */
static oar_status move(const hosted_passage *p, const hosted_side *s,
                       size_t piece, unsigned char *packed, int up)
{
    size_t before = 0, at = 0;

    for (int i = 0; i < s->parts; i++) {
        size_t bytes = hosted_slice(p, s, i, piece) * p->element;
        unsigned char *there =
            s->data + (before + piece * p->width) * p->element;

        OARI_TRY(up ? hosted_store(p->h, there, packed + at, bytes)
                    : hosted_load(p->h, packed + at, there, bytes));
        before += part_count(s, i);
        at += bytes;
    }
    return OAR_OK;
}

oar_status hosted_load_piece(hosted_passage *p, size_t piece, hosted_slot *s)
{
    OARI_TRY(move(p, &p->in, piece, s->data, 0));
    return hosted_record(p->h, s->loaded, p->h->down);
}

/* Two slots for a piece: its input, then its output. */
static hosted_slot *pair_for(const hosted_passage *p, size_t piece)
{
    return &p->h->slot[2 * (piece % (HOSTED_SLOTS / 2))];
}

static oar_status load(hosted_passage *p, size_t piece)
{
    hosted_slot *s = pair_for(p, piece);

    OARI_TRY(hosted_await(p->h, s->stored));
    return hosted_load_piece(p, piece, s);
}

static oar_span packed(const hosted_passage *p, const hosted_side *s,
                       unsigned char *data, size_t piece, size_t *counts)
{
    size_t total = 0;

    for (int i = 0; i < s->parts; i++)
        total += counts[i] = hosted_slice(p, s, i, piece);
    return oar_span_of(data, total, p->call->out.dtype);
}

/* The piece as the inner group does it. */
static oar_status combine(hosted_passage *p, size_t piece, hosted_slot *s)
{
    const oar_collective *c = p->call;
    oar_group *g = p->h->inner;
    size_t *ins = p->h->count, *outs = p->h->other;
    oar_span in = packed(p, &p->in, s[0].data, piece, ins);
    oar_span out = packed(p, &p->out, s[1].data, piece, outs);
    oar_call_opts o = hosted_patience();

    o.weight = c->weight;
    o.canonical = c->canonical;
    switch (c->kind) {
    case OAR_COLL_BROADCAST:
        return oar_broadcast(g, p->in.parts != 0 ? in : out, c->root, &o, NULL);
    case OAR_COLL_ALL_REDUCE:
        return oar_all_reduce(g, in, c->op, &o, NULL); /* a copy less */
    case OAR_COLL_REDUCE:
        return oar_reduce(g, in, out, c->op, c->root, &o, NULL);
    case OAR_COLL_GATHER:
        return oar_gather_v(g, in, out, outs, c->root, &o, NULL);
    case OAR_COLL_SCATTER:
        return oar_scatter_v(g, in, ins, out, c->root, &o, NULL);
    case OAR_COLL_ALL_GATHER:
        return oar_all_gather_v(g, in, out, outs, &o, NULL);
    case OAR_COLL_REDUCE_SCATTER:
        return oar_reduce_scatter_v(g, in, ins, out, c->op, &o, NULL);
    case OAR_COLL_ALL_TO_ALL:
        return oar_all_to_all_v(g, in, ins, out, outs, &o, NULL);
    default: break;
    }
    return oari_fail(OAR_E_INTERNAL, "%s through the host",
                     oar_coll_name(c->kind));
}

static oar_status pass(hosted_passage *p, size_t piece)
{
    hosted_slot *s = pair_for(p, piece);
    int in_place = p->call->kind == OAR_COLL_ALL_REDUCE;

    OARI_TRY(hosted_await(p->h, s->loaded));
    OARI_TRY(combine(p, piece, s));
    OARI_TRY(move(p, &p->out, piece, s[in_place ? 0 : 1].data, 1));
    return hosted_record(p->h, s->stored, p->h->up);
}

/* By way of the inner group's own collectives. */
static oar_status go_over_links(hosted_passage *p)
{
    for (size_t i = 0; i < p->pieces + AHEAD; i++) {
        if (i < p->pieces)
            OARI_TRY(load(p, i));
        if (i >= AHEAD)
            OARI_TRY(pass(p, i - AHEAD));
    }
    return OAR_OK;
}

oar_status hosted_collective(hosted *h, const oar_collective *call)
{
    hosted_passage p = { .h = h, .call = call };

    p.element = oar_dtype_size(call->out.dtype);
    find_sides(&p);
    p.width = width_of(&p);
    OARI_TRY(hosted_begin(h, call));
    OARI_TRY(hosted_meet(h));
    OARI_TRY(count_pieces(&p));
    OARI_TRY(hosted_goes_direct(h, call) ? hosted_direct(&p)
                                         : go_over_links(&p));
    return hosted_finish(h, call);
}
