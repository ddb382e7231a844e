/* SPDX-License-Identifier: Apache-2.0 */
/* match: see match.h. Receives and messages are kept in rows by source, in the
 * order they came; a number tells the order across rows. */
#include "link/match.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

enum {
    CREDIT_ALL = 64 << 20,   /* bytes pushed to a rank by all others ... */
    CREDIT_MOST = 16 << 20,  /* ... but at most this by one, */
    CREDIT_LEAST = 256 << 10 /* and at least this */
};

/* A message that came before its receive. */
struct oari_message {
    oari_message *next; /* of the same source */
    uint64_t number;
    oari_offer is;
    const oari_taker *taker; /* of an offer; NULL: pushed */
    int whole;               /* its data is all here */
    oar_transfer *claimed;   /* the receive that waits for the rest */
    unsigned char data[];
};

typedef struct from {
    oari_row posted;     /* receives from this source */
    oari_message *first; /* messages without a receive */
    oari_message *last;
    uint64_t kept;     /* cost of those pushed */
    uint64_t received; /* cost of all that were received */
} from;

struct oari_match {
    int rank, ranks;
    size_t eager_bytes;
    uint64_t credit; /* of one source */
    oar_status aborted;
    uint64_t number; /* of the last receive or message */
    int posted;      /* receives in rows */
    oari_row any;    /* receives from any source */
    oari_row own;    /* sends to myself that are offered */
    oari_taker self; /* who takes them */
    from *from;      /* by source */
};

/* ---- rows ---------------------------------------------------------------- */

void oari_row_push(oari_row *row, oar_transfer *t)
{
    t->scratch[0] = NULL;
    if (row->last != NULL)
        row->last->scratch[0] = t;
    else
        row->first = t;
    row->last = t;
}

void oari_row_remove(oari_row *row, oar_transfer *before, oar_transfer *t)
{
    if (before != NULL)
        before->scratch[0] = oari_row_next(t);
    else
        row->first = oari_row_next(t);
    if (row->last == t)
        row->last = before;
}

oar_transfer *oari_row_take(oari_row *row, uint64_t number)
{
    oar_transfer *before = NULL, *t = row->first;

    while (t != NULL && oari_scratch(t, 1) != number) {
        before = t;
        t = oari_row_next(t);
    }
    if (t != NULL)
        oari_row_remove(row, before, t);
    return t;
}

void oari_row_finish(oari_row *row, oar_status status)
{
    oar_transfer *t = row->first, *next;

    for (; t != NULL; t = next) {
        next = oari_row_next(t);
        oari_transfer_finish(t, status);
    }
    row->first = row->last = NULL;
}

/* ---- making -------------------------------------------------------------- */

static uint64_t credit_of_one(int ranks)
{
    uint64_t bytes = CREDIT_ALL / (uint64_t)ranks;

    if (bytes > CREDIT_MOST)
        bytes = CREDIT_MOST;
    if (bytes < CREDIT_LEAST)
        bytes = CREDIT_LEAST;
    return bytes / OARI_CREDIT_UNIT;
}

static void take_own(void *self, const oari_offer *offer, oar_transfer *into)
{
    oari_match *m = self;
    oar_transfer *send = oari_row_take(&m->own, offer->word[0]);

    if (into != NULL && into->bytes != 0)
        memmove(into->data, send->data, into->bytes);
    oari_transfer_finish(send, into != NULL ? OAR_OK : OAR_E_SIZE);
    if (into != NULL)
        oari_transfer_finish(into, OAR_OK);
}

oar_status oari_match_create(int rank, int ranks, size_t eager_bytes,
                             oari_match **match)
{
    oari_match *m = oari_alloc(1, sizeof *m);

    if (m == NULL)
        return OAR_E_NOMEM;
    m->rank = rank;
    m->ranks = ranks;
    m->eager_bytes = eager_bytes;
    m->credit = credit_of_one(ranks);
    m->self = (oari_taker){ take_own, m };
    m->from = oari_alloc((size_t)ranks, sizeof *m->from);
    if (m->from == NULL) {
        oari_free(m);
        return OAR_E_NOMEM;
    }
    *match = m;
    return OAR_OK;
}

static void drop_messages(from *f)
{
    while (f->first != NULL) {
        oari_message *gone = f->first;
        f->first = gone->next;
        oari_free(gone);
    }
    f->last = NULL;
}

void oari_match_destroy(oari_match *match)
{
    if (match == NULL)
        return;
    for (int r = 0; r < match->ranks; r++)
        drop_messages(&match->from[r]);
    oari_free(match->from);
    oari_free(match);
}

/* ---- finding ------------------------------------------------------------- */

static int tags_match(uint64_t wanted, uint64_t any, uint64_t tag)
{
    return ((wanted ^ tag) & ~any) == 0;
}

static oar_transfer *find_posted(const oari_row *row, uint64_t tag,
                                 oar_transfer **before)
{
    oar_transfer *t = row->first;

    *before = NULL;
    while (t != NULL && !tags_match(t->tag, t->any, tag)) {
        *before = t;
        t = oari_row_next(t);
    }
    return t;
}

/* Takes out the earliest receive that wants such a message; NULL: none. */
static oar_transfer *take_posted(oari_match *m, int source, uint64_t tag)
{
    oari_row *row = &m->from[source].posted;
    oar_transfer *before, *before_any;
    oar_transfer *t = find_posted(row, tag, &before);
    oar_transfer *any = find_posted(&m->any, tag, &before_any);

    if (any != NULL && (t == NULL || oari_scratch(any, 1) < oari_scratch(t, 1)))
        oari_row_remove(&m->any, before_any, t = any);
    else if (t != NULL)
        oari_row_remove(row, before, t);
    m->posted -= t != NULL;
    return t;
}

/* The earliest message of a source, not spoken for, with such a tag. */
static oari_message *find_from(const from *f, uint64_t tag, uint64_t any)
{
    oari_message *found = f->first;

    while (found != NULL &&
           (found->claimed != NULL || !tags_match(tag, any, found->is.tag)))
        found = found->next;
    return found;
}

static oari_message *find_message(const oari_match *m, int source, uint64_t tag,
                                  uint64_t any)
{
    oari_message *first = NULL;

    if (source >= 0)
        return find_from(&m->from[source], tag, any);
    for (int r = 0; r < m->ranks; r++) {
        oari_message *each = find_from(&m->from[r], tag, any);
        if (each != NULL && (first == NULL || each->number < first->number))
            first = each;
    }
    return first;
}

int oari_match_posted(const oari_match *match)
{
    return match->posted;
}

int oari_match_peek(const oari_match *match, int source, uint64_t tag,
                    uint64_t any, oar_envelope *found)
{
    const oari_message *message = find_message(match, source, tag, any);

    if (message == NULL)
        return 0;
    if (found != NULL) {
        found->source = message->is.source;
        found->tag = message->is.tag;
        found->bytes = message->is.bytes;
    }
    return 1;
}

/* ---- messages that wait -------------------------------------------------- */

static oari_message *keep(oari_match *m, const oari_offer *is, size_t room)
{
    oari_message *made = oari_alloc(1, sizeof *made + room);
    from *f = &m->from[is->source];

    if (made == NULL)
        return NULL;
    made->number = ++m->number;
    made->is = *is;
    if (f->last != NULL)
        f->last->next = made;
    else
        f->first = made;
    f->last = made;
    return made;
}

static void unlink_message(from *f, oari_message *message)
{
    oari_message **at = &f->first, *before = NULL;

    while (*at != message) {
        before = *at;
        at = &before->next;
    }
    *at = message->next;
    if (f->last == message)
        f->last = before;
}

static void say_what_came(oar_transfer *t, const oari_offer *is)
{
    t->source = is->source;
    t->got_tag = is->tag;
    t->got_bytes = is->bytes;
}

static void release(oari_match *m, oari_message *message)
{
    from *f = &m->from[message->is.source];
    uint64_t cost = oari_credit_cost(message->is.bytes);

    unlink_message(f, message);
    if (message->taker == NULL) {
        f->kept -= cost;
        f->received += cost;
    }
    oari_free(message);
}

/* A pushed message that is whole goes to its receive. */
static void hand_over(oari_match *m, oari_message *message, oar_transfer *t)
{
    int fits = message->is.bytes == t->bytes;

    if (fits && t->bytes != 0)
        memcpy(t->data, message->data, t->bytes);
    release(m, message);
    oari_transfer_finish(t, fits ? OAR_OK : OAR_E_SIZE);
}

/* Tells the link; a receive of another size ends here. */
static void take_offer(const oari_offer *offer, const oari_taker *taker,
                       oar_transfer *t)
{
    int fits = offer->bytes == t->bytes;

    taker->take(taker->self, offer, fits ? t : NULL);
    if (!fits)
        oari_transfer_finish(t, OAR_E_SIZE);
}

static void give_message(oari_match *m, oari_message *message, oar_transfer *t)
{
    say_what_came(t, &message->is);
    if (message->taker != NULL) {
        oari_offer is = message->is;
        const oari_taker *taker = message->taker;
        release(m, message);
        take_offer(&is, taker, t);
    } else if (message->whole)
        hand_over(m, message, t);
    else
        message->claimed = t;
}

oar_status oari_match_recv(oari_match *match, oar_transfer *receive)
{
    oari_message *message;

    if (match->aborted != OAR_OK) {
        oari_transfer_finish(receive, match->aborted);
        return OAR_OK;
    }
    message = find_message(match, receive->peer, receive->tag, receive->any);
    if (message != NULL) {
        give_message(match, message, receive);
        return OAR_OK;
    }
    match->posted++;
    oari_scratch_set(receive, 1, ++match->number);
    oari_row_push(receive->peer < 0 ? &match->any
                                    : &match->from[receive->peer].posted,
                  receive);
    return OAR_OK;
}

/* ---- messages that come -------------------------------------------------- */

static oar_status set_aside(oari_match *m, const oari_offer *is,
                            oari_inbound *in)
{
    from *f = &m->from[is->source];
    uint64_t cost = oari_credit_cost(is->bytes);

    if (f->kept + cost > m->credit)
        return oari_fail(OAR_E_DATA,
                         "rank %d sends %zu bytes more than it may before "
                         "they are received",
                         is->source, is->bytes);
    in->kept = keep(m, is, is->bytes);
    if (in->kept == NULL)
        return OAR_E_NOMEM;
    f->kept += cost;
    in->target = in->kept->data;
    return OAR_OK;
}

oar_status oari_match_begin(oari_match *match, int source, uint64_t tag,
                            size_t bytes, oari_inbound *in)
{
    oari_offer is = { .source = source, .tag = tag, .bytes = bytes };

    *in = (oari_inbound){ .bytes = bytes };
    if (match->aborted != OAR_OK)
        return OAR_OK; /* drained */
    in->into = take_posted(match, source, tag);
    if (in->into == NULL)
        return set_aside(match, &is, in);
    say_what_came(in->into, &is);
    match->from[source].received += oari_credit_cost(bytes);
    if (in->into->bytes == bytes)
        in->target = in->into->data;
    return OAR_OK;
}

void oari_match_end(oari_match *match, oari_inbound *in)
{
    oari_message *kept = in->kept;

    if (in->into != NULL)
        oari_transfer_finish(
            in->into, in->into->bytes == in->bytes ? OAR_OK : OAR_E_SIZE);
    else if (kept != NULL) {
        kept->whole = 1;
        if (kept->claimed != NULL)
            hand_over(match, kept, kept->claimed);
    }
    in->into = NULL;
    in->kept = NULL;
}

void oari_match_drop(oari_inbound *in, oar_status why)
{
    if (in->into != NULL)
        oari_transfer_finish(in->into, why);
    *in = (oari_inbound){ 0 };
}

oar_status oari_match_offer(oari_match *match, const oari_offer *offer,
                            const oari_taker *taker)
{
    oari_message *made;
    oar_transfer *t;

    if (match->aborted != OAR_OK)
        return OAR_OK;
    t = take_posted(match, offer->source, offer->tag);
    if (t != NULL) {
        say_what_came(t, offer);
        take_offer(offer, taker, t);
        return OAR_OK;
    }
    if ((made = keep(match, offer, 0)) == NULL)
        return OAR_E_NOMEM;
    made->taker = taker;
    return OAR_OK;
}

/* ---- to oneself ---------------------------------------------------------- */

static oar_status push_self(oari_match *m, oar_transfer *send)
{
    oari_inbound in;

    OARI_TRY(oari_match_begin(m, m->rank, send->tag, send->bytes, &in));
    if (in.target != NULL && send->bytes != 0)
        memmove(in.target, send->data, send->bytes);
    oari_match_end(m, &in);
    oari_transfer_finish(send, OAR_OK);
    return OAR_OK;
}

oar_status oari_match_send_self(oari_match *match, oar_transfer *send)
{
    from *f = &match->from[match->rank];
    oari_offer offer = { .source = match->rank,
                         .tag = send->tag,
                         .bytes = send->bytes };

    if (match->aborted != OAR_OK) {
        oari_transfer_finish(send, match->aborted);
        return OAR_OK;
    }
    if (!send->synchronous && send->bytes <= match->eager_bytes &&
        oari_match_may_push(match, f->kept, 0, send->bytes))
        return push_self(match, send);
    offer.word[0] = ++match->number;
    oari_scratch_set(send, 1, offer.word[0]);
    oari_row_push(&match->own, send);
    return oari_match_offer(match, &offer, &match->self);
}

/* ---- the end ------------------------------------------------------------- */

static void abort_from(from *f, oar_status why)
{
    oari_row_finish(&f->posted, why);
    for (oari_message *each = f->first; each != NULL; each = each->next)
        if (each->claimed != NULL)
            oari_transfer_finish(each->claimed, why);
    drop_messages(f);
    f->kept = 0;
}

void oari_match_abort(oari_match *match, oar_status why)
{
    if (match->aborted != OAR_OK)
        return;
    match->aborted = why;
    match->posted = 0;
    oari_row_finish(&match->any, why);
    oari_row_finish(&match->own, why);
    for (int r = 0; r < match->ranks; r++)
        abort_from(&match->from[r], why);
}

/* ---- credit -------------------------------------------------------------- */

uint64_t oari_match_credit(const oari_match *match)
{
    return match->credit;
}

int oari_match_may_push(const oari_match *match, uint64_t spent, uint64_t back,
                        size_t bytes)
{
    return bytes < match->credit / 4 * OARI_CREDIT_UNIT &&
           spent - back + oari_credit_cost(bytes) <= match->credit;
}

uint64_t oari_match_received(const oari_match *match, int source)
{
    return match->from[source].received;
}
