/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_sentence: every sentence that a verdict or a stall can be.
 *
 * A rank that others wait for. W is "ranks 0, 1 and 3 have waited 11.1 s for
 * it", "... waited 11.1 s for it" or "... waited for it until the end"; L is
 * "its last call was barrier #6 at x.c:2, done 11.2 s ago".
 *
 *   rank 2 (host a, pid 7) has not called all_reduce #7 at x.c:3; it is
 *       running, and L; W
 *   rank 2 (host a, pid 7) has not matched recv #5 from rank 2 at x.c:3; ...
 *   rank 2 (host a, pid 7) has not answered call #5 of "pull" on rank 2, at
 *       x.c:3 (60.0 s at most); ...
 *   rank 2 (host a, pid 7) has not joined group "world"; ...
 *   rank 2 (host a, pid 7) is stopped before all_reduce #7 at x.c:3; L; W
 *   rank 2 (host a, pid 7) left the group before all_reduce #7 at ...; L; W
 *   rank 2 (host a, pid 7) was killed by SIGKILL before all_reduce #7 at ...; W
 *   rank 2 (host a, pid 7) had not called all_reduce #7 at x.c:3 when all ranks
 *       ended; L; W
 *   rank 2 has not created a group yet, so it has not joined group "world"; W
 *   rank 2, about which nothing is known, has not called all_reduce #7 at ...;
 *       ranks 3 and 4 are missing too; ranks 0 and 1 have waited 2.0 s for them
 *   rank 2 waits for a message from any rank
 *
 * The others:
 *
 *   rank 2 (host a, pid 7) was killed by SIGKILL inside all_reduce #7 at x.c:3
 *   rank 2 (host a, pid 7) aborted group "world" after barrier #6 at x.c:2: why
 *   group "world" broke: the text of its fault
 *   ranks disagree in group "world": rank 2 calls barrier #7 at x.c:9, but
 *       ranks 0, 1 and 3 call all_reduce #7 (5 f32, sum) at x.c:3
 *   deadlock: rank 0 waits for rank 1 in recv #7 from rank 1 at x.c:3; rank 1
 *       waits for rank 0 in all_reduce #7 at x.c:8
 *   deadlock: rank 0 waits for rank 1 in call #2 of "f" on rank 1, made by "f",
 *       at x.c:3; rank 1 waits for rank 0 in call #1 of "f" on rank 0, ...
 *   all ranks of group "world" have called all_reduce #7 at x.c:3, which has
 *       been running for 31.0 s
 *   nothing is wrong: 4 ranks, none of them waiting
 *   nothing is wrong with the ranks that left a recorder file; nothing is known
 *       about 1 of 4 ranks
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autopsy/autopsy.h"

enum { LIST = 96, OP = 256 };

/* ---- phrases ------------------------------------------------------------- */

/* Adds "rank 2 (host a, pid 4711)". */
static void say_rank(oari_text_line *to, const oari_dump *d, int rank)
{
    const oari_recorder_head *head =
        d != NULL && d->image.box != NULL ? &d->image.box->head : NULL;
    int64_t pid = head != NULL ? atomic_load(&head->owner) : 0;

    oari_text_add(to, "rank %d", rank);
    if (pid != 0)
        oari_text_add(to, " (host %s, pid %" PRId64 ")", head->host, pid);
}

/* Adds "rank 3" or "ranks 0, 1 and 3": the ranks in the world of the members
 * for which `counts` holds. Returns how many those are. */
static int say_ranks(oari_text_line *to, const oari_group_view *g,
                     int (*counts)(const oari_member *, const void *),
                     const void *arg)
{
    int rank[OARI_MEMBERS] = { 0 }, n = 0;
    char list[LIST];

    for (int i = 0; i < g->ranks; i++)
        if (counts(&g->member[i], arg))
            rank[n++] = g->member[i].world >= 0 ? g->member[i].world : i;
    oari_rank_list(rank, n, " and ", list, sizeof list);
    oari_text_add(to, "rank%s %s", n == 1 ? "" : "s", list);
    return n;
}

/* Adds how a process ended: "was killed by SIGKILL". */
static void say_how(oari_text_line *to, const oari_dump *d)
{
    const char *note = d->note;

    if (note[0] == 0)
        oari_text_add(to, "%s",
                      d->life == OARI_PROCESS_EXITED ? "exited" : "died");
    else if (strncmp(note, "killed", 6) == 0)
        oari_text_add(to, "was %s", note);
    else if (strncmp(note, "exit", 4) == 0)
        oari_text_add(to, "ended with %s", note);
    else
        oari_text_add(to, "ended: %s", note);
}

/* Adds what a wait is in: an operation, or `joining group "world"`. */
static void say_where(oari_text_line *to, const oari_wait *w)
{
    if (w->op == NULL)
        oari_text_add(to, "joining group \"%s\"", w->in->ring->group);
    else
        oari_text_add_op(to, w->in, w->member, w->op);
}

static void say_before(oari_text_line *to, const oari_wait *w)
{
    oari_text_add(to, " before %s",
                  w->op == NULL || w->op->kind < OAR_COLL_SEND ? ""
                  : oari_op_is_call(w->op)                     ? "answering "
                                                               : "matching ");
    say_where(to, w);
}

/* Adds what the target of a wait has not done: "called all_reduce #7". */
static void say_undone(oari_text_line *to, const oari_wait *w)
{
    if (w->op == NULL)
        oari_text_add(to, "joined group \"%s\"", w->in->ring->group);
    else {
        oari_text_add(to, oari_op_is_call(w->op)         ? "answered "
                          : w->op->kind >= OAR_COLL_SEND ? "matched "
                                                         : "called ");
        oari_text_add_op(to, w->in, w->member, w->op);
    }
}

/* Adds "its last call was barrier #3 at x.c:8, done 2.0 s ago". */
static void say_last_call(oari_text_line *to, const oari_group_view *g,
                          const oari_member *m)
{
    const oari_op_view *op = m->ring != NULL ? oari_member_newest(m) : NULL;
    char age[32];

    if (op == NULL) {
        oari_text_add(to, "it has not called anything in this group yet");
        return;
    }
    oari_age_text(oari_op_age(m, op), age);
    oari_text_add(to, "its last call was ");
    oari_text_add_op(to, g, m, op);
    oari_text_add(to, ", %s %s ago",
                  op->state == OAR_RECORD_DONE     ? "done"
                  : op->state == OAR_RECORD_FAILED ? "failed"
                                                   : "posted",
                  age);
}

/* Returns whether a member is in the same collective, waits to join the same
 * group, or waits for the same message. */
static int waits_too(const oari_member *m, const void *wait)
{
    const oari_wait *w = wait;
    const oari_op_view *op;

    if (w->op == NULL)
        return m->arrival == OARI_JOINING;
    if (w->op->kind >= OAR_COLL_SEND)
        return m == w->member;
    op = oari_member_number(m, w->op->number);
    return op != NULL && oari_op_open(op);
}

/* Adds "; ranks 0, 1 and 3 have waited 12.4 s for it". How long those waited
 * that are gone is not known. */
static void say_waiters(oari_text_line *to, const oari_wait *w,
                        const char *whom)
{
    int over = w->op != NULL && w->op->state != OAR_RECORD_POSTED, count;
    char age[32];

    oari_age_text(w->age_ns, age);
    oari_text_add(to, "; ");
    count = say_ranks(to, w->in, waits_too, w);
    if (over)
        oari_text_add(to, " waited %s for %s", age, whom);
    else if (oari_dump_gone(w->member->dump))
        oari_text_add(to, " waited for %s until the end", whom);
    else
        oari_text_add(to, " %s waited %s for %s", count == 1 ? "has" : "have",
                      age, whom);
}

/* ---- one rank that others wait for --------------------------------------- */

/* Adds why a rank that lives has not come. */
static void say_absence(oari_text_line *to, const oari_wait *w,
                        const oari_member *m)
{
    oari_process_state life = m->dump->life;

    if (life == OARI_PROCESS_ABSENT) {
        oari_text_add(to, " has not created a group yet, so it has not ");
        say_undone(to, w);
        return;
    }
    if (m->arrival == OARI_LEFT || life == OARI_PROCESS_STOPPED) {
        oari_text_add(to, m->arrival == OARI_LEFT ? " left the group"
                                                  : " is stopped");
        say_before(to, w);
        oari_text_add(to, "; ");
    } else {
        oari_text_add(to, " has not ");
        say_undone(to, w);
        if (life == OARI_PROCESS_UNKNOWN)
            oari_text_add(to, "; its process cannot be seen from here, and ");
        else
            oari_text_add(to, "; it is %s, and ",
                          oari_process_state_name(life));
    }
    say_last_call(to, w->in, m);
}

typedef struct others {
    const oari_wait *wait;
    const oari_member *but;
} others;

static int is_other_target(const oari_member *m, const void *arg)
{
    const others *o = arg;

    return m != o->but && oari_waits_for(o->wait, m);
}

void oari_say_wait(oari_text_line *to, const oari_analysis *a,
                   const oari_wait *w, const oari_member *m, int seen)
{
    const others rest = { w, m };
    int count = 0;

    if (m == NULL) {
        oari_text_add(to, "rank %d waits for a message from any rank",
                      w->member->world);
        return;
    }
    if (m->dump == NULL) {
        oari_text_add(to, "rank %d, about which nothing is known, has not ",
                      m->world >= 0 ? m->world : m->rank);
        say_undone(to, w);
    } else {
        say_rank(to, m->dump, m->world);
        if (!oari_dump_gone(m->dump))
            say_absence(to, w, m);
        else if (seen || !oari_all_died(a->autopsy)) {
            oari_text_add(to, " ");
            say_how(to, m->dump);
            say_before(to, w);
        } else {
            oari_text_add(to, " had not ");
            say_undone(to, w);
            oari_text_add(to, " when all ranks ended; ");
            say_last_call(to, w->in, m);
        }
    }
    for (int i = 0; i < w->in->ranks && !seen; i++)
        count += is_other_target(&w->in->member[i], &rest);
    if (count > 0) {
        oari_text_add(to, "; ");
        say_ranks(to, w->in, is_other_target, &rest);
        oari_text_add(to, " %s missing too", count == 1 ? "is" : "are");
    }
    say_waiters(to, w, count > 0 ? "them" : "it");
}

/* ---- ends and faults ----------------------------------------------------- */

/* Adds "inside all_reduce #7 at x.c:3", "after ..." or "before its first call".
 */
static void say_place(oari_text_line *to, const oari_analysis *a, int rank)
{
    const oari_group_view *g = NULL;
    const oari_member *m = oari_last_member(a, rank, &g);

    if (m == NULL) {
        oari_text_add(to, " before its first call");
        return;
    }
    oari_text_add(to,
                  oari_op_open(oari_member_newest(m)) ? " inside " : " after ");
    oari_text_add_op(to, g, m, oari_member_newest(m));
}

void oari_say_end(oari_text_line *to, const oari_analysis *a, int rank)
{
    const oari_dump *d = oari_dump_of_rank(a->autopsy, rank);
    const oari_wait *w = oari_wait_for_rank(a, rank);

    say_rank(to, d, rank);
    oari_text_add(to, " ");
    say_how(to, d);
    if (w != NULL) {
        say_before(to, w);
        say_waiters(to, w, "it");
    } else
        say_place(to, a, rank);
}

void oari_say_abort(oari_text_line *to, const oari_analysis *a,
                    const oari_group_view *g, int rank, const char *reason)
{
    say_rank(to, oari_dump_of_rank(a->autopsy, rank), rank);
    oari_text_add(to, " aborted group \"%s\"", g->ring->group);
    say_place(to, a, rank);
    oari_text_add(to, ": %s", reason);
}

void oari_say_fault(oari_text_line *to, const oari_group_view *g)
{
    oari_text_add(to, "group \"%s\" broke: %s", g->ring->group, g->fault->text);
}

/* ---- groups -------------------------------------------------------------- */

static int calls_that(const oari_member *m, const void *arg)
{
    const oari_op_view *op = arg;

    return m->at != NULL && m->at->kind == op->kind && m->at->op == op->op &&
           m->at->dtype == op->dtype && m->at->root == op->root &&
           m->at->count == op->count;
}

/* Adds "rank 2 calls all_reduce #7 (5 f32, sum) at x.c:3": the call of one
 * member, and all ranks that make the same one. */
static void say_call(oari_text_line *to, const oari_group_view *g,
                     const oari_member *m)
{
    const oari_op_view *op = m->at;
    oar_record r = oari_op_record(m, op);
    int count = say_ranks(to, g, calls_that, op);

    oari_text_add(to, " call%s %s #%" PRIu64, count == 1 ? "s" : "",
                  oar_coll_name(op->kind), g->number);
    if (op->kind != OAR_COLL_BARRIER) {
        oari_text_add(to, " (%" PRIu64 " %s", op->count,
                      oar_dtype_name(op->dtype));
        if (oari_kind_reduces(op->kind))
            oari_text_add(to, ", %s", oar_reduce_op_name(op->op));
        if (op->root >= 0)
            oari_text_add(to, ", root %d", op->root);
        oari_text_add(to, ")");
    }
    oari_text_add(to, " at %s", r.site);
}

void oari_say_mismatch(oari_text_line *to, const oari_group_view *g)
{
    oari_text_add(to, "ranks disagree in group \"%s\": ", g->ring->group);
    say_call(to, g, &g->member[g->differs]);
    oari_text_add(to, ", but ");
    say_call(to, g, &g->member[g->teller]);
}

/* Returns the wait in which one rank waits for another, or NULL. */
static const oari_wait *find_link(const oari_analysis *a, int from, int target)
{
    for (int i = 0; i < a->waits; i++) {
        const oari_wait *w = &a->wait[i];

        if (!w->strict || w->member->world != from)
            continue;
        for (int r = 0; r < w->in->ranks; r++)
            if (w->in->member[r].world == target &&
                oari_waits_for(w, &w->in->member[r]))
                return w;
    }
    return NULL;
}

void oari_say_cycle(oari_text_line *to, const oari_analysis *a)
{
    oari_text_add(to, "deadlock: ");
    for (int i = 0; i < a->cycles; i++) {
        int from = a->cycle[i], target = a->cycle[(i + 1) % a->cycles];
        const oari_wait *w = find_link(a, from, target);
        char where[151];

        if (w == NULL || to->used + 80 > to->room)
            break;
        say_where(&(oari_text_line){ where, sizeof where, 0 }, w);
        oari_text_add(to, "%srank %d waits for rank %d in %s",
                      i == 0 ? "" : "; ", from, target, where);
    }
}

void oari_say_long(oari_text_line *to, const oari_group_view *g)
{
    const oari_member *m = &g->member[g->teller];
    char age[32];

    oari_age_text(g->since_ns, age);
    oari_text_add(to, "all ranks of group \"%s\" have called ", g->ring->group);
    oari_text_add_op(to, g, m, m->at);
    oari_text_add(to, ", which has been running for %s", age);
}

void oari_say_well(oari_text_line *to, const oari_analysis *a)
{
    int ranks = a->autopsy->ranks, unknown = 0;

    for (int r = 0; r < ranks; r++) {
        const oari_dump *d = oari_dump_of_rank(a->autopsy, r);

        unknown += d == NULL || d->image.box == NULL;
    }
    if (unknown > 0)
        oari_text_add(to,
                      "nothing is wrong with the ranks that left a recorder "
                      "file; nothing is known about %d of %d ranks",
                      unknown, ranks);
    else
        oari_text_add(to, "nothing is wrong: %d rank%s, none of them waiting",
                      ranks, ranks == 1 ? "" : "s");
}
