/* SPDX-License-Identifier: Apache-2.0 */
/* rule_attention: attention over parts of the batch, of the heads, of the
 * queries where none is hidden from the future, and of the values' width. */
#include "base/status.h"
#include "parallel/dtensor/rules/cut_ranks.h"

enum { Q = 0, K = 1, V = 2, MASK = 3 };
enum { CAUSAL = 0, DROPS = 1 }; /* numbers */
/* Letters; those of the leading dims follow. */
enum { T = 0, S = 1, D = 2, E = 3, LEADING = 4 };

static oar_status check_shapes(const oari_form_call *call)
{
    oar_shape q = call->shape[Q], k = call->shape[K], v = call->shape[V];
    int n = q.ndim, fits = n >= 2 && k.ndim == n && v.ndim == n;

    for (int d = 0; fits && d < n - 2; d++)
        fits = k.dim[d] == v.dim[d] &&
               (d == n - 3
                    ? k.dim[d] > 0 ? q.dim[d] % k.dim[d] == 0 : q.dim[d] == 0
                    : q.dim[d] == k.dim[d]);
    if (fits && k.dim[n - 2] == v.dim[n - 2] && q.dim[n - 1] == k.dim[n - 1])
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "attention of q %s, k %s, v %s",
                     oari_box_shape_text(q).text, oari_box_shape_text(k).text,
                     oari_box_shape_text(v).text);
}

/* Gives the letters of the mask's dims, which are aligned at the end. */
static oar_status form_mask(const oari_form_call *call, oari_form *form)
{
    oar_shape mask = call->shape[MASK], q = call->shape[Q];
    int ahead = q.ndim - mask.ndim;

    for (int d = 0; d < mask.ndim; d++) {
        int to = ahead + d;
        int64_t size = to < 0 ? 0 : to < q.ndim - 1 ? q.dim[to] : form->size[S];

        if (to < 0 || (mask.dim[d] != 1 && mask.dim[d] != size))
            return oari_fail(OAR_E_SHAPE, "attention of q %s with a mask %s",
                             oari_box_shape_text(q).text,
                             oari_box_shape_text(mask).text);
        form->in[MASK].of[d] = OARI_WHOLE;
        if (mask.dim[d] == size && to < q.ndim - 1) {
            form->in[MASK].of[d] = form->in[Q].of[to];
            form->in[MASK].rows[d] = form->in[Q].rows[to];
        }
    }
    return OAR_OK;
}

static oar_status form_attention(const oari_form_call *call, oari_form *form)
{
    oar_shape q = call->shape[Q], k = call->shape[K], v = call->shape[V];
    int n = q.ndim;

    OARI_TRY(check_shapes(call));
    form->letters = LEADING + n - 2;
    form->size[T] = q.dim[n - 2];
    form->size[S] = k.dim[n - 2];
    form->size[D] = q.dim[n - 1];
    form->size[E] = v.dim[n - 1];
    form->whole = 1u << S | 1u << D;
    for (int d = 0; d < n - 2 && d < OAR_MAX_DIMS; d++) {
        signed char letter = (signed char)(LEADING + d);

        form->size[letter] = k.dim[d];
        form->in[Q].of[d] = form->in[K].of[d] = form->in[V].of[d] = letter;
        if (k.dim[d] > 0) /* heads of q for each of k */
            form->in[Q].rows[d] = q.dim[d] / k.dim[d];
        if (call->number[DROPS] && d != n - 3)
            form->whole |= 1u << letter; /* only heads may start anywhere */
    }
    form->in[Q].of[n - 2] = T;
    form->in[K].of[n - 2] = form->in[V].of[n - 2] = S;
    form->in[Q].of[n - 1] = form->in[K].of[n - 1] = D;
    form->in[V].of[n - 1] = E;
    if (call->number[CAUSAL] || call->number[DROPS])
        form->whole |= 1u << T;
    form->results = 1;
    form->out[0] = form->in[Q];
    form->out[0].of[n - 1] = E;
    form->shape[0] = q;
    form->shape[0].dim[n - 1] = v.dim[n - 1];
    return call->inputs > MASK ? form_mask(call, form) : OAR_OK;
}

static oar_tensor *run_attention(const oari_rule_call *c,
                                 const oari_decision *d, oar_tensor *const *in,
                                 oar_tensor **second)
{
    oar_attention_opts o = *(const oar_attention_opts *)c->opts;
    const oar_spec *q = d->in[Q].spec;
    int heads = q->shape.ndim - 3;

    o.mask = c->inputs > MASK ? in[MASK] : NULL;
    if (c->number[DROPS] && heads >= 0) {
        o.all_heads = (int)q->shape.dim[heads];
        o.first_head = (int)q->held.box.offset[heads];
    }
    if (o.scale == 0 && q->shape.dim[heads + 2] == 0)
        return oari_rule_zeros(c, d, in);
    for (int i = 0; i < q->held.box.ndim - 2; i++)
        if (q->held.box.extent[i] == 0)
            return oari_rule_zeros(c, d, in);
    return oar_attention(c->tape, in[Q], in[K], in[V], &o);
}

static const oari_rule attention_rule = { "attention", form_attention,
                                          run_attention };

oar_dtensor oar_dtensor_attention(oar_tape *tape, oar_dtensor q, oar_dtensor k,
                                  oar_dtensor v, const oar_dtensor *mask,
                                  const oar_attention_opts *opts)
{
    oar_attention_opts o;
    oari_rule_call c = { .rule = &attention_rule,
                         .tape = tape,
                         .inputs = 3,
                         .in = { q, k, v },
                         .numbers = 2,
                         .opts = &o };

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return (oar_dtensor){ NULL, NULL };
    o.size = sizeof o;
    if (o.mask != NULL || o.all_heads != 0 || o.first_head != 0) {
        oari_fail(OAR_E_ARG, "attention of DTensors: the mask is a DTensor, "
                             "beside the options; specs say which heads a "
                             "rank has");
        return (oar_dtensor){ NULL, NULL };
    }
    c.number[CAUSAL] = o.causal != 0;
    c.number[DROPS] = o.dropout > 0;
    if (mask != NULL)
        c.in[c.inputs++] = *mask;
    return oari_rule_run(&c, NULL);
}
