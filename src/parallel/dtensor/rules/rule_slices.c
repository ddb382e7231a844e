/* SPDX-License-Identifier: Apache-2.0 */
/* rule_slices: parts of tensors, and tensors joined.
 *
 * What a slice along a cut dim takes stays on the ranks that have it: the
 * result has parts of other sizes, and nothing is sent. */
#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

static const oar_dtensor failed = { NULL, NULL };

/* ---- slices: numbers are dim, first, length, step ------------------------ */

static oar_status form_slice(const oari_form_call *call, oari_form *form)
{
    oar_shape shape = call->shape[0];
    int64_t first = call->number[1], length = call->number[2];
    int dim;

    OARI_TRY(oari_form_dim(call, call->number[0], shape.ndim, &dim));
    oari_form_same(call, form);
    oari_form_linear(form, 1);
    form->moves_only = 1;
    if (first < 0 || length < 0 || first > shape.dim[dim] ||
        length > shape.dim[dim] - first)
        return oari_fail(OAR_E_ARG,
                         "%s: %lld elements from %lld on of dim %d "
                         "of %s",
                         call->name, (long long)length, (long long)first, dim,
                         oari_box_shape_text(shape).text);
    if (call->number[3] > 1)
        length = oari_window_before(0, call->number[3], length);
    form->shape[0].dim[dim] = length;
    form->windows = 1;
    form->window_letter = dim;
    form->window_first = first;
    form->window_step = call->number[3];
    return OAR_OK;
}

static oar_tensor *run_slice(const oari_rule_call *c, const oari_decision *d,
                             oar_tensor *const *in, oar_tensor **second)
{
    const oar_spec *spec = d->in[0].spec;
    int ndim = spec->shape.ndim;
    int dim = (int)(c->number[0] < 0 ? c->number[0] + ndim : c->number[0]);
    int64_t at = spec->held.box.offset[dim], step = c->number[3];
    int64_t before = oari_window_before(c->number[1], step, at);
    int64_t start = c->number[1] + before * step - at;
    int64_t length = d->out[0]->local.dim[dim];

    if (length == 0)
        return oar_narrow(c->tape, in[0], dim, 0, 0);
    return step == 1 ? oar_narrow(c->tape, in[0], dim, start, length)
                     : oar_slice(c->tape, in[0], dim, start,
                                 start + (length - 1) * step + 1, step);
}

static const oari_rule rule_narrow = { "narrow", form_slice, run_slice };
static const oari_rule rule_slice = { "slice", form_slice, run_slice };

static oar_dtensor take(oar_tape *tape, const oari_rule *rule, oar_dtensor a,
                        int dim, int64_t first, int64_t length, int64_t step)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .numbers = 4,
                         .number = { dim, first, length, step } };
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_narrow(oar_tape *tape, oar_dtensor a, int dim,
                               int64_t start, int64_t length)
{
    return take(tape, &rule_narrow, a, dim, start, length, 1);
}

/* Returns a position that may count from the end, cut to the size. */
static int64_t cut_position(int64_t position, int64_t size)
{
    position = position < 0 ? position + size : position;
    return position < 0 ? 0 : position > size ? size : position;
}

oar_dtensor oar_dtensor_slice(oar_tape *tape, oar_dtensor a, int dim,
                              int64_t start, int64_t stop, int64_t step)
{
    oar_shape shape = oar_spec_shape(a.spec);
    int at = dim < 0 ? dim + shape.ndim : dim;
    int64_t size = at >= 0 && at < shape.ndim ? shape.dim[at] : 0;

    if (a.local == NULL)
        return failed;
    if (step < 1) {
        oari_fail(OAR_E_ARG, "slice: a step of %lld", (long long)step);
        return failed;
    }
    start = cut_position(start, size);
    stop = cut_position(stop, size);
    return take(tape, &rule_slice, a, dim, start,
                stop > start ? stop - start : 0, step);
}

/* ---- select: numbers are dim, index -------------------------------------- */

static oar_status form_select(const oari_form_call *call, oari_form *form)
{
    oar_shape shape = call->shape[0];
    int64_t index = call->number[1];
    int dim;

    OARI_TRY(oari_form_dim(call, call->number[0], shape.ndim, &dim));
    if (index < -shape.dim[dim] || index >= shape.dim[dim])
        return oari_fail(OAR_E_ARG, "%s: index %lld of dim %d of %s",
                         call->name, (long long)index, dim,
                         oari_box_shape_text(shape).text);
    oari_form_same(call, form);
    oari_form_linear(form, 1);
    if (call->dtype[0] == OAR_BOOL)
        form->whole |= 1u << dim; /* there is no sum of them */
    form->reduces = 1;
    form->reduce_op = OAR_REDUCE_OP_SUM;
    form->shape[0].ndim--;
    for (int d = dim; d < shape.ndim - 1; d++) {
        form->shape[0].dim[d] = shape.dim[d + 1];
        form->out[0].of[d] = (signed char)(d + 1);
    }
    return OAR_OK;
}

/* Ranks that do not have the index have zeros, which depend on their part: so
 * backward goes the same way on all ranks. */
static oar_tensor *run_select(const oari_rule_call *c, const oari_decision *d,
                              oar_tensor *const *in, oar_tensor **second)
{
    const oar_spec *spec = d->in[0].spec;
    int ndim = spec->shape.ndim;
    int dim = (int)(c->number[0] < 0 ? c->number[0] + ndim : c->number[0]);
    int64_t index = c->number[1] - spec->held.box.offset[dim];
    oar_tensor *none, *zeros;

    if (c->number[1] < 0)
        index += spec->shape.dim[dim];
    if (index >= 0 && index < spec->local.dim[dim])
        return oar_select(c->tape, in[0], dim, index);
    none = oar_narrow(c->tape, in[0], dim, 0, 0);
    zeros = oar_sum_over(c->tape, none, OAR_DIMS(dim), 0);
    if (c->tape == NULL)
        oar_tensor_release(none);
    return zeros;
}

static const oari_rule rule_select = { "select", form_select, run_select };

oar_dtensor oar_dtensor_select(oar_tape *tape, oar_dtensor a, int dim,
                               int64_t index)
{
    oari_rule_call c = { .rule = &rule_select,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .numbers = 2,
                         .number = { dim, index } };
    return oari_rule_run(&c, NULL);
}

/* ---- split --------------------------------------------------------------- */

static oar_status check_sizes(int64_t all, int pieces, const int64_t *size)
{
    int64_t left = all;

    for (int i = 0; i < pieces; i++) {
        if (size[i] < 0 || size[i] > left)
            return oari_fail(OAR_E_SHAPE, "split: piece %d has %lld of %lld", i,
                             (long long)size[i], (long long)all);
        left -= size[i];
    }
    if (left != 0)
        return oari_fail(OAR_E_SHAPE, "split: the pieces leave %lld of %lld",
                         (long long)left, (long long)all);
    return OAR_OK;
}

/* size NULL: nearly equal pieces. */
static oar_status split(oar_tape *tape, oar_dtensor a, int dim, int pieces,
                        const int64_t *size, oar_dtensor *piece)
{
    oar_shape shape = oar_spec_shape(a.spec);
    int64_t at = 0, all;

    if (a.local == NULL)
        return oar_last_error()->status;
    if (piece == NULL || pieces < 1)
        return oari_fail(OAR_E_ARG, "split into %d pieces", pieces);
    if (dim < -shape.ndim || dim >= shape.ndim)
        return oari_fail(OAR_E_ARG, "split: dim %d of a tensor %s", dim,
                         oari_box_shape_text(shape).text);
    all = shape.dim[dim < 0 ? dim + shape.ndim : dim];
    if (size != NULL)
        OARI_TRY(check_sizes(all, pieces, size));
    for (int i = 0; i < pieces; i++) {
        int64_t rows =
            size != NULL ? size[i] : all / pieces + (i < all % pieces);

        piece[i] = oar_dtensor_narrow(tape, a, dim, at, rows);
        at += rows;
        if (piece[i].local != NULL)
            continue;
        while (tape == NULL && i-- > 0)
            oar_tensor_release(piece[i].local);
        return oar_last_error()->status;
    }
    return OAR_OK;
}

oar_status oar_dtensor_split(oar_tape *tape, oar_dtensor a, int dim, int pieces,
                             const int64_t *size, oar_dtensor *piece)
{
    if (size == NULL)
        return oari_fail(OAR_E_ARG, "split without sizes");
    return split(tape, a, dim, pieces, size, piece);
}

oar_status oar_dtensor_chunk(oar_tape *tape, oar_dtensor a, int dim, int pieces,
                             oar_dtensor *piece)
{
    return split(tape, a, dim, pieces, NULL, piece);
}

/* ---- joining: number is the dim ------------------------------------------ */

/* Checks that another input has the first one's shape, but for a dim. */
static oar_status check_shape(const oari_form_call *call, int input, int but)
{
    oar_shape a = call->shape[0], b = call->shape[input];
    int same = a.ndim == b.ndim;

    for (int d = 0; same && d < a.ndim; d++)
        same = d == but || a.dim[d] == b.dim[d];
    if (same)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of %s and %s", call->name,
                     oari_box_shape_text(a).text, oari_box_shape_text(b).text);
}

static oar_status form_join(const oari_form_call *call, oari_form *form,
                            int but)
{
    oari_form_same(call, form);
    oari_form_linear(form, (1u << call->inputs) - 1);
    form->moves_only = 1;
    for (int i = 0; i < call->inputs; i++) {
        OARI_TRY(check_shape(call, i, but));
        form->in[i] = form->in[0];
    }
    return OAR_OK;
}

static oar_status form_cat(const oari_form_call *call, oari_form *form)
{
    int dim;

    OARI_TRY(oari_form_dim(call, call->number[0], call->shape[0].ndim, &dim));
    OARI_TRY(form_join(call, form, dim));
    form->whole |= 1u << dim;
    for (int i = 1; i < call->inputs; i++)
        form->shape[0].dim[dim] += call->shape[i].dim[dim];
    return OAR_OK;
}

static oar_tensor *run_cat(const oari_rule_call *c, const oari_decision *d,
                           oar_tensor *const *in, oar_tensor **second)
{
    return oar_cat(c->tape, c->inputs, in, (int)c->number[0]);
}

static oar_status form_stack(const oari_form_call *call, oari_form *form)
{
    int ndim = call->shape[0].ndim, dim;

    if (ndim == OAR_MAX_DIMS)
        return oari_fail(OAR_E_SHAPE, "%s of %s, which has all %d dims",
                         call->name, oari_box_shape_text(call->shape[0]).text,
                         OAR_MAX_DIMS);
    OARI_TRY(oari_form_dim(call, call->number[0], ndim + 1, &dim));
    OARI_TRY(form_join(call, form, -1));
    form->shape[0].ndim++;
    for (int d = ndim; d > dim; d--) {
        form->shape[0].dim[d] = call->shape[0].dim[d - 1];
        form->out[0].of[d] = (signed char)(d - 1);
    }
    form->shape[0].dim[dim] = call->inputs;
    form->out[0].of[dim] = OARI_WHOLE;
    return OAR_OK;
}

static oar_tensor *run_stack(const oari_rule_call *c, const oari_decision *d,
                             oar_tensor *const *in, oar_tensor **second)
{
    return oar_stack(c->tape, c->inputs, in, (int)c->number[0]);
}

static const oari_rule rule_cat = { "cat", form_cat, run_cat };
static const oari_rule rule_stack = { "stack", form_stack, run_stack };

static oar_dtensor join(oar_tape *tape, const oari_rule *rule, int count,
                        const oar_dtensor *a, int dim)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = count,
                         .numbers = 1,
                         .number = { dim } };

    for (int i = 0; i < count; i++)
        c.in[i] = a[i];
    return oari_rule_run(&c, NULL);
}

/* Joins as many as a call takes, and what comes out with the next ones. */
static oar_dtensor join_all(oar_tape *tape, const oari_rule *first, int count,
                            const oar_dtensor *a, int dim)
{
    oar_dtensor some[OARI_RULE_INPUTS], all;
    int n = count < OARI_RULE_INPUTS ? count : OARI_RULE_INPUTS;

    if (a == NULL || count < 1) {
        oari_fail(OAR_E_ARG, "%s of %d tensors", first->name, count);
        return failed;
    }
    all = join(tape, first, n, a, dim);
    while (n < count && all.local != NULL) {
        int more =
            count - n < OARI_RULE_INPUTS - 1 ? count - n : OARI_RULE_INPUTS - 1;
        oar_dtensor before = all, next = failed;

        some[0] = all;
        for (int i = 0; i < more; i++)
            some[1 + i] = a[n + i];
        if (first == &rule_stack)
            some[1] = next = join(tape, first, more, a + n, dim);
        all = join(tape, &rule_cat, first == &rule_stack ? 2 : 1 + more, some,
                   dim);
        if (tape == NULL) {
            oar_tensor_release(before.local);
            oar_tensor_release(next.local);
        }
        n += more;
    }
    return all;
}

oar_dtensor oar_dtensor_cat(oar_tape *tape, int count, const oar_dtensor *a,
                            int dim)
{
    return join_all(tape, &rule_cat, count, a, dim);
}

oar_dtensor oar_dtensor_stack(oar_tape *tape, int count, const oar_dtensor *a,
                              int dim)
{
    return join_all(tape, &rule_stack, count, a, dim);
}
