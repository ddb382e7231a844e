/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_judge: the verdict: one sentence, as somebody who has understood the
 * job would say it. The first of these that holds:
 *
 *   ranks call different operations at the same place
 *   a group broke: the rank that its fault names, or the reason of an abort;
 *   where that rank ended because of another fault, the rank which that names
 *   a rank died
 *   ranks wait for each other in a circle
 *   somebody waits for a rank that has not come: following the waits from the
 *   longest, the first rank that does not wait itself
 *   everybody is in an operation for very long
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autopsy/autopsy.h"
#include "record/recorder.h"

enum { LIST = 96, OP = 256 };
static const int64_t patience_ns = 1000000000, long_ns = 30000000000;

/* ---- pieces -------------------------------------------------------------- */

/* "rank 2 (host a, pid 4711)" */
static void say_who(const oari_witness *w, int rank, char *text, size_t bytes)
{
    const oari_head *head =
        w != NULL && w->image.box != NULL ? &w->image.box->head : NULL;
    int64_t pid = head != NULL ? atomic_load(&head->owner) : 0;

    if (pid != 0)
        snprintf(text, bytes, "rank %d (host %s, pid %" PRId64 ")", rank,
                 head->host, pid);
    else
        snprintf(text, bytes, "rank %d", rank);
}

/* What has become of a process, as a verb. */
static void say_end(const oari_witness *w, char *text, size_t bytes)
{
    const char *note = w->note;

    if (note[0] != 0)
        snprintf(text, bytes, "%s%s",
                 strncmp(note, "killed", 6) == 0 ? "was "
                 : strncmp(note, "exit", 4) == 0 ? "ended with "
                                                 : "ended: ",
                 note);
    else
        snprintf(text, bytes, "%s",
                 w->life == OARI_LIFE_EXITED ? "exited" : "died");
}

/* The ranks of the world among the parts, of which `counts` says so. */
static void list_parts(const oari_case *c,
                       int (*counts)(const oari_part *, const void *),
                       const void *arg, char *text, size_t bytes, int *count)
{
    int rank[OARI_MEMBERS], n = 0;

    for (int i = 0; i < c->ranks; i++)
        if (counts(&c->part[i], arg))
            rank[n++] = c->part[i].world >= 0 ? c->part[i].world : i;
    oari_rank_list(rank, n, text, bytes);
    *count = n;
}

/* In a collective, or waiting to join. */
static int is_waiting(const oari_part *p, const void *wait)
{
    const oari_wait *w = wait;
    const oari_op *op;

    if (w->op == NULL)
        return p->here == OARI_JOINING;
    if (w->op->kind >= OAR_COLL_SEND)
        return p == w->part;
    op = oari_part_number(p, w->op->number);
    return op != NULL && oari_op_open(op);
}

/* "ranks 0, 1, 3 wait for it since 12.4 s"; of those that are gone nobody knows
 * since when. */
static void say_waiters(const oari_wait *w, char *text, size_t bytes)
{
    int count, over = w->op != NULL && w->op->state != OAR_RECORD_POSTED;
    char list[LIST], age[32];

    list_parts(w->in, is_waiting, w, list, sizeof list, &count);
    oari_age_text(w->age_ns, age);
    if (over)
        snprintf(text, bytes, "rank%s %s waited %s for it",
                 count == 1 ? "" : "s", list, age);
    else if (oari_part_gone(w->part))
        snprintf(text, bytes, "rank%s %s waited for it at the end",
                 count == 1 ? "" : "s", list);
    else
        snprintf(text, bytes, "rank%s %s wait%s for it since %s",
                 count == 1 ? "" : "s", list, count == 1 ? "s" : "", age);
}

/* What they wait for it in. */
static void say_what(const oari_wait *w, char *text, size_t bytes)
{
    if (w->op == NULL)
        snprintf(text, bytes, "the making of group \"%s\"", w->in->ring->group);
    else
        oari_op_text(w->in, w->part, w->op, text, bytes);
}

/* "its last call was barrier #3 at x.c:8, done 2.0 s ago" */
static void say_last(const oari_case *c, const oari_part *p, char *text,
                     size_t bytes)
{
    const oari_op *op = p->ring != NULL ? oari_part_newest(p) : NULL;
    char what[OP], age[32];

    if (op == NULL) {
        snprintf(text, bytes, "it has not called anything in this group yet");
        return;
    }
    oari_op_text(c, p, op, what, sizeof what);
    oari_age_text(oari_op_age(p, op), age);
    snprintf(text, bytes, "its last call was %s, %s %s ago", what,
             op->state == OAR_RECORD_DONE     ? "done"
             : op->state == OAR_RECORD_FAILED ? "failed"
                                              : "posted",
             age);
}

/* Then who died first is not to be told from that. */
static int all_died(const oari_inquest *q)
{
    for (int r = 0; r < q->autopsy->ranks; r++) {
        const oari_witness *w = oari_autopsy_of(q->autopsy, r);

        if (w != NULL && !oari_witness_died(w))
            return 0;
    }
    return 1;
}

/* ---- one wait ------------------------------------------------------------ */

static const oari_wait *wait_of(const oari_inquest *q, int rank)
{
    const oari_wait *longest = NULL;

    for (int i = 0; i < q->waits; i++) {
        const oari_wait *w = &q->wait[i];

        if (w->strict && w->part->world == rank && rank >= 0 &&
            oari_wait_target(w) != NULL &&
            (longest == NULL || w->age_ns > longest->age_ns))
            longest = w;
    }
    return longest;
}

/* The wait at the end of the row: for a rank that does not wait itself. */
static const oari_wait *follow(const oari_inquest *q, const oari_wait *w)
{
    for (int i = 0; i < q->autopsy->ranks; i++) {
        const oari_part *target = oari_wait_target(w);
        const oari_wait *next;

        if (target == NULL || oari_part_gone(target) ||
            (target->witness != NULL &&
             target->witness->life == OARI_LIFE_STOPPED) ||
            (next = wait_of(q, target->world)) == NULL)
            break;
        w = next;
    }
    return w;
}

/* Why a rank that lives has not come. */
static void say_absence(const oari_wait *w, const oari_part *p,
                        const char *what, char *text, size_t bytes)
{
    char last[OP + 64];

    say_last(w->in, p, last, sizeof last);
    if (p->witness->life == OARI_LIFE_ABSENT)
        snprintf(text, bytes, "has not made its group yet, so not come to %s",
                 what);
    else if (p->here == OARI_LEFT)
        snprintf(text, bytes, "left the group before %s; %s", what, last);
    else if (p->witness->life == OARI_LIFE_STOPPED)
        snprintf(text, bytes, "is stopped before %s; %s", what, last);
    else
        snprintf(text, bytes, "has not come to %s; it %s, and %s", what,
                 p->witness->life == OARI_LIFE_RUNS     ? "runs"
                 : p->witness->life == OARI_LIFE_SLEEPS ? "lives"
                                                        : "is not seen from "
                                                          "here",
                 last);
}

static int is_target(const oari_part *p, const void *wait)
{
    return oari_waits_for(wait, p);
}

/* seen: it is known that the others had lost it, and not only when all ended.
 */
static void say_missing(const oari_inquest *q, const oari_wait *w,
                        const oari_part *p, int seen, char *text, size_t bytes)
{
    char who[128], what[OP], end[OP * 2 + 128];

    say_what(w, what, sizeof what);
    if (p->witness == NULL) {
        snprintf(text, bytes,
                 "rank %d, about which nothing is known, has not come to %s",
                 p->world >= 0 ? p->world : p->rank, what);
        return;
    }
    say_who(p->witness, p->world, who, sizeof who);
    if (oari_part_gone(p) && !seen && all_died(q)) {
        char last[OP + 64];

        say_last(w->in, p, last, sizeof last);
        snprintf(end, sizeof end, "had not come to %s when all ended; %s", what,
                 last);
    } else if (oari_part_gone(p)) {
        char how[192];

        say_end(p->witness, how, sizeof how);
        snprintf(end, sizeof end, "%s before %s", how, what);
    } else
        say_absence(w, p, what, end, sizeof end);
    snprintf(text, bytes, "%s %s", who, end);
}

/* A wait for one part; seen as above. */
static void say_wait(const oari_inquest *q, const oari_wait *w,
                     const oari_part *p, int seen, char *text, size_t bytes)
{
    char about[OP * 3], waiters[LIST + 64], others[LIST + 32] = "";
    int count = 0;

    say_waiters(w, waiters, sizeof waiters);
    list_parts(w->in, is_target, w, others, sizeof others, &count);
    say_missing(q, w, p, seen, about, sizeof about);
    if (count > 1 && !seen)
        snprintf(text, bytes, "%s; so have not ranks %s; %s", about, others,
                 waiters);
    else
        snprintf(text, bytes, "%s; %s", about, waiters);
}

/* Returns the rank that it is about; -1: none. */
static int judge_wait(const oari_inquest *q, const oari_wait *first, char *text,
                      size_t bytes)
{
    const oari_wait *w = follow(q, first);
    const oari_part *p = oari_wait_target(w);

    if (p == NULL) {
        snprintf(text, bytes, "rank %d waits for anybody", w->part->world);
        return -1;
    }
    say_wait(q, w, p, 0, text, bytes);
    return p->world;
}

void oari_judge_wait(const oari_inquest *q, const oari_wait *w, char *text,
                     size_t bytes)
{
    judge_wait(q, w, text, bytes);
}

/* ---- disagreement -------------------------------------------------------- */

typedef struct same {
    const oari_case *c;
    const oari_op *op;
} same;

static int calls_that(const oari_part *p, const void *arg)
{
    const same *s = arg;

    return p->at != NULL && p->at->kind == s->op->kind &&
           p->at->op == s->op->op && p->at->dtype == s->op->dtype &&
           p->at->root == s->op->root && p->at->count == s->op->count;
}

/* "all_reduce #7 (5 f32, sum) at x.c:3" */
static void say_call(const oari_case *c, const oari_part *p, char *text,
                     size_t bytes)
{
    oar_record r = oari_op_record(p, p->at);
    char root[32] = "";

    if (p->at->root >= 0)
        snprintf(root, sizeof root, ", root %d", p->at->root);
    if (p->at->kind == OAR_COLL_BARRIER)
        snprintf(text, bytes, "barrier #%" PRIu64 " at %s", c->number, r.site);
    else
        snprintf(text, bytes, "%s #%" PRIu64 " (%" PRIu64 " %s, %s%s) at %s",
                 oar_coll_name(p->at->kind), c->number, p->at->count,
                 oar_dtype_name(p->at->dtype), oar_op_name(p->at->op), root,
                 r.site);
}

static int judge_mismatch(oari_inquest *q)
{
    for (int i = 0; i < q->items; i++) {
        const oari_case *c = &q->item[i];
        char mine[OP], theirs[OP], many[LIST], few[LIST];
        int n, m;

        if (c->differs < 0)
            continue;
        say_call(c, &c->part[c->teller], mine, sizeof mine);
        say_call(c, &c->part[c->differs], theirs, sizeof theirs);
        list_parts(c, calls_that, &(same){ c, c->part[c->teller].at }, many,
                   sizeof many, &n);
        list_parts(c, calls_that, &(same){ c, c->part[c->differs].at }, few,
                   sizeof few, &m);
        snprintf(q->verdict, sizeof q->verdict,
                 "ranks disagree in group \"%s\": rank%s %s call%s %s, but "
                 "rank%s %s call%s %s",
                 c->ring->group, m == 1 ? "" : "s", few, m == 1 ? "s" : "",
                 theirs, n == 1 ? "" : "s", many, n == 1 ? "s" : "", mine);
        return 1;
    }
    return 0;
}

/* ---- deaths -------------------------------------------------------------- */

/* Whether a fault of a group was told to the rank before it ended. */
static int knew_of_fault(const oari_inquest *q, int rank)
{
    for (int i = 0; i < q->items; i++)
        for (int r = 0; r < q->item[i].ranks; r++) {
            const oari_part *p = &q->item[i].part[r];

            if (p->world == rank && p->ring != NULL &&
                atomic_load(&p->ring->fault.ready))
                return 1;
        }
    return 0;
}

/* Whether it ended in the middle of a group, however it ended. */
static int fell_in_a_group(const oari_inquest *q, int rank)
{
    for (int i = 0; i < q->items; i++)
        for (int r = 0; r < q->item[i].ranks; r++) {
            const oari_part *p = &q->item[i].part[r];

            if (p->world == rank && p->ring != NULL && oari_part_gone(p) &&
                atomic_load(&p->ring->state) != OARI_RING_ENDED)
                return 1;
        }
    return 0;
}

/* The head of a rank that ended in the middle of a group, and was seen to end
 * (watchman.h); NULL: it was not. */
static const oari_head *head_of_fallen(const oari_inquest *q, int rank)
{
    const oari_witness *w = oari_autopsy_of(q->autopsy, rank);

    return w != NULL && w->image.box != NULL &&
                   atomic_load(&w->image.box->head.fell) > 0 &&
                   fell_in_a_group(q, rank) && !knew_of_fault(q, rank)
               ? &w->image.box->head
               : NULL;
}

/* The first of them; or, if that aborted because another had ended, that one.
 * -1: nobody watched, or ranks were on several hosts. */
static int first_to_fall(const oari_inquest *q)
{
    const oari_head *first = NULL;
    int rank = -1;

    for (int r = 0; r < q->autopsy->ranks; r++) {
        const oari_head *head = head_of_fallen(q, r);

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

/* The rank that died first, as far as can be told; -1: none. No group broke. */
static int find_dead(const oari_inquest *q)
{
    int first = first_to_fall(q);

    for (int r = 0; r < q->autopsy->ranks && first < 0; r++) {
        const oari_witness *w = oari_autopsy_of(q->autopsy, r);

        if (w != NULL && oari_witness_died(w))
            first = r;
    }
    return first;
}

/* The longest wait for a rank; NULL: nobody waits for it. */
static const oari_wait *wait_for(const oari_inquest *q, int rank)
{
    const oari_wait *longest = NULL;

    for (int i = 0; i < q->waits; i++)
        for (int r = 0; r < q->wait[i].in->ranks; r++) {
            const oari_part *p = &q->wait[i].in->part[r];

            if (p->world == rank && p != q->wait[i].part &&
                oari_waits_for(&q->wait[i], p) &&
                (longest == NULL || q->wait[i].age_ns > longest->age_ns))
                longest = &q->wait[i];
        }
    return longest;
}

/* The last thing it did, in any group. */
static const oari_part *last_part(const oari_inquest *q, int rank,
                                  const oari_case **in)
{
    const oari_part *best = NULL;

    for (int i = 0; i < q->items; i++)
        for (int r = 0; r < q->item[i].ranks; r++) {
            const oari_part *p = &q->item[i].part[r];

            if (p->world != rank || p->ops == 0)
                continue;
            if (best == NULL || oari_part_newest(p)->posted_ns >
                                    oari_part_newest(best)->posted_ns) {
                best = p;
                *in = &q->item[i];
            }
        }
    return best;
}

/* "inside all_reduce #7 at x.c:3", "after ...", "before its first call" */
static void say_place(const oari_inquest *q, int rank, char *text, size_t bytes)
{
    const oari_case *c = NULL;
    const oari_part *p = last_part(q, rank, &c);
    char what[OP];

    if (p == NULL) {
        snprintf(text, bytes, "before its first call");
        return;
    }
    oari_op_text(c, p, oari_part_newest(p), what, sizeof what);
    snprintf(text, bytes, "%s %s",
             oari_op_open(oari_part_newest(p)) ? "inside" : "after", what);
}

static int judge_end_of(oari_inquest *q, int rank)
{
    const oari_witness *w;
    const oari_wait *wait;
    char who[128], how[192], where[OP + 16];

    if (rank < 0 || (w = oari_autopsy_of(q->autopsy, rank)) == NULL)
        return 0;
    q->culprit = rank;
    say_who(w, rank, who, sizeof who);
    say_end(w, how, sizeof how);
    wait = wait_for(q, rank);
    if (wait != NULL) {
        char what[OP], waiters[LIST + 64];

        say_what(wait, what, sizeof what);
        say_waiters(wait, waiters, sizeof waiters);
        snprintf(q->verdict, sizeof q->verdict, "%s %s before %s; %s", who, how,
                 what, waiters);
        return 1;
    }
    say_place(q, rank, where, sizeof where);
    snprintf(q->verdict, sizeof q->verdict, "%s %s %s", who, how, where);
    return 1;
}

static int judge_death(oari_inquest *q)
{
    return judge_end_of(q, find_dead(q));
}

/* Whether ranks had waited for others for long when this one ended: then
 * somebody may have ended a job that stood still. */
static int stood_still_before(const oari_inquest *q, int rank)
{
    const oari_wait *mine = wait_for(q, rank);

    for (int i = 0; i < q->waits; i++)
        if (q->wait[i].age_ns > patience_ns &&
            (mine == NULL || q->wait[i].age_ns > mine->age_ns))
            return 1;
    return 0;
}

/* Unless all died, and the order in which they did does not say which of them
 * was the first, of a job that did not stand still: who was waited for then
 * says more than who ended first. */
static int judge_first_death(oari_inquest *q)
{
    int rank = find_dead(q);

    return rank >= 0 &&
           (!all_died(q) ||
            (first_to_fall(q) == rank && !stood_still_before(q, rank))) &&
           judge_death(q);
}

/* ---- circles ------------------------------------------------------------- */

/* What `from` does that waits for `to`. */
static const oari_wait *link_of(const oari_inquest *q, int from, int to)
{
    for (int i = 0; i < q->waits; i++) {
        const oari_wait *w = &q->wait[i];

        if (!w->strict || w->part->world != from)
            continue;
        for (int r = 0; r < w->in->ranks; r++)
            if (w->in->part[r].world == to &&
                oari_waits_for(w, &w->in->part[r]))
                return w;
    }
    return NULL;
}

static int judge_circle(oari_inquest *q)
{
    size_t used;

    if (q->circles == 0)
        return 0;
    used =
        (size_t)snprintf(q->verdict, sizeof q->verdict,
                         "deadlock, ranks wait for each other in a circle: ");
    for (int i = 0; i < q->circles; i++) {
        int from = q->circle[i], to = q->circle[(i + 1) % q->circles];
        const oari_wait *w = link_of(q, from, to);
        char what[OP];

        if (w == NULL || used + 80 > sizeof q->verdict)
            break;
        say_what(w, what, sizeof what);
        used += (size_t)snprintf(q->verdict + used, sizeof q->verdict - used,
                                 "%srank %d waits for rank %d in %.150s",
                                 i == 0 ? "" : ", ", from, to, what);
        if (used >= sizeof q->verdict)
            break;
    }
    return 1;
}

/* ---- faults -------------------------------------------------------------- */

static const oari_box_fault *fault_of(const oari_case *c)
{
    return &c->part[c->broken].ring->fault;
}

/* The rank of the world that a fault is about; -1: none, or not known. */
static int culprit_of(const oari_case *c)
{
    const oari_box_fault *f = fault_of(c);
    int rank = f->status == OAR_E_ABORTED                              ? f->rank
               : f->status == OAR_E_PEER || f->status == OAR_E_TIMEOUT ? f->peer
                                                                       : -1;

    return rank >= 0 && rank < c->ranks ? c->part[rank].world : -1;
}

/* How long ago a rank was told of the fault without going on in another group
 * since; -1: none was. */
static int64_t age_of_fault(const oari_inquest *q, const oari_case *c)
{
    for (int r = 0; r < c->ranks; r++) {
        const oari_part *p = &c->part[r];
        const oari_case *last = NULL;

        if (p->ring == NULL || !atomic_load(&p->ring->fault.ready))
            continue;
        if (last_part(q, p->world, &last) == NULL || last == c)
            return p->ops > 0 ? oari_op_age(p, oari_part_newest(p)) : 0;
    }
    return -1;
}

/* The group that broke last; NULL: none did, or all have gone on since. */
static const oari_case *newest_fault(const oari_inquest *q)
{
    const oari_case *newest = NULL;
    int64_t youngest = 0;

    for (int i = 0; i < q->items; i++) {
        const oari_case *c = &q->item[i];
        int64_t age = c->broken >= 0 ? age_of_fault(q, c) : -1;

        if (age >= 0 && (newest == NULL || age < youngest)) {
            newest = c;
            youngest = age;
        }
    }
    return newest;
}

/* A rank that is to blame may have ended because another group of its had
 * broken: then that group tells why. */
static const oari_case *first_fault(const oari_inquest *q)
{
    const oari_case *c = newest_fault(q), *next = NULL;

    for (int i = 0; c != NULL && i < q->items; i++) {
        int rank = culprit_of(c);
        const oari_part *p = rank >= 0 ? last_part(q, rank, &next) : NULL;

        if (p == NULL || next == c || !atomic_load(&p->ring->fault.ready) ||
            culprit_of(next) == rank)
            break;
        c = next;
    }
    return c;
}

static int judge_text(oari_inquest *q, const oari_case *c)
{
    snprintf(q->verdict, sizeof q->verdict, "group \"%s\" broke: %s",
             c->ring->group, fault_of(c)->text);
    return 1;
}

/* What is known of the rank that is to blame; NULL: nothing, here. */
static const oari_witness *witness_of_culprit(const oari_inquest *q)
{
    const oari_witness *w =
        q->culprit >= 0 ? oari_autopsy_of(q->autopsy, q->culprit) : NULL;

    return w != NULL && w->image.box != NULL ? w : NULL;
}

/* The text of an abort begins with its rank, which is said with more. */
static int judge_abort(oari_inquest *q, const oari_case *c)
{
    const oari_box_fault *f = fault_of(c);
    const oari_witness *w = witness_of_culprit(q);
    char who[128], start[32], where[OP + 16];
    int skip = snprintf(start, sizeof start, "rank %d aborted: ", f->rank);

    if (w == NULL || strncmp(f->text, start, (size_t)skip) != 0)
        return judge_text(q, c);
    say_who(w, q->culprit, who, sizeof who);
    say_place(q, q->culprit, where, sizeof where);
    snprintf(q->verdict, sizeof q->verdict, "%s aborted group \"%s\" %s: %s",
             who, c->ring->group, where, f->text + skip);
    return 1;
}

static const oari_part *part_of(const oari_case *c, int rank)
{
    for (int r = 0; r < c->ranks; r++)
        if (c->part[r].world == rank)
            return &c->part[r];
    return NULL;
}

/* One that did not come in time. It may wait itself. */
static int judge_late(oari_inquest *q, const oari_case *c)
{
    const oari_wait *w = wait_for(q, q->culprit);
    const oari_part *p = w != NULL ? part_of(w->in, q->culprit) : NULL;
    const oari_wait *next = wait_of(q, q->culprit);

    if (q->circles > 0) {
        q->culprit = -1;
        return judge_circle(q);
    }
    if (p == NULL || p->witness == NULL)
        return judge_text(q, c);
    if (next != NULL && !oari_part_gone(p) &&
        p->witness->life != OARI_LIFE_STOPPED)
        q->culprit = judge_wait(q, next, q->verdict, sizeof q->verdict);
    else
        say_wait(q, w, p, 0, q->verdict, sizeof q->verdict);
    return 1;
}

/* One that was seen to be gone. Where it is known in which order ranks ended,
 * it may have been ended because of another. */
static int judge_gone(oari_inquest *q, const oari_case *c)
{
    int first = first_to_fall(q);
    const oari_witness *w = witness_of_culprit(q);
    const oari_wait *wait;
    const oari_part *p;

    if (first >= 0)
        return judge_end_of(q, first);
    if (w == NULL)
        return judge_text(q, c);
    wait = wait_for(q, q->culprit);
    p = wait != NULL ? part_of(wait->in, q->culprit) : NULL;
    if (p != NULL && p->witness != NULL)
        say_wait(q, wait, p, 1, q->verdict, sizeof q->verdict);
    else if (oari_witness_gone(w))
        return judge_end_of(q, q->culprit);
    else
        return judge_text(q, c);
    return 1;
}

static int judge_fault(oari_inquest *q)
{
    const oari_case *c = first_fault(q);

    if (c == NULL)
        return 0;
    q->culprit = culprit_of(c);
    if (fault_of(c)->status == OAR_E_ABORTED)
        return judge_abort(q, c);
    if (q->culprit < 0)
        return judge_text(q, c);
    return fault_of(c)->status == OAR_E_TIMEOUT ? judge_late(q, c)
                                                : judge_gone(q, c);
}

/* ---- the rest ------------------------------------------------------------ */

/* Of a job that is over everything that waits is wrong. */
static int judge_waits(oari_inquest *q)
{
    const oari_wait *w = oari_waits_longest(q, patience_ns, 0);

    for (int i = 0; w == NULL && i < q->waits; i++)
        if (oari_part_gone(q->wait[i].part) && oari_wait_counts(&q->wait[i]))
            w = &q->wait[i];
    for (int i = 0; w == NULL && i < q->waits; i++) {
        const oari_part *target = oari_wait_target(&q->wait[i]);

        if (oari_wait_counts(&q->wait[i]) && target != NULL &&
            oari_part_gone(target))
            w = &q->wait[i];
    }
    if (w == NULL)
        return 0;
    q->culprit = judge_wait(q, w, q->verdict, sizeof q->verdict);
    return 1;
}

static int judge_length(oari_inquest *q)
{
    for (int i = 0; i < q->items; i++) {
        const oari_case *c = &q->item[i];
        char age[32], what[OP];

        if (c->waiting == 0 || c->missing != 0 || c->since_ns < long_ns)
            continue;
        oari_age_text(c->since_ns, age);
        oari_op_text(c, &c->part[c->teller], c->part[c->teller].at, what,
                     sizeof what);
        snprintf(q->verdict, sizeof q->verdict,
                 "all ranks of group \"%s\" have come to %s, and it is under "
                 "way since %s",
                 c->ring->group, what, age);
        return 1;
    }
    return 0;
}

static void say_nothing(oari_inquest *q)
{
    int unknown = 0;

    for (int r = 0; r < q->autopsy->ranks; r++) {
        const oari_witness *w = oari_autopsy_of(q->autopsy, r);
        unknown += w == NULL || w->image.box == NULL;
    }
    if (unknown > 0)
        snprintf(q->verdict, sizeof q->verdict,
                 "nothing is wrong with the ranks that left a box; about %d of "
                 "%d nothing is known",
                 unknown, q->autopsy->ranks);
    else
        snprintf(q->verdict, sizeof q->verdict,
                 "nothing is wrong: %d rank%s, nobody waits", q->autopsy->ranks,
                 q->autopsy->ranks == 1 ? "" : "s");
}

void oari_judge(oari_inquest *q)
{
    q->culprit = -1;
    q->wrong = judge_mismatch(q) || judge_fault(q) || judge_first_death(q) ||
               judge_circle(q) || judge_waits(q) || judge_death(q) ||
               judge_length(q);
    if (!q->wrong)
        say_nothing(q);
}
