/* SPDX-License-Identifier: Apache-2.0 */
/* match: see match.h. Receives and messages are kept in lists by source, in the
 * order they came; a number tells the order across lists. */
#include "link/match.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

enum {
    CREDIT_ALL = 64 << 20,    /* eager bytes to a rank from all others ... */
    CREDIT_MOST = 16 << 20,   /* ... but at most this by one, */
    CREDIT_LEAST = 256 << 10, /* and at least this */
    ACTIVE_ROOM = 512,        /* bytes of an active message that is kept ... */
    MOST_SPARES = 256         /* ... for the next one, and how many are */
};

/* A message that came before its receive. */
struct oari_message {
    oari_message *next; /* of the same source */
    uint64_t number;
    oari_offer is;
    const oari_taker *taker; /* of an offer; NULL: eager */
    int whole;               /* its data is all here */
    oar_transfer *claimed;   /* the receive that waits for the rest */
    unsigned char data[];
};

typedef struct from {
    oari_transfer_list posted; /* receives from this source */
    oari_message *first;       /* messages without a receive */
    oari_message *last;
    uint64_t kept;     /* cost of the eager ones among them */
    uint64_t received; /* cost of all eager ones that were received */
} from;

struct oari_match {
    int rank, ranks;
    size_t eager_bytes;
    uint64_t credit; /* of one source */
    oar_status aborted;
    uint64_t number;        /* of the last receive or message */
    int posted;             /* receives in lists */
    oari_transfer_list any; /* receives from any source */
    oari_transfer_list own; /* sends to this rank itself that are offered */
    oari_taker self;        /* copies them */
    oari_message *active, *last_active; /* in the order they came */
    oari_message *spare;                /* of ACTIVE_ROOM bytes */
    int spares;
    from *from; /* by source */
};

/* ---- lists of transfers -------------------------------------------------- */

void oari_transfer_list_push(oari_transfer_list *list, oar_transfer *t)
{
    t->scratch[0] = NULL;
    if (list->last != NULL)
        list->last->scratch[0] = t;
    else
        list->first = t;
    list->last = t;
}

void oari_transfer_list_remove(oari_transfer_list *list, oar_transfer *before,
                               oar_transfer *t)
{
    if (before != NULL)
        before->scratch[0] = oari_transfer_list_next(t);
    else
        list->first = oari_transfer_list_next(t);
    if (list->last == t)
        list->last = before;
}

int oari_transfer_list_has(const oari_transfer_list *list,
                           const oar_transfer *t)
{
    const oar_transfer *at = list->first;

    while (at != NULL && at != t)
        at = oari_transfer_list_next(at);
    return at != NULL;
}

void oari_transfer_list_replace(oari_transfer_list *list, const oar_transfer *t,
                                oar_transfer *with)
{
    oar_transfer *at = list->first;

    with->scratch[0] = t->scratch[0];
    if (at == t)
        list->first = with;
    for (; at != NULL; at = oari_transfer_list_next(at))
        if (oari_transfer_list_next(at) == t)
            at->scratch[0] = with;
    if (list->last == t)
        list->last = with;
}

int oari_transfer_list_drop(oari_transfer_list *list, const oar_transfer *t)
{
    oar_transfer *before = NULL, *at = list->first;

    while (at != NULL && at != t) {
        before = at;
        at = oari_transfer_list_next(at);
    }
    if (at != NULL)
        oari_transfer_list_remove(list, before, at);
    return at != NULL;
}

oar_transfer *oari_transfer_list_take(oari_transfer_list *list, uint64_t number)
{
    oar_transfer *before = NULL, *t = list->first;

    while (t != NULL && oari_scratch(t, 1) != number) {
        before = t;
        t = oari_transfer_list_next(t);
    }
    if (t != NULL)
        oari_transfer_list_remove(list, before, t);
    return t;
}

void oari_transfer_list_finish(oari_transfer_list *list, oar_status status)
{
    oar_transfer *t = list->first, *next;

    for (; t != NULL; t = next) {
        next = oari_transfer_list_next(t);
        oari_transfer_finish(t, status);
    }
    list->first = list->last = NULL;
}

/* ---- making -------------------------------------------------------------- */

static void take_own(void *self, const oari_offer *offer, oar_transfer *into)
{
    oari_match *m = self;
    oar_transfer *send = oari_transfer_list_take(&m->own, offer->word[0]);

    if (into != NULL && into->bytes != 0)
        memmove(into->data, send->data, into->bytes);
    oari_transfer_finish(send, into != NULL ? OAR_OK : OAR_E_SIZE);
    if (into != NULL)
        oari_transfer_finish(into, OAR_OK);
}

oar_status oari_match_create(int rank, int ranks, size_t eager_bytes,
                             oari_match **match)
{
    uint64_t credit_bytes = CREDIT_ALL / (uint64_t)ranks;
    oari_match *m = oari_alloc(1, sizeof *m);

    if (m == NULL)
        return OAR_E_NOMEM;
    if (credit_bytes > CREDIT_MOST)
        credit_bytes = CREDIT_MOST;
    if (credit_bytes < CREDIT_LEAST)
        credit_bytes = CREDIT_LEAST;
    m->rank = rank;
    m->ranks = ranks;
    m->eager_bytes = eager_bytes;
    m->credit = credit_bytes / OARI_CREDIT_UNIT;
    m->self = (oari_taker){ take_own, m };
    m->from = oari_alloc((size_t)ranks, sizeof *m->from);
    if (m->from == NULL) {
        oari_free(m);
        return OAR_E_NOMEM;
    }
    *match = m;
    return OAR_OK;
}

static void drop_list(oari_message *first)
{
    while (first != NULL) {
        oari_message *gone = first;

        first = gone->next;
        oari_free(gone);
    }
}

static void drop_messages(from *f)
{
    drop_list(f->first);
    f->first = f->last = NULL;
}

void oari_match_destroy(oari_match *match)
{
    if (match == NULL)
        return;
    for (int r = 0; r < match->ranks; r++)
        drop_messages(&match->from[r]);
    drop_list(match->active);
    drop_list(match->spare);
    oari_free(match->from);
    oari_free(match);
}

/* ---- finding ------------------------------------------------------------- */

static int tags_match(uint64_t wanted, uint64_t any, uint64_t tag)
{
    return ((wanted ^ tag) & ~any) == 0;
}

static oar_transfer *find_posted(const oari_transfer_list *list, uint64_t tag,
                                 oar_transfer **before)
{
    oar_transfer *t = list->first;

    *before = NULL;
    while (t != NULL && !tags_match(t->tag, t->any, tag)) {
        *before = t;
        t = oari_transfer_list_next(t);
    }
    return t;
}

/* Takes out the earliest receive that wants such a message; NULL: none. */
static oar_transfer *take_posted(oari_match *m, int source, uint64_t tag)
{
    oari_transfer_list *list = &m->from[source].posted;
    oar_transfer *before, *before_any;
    oar_transfer *t = find_posted(list, tag, &before);
    oar_transfer *any = find_posted(&m->any, tag, &before_any);

    if (any != NULL && (t == NULL || oari_scratch(any, 1) < oari_scratch(t, 1)))
        oari_transfer_list_remove(&m->any, before_any, t = any);
    else if (t != NULL)
        oari_transfer_list_remove(list, before, t);
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

/* Writes into a receive what has come for it. From here on a receive of at most
 * that much is one of just that much. */
static void say_what_came(oar_transfer *t, const oari_offer *is)
{
    t->source = is->source;
    t->got_tag = is->tag;
    t->got_bytes = is->bytes;
    if (t->at_most && is->bytes < t->bytes) {
        oari_scratch_set(t, 5, t->bytes); /* for oari_match_repost */
        t->bytes = is->bytes;
    }
}

static void release(oari_match *m, oari_message *message)
{
    from *f = &m->from[message->is.source];
    uint64_t cost = oari_credit_cost(message->is.bytes);
    oari_message **at = &f->first, *before = NULL;

    for (; *at != message; at = &before->next)
        before = *at;
    *at = message->next;
    if (f->last == message)
        f->last = before;
    if (message->taker == NULL) {
        f->kept -= cost;
        f->received += cost;
    }
    oari_free(message);
}

/* An eager message that is whole goes to its receive. */
static void hand_over(oari_match *m, oari_message *message, oar_transfer *t)
{
    int fits = message->is.bytes == t->bytes;

    if (fits && t->bytes != 0)
        memcpy(t->data, message->data, t->bytes);
    release(m, message);
    oari_transfer_finish(t, fits ? OAR_OK : OAR_E_SIZE);
}

/* Tells the link; a receive of another size fails here. */
static void take_offer(const oari_offer *offer, const oari_taker *taker,
                       oar_transfer *t)
{
    int fits = offer->bytes == t->bytes;

    taker->take(taker->self, offer, fits ? t : NULL);
    if (!fits)
        oari_transfer_finish(t, OAR_E_SIZE);
}

oar_status oari_match_recv(oari_match *match, oar_transfer *receive)
{
    oari_message *message;

    if (match->aborted != OAR_OK) {
        oari_transfer_finish(receive, match->aborted);
        return OAR_OK;
    }
    message = find_message(match, receive->peer, receive->tag, receive->any);
    if (message == NULL) {
        match->posted++;
        oari_scratch_set(receive, 1, ++match->number);
        oari_transfer_list_push(receive->peer < 0
                                    ? &match->any
                                    : &match->from[receive->peer].posted,
                                receive);
        return OAR_OK;
    }
    say_what_came(receive, &message->is);
    if (message->taker != NULL) {
        oari_offer is = message->is;
        const oari_taker *taker = message->taker;
        release(match, message);
        take_offer(&is, taker, receive);
    } else if (message->whole)
        hand_over(match, message, receive);
    else
        message->claimed = receive;
    return OAR_OK;
}

/* ---- messages that come -------------------------------------------------- */

/* Makes room for an active message, at the end of their list. */
static oari_message *keep_active(oari_match *m, const oari_offer *is)
{
    size_t room = is->bytes > ACTIVE_ROOM ? is->bytes : ACTIVE_ROOM;
    oari_message *made = is->bytes <= ACTIVE_ROOM ? m->spare : NULL;

    if (made != NULL) {
        m->spare = made->next;
        m->spares--;
    } else if ((made = oari_alloc_aligned(16, sizeof *made + room)) == NULL)
        return NULL;
    *made = (oari_message){ .is = *is };
    if (m->last_active != NULL)
        m->last_active->next = made;
    else
        m->active = made;
    m->last_active = made;
    return made;
}

int oari_match_has_active(const oari_match *match)
{
    return match->active != NULL;
}

/* One that is not whole does not hold up those of other ranks. */
int oari_match_take_active(oari_match *match, oari_active *active)
{
    oari_message **at = &match->active, *before = NULL, *found;

    while (*at != NULL && !(*at)->whole) {
        before = *at;
        at = &before->next;
    }
    if ((found = *at) == NULL)
        return 0;
    *at = found->next;
    if (match->last_active == found)
        match->last_active = before;
    *active =
        (oari_active){ found->is.source, found->is.bytes, found->data, found };
    return 1;
}

void oari_match_release_active(oari_match *match, const oari_active *active)
{
    from *f = &match->from[active->source];
    uint64_t cost = oari_credit_cost(active->bytes);

    if (match->aborted == OAR_OK)
        f->kept -= cost;
    f->received += cost;
    if (active->bytes > ACTIVE_ROOM || match->spares == MOST_SPARES) {
        oari_free(active->message);
        return;
    }
    active->message->next = match->spare;
    match->spare = active->message;
    match->spares++;
}

oar_status oari_match_begin(oari_match *match, int source, uint64_t tag,
                            size_t bytes, oari_inbound *in)
{
    oari_offer is = { .source = source, .tag = tag, .bytes = bytes };
    from *f = &match->from[source];
    uint64_t cost = oari_credit_cost(bytes);

    *in = (oari_inbound){ .bytes = bytes };
    if (match->aborted != OAR_OK)
        return OAR_OK; /* drained */
    if (tag != OARI_ACTIVE_TAG)
        in->into = take_posted(match, source, tag);
    if (in->into != NULL) {
        say_what_came(in->into, &is);
        f->received += cost;
        if (in->into->bytes == bytes)
            in->target = in->into->data;
        return OAR_OK;
    }
    if (f->kept + cost > match->credit)
        return oari_fail(OAR_E_DATA,
                         "rank %d sends %zu bytes more than it may before "
                         "they are received",
                         source, bytes);
    in->kept = tag == OARI_ACTIVE_TAG ? keep_active(match, &is)
                                      : keep(match, &is, bytes);
    if (in->kept == NULL)
        return OAR_E_NOMEM;
    f->kept += cost;
    in->target = in->kept->data;
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

oar_status oari_match_send_self(oari_match *match, oar_transfer *send)
{
    from *f = &match->from[match->rank];
    oari_offer offer = { .source = match->rank,
                         .tag = send->tag,
                         .bytes = send->bytes };
    oari_inbound in;

    if (match->aborted != OAR_OK) {
        oari_transfer_finish(send, match->aborted);
        return OAR_OK;
    }
    if (send->synchronous || send->bytes > match->eager_bytes ||
        !oari_match_has_credit(match, f->kept, 0, send->bytes)) {
        offer.word[0] = ++match->number;
        oari_scratch_set(send, 1, offer.word[0]);
        oari_transfer_list_push(&match->own, send);
        return oari_match_offer(match, &offer, &match->self);
    }
    OARI_TRY(oari_match_begin(match, match->rank, send->tag, send->bytes, &in));
    if (in.target != NULL && send->bytes != 0)
        memmove(in.target, send->data, send->bytes);
    oari_match_end(match, &in);
    oari_transfer_finish(send, OAR_OK);
    return OAR_OK;
}

/* ---- taking back --------------------------------------------------------- */

/* The rest of a message goes to the next receive that wants it, or waits. */
static void pass_on(oari_match *m, oari_message *message)
{
    oar_transfer *next = take_posted(m, message->is.source, message->is.tag);

    message->claimed = next;
    if (next != NULL)
        say_what_came(next, &message->is);
}

static int withdraw_own(oari_match *m, const oar_transfer *send)
{
    if (!oari_transfer_list_drop(&m->own, send))
        return 0;
    for (oari_message *each = m->from[m->rank].first; each != NULL;
         each = each->next)
        if (each->taker == &m->self &&
            each->is.word[0] == oari_scratch(send, 1)) {
            release(m, each);
            break;
        }
    return 1;
}

int oari_match_withdraw(oari_match *match, oar_transfer *transfer)
{
    int source = transfer->peer;

    if (oari_transfer_list_drop(
            source < 0 ? &match->any : &match->from[source].posted, transfer)) {
        match->posted--;
        return 1;
    }
    if (withdraw_own(match, transfer))
        return 1;
    for (int r = source < 0 ? 0 : source;
         r < (source < 0 ? match->ranks : source + 1); r++)
        for (oari_message *each = match->from[r].first; each != NULL;
             each = each->next)
            if (each->claimed == transfer) {
                pass_on(match, each);
                return 1;
            }
    return 0;
}

int oari_match_revoke(oari_match *match, int source, const oari_taker *taker,
                      uint64_t number)
{
    for (oari_message *each = match->from[source].first; each != NULL;
         each = each->next)
        if (each->taker == taker && each->is.word[0] == number) {
            release(match, each);
            return 1;
        }
    return 0;
}

void oari_match_repost(oari_match *match, oar_transfer *receive)
{
    oari_transfer_list *list =
        receive->peer < 0 ? &match->any : &match->from[receive->peer].posted;

    if (receive->at_most && oari_scratch(receive, 5) > receive->bytes)
        receive->bytes = oari_scratch(receive, 5);
    oari_match_recv(match, receive);
    if (!oari_transfer_list_drop(list, receive))
        return; /* it has found another message */
    oari_scratch_set(receive, 1, 0);
    receive->scratch[0] = list->first;
    list->first = receive;
    if (list->last == NULL)
        list->last = receive;
}

/* ---- the end ------------------------------------------------------------- */

void oari_match_abort(oari_match *match, oar_status why)
{
    if (match->aborted != OAR_OK)
        return;
    match->aborted = why;
    match->posted = 0;
    oari_transfer_list_finish(&match->any, why);
    oari_transfer_list_finish(&match->own, why);
    for (int r = 0; r < match->ranks; r++) {
        from *f = &match->from[r];
        oari_transfer_list_finish(&f->posted, why);
        for (oari_message *each = f->first; each != NULL; each = each->next)
            if (each->claimed != NULL)
                oari_transfer_finish(each->claimed, why);
        drop_messages(f);
        f->kept = 0;
    }
    drop_list(match->active);
    match->active = match->last_active = NULL;
}

/* ---- credit -------------------------------------------------------------- */

uint64_t oari_match_credit(const oari_match *match)
{
    return match->credit;
}

int oari_match_has_credit(const oari_match *match, uint64_t spent,
                          uint64_t back, size_t bytes)
{
    return bytes < match->credit / 4 * OARI_CREDIT_UNIT &&
           spent - back + oari_credit_cost(bytes) <= match->credit;
}

int oari_match_has_kept(const oari_match *match, int source)
{
    return match->from[source].first != NULL;
}

uint64_t oari_match_count(oari_match *match, int source, size_t bytes)
{
    return match->from[source].received += oari_credit_cost(bytes);
}

uint64_t oari_match_received(const oari_match *match, int source)
{
    return match->from[source].received;
}
