/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_heads: shapes that nobody knows before. Each tensor that goes to
 * another rank has a head before it, a small message with its dtype and shape.
 * The receives of all heads are posted when a step begins; that of a tensor
 * when its head has come. A gradient has the shape of what it belongs to, and
 * needs no head. */
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"

enum { MAGIC = 0x4f415248 }; /* "OARH" */

/* ---- heads --------------------------------------------------------------- */

static oari_flow_head head_of(const oari_flow_spec *spec)
{
    oari_flow_head head = {
        MAGIC, (uint32_t)spec->dtype, (uint32_t)spec->shape.ndim, 0, { 0 }
    };

    for (int d = 0; d < spec->shape.ndim; d++)
        head.dim[d] = spec->shape.dim[d];
    return head;
}

oar_status oari_head_read(const oari_flow_head *head, oari_flow_spec *spec)
{
    uint64_t bytes = head->dtype < OAR_DTYPE_COUNT
                         ? oar_dtype_size((oar_dtype)head->dtype)
                         : 0;

    if (head->magic != MAGIC || bytes == 0 || head->ndim > OAR_MAX_DIMS)
        return oari_fail(OAR_E_DATA,
                         "what came is no head of a tensor (%08x, dtype %u, %u "
                         "dims)",
                         head->magic, head->dtype, head->ndim);
    spec->dtype = (oar_dtype)head->dtype;
    spec->shape.ndim = (int)head->ndim;
    for (uint32_t d = 0; d < head->ndim; d++) {
        if (head->dim[d] < 0 ||
            __builtin_mul_overflow(bytes, (uint64_t)head->dim[d], &bytes) ||
            bytes > INT64_MAX)
            return oari_fail(OAR_E_DATA,
                             "what came is no head of a tensor (dim %u is "
                             "%lld)",
                             d, (long long)head->dim[d]);
        spec->shape.dim[d] = head->dim[d];
    }
    return OAR_OK;
}

oar_status oari_heads_make(const oar_pipeline *p, oari_pipe_stage *s)
{
    size_t out = (size_t)s->edges * (size_t)p->micro;
    size_t in = (size_t)s->given.inputs * (size_t)p->micro;

    s->head_out = oari_alloc(out + 1, sizeof *s->head_out);
    s->head_in = oari_alloc(in, sizeof *s->head_in);
    return s->head_out != NULL && s->head_in != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* ---- receiving ----------------------------------------------------------- */

/* Returns the rank that an input comes from; -1: from this one. */
static int sender_of(const oar_pipeline *p, const oari_pipe_stage *s, int input)
{
    int rank = s->index == 0
                   ? p->rank
                   : oar_schedule_rank_of(
                         p->schedule, p->wiring[s->index].from_stage[input]);

    return rank == p->rank ? -1 : rank;
}

static oar_status receive_head(oar_pipeline *p, oari_pipe_stage *s, int input,
                               int micro, int peer)
{
    oar_action a = { s->index, OAR_ACT_RECV_F, micro, 0 };
    oari_head_message *h = &s->head_in[input * p->micro + micro];
    char label[32];

    oari_name_action(&a, label, sizeof label);
    return oar_recv(p->group, oar_span_of(&h->head, sizeof h->head, OAR_U8),
                    peer, oari_tag_of(p, s->index, input, OARI_TAG_HEAD, micro),
                    OAR_OPTS(oar_call_opts, .label = label), &h->work);
}

oar_status oari_receive_heads(oar_pipeline *p)
{
    for (int k = 0; k < p->stages; k++) {
        oari_pipe_stage *s = &p->stage[k];
        for (int i = 0; i < s->given.inputs; i++) {
            int peer = sender_of(p, s, i);
            for (int m = 0; peer >= 0 && m < p->micro; m++)
                OARI_TRY(receive_head(p, s, i, m, peer));
        }
    }
    return OAR_OK;
}

/* A gradient that is still on its way from the memory which is made larger has
 * been asked for: its receiver needs it before it gives out what this input is
 * made of (pipeline_flights.c). */
static oar_status make_grad_room(oar_pipeline *p, oari_pipe_stage *s, int micro,
                                 int input)
{
    oari_input_grads *g = oari_grads_of(s, micro);
    const oari_flow_spec *spec = oari_input_spec(p, micro, s->index, input);

    if (!p->training || !oari_is_float(spec->dtype))
        return OAR_OK;
    OARI_TRY(oari_wait_for_message(p, &g->sent[input]));
    return oari_make_room(p->device, &g->grad[input], oari_spec_bytes(spec),
                          sender_of(p, s, input) >= 0);
}

oar_status oari_receive_by_heads(oar_pipeline *p, oari_pipe_stage *s, int micro)
{
    for (int i = 0; s->index > 0 && i < s->given.inputs; i++) {
        oari_flow_spec *spec = oari_input_spec(p, micro, s->index, i);
        oari_head_message *h = &s->head_in[i * p->micro + micro];
        int peer = sender_of(p, s, i);
        if (peer >= 0) {
            OARI_TRY(oari_wait_for_head(&h->work));
            OARI_TRY(oari_head_read(&h->head, spec));
            OARI_TRY(oari_make_room(p->device, &oari_inputs_of(s, micro)->in[i],
                                    oari_spec_bytes(spec), 0));
            OARI_TRY(oari_receive_input(p, s, micro, i, peer));
        }
        OARI_TRY(make_grad_room(p, s, micro, i));
    }
    return OAR_OK;
}

/* ---- sending ------------------------------------------------------------- */

oar_status oari_note_outputs(oar_pipeline *p, oari_pipe_stage *s,
                             const oari_flight *f, int micro)
{
    for (int o = 0; o < s->given.outputs; o++) {
        oari_flow_spec *spec = oari_spec_at(p, micro, s->index, o);
        const oari_flow_spec *first = &s->first[o];
        *spec = (oari_flow_spec){ oar_tensor_dtype(f->output[o]),
                                  oar_tensor_shape(f->output[o]) };
        if (!s->seen)
            s->first[o] = *spec;
        if (spec->dtype != first->dtype)
            return oari_fail(OAR_E_DTYPE,
                             "output %d is %s, and was %s before: dims may "
                             "change, dtypes may not",
                             o, oar_dtype_name(spec->dtype),
                             oar_dtype_name(first->dtype));
        if (spec->shape.ndim != first->shape.ndim)
            return oari_fail(OAR_E_SHAPE,
                             "output %d has %d dims, and had %d before: their "
                             "sizes may change, their number may not",
                             o, spec->shape.ndim, first->shape.ndim);
    }
    s->seen = 1;
    return OAR_OK;
}

oar_status oari_send_head(oar_pipeline *p, oari_pipe_stage *s,
                          const oar_action *a, int edge, int peer)
{
    const oari_stage_edge *e = &s->edge[edge];
    oari_head_message *h = &s->head_out[edge * p->micro + a->micro];
    char label[32];

    oari_name_action(a, label, sizeof label);
    h->head = head_of(oari_spec_at(p, a->micro, s->index, e->output));
    return oar_send(p->group, oar_span_of(&h->head, sizeof h->head, OAR_U8),
                    peer,
                    oari_tag_of(p, e->to, e->input, OARI_TAG_HEAD, a->micro),
                    OAR_OPTS(oar_call_opts, .label = label), &h->work);
}

oar_status oari_heads_finish(oar_pipeline *p)
{
    for (int i = 0; i < p->stages; i++) {
        oari_pipe_stage *s = &p->stage[i];
        for (int k = 0; s->head_out != NULL && k < s->edges * p->micro; k++)
            OARI_TRY(oari_wait_for_head(&s->head_out[k].work));
    }
    return OAR_OK;
}
