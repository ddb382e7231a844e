/* SPDX-License-Identifier: Apache-2.0 */
/* rule_reduce: reductions over dims. Along a dim that is cut they leave partial
 * results; those of max, min and prod are merged at once if a gradient is
 * wanted, because only here it is known which rank had what. */
#include <math.h>

#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"
#include "parallel/dtensor/rules/rule_merge.h"

/* Numbers are: keep, correction, wants a gradient, how many dims, dims. */
enum { KEEP, CORRECTION, GRAD, COUNT, DIMS };

/* ---- forms --------------------------------------------------------------- */

/* Reads the dims as bits; none listed: all. */
static oar_status read_dims(const oari_form_call *call, unsigned *over)
{
    int ndim = call->shape[0].ndim, dim;

    OARI_TRY(oari_form_list(call, call->number[COUNT]));
    *over = call->number[COUNT] == 0 ? (1u << ndim) - 1 : 0;
    for (int i = 0; i < call->number[COUNT]; i++) {
        OARI_TRY(oari_form_dim(call, call->number[DIMS + i], ndim, &dim));
        if (*over >> dim & 1)
            return oari_fail(OAR_E_ARG, "%s: dim %d is listed twice",
                             call->name, dim);
        *over |= 1u << dim;
    }
    return OAR_OK;
}

/* Takes the dims out of result i, or leaves them with size 1. */
static void take_dims_out(oari_form *form, int i, oar_shape shape,
                          unsigned over, int keep)
{
    int to = 0;

    for (int d = 0; d < shape.ndim; d++) {
        int gone = over >> d & 1;

        if (gone && !keep)
            continue;
        form->out[i].of[to] = (signed char)(gone ? OARI_WHOLE : d);
        form->shape[i].dim[to++] = gone ? 1 : shape.dim[d];
    }
    form->shape[i].ndim = to;
}

static oar_status form_reduce(const oari_form_call *call, oari_form *form,
                              oar_reduce_op_kind op)
{
    unsigned over;

    OARI_TRY(read_dims(call, &over));
    oari_form_same(call, form);
    take_dims_out(form, 0, call->shape[0], over, (int)call->number[KEEP]);
    form->reduces = 1;
    form->reduce_op = op;
    form->flat = form->flat_reduces = over == (1u << call->shape[0].ndim) - 1 &&
                                      !call->number[GRAD] &&
                                      call->dtype[0] != OAR_BOOL;
    return OAR_OK;
}

static oar_status form_sum(const oari_form_call *call, oari_form *form)
{
    oari_form_linear(form, 1);
    return form_reduce(call, form, OAR_REDUCE_OP_SUM);
}

static oar_status form_mean(const oari_form_call *call, oari_form *form)
{
    if (!oari_is_float(call->dtype[0]))
        return oari_fail(OAR_E_DTYPE, "%s of %s", call->name,
                         oar_dtype_name(call->dtype[0]));
    return form_sum(call, form);
}

/* With a gradient the run function merges what ranks have. */
static oar_status form_merged(const oari_form_call *call, oari_form *form,
                              oar_reduce_op_kind op)
{
    unsigned over;

    OARI_TRY(read_dims(call, &over));
    OARI_TRY(form_reduce(call, form, op));
    for (int d = 0; d < call->shape[0].ndim; d++)
        if ((over >> d & 1) && call->shape[0].dim[d] == 0 &&
            op != OAR_REDUCE_OP_PROD)
            return oari_fail(OAR_E_SHAPE, "%s over no elements of %s",
                             call->name,
                             oari_box_shape_text(call->shape[0]).text);
    if (call->dtype[0] == OAR_BOOL && op != OAR_REDUCE_OP_PROD)
        form->whole = over; /* ranks do not reduce bools */
    if (call->number[GRAD]) {
        form->reduces = 0;
        form->merges = over;
    }
    return OAR_OK;
}

static oar_status form_max(const oari_form_call *call, oari_form *form)
{
    return form_merged(call, form, OAR_REDUCE_OP_MAX);
}

static oar_status form_min(const oari_form_call *call, oari_form *form)
{
    return form_merged(call, form, OAR_REDUCE_OP_MIN);
}

static oar_status form_prod(const oari_form_call *call, oari_form *form)
{
    return form_merged(call, form, OAR_REDUCE_OP_PROD);
}

/* Only of whole rows. */
static oar_status form_whole(const oari_form_call *call, oari_form *form)
{
    unsigned over;

    OARI_TRY(read_dims(call, &over));
    oari_form_same(call, form);
    take_dims_out(form, 0, call->shape[0], over, (int)call->number[KEEP]);
    form->whole = over;
    return OAR_OK;
}

/* ---- running ------------------------------------------------------------- */

typedef oar_tensor *(*reduce_fn)(oar_tape *tape, oar_tensor *a, oar_dims over,
                                 int keep);

static oar_dims dims_of(const oari_rule_call *c)
{
    oar_dims over = { .count = (int)c->number[COUNT] };

    for (int i = 0; i < over.count; i++)
        over.dim[i] = (int)c->number[DIMS + i];
    return over;
}

/* Reduces a local part; a flat one has all that is reduced in one dim. */
static oar_tensor *reduce_local(const oari_rule_call *c, const oari_decision *d,
                                oar_tensor *in, reduce_fn reduce)
{
    oar_tensor *number, *shaped;

    if (!d->in[0].spec->held.flat)
        return reduce(c->tape, in, dims_of(c), (int)c->number[KEEP]);
    number = reduce(c->tape, in, OAR_NO_DIMS, 0);
    shaped = oar_reshape(c->tape, number, d->out[0]->local);
    if (c->tape == NULL)
        oar_tensor_release(number);
    return shaped;
}

static oar_tensor *run_sum(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    return reduce_local(c, d, in[0], oar_sum_over);
}

static int64_t count_of(oar_shape shape)
{
    int64_t count = 1;

    for (int d = 0; d < shape.ndim; d++)
        count *= shape.dim[d];
    return count;
}

/* Parts of any size: sums, divided by how many there are of the whole. */
static oar_tensor *run_mean(const oari_rule_call *c, const oari_decision *d,
                            oar_tensor *const *in, oar_tensor **second)
{
    oar_shape shape = c->in[0].spec->shape;
    double each = (double)count_of(shape), results = 1;
    unsigned over = c->number[COUNT] == 0 ? (1u << shape.ndim) - 1 : 0;
    oar_tensor *sum, *mean;
    int cut = d->in[0].spec->held.flat;

    for (int i = 0; i < c->number[COUNT]; i++)
        over |= 1u << (c->number[DIMS + i] + shape.ndim) % shape.ndim;
    for (int l = 0; l < shape.ndim; l++) {
        cut |= (over >> l & 1) && oari_decision_cuts(d, l);
        results *= over >> l & 1 ? 1 : (double)shape.dim[l];
    }
    if (!cut)
        return reduce_local(c, d, in[0], oar_mean_over);
    sum = reduce_local(c, d, in[0], oar_sum_over);
    mean = oar_scale(c->tape, sum, results / each);
    if (c->tape == NULL)
        oar_tensor_release(sum);
    return mean;
}

/* Returns the number that changes nothing, for a part without elements: zeros
 * that depend on the part, and so much more. */
static oar_tensor *reduce_nothing(const oari_rule_call *c,
                                  const oari_decision *d, oar_tensor *in,
                                  oar_reduce_op_kind op)
{
    oar_dtype dtype = oar_tensor_dtype(in);
    oar_tensor *zeros, *out;
    double number;

    if (!oari_is_float(dtype)) {
        out = oar_empty_on(c->tape, oar_tensor_device(in), dtype,
                           d->out[0]->local);
        if (out == NULL || oari_fill_neutral(out, op) == OAR_OK)
            return out;
        if (c->tape == NULL)
            oar_tensor_release(out);
        return NULL;
    }
    number = op == OAR_REDUCE_OP_MAX ? -INFINITY : INFINITY;
    zeros = reduce_local(c, d, in, oar_sum_over);
    out = oar_shift(c->tape, zeros, number);
    if (c->tape == NULL)
        oar_tensor_release(zeros);
    return out;
}

static oar_tensor *run_merged(const oari_rule_call *c, const oari_decision *d,
                              oar_tensor *in, reduce_fn reduce,
                              oar_reduce_op_kind op)
{
    int nothing = op != OAR_REDUCE_OP_PROD && oar_tensor_count(in) == 0 &&
                  count_of(d->out[0]->local) > 0;
    oar_tensor *local =
        nothing ? reduce_nothing(c, d, in, op) : reduce_local(c, d, in, reduce);

    return c->number[GRAD] ? oari_merge_local(c, d, local, op) : local;
}

static oar_tensor *run_max(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    return run_merged(c, d, in[0], oar_max_over, OAR_REDUCE_OP_MAX);
}

static oar_tensor *run_min(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    return run_merged(c, d, in[0], oar_min_over, OAR_REDUCE_OP_MIN);
}

static oar_tensor *run_prod(const oari_rule_call *c, const oari_decision *d,
                            oar_tensor *const *in, oar_tensor **second)
{
    return run_merged(c, d, in[0], oar_prod_over, OAR_REDUCE_OP_PROD);
}

static oar_tensor *run_any(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    return oar_any_over(c->tape, in[0], dims_of(c), (int)c->number[KEEP]);
}

static oar_tensor *run_all(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    return oar_all_over(c->tape, in[0], dims_of(c), (int)c->number[KEEP]);
}

static oar_tensor *run_var(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    return oar_var_over(c->tape, in[0], dims_of(c), (int)c->number[KEEP],
                        (int)c->number[CORRECTION]);
}

/* ---- operations ---------------------------------------------------------- */

static const oari_rule rule_sum = { "sum_over", form_sum, run_sum };
static const oari_rule rule_mean = { "mean_over", form_mean, run_mean };
static const oari_rule rule_max = { "max_over", form_max, run_max };
static const oari_rule rule_min = { "min_over", form_min, run_min };
static const oari_rule rule_prod = { "prod_over", form_prod, run_prod };
static const oari_rule rule_any = { "any_over", form_whole, run_any };
static const oari_rule rule_all = { "all_over", form_whole, run_all };
static const oari_rule rule_var = { "var_over", form_whole, run_var };

static oar_dtensor reduce(oar_tape *tape, const oari_rule *rule, oar_dtensor a,
                          oar_dims over, int keep, int correction, int grad)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .numbers = DIMS + OAR_MAX_DIMS,
                         .number = { keep != 0, correction, grad } };

    c.number[COUNT] = over.count;
    for (int i = 0; i < over.count && i < OAR_MAX_DIMS; i++)
        c.number[DIMS + i] = over.dim[i];
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_sum(oar_tape *tape, oar_dtensor a)
{
    return reduce(tape, &rule_sum, a, OAR_NO_DIMS, 0, 0, 0);
}

oar_dtensor oar_dtensor_mean(oar_tape *tape, oar_dtensor a)
{
    return reduce(tape, &rule_mean, a, OAR_NO_DIMS, 0, 0, 0);
}

oar_dtensor oar_dtensor_sum_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                 int keep)
{
    return reduce(tape, &rule_sum, a, over, keep, 0, 0);
}

oar_dtensor oar_dtensor_mean_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                  int keep)
{
    return reduce(tape, &rule_mean, a, over, keep, 0, 0);
}

static int wants_grad(const oar_tape *tape, oar_dtensor a)
{
    return tape != NULL && oar_tensor_requires_grad(a.local);
}

oar_dtensor oar_dtensor_max_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                 int keep)
{
    return reduce(tape, &rule_max, a, over, keep, 0, wants_grad(tape, a));
}

oar_dtensor oar_dtensor_min_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                 int keep)
{
    return reduce(tape, &rule_min, a, over, keep, 0, wants_grad(tape, a));
}

oar_dtensor oar_dtensor_prod_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                  int keep)
{
    return reduce(tape, &rule_prod, a, over, keep, 0, wants_grad(tape, a));
}

oar_dtensor oar_dtensor_any_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                 int keep)
{
    return reduce(tape, &rule_any, a, over, keep, 0, 0);
}

oar_dtensor oar_dtensor_all_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                 int keep)
{
    return reduce(tape, &rule_all, a, over, keep, 0, 0);
}

/* ---- variance ------------------------------------------------------------ */

/* Whether every rank has whole rows of what is reduced. */
static int has_whole_rows(oar_dtensor a, oar_dims over)
{
    const oar_spec *spec = a.spec;
    int ndim = spec->shape.ndim;

    for (int m = 0; m < spec->mesh->grid.dims; m++) {
        const oari_cut *cut = &spec->layout.on[m];

        if (cut->kind != OAR_REPLICATE && cut->kind != OAR_SHARD)
            return 0;
        if (cut->kind == OAR_SHARD && over.count == 0)
            return 0;
        for (int i = 0; i < over.count && cut->kind == OAR_SHARD; i++)
            if (over.dim[i] == cut->dim || over.dim[i] + ndim == cut->dim)
                return 0;
    }
    return 1;
}

/* The mean of squared distances from the mean, each a sum over the ranks. */
oar_dtensor oar_dtensor_var_over(oar_tape *tape, oar_dtensor a, oar_dims over,
                                 int keep, int correction)
{
    oar_dtensor mean, distance, square, sum, var;
    int64_t results, each; /* how many numbers a result is of */

    if (a.local == NULL || a.spec == NULL || has_whole_rows(a, over) ||
        !oari_is_float(oar_tensor_dtype(a.local)))
        return reduce(tape, &rule_var, a, over, keep, correction, 0);
    mean = oar_dtensor_mean_over(tape, a, over, 1);
    distance = oar_dtensor_sub(tape, a, mean);
    square = oar_dtensor_mul(tape, distance, distance);
    sum = oar_dtensor_sum_over(tape, square, over, keep);
    results = count_of(oar_spec_shape(sum.spec));
    each = results > 0 ? count_of(a.spec->shape) / results : 1 + correction;
    var = oar_dtensor_scale(tape, sum, 1 / (double)(each - correction));
    if (tape == NULL) {
        oar_tensor_release(mean.local);
        oar_tensor_release(distance.local);
        oar_tensor_release(square.local);
        oar_tensor_release(sum.local);
    }
    return var;
}
