/* SPDX-License-Identifier: Apache-2.0 */
/* staging_direct: a collective between ranks of one host. Each rank's piece
 * comes down into its own stage, and whoever is to get some of it takes it up
 * from there: what is only moved is never copied on the host. Of an all_reduce
 * each rank adds up one share of a piece; the shares meet in the stage of one
 * of them, the next one for the next piece, from where all ranks take the
 * whole.
 *
 * Nobody meets over a piece. Each rank tells how far it is (hosted_marks), and
 * does whatever the others have made possible: it adds up what all have down,
 * takes what is whole, and asks for more where a slot has gone up everywhere.
 */
#include "backends/host_staging/staging.h"
#include "base/status.h"

enum { AHEAD = 4 /* pieces that are asked for before the first is taken */ };

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

/* ---- how far everyone is ------------------------------------------------- */

static hosted_marks *marks(const hosted *h, int rank)
{
    return (hosted_marks *)(void *)(h->near[rank] +
                                    HOSTED_SLOTS * h->slot_bytes);
}

/* Pieces that all ranks have down, added up, or up. */
static size_t all_have(const hosted_passage *p, int which)
{
    uint64_t least = UINT64_MAX;

    for (int r = 0; r < p->h->ranks; r++) {
        uint64_t one = atomic_load_explicit(&marks(p->h, r)->of[which],
                                            memory_order_acquire);

        least = one < least ? one : least;
    }
    return least;
}

static void mark(const hosted_passage *p, int which, size_t pieces)
{
    atomic_store_explicit(&marks(p->h, p->h->rank)->of[which], pieces,
                          memory_order_release);
}

/* ---- shares of an all_reduce --------------------------------------------- */

/* Elements [*first, *end) of a piece: whole lines, but the last. */
static void share_of(const hosted_passage *p, size_t piece, int rank,
                     size_t *first, size_t *end)
{
    size_t count = hosted_slice(p, &p->in, 0, piece);
    size_t ranks = (size_t)p->h->ranks, unit = HOSTED_LINE / p->element;
    size_t each = ((count + ranks - 1) / ranks + unit - 1) / unit * unit;

    *first = (size_t)rank * each < count ? (size_t)rank * each : count;
    *end = count - *first < each ? count : *first + each;
}

/* In whose stage the shares meet. */
static int home_of(const hosted_passage *p, size_t piece)
{
    return (int)(piece % (size_t)p->h->ranks);
}

static void add_up(hosted_passage *p, size_t piece)
{
    size_t first, end;

    share_of(p, piece, p->h->rank, &first, &end);
    hosted_sum_up(p->h, home_of(p, piece),
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

static oar_status take_sum(hosted_passage *p, size_t piece,
                           const hosted_slot *s)
{
    size_t at = piece * p->width * p->element;

    return hosted_store(p->h, p->out.data + at,
                        near(p->h, home_of(p, piece), s),
                        hosted_slice(p, &p->out, 0, piece) * p->element);
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

    OARI_TRY(reduces(p) ? take_sum(p, piece, s) : take_parts(p, piece, s));
    return hosted_record(p->h, s->stored, p->h->up);
}

/* ---- all pieces ---------------------------------------------------------- */

/* Pieces that this rank has asked for, has down, added up, put on their way up,
 * and up. */
typedef struct progress {
    size_t asked, down, whole, taken, up;
    int moved; /* something could be done */
} progress;

/* Counts on what has come of those up to `end`, and tells it. */
static oar_status look(hosted_passage *p, int which, size_t *count, size_t end,
                       int *moved)
{
    size_t before = *count;
    int has = 1;

    while (has && *count < end) {
        const hosted_slot *s = slot_for(p, *count);

        OARI_TRY(hosted_has_come(
            p->h, which == HOSTED_DOWN ? s->loaded : s->stored, &has));
        *count += (size_t)has;
    }
    if (*count == before)
        return OAR_OK;
    *moved = 1;
    mark(p, which, *count);
    return OAR_OK;
}

static oar_status ask(hosted_passage *p, progress *at)
{
    if (at->asked == p->pieces || at->asked >= at->taken + AHEAD ||
        at->asked >= all_have(p, HOSTED_UP) + HOSTED_SLOTS)
        return OAR_OK;
    OARI_TRY(hosted_load_piece(p, at->asked, slot_for(p, at->asked)));
    at->asked++;
    at->moved = 1;
    return OAR_OK;
}

static oar_status advance(hosted_passage *p, progress *at)
{
    OARI_TRY(look(p, HOSTED_DOWN, &at->down, at->asked, &at->moved));
    OARI_TRY(look(p, HOSTED_UP, &at->up, at->taken, &at->moved));
    OARI_TRY(ask(p, at));
    if (at->taken < all_have(p, reduces(p) ? HOSTED_WHOLE : HOSTED_DOWN)) {
        at->moved = 1;
        OARI_TRY(take(p, at->taken++));
    }
    if (reduces(p) && at->whole < all_have(p, HOSTED_DOWN)) {
        at->moved = 1;
        add_up(p, at->whole++);
        mark(p, HOSTED_WHOLE, at->whole);
    }
    return OAR_OK;
}

static oar_status pass_all(hosted_passage *p)
{
    progress at = { 0 };
    int looks = 0;

    while (at.up < p->pieces) {
        at.moved = 0;
        OARI_TRY(hosted_goes_on(p->h));
        OARI_TRY(advance(p, &at));
        if (at.moved)
            looks = 0;
        else
            OARI_TRY(hosted_rest(p->h, &looks));
    }
    return OAR_OK;
}

static oar_status wait_for_all(hosted *h)
{
    oar_call_opts o = hosted_patience();

    return oar_barrier(h->inner, &o, NULL);
}

static oar_status await_stored(hosted *h)
{
    for (int i = 0; i < HOSTED_SLOTS; i++)
        OARI_TRY(hosted_await(h, h->slot[i].stored));
    return OAR_OK;
}

/* From the first meeting to the second everyone is there, and so are the stages
 * and the marks. */
static oar_status pass_together(hosted_passage *p)
{
    for (int which = 0; which < HOSTED_MARKS; which++)
        mark(p, which, 0);
    OARI_TRY(wait_for_all(p->h));
    OARI_TRY(pass_all(p));
    return wait_for_all(p->h);
}

/* Before it, a collective over links may still be on its way up. */
oar_status hosted_direct(hosted_passage *p)
{
    oar_status status;

    if (p->pieces == 0)
        return OAR_OK;
    OARI_TRY(await_stored(p->h));
    if (reduces(p))
        OARI_TRY(hosted_sum_begin(p->h, p->call));
    status = pass_together(p);
    if (reduces(p))
        hosted_sum_end(p->h);
    return status;
}
