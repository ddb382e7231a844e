/* SPDX-License-Identifier: Apache-2.0 */
/* exec: one interpreter for every plan. A step is either done at once, or
 * pending until a later poll; the position in the plan is all the state there
 * is, so nothing is ever re-entered in the middle of a loop. */
#include "comm/exec/exec.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/exec/exec_run.h"

void (*oari_exec_hook)(const oari_exec *exec);

/* ---- making -------------------------------------------------------------- */

static oari_rules normal_rules = {
#define X(field, name, normal, text) .field = (normal),
    OARI_RULE_LIST(X)
#undef X
};

oar_status oari_exec_init(oari_exec *exec)
{
    size_t n = (size_t)exec->ranks;

    if (exec->rules == NULL)
        exec->rules = &normal_rules;
    exec->in = oari_alloc(n, sizeof *exec->in);
    exec->out = oari_alloc(n, sizeof *exec->out);
    exec->in_count = oari_alloc(n, sizeof *exec->in_count);
    exec->in_private = oari_alloc(n, sizeof *exec->in_private);
    exec->out_count = oari_alloc(n, sizeof *exec->out_count);
    exec->factor = oari_alloc(n, sizeof *exec->factor);
    exec->scale = oari_alloc(n, sizeof *exec->scale);
    exec->source = oari_alloc(n + 1, sizeof *exec->source);
    exec->destination = oari_alloc(n + 1, sizeof *exec->destination);
    exec->table = oari_alloc(n + 2, sizeof *exec->table);
    exec->part_at = oari_alloc(3 * (n + 1), sizeof *exec->part_at);
    if (exec->in == NULL || exec->out == NULL || exec->in_count == NULL ||
        exec->out_count == NULL || exec->in_private == NULL ||
        exec->factor == NULL || exec->scale == NULL || exec->source == NULL ||
        exec->destination == NULL || exec->table == NULL ||
        exec->part_at == NULL)
        return OAR_E_NOMEM;
    exec->out_at = exec->part_at + n + 1;
    exec->their_at = exec->out_at + n + 1;
    return OAR_OK;
}

void oari_exec_clear(oari_exec *exec)
{
    for (int i = 0; i < OARI_PLAN_CACHE; i++)
        oari_plan_clear(&exec->cache[i].plan);
    oari_plan_clear(&exec->once);
    oari_plan_clear(&exec->second);
    oari_free(exec->in);
    oari_free(exec->out);
    oari_free(exec->in_count);
    oari_free(exec->in_private);
    oari_free(exec->out_count);
    oari_free(exec->factor);
    oari_free(exec->scale);
    oari_free(exec->source);
    oari_free(exec->destination);
    oari_free(exec->table);
    oari_free(exec->part_at);
    oari_free(exec->transfer);
    oari_free(exec->gather);
    oari_free(exec->work);
    oari_free(exec->block);
}

/* ---- finding the plan ---------------------------------------------------- */

static oar_status make_plan(oari_exec *exec, oari_plan *plan)
{
    const oari_algorithm *algorithm;

    oari_exec_make_request(exec, &exec->request);
    algorithm = oari_choose(&exec->request, exec->rules);
    if (algorithm == NULL)
        return OAR_E_UNSUPPORTED;
    return oari_plan_make(algorithm->name, algorithm->plan, &exec->request,
                          plan);
}

/* Plans with parts of their own are made for each call. */
static oar_status find_plan(oari_exec *exec)
{
    const oari_call *call = exec->call;
    oari_cached_plan *c = &exec->cache[exec->shape % OARI_PLAN_CACHE];
    int cached = c->shape == exec->shape && c->agreed == call->agreed &&
                 c->kind == call->kind && c->dtype == call->out.dtype &&
                 c->op == call->op.kind && c->root == call->root &&
                 c->canonical == call->canonical && c->plan.steps != 0;

    if (call->ragged || call->is_object) {
        OARI_TRY(make_plan(exec, &exec->once));
        exec->plan = &exec->once;
        return OAR_OK;
    }
    if (!cached) {
        OARI_TRY(make_plan(exec, &c->plan));
        c->shape = exec->shape;
        c->agreed = call->agreed;
        c->kind = call->kind;
        c->dtype = call->out.dtype;
        c->op = call->op.kind;
        c->root = call->root;
        c->canonical = call->canonical;
    }
    exec->plan = &c->plan;
    return OAR_OK;
}

static oar_status grow_scratch(unsigned char **memory, size_t *bytes,
                               size_t wanted)
{
    if (wanted <= *bytes)
        return OAR_OK;
    oari_free(*memory);
    *bytes = 0;
    *memory = oari_alloc_aligned(64, wanted);
    if (*memory == NULL)
        return OAR_E_NOMEM;
    *bytes = wanted;
    return OAR_OK;
}

oar_status oari_exec_reserve_scratch(oari_exec *exec, const oari_plan *plan)
{
    OARI_TRY(grow_scratch(&exec->gather, &exec->gather_bytes,
                          plan->gather_count * exec->element));
    OARI_TRY(
        grow_scratch(&exec->work, &exec->work_bytes,
                     plan->work_count * oari_exec_element(exec, OARI_WORK)));
    if (plan->max_in_flight <= exec->transfer_room)
        return OAR_OK;
    oari_free(exec->transfer);
    exec->transfer_room = 0;
    exec->transfer =
        oari_alloc((size_t)plan->max_in_flight, sizeof *exec->transfer);
    if (exec->transfer == NULL)
        return OAR_E_NOMEM;
    exec->transfer_room = plan->max_in_flight;
    return OAR_OK;
}

/* The plan that is run while there is none. */
static oari_step no_steps = { .kind = OARI_END };
static const oari_plan no_plan = { .step = &no_steps };

oar_status oari_exec_start(oari_exec *exec, const oari_call *call,
                           uint64_t sequence, uint64_t number)
{
    exec->call = call;
    exec->sequence = sequence;
    exec->number = number;
    exec->shape = oari_call_shape(call);
    exec->link = oari_call_fingerprint(call);
    if (exec->history != NULL && number != 0)
        exec->link = oari_history_add(exec->history, number, sequence,
                                      oari_call_form(call), exec->link);
    if (call->key != 0 && exec->history != NULL && number != 0)
        oari_history_set_key(exec->history, number, call->key);
    exec->doubt.found = 0;
    exec->element = oar_dtype_size(oari_call_input_dtype(call));
    exec->out_element = oar_dtype_size(call->out.dtype);
    exec->at = exec->begun = exec->settles = exec->syncs = exec->exposed = 0;
    exec->transfers = exec->oldest = exec->waiting = 0;
    exec->missed = 0;
    exec->lost = -1;
    exec->in_data = call->in.data;
    exec->out_data = call->out.data;
    exec->factor[exec->rank] = call->weight;
    exec->plan = &no_plan;
    exec->shows = 0;
    if (call->gpu != NULL)
        exec->external = call->gpu;
    if (exec->external != NULL && oari_exec_post(exec))
        return OAR_OK;
    OARI_TRY(find_plan(exec));
    exec->shows = exec->plan->shows;
    exec->settles = oari_exec_must_settle(exec);
    if (exec->plan->max_in_flight != 0 || exec->plan->work_count != 0 ||
        exec->plan->gather_count != 0)
        OARI_TRY(oari_exec_reserve_scratch(exec, exec->plan));
    return OAR_OK;
}

/* ---- the interpreter ----------------------------------------------------- */

static oari_progress run_step(oari_exec *exec, const oari_step *step)
{
    switch (step->kind) {
    case OARI_SYNC: return oari_run_sync(exec, step);
    case OARI_UNLESS_REACHABLE:
    case OARI_UNLESS_READABLE:
        oari_run_unless_reachable(exec, step);
        return OARI_DONE;
    case OARI_UNLESS_COPIED:
        exec->at = exec->missed ? step->jump : exec->at + 1;
        return OARI_DONE;
    case OARI_COPY: return oari_run_copy(exec, step);
    case OARI_REDUCE: return oari_run_reduce(exec, step);
    case OARI_COMBINE:
        oari_exec_combine(exec, step);
        exec->at++;
        return OARI_DONE;
    case OARI_SEND:
    case OARI_RECV: return oari_run_message(exec, step);
    case OARI_WAIT: return oari_run_wait(exec, step);
    case OARI_REPLAN: return oari_run_replan(exec);
    case OARI_POST: return oari_run_post(exec);
    case OARI_END: break;
    }
    return OARI_DONE;
}

oari_progress oari_exec_poll(oari_exec *exec)
{
    oari_progress progress;

    if (exec->settles) {
        progress = oari_run_settle(exec);
        if (progress != OARI_DONE)
            return progress;
    }
    for (;;) {
        const oari_step *step = &exec->plan->step[exec->at];
        if (oari_exec_hook != NULL && !exec->begun)
            oari_exec_hook(exec);
        if (step->kind == OARI_END)
            break;
        progress = run_step(exec, step);
        if (progress != OARI_DONE)
            return progress;
    }
    if (exec->call->is_object)
        oari_exec_give_object(exec);
    return OARI_DONE;
}

oar_status oari_exec_withdraw(oari_exec *exec)
{
    oari_shm *b = exec->shm;
    int exposed = exec->exposed;
    oar_status status = OAR_OK;

    exec->exposed = exec->transfers = 0;
    oari_free(exec->block);
    exec->block = NULL;
    if (exposed == 0)
        return OAR_OK;
    status = b->ops->detach(
        b->self, exec->call->out.data,
        exposed & OARI_SHOWS_OUT ? oari_span_bytes(&exec->call->out) : 0);
    if (status != OAR_OK)
        oari_log(OAR_LOG_ERROR,
                 "rank %d: the output of operation #%llu (%zu bytes at %p) "
                 "could not be taken out of its peers' reach, so they may "
                 "still write to it: %s",
                 exec->rank, (unsigned long long)exec->sequence,
                 oari_span_bytes(&exec->call->out), exec->call->out.data,
                 oar_last_error_text());
    return status;
}
