/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_messages: what goes between ranks. Every message has a tag of its
 * own within a step, made of the input that it belongs to, its direction and
 * the micro-batch; steps cannot mix, because a step ends with an exchange.
 *
 * Receives are posted as soon as there is memory for them, which is before what
 * they are for can come: so nothing has to be kept for them, and RECV_F and
 * RECV_B in a row have nothing left to do. */
#include <oarsong/device.h>

#include "base/status.h"
#include "parallel/pipeline/pipeline.h"

static oar_span span_on(const oar_pipeline *p, void *data, size_t count,
                        oar_dtype dtype)
{
    oar_span span = oar_span_of(data, count, dtype);

    span.device = p->device;
    return span;
}

static oar_status post_receive(oar_pipeline *p, const oar_action *a, int peer,
                               int64_t tag, const oari_flow_spec *spec,
                               oar_storage *into, oar_work **work)
{
    char label[32];
    size_t count = oari_spec_bytes(spec) / oar_dtype_size(spec->dtype);

    oari_name_action(a, label, sizeof label);
    return oar_recv(p->group,
                    span_on(p, oar_storage_data(into), count, spec->dtype),
                    peer, tag, OAR_OPTS(oar_call_opts, .label = label), work);
}

static oar_status post_send(oar_pipeline *p, const oar_action *a, int peer,
                            int64_t tag, oar_span span, oar_work **work)
{
    char label[32];

    oari_name_action(a, label, sizeof label);
    p->sent_bytes += span.count * oar_dtype_size(span.dtype);
    p->messages++;
    return oar_send(p->group, span, peer, tag,
                    OAR_OPTS(oar_call_opts, .label = label), work);
}

/* ---- of inputs ----------------------------------------------------------- */

/* Returns whether messages of this input are meant: those of another rank, and
 * of the stage before or of any other. */
static int input_is_meant(const oar_pipeline *p, int stage, int input,
                          int neighbours, int *peer)
{
    int from = p->wiring[stage].from_stage[input];

    if (stage == 0 || (from == stage - 1) != neighbours)
        return 0;
    *peer = oar_schedule_rank_of(p->schedule, from);
    return *peer != p->rank;
}

oar_status oari_receive_input(oar_pipeline *p, oari_pipe_stage *s, int micro,
                              int input, int peer)
{
    oar_action a = { s->index, OAR_ACT_RECV_F, micro, 0 };
    oari_stage_inputs *in = oari_inputs_of(s, micro);

    return post_receive(
        p, &a, peer, oari_tag_of(p, s->index, input, OARI_TAG_FORWARD, micro),
        oari_input_spec(p, micro, s->index, input), in->in[input],
        &in->came[input]);
}

/* Dynamic shapes come later, with their heads. */
oar_status oari_receive_inputs(oar_pipeline *p, oari_pipe_stage *s, int micro)
{
    if (p->opts.dynamic)
        return OAR_OK;
    for (int i = 0; s->index > 0 && i < s->given.inputs; i++) {
        int from = p->wiring[s->index].from_stage[i];
        int peer = oar_schedule_rank_of(p->schedule, from);
        if (peer != p->rank)
            OARI_TRY(oari_receive_input(p, s, micro, i, peer));
    }
    return OAR_OK;
}

static oar_status send_gradients(oar_pipeline *p, oari_pipe_stage *s,
                                 const oar_action *a, int neighbours)
{
    oari_input_grads *g = oari_grads_of(s, a->micro);
    int peer;

    for (int i = 0; i < s->given.inputs; i++) {
        const oari_flow_spec *spec;
        if (!input_is_meant(p, s->index, i, neighbours, &peer))
            continue;
        spec = oari_input_spec(p, a->micro, s->index, i);
        if (!oari_is_float(spec->dtype))
            continue;
        OARI_TRY(post_send(
            p, a, peer,
            oari_tag_of(p, s->index, i, OARI_TAG_BACKWARD, a->micro),
            span_on(p, oar_storage_data(g->grad[i]),
                    oari_spec_bytes(spec) / oar_dtype_size(spec->dtype),
                    spec->dtype),
            &g->sent[i]));
    }
    return OAR_OK;
}

/* ---- of outputs ---------------------------------------------------------- */

static int edge_is_meant(const oar_pipeline *p, const oari_stage_edge *e,
                         int neighbours, int *peer)
{
    *peer = oar_schedule_rank_of(p->schedule, e->to);
    return *peer != p->rank && (e->to == e->from + 1) == neighbours;
}

/* In a step without backward nothing tells when an output has arrived: it is
 * kept to the end. */
static oar_status send_output(oar_pipeline *p, oari_pipe_stage *s,
                              const oar_action *a, int k, int peer)
{
    oari_flight *f = oari_flight_of(s, a->micro);
    const oari_stage_edge *e = &s->edge[k];
    int64_t tag = oari_tag_of(p, e->to, e->input, OARI_TAG_FORWARD, a->micro);
    oar_tensor *out = f->output[e->output];
    oar_work *work = NULL;
    oar_span span;

    OARI_TRY(oar_tensor_const_span(out, &span));
    if (p->opts.dynamic)
        OARI_TRY(oari_send_head(p, s, a, k, peer));
    if (p->training)
        return post_send(p, a, peer, tag, span, &f->back[k].sent);
    OARI_TRY(oari_vec_reserve(&p->kept, 1));
    OARI_TRY(post_send(p, a, peer, tag, span, &work));
    p->kept.data[p->kept.count++] =
        (oari_kept_output){ oar_tensor_retain(out), work };
    return OAR_OK;
}

static oar_status send_outputs(oar_pipeline *p, oari_pipe_stage *s,
                               const oar_action *a, int neighbours)
{
    int peer;

    for (int k = 0; k < s->edges; k++)
        if (edge_is_meant(p, &s->edge[k], neighbours, &peer))
            OARI_TRY(send_output(p, s, a, k, peer));
    return OAR_OK;
}

oar_status oari_receive_gradients(oar_pipeline *p, oari_pipe_stage *s,
                                  int micro)
{
    oar_action a = { s->index, OAR_ACT_RECV_B, micro, 0 };
    oari_flight *f = oari_flight_of(s, micro);

    for (int k = 0; k < s->edges; k++) {
        const oari_stage_edge *e = &s->edge[k];
        const oari_flow_spec *spec =
            oari_spec_at(p, micro, s->index, e->output);
        int peer = oar_schedule_rank_of(p->schedule, e->to);
        if (peer == p->rank || !oari_is_float(spec->dtype))
            continue;
        if (p->opts.dynamic)
            OARI_TRY(oari_make_room(p->device, &f->back[k].grad,
                                    oari_spec_bytes(spec), 0));
        OARI_TRY(post_receive(
            p, &a, peer,
            oari_tag_of(p, e->to, e->input, OARI_TAG_BACKWARD, micro), spec,
            f->back[k].grad, &f->back[k].came));
    }
    return OAR_OK;
}

/* ---- both ---------------------------------------------------------------- */

oar_status oari_post_sends(oar_pipeline *p, const oar_action *a, int neighbours)
{
    oari_pipe_stage *s = oari_own_stage(p, a->stage);

    return a->act == OAR_ACT_SEND_F ? send_outputs(p, s, a, neighbours)
                                    : send_gradients(p, s, a, neighbours);
}

oar_status oari_wait_for_head(oar_work **work)
{
    oar_status status = OAR_OK;

    if (*work != NULL)
        status = oar_work_wait(*work);
    oar_work_release(*work);
    *work = NULL;
    return status;
}

oar_status oari_wait_for_message(const oar_pipeline *p, oar_work **work)
{
    oar_status status = OAR_OK;

    if (*work == NULL || p->device.kind == OAR_CPU)
        return oari_wait_for_head(work);
    status = oar_work_order(*work, oar_stream_current(p->device));
    oar_work_release(*work);
    *work = NULL;
    return status;
}
