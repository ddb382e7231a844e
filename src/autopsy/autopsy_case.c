/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_case: rings of many boxes joined into groups, and where each group
 * is.
 *
 * Collectives have the same number on all ranks, so a group is at the lowest
 * number that somebody has begun and not ended and somebody else has not come
 * to; if there is none such, at the lowest that is not ended. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"
#include "autopsy/autopsy.h"
#include "record/recorder.h"

/* ---- facts about a part -------------------------------------------------- */

int oari_witness_gone(const oari_witness *w)
{
    return w->note[0] != 0 || w->life == OARI_LIFE_DEAD ||
           w->life == OARI_LIFE_EXITED;
}

int oari_witness_died(const oari_witness *w)
{
    if (w->note[0] != 0)
        return strcmp(w->note, "exit code 0") != 0;
    return w->life == OARI_LIFE_DEAD;
}

int oari_part_gone(const oari_part *p)
{
    return p->witness != NULL && oari_witness_gone(p->witness);
}

int oari_op_open(const oari_op *op)
{
    return op->state != OAR_RECORD_DONE;
}

const oari_op *oari_part_number(const oari_part *p, uint64_t number)
{
    for (int i = p->ops - 1; i >= 0; i--)
        if (p->op[i].number == number && number != 0)
            return &p->op[i];
    return NULL;
}

const oari_op *oari_part_newest(const oari_part *p)
{
    return p->ops > 0 ? &p->op[p->ops - 1] : NULL;
}

static int64_t since(int64_t then, int64_t now)
{
    int64_t past;

    if (then <= 0 || __builtin_sub_overflow(now, then, &past) || past < 0)
        return 0;
    return past;
}

int64_t oari_op_waited(const oari_part *p, const oari_op *op)
{
    return since(op->posted_ns, op->state == OAR_RECORD_POSTED
                                    ? p->witness->now_ns
                                    : op->done_ns);
}

int64_t oari_op_age(const oari_part *p, const oari_op *op)
{
    return since(op->state == OAR_RECORD_POSTED ? op->posted_ns : op->done_ns,
                 p->witness->now_ns);
}

oar_record oari_op_record(const oari_part *p, const oari_op *op)
{
    oar_record r = { .size = sizeof r };

    oari_ring_find(p->ring, p->rate, op->sequence, &r);
    return r;
}

/* ---- the operations of a part -------------------------------------------- */

/* The counter's rate, better than the ring's own guess if we know how far it
 * has come since. */
static double rate_of(const oari_witness *w, const oari_ring *r)
{
    double ns = (double)w->look_ns - (double)r->base_ns;
    double ticks = (double)w->look_ticks - (double)r->base_ticks;
    double rate = ticks / ns * 1e9;

    if (w->look_ns == 0 || !(ns > 1e9) || !(ticks > 0))
        return 0;
    /* a clock that was set, or a box that lies */
    return rate > r->ticks_per_second * 0.99 &&
                   rate < r->ticks_per_second * 1.01
               ? rate
               : 0;
}

static oari_op op_of(const oar_record *r)
{
    return (oari_op){ .sequence = r->sequence,
                      .number = r->number,
                      .count = r->count,
                      .posted_ns = r->posted_ns,
                      .done_ns = r->done_ns,
                      .tag = r->tag,
                      .kind = r->kind,
                      .op = r->op,
                      .dtype = r->dtype,
                      .root = r->root,
                      .state = r->state,
                      .waited = (unsigned char)r->waited,
                      .ragged = (unsigned char)r->ragged };
}

/* Threads that post messages and collectives at once may count a message too
 * late for a collective, whose number is then too high. But numbers follow each
 * other, and the ones that are right tell what the others should be. Looks at
 * the newest operations, as far as none is missing between them. */
static void renumber(oari_part *p)
{
    uint64_t above = 0, lowest = UINT64_MAX;
    int first = p->ops;

    while (first > 0 && (first == p->ops || p->op[first - 1].sequence + 1 ==
                                                p->op[first].sequence))
        first--;
    for (int i = p->ops - 1; i >= first; i--)
        if (p->op[i].number != 0 && p->op[i].number + above++ < lowest)
            lowest = p->op[i].number + above - 1;
    p->last = above > 0 ? lowest : 0;
    for (int i = p->ops - 1; i >= first; i--)
        if (p->op[i].number != 0)
            p->op[i].number = lowest > 0 ? lowest-- : 0;
    for (int i = 0; i < first; i++)
        if (p->op[i].number > p->last)
            p->last = p->op[i].number;
}

static oar_status read_ops(oari_part *p)
{
    uint64_t newest = oari_ring_newest(p->ring), at = 1;
    oar_record r;

    p->op = oari_alloc(OAR_RECORDS, sizeof *p->op);
    if (p->op == NULL)
        return OAR_E_NOMEM;
    if (newest > OAR_RECORDS)
        at = newest - OAR_RECORDS + 1;
    for (; at <= newest && at != 0; at++)
        if (oari_ring_find(p->ring, p->rate, at, &r))
            p->op[p->ops++] = op_of(&r);
    renumber(p);
    return OAR_OK;
}

/* ---- which group --------------------------------------------------------- */

static int same_group(const oari_case *c, const oari_ring *r, int witness)
{
    return c->ranks == r->ranks && c->ring->instance == r->instance &&
           c->ring->epoch == r->epoch &&
           (r->ranks > 1 || c->witness == witness) &&
           strcmp(c->ring->group, r->group) == 0;
}

static oar_status new_case(oari_inquest *q, const oari_ring *r, int witness,
                           oari_case **made)
{
    oari_case *c;

    OARI_TRY(oari_array_reserve(q->item, q->items, q->room, 1));
    c = &q->item[q->items];
    *c = (oari_case){ .ring = r,
                      .witness = witness,
                      .ranks = r->ranks,
                      .teller = -1,
                      .differs = -1,
                      .broken = -1 };
    c->part = oari_alloc((size_t)r->ranks, sizeof *c->part);
    if (c->part == NULL)
        return OAR_E_NOMEM;
    q->items++;
    *made = c;
    return OAR_OK;
}

static oar_status find_case(oari_inquest *q, const oari_ring *r, int witness,
                            oari_case **found)
{
    for (int i = 0; i < q->items; i++)
        if (same_group(&q->item[i], r, witness)) {
            *found = &q->item[i];
            return OAR_OK;
        }
    return new_case(q, r, witness, found);
}

static oar_status add_ring(oari_inquest *q, int witness, const oari_ring *r)
{
    const oari_witness *w = &q->autopsy->witness[witness];
    oari_case *c;
    oari_part *p;

    OARI_TRY(find_case(q, r, witness, &c));
    p = &c->part[r->rank];
    if (p->ring != NULL)
        return OAR_OK; /* two that say they are the same rank: the first */
    p->ring = r;
    p->witness = w;
    p->rate = rate_of(w, r);
    return read_ops(p);
}

/* ---- whose parts --------------------------------------------------------- */

/* A ring that tells the members, or NULL: they are those of the world. */
static const oari_ring *roll_of(const oari_case *c)
{
    for (int i = 0; i < c->ranks; i++)
        if (c->part[i].ring != NULL &&
            atomic_load(&c->part[i].ring->members) != 0)
            return c->part[i].ring;
    return NULL;
}

static int world_rank(const oari_part *p, const oari_ring *roll, int is_world)
{
    if (roll != NULL)
        return roll->member[p->rank];
    if (p->witness != NULL && !p->witness->image.box->head.threads)
        return p->witness->rank;
    return p->witness != NULL || is_world ? p->rank : -1;
}

/* Members that are not placed yet know only themselves; unless it is as large
 * as the world. */
static void name_parts(const oari_inquest *q, oari_case *c)
{
    const oari_ring *roll = roll_of(c);
    int is_world = c->ranks == q->autopsy->ranks;

    for (int i = 0; i < c->ranks; i++) {
        oari_part *p = &c->part[i];

        p->rank = i;
        p->world = world_rank(p, roll, is_world);
        if (p->witness == NULL && p->world >= 0)
            p->witness = oari_autopsy_of(q->autopsy, p->world);
        if (p->witness != NULL && p->witness->image.box == NULL)
            p->witness = NULL;
    }
}

/* ---- where the group is -------------------------------------------------- */

static int ring_state(const oari_part *p)
{
    return p->ring != NULL ? (int)atomic_load(&p->ring->state) : OARI_RING_FREE;
}

static int lacks(const oari_case *c, uint64_t number)
{
    int missing = 0;

    for (int i = 0; i < c->ranks; i++)
        missing += c->part[i].last < number;
    return missing;
}

/* The lowest number above `after` that is begun and not ended; 0: none. */
static uint64_t next_open(const oari_case *c, uint64_t after)
{
    uint64_t lowest = 0;

    for (int r = 0; r < c->ranks; r++)
        for (int i = 0; i < c->part[r].ops; i++) {
            const oari_op *op = &c->part[r].op[i];

            if (op->number > after && oari_op_open(op) &&
                (lowest == 0 || op->number < lowest))
                lowest = op->number;
        }
    return lowest;
}

static uint64_t find_number(const oari_case *c)
{
    uint64_t first = next_open(c, 0), at = first;

    while (at != 0 && lacks(c, at) == 0)
        at = next_open(c, at);
    return at != 0 ? at : first;
}

static oari_here here_of(const oari_case *c, const oari_part *p)
{
    if (p->witness == NULL)
        return OARI_UNKNOWN;
    if (p->ring == NULL)
        return OARI_ABSENT;
    if (ring_state(p) == OARI_RING_JOINING)
        return OARI_JOINING;
    if (c->number == 0)
        return OARI_IDLE;
    if (p->last < c->number)
        return ring_state(p) == OARI_RING_ENDED ? OARI_LEFT : OARI_MISSING;
    if (p->at == NULL || p->at->state == OAR_RECORD_DONE)
        return OARI_DONE_WITH;
    return p->at->state == OAR_RECORD_FAILED ? OARI_FAILED_IN : OARI_WAITS;
}

static void place_parts(oari_case *c)
{
    for (int i = 0; i < c->ranks; i++) {
        oari_part *p = &c->part[i];

        p->at = oari_part_number(p, c->number);
        p->here = here_of(c, p);
        c->joining |= p->here == OARI_JOINING;
        if (p->here == OARI_WAITS || p->here == OARI_FAILED_IN) {
            int64_t waited = oari_op_waited(p, p->at);

            c->waiting++;
            if (waited > c->since_ns)
                c->since_ns = waited;
        }
        c->missing += p->here == OARI_MISSING || p->here == OARI_LEFT ||
                      p->here == OARI_ABSENT || p->here == OARI_UNKNOWN;
        if (c->broken < 0 && p->ring != NULL &&
            atomic_load(&p->ring->fault.ready))
            c->broken = i;
    }
}

/* Whether two ranks mean the same collective. Counts are the same for those
 * kinds where every rank has all of it. */
static int same_call(const oari_op *a, const oari_op *b)
{
    int counts =
        (a->kind == OAR_COLL_BROADCAST || a->kind == OAR_COLL_ALL_REDUCE ||
         a->kind == OAR_COLL_REDUCE) &&
        !a->ragged;

    return a->kind == b->kind && a->ragged == b->ragged && a->op == b->op &&
           (a->kind == OAR_COLL_BARRIER || a->dtype == b->dtype) &&
           a->root == b->root && (!counts || a->count == b->count);
}

static int agreeing(const oari_case *c, const oari_op *with)
{
    int count = 0;

    for (int i = 0; i < c->ranks; i++)
        count += c->part[i].at != NULL && same_call(c->part[i].at, with);
    return count;
}

/* The teller speaks for the most; the other is the first who differs. */
static void compare_calls(oari_case *c)
{
    const oari_op *mine = NULL, *op;
    int most = 0;

    for (int i = 0; i < c->ranks; i++)
        if ((op = c->part[i].at) != NULL && agreeing(c, op) > most) {
            most = agreeing(c, op);
            c->teller = i;
            mine = op;
        }
    for (int i = 0; mine != NULL && i < c->ranks && c->differs < 0; i++)
        if ((op = c->part[i].at) != NULL && !same_call(op, mine))
            c->differs = i;
}

static int has_open_message(const oari_case *c)
{
    for (int r = 0; r < c->ranks; r++)
        for (int i = 0; i < c->part[r].ops; i++)
            if (c->part[r].op[i].number == 0 &&
                c->part[r].op[i].state == OAR_RECORD_POSTED)
                return 1;
    return 0;
}

static int has_dead(const oari_case *c)
{
    for (int i = 0; i < c->ranks; i++)
        if (c->part[i].ring != NULL &&
            ring_state(&c->part[i]) != OARI_RING_ENDED &&
            oari_witness_died(c->part[i].witness))
            return 1;
    return 0;
}

static void find_place(oari_case *c)
{
    c->number = find_number(c);
    place_parts(c);
    if (c->number != 0)
        compare_calls(c);
    c->idle = c->number == 0 && !c->joining && c->broken < 0 &&
              !has_open_message(c) && !has_dead(c);
}

oar_status oari_cases_join(oari_inquest *q)
{
    const oar_autopsy *a = q->autopsy;

    for (int w = 0; w < a->witnesses; w++) {
        const oari_image *image = &a->witness[w].image;

        for (int i = 0; image->box != NULL && i < image->rings; i++) {
            const oari_ring *r = oari_image_ring(image, i);

            if (r != NULL && r->pid == atomic_load(&image->box->head.owner))
                OARI_TRY(add_ring(q, w, r));
        }
    }
    for (int i = 0; i < q->items; i++) {
        name_parts(q, &q->item[i]);
        find_place(&q->item[i]);
    }
    return OAR_OK;
}
