/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_flights: what micro-batches in flight have: tapes, memory for what
 * comes and goes, handles. Everything is made once and used in turn. How many
 * there are follows from the rows of the schedule, such that nothing has to be
 * waited for that may not have happened:
 *
 *   flights   one is used again when the last action of its micro-batch lies
 *             before the first of the next one, in this rank's row.
 *   grads     the gradients of inputs are overwritten by the B of a later
 *             micro-batch when the stage they go to has its B of the earlier
 *             one before its F of the later one: then it has taken them.
 *   arrivals  what comes in may be overwritten after W. The stage it comes from
 *             has by then begun with at most as many micro-batches as it may
 *             be ahead (grads), and as many as W comes after I here.
 */
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"

enum { SHARED_LEAST = 64 << 10 }; /* bytes from which memory is shared */

/* ---- how many ------------------------------------------------------------ */

/* Where the micro-batches of a stage have certain actions in a row, by turn. */
typedef struct places {
    int64_t *begin, *end;
} places;

/* Returns how many turns apart two must be at least, so that the end of the
 * first lies before the begin of the second and of all later ones, and `least`.
 * Changes begins to the least of all from there on. */
static int turns_apart(places *at, int count, int least)
{
    int apart = least;

    for (int k = count - 2; k >= 0; k--)
        if (at->begin[k + 1] < at->begin[k])
            at->begin[k] = at->begin[k + 1];
    for (int j = 0; j < count; j++)
        while (j + apart < count && at->begin[j + apart] <= at->end[j])
            apart++;
    return apart;
}

/* The actions between which something is counted. */
typedef enum span_kind {
    ALL,    /* any */
    F_TO_B, /* F, and B or I */
    I_TO_W  /* B or I, and B or W */
} span_kind;

static int begins(span_kind kind, oar_act act)
{
    return kind == ALL || (kind == F_TO_B && act == OAR_ACT_F) ||
           (kind == I_TO_W && (act == OAR_ACT_B || act == OAR_ACT_I));
}

static int ends(span_kind kind, oar_act act)
{
    return kind == ALL || act == OAR_ACT_B ||
           act == (kind == F_TO_B ? OAR_ACT_I : OAR_ACT_W);
}

/* Notes where a stage begins and ends with each micro-batch in its rank's row.
 */
static oar_status find_places(const oar_pipeline *p, int stage, span_kind kind,
                              const int *turn, places *at)
{
    int rank = oar_schedule_rank_of(p->schedule, stage);
    int64_t actions = oar_schedule_actions(p->schedule, rank);

    for (int m = 0; m < p->micro; m++) {
        at->begin[m] = INT64_MAX;
        at->end[m] = -1;
    }
    for (int64_t i = 0; i < actions; i++) {
        oar_action a;
        OARI_TRY(oar_schedule_action(p->schedule, rank, i, &a));
        if (a.stage != stage || a.micro < 0)
            continue;
        if (begins(kind, a.act) && i < at->begin[turn[a.micro]])
            at->begin[turn[a.micro]] = i;
        if (ends(kind, a.act))
            at->end[turn[a.micro]] = i;
    }
    return OAR_OK;
}

/* Finds the order of its micro-batches, and where its last backward is. */
static oar_status find_turns(const oar_pipeline *p, oari_pipe_stage *s)
{
    int64_t actions = oar_schedule_actions(p->schedule, p->rank);
    int next = 0, reduces = 0;

    s->last_backward = -1;
    for (int64_t i = 0; i < actions; i++) {
        oar_action a;
        OARI_TRY(oar_schedule_action(p->schedule, p->rank, i, &a));
        if (a.stage != s->index)
            continue;
        if (a.act == OAR_ACT_F) {
            s->micro_at[next] = a.micro;
            s->turn[a.micro] = next++;
        }
        if (a.act == OAR_ACT_B || a.act == OAR_ACT_I || a.act == OAR_ACT_W)
            s->last_backward = i;
        reduces |= a.act == OAR_ACT_REDUCE_GRAD;
    }
    if (reduces)
        s->last_backward = -1;
    return OAR_OK;
}

static oar_status count_in_flight(const oar_pipeline *p, oari_pipe_stage *s,
                                  places *at)
{
    const oari_stage_wiring *w = &p->wiring[s->index];

    OARI_TRY(find_turns(p, s));
    OARI_TRY(find_places(p, s->index, ALL, s->turn, at));
    s->flights = turns_apart(at, p->micro, 1);
    s->grads = 1;
    for (int i = 0; s->index > 0 && i < w->inputs; i++) {
        OARI_TRY(find_places(p, w->from_stage[i], F_TO_B, s->turn, at));
        s->grads = turns_apart(at, p->micro, s->grads);
    }
    OARI_TRY(find_places(p, s->index, I_TO_W, s->turn, at));
    for (int m = 0; m < p->micro; m++)
        at->end[m] -= at->end[m] == at->begin[m]; /* a B */
    s->arrivals = s->grads + turns_apart(at, p->micro, 0);
    if (s->arrivals > p->micro)
        s->arrivals = p->micro;
    return OAR_OK;
}

/* ---- making -------------------------------------------------------------- */

static oar_status make_flights(oar_pipeline *p, oari_pipe_stage *s, places *at)
{
    s->turn = oari_alloc((size_t)p->micro, sizeof *s->turn);
    s->micro_at = oari_alloc((size_t)p->micro, sizeof *s->micro_at);
    if (s->turn == NULL || s->micro_at == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(count_in_flight(p, s, at));
    s->flight = oari_alloc((size_t)s->flights, sizeof *s->flight);
    s->arrival = oari_alloc((size_t)s->arrivals, sizeof *s->arrival);
    s->grad = oari_alloc((size_t)s->grads, sizeof *s->grad);
    if (s->flight == NULL || s->arrival == NULL || s->grad == NULL)
        return OAR_E_NOMEM;
    for (int k = 0; k < s->flights; k++) {
        s->flight[k].back =
            oari_alloc((size_t)s->edges + 1, sizeof *s->flight[k].back);
        if (s->flight[k].back == NULL)
            return OAR_E_NOMEM;
    }
    return p->opts.dynamic ? oari_heads_make(p, s) : OAR_OK;
}

oar_status oari_flights_make(oar_pipeline *p)
{
    places at;
    oar_status status = OAR_OK;

    at.begin = oari_alloc((size_t)p->micro, sizeof *at.begin);
    at.end = oari_alloc((size_t)p->micro, sizeof *at.end);
    if (at.begin == NULL || at.end == NULL)
        status = OAR_E_NOMEM;
    for (int i = 0; status == OAR_OK && i < p->stages; i++)
        status = make_flights(p, &p->stage[i], &at);
    oari_free(at.begin);
    oari_free(at.end);
    return status;
}

oar_status oari_make_room(oar_device device, oar_storage **storage,
                          size_t bytes, int shared)
{
    oar_storage *made;

    bytes += bytes == 0;
    if (*storage != NULL && oar_storage_bytes(*storage) >= bytes)
        return OAR_OK;
    if (device.kind != OAR_CPU)
        OARI_TRY(oar_storage_create_on(device, bytes, &made));
    else
        OARI_TRY(
            oar_storage_create(bytes, shared && bytes >= SHARED_LEAST, &made));
    oar_storage_release(*storage);
    *storage = made;
    return OAR_OK;
}

/* Returns the most bytes that an output has in any micro-batch. */
static size_t most_bytes(const oar_pipeline *p, int stage, int output)
{
    size_t most = 0;

    for (int c = 0; c < p->classes; c++) {
        size_t bytes = oari_spec_bytes(
            &p->spec[((int64_t)c * p->total + stage) * OARI_TENSORS + output]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static oar_status fill_inputs(const oar_pipeline *p, oari_pipe_stage *s)
{
    const oari_stage_wiring *w = &p->wiring[s->index];

    for (int i = 0; s->index > 0 && i < w->inputs; i++) {
        int from = w->from_stage[i];
        int remote = oar_schedule_rank_of(p->schedule, from) != p->rank;
        size_t bytes = most_bytes(p, from, w->from_output[i]);
        for (int k = 0; remote && k < s->arrivals; k++)
            OARI_TRY(oari_make_room(p->device, &s->arrival[k].in[i], bytes, 0));
        for (int k = 0; k < s->grads; k++)
            OARI_TRY(
                oari_make_room(p->device, &s->grad[k].grad[i], bytes, remote));
    }
    return OAR_OK;
}

static oar_status fill_outputs(const oar_pipeline *p, oari_pipe_stage *s)
{
    for (int e = 0; e < s->edges; e++) {
        size_t bytes = most_bytes(p, s->index, s->edge[e].output);
        if (oar_schedule_rank_of(p->schedule, s->edge[e].to) == p->rank)
            continue;
        for (int k = 0; k < s->flights; k++)
            OARI_TRY(oari_make_room(p->device, &s->flight[k].back[e].grad,
                                    bytes, 0));
    }
    return OAR_OK;
}

oar_status oari_flights_fill(oar_pipeline *p)
{
    for (int i = 0; i < p->stages; i++) {
        OARI_TRY(fill_inputs(p, &p->stage[i]));
        OARI_TRY(fill_outputs(p, &p->stage[i]));
    }
    return OAR_OK;
}

/* ---- tapes --------------------------------------------------------------- */

oar_status oari_tape_take(oar_pipeline *p, oari_flight *f)
{
    if (f->tape != NULL)
        return OAR_OK;
    if (p->idle.count > 0) {
        f->tape = p->idle.data[--p->idle.count];
        return OAR_OK;
    }
    OARI_TRY(oari_vec_reserve(&p->idle, p->tapes + 1)); /* to give it back */
    OARI_TRY(oar_tape_create(&f->tape));
    p->tapes++;
    if (p->ranks > 1)
        oar_tape_share(f->tape, SHARED_LEAST);
    return OAR_OK;
}

void oari_tape_give(oar_pipeline *p, oari_flight *f)
{
    if (f->tape == NULL)
        return;
    oar_tape_reset(f->tape);
    p->idle.data[p->idle.count++] = f->tape;
    f->tape = NULL;
}

/* ---- freeing ------------------------------------------------------------- */

/* After a failure the group has been aborted: nothing takes long then. */
static void end_work(oar_work **work)
{
    if (*work == NULL)
        return;
    oar_work_wait(*work);
    oar_work_release(*work);
    *work = NULL;
}

static void end_works(const oar_pipeline *p, oari_pipe_stage *s)
{
    for (int k = 0; s->head_out != NULL && k < s->edges * p->micro; k++)
        end_work(&s->head_out[k].work);
    for (int k = 0; s->head_in != NULL && k < s->given.inputs * p->micro; k++)
        end_work(&s->head_in[k].work);
    for (int k = 0; k < s->flights && s->flight != NULL; k++) {
        oari_flight *f = &s->flight[k];
        for (int e = 0; e < s->edges && f->back != NULL; e++) {
            end_work(&f->back[e].sent);
            end_work(&f->back[e].came);
        }
    }
    for (int k = 0; k < s->arrivals && s->arrival != NULL; k++)
        for (int i = 0; i < OARI_TENSORS; i++)
            end_work(&s->arrival[k].came[i]);
    for (int k = 0; k < s->grads && s->grad != NULL; k++)
        for (int i = 0; i < OARI_TENSORS; i++)
            end_work(&s->grad[k].sent[i]);
}

void oari_flights_reset(oar_pipeline *p)
{
    for (int i = 0; i < p->stages; i++) {
        end_works(p, &p->stage[i]);
        for (int k = 0; k < p->stage[i].flights; k++)
            if (p->stage[i].flight != NULL)
                oari_tape_give(p, &p->stage[i].flight[k]);
    }
    for (int64_t i = 0; i < p->kept.count; i++) {
        end_work(&p->kept.data[i].sent);
        oar_tensor_release(p->kept.data[i].tensor);
    }
    p->kept.count = 0;
}

void oari_flights_free(oari_pipe_stage *s)
{
    for (int k = 0; k < s->flights && s->flight != NULL; k++) {
        oari_flight *f = &s->flight[k];
        for (int e = 0; e < s->edges && f->back != NULL; e++)
            oar_storage_release(f->back[e].grad);
        oar_tensor_release(f->seed);
        oari_free(f->back);
    }
    for (int k = 0; k < s->arrivals && s->arrival != NULL; k++)
        for (int i = 0; i < OARI_TENSORS; i++)
            oar_storage_release(s->arrival[k].in[i]);
    for (int k = 0; k < s->grads && s->grad != NULL; k++)
        for (int i = 0; i < OARI_TENSORS; i++)
            oar_storage_release(s->grad[k].grad[i]);
    oari_free(s->head_out);
    oari_free(s->head_in);
    oari_free(s->turn);
    oari_free(s->micro_at);
    oari_free(s->flight);
    oari_free(s->arrival);
    oari_free(s->grad);
}
