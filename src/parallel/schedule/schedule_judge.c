/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_judge: whether a schedule can run, and what it costs. */
#include "parallel/schedule/schedule.h"

#include "base/status.h"

/* ---- circles ------------------------------------------------------------- */

/* Returns the action as the user knows it: the one that made a message, if the
 * messages are ours. */
static oar_action as_given(const oar_schedule *s,
                           const oari_schedule_index *index, oar_action a)
{
    if (!s->given && a.act == OAR_ACT_SEND_F)
        a.act = OAR_ACT_F;
    if (!s->given && a.act == OAR_ACT_SEND_B)
        a.act = OAR_ACT_B;
    if (a.act == OAR_ACT_B &&
        *oari_index_at(index, s, a.stage, a.micro, OAR_ACT_B) < 0)
        a.act = OAR_ACT_I;
    return a;
}

/* The first action of a rank that has not run, and what it waits for. */
static oar_action needed_by(const oari_timeline *t, int rank)
{
    const oar_schedule *s = t->schedule;
    oar_action needed = { 0, OAR_ACT_F, 0, 0 };

    oari_action_needs(s, &s->row[rank].data[t->done[rank]], &needed);
    return needed;
}

static void write_wait(oari_schedule_writer *w, const oari_timeline *t,
                       const oari_schedule_index *index, int rank)
{
    const oar_schedule *s = t->schedule;
    oar_action needed = as_given(s, index, needed_by(t, rank));
    int other = s->rank_of[needed.stage];

    oari_write_place(w, s, rank, t->done[rank]);
    oari_write(w, " waits for ");
    oari_write_action(w, &needed);
    oari_write(w, ", which rank %d runs after ", other);
    oari_write_action(w, &s->row[other].data[t->done[other]]);
}

static int next_in_circle(const oari_timeline *t, int rank)
{
    return t->schedule->rank_of[needed_by(t, rank).stage];
}

/* Every rank that has not ended waits for one that has not. Going from each to
 * the next, as often as there are ranks, leads into the circle. */
static void write_circle(oari_schedule_writer *w, const oari_timeline *t,
                         const oari_schedule_index *index)
{
    const oar_schedule *s = t->schedule;
    int rank = 0, lowest;

    while (t->done[rank] == s->row[rank].count)
        rank++;
    for (int i = 0; i < s->ranks; i++)
        rank = next_in_circle(t, rank);
    lowest = rank;
    for (int r = next_in_circle(t, rank); r != rank; r = next_in_circle(t, r))
        lowest = r < lowest ? r : lowest;
    rank = lowest;
    do {
        if (rank != lowest)
            oari_write(w, "; ");
        write_wait(w, t, index, rank);
        rank = next_in_circle(t, rank);
    } while (rank != lowest);
}

oar_status oari_schedule_judge(const oar_schedule *s,
                               const oar_schedule_cost *cost,
                               oari_schedule_writer *why, oari_timeline *t)
{
    oari_schedule_index index = { NULL };
    oar_status status = oari_schedule_check_rows(s, &index, why);

    *t = (oari_timeline){ 0 };
    if (status == OAR_OK)
        status = oari_timeline_make(s, cost, NULL, t);
    if (status == OAR_OK && t->circle) {
        write_circle(why, t, &index);
        status = OAR_E_ARG;
    }
    oari_free(index.at);
    return status;
}

oar_status oari_schedule_run(const oar_schedule *s,
                             const oar_schedule_cost *cost, oari_timeline *t)
{
    char reason[440] = "";
    oari_schedule_writer why = { reason, sizeof reason, 0 };
    oar_status status = oari_schedule_judge(s, cost, &why, t);

    if (status == OAR_E_ARG)
        oari_fail(OAR_E_ARG, "the schedule cannot run: %s%s", reason,
                  why.used < why.room
                      ? ""
                      : "... (oar_schedule_explain has the rest)");
    return status;
}

/* ---- memory -------------------------------------------------------------- */

typedef struct memory_use {
    const oar_schedule *s;
    const oar_schedule_cost *cost;
    int forward_only;
    uint64_t bytes, most;
    int flying, most_flying;
} memory_use;

static uint64_t held_by(const memory_use *u, int stage)
{
    return u->cost->held != NULL ? u->cost->held[stage] : 1;
}

static uint64_t half_of(const memory_use *u, int stage)
{
    return u->cost->half != NULL ? u->cost->half[stage] : held_by(u, stage);
}

/* Returns the bytes of a message of a stage; 0 if there is no such message. */
static uint64_t message_of(const memory_use *u, int stage, oar_act act)
{
    int back = act == OAR_ACT_RECV_F || act == OAR_ACT_SEND_B;

    if (u->cost->message == NULL || oari_message_peer(u->s, stage, act) < 0)
        return 0;
    return u->cost->message[back ? stage - 1 : stage];
}

static void see_peak(memory_use *u)
{
    u->most = u->bytes > u->most ? u->bytes : u->most;
    u->most_flying = u->flying > u->most_flying ? u->flying : u->most_flying;
}

/* What is there while an action runs counts before what it frees is gone. An
 * input that has come is a part of what F then holds, and so is an output that
 * is sent. */
static void use_by_action(memory_use *u, const oar_action *a)
{
    int stage = a->stage;
    int ends = a->act == OAR_ACT_B || a->act == OAR_ACT_W ||
               (a->act == OAR_ACT_F && u->forward_only);

    if (a->act == OAR_ACT_F) {
        u->bytes += held_by(u, stage) - message_of(u, stage, OAR_ACT_RECV_F);
        u->flying++;
    } else if (a->act == OAR_ACT_B || a->act == OAR_ACT_I) {
        u->bytes += message_of(u, stage, OAR_ACT_SEND_B);
    } else if (a->act == OAR_ACT_RECV_F || a->act == OAR_ACT_RECV_B) {
        u->bytes += message_of(u, stage, a->act);
    } else if (a->act == OAR_ACT_SEND_B) {
        u->bytes -= message_of(u, stage, a->act);
    }
    see_peak(u);
    u->flying -= ends;
    if (a->act == OAR_ACT_F && u->forward_only)
        u->bytes -= held_by(u, stage);
    if (a->act == OAR_ACT_B || a->act == OAR_ACT_I)
        u->bytes -= held_by(u, stage) + message_of(u, stage, OAR_ACT_RECV_B);
    if (a->act == OAR_ACT_I)
        u->bytes += half_of(u, stage);
    if (a->act == OAR_ACT_W)
        u->bytes -= half_of(u, stage);
    see_peak(u);
}

static int has_backward(const oar_schedule *s)
{
    for (int64_t i = 0; i < s->row[0].count; i++)
        if (s->row[0].data[i].act == OAR_ACT_B ||
            s->row[0].data[i].act == OAR_ACT_I)
            return 1;
    return 0;
}

static void report_memory(const oar_schedule *s, const oar_schedule_cost *cost,
                          oar_schedule_report *report)
{
    int forward_only = !has_backward(s);

    for (int r = 0; r < s->ranks; r++) {
        memory_use u = { s, cost, forward_only, 0, 0, 0, 0 };

        for (int64_t i = 0; i < s->row[r].count; i++)
            use_by_action(&u, &s->row[r].data[i]);
        if (u.most > report->most_bytes) {
            report->most_bytes = u.most;
            report->most_rank = r;
        }
        if (u.most_flying > report->in_flight)
            report->in_flight = u.most_flying;
    }
}

/* ---- the report ---------------------------------------------------------- */

/* Whether every stage adds gradients in the order of the micro-batches. */
static oar_status report_order(const oar_schedule *s,
                               oar_schedule_report *report)
{
    int *next = oari_alloc((size_t)s->stages, sizeof *next);

    if (next == NULL)
        return OAR_E_NOMEM;
    report->ascending = 1;
    for (int r = 0; r < s->ranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const oar_action *a = &s->row[r].data[i];

            if (a->act == OAR_ACT_B || a->act == OAR_ACT_W)
                report->ascending &= a->micro == next[a->stage]++;
        }
    oari_free(next);
    return OAR_OK;
}

oar_status oar_schedule_check(const oar_schedule *schedule,
                              const oar_schedule_cost *cost,
                              oar_schedule_report *report)
{
    oar_schedule_report made = { .size = sizeof made };
    oar_schedule_cost c;
    oari_timeline t;
    oar_status status;

    if (schedule == NULL)
        return oari_fail(OAR_E_ARG, "no schedule to check");
    OARI_TRY(oari_cost_read(schedule, cost, &c));
    status = oari_schedule_run(schedule, &c, &t);
    if (status == OAR_OK)
        status = report_order(schedule, &made);
    if (status == OAR_OK && report != NULL) {
        double all = schedule->ranks * t.time;

        made.time = t.time;
        made.bubble = all > 0 ? 1 - t.work / all : 0;
        report_memory(schedule, &c, &made);
        status = oari_struct_give(report, &made, sizeof made,
                                  "the report of a schedule");
    }
    oari_timeline_free(&t);
    return status;
}

size_t oar_schedule_explain(const oar_schedule *schedule, char *text,
                            size_t bytes)
{
    oari_schedule_writer why = { text, text != NULL ? bytes : 0, 0 };
    oar_schedule_cost cost = { 0 };
    oari_timeline t;

    oari_write(&why, "%s", "");
    if (schedule == NULL)
        return 0;
    (void)oari_schedule_judge(schedule, &cost, &why, &t);
    oari_timeline_free(&t);
    return why.used;
}
