/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_time: runs all rows at once, each rank with a clock of its own.
 *
 * A rank goes on as long as its next action has what it needs. When it ends one
 * that a neighbouring stage may wait for, that stage's rank is looked at again.
 * So each action is looked at twice at most, and what has not run when no rank
 * can go on is in a circle.
 */
#include <math.h>

#include "parallel/schedule/schedule.h"
#include "base/status.h"

/* ---- costs --------------------------------------------------------------- */

static oar_status check_costs(const double *cost, int stages, const char *what)
{
    for (int i = 0; cost != NULL && i < stages; i++)
        if (!isfinite(cost[i]) || cost[i] < 0)
            return oari_fail(OAR_E_ARG, "the cost of %s of stage %d is %g",
                             what, i, cost[i]);
    return OAR_OK;
}

oar_status oari_cost_read(const oar_schedule *s, const oar_schedule_cost *from,
                          oar_schedule_cost *cost)
{
    *cost = (oar_schedule_cost){ 0 };
    OARI_TRY(oari_opts_read(cost, sizeof *cost, from));
    OARI_TRY(check_costs(cost->forward, s->stages, "F"));
    OARI_TRY(check_costs(cost->inputs, s->stages, "I"));
    OARI_TRY(check_costs(cost->weights, s->stages, "W"));
    if (!isfinite(cost->hop) || cost->hop < 0)
        return oari_fail(OAR_E_ARG, "the cost of a message is %g", cost->hop);
    return OAR_OK;
}

double oari_cost_of(const oar_schedule_cost *cost, const oar_action *a)
{
    double inputs = cost->inputs != NULL ? cost->inputs[a->stage] : 1;
    double weights = cost->weights != NULL ? cost->weights[a->stage] : 1;

    switch (a->act) {
    case OAR_ACT_F: return cost->forward != NULL ? cost->forward[a->stage] : 1;
    case OAR_ACT_B: return inputs + weights;
    case OAR_ACT_I: return inputs;
    case OAR_ACT_W: return weights;
    default: return 0;
    }
}

/* ---- what waits for what ------------------------------------------------- */

int oari_action_needs(const oar_schedule *s, const oar_action *a,
                      oar_action *needed)
{
    int forward = a->act == OAR_ACT_F;
    int peer = forward ? a->stage - 1 : a->stage + 1;
    oar_act made = forward ? OAR_ACT_F : OAR_ACT_B;
    oar_act sent = forward ? OAR_ACT_SEND_F : OAR_ACT_SEND_B;

    if ((!forward && a->act != OAR_ACT_B && a->act != OAR_ACT_I) || peer < 0 ||
        peer >= s->stages)
        return 0;
    *needed =
        (oar_action){ peer,
                      s->rank_of[peer] == s->rank_of[a->stage] ? made : sent,
                      a->micro, 0 };
    return 1;
}

/* ---- running ------------------------------------------------------------- */

/* Ends of what others wait for: F, B or I, and both sends. */
enum { END_F, END_B, SENT_F, SENT_B, ENDS };

typedef struct run {
    const oar_schedule *s;
    const oar_schedule_cost *cost;
    const double *each;
    oari_timeline *t;
    double *end; /* by stage, micro-batch and the four above; -1: not yet */
    double *clock;
    int *waiting; /* ranks to look at, each at most once */
    unsigned char *queued;
    int first, count;
} run;

/* Returns where the end of an action is kept; NULL: nobody waits for it. */
static double *end_of(const run *r, const oar_action *a)
{
    static const signed char which[] = {
        [OAR_ACT_F] = END_F,       [OAR_ACT_B] = END_B,
        [OAR_ACT_I] = END_B,       [OAR_ACT_W] = -1,
        [OAR_ACT_SEND_F] = SENT_F, [OAR_ACT_RECV_F] = -1,
        [OAR_ACT_SEND_B] = SENT_B, [OAR_ACT_RECV_B] = -1,
    };

    if (a->micro < 0 || which[a->act] < 0)
        return NULL;
    return &r->end[((int64_t)a->stage * r->s->micro + a->micro) * ENDS +
                   which[a->act]];
}

static void look_at(run *r, int stage)
{
    int rank;

    if (stage < 0 || stage >= r->s->stages)
        return;
    rank = r->s->rank_of[stage];
    if (r->queued[rank])
        return;
    r->queued[rank] = 1;
    r->waiting[(r->first + r->count++) % r->s->ranks] = rank;
}

/* Runs one action if it has what it needs. */
static int run_action(run *r, int rank, const oar_action *a)
{
    int64_t place = r->t->first[rank] + r->t->done[rank];
    double at = r->clock[rank], *end;
    double cost = r->each != NULL ? r->each[place] : oari_cost_of(r->cost, a);
    oar_action needed;

    if (oari_action_needs(r->s, a, &needed)) {
        double there = *end_of(r, &needed);

        if (there < 0)
            return 0;
        there += oari_act_is_message(needed.act) ? r->cost->hop : 0;
        at = there > at ? there : at;
    }
    r->t->begin[place] = at;
    r->t->end[place] = r->clock[rank] = at + cost;
    r->t->work += cost;
    r->t->done[rank]++;
    end = end_of(r, a);
    if (end != NULL)
        *end = at + cost;
    if (a->act == OAR_ACT_SEND_F)
        look_at(r, a->stage + 1);
    if (a->act == OAR_ACT_SEND_B)
        look_at(r, a->stage - 1);
    return 1;
}

/* Returns whether all rows came to their ends. */
static int run_rows(run *r)
{
    int64_t all = 0, done = 0;

    for (int i = 0; i < r->s->ranks; i++) {
        r->queued[i] = 1;
        r->waiting[i] = i;
        all += r->s->row[i].count;
    }
    for (r->count = r->s->ranks; r->count > 0;) {
        int rank = r->waiting[r->first];
        const oari_action_row *row = &r->s->row[rank];

        r->first = (r->first + 1) % r->s->ranks;
        r->count--;
        r->queued[rank] = 0;
        while (r->t->done[rank] < row->count &&
               run_action(r, rank, &row->data[r->t->done[rank]]))
            done++;
        r->t->time = r->clock[rank] > r->t->time ? r->clock[rank] : r->t->time;
    }
    return done == all;
}

/* ---- timelines ----------------------------------------------------------- */

oar_status oari_timeline_alloc(const oar_schedule *s, oari_timeline *t)
{
    size_t all = 0;

    *t = (oari_timeline){ .schedule = s };
    t->first = oari_alloc((size_t)s->ranks, sizeof *t->first);
    t->done = oari_alloc((size_t)s->ranks, sizeof *t->done);
    if (t->first == NULL || t->done == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < s->ranks; r++) {
        t->first[r] = (int64_t)all;
        all += (size_t)s->row[r].count;
    }
    t->begin = oari_alloc(all, sizeof *t->begin);
    t->end = oari_alloc(all, sizeof *t->end);
    return t->begin != NULL && t->end != NULL ? OAR_OK : OAR_E_NOMEM;
}

void oari_timeline_free(oari_timeline *t)
{
    oari_free(t->first);
    oari_free(t->done);
    oari_free(t->begin);
    oari_free(t->end);
}

static oar_status alloc_run(run *r)
{
    size_t ranks = (size_t)r->s->ranks;
    size_t ends = (size_t)r->s->stages * (size_t)r->s->micro * ENDS;

    r->end = oari_alloc(ends, sizeof *r->end);
    r->clock = oari_alloc(ranks, sizeof *r->clock);
    r->waiting = oari_alloc(ranks, sizeof *r->waiting);
    r->queued = oari_alloc(ranks, 1);
    if (r->end == NULL || r->clock == NULL || r->waiting == NULL ||
        r->queued == NULL)
        return OAR_E_NOMEM;
    for (size_t i = 0; i < ends; i++)
        r->end[i] = -1;
    return OAR_OK;
}

oar_status oari_timeline_make(const oar_schedule *s,
                              const oar_schedule_cost *cost, const double *each,
                              oari_timeline *t)
{
    run r = { .s = s, .cost = cost, .each = each, .t = t };
    oar_status status;

    status = oari_timeline_alloc(s, t);
    if (status == OAR_OK)
        status = alloc_run(&r);
    if (status == OAR_OK)
        t->circle = !run_rows(&r);
    oari_free(r.end);
    oari_free(r.clock);
    oari_free(r.waiting);
    oari_free(r.queued);
    return status;
}
