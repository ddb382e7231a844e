/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_wiring: checks this rank's stages, and tells all ranks which output
 * goes to which stage. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/reducer/agreement.h"

/* ---- this rank's stages -------------------------------------------------- */

static oar_status check_stage(const oar_pipeline *p, const oar_stage *g)
{
    if (g->index < 0 || g->index >= p->total)
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: stage %d, of a schedule with %d",
                         g->index, p->total);
    if (oar_schedule_rank_of(p->schedule, g->index) != p->rank)
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: stage %d is rank %d's in the "
                         "schedule, and is given on rank %d",
                         g->index, oar_schedule_rank_of(p->schedule, g->index),
                         p->rank);
    if ((g->module == NULL) == (g->forward == NULL))
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: stage %d needs a module or a "
                         "function, and has %s",
                         g->index, g->module == NULL ? "neither" : "both");
    if (g->inputs < 0 || g->inputs > OARI_TENSORS || g->outputs < 0 ||
        g->outputs > OARI_TENSORS)
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: stage %d has %d inputs and %d "
                         "outputs: 1 to %d",
                         g->index, g->inputs, g->outputs, OARI_TENSORS);
    if (g->module != NULL && (g->inputs > 1 || g->outputs > 1))
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: stage %d is a module, with one "
                         "input and one output, and is to have %d and %d: use "
                         "a function",
                         g->index, g->inputs, g->outputs);
    if (g->recompute && g->module == NULL)
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: stage %d is a function, which "
                         "cannot be recomputed: call oar_recompute in it",
                         g->index);
    return OAR_OK;
}

static int by_index(const void *a, const void *b)
{
    const oari_pipe_stage *x = a, *y = b;

    return x->index - y->index;
}

oar_status oari_take_stages(oar_pipeline *p, int stages, const oar_stage *stage)
{
    if (stages < 0 || (stages > 0 && stage == NULL))
        return oari_fail(OAR_E_ARG, "pipeline_create: %d stages, none given",
                         stages);
    p->stage = oari_alloc((size_t)stages + 1, sizeof *p->stage);
    if (p->stage == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < stages; i++) {
        oari_pipe_stage *s = &p->stage[i];
        OARI_TRY(oari_opts_read(&s->given, sizeof s->given, &stage[i]));
        OARI_TRY(check_stage(p, &s->given));
        s->index = s->given.index;
        s->last = s->index == p->total - 1;
        s->given.inputs += s->given.inputs == 0;
        s->given.outputs += s->given.outputs == 0;
        OARI_TRY(oari_stage_check_wrapper(s));
        oar_module_retain(s->given.module);
        p->stages++;
    }
    qsort(p->stage, (size_t)stages, sizeof *p->stage, by_index);
    for (int k = 0, i = 0; k < p->total; k++) {
        if (oar_schedule_rank_of(p->schedule, k) != p->rank)
            continue;
        if (i == stages || p->stage[i].index != k)
            return oari_fail(OAR_E_ARG,
                             "pipeline_create: stage %d is rank %d's in the "
                             "schedule, and is not given",
                             k, p->rank);
        i++;
    }
    for (int i = 1; i < stages; i++)
        if (p->stage[i].index == p->stage[i - 1].index)
            return oari_fail(OAR_E_ARG,
                             "pipeline_create: stage %d is given twice",
                             p->stage[i].index);
    if (p->stages > 0 && p->stage[p->stages - 1].last && p->opts.loss == NULL &&
        !p->forward_only)
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: rank %d has the last "
                         "stage and no loss",
                         p->rank);
    return OAR_OK;
}

oari_pipe_stage *oari_own_stage(const oar_pipeline *p, int index)
{
    for (int i = 0; i < p->stages; i++)
        if (p->stage[i].index == index)
            return &p->stage[i];
    return NULL;
}

/* ---- all stages ---------------------------------------------------------- */

static void describe_own(const oari_pipe_stage *s, oari_stage_wiring *w)
{
    w->inputs = s->given.inputs;
    w->outputs = s->given.outputs;
    for (int i = 0; i < s->given.inputs; i++) {
        w->from_stage[i] = s->given.input != NULL && s->index > 0
                               ? s->given.input[i].stage
                               : s->index - 1;
        w->from_output[i] = s->given.input != NULL && s->index > 0
                                ? s->given.input[i].output
                                : i;
    }
}

static oar_status check_wiring(const oar_pipeline *p)
{
    for (int k = 1; k < p->total; k++) {
        const oari_stage_wiring *w = &p->wiring[k];
        for (int i = 0; i < w->inputs; i++) {
            int from = w->from_stage[i], output = w->from_output[i];
            if (from < 0 || from >= k)
                return oari_fail(OAR_E_ARG,
                                 "pipeline_create: input %d of stage %d is to "
                                 "come from stage %d: 0 to %d",
                                 i, k, from, k - 1);
            if (output < 0 || output >= p->wiring[from].outputs)
                return oari_fail(OAR_E_ARG,
                                 "pipeline_create: input %d of stage %d is to "
                                 "be output %d of stage %d, which has %d",
                                 i, k, output, from, p->wiring[from].outputs);
        }
    }
    return OAR_OK;
}

/* Lists the uses of a stage's outputs, the latest stage first. */
static oar_status list_edges(oar_pipeline *p, oari_pipe_stage *s)
{
    int count = 0;

    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 &&
            (s->edge = oari_alloc((size_t)count + 1, sizeof *s->edge)) == NULL)
            return OAR_E_NOMEM;
        count = 0;
        for (int k = p->total - 1; k > s->index; k--)
            for (int i = 0; i < p->wiring[k].inputs; i++) {
                if (p->wiring[k].from_stage[i] != s->index)
                    continue;
                if (pass == 1)
                    s->edge[count] =
                        (oari_stage_edge){ s->index,
                                           p->wiring[k].from_output[i], k, i };
                count++;
            }
    }
    s->edges = count;
    return OAR_OK;
}

/* Every stage is on one rank, so a sum is what that rank says. */
static oar_status exchange_wiring(oar_pipeline *p)
{
    size_t words = sizeof *p->wiring / sizeof(int32_t);

    for (int i = 0; i < p->stages; i++)
        describe_own(&p->stage[i], &p->wiring[p->stage[i].index]);
    return oar_all_reduce(
        p->group, oar_span_of(p->wiring, (size_t)p->total * words, OAR_I32),
        OAR_SUM, OAR_OPTS(oar_call_opts, .label = "pipeline stages"), NULL);
}

oar_status oari_connect_stages(oar_pipeline *p)
{
    oar_status status = OAR_OK;

    OARI_TRY(exchange_wiring(p));
    OARI_TRY(check_wiring(p));
    for (int i = 0; status == OAR_OK && i < p->stages; i++)
        status = list_edges(p, &p->stage[i]);
    if (status == OAR_OK)
        status = oari_flights_make(p);
    return oari_agree_on_status(p->group, status, "pipeline_create");
}
