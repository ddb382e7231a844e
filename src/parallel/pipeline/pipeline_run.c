/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_run: runs the actions of a row, one after the other. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/trace.h"
#include "parallel/pipeline/pipeline.h"

#include <oarsong/ops.h>

/* ---- forward ------------------------------------------------------------- */

oar_status oari_call_stage(const oari_pipe_stage *s, oar_module *module,
                           oar_tape *tape, int micro, oar_tensor *const *in,
                           oar_tensor **out)
{
    if (module == NULL)
        OARI_TRY(s->given.forward(s->given.arg, tape, micro, in, out));
    else
        out[0] = s->given.recompute ? oar_recompute(tape, module, in[0])
                                    : oar_forward(tape, module, in[0]);
    for (int o = 0; o < s->given.outputs; o++) {
        if (out[o] == NULL)
            return s->given.module != NULL
                       ? oari_why_nothing()
                       : oari_fail(OAR_E_ARG, "the function gave no output %d",
                                   o);
        out[o] = oar_contiguous(tape, out[o]);
        if (out[o] == NULL)
            return oar_last_error()->status;
    }
    return OAR_OK;
}

/* Makes a tensor of the tape over storage, an input of the stage: where floats
 * come in, one with a gradient that has its place. */
static oar_tensor *make_input(oar_pipeline *p, oari_pipe_stage *s,
                              oari_flight *f, int micro, int i,
                              oar_storage *storage, int64_t offset)
{
    const oari_flow_spec *spec = oari_input_spec(p, micro, s->index, i);
    oar_tensor *x, *home;

    x = oar_view_of(f->tape, storage, offset, spec->dtype, spec->shape);
    if (!p->training || !oari_is_float(spec->dtype))
        return x;
    x = oar_tape_input(f->tape, x);
    home = oar_view_of(f->tape, oari_grads_of(s, micro)->grad[i], 0,
                       spec->dtype, spec->shape);
    if (x == NULL || home == NULL || oar_tensor_bind_grad(x, home) != OAR_OK)
        return NULL;
    return x;
}

/* An input that a stage of this rank has left as an output. */
static oar_tensor *take_over(oar_pipeline *p, oari_pipe_stage *s,
                             oari_flight *f, int micro, int i)
{
    const oari_stage_wiring *w = &p->wiring[s->index];
    oari_pipe_stage *before = oari_own_stage(p, w->from_stage[i]);
    oar_tensor *out = oari_flight_of(before, micro)->output[w->from_output[i]];
    oar_storage *storage = oar_tensor_storage(out);
    const char *data = oar_tensor_const_data(out);
    int64_t bytes = data - (const char *)oar_storage_const_data(storage);

    return make_input(p, s, f, micro, i, storage,
                      bytes / (int64_t)oar_dtype_size(oar_tensor_dtype(out)));
}

/* Gives a micro-batch's part of an input or target of the batch. */
static oar_tensor *cut_micro(const oar_pipeline *p, oar_tape *tape,
                             oar_tensor *const *whole, int i, int micro)
{
    oar_tensor *own;

    if (!p->batch->apart)
        return oar_narrow(tape, whole[i], 0, p->first_row[micro],
                          p->rows[micro]);
    own = whole[(int64_t)i * p->micro + micro];
    return oar_narrow(tape, own, 0, 0, oar_tensor_shape(own).dim[0]);
}

static oar_status gather_inputs(oar_pipeline *p, oari_pipe_stage *s,
                                oari_flight *f, int micro)
{
    for (int i = 0; i < s->given.inputs; i++) {
        int from = p->wiring[s->index].from_stage[i];
        if (s->index == 0)
            f->input[i] = cut_micro(p, f->tape, p->batch->input, i, micro);
        else if (oar_schedule_rank_of(p->schedule, from) == p->rank)
            f->input[i] = take_over(p, s, f, micro, i);
        else
            f->input[i] = make_input(p, s, f, micro, i,
                                     oari_inputs_of(s, micro)->in[i], 0);
        if (f->input[i] == NULL)
            return oar_last_error()->status;
    }
    return OAR_OK;
}

/* What comes out must have the shapes that others wait for. */
static oar_status check_outputs(const oar_pipeline *p, const oari_pipe_stage *s,
                                const oari_flight *f, int micro)
{
    for (int o = 0; o < s->given.outputs; o++) {
        const oari_flow_spec *spec = oari_spec_at(p, micro, s->index, o);
        oar_shape shape = oar_tensor_shape(f->output[o]);
        int same = oar_tensor_dtype(f->output[o]) == spec->dtype &&
                   shape.ndim == spec->shape.ndim;
        for (int d = 0; same && d < shape.ndim; d++)
            same = shape.dim[d] == spec->shape.dim[d];
        if (!same)
            return oari_fail(OAR_E_SHAPE,
                             "output %d has another shape or dtype than with "
                             "zeros of the same shapes for inputs: make the "
                             "pipeline dynamic",
                             o);
    }
    return OAR_OK;
}

oar_status oari_call_loss(const oar_pipeline *p, oari_flight *f, int micro)
{
    oar_tensor *target[OARI_TENSORS];

    for (int t = 0; t < p->batch->targets; t++) {
        target[t] = cut_micro(p, f->tape, p->batch->target, t, micro);
        if (target[t] == NULL)
            return oar_last_error()->status;
    }
    f->loss = p->opts.loss(p->opts.loss_arg, f->tape, micro, f->output,
                           p->batch->targets, target);
    if (f->loss == NULL)
        return oari_why_nothing();
    if (oar_tensor_count(f->loss) != 1)
        return oari_fail(OAR_E_SHAPE, "the loss has %lld numbers, not one",
                         (long long)oar_tensor_count(f->loss));
    return OAR_OK;
}

/* Puts a loss beside those of the other micro-batches, on the GPU. */
static oar_status note_loss(oar_pipeline *p, oar_tensor *loss, int micro)
{
    oar_tensor *place, *one;
    oar_status status;

    if (p->losses == NULL)
        p->losses =
            oari_zeros_on(p->device, NULL, OAR_F64, OAR_SHAPE(p->micro));
    place = p->losses != NULL ? oar_narrow(NULL, p->losses, 0, micro, 1) : NULL;
    one = oar_reshape(NULL, loss, OAR_SHAPE(1));
    status = place != NULL && one != NULL ? oar_tensor_copy(place, one)
                                          : oar_last_error()->status;
    oar_tensor_release(one);
    oar_tensor_release(place);
    return status;
}

static oar_status compute_loss(oar_pipeline *p, oari_flight *f, int micro)
{
    p->loss[micro] = 0;
    f->loss = NULL;
    if (p->opts.loss == NULL || (!p->training && p->batch->targets == 0))
        return OAR_OK;
    OARI_TRY(oari_call_loss(p, f, micro));
    return p->device.kind == OAR_CPU ? oar_tensor_item(f->loss, &p->loss[micro])
                                     : note_loss(p, f->loss, micro);
}

/* Without backward, the memory of an input takes the next one as soon as F is
 * over: an output in it is copied. */
static oar_status leave_inputs(oari_pipe_stage *s, oari_flight *f, int micro)
{
    const oari_stage_inputs *in = oari_inputs_of(s, micro);

    for (int o = 0; o < s->given.outputs; o++)
        for (int i = 0; i < s->given.inputs; i++) {
            oar_tensor *out = f->output[o];
            if (in->in[i] == NULL || oar_tensor_storage(out) != in->in[i])
                continue;
            f->output[o] =
                oar_empty_on(f->tape, oar_tensor_device(out),
                             oar_tensor_dtype(out), oar_tensor_shape(out));
            if (f->output[o] == NULL)
                return oar_last_error()->status;
            OARI_TRY(oar_tensor_copy(f->output[o], out));
        }
    return OAR_OK;
}

/* Without backward to come, only the outputs are kept. */
static oar_status keep_outputs(oar_pipeline *p, oari_pipe_stage *s,
                               oari_flight *f, int micro)
{
    OARI_TRY(oari_vec_reserve(&p->kept, s->given.outputs));
    for (int o = 0; o < s->given.outputs; o++) {
        p->kept.data[p->kept.count++] =
            (oari_kept_output){ oar_tensor_retain(f->output[o]), NULL };
        if (s->last)
            p->out[(int64_t)o * p->micro + micro] = f->output[o];
    }
    oari_tape_give(p, f);
    return OAR_OK;
}

static oar_status compute_forward(oar_pipeline *p, oari_pipe_stage *s,
                                  oari_flight *f, int micro)
{
    OARI_TRY(oari_tape_take(p, f));
    f->micro = micro;
    oar_tape_record(f->tape, p->training);
    OARI_TRY(gather_inputs(p, s, f, micro));
    OARI_TRY(oari_call_stage(s, s->given.module, f->tape, micro, f->input,
                             f->output));
    OARI_TRY(p->opts.dynamic ? oari_note_outputs(p, s, f, micro)
                             : check_outputs(p, s, f, micro));
    if (s->last)
        OARI_TRY(compute_loss(p, f, micro));
    if (!p->training)
        OARI_TRY(leave_inputs(s, f, micro));
    return p->training ? OAR_OK : keep_outputs(p, s, f, micro);
}

/* ---- backward ------------------------------------------------------------ */

/* The gradient of an output: the sum of what the stages that use it give, the
 * latest first, as one process adds. NULL: none does. */
static oar_status sum_gradients(oar_pipeline *p, oari_pipe_stage *s,
                                oari_flight *f, int micro, int output,
                                oar_tensor **sum)
{
    const oari_flow_spec *spec = oari_spec_at(p, micro, s->index, output);

    *sum = NULL;
    for (int k = 0; k < s->edges; k++) {
        const oari_stage_edge *e = &s->edge[k];
        oari_pipe_stage *after = oari_own_stage(p, e->to);
        oar_storage *from = after != NULL
                                ? oari_grads_of(after, micro)->grad[e->input]
                                : f->back[k].grad;
        oar_tensor *one;
        if (e->output != output)
            continue;
        one = oar_view_of(f->tape, from, 0, spec->dtype, spec->shape);
        *sum = *sum == NULL ? one : oar_add(f->tape, *sum, one);
        if (one == NULL || *sum == NULL)
            return oar_last_error()->status;
    }
    return OAR_OK;
}

/* The seed of a loss: how much the micro-batch counts. */
static oar_status make_seed(oar_pipeline *p, oari_flight *f, int micro)
{
    double scale = p->batch->scale != 0 ? p->batch->scale : 1;
    double value = scale * p->weight[micro] / p->weights;
    oar_dtype dtype = oar_tensor_dtype(f->loss);
    oar_shape shape = oar_tensor_shape(f->loss);

    if (f->seed != NULL && (oar_tensor_dtype(f->seed) != dtype ||
                            oar_tensor_shape(f->seed).ndim != shape.ndim)) {
        oar_tensor_release(f->seed);
        f->seed = NULL;
    }
    if (f->seed == NULL)
        f->seed = oari_zeros_on(p->device, NULL, dtype, shape);
    return f->seed != NULL ? oar_tensor_fill(f->seed, value)
                           : oar_last_error()->status;
}

/* Lists what backward begins with. */
static oar_status find_roots(oar_pipeline *p, oari_pipe_stage *s,
                             oari_flight *f, int micro, oar_tensor **root,
                             oar_tensor **seed, int *roots)
{
    *roots = 0;
    if (s->last && p->weight[micro] == 0 &&
        (p->device.kind != OAR_CPU || !isfinite(p->loss[micro])))
        return OAR_OK; /* the mean over no tokens: 0 times it is no number */
    if (s->last) {
        OARI_TRY(make_seed(p, f, micro));
        root[0] = f->loss;
        seed[0] = f->seed;
        *roots = 1;
        return OAR_OK;
    }
    for (int o = 0; o < s->given.outputs; o++) {
        oar_tensor *sum;
        if (!oar_tensor_requires_grad(f->output[o]))
            continue;
        OARI_TRY(sum_gradients(p, s, f, micro, o, &sum));
        if (sum == NULL)
            continue;
        root[*roots] = f->output[o];
        seed[(*roots)++] = sum;
    }
    return OAR_OK;
}

static oar_status clear_gradient(const oar_pipeline *p, oar_storage *grad,
                                 const oari_flow_spec *spec)
{
    oar_tensor *all;
    oar_status status;

    if (p->device.kind == OAR_CPU) {
        memset(oar_storage_data(grad), 0, oari_spec_bytes(spec));
        return OAR_OK;
    }
    all = oar_view_of(NULL, grad, 0, spec->dtype, spec->shape);
    status = all != NULL ? oar_tensor_fill(all, 0) : oar_last_error()->status;
    oar_tensor_release(all);
    return status;
}

/* An input that backward did not reach has a gradient of zeros. */
static oar_status complete_gradients(oar_pipeline *p, oari_pipe_stage *s,
                                     oari_flight *f, int micro, int roots)
{
    for (int i = 0; s->index > 0 && i < s->given.inputs; i++) {
        const oari_flow_spec *spec = oari_input_spec(p, micro, s->index, i);
        if (!oari_is_float(spec->dtype) || oar_tensor_grad(f->input[i]) != NULL)
            continue;
        OARI_TRY(clear_gradient(p, oari_grads_of(s, micro)->grad[i], spec));
        if (!s->warned && roots > 0)
            oari_log(OAR_LOG_WARN,
                     "pipeline: the results of stage %d do not depend on its "
                     "input %d: zeros are sent back",
                     s->index, i);
        s->warned |= roots > 0;
    }
    return OAR_OK;
}

static oar_status compute_backward(oar_pipeline *p, oari_pipe_stage *s,
                                   oari_flight *f, const oar_action *a)
{
    oar_tensor *root[OARI_TENSORS], *seed[OARI_TENSORS];
    int roots;

    OARI_TRY(find_roots(p, s, f, a->micro, root, seed, &roots));
    if (roots > 0 && a->act == OAR_ACT_B)
        OARI_TRY(oar_backward_from(f->tape, roots, root, seed));
    if (roots > 0 && a->act == OAR_ACT_I)
        OARI_TRY(oar_backward_inputs(f->tape, roots, root, seed));
    f->halved = roots > 0 && a->act == OAR_ACT_I;
    OARI_TRY(complete_gradients(p, s, f, a->micro, roots));
    if (a->act == OAR_ACT_B)
        oari_tape_give(p, f);
    return OAR_OK;
}

static oar_status compute_weights(oar_pipeline *p, oari_flight *f)
{
    if (f->halved)
        OARI_TRY(oar_backward_weights(f->tape));
    oari_tape_give(p, f);
    return OAR_OK;
}

/* ---- actions ------------------------------------------------------------- */

static oar_status wait_for_inputs(oar_pipeline *p, oari_pipe_stage *s,
                                  int micro)
{
    oari_stage_inputs *in = oari_inputs_of(s, micro);

    if (p->opts.dynamic)
        OARI_TRY(oari_receive_by_heads(p, s, micro));
    for (int i = 0; i < s->given.inputs; i++)
        OARI_TRY(oari_wait_for_message(p, &in->came[i]));
    return OAR_OK;
}

/* Waits for the gradients of outputs; for the outputs to have been taken, which
 * they were before these gradients were computed; and for the gradients that
 * are going to be overwritten (pipeline_flights.c says why they have been
 * asked for). */
static oar_status wait_for_gradients(const oar_pipeline *p, oari_pipe_stage *s,
                                     oari_flight *f, int micro)
{
    for (int k = 0; k < s->edges; k++) {
        OARI_TRY(oari_wait_for_message(p, &f->back[k].came));
        OARI_TRY(oari_wait_for_message(p, &f->back[k].sent));
    }
    for (int i = 0; i < s->given.inputs; i++)
        OARI_TRY(oari_wait_for_message(p, &oari_grads_of(s, micro)->sent[i]));
    return OAR_OK;
}

/* Posts what an action makes possible: the receive of the gradients of what F
 * gives out; the receive of the inputs that come into memory which B or W has
 * left; and the sends between stages that do not follow each other. */
static oar_status post_after(oar_pipeline *p, oari_pipe_stage *s,
                             const oar_action *a)
{
    oar_action message = *a;
    int next = s->turn[a->micro] + s->arrivals;
    int ends = p->training ? a->act == OAR_ACT_B || a->act == OAR_ACT_W
                           : a->act == OAR_ACT_F;

    if (a->act == OAR_ACT_F && p->training)
        OARI_TRY(oari_receive_gradients(p, s, a->micro));
    if (ends && next < p->micro)
        OARI_TRY(oari_receive_inputs(p, s, s->micro_at[next]));
    message.act = a->act == OAR_ACT_F ? OAR_ACT_SEND_F : OAR_ACT_SEND_B;
    return a->act == OAR_ACT_W ? OAR_OK : oari_post_sends(p, &message, 0);
}

static oar_status run_computation(oar_pipeline *p, oari_pipe_stage *s,
                                  const oar_action *a, oari_action_time *at)
{
    oari_flight *f = oari_flight_of(s, a->micro);
    int64_t begun = oari_now_ns();

    if (a->act == OAR_ACT_F)
        OARI_TRY(wait_for_inputs(p, s, a->micro));
    else if (a->act != OAR_ACT_W)
        OARI_TRY(wait_for_gradients(p, s, f, a->micro));
    at->ready = oari_now_ns();
    if (a->act == OAR_ACT_F)
        OARI_TRY(compute_forward(p, s, f, a->micro));
    else if (a->act == OAR_ACT_W)
        OARI_TRY(compute_weights(p, f));
    else
        OARI_TRY(compute_backward(p, s, f, a));
    at->end = oari_now_ns();
    oari_stats_note(p, s, a, begun, at);
    return post_after(p, s, a);
}

static oar_status run_action(oar_pipeline *p, const oar_action *a,
                             oari_action_time *at)
{
    oari_pipe_stage *s = oari_own_stage(p, a->stage);

    switch (a->act) {
    case OAR_ACT_F:
    case OAR_ACT_B:
    case OAR_ACT_I:
    case OAR_ACT_W: return run_computation(p, s, a, at);
    case OAR_ACT_SEND_F:
    case OAR_ACT_SEND_B: return oari_post_sends(p, a, 1);
    case OAR_ACT_REDUCE_GRAD: return oari_stage_reduce(s);
    case OAR_ACT_UNSHARD: return oari_stage_unshard(s, 1);
    case OAR_ACT_RESHARD: return oari_stage_unshard(s, 0);
    default: return OAR_OK; /* receives are posted already */
    }
}

/* Posts the receives that there is memory for. */
static oar_status receive_first_inputs(oar_pipeline *p)
{
    if (p->opts.dynamic)
        return oari_receive_heads(p);
    for (int i = 0; i < p->stages; i++)
        for (int t = 0; t < p->stage[i].arrivals && t < p->micro; t++)
            OARI_TRY(
                oari_receive_inputs(p, &p->stage[i], p->stage[i].micro_at[t]));
    return OAR_OK;
}

static int is_forward(oar_act act)
{
    return act == OAR_ACT_F || act == OAR_ACT_SEND_F || act == OAR_ACT_RECV_F;
}

static void trace_action(const oar_action *a, uint64_t began)
{
    static const char *const notation[] = {
#define X(name, value, text) [name] = text,
        OAR_ACT_LIST(X)
#undef X
    };

    oari_trace_write(
        &(oari_trace_entry){ .start = began,
                             .end = oari_ticks(),
                             .kind = OARI_TRACE_STAGE,
                             .name = oari_trace_name(notation[a->act]),
                             .peer = (unsigned)a->stage + 1,
                             .number = (uint32_t)a->micro });
}

oar_status oari_run_row(oar_pipeline *p)
{
    int64_t actions = oar_schedule_actions(p->schedule, p->rank);

    OARI_TRY(receive_first_inputs(p));
    for (int64_t i = 0; i < actions; i++) {
        uint64_t began = oari_trace_begin();
        oari_pipe_stage *s;
        oar_status status;
        oar_action a;
        OARI_TRY(oar_schedule_action(p->schedule, p->rank, i, &a));
        if (!p->training && !is_forward(a.act))
            continue;
        oari_stats_before(p, &a);
        p->at[i].ready = oari_now_ns();
        status = run_action(p, &a, &p->at[i]);
        if (began != 0)
            trace_action(&a, began);
        if (status != OAR_OK)
            return oari_pipeline_failed(&a, status);
        p->at[i].over = oari_now_ns();
        oari_stats_after(p, &a);
        s = oari_own_stage(p, a.stage);
        a.act = OAR_ACT_REDUCE_GRAD;
        if (p->training && s->last_backward == i)
            status = oari_stage_reduce(s);
        if (status != OAR_OK)
            return oari_pipeline_failed(&a, status);
    }
    return OAR_OK;
}
