/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_group: joins the rings of many dumps into groups, and finds the
 * operation that each group is at.
 *
 * Collectives have the same number on all ranks, so a group is at the lowest
 * number that one rank has begun and not ended and another has not called; if
 * there is none, at the lowest that is not ended. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"
#include "autopsy/autopsy.h"
#include "record/recorder.h"

/* ---- facts about a member ------------------------------------------------ */

int oari_op_open(const oari_op_view *op)
{
    return op->state != OAR_RECORD_DONE;
}

const oari_op_view *oari_member_number(const oari_member *m, uint64_t number)
{
    for (int i = m->ops - 1; i >= 0; i--)
        if (m->op[i].number == number && number != 0)
            return &m->op[i];
    return NULL;
}

const oari_op_view *oari_member_newest(const oari_member *m)
{
    return m->ops > 0 ? &m->op[m->ops - 1] : NULL;
}

int oari_group_lacks(const oari_group_view *g, uint64_t number)
{
    int missing = 0;

    for (int i = 0; i < g->ranks; i++)
        missing += g->member[i].last < number;
    return missing;
}

static int64_t time_between(int64_t then, int64_t now)
{
    int64_t past;

    if (then <= 0 || __builtin_sub_overflow(now, then, &past) || past < 0)
        return 0;
    return past;
}

int64_t oari_op_waited(const oari_member *m, const oari_op_view *op)
{
    return time_between(op->posted_ns, op->state == OAR_RECORD_POSTED
                                           ? m->dump->now_ns
                                           : op->done_ns);
}

int64_t oari_op_age(const oari_member *m, const oari_op_view *op)
{
    return time_between(op->state == OAR_RECORD_POSTED ? op->posted_ns
                                                       : op->done_ns,
                        m->dump->now_ns);
}

oar_record oari_op_record(const oari_member *m, const oari_op_view *op)
{
    oar_record r = { .size = sizeof r };

    oari_ring_find(m->ring, m->rate, op->sequence, &r);
    return r;
}

const oari_member *oari_last_member(const oari_analysis *a, int rank,
                                    const oari_group_view **in)
{
    const oari_member *best = NULL;

    for (int i = 0; i < a->groups; i++)
        for (int r = 0; r < a->group[i].ranks; r++) {
            const oari_member *m = &a->group[i].member[r];

            if (m->world != rank || m->ops == 0)
                continue;
            if (best == NULL || oari_member_newest(m)->posted_ns >
                                    oari_member_newest(best)->posted_ns) {
                best = m;
                *in = &a->group[i];
            }
        }
    return best;
}

/* ---- the operations of a member ------------------------------------------ */

/* Returns the counter's rate, measured from how far the counter has come since
 * the ring was made; 0: the ring's own figure is as good. */
static double measure_rate(const oari_dump *d, const oari_ring *r)
{
    double ns = (double)d->look_ns - (double)r->base_ns;
    double ticks = (double)d->look_ticks - (double)r->base_ticks;
    double rate = ticks / ns * 1e9;

    if (d->look_ns == 0 || !(ns > 1e9) || !(ticks > 0))
        return 0;
    /* otherwise the clock was set, or the file is wrong */
    return rate > r->ticks_per_second * 0.99 &&
                   rate < r->ticks_per_second * 1.01
               ? rate
               : 0;
}

/* Corrects the numbers of collectives. A thread that posts a message beside one
 * that posts a collective may count it too late, and the number of the
 * collective is then too high. But numbers follow each other, so those that are
 * right tell what the others should be. Looks at the newest operations, as far
 * as none is missing between them. */
static void correct_numbers(oari_member *m)
{
    uint64_t above = 0, lowest = UINT64_MAX;
    int first = m->ops;

    while (first > 0 && (first == m->ops || m->op[first - 1].sequence + 1 ==
                                                m->op[first].sequence))
        first--;
    for (int i = m->ops - 1; i >= first; i--)
        if (m->op[i].number != 0 && m->op[i].number + above++ < lowest)
            lowest = m->op[i].number + above - 1;
    m->last = above > 0 ? lowest : 0;
    for (int i = m->ops - 1; i >= first; i--)
        if (m->op[i].number != 0)
            m->op[i].number = lowest > 0 ? lowest-- : 0;
    for (int i = 0; i < first; i++)
        if (m->op[i].number > m->last)
            m->last = m->op[i].number;
}

static oar_status read_ops(oari_member *m)
{
    uint64_t newest = oari_ring_newest(m->ring), at = 1;
    oar_record r;

    m->op = oari_alloc(OAR_RECORDS, sizeof *m->op);
    if (m->op == NULL)
        return OAR_E_NOMEM;
    if (newest > OAR_RECORDS)
        at = newest - OAR_RECORDS + 1;
    for (; at <= newest && at != 0; at++)
        if (oari_ring_find(m->ring, m->rate, at, &r))
            m->op[m->ops++] =
                (oari_op_view){ .sequence = r.sequence,
                                .number = r.number,
                                .count = r.count,
                                .posted_ns = r.posted_ns,
                                .done_ns = r.done_ns,
                                .tag = r.tag,
                                .kind = r.kind,
                                .op = r.op,
                                .dtype = r.dtype,
                                .root = r.root,
                                .state = r.state,
                                .waited = (unsigned char)r.waited,
                                .ragged = (unsigned char)r.ragged };
    correct_numbers(m);
    return OAR_OK;
}

/* ---- joining ------------------------------------------------------------- */

/* Adds a ring to its group, which is made if it is the first. */
static oar_status add_ring(oari_analysis *a, int dump, const oari_ring *r)
{
    oari_group_view *g = NULL;
    oari_member *m;

    for (int i = 0; i < a->groups && g == NULL; i++) {
        oari_group_view *at = &a->group[i];

        if (at->ranks == r->ranks && at->ring->instance == r->instance &&
            at->ring->epoch == r->epoch && (r->ranks > 1 || at->dump == dump) &&
            strcmp(at->ring->group, r->group) == 0)
            g = at;
    }
    if (g == NULL) {
        OARI_TRY(oari_array_reserve(a->group, a->groups, a->group_room, 1));
        g = &a->group[a->groups];
        *g = (oari_group_view){ .ring = r,
                                .dump = dump,
                                .ranks = r->ranks,
                                .teller = -1,
                                .differs = -1 };
        g->member = oari_alloc((size_t)r->ranks, sizeof *g->member);
        if (g->member == NULL)
            return OAR_E_NOMEM;
        a->groups++;
    }
    m = &g->member[r->rank];
    if (m->ring != NULL)
        return OAR_OK; /* of two that claim to be one rank, the first counts */
    m->ring = r;
    m->dump = &a->autopsy->dump[dump];
    m->rate = measure_rate(m->dump, r);
    return read_ops(m);
}

/* Finds the ranks in the world of all members, and their dumps. While no ring
 * lists the members, each knows only itself; unless the group is as large as
 * the world. */
static void name_members(const oari_analysis *a, oari_group_view *g)
{
    int is_world = g->ranks == a->autopsy->ranks;
    const oari_ring *list = NULL;

    for (int i = 0; i < g->ranks && list == NULL; i++)
        if (g->member[i].ring != NULL &&
            atomic_load(&g->member[i].ring->members) != 0)
            list = g->member[i].ring;
    for (int i = 0; i < g->ranks; i++) {
        oari_member *m = &g->member[i];

        m->rank = i;
        if (list != NULL)
            m->world = list->member[i];
        else if (m->dump != NULL && !m->dump->image.box->head.threads)
            m->world = m->dump->rank;
        else
            m->world = m->dump != NULL || is_world ? i : -1;
        if (m->dump == NULL && m->world >= 0)
            m->dump = oari_dump_of_rank(a->autopsy, m->world);
        if (m->dump != NULL && m->dump->image.box == NULL)
            m->dump = NULL;
    }
}

/* ---- where the group is -------------------------------------------------- */

/* Returns the lowest number above `after` that is begun and not ended, or 0. */
static uint64_t next_open(const oari_group_view *g, uint64_t after)
{
    uint64_t lowest = 0;

    for (int r = 0; r < g->ranks; r++)
        for (int i = 0; i < g->member[r].ops; i++) {
            const oari_op_view *op = &g->member[r].op[i];

            if (op->number > after && oari_op_open(op) &&
                (lowest == 0 || op->number < lowest))
                lowest = op->number;
        }
    return lowest;
}

static oari_arrival find_arrival(const oari_group_view *g, const oari_member *m)
{
    uint32_t state;

    if (m->dump == NULL)
        return OARI_UNKNOWN;
    if (m->ring == NULL)
        return OARI_ABSENT;
    state = atomic_load(&m->ring->state);
    if (state == OARI_RING_JOINING)
        return OARI_JOINING;
    if (g->number == 0)
        return OARI_IDLE;
    if (m->last < g->number)
        return state == OARI_RING_ENDED ? OARI_LEFT : OARI_MISSING;
    if (m->at == NULL || m->at->state == OAR_RECORD_DONE)
        return OARI_DONE_WITH;
    return m->at->state == OAR_RECORD_FAILED ? OARI_FAILED_IN : OARI_WAITS;
}

/* Returns whether two ranks mean the same collective. Counts are compared for
 * the kinds in which every rank has all of the data. */
static int same_call(const oari_op_view *a, const oari_op_view *b)
{
    int counts =
        (a->kind == OAR_COLL_BROADCAST || a->kind == OAR_COLL_ALL_REDUCE ||
         a->kind == OAR_COLL_REDUCE) &&
        !a->ragged;

    return a->kind == b->kind && a->ragged == b->ragged && a->op == b->op &&
           (a->kind == OAR_COLL_BARRIER || a->dtype == b->dtype) &&
           a->root == b->root && (!counts || a->count == b->count);
}

/* Finds the member that most others agree with, and the first that differs. */
static void compare_calls(oari_group_view *g)
{
    const oari_op_view *mine = NULL, *op;
    int most = 0;

    for (int i = 0; i < g->ranks; i++) {
        int agree = 0;

        if ((op = g->member[i].at) == NULL)
            continue;
        for (int r = 0; r < g->ranks; r++)
            agree += g->member[r].at != NULL && same_call(g->member[r].at, op);
        if (agree > most) {
            most = agree;
            g->teller = i;
            mine = op;
        }
    }
    for (int i = 0; mine != NULL && i < g->ranks && g->differs < 0; i++)
        if ((op = g->member[i].at) != NULL && !same_call(op, mine))
            g->differs = i;
}

/* Returns whether a member has an open message, or died in the group. */
static int is_unsettled(const oari_member *m)
{
    if (m->ring != NULL && atomic_load(&m->ring->state) != OARI_RING_ENDED &&
        oari_dump_died(m->dump))
        return 1;
    for (int i = 0; i < m->ops; i++)
        if (m->op[i].number == 0 && m->op[i].state == OAR_RECORD_POSTED)
            return 1;
    return 0;
}

/* Finds the operation that a group is at, and where its members are. */
static void find_place(oari_group_view *g)
{
    uint64_t first = next_open(g, 0), at = first;

    while (at != 0 && oari_group_lacks(g, at) == 0)
        at = next_open(g, at);
    g->number = at != 0 ? at : first;
    for (int i = 0; i < g->ranks; i++) {
        oari_member *m = &g->member[i];

        m->at = oari_member_number(m, g->number);
        m->arrival = find_arrival(g, m);
        g->joining |= m->arrival == OARI_JOINING;
        if (m->arrival == OARI_WAITS || m->arrival == OARI_FAILED_IN) {
            int64_t waited = oari_op_waited(m, m->at);

            g->waiting++;
            if (waited > g->since_ns)
                g->since_ns = waited;
        }
        g->missing += m->arrival == OARI_MISSING || m->arrival == OARI_LEFT ||
                      m->arrival == OARI_ABSENT || m->arrival == OARI_UNKNOWN;
        if (g->fault == NULL && m->ring != NULL &&
            atomic_load(&m->ring->fault.ready))
            g->fault = &m->ring->fault;
    }
    if (g->number != 0)
        compare_calls(g);
    g->idle = g->number == 0 && !g->joining && g->fault == NULL;
    for (int i = 0; i < g->ranks && g->idle; i++)
        g->idle = !is_unsettled(&g->member[i]);
}

oar_status oari_groups_join(oari_analysis *a)
{
    for (int d = 0; d < a->autopsy->dumps; d++) {
        const oari_recorder_copy *image = &a->autopsy->dump[d].image;

        for (int i = 0; image->box != NULL && i < image->rings; i++) {
            const oari_ring *r = oari_recorder_copy_ring(image, i);

            if (r != NULL && r->pid == atomic_load(&image->box->head.owner))
                OARI_TRY(add_ring(a, d, r));
        }
    }
    for (int i = 0; i < a->groups; i++) {
        name_members(a, &a->group[i]);
        find_place(&a->group[i]);
    }
    return OAR_OK;
}
