/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_wait: finds which ranks wait for which.
 *
 * A collective waits for the ranks that have not called it, a message for its
 * match. A wait is strict if the caller does not return before it is over; of a
 * rank that has a strict wait only those count, since the others do not hold it
 * up. A cycle is made of strict waits of ranks that live. */
#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"
#include "autopsy/autopsy.h"

/* ---- finding ------------------------------------------------------------- */

static oar_status add_wait(oari_analysis *a, const oari_wait *w)
{
    OARI_TRY(oari_array_reserve(a->wait, a->waits, a->wait_room, 1));
    a->wait[a->waits++] = *w;
    return OAR_OK;
}

/* Returns whether a peer has posted the other side of a rank's message. */
static int has_match(const oari_member *peer, const oari_op_view *op, int rank)
{
    for (int i = 0; i < peer->ops; i++) {
        const oari_op_view *o = &peer->op[i];

        if (oari_op_open(o) && o->kind >= OAR_COLL_SEND &&
            (o->kind == OAR_COLL_SEND) != (op->kind == OAR_COLL_SEND) &&
            (o->root == rank || o->root == -1) &&
            (o->tag == op->tag || o->tag == -1 || op->tag == -1))
            return 1;
    }
    return 0;
}

/* Adds the wait in an operation, unless all that it needs is there. */
static oar_status add_op(oari_analysis *a, const oari_group_view *g,
                         const oari_member *m, const oari_op_view *op)
{
    oari_wait w = { .in = g,
                    .member = m,
                    .op = op,
                    .age_ns = oari_op_waited(m, op),
                    .strict = op->waited || op->state == OAR_RECORD_FAILED };

    if (op->kind < OAR_COLL_SEND)
        return oari_group_lacks(g, op->number) > 0 ? add_wait(a, &w) : OAR_OK;
    if (op->state == OAR_RECORD_FAILED && g->fault == NULL)
        return OAR_OK; /* its size was wrong; nothing waits */
    if (oari_op_is_call(op) && op->root == m->rank)
        return OAR_OK; /* of itself: it waits for what its function does */
    if (op->root >= 0 && op->root < g->ranks) {
        w.peer = &g->member[op->root];
        if (!oari_op_is_call(op) && has_match(w.peer, op, m->rank) &&
            !oari_dump_gone(w.peer->dump))
            return OAR_OK;
    } else
        for (int i = 0; i < g->ranks; i++)
            if (has_match(&g->member[i], op, m->rank))
                return OAR_OK;
    return add_wait(a, &w);
}

/* Finds the waits of one member. A member that waits for a message is in that,
 * although its group is at no collective. */
static oar_status add_member(oari_analysis *a, const oari_group_view *g,
                             oari_member *m)
{
    int all_joined = 1;

    if (m->arrival == OARI_JOINING) {
        oari_wait w = { .in = g, .member = m, .strict = 1 };

        w.age_ns = m->dump->now_ns - m->ring->base_ns;
        if (w.age_ns < 0)
            w.age_ns = 0;
        for (int i = 0; i < g->ranks; i++)
            all_joined &= g->member[i].ring != NULL;
        return all_joined ? OAR_OK : add_wait(a, &w);
    }
    for (int i = 0; i < m->ops; i++) {
        const oari_op_view *op = &m->op[i];

        if (oari_op_open(op))
            OARI_TRY(add_op(a, g, m, op));
        if (m->arrival == OARI_IDLE && op->kind >= OAR_COLL_SEND &&
            op->waited && op->state == OAR_RECORD_POSTED)
            m->arrival = OARI_WAITS;
    }
    return OAR_OK;
}

/* ---- questions ----------------------------------------------------------- */

int oari_waits_for(const oari_wait *w, const oari_member *m)
{
    if (w->op == NULL)
        return m->ring == NULL;
    if (w->op->kind >= OAR_COLL_SEND)
        return w->peer != NULL && w->peer == m;
    return m->last < w->op->number;
}

const oari_member *oari_wait_target(const oari_wait *w)
{
    for (int i = 0; i < w->in->ranks; i++)
        if (oari_waits_for(w, &w->in->member[i]))
            return &w->in->member[i];
    return NULL;
}

int oari_wait_counts(const oari_wait *w)
{
    if (w->op == NULL || w->op->kind < OAR_COLL_SEND)
        return 1;
    return w->strict && w->peer != NULL &&
           (w->op->tag <= UINT32_MAX || oari_op_is_call(w->op));
}

const oari_wait *oari_waits_longest(const oari_analysis *a, int64_t older_ns,
                                    int alive)
{
    const oari_wait *longest = NULL;

    for (int i = 0; i < a->waits; i++) {
        const oari_wait *w = &a->wait[i];

        if (w->age_ns < older_ns || !oari_wait_counts(w) ||
            (alive && (oari_dump_gone(w->member->dump) ||
                       (w->op != NULL && w->op->state != OAR_RECORD_POSTED))))
            continue;
        if (longest == NULL || w->age_ns > longest->age_ns)
            longest = w;
    }
    return longest;
}

const oari_wait *oari_wait_of_rank(const oari_analysis *a, int rank)
{
    const oari_wait *longest = NULL;

    for (int i = 0; i < a->waits; i++) {
        const oari_wait *w = &a->wait[i];

        if (w->strict && w->member->world == rank && rank >= 0 &&
            oari_wait_target(w) != NULL &&
            (longest == NULL || w->age_ns > longest->age_ns))
            longest = w;
    }
    return longest;
}

const oari_wait *oari_wait_for_rank(const oari_analysis *a, int rank)
{
    const oari_wait *longest = NULL;

    for (int i = 0; i < a->waits; i++) {
        const oari_wait *w = &a->wait[i];

        for (int r = 0; r < w->in->ranks; r++) {
            const oari_member *m = &w->in->member[r];

            if (m->world == rank && m != w->member && oari_waits_for(w, m) &&
                (longest == NULL || w->age_ns > longest->age_ns))
                longest = w;
        }
    }
    return longest;
}

const oari_wait *oari_wait_follow(const oari_analysis *a, const oari_wait *w)
{
    for (int i = 0; i < a->autopsy->ranks; i++) {
        const oari_member *target = oari_wait_target(w);
        const oari_wait *next;

        if (target == NULL || oari_dump_gone(target->dump) ||
            (target->dump != NULL &&
             target->dump->life == OARI_PROCESS_STOPPED) ||
            (next = oari_wait_of_rank(a, target->world)) == NULL)
            break;
        w = next;
    }
    return w;
}

/* ---- cycles -------------------------------------------------------------- */

typedef struct search {
    const oari_analysis *a;
    int ranks;
    unsigned char *link; /* ranks x ranks: the first waits for the second */
    unsigned char *seen; /* 1: on the path, 2: done with */
    int *path, length;
    int from; /* where on the path the cycle begins; -1: none is found yet */
} search;

/* Returns whether a member can neither go on nor be the cause by itself. */
static int may_be_in_cycle(const oari_member *m)
{
    return m->dump != NULL && m->world >= 0 && !oari_dump_gone(m->dump) &&
           m->dump->life != OARI_PROCESS_STOPPED;
}

/* Where all ranks that wait are gone, the waits are those of their last moment,
 * and all of them count. */
static void draw_links(search *s)
{
    int all_gone = 1;

    for (int i = 0; i < s->a->waits; i++)
        all_gone &= oari_dump_gone(s->a->wait[i].member->dump);
    for (int i = 0; i < s->a->waits; i++) {
        const oari_wait *w = &s->a->wait[i];
        int rank = w->member->world;

        if (!w->strict || rank < 0 || rank >= s->ranks ||
            !(all_gone || may_be_in_cycle(w->member)))
            continue;
        for (int r = 0; r < w->in->ranks; r++) {
            const oari_member *m = &w->in->member[r];

            if (m != w->member && m->world >= 0 && m->world < s->ranks &&
                oari_waits_for(w, m) && (all_gone || may_be_in_cycle(m)))
                s->link[(size_t)rank * (size_t)s->ranks + (size_t)m->world] = 1;
        }
    }
}

/* Searches onward from a rank. Each rank is entered once, so the depth is at
 * most the number of ranks. */
static void search_from(search *s, int rank)
{
    s->seen[rank] = 1;
    s->path[s->length++] = rank;
    for (int to = 0; to < s->ranks && s->from < 0; to++) {
        if (!s->link[(size_t)rank * (size_t)s->ranks + (size_t)to])
            continue;
        if (s->seen[to] == 0)
            search_from(s, to);
        else if (s->seen[to] == 1)
            for (int i = 0; i < s->length; i++)
                if (s->path[i] == to)
                    s->from = i;
    }
    if (s->from >= 0)
        return;
    s->length--;
    s->seen[rank] = 2;
}

static oar_status find_cycle(oari_analysis *a)
{
    search s = { .a = a, .ranks = a->autopsy->ranks, .from = -1 };
    size_t n = (size_t)s.ranks;
    oar_status status = OAR_E_NOMEM;

    s.link = oari_alloc(n, n);
    s.seen = oari_alloc(n, 1);
    s.path = oari_alloc(n, sizeof *s.path);
    a->cycle = oari_alloc(n, sizeof *a->cycle);
    if (s.link != NULL && s.seen != NULL && s.path != NULL &&
        a->cycle != NULL) {
        draw_links(&s);
        for (int r = 0; r < s.ranks && s.from < 0; r++)
            if (s.seen[r] == 0)
                search_from(&s, r);
        for (int i = s.from; i >= 0 && i < s.length; i++)
            a->cycle[a->cycles++] = s.path[i];
        status = OAR_OK;
    }
    oari_free(s.link);
    oari_free(s.seen);
    oari_free(s.path);
    return status;
}

oar_status oari_waits_find(oari_analysis *a)
{
    unsigned char held[OARI_MEMBERS] = { 0 };
    int kept = 0;

    for (int i = 0; i < a->groups; i++)
        for (int r = 0; r < a->group[i].ranks; r++)
            if (a->group[i].member[r].ring != NULL)
                OARI_TRY(add_member(a, &a->group[i], &a->group[i].member[r]));
    for (int i = 0; i < a->waits; i++)
        if (a->wait[i].strict && a->wait[i].member->world >= 0)
            held[a->wait[i].member->world] = 1;
    for (int i = 0; i < a->waits; i++) {
        const oari_wait *w = &a->wait[i];

        if (w->strict || w->member->world < 0 || !held[w->member->world])
            a->wait[kept++] = *w;
    }
    a->waits = kept;
    return a->autopsy->ranks > 0 ? find_cycle(a) : OAR_OK;
}
