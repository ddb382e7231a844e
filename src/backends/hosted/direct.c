/* SPDX-License-Identifier: Apache-2.0 */
/* direct: a collective between ranks of one host. Each rank's piece comes down
 * into its own stage, and whoever is to get some of it takes it up from there:
 * what is only moved is never copied on the host. Of an all_reduce each rank
 * adds up one share of a piece, in place, and takes all shares up.
 *
 * A rank that has met the others over piece k knows that all have it on the
 * host, that all have added up their shares of piece k - 1, and that piece
 * k - BEHIND has gone up everywhere, so that its slot is free.
 */
#include "backends/hosted/hosted.h"
#include "base/status.h"

enum { LINE = 64, BEHIND = 4, AHEAD = HOSTED_SLOTS - 1 - BEHIND };

static int reduces(const hosted_passage *p)
{
    return p->call->kind == OAR_COLL_ALL_REDUCE;
}

int hosted_goes_direct(const hosted *h, const oar_collective *call)
{
    if (!h->is_near || call->ragged)
        return 0;
    switch (call->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_GATHER:
    case OAR_COLL_SCATTER:
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_ALL_TO_ALL: return 1;
    default: return 0;
    }
}

static hosted_slot *slot_for(const hosted_passage *p, size_t piece)
{
    return &p->h->slot[piece % HOSTED_SLOTS];
}

static oar_status wait_for_all(hosted *h)
{
    oar_call_opts o = hosted_patience();

    return oar_barrier(h->inner, &o, NULL);
}

static oar_status meet_over(hosted_passage *p, size_t piece)
{
    OARI_TRY(hosted_await(p->h, slot_for(p, piece)->loaded));
    if (piece >= BEHIND)
        OARI_TRY(hosted_await(p->h, slot_for(p, piece - BEHIND)->stored));
    return wait_for_all(p->h);
}

/* ---- shares of an all_reduce --------------------------------------------- */

/* Elements [*first, *end) of a piece: whole lines, but the last. */
static void share_of(const hosted_passage *p, size_t piece, int rank,
                     size_t *first, size_t *end)
{
    size_t count = hosted_slice(p, &p->in, 0, piece);
    size_t ranks = (size_t)p->h->ranks, unit = LINE / p->element;
    size_t each = ((count + ranks - 1) / ranks + unit - 1) / unit * unit;

    *first = (size_t)rank * each < count ? (size_t)rank * each : count;
    *end = count - *first < each ? count : *first + each;
}

static void add_up(hosted_passage *p, size_t piece)
{
    size_t first, end;

    share_of(p, piece, p->h->rank, &first, &end);
    hosted_sum_up(p->h,
                  (size_t)(slot_for(p, piece)->data - p->h->stage) +
                      first * p->element,
                  end - first);
}

/* ---- taking up ----------------------------------------------------------- */

/* The same slot of another rank's. */
static unsigned char *near(const hosted *h, int rank, const hosted_slot *s)
{
    return h->near[rank] + (s->data - h->stage);
}

static oar_status take_shares(hosted_passage *p, size_t piece,
                              const hosted_slot *s)
{
    unsigned char *to = p->out.data + piece * p->width * p->element;

    for (int r = 0; r < p->h->ranks; r++) {
        size_t first, end, at;

        share_of(p, piece, r, &first, &end);
        at = first * p->element;
        OARI_TRY(hosted_store(p->h, to + at, near(p->h, r, s) + at,
                              (end - first) * p->element));
    }
    return OAR_OK;
}

/* What one rank has for this one goes to a part of the output. Where its piece
 * is a row, all parts of that are alike. */
static oar_status take_part(hosted_passage *p, size_t piece,
                            const hosted_slot *s, int from, int part)
{
    oar_coll kind = p->call->kind;
    int row = kind == OAR_COLL_SCATTER || kind == OAR_COLL_ALL_TO_ALL;
    size_t bytes = hosted_slice(p, &p->out, part, piece) * p->element;
    size_t at = (size_t)part * p->out.each + piece * p->width;

    return hosted_store(
        p->h, p->out.data + at * p->element,
        near(p->h, from, s) + (row ? (size_t)p->h->rank * bytes : 0), bytes);
}

static oar_status take_parts(hosted_passage *p, size_t piece,
                             const hosted_slot *s)
{
    oar_coll kind = p->call->kind;

    if (kind == OAR_COLL_BROADCAST || kind == OAR_COLL_SCATTER)
        return p->out.parts != 0 ? take_part(p, piece, s, p->call->root, 0)
                                 : OAR_OK;
    for (int r = 0; r < p->out.parts; r++)
        OARI_TRY(take_part(p, piece, s, r, r));
    return OAR_OK;
}

static oar_status take(hosted_passage *p, size_t piece)
{
    hosted_slot *s = slot_for(p, piece);

    OARI_TRY(reduces(p) ? take_shares(p, piece, s) : take_parts(p, piece, s));
    return hosted_record(p->h, s->stored, p->h->up);
}

/* ---- all pieces ---------------------------------------------------------- */

/* Sums of a piece are whole once the ranks have met over the next. */
static oar_status pass(hosted_passage *p, size_t piece)
{
    OARI_TRY(meet_over(p, piece));
    if (!reduces(p))
        return take(p, piece);
    if (piece > 0)
        OARI_TRY(take(p, piece - 1));
    add_up(p, piece);
    return OAR_OK;
}

static oar_status pass_all(hosted_passage *p)
{
    for (size_t i = 0; i < p->pieces + AHEAD; i++) {
        if (i < p->pieces)
            OARI_TRY(hosted_load_piece(p, i, slot_for(p, i)));
        if (i >= AHEAD)
            OARI_TRY(pass(p, i - AHEAD));
    }
    if (!reduces(p))
        return OAR_OK;
    OARI_TRY(wait_for_all(p->h));
    return take(p, p->pieces - 1);
}

static oar_status await_stored(hosted *h)
{
    for (int i = 0; i < HOSTED_SLOTS; i++)
        OARI_TRY(hosted_await(h, h->slot[i].stored));
    return OAR_OK;
}

/* Before it, a collective over links may still be on its way up; after it,
 * nobody uses a stage of another's. */
oar_status hosted_direct(hosted_passage *p)
{
    oar_status status;

    if (p->pieces == 0)
        return OAR_OK;
    OARI_TRY(await_stored(p->h));
    if (reduces(p))
        OARI_TRY(hosted_sum_begin(p->h, p->call));
    status = pass_all(p);
    if (reduces(p))
        hosted_sum_end(p->h);
    OARI_TRY(status);
    OARI_TRY(await_stored(p->h));
    return wait_for_all(p->h);
}
