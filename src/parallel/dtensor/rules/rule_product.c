/* SPDX-License-Identifier: Apache-2.0 */
/* rule_product: matrix products. Cut along what is multiplied and added up,
 * each rank has summands of the result. */
#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

static oar_status shapes_fail(const oari_form_call *call)
{
    return oari_fail(OAR_E_SHAPE, "%s of %s and %s", call->name,
                     oari_box_shape_text(call->shape[0]).text,
                     oari_box_shape_text(call->shape[1]).text);
}

static void form_products(oari_form *form)
{
    form->results = 1;
    form->reduces = 1;
    form->reduce_op = OAR_REDUCE_OP_SUM;
    oari_form_linear(form, 1);
    oari_form_linear(form, 2);
}

/* ---- matmul -------------------------------------------------------------- */

/* Gives letters to the leading dims, which broadcast. */
static oar_status form_batch(const oari_form_call *call, oari_form *form)
{
    oar_shape *out = &form->shape[0];

    for (int d = 0; d < out->ndim - 2; d++)
        out->dim[d] = 1;
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < call->shape[i].ndim - 2; d++) {
            int64_t *to = &out->dim[out->ndim - call->shape[i].ndim + d];

            if (*to != 1 && call->shape[i].dim[d] != 1 &&
                *to != call->shape[i].dim[d])
                return shapes_fail(call);
            *to = call->shape[i].dim[d] != 1 ? call->shape[i].dim[d] : *to;
        }
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < call->shape[i].ndim - 2; d++) {
            int at = out->ndim - call->shape[i].ndim + d;

            form->in[i].of[d] = call->shape[i].dim[d] == out->dim[at]
                                    ? (signed char)at
                                    : OARI_WHOLE;
        }
    return OAR_OK;
}

static oar_status form_matmul(const oari_form_call *call, oari_form *form)
{
    oar_shape a = call->shape[0], b = call->shape[1], *out = &form->shape[0];
    int n;

    if (a.ndim < 2 || b.ndim < 2 || a.dim[a.ndim - 1] != b.dim[b.ndim - 2])
        return shapes_fail(call);
    n = out->ndim = a.ndim > b.ndim ? a.ndim : b.ndim;
    OARI_TRY(form_batch(call, form));
    out->dim[n - 2] = a.dim[a.ndim - 2];
    out->dim[n - 1] = b.dim[b.ndim - 1];
    form->letters = n + 1; /* those of the result, and the one added up */
    for (int d = 0; d < n; d++) {
        form->size[d] = out->dim[d];
        form->out[0].of[d] = (signed char)d;
    }
    form->size[n] = a.dim[a.ndim - 1];
    form->in[0].of[a.ndim - 2] = (signed char)(n - 2);
    form->in[0].of[a.ndim - 1] = (signed char)n;
    form->in[1].of[b.ndim - 2] = (signed char)n;
    form->in[1].of[b.ndim - 1] = (signed char)(n - 1);
    form_products(form);
    return OAR_OK;
}

static oar_tensor *run_matmul(const oari_rule_call *c, const oari_decision *d,
                              oar_tensor *const *in, oar_tensor **second)
{
    return oar_matmul(c->tape, in[0], in[1]);
}

static const oari_rule rule_matmul = { "matmul", form_matmul, run_matmul };

oar_dtensor oar_dtensor_matmul(oar_tape *tape, oar_dtensor a, oar_dtensor b)
{
    oari_rule_call c = {
        .rule = &rule_matmul, .tape = tape, .inputs = 2, .in = { a, b }
    };
    return oari_rule_run(&c, NULL);
}

/* ---- linear -------------------------------------------------------------- */

static oar_status form_linear(const oari_form_call *call, oari_form *form)
{
    oar_shape x = call->shape[0], weight = call->shape[1];
    int n = x.ndim;

    if (n < 1 || weight.ndim != 2 || x.dim[n - 1] != weight.dim[1])
        return shapes_fail(call);
    if (call->inputs == 3 &&
        (call->shape[2].ndim != 1 || call->shape[2].dim[0] != weight.dim[0]))
        return oari_fail(OAR_E_SHAPE, "%s: a bias %s for a weight %s",
                         call->name, oari_box_shape_text(call->shape[2]).text,
                         oari_box_shape_text(weight).text);
    oari_form_same(call, form);
    form->letters = n + 1;
    form->shape[0].dim[n - 1] = form->size[n] = weight.dim[0];
    form->out[0].of[n - 1] = form->in[1].of[0] = (signed char)n;
    form->in[1].of[1] = (signed char)(n - 1);
    form->in[2].of[0] = (signed char)n;
    if (call->inputs == 2)
        form_products(form);
    return OAR_OK;
}

static oar_tensor *run_linear(const oari_rule_call *c, const oari_decision *d,
                              oar_tensor *const *in, oar_tensor **second)
{
    return oar_linear(c->tape, in[0], in[1], c->inputs == 3 ? in[2] : NULL);
}

static const oari_rule rule_linear = { "linear", form_linear, run_linear };

/* Whether the product is a partial sum, to which the bias is added once. */
static int adds_up(oar_dtensor x, oar_dtensor weight)
{
    for (int m = 0; m < x.spec->mesh->grid.dims; m++) {
        const oari_cut *a = &x.spec->layout.on[m];
        const oari_cut *b = &weight.spec->layout.on[m];

        if (a->kind == OAR_PARTIAL || b->kind == OAR_PARTIAL ||
            (a->kind == OAR_SHARD && a->dim == x.spec->shape.ndim - 1) ||
            (b->kind == OAR_SHARD && b->dim == 1))
            return 1;
    }
    return 0;
}

oar_dtensor oar_dtensor_linear(oar_tape *tape, oar_dtensor x,
                               oar_dtensor weight, const oar_dtensor *bias)
{
    oari_rule_call c = {
        .rule = &rule_linear, .tape = tape, .inputs = 2, .in = { x, weight }
    };
    oar_dtensor product, sum;
    int apart = bias != NULL && x.local != NULL && weight.local != NULL &&
                x.spec != NULL && weight.spec != NULL &&
                x.spec->mesh == weight.spec->mesh && adds_up(x, weight);

    if (bias != NULL && !apart) {
        c.inputs = 3;
        c.in[2] = *bias;
    }
    product = oari_rule_run(&c, NULL);
    if (!apart)
        return product;
    sum = oar_dtensor_add(tape, product, *bias);
    if (tape == NULL)
        oar_tensor_release(product.local);
    return sum;
}

oar_dtensor oar_dtensor_linear_act(oar_tape *tape, oar_dtensor x,
                                   oar_dtensor weight, const oar_dtensor *bias,
                                   oar_activation kind)
{
    static oar_dtensor (*const apply[])(oar_tape *, oar_dtensor) = {
        [OAR_RELU] = oar_dtensor_relu,
        [OAR_GELU] = oar_dtensor_gelu,
        [OAR_GELU_TANH] = oar_dtensor_gelu_tanh,
        [OAR_SILU] = oar_dtensor_silu,
        [OAR_TANH] = oar_dtensor_tanh,
        [OAR_SIGMOID] = oar_dtensor_sigmoid,
        [OAR_SOFTPLUS] = oar_dtensor_softplus,
    };
    oar_dtensor pre, out = { .local = NULL };

    if ((int)kind < OAR_RELU || (int)kind > OAR_SOFTPLUS) {
        oari_fail(OAR_E_ARG, "dtensor_linear_act: there is no activation %d",
                  (int)kind);
        return out;
    }
    pre = oar_dtensor_linear(tape, x, weight, bias);
    if (pre.local == NULL)
        return pre;
    out = apply[kind](tape, pre);
    if (tape == NULL)
        oar_tensor_release(pre.local);
    return out;
}
