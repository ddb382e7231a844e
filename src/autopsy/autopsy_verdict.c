/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_verdict: chooses the one sentence that says what is wrong with a job.
 * The first of these that holds:
 *
 *   ranks call different operations at the same place
 *   a group broke: the rank that its fault names, or the reason of an abort;
 *   where that rank ended because of another fault, the rank which that names
 *   a rank died
 *   ranks wait for each other in a cycle
 *   a rank waits for one that has not come: following the waits from the
 *   longest, the first rank that does not wait itself
 *   all ranks have been in an operation for very long
 */
#include <stdio.h>
#include <string.h>

#include "autopsy/autopsy.h"

static const int64_t patience_ns = 1000000000, long_ns = 30000000000;

/* ---- deaths -------------------------------------------------------------- */

/* Returns the head of a rank that ended in the middle of a group, however it
 * ended, was seen to end (watchdog.h), and had not been told of a fault; or
 * NULL. */
static const oari_recorder_head *find_fallen(const oari_analysis *a, int rank)
{
    const oari_dump *d = oari_dump_of_rank(a->autopsy, rank);
    int in_a_group = 0;

    if (d == NULL || d->image.box == NULL ||
        atomic_load(&d->image.box->head.fell) <= 0)
        return NULL;
    for (int i = 0; i < a->groups; i++)
        for (int r = 0; r < a->group[i].ranks; r++) {
            const oari_member *m = &a->group[i].member[r];

            if (m->world != rank || m->ring == NULL)
                continue;
            if (atomic_load(&m->ring->fault.ready))
                return NULL;
            if (oari_dump_gone(m->dump) &&
                atomic_load(&m->ring->state) != OARI_RING_ENDED)
                in_a_group = 1;
        }
    return in_a_group ? &d->image.box->head : NULL;
}

/* Returns the first rank that fell; or, if that one aborted because another
 * rank had ended, the other. -1: the ends were not watched, or the ranks were
 * on several hosts. */
static int first_to_fall(const oari_analysis *a)
{
    const oari_recorder_head *first = NULL;
    int rank = -1;

    for (int r = 0; r < a->autopsy->ranks; r++) {
        const oari_recorder_head *head = find_fallen(a, r);

        if (head == NULL)
            continue;
        if (first != NULL && !oari_host_same(first, head))
            return -1;
        if (first == NULL ||
            atomic_load(&head->fell) < atomic_load(&first->fell)) {
            first = head;
            rank = r;
        }
    }
    return first != NULL && atomic_load(&first->follows) > 0
               ? atomic_load(&first->follows) - 1
               : rank;
}

static int blame_end_of(oari_analysis *a, int rank, oari_text_line *to)
{
    if (rank < 0 || oari_dump_of_rank(a->autopsy, rank) == NULL)
        return 0;
    a->culprit = rank;
    oari_say_end(to, a, rank);
    return 1;
}

/* Returns the rank that died first, as far as is known, in a job without
 * faults; or -1. */
static int find_dead(const oari_analysis *a)
{
    int first = first_to_fall(a);

    for (int r = 0; r < a->autopsy->ranks && first < 0; r++) {
        const oari_dump *d = oari_dump_of_rank(a->autopsy, r);

        if (d != NULL && oari_dump_died(d))
            first = r;
    }
    return first;
}

/* Blames the rank that died first. Where all ranks died, it is to blame only if
 * the order of their ends is known and the job was not standing still: ranks
 * that had waited for long may mean that a user ended the job, and which rank
 * they waited for then says more than which ended first. */
static int find_first_death(oari_analysis *a, oari_text_line *to)
{
    int rank = find_dead(a);
    const oari_wait *mine;

    if (rank < 0)
        return 0;
    if (oari_all_died(a->autopsy)) {
        if (first_to_fall(a) != rank)
            return 0;
        mine = oari_wait_for_rank(a, rank);
        for (int i = 0; i < a->waits; i++)
            if (a->wait[i].age_ns > patience_ns &&
                (mine == NULL || a->wait[i].age_ns > mine->age_ns))
                return 0;
    }
    return blame_end_of(a, rank, to);
}

/* ---- faults -------------------------------------------------------------- */

/* Returns the rank of the world that the fault of a group is about; -1: none,
 * or not known. */
static int fault_culprit(const oari_group_view *g)
{
    const oari_ring_fault *f = g->fault;
    int rank = f->status == OAR_E_ABORTED                              ? f->rank
               : f->status == OAR_E_PEER || f->status == OAR_E_TIMEOUT ? f->peer
                                                                       : -1;

    return rank >= 0 && rank < g->ranks ? g->member[rank].world : -1;
}

/* Returns how long ago a rank was told of a group's fault, without going on in
 * another group since; -1: no rank was. */
static int64_t fault_age(const oari_analysis *a, const oari_group_view *g)
{
    for (int r = 0; g->fault != NULL && r < g->ranks; r++) {
        const oari_member *m = &g->member[r];
        const oari_group_view *last = NULL;

        if (m->ring == NULL || !atomic_load(&m->ring->fault.ready))
            continue;
        if (oari_last_member(a, m->world, &last) == NULL || last == g)
            return m->ops > 0 ? oari_op_age(m, oari_member_newest(m)) : 0;
    }
    return -1;
}

/* Returns the group whose fault counts; NULL: none broke, or all ranks have
 * gone on since. That is the group that broke last; but a rank that is to blame
 * may have ended because another of its groups had broken, and then that one
 * tells why. */
static const oari_group_view *find_broken_group(const oari_analysis *a)
{
    const oari_group_view *g = NULL, *next = NULL;
    int64_t youngest = 0;

    for (int i = 0; i < a->groups; i++) {
        int64_t age = fault_age(a, &a->group[i]);

        if (age >= 0 && (g == NULL || age < youngest)) {
            g = &a->group[i];
            youngest = age;
        }
    }
    for (int i = 0; g != NULL && i < a->groups; i++) {
        int rank = fault_culprit(g);
        const oari_member *m =
            rank >= 0 ? oari_last_member(a, rank, &next) : NULL;

        if (m == NULL || next == g || !atomic_load(&m->ring->fault.ready) ||
            fault_culprit(next) == rank)
            break;
        g = next;
    }
    return g;
}

/* Returns the member that a rank of the world is in the group of a wait, if it
 * has a dump; or NULL. */
static const oari_member *find_member(const oari_wait *w, int rank)
{
    for (int r = 0; w != NULL && r < w->in->ranks; r++)
        if (w->in->member[r].world == rank)
            return w->in->member[r].dump != NULL ? &w->in->member[r] : NULL;
    return NULL;
}

/* Blames the culprit for not having come in time. It may wait itself, and then
 * the rank that it waits for is to blame. */
static void blame_late(oari_analysis *a, const oari_group_view *g,
                       oari_text_line *to)
{
    const oari_wait *w = oari_wait_for_rank(a, a->culprit);
    const oari_wait *own = oari_wait_of_rank(a, a->culprit);
    const oari_member *m = find_member(w, a->culprit);

    if (a->cycles > 0) {
        a->culprit = -1;
        oari_say_cycle(to, a);
        return;
    }
    if (m == NULL) {
        oari_say_fault(to, g);
        return;
    }
    if (own != NULL && !oari_dump_gone(m->dump) &&
        m->dump->life != OARI_PROCESS_STOPPED) {
        w = oari_wait_follow(a, own);
        m = oari_wait_target(w);
        a->culprit = m != NULL ? m->world : -1;
    }
    oari_say_wait(to, a, w, m, 0);
}

/* Blames the culprit for being gone. Where the order in which ranks ended is
 * known, it may have ended because of another rank. */
static void blame_gone(oari_analysis *a, const oari_group_view *g,
                       oari_text_line *to)
{
    const oari_dump *d = oari_dump_of_rank(a->autopsy, a->culprit);
    const oari_wait *w = oari_wait_for_rank(a, a->culprit);
    const oari_member *m = find_member(w, a->culprit);
    int first = first_to_fall(a);

    if (first >= 0 && blame_end_of(a, first, to))
        return;
    if (d == NULL || d->image.box == NULL)
        oari_say_fault(to, g);
    else if (m != NULL)
        oari_say_wait(to, a, w, m, 1);
    else if (!oari_dump_gone(d) || !blame_end_of(a, a->culprit, to))
        oari_say_fault(to, g);
}

/* The text of an abort begins with its rank, which oari_say_abort says with
 * more. */
static int find_fault(oari_analysis *a, oari_text_line *to)
{
    const oari_group_view *g = find_broken_group(a);
    const oari_ring_fault *f;

    if (g == NULL)
        return 0;
    f = g->fault;
    a->culprit = fault_culprit(g);
    if (f->status == OAR_E_ABORTED) {
        char start[32];
        size_t skip =
            (size_t)snprintf(start, sizeof start, "rank %d aborted: ", f->rank);
        const oari_dump *d =
            a->culprit >= 0 ? oari_dump_of_rank(a->autopsy, a->culprit) : NULL;

        if (d != NULL && d->image.box != NULL &&
            strncmp(f->text, start, skip) == 0)
            oari_say_abort(to, a, g, a->culprit, f->text + skip);
        else
            oari_say_fault(to, g);
    } else if (a->culprit < 0)
        oari_say_fault(to, g);
    else if (f->status == OAR_E_TIMEOUT)
        blame_late(a, g, to);
    else
        blame_gone(a, g, to);
    return 1;
}

/* ---- waits --------------------------------------------------------------- */

/* Blames the rank at the end of the longest wait. Where the process that waits,
 * or the one that is waited for, is gone, a wait of any length is wrong. */
static int find_wait(oari_analysis *a, oari_text_line *to)
{
    const oari_wait *w = oari_waits_longest(a, patience_ns, 0);
    const oari_member *target;

    for (int i = 0; w == NULL && i < a->waits; i++)
        if (oari_dump_gone(a->wait[i].member->dump) &&
            oari_wait_counts(&a->wait[i]))
            w = &a->wait[i];
    for (int i = 0; w == NULL && i < a->waits; i++) {
        target = oari_wait_target(&a->wait[i]);
        if (oari_wait_counts(&a->wait[i]) && target != NULL &&
            oari_dump_gone(target->dump))
            w = &a->wait[i];
    }
    if (w == NULL)
        return 0;
    w = oari_wait_follow(a, w);
    target = oari_wait_target(w);
    a->culprit = target != NULL ? target->world : -1;
    oari_say_wait(to, a, w, target, 0);
    return 1;
}

static int find_long(const oari_analysis *a, oari_text_line *to)
{
    for (int i = 0; i < a->groups; i++) {
        const oari_group_view *g = &a->group[i];

        if (g->waiting > 0 && g->missing == 0 && g->since_ns >= long_ns) {
            oari_say_long(to, g);
            return 1;
        }
    }
    return 0;
}

void oari_verdict_find(oari_analysis *a)
{
    oari_text_line to = { a->verdict, sizeof a->verdict, 0 };

    a->culprit = -1;
    a->wrong = 1;
    for (int i = 0; i < a->groups; i++)
        if (a->group[i].differs >= 0) {
            oari_say_mismatch(&to, &a->group[i]);
            return;
        }
    if (find_fault(a, &to) || find_first_death(a, &to))
        return;
    if (a->cycles > 0)
        oari_say_cycle(&to, a);
    else if (!find_wait(a, &to) && !blame_end_of(a, find_dead(a), &to) &&
             !find_long(a, &to)) {
        a->wrong = 0;
        oari_say_well(&to, a);
    }
}
