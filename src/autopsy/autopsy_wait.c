/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_wait: who waits for whom.
 *
 * An operation waits for the ranks that have not come to it, a message for the
 * other side that is not posted. A rank waits strictly if its caller does not
 * return before; of a rank that has such an operation only those count, since
 * what it posted besides does not hold it up. A circle is made of strict waits
 * of ranks that live. */
#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"
#include "autopsy/autopsy.h"

static oar_status add_wait(oari_inquest *q, const oari_wait *w)
{
    OARI_TRY(oari_array_reserve(q->wait, q->waits, q->wait_room, 1));
    q->wait[q->waits++] = *w;
    return OAR_OK;
}

/* ---- messages ------------------------------------------------------------ */

static int tags_match(int64_t a, int64_t b)
{
    return a == b || a == -1 || b == -1;
}

/* Whether the other side of a message is posted there. */
static int is_met(const oari_part *peer, const oari_op *op, int rank)
{
    for (int i = 0; i < peer->ops; i++) {
        const oari_op *o = &peer->op[i];

        if (oari_op_open(o) && o->kind >= OAR_COLL_SEND &&
            (o->kind == OAR_COLL_SEND) != (op->kind == OAR_COLL_SEND) &&
            (o->root == rank || o->root == -1) && tags_match(o->tag, op->tag))
            return 1;
    }
    return 0;
}

static oar_status wait_for_message(oari_inquest *q, oari_wait *w)
{
    const oari_case *c = w->in;
    int peer = w->op->root, rank = w->part->rank;

    if (peer >= 0 && peer < c->ranks) {
        w->peer = &c->part[peer];
        if (is_met(w->peer, w->op, rank) && !oari_part_gone(w->peer))
            return OAR_OK;
    } else
        for (int i = 0; i < c->ranks; i++)
            if (is_met(&c->part[i], w->op, rank))
                return OAR_OK;
    return add_wait(q, w);
}

/* ---- collectives --------------------------------------------------------- */

static int lacks_somebody(const oari_case *c, uint64_t number)
{
    for (int i = 0; i < c->ranks; i++)
        if (c->part[i].last < number)
            return 1;
    return 0;
}

static oar_status wait_in(oari_inquest *q, const oari_case *c,
                          const oari_part *p, const oari_op *op)
{
    oari_wait w = { .in = c,
                    .part = p,
                    .op = op,
                    .age_ns = oari_op_waited(p, op),
                    .strict = op->waited || op->state == OAR_RECORD_FAILED };

    if (op->kind >= OAR_COLL_SEND)
        return op->state == OAR_RECORD_FAILED && c->broken < 0
                   ? OAR_OK /* of another size; nothing waits */
                   : wait_for_message(q, &w);
    return lacks_somebody(c, op->number) ? add_wait(q, &w) : OAR_OK;
}

static oar_status wait_to_join(oari_inquest *q, const oari_case *c,
                               const oari_part *p)
{
    oari_wait w = { .in = c, .part = p, .strict = 1 };

    w.age_ns = p->witness->now_ns - p->ring->base_ns;
    if (w.age_ns < 0)
        w.age_ns = 0;
    for (int i = 0; i < c->ranks; i++)
        if (c->part[i].ring == NULL)
            return add_wait(q, &w);
    return OAR_OK;
}

static oar_status wait_of(oari_inquest *q, const oari_case *c,
                          const oari_part *p)
{
    if (p->here == OARI_JOINING)
        return wait_to_join(q, c, p);
    for (int i = 0; i < p->ops; i++)
        if (oari_op_open(&p->op[i]))
            OARI_TRY(wait_in(q, c, p, &p->op[i]));
    return OAR_OK;
}

/* ---- asking -------------------------------------------------------------- */

int oari_waits_for(const oari_wait *w, const oari_part *p)
{
    if (w->op == NULL)
        return p->ring == NULL;
    if (w->op->kind >= OAR_COLL_SEND)
        return w->peer != NULL && w->peer == p;
    return p->last < w->op->number;
}

const oari_part *oari_wait_target(const oari_wait *w)
{
    for (int i = 0; i < w->in->ranks; i++)
        if (oari_waits_for(w, &w->in->part[i]))
            return &w->in->part[i];
    return NULL;
}

int oari_wait_counts(const oari_wait *w)
{
    if (w->op == NULL || w->op->kind < OAR_COLL_SEND)
        return 1;
    return w->strict && w->peer != NULL && w->op->tag <= UINT32_MAX;
}

const oari_wait *oari_waits_longest(const oari_inquest *q, int64_t older_ns,
                                    int alive)
{
    const oari_wait *longest = NULL;

    for (int i = 0; i < q->waits; i++) {
        const oari_wait *w = &q->wait[i];

        if (w->age_ns < older_ns || !oari_wait_counts(w) ||
            (alive && (oari_part_gone(w->part) ||
                       (w->op != NULL && w->op->state != OAR_RECORD_POSTED))))
            continue;
        if (longest == NULL || w->age_ns > longest->age_ns)
            longest = w;
    }
    return longest;
}

/* ---- circles ------------------------------------------------------------- */

typedef struct search {
    const oari_inquest *q;
    int ranks;
    unsigned char *link; /* ranks x ranks: the first waits for the second */
    unsigned char *seen; /* 1: on the way, 2: done with */
    int *way, length;    /* the way here */
    int from;            /* where on it the circle begins; -1: none yet */
} search;

/* Only one that can neither go on nor be the cause by itself. */
static int may_be_in_circle(const oari_part *p)
{
    return p->witness != NULL && p->world >= 0 && !oari_part_gone(p) &&
           p->witness->life != OARI_LIFE_STOPPED;
}

/* After the end of all of them they are what they were. */
static int all_gone(const oari_inquest *q)
{
    for (int i = 0; i < q->waits; i++)
        if (!oari_part_gone(q->wait[i].part))
            return 0;
    return 1;
}

static void draw_links(search *s)
{
    int dead = all_gone(s->q);

    for (int i = 0; i < s->q->waits; i++) {
        const oari_wait *w = &s->q->wait[i];

        if (!w->strict || w->part->world < 0 || w->part->world >= s->ranks ||
            !(dead || may_be_in_circle(w->part)))
            continue;
        for (int r = 0; r < w->in->ranks; r++) {
            const oari_part *p = &w->in->part[r];

            if (p != w->part && p->world >= 0 && p->world < s->ranks &&
                oari_waits_for(w, p) && (dead || may_be_in_circle(p)))
                s->link[(size_t)w->part->world * (size_t)s->ranks +
                        (size_t)p->world] = 1;
        }
    }
}

/* Deeper by one for each rank at most, and each only once. */
static void walk(search *s, int rank)
{
    s->seen[rank] = 1;
    s->way[s->length++] = rank;
    for (int to = 0; to < s->ranks && s->from < 0; to++) {
        if (!s->link[(size_t)rank * (size_t)s->ranks + (size_t)to])
            continue;
        if (s->seen[to] == 0)
            walk(s, to);
        else if (s->seen[to] == 1)
            for (int i = 0; i < s->length; i++)
                if (s->way[i] == to)
                    s->from = i;
    }
    if (s->from >= 0)
        return;
    s->length--;
    s->seen[rank] = 2;
}

static void keep_circle(oari_inquest *q, const search *s)
{
    for (int i = s->from; i < s->length; i++)
        q->circle[q->circles++] = s->way[i];
}

static oar_status find_circle(oari_inquest *q)
{
    search s = { .q = q, .ranks = q->autopsy->ranks, .from = -1 };
    size_t n = (size_t)s.ranks;
    oar_status status = OAR_E_NOMEM;

    s.link = oari_alloc(n, n);
    s.seen = oari_alloc(n, 1);
    s.way = oari_alloc(n, sizeof *s.way);
    q->circle = oari_alloc(n, sizeof *q->circle);
    if (s.link != NULL && s.seen != NULL && s.way != NULL &&
        q->circle != NULL) {
        draw_links(&s);
        for (int r = 0; r < s.ranks && s.from < 0; r++)
            if (s.seen[r] == 0)
                walk(&s, r);
        if (s.from >= 0)
            keep_circle(q, &s);
        status = OAR_OK;
    }
    oari_free(s.link);
    oari_free(s.seen);
    oari_free(s.way);
    return status;
}

/* Drops what a rank waits for besides. */
static void keep_strict(oari_inquest *q)
{
    unsigned char held[OARI_MEMBERS] = { 0 };
    int kept = 0;

    for (int i = 0; i < q->waits; i++)
        if (q->wait[i].strict && q->wait[i].part->world >= 0)
            held[q->wait[i].part->world] = 1;
    for (int i = 0; i < q->waits; i++) {
        const oari_wait *w = &q->wait[i];

        if (w->strict || w->part->world < 0 || !held[w->part->world])
            q->wait[kept++] = *w;
    }
    q->waits = kept;
}

/* A rank that waits for a message is in it, though its group is at nothing. */
static void mark_message(oari_part *p)
{
    for (int i = 0; i < p->ops && p->here == OARI_IDLE; i++)
        if (p->op[i].kind >= OAR_COLL_SEND && p->op[i].waited &&
            p->op[i].state == OAR_RECORD_POSTED)
            p->here = OARI_WAITS;
}

oar_status oari_waits_find(oari_inquest *q)
{
    for (int i = 0; i < q->items; i++)
        for (int r = 0; r < q->item[i].ranks; r++) {
            oari_part *p = &q->item[i].part[r];

            if (p->ring == NULL)
                continue;
            OARI_TRY(wait_of(q, &q->item[i], p));
            mark_message(p);
        }
    keep_strict(q);
    return q->autopsy->ranks > 0 ? find_circle(q) : OAR_OK;
}
