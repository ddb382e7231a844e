/* SPDX-License-Identifier: Apache-2.0 */
/* rule_along: operations along one dim, of which every rank needs whole rows:
 * indices of the largest, the k largest, sorting, running sums. */
#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

/* Numbers are: dim, keep (or descending, or k). */

static oar_status form_along(const oari_form_call *call, oari_form *form)
{
    int dim;

    OARI_TRY(oari_form_dim(call, call->number[0], call->shape[0].ndim, &dim));
    oari_form_same(call, form);
    form->whole = 1u << dim;
    form->results = 2;
    form->out[1] = form->out[0];
    form->shape[1] = form->shape[0];
    return OAR_OK;
}

static oar_status form_cumsum(const oari_form_call *call, oari_form *form)
{
    OARI_TRY(form_along(call, form));
    oari_form_linear(form, 1);
    form->results = 1;
    return OAR_OK;
}

static oar_status form_pick(const oari_form_call *call, oari_form *form)
{
    oar_shape shape = call->shape[0];
    int dim, to = 0;

    OARI_TRY(form_along(call, form));
    OARI_TRY(oari_form_dim(call, call->number[0], shape.ndim, &dim));
    for (int d = 0; d < shape.ndim; d++) {
        if (d == dim && !call->number[1])
            continue;
        form->out[0].of[to] = (signed char)(d == dim ? OARI_WHOLE : d);
        form->shape[0].dim[to++] = d == dim ? 1 : shape.dim[d];
    }
    form->shape[0].ndim = to;
    form->out[1] = form->out[0];
    form->shape[1] = form->shape[0];
    return OAR_OK;
}

static oar_status form_topk(const oari_form_call *call, oari_form *form)
{
    int last = call->shape[0].ndim - 1;

    OARI_TRY(form_along(call, form));
    if (call->number[1] < 0 || call->number[1] > call->shape[0].dim[last])
        return oari_fail(OAR_E_ARG, "%s: the %lld largest of %s", call->name,
                         (long long)call->number[1],
                         oari_box_shape_text(call->shape[0]).text);
    for (int i = 0; i < 2; i++) {
        form->shape[i].dim[last] = call->number[1];
        form->out[i].of[last] = OARI_WHOLE;
    }
    return OAR_OK;
}

/* ---- running ------------------------------------------------------------- */

static oar_tensor *run_cumsum(const oari_rule_call *c, const oari_decision *d,
                              oar_tensor *const *in, oar_tensor **second)
{
    return oar_cumsum(c->tape, in[0], (int)c->number[0]);
}

static oar_tensor *run_sort(const oari_rule_call *c, const oari_decision *d,
                            oar_tensor *const *in, oar_tensor **second)
{
    oar_tensor *value = NULL;

    return oar_sort(c->tape, in[0], (int)c->number[0], (int)c->number[1],
                    &value, second) == OAR_OK
               ? value
               : NULL;
}

static oar_tensor *run_topk(const oari_rule_call *c, const oari_decision *d,
                            oar_tensor *const *in, oar_tensor **second)
{
    oar_tensor *value = NULL;

    return oar_topk(c->tape, in[0], c->number[1], &value, second) == OAR_OK
               ? value
               : NULL;
}

static oar_tensor *run_max(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    oar_tensor *value = NULL;

    return oar_max_with_index(c->tape, in[0], (int)c->number[0],
                              (int)c->number[1], &value, second) == OAR_OK
               ? value
               : NULL;
}

static oar_tensor *run_min(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    oar_tensor *value = NULL;

    return oar_min_with_index(c->tape, in[0], (int)c->number[0],
                              (int)c->number[1], &value, second) == OAR_OK
               ? value
               : NULL;
}

static const oari_rule rule_cumsum = { "cumsum", form_cumsum, run_cumsum };
static const oari_rule rule_sort = { "sort", form_along, run_sort };
static const oari_rule rule_topk = { "topk", form_topk, run_topk };
static const oari_rule rule_max = { "max_with_index", form_pick, run_max };
static const oari_rule rule_min = { "min_with_index", form_pick, run_min };

/* ---- operations ---------------------------------------------------------- */

static oar_dtensor run_along(oar_tape *tape, const oari_rule *rule,
                             oar_dtensor a, int dim, int64_t number,
                             oar_dtensor *second)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .numbers = 2,
                         .number = { dim, number } };
    return oari_rule_run(&c, second);
}

/* Gives two results. index may be NULL. */
static oar_status give_both(oar_tape *tape, const oari_rule *rule,
                            oar_dtensor a, int dim, int64_t number,
                            oar_dtensor *value, oar_dtensor *index)
{
    oar_dtensor first, second = { NULL, NULL };

    if (value == NULL)
        return oari_fail(OAR_E_ARG, "%s without a place for its result",
                         rule->name);
    first = run_along(tape, rule, a, dim, number, &second);
    if (first.local == NULL || second.local == NULL) {
        if (tape == NULL) {
            oar_tensor_release(first.local);
            oar_tensor_release(second.local);
        }
        return oar_last_error()->status;
    }
    *value = first;
    if (index != NULL)
        *index = second;
    else if (tape == NULL)
        oar_tensor_release(second.local);
    return OAR_OK;
}

oar_dtensor oar_dtensor_cumsum(oar_tape *tape, oar_dtensor a, int dim)
{
    return run_along(tape, &rule_cumsum, a, dim, 0, NULL);
}

oar_status oar_dtensor_sort(oar_tape *tape, oar_dtensor a, int dim,
                            int descending, oar_dtensor *value,
                            oar_dtensor *index)
{
    return give_both(tape, &rule_sort, a, dim, descending != 0, value, index);
}

oar_status oar_dtensor_topk(oar_tape *tape, oar_dtensor a, int64_t k,
                            oar_dtensor *value, oar_dtensor *index)
{
    return give_both(tape, &rule_topk, a, -1, k, value, index);
}

oar_status oar_dtensor_max_with_index(oar_tape *tape, oar_dtensor a, int dim,
                                      int keep, oar_dtensor *value,
                                      oar_dtensor *index)
{
    return give_both(tape, &rule_max, a, dim, keep != 0, value, index);
}

oar_status oar_dtensor_min_with_index(oar_tape *tape, oar_dtensor a, int dim,
                                      int keep, oar_dtensor *value,
                                      oar_dtensor *index)
{
    return give_both(tape, &rule_min, a, dim, keep != 0, value, index);
}

/* The index alone. */
static oar_dtensor find_index(oar_tape *tape, const oari_rule *rule,
                              oar_dtensor a, int dim, int keep)
{
    oar_dtensor value = { NULL, NULL }, index = value;

    if (give_both(tape, rule, a, dim, keep != 0, &value, &index) == OAR_OK &&
        tape == NULL)
        oar_tensor_release(value.local);
    return index;
}

oar_dtensor oar_dtensor_argmax(oar_tape *tape, oar_dtensor a, int dim, int keep)
{
    return find_index(tape, &rule_max, a, dim, keep);
}

oar_dtensor oar_dtensor_argmin(oar_tape *tape, oar_dtensor a, int dim, int keep)
{
    return find_index(tape, &rule_min, a, dim, keep);
}
