/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_stats: what actions of the last step took, and what micro-batches
 * in flight hold. Memory is looked at in the first step with inputs of a shape
 * only: it takes a walk over each tape. */
#include <string.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"

/* ---- in a step ----------------------------------------------------------- */

void oari_stats_begin(oar_pipeline *p)
{
    p->busy_s = p->wait_s = 0;
    p->sent_bytes = 0;
    p->messages = 0;
    p->in_flight = 0;
    p->message_bytes = 0;
    p->simulated_s = p->simulated_bubble = 0;
    memset(p->at, 0,
           (size_t)oar_schedule_actions(p->schedule, p->rank) * sizeof *p->at);
    for (int i = 0; i < p->stages; i++)
        for (int a = 0; a < OARI_COMPUTATIONS; a++) {
            p->stage[i].time[a] = 0;
            p->stage[i].runs[a] = 0;
        }
}

uint64_t oari_input_bytes(const oar_pipeline *p, const oari_pipe_stage *s,
                          int micro)
{
    uint64_t bytes = 0;

    for (int i = 0; s->index > 0 && i < s->given.inputs; i++)
        if (oari_own_stage(p, p->wiring[s->index].from_stage[i]) == NULL)
            bytes += oari_spec_bytes(oari_input_spec(p, micro, s->index, i));
    return bytes;
}

/* What comes back for the outputs of a micro-batch from other ranks. */
static uint64_t gradient_bytes(const oar_pipeline *p, const oari_pipe_stage *s,
                               int micro)
{
    uint64_t bytes = 0;

    for (int k = 0; k < s->edges; k++) {
        const oari_flow_spec *spec =
            oari_spec_at(p, micro, s->index, s->edge[k].output);
        if (oari_own_stage(p, s->edge[k].to) == NULL &&
            oari_is_float(spec->dtype))
            bytes += oari_spec_bytes(spec);
    }
    return bytes;
}

/* Adds up what all micro-batches in flight hold, with what has come for them,
 * and messages, as the judge of schedules does. */
static void see_bytes(oar_pipeline *p)
{
    uint64_t bytes = p->message_bytes;

    for (int i = 0; i < p->stages; i++)
        for (int m = 0; m < p->micro; m++) {
            const oari_pipe_stage *s = &p->stage[i];
            const oari_flight *f = oari_flight_of(s, m);
            if (f->tape != NULL && f->micro == m)
                bytes += oar_tape_bytes(f->tape) + oari_input_bytes(p, s, m);
        }
    p->most_bytes = bytes > p->most_bytes ? bytes : p->most_bytes;
}

/* Dynamic shapes are known when F has what it needs: receives do not count. */
void oari_stats_before(oar_pipeline *p, const oar_action *a)
{
    const oari_pipe_stage *s = oari_own_stage(p, a->stage);

    if (!p->measuring || a->micro < 0)
        return;
    if (!p->opts.dynamic && a->act == OAR_ACT_RECV_F)
        p->message_bytes += oari_input_bytes(p, s, a->micro);
    else if (!p->opts.dynamic && a->act == OAR_ACT_RECV_B)
        p->message_bytes += gradient_bytes(p, s, a->micro);
    else if (!p->opts.dynamic && a->act == OAR_ACT_F)
        p->message_bytes -= oari_input_bytes(p, s, a->micro);
    else if (a->act == OAR_ACT_B || a->act == OAR_ACT_I)
        p->message_bytes += oari_input_bytes(p, s, a->micro);
    if (a->act == OAR_ACT_B || a->act == OAR_ACT_I)
        see_bytes(p);
}

void oari_stats_after(oar_pipeline *p, const oar_action *a)
{
    const oari_pipe_stage *s = oari_own_stage(p, a->stage);

    if (!p->measuring || a->micro < 0)
        return;
    if (!p->opts.dynamic && (a->act == OAR_ACT_B || a->act == OAR_ACT_I))
        p->message_bytes -= gradient_bytes(p, s, a->micro);
    if (a->act == OAR_ACT_SEND_B)
        p->message_bytes -= oari_input_bytes(p, s, a->micro);
    if (a->act == OAR_ACT_F || a->act == OAR_ACT_I)
        see_bytes(p);
}

void oari_stats_note(oar_pipeline *p, oari_pipe_stage *s, const oar_action *a,
                     int64_t begun, const oari_action_time *at)
{
    double waited_s = (double)(at->ready - begun) * 1e-9;
    double took_s = (double)(at->end - at->ready) * 1e-9;
    const oari_flight *f = oari_flight_of(s, a->micro);
    int in_flight = p->tapes - (int)p->idle.count;
    uint64_t *most = a->act == OAR_ACT_F ? &s->held : &s->half, bytes;

    p->wait_s += waited_s;
    p->busy_s += took_s;
    s->time[a->act] += took_s;
    s->runs[a->act]++;
    p->in_flight = in_flight > p->in_flight ? in_flight : p->in_flight;
    if (!p->measuring || (a->act != OAR_ACT_F && a->act != OAR_ACT_I))
        return;
    bytes = oar_tape_bytes(f->tape) + oari_input_bytes(p, s, a->micro);
    *most = bytes > *most ? bytes : *most;
}

/* ---- asking -------------------------------------------------------------- */

oar_status oar_pipeline_read_stats(const oar_pipeline *p,
                                   oar_pipeline_stats *stats)
{
    oar_pipeline_stats made = oar_pipeline_stats_init();

    if (p == NULL)
        return oari_fail(OAR_E_ARG, "pipeline_read_stats without a pipeline");
    made.steps = p->steps;
    made.step_s = p->step_s;
    made.busy_s = p->busy_s;
    made.wait_s = p->wait_s;
    made.bubble = p->row_s > 0 ? 1 - p->all_busy_s / (p->ranks * p->row_s) : 0;
    made.simulated_s = p->simulated_s;
    made.simulated_bubble = p->simulated_bubble;
    made.sent_bytes = p->sent_bytes;
    made.messages = p->messages;
    made.in_flight = p->in_flight;
    made.most_bytes = p->most_bytes;
    return oari_struct_give(stats, &made, sizeof made, "pipeline_stats");
}

enum { FORWARD, INPUTS, WEIGHTS, HELD, HALF, MESSAGE, COLUMNS };

static double mean_time(const oari_pipe_stage *s, oar_act act)
{
    return s->runs[act] > 0 ? s->time[act] / s->runs[act] : 0;
}

/* Returns the bytes of all outputs, in the micro-batch where they are most. */
static double largest_message(const oar_pipeline *p, const oari_pipe_stage *s)
{
    size_t most = 0;

    for (int m = 0; p->spec != NULL && m < p->micro; m++) {
        size_t bytes = 0;
        for (int o = 0; o < s->given.outputs; o++)
            bytes += oari_spec_bytes(oari_spec_at(p, m, s->index, o));
        most = bytes > most ? bytes : most;
    }
    return (double)most;
}

/* What one process knows: its own stages. A B counts as two equal halves. */
static void fill_costs(const oar_pipeline *p, double *cost)
{
    for (int i = 0; i < p->stages; i++) {
        const oari_pipe_stage *s = &p->stage[i];
        double whole = mean_time(s, OAR_ACT_B);
        double *row = cost + (int64_t)s->index * COLUMNS;
        row[FORWARD] = mean_time(s, OAR_ACT_F);
        row[INPUTS] =
            s->runs[OAR_ACT_I] > 0 ? mean_time(s, OAR_ACT_I) : whole / 2;
        row[WEIGHTS] =
            s->runs[OAR_ACT_W] > 0 ? mean_time(s, OAR_ACT_W) : whole / 2;
        row[HELD] = (double)s->held;
        row[HALF] = (double)s->half;
        row[MESSAGE] = largest_message(p, s);
    }
}

static oar_status make_columns(oar_pipeline *p)
{
    size_t n = (size_t)p->total;

    if (p->cost == NULL)
        p->cost = oari_alloc(n * 2 * COLUMNS, sizeof *p->cost);
    if (p->cost_bytes == NULL)
        p->cost_bytes = oari_alloc(n * 3, sizeof *p->cost_bytes);
    return p->cost != NULL && p->cost_bytes != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* Turns rows of stages into the columns of the caller's struct. */
static void give_columns(oar_pipeline *p, oar_schedule_cost *cost)
{
    double *row = p->cost, *column = p->cost + (int64_t)p->total * COLUMNS;

    for (int k = 0; k < p->total; k++, row += COLUMNS)
        for (int c = 0; c < COLUMNS; c++) {
            column[(int64_t)c * p->total + k] = row[c];
            if (c >= HELD)
                p->cost_bytes[(int64_t)(c - HELD) * p->total + k] =
                    (uint64_t)row[c];
        }
    *cost = oar_schedule_cost_init();
    cost->forward = column;
    cost->inputs = column + p->total;
    cost->weights = column + 2 * (int64_t)p->total;
    cost->held = p->cost_bytes;
    cost->half = p->cost_bytes + p->total;
    cost->message = p->cost_bytes + 2 * (int64_t)p->total;
}

oar_status oari_gather_costs(oar_pipeline *p, oar_schedule_cost *cost)
{
    size_t words = (size_t)p->total * COLUMNS;

    if (make_columns(p) != OAR_OK)
        return oari_pipeline_give_up(p);
    for (size_t i = 0; i < words; i++)
        p->cost[i] = 0;
    fill_costs(p, p->cost);
    OARI_TRY(oar_all_reduce(
        p->group, oar_span_of(p->cost, words, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "pipeline cost"), NULL));
    give_columns(p, cost);
    return OAR_OK;
}

oar_status oar_pipeline_cost_at(const char *file, int line, oar_pipeline *p,
                                oar_schedule_cost *cost)
{
    OARI_CALLED_FROM(file, line);
    double hop;

    if (p == NULL || cost == NULL)
        return oari_fail(OAR_E_ARG, "pipeline_cost without a %s",
                         p == NULL ? "pipeline" : "place for it");
    if (p->over)
        return oari_fail(OAR_E_STATE, "pipeline_cost after a step that failed");
    OARI_TRY(oari_trace_cost(p, &hop));
    OARI_TRY(oari_gather_costs(p, cost));
    cost->hop = hop;
    return OAR_OK;
}
