/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_trace: the last step over time. Each rank has noted when its actions
 * began and ended, by its own clock. What goes between two ranks aligns their
 * clocks: nothing comes before it was sent. Where one clock for both fulfils
 * that, they have one; else the shortest way forward and the shortest way back
 * are taken for equal. */
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/schedule/schedule.h"

/* The times of all ranks. */
typedef struct step_trace {
    const oar_pipeline *p;
    int64_t most;         /* actions of a rank */
    oari_action_time *at; /* [rank][place in its row] */
    int64_t *begun;       /* of each rank */
    int64_t *shift;       /* what its clock is behind rank_of(stage 0)'s */
    int32_t *place;       /* [stage][micro-batch][which]; -1: it did not run */
} step_trace;

/* Ways between stages, and whose places are kept: of what takes a message, by
 * its way, and of the send. */
enum { FORTH, BACK, SENT_FORTH, SENT_BACK, WHICH };

static void free_trace(step_trace *t)
{
    oari_free(t->at);
    oari_free(t->begun);
    oari_free(t->shift);
    oari_free(t->place);
}

static oar_status alloc_trace(const oar_pipeline *p, step_trace *t)
{
    size_t ranks = (size_t)p->ranks;
    size_t places = (size_t)p->total * (size_t)p->micro * WHICH;

    *t = (step_trace){ .p = p, .most = 1 };
    for (int r = 0; r < p->ranks; r++)
        if (oar_schedule_actions(p->schedule, r) > t->most)
            t->most = oar_schedule_actions(p->schedule, r);
    t->at = oari_alloc(ranks * (size_t)t->most, sizeof *t->at);
    t->begun = oari_alloc(ranks, sizeof *t->begun);
    t->shift = oari_alloc(ranks, sizeof *t->shift);
    t->place = oari_alloc(places, sizeof *t->place);
    return t->at && t->begun && t->shift && t->place ? OAR_OK : OAR_E_NOMEM;
}

static oari_action_time *time_at(const step_trace *t, int rank, int64_t i)
{
    return &t->at[rank * t->most + i];
}

/* Returns the times of a stage's action; NULL: it did not run. */
static const oari_action_time *time_of(const step_trace *t, int stage,
                                       int micro, int which, int *place)
{
    int rank = oar_schedule_rank_of(t->p->schedule, stage);

    *place = t->place[((int64_t)stage * t->p->micro + micro) * WHICH + which];
    return *place >= 0 ? time_at(t, rank, *place) : NULL;
}

static oar_status find_places(step_trace *t)
{
    static const signed char which[] = {
        [OAR_ACT_F] = FORTH,
        [OAR_ACT_B] = BACK,
        [OAR_ACT_I] = BACK,
        [OAR_ACT_W] = -1,
        [OAR_ACT_SEND_F] = SENT_FORTH,
        [OAR_ACT_RECV_F] = -1,
        [OAR_ACT_SEND_B] = SENT_BACK,
    };
    const oar_pipeline *p = t->p;

    for (int64_t k = 0; k < (int64_t)p->total * p->micro * WHICH; k++)
        t->place[k] = -1;
    for (int r = 0; r < p->ranks; r++)
        for (int64_t i = 0; i < oar_schedule_actions(p->schedule, r); i++) {
            oar_action a;
            OARI_TRY(oar_schedule_action(p->schedule, r, i, &a));
            if (a.act <= OAR_ACT_SEND_B && which[a.act] >= 0 &&
                time_at(t, r, i)->over != 0)
                t->place[((int64_t)a.stage * p->micro + a.micro) * WHICH +
                         which[a.act]] = (int32_t)i;
        }
    return OAR_OK;
}

/* ---- clocks -------------------------------------------------------------- */

/* Gives the shortest time from a send of a stage to the action of the next that
 * takes it (FORTH), or back, by the clocks as they are. Returns whether there
 * was one. */
static int shortest_way(const step_trace *t, int stage, int way,
                        int64_t *shortest)
{
    int found = 0, at;

    for (int m = 0; m < t->p->micro; m++) {
        const oari_action_time *sent =
            time_of(t, stage + way, m, SENT_FORTH + way, &at);
        const oari_action_time *taken = time_of(t, stage + !way, m, way, &at);
        int64_t took;
        if (sent == NULL || taken == NULL)
            continue;
        took = taken->ready - sent->ready;
        if (!found || took < *shortest)
            *shortest = took;
        found = 1;
    }
    return found;
}

/* Finds how far the clock of the next stage's rank is behind. */
static void align_next(step_trace *t, int stage, int from, int to)
{
    int64_t forth = 0, back = 0, shift = 0;

    shortest_way(t, stage, FORTH, &forth);
    if (shortest_way(t, stage, BACK, &back)) {
        if (forth < 0 || back < 0)
            shift = (back - forth) / 2;
    } else { /* forward only: the exchange before it was over at one time */
        shift = t->begun[from] - t->begun[to];
        if (forth + shift < 0)
            shift = -forth;
    }
    t->shift[to] = t->shift[from] + shift;
}

static void align_clocks(step_trace *t)
{
    const oar_schedule *s = t->p->schedule;

    for (int k = 0; k + 1 < t->p->total; k++) {
        int from = oar_schedule_rank_of(s, k);
        int to = oar_schedule_rank_of(s, k + 1), known = 0;
        for (int j = 0; j <= k; j++)
            known |= oar_schedule_rank_of(s, j) == to;
        if (!known)
            align_next(t, k, from, to);
    }
    for (int r = 0; r < t->p->ranks; r++)
        for (int64_t i = 0; i < t->most; i++)
            if (time_at(t, r, i)->over != 0) {
                time_at(t, r, i)->ready += t->shift[r];
                if (time_at(t, r, i)->end != 0) /* it computes */
                    time_at(t, r, i)->end += t->shift[r];
                time_at(t, r, i)->over += t->shift[r];
            }
}

/* ---- gathering ----------------------------------------------------------- */

/* Fails on all ranks if one has no memory. */
static oar_status gather_trace(oar_pipeline *p, step_trace *t)
{
    oar_status status = alloc_trace(p, t);
    size_t bytes = (size_t)t->most * sizeof *t->at;

    if (status != OAR_OK)
        return oari_pipeline_give_up(p);
    for (int64_t i = 0; i < oar_schedule_actions(p->schedule, p->rank); i++)
        *time_at(t, p->rank, i) = p->at[i];
    OARI_TRY(oar_all_gather(
        p->group, oar_span_of(time_at(t, p->rank, 0), bytes, OAR_U8),
        oar_span_of(t->at, bytes * (size_t)p->ranks, OAR_U8),
        OAR_OPTS(oar_call_opts, .label = "pipeline times"), NULL));
    OARI_TRY(oar_all_gather(p->group, oar_span_of(&p->begun, 1, OAR_I64),
                            oar_span_of(t->begun, (size_t)p->ranks, OAR_I64),
                            OAR_OPTS(oar_call_opts, .label = "pipeline times"),
                            NULL));
    OARI_TRY(find_places(t));
    align_clocks(t);
    return OAR_OK;
}

/* ---- messages ------------------------------------------------------------ */

/* Returns when the rank of an action was done with what it ran before. */
static int64_t end_before(const step_trace *t, int rank, int64_t place)
{
    while (place-- > 0)
        if (time_at(t, rank, place)->over != 0)
            return time_at(t, rank, place)->over;
    return INT64_MIN;
}

/* Returns the mean time of messages that were waited for, in one direction. */
static double mean_hop(const step_trace *t, int way)
{
    const oar_schedule *s = t->p->schedule;
    double sum = 0;
    int count = 0, at, place;

    for (int k = 0; k + 1 < t->p->total; k++) {
        int taker = oar_schedule_rank_of(s, k + !way);
        if (taker == oar_schedule_rank_of(s, k + way))
            continue;
        for (int m = 0; m < t->p->micro; m++) {
            const oari_action_time *sent =
                time_of(t, k + way, m, SENT_FORTH + way, &at);
            const oari_action_time *taken =
                time_of(t, k + !way, m, way, &place);
            if (sent == NULL || taken == NULL ||
                end_before(t, taker, place) > sent->over)
                continue;
            sum += (double)(taken->ready - sent->over) * 1e-9;
            count++;
        }
    }
    return count > 0 && sum > 0 ? sum / count : 0;
}

/* Runs the schedule at what each action took, messages to be posted included.
 */
static oar_status simulate(oar_pipeline *p, const step_trace *t, double hop)
{
    oar_schedule_cost cost = oar_schedule_cost_init();
    oari_timeline made, line;
    double busy = 0;
    oar_status status = oari_timeline_alloc(p->schedule, &made);

    cost.hop = hop;
    for (int r = 0; status == OAR_OK && r < p->ranks; r++)
        for (int64_t i = 0; i < oar_schedule_actions(p->schedule, r); i++) {
            const oari_action_time *at = time_at(t, r, i);
            made.end[made.first[r] + i] = (double)(at->over - at->ready) * 1e-9;
            busy += at->end != 0 ? (double)(at->end - at->ready) * 1e-9 : 0;
        }
    if (status == OAR_OK) {
        status = oari_timeline_make(p->schedule, &cost, made.end, &line);
        if (status == OAR_OK) {
            p->simulated_s = line.time;
            p->simulated_bubble =
                line.time > 0 ? 1 - busy / (p->ranks * line.time) : 0;
        }
        oari_timeline_free(&line);
    }
    oari_timeline_free(&made);
    return status;
}

oar_status oari_trace_cost(oar_pipeline *p, double *hop)
{
    step_trace t;
    oar_status status = gather_trace(p, &t);

    if (status == OAR_OK) {
        double forth = mean_hop(&t, FORTH), back = mean_hop(&t, BACK);
        *hop = back > 0 ? (forth + back) / 2 : forth;
        status = simulate(p, &t, *hop);
    }
    free_trace(&t);
    return status;
}

/* ---- pictures ------------------------------------------------------------ */

/* Makes a timeline in ms, from the first action on. */
static oar_status make_timeline(const step_trace *t, oari_timeline *line)
{
    const oar_pipeline *p = t->p;
    int64_t first = INT64_MAX;

    OARI_TRY(oari_timeline_alloc(p->schedule, line));
    for (int64_t k = 0; k < p->ranks * t->most; k++)
        if (t->at[k].end != 0 && t->at[k].ready < first)
            first = t->at[k].ready;
    for (int r = 0; r < p->ranks; r++)
        for (int64_t i = 0; i < oar_schedule_actions(p->schedule, r); i++) {
            const oari_action_time *at = time_at(t, r, i);
            double *begin = &line->begin[line->first[r] + i];
            double *end = &line->end[line->first[r] + i];
            *begin = *end = -1;
            if (at->end == 0)
                continue;
            *begin = (double)(at->ready - first) * 1e-6;
            *end = (double)(at->end - first) * 1e-6;
            line->time = *end > line->time ? *end : line->time;
        }
    return OAR_OK;
}

oar_status oar_pipeline_draw_at(const char *file, int line, oar_pipeline *p,
                                oar_picture picture, char **text)
{
    OARI_CALLED_FROM(file, line);
    oari_timeline times = { 0 };
    oar_status status;
    step_trace t;

    if (p == NULL || text == NULL || (unsigned)picture > OAR_PICTURE_CHROME)
        return oari_fail(OAR_E_ARG, "pipeline_draw without a %s",
                         p == NULL      ? "pipeline"
                         : text == NULL ? "place for it"
                                        : "picture that there is");
    if (p->over || p->steps == 0)
        return oari_fail(OAR_E_STATE, "pipeline_draw %s",
                         p->over ? "after a step that failed"
                                 : "before the first step");
    status = gather_trace(p, &t);
    if (status == OAR_OK && p->rank == 0)
        status = make_timeline(&t, &times);
    *text = NULL;
    if (status == OAR_OK && p->rank == 0)
        status = oari_timeline_paint(&times, picture, text);
    if (p->rank == 0)
        oari_timeline_free(&times);
    free_trace(&t);
    return status;
}
