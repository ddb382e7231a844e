/* SPDX-License-Identifier: Apache-2.0 */
/* rule_softmax: softmax, along a dim that no mesh dim may cut; and operations
 * whose numbers depend on where an element is: dropout and rotary. */
#include "base/status.h"
#include "parallel/dtensor/rules/cut_ranks.h"

/* ---- along one dim ------------------------------------------------------- */

static oar_status form_along(const oari_form_call *call, oari_form *form)
{
    int dim;

    OARI_TRY(oari_form_dim(call, call->number[0], call->shape[0].ndim, &dim));
    oari_form_same(call, form);
    form->whole = 1u << dim;
    return OAR_OK;
}

static oar_tensor *run_softmax(const oari_rule_call *c, const oari_decision *d,
                               oar_tensor *const *in, oar_tensor **second)
{
    return oar_softmax_over(c->tape, in[0], (int)c->number[0]);
}

static const oari_rule softmax_rule = { "softmax", form_along, run_softmax };

static oar_tensor *run_log_softmax(const oari_rule_call *c,
                                   const oari_decision *d,
                                   oar_tensor *const *in, oar_tensor **second)
{
    return oar_log_softmax(c->tape, in[0], (int)c->number[0]);
}

static const oari_rule log_softmax_rule = { "log_softmax", form_along,
                                            run_log_softmax };

static oar_dtensor run_along(oar_tape *tape, const oari_rule *rule,
                             oar_dtensor a, int dim)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .numbers = 1,
                         .number = { dim } };

    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_softmax(oar_tape *tape, oar_dtensor a)
{
    return run_along(tape, &softmax_rule, a, -1);
}

oar_dtensor oar_dtensor_softmax_over(oar_tape *tape, oar_dtensor a, int dim)
{
    return run_along(tape, &softmax_rule, a, dim);
}

oar_dtensor oar_dtensor_log_softmax(oar_tape *tape, oar_dtensor a, int dim)
{
    return run_along(tape, &log_softmax_rule, a, dim);
}

/* ---- by position --------------------------------------------------------- */

static oar_status form_dropout(const oari_form_call *call, oari_form *form)
{
    oari_form_same(call, form);
    oari_form_linear(form, 1);
    return OAR_OK;
}

/* Finds where this rank's part lies in the whole. */
static oar_part_place place_of(const oar_spec *spec)
{
    oar_part_place place = oar_part_place_init();
    int64_t stride = 1;

    for (int d = spec->shape.ndim - 1; d >= 0; d--) {
        place.stride[d] = stride;
        place.first += spec->held.box.offset[d] * stride;
        stride *= spec->shape.dim[d];
    }
    return place;
}

static oar_tensor *run_dropout(const oari_rule_call *c, const oari_decision *d,
                               oar_tensor *const *in, oar_tensor **second)
{
    oar_part_place place = place_of(d->in[0].spec);

    return oar_dropout_part(c->tape, in[0], c->real[0],
                            *(const uint64_t *)c->opts, &place);
}

static const oari_rule dropout_rule = { "dropout", form_dropout, run_dropout };

oar_dtensor oar_dtensor_dropout(oar_tape *tape, oar_dtensor a, double p,
                                uint64_t seed)
{
    oari_rule_call c = { .rule = &dropout_rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .real = { p },
                         .opts = &seed };

    return oari_rule_run(&c, NULL);
}

/* x [.., t, d]: pairs lie in the last dim. */
static oar_status form_rotary(const oari_form_call *call, oari_form *form)
{
    int ndim = call->shape[0].ndim;

    if (ndim < 2)
        return oari_fail(OAR_E_SHAPE, "rotary of %s: it is [.., t, d]",
                         oari_box_shape_text(call->shape[0]).text);
    oari_form_same(call, form);
    oari_form_linear(form, 1);
    form->whole = 1u << (ndim - 1);
    return OAR_OK;
}

static oar_tensor *run_rotary(const oari_rule_call *c, const oari_decision *d,
                              oar_tensor *const *in, oar_tensor **second)
{
    const oari_box *box = &d->in[0].spec->held.box;

    return oar_rotary(c->tape, in[0],
                      *(const int64_t *)c->opts + box->offset[box->ndim - 2],
                      c->real[0]);
}

static const oari_rule rotary_rule = { "rotary", form_rotary, run_rotary };

oar_dtensor oar_dtensor_rotary(oar_tape *tape, oar_dtensor x, int64_t first,
                               double base)
{
    oari_rule_call c = { .rule = &rotary_rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { x },
                         .real = { base },
                         .opts = &first };

    return oari_rule_run(&c, NULL);
}
