/* SPDX-License-Identifier: Apache-2.0 */
/* rule_views: views, which leave numbers as they are and rename dims. */
#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

#define RULE(name, form)                                                       \
    static oar_tensor *run_##name(const oari_rule_call *c,                     \
                                  const oari_decision *d,                      \
                                  oar_tensor *const *in, oar_tensor **second); \
    static const oari_rule rule_##name = { #name, form, run_##name };          \
    static oar_tensor *run_##name(const oari_rule_call *c,                     \
                                  const oari_decision *d,                      \
                                  oar_tensor *const *in, oar_tensor **second)

/* Starts a form of one input whose numbers stay as they are. */
static void form_view(const oari_form_call *call, oari_form *form)
{
    oari_form_same(call, form);
    oari_form_linear(form, 1);
    form->moves_only = 1;
}

static oar_dtensor run_view(oar_tape *tape, const oari_rule *rule,
                            oar_dtensor a, int numbers, const int64_t *number)
{
    oari_rule_call c = {
        .rule = rule, .tape = tape, .inputs = 1, .in = { a }, .numbers = numbers
    };

    for (int i = 0; i < numbers; i++)
        c.number[i] = number[i];
    return oari_rule_run(&c, NULL);
}

/* A view that is given a list of dims has their count and them as numbers. */
static oar_dtensor run_listed(oar_tape *tape, const oari_rule *rule,
                              oar_dtensor a, oar_dims list)
{
    int64_t number[1 + OAR_MAX_DIMS] = { list.count };

    for (int i = 0; i < list.count && i < OAR_MAX_DIMS; i++)
        number[1 + i] = list.dim[i];
    return run_view(tape, rule, a, 1 + OAR_MAX_DIMS, number);
}

static oar_dims list_of(const oari_rule_call *c)
{
    oar_dims list = { .count = (int)c->number[0] };

    for (int i = 0; i < list.count; i++)
        list.dim[i] = (int)c->number[1 + i];
    return list;
}

/* A flat part is a list of elements, before and after. */
static oar_tensor *reshape_local(const oari_rule_call *c,
                                 const oari_decision *d, oar_tensor *in)
{
    return oar_reshape(c->tape, in, d->out[0]->local);
}

/* ---- contiguous ---------------------------------------------------------- */

static oar_status form_contiguous(const oari_form_call *call, oari_form *form)
{
    form_view(call, form);
    form->flat = 1;
    return OAR_OK;
}

RULE(contiguous, form_contiguous)
{
    return oar_contiguous(c->tape, in[0]);
}

oar_dtensor oar_dtensor_contiguous(oar_tape *tape, oar_dtensor a)
{
    return run_view(tape, &rule_contiguous, a, 0, NULL);
}

/* ---- permute and transpose ----------------------------------------------- */

static oar_status form_permute(const oari_form_call *call, oari_form *form)
{
    int ndim = call->shape[0].ndim, dim;
    unsigned seen = 0;

    form_view(call, form);
    for (int i = 0; i < ndim; i++) {
        OARI_TRY(oari_form_dim(call, call->number[1 + i], ndim, &dim));
        form->out[0].of[i] = (signed char)dim;
        form->shape[0].dim[i] = call->shape[0].dim[dim];
        seen |= 1u << dim;
    }
    if (call->number[0] != ndim || seen != (1u << ndim) - 1)
        return oari_fail(OAR_E_ARG,
                         "%s: the order must have each dim of %s once",
                         call->name, oari_box_shape_text(call->shape[0]).text);
    return OAR_OK;
}

RULE(permute, form_permute)
{
    return oar_permute(c->tape, in[0], list_of(c));
}

oar_dtensor oar_dtensor_permute(oar_tape *tape, oar_dtensor a, oar_dims order)
{
    return run_listed(tape, &rule_permute, a, order);
}

static oar_status form_transpose(const oari_form_call *call, oari_form *form)
{
    oar_shape shape = call->shape[0];
    int d0, d1;

    form_view(call, form);
    OARI_TRY(oari_form_dim(call, call->number[0], shape.ndim, &d0));
    OARI_TRY(oari_form_dim(call, call->number[1], shape.ndim, &d1));
    form->out[0].of[d0] = (signed char)d1;
    form->out[0].of[d1] = (signed char)d0;
    form->shape[0].dim[d0] = shape.dim[d1];
    form->shape[0].dim[d1] = shape.dim[d0];
    return OAR_OK;
}

RULE(transpose, form_transpose)
{
    return oar_transpose(c->tape, in[0], (int)c->number[0], (int)c->number[1]);
}

oar_dtensor oar_dtensor_transpose(oar_tape *tape, oar_dtensor a, int d0, int d1)
{
    return run_view(tape, &rule_transpose, a, 2, (int64_t[]){ d0, d1 });
}

/* ---- reshape ------------------------------------------------------------- */

/* Finds the one dim that is not given. */
static oar_status read_shape(const oari_form_call *call, oar_shape *shape)
{
    oar_shape whole = call->shape[0];
    int64_t count = 1, known = 1;
    int left = -1;

    OARI_TRY(oari_form_list(call, call->number[0]));
    shape->ndim = (int)call->number[0];
    for (int d = 0; d < whole.ndim; d++)
        count *= whole.dim[d];
    for (int d = 0; d < shape->ndim; d++) {
        shape->dim[d] = call->number[1 + d];
        if (shape->dim[d] == -1 && left < 0) {
            left = d;
            continue;
        }
        if (shape->dim[d] < 0 ||
            (shape->dim[d] > 0 && known > INT64_MAX / shape->dim[d]))
            return oari_fail(OAR_E_SHAPE, "%s: dim %d would be %lld",
                             call->name, d, (long long)shape->dim[d]);
        known *= shape->dim[d];
    }
    if (left >= 0 && known > 0 && count % known == 0)
        shape->dim[left] = count / known;
    if (left >= 0 ? known <= 0 || count % known != 0 : known != count)
        return oari_fail(OAR_E_SHAPE,
                         "%s: %s has %lld elements, not those of "
                         "%s",
                         call->name, oari_box_shape_text(whole).text,
                         (long long)count, oari_box_shape_text(*shape).text);
    return OAR_OK;
}

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Some neighbouring dims. */
typedef struct dim_range {
    int first, end;
    int64_t product;
} dim_range;

/* Returns the first dim of a range that is not 1, or the last. */
static int first_long(oar_shape shape, const dim_range *r)
{
    int d = r->first;

    while (d + 1 < r->end && shape.dim[d] == 1)
        d++;
    return d;
}

/* Gives the outermost dims of two ranges with the same elements a letter. A
 * step of it is as many rows as both sides have whole. */
static void join_ranges(const dim_range *a, const dim_range *b, oari_form *form,
                        oar_shape from)
{
    oar_shape to = form->shape[0];
    int da = first_long(from, a), db = first_long(to, b);
    int letter = form->letters++;
    int64_t inner_a = a->product / from.dim[da];
    int64_t inner_b = b->product / to.dim[db];
    int64_t step = inner_a / greatest_divisor(inner_a, inner_b) * inner_b;

    form->size[letter] = a->product / step;
    form->in[0].of[da] = form->out[0].of[db] = (signed char)letter;
    form->in[0].rows[da] = step / inner_a;
    form->out[0].rows[db] = step / inner_b;
}

static void take_dim(oar_shape shape, dim_range *r)
{
    r->product *= shape.dim[r->end++];
}

static oar_status form_reshape(const oari_form_call *call, oari_form *form)
{
    oar_shape from = call->shape[0], to = { 0 };
    dim_range a = { 0, 0, 1 }, b = { 0, 0, 1 };
    int64_t count = 1;

    OARI_TRY(read_shape(call, &to));
    form_view(call, form);
    form->flat = 1;
    form->letters = 0;
    form->shape[0] = to;
    for (int d = 0; d < OAR_MAX_DIMS; d++)
        form->in[0].of[d] = form->out[0].of[d] = OARI_WHOLE;
    for (int d = 0; d < from.ndim; d++)
        count *= from.dim[d];
    while (count > 0 && a.end < from.ndim && b.end < to.ndim) {
        a = (dim_range){ a.end, a.end, 1 };
        b = (dim_range){ b.end, b.end, 1 };
        take_dim(from, &a);
        take_dim(to, &b);
        while (a.product != b.product) {
            if (a.product < b.product)
                take_dim(from, &a);
            else
                take_dim(to, &b);
        }
        join_ranges(&a, &b, form, from);
    }
    return OAR_OK;
}

RULE(reshape, form_reshape)
{
    return reshape_local(c, d, in[0]);
}

oar_dtensor oar_dtensor_reshape(oar_tape *tape, oar_dtensor a, oar_shape shape)
{
    int64_t number[1 + OAR_MAX_DIMS] = { shape.ndim };

    for (int d = 0; d < shape.ndim && d < OAR_MAX_DIMS; d++)
        number[1 + d] = shape.dim[d];
    return run_view(tape, &rule_reshape, a, 1 + OAR_MAX_DIMS, number);
}

static oar_status form_squeeze(const oari_form_call *call, oari_form *form)
{
    oar_shape shape = call->shape[0];
    int dim;

    OARI_TRY(oari_form_dim(call, call->number[0], shape.ndim, &dim));
    if (shape.dim[dim] != 1)
        return oari_fail(OAR_E_SHAPE, "%s: dim %d of %s is not 1", call->name,
                         dim, oari_box_shape_text(shape).text);
    form_view(call, form);
    form->flat = 1;
    form->in[0].of[dim] = OARI_WHOLE;
    form->shape[0].ndim--;
    for (int d = dim; d < shape.ndim - 1; d++) {
        form->shape[0].dim[d] = shape.dim[d + 1];
        form->out[0].of[d] = (signed char)(d + 1);
    }
    return OAR_OK;
}

RULE(squeeze, form_squeeze)
{
    return reshape_local(c, d, in[0]);
}

oar_dtensor oar_dtensor_squeeze(oar_tape *tape, oar_dtensor a, int dim)
{
    return run_view(tape, &rule_squeeze, a, 1, (int64_t[]){ dim });
}

static oar_status form_unsqueeze(const oari_form_call *call, oari_form *form)
{
    oar_shape shape = call->shape[0];
    int dim;

    if (shape.ndim == OAR_MAX_DIMS)
        return oari_fail(OAR_E_SHAPE, "%s of %s, which has all %d dims",
                         call->name, oari_box_shape_text(shape).text,
                         OAR_MAX_DIMS);
    OARI_TRY(oari_form_dim(call, call->number[0], shape.ndim + 1, &dim));
    form_view(call, form);
    form->flat = 1;
    form->shape[0].ndim++;
    for (int d = shape.ndim; d > dim; d--) {
        form->shape[0].dim[d] = shape.dim[d - 1];
        form->out[0].of[d] = (signed char)(d - 1);
    }
    form->shape[0].dim[dim] = 1;
    form->out[0].of[dim] = OARI_WHOLE;
    return OAR_OK;
}

RULE(unsqueeze, form_unsqueeze)
{
    return reshape_local(c, d, in[0]);
}

oar_dtensor oar_dtensor_unsqueeze(oar_tape *tape, oar_dtensor a, int dim)
{
    return run_view(tape, &rule_unsqueeze, a, 1, (int64_t[]){ dim });
}

/* ---- expand -------------------------------------------------------------- */

static oar_status form_expand(const oari_form_call *call, oari_form *form)
{
    oar_shape from = call->shape[0], *to = &form->shape[0];
    int ahead = (int)call->number[0] - from.ndim;

    OARI_TRY(oari_form_list(call, call->number[0]));
    form_view(call, form);
    to->ndim = (int)call->number[0];
    for (int d = 0; d < to->ndim; d++) {
        int64_t size = call->number[1 + d], old = 1;

        if (ahead >= 0 && d >= ahead)
            old = from.dim[d - ahead];
        if (ahead < 0 || (size == -1 && d < ahead) ||
            (size != -1 && size != old && old != 1) || size < -1)
            return oari_fail(OAR_E_SHAPE, "%s: %s does not expand so",
                             call->name, oari_box_shape_text(from).text);
        to->dim[d] = size == -1 ? old : size;
        form->out[0].of[d] = OARI_WHOLE;
        if (d < ahead)
            continue;
        if (to->dim[d] == old)
            form->out[0].of[d] = (signed char)(d - ahead);
        else
            form->in[0].of[d - ahead] = OARI_WHOLE;
    }
    return OAR_OK;
}

RULE(expand, form_expand)
{
    return oar_expand(c->tape, in[0], d->out[0]->local);
}

oar_dtensor oar_dtensor_expand(oar_tape *tape, oar_dtensor a, oar_shape shape)
{
    int64_t number[1 + OAR_MAX_DIMS] = { shape.ndim };

    for (int d = 0; d < shape.ndim && d < OAR_MAX_DIMS; d++)
        number[1 + d] = shape.dim[d];
    return run_view(tape, &rule_expand, a, 1 + OAR_MAX_DIMS, number);
}

/* ---- flip ---------------------------------------------------------------- */

static oar_status form_flip(const oari_form_call *call, oari_form *form)
{
    int ndim = call->shape[0].ndim, dim;

    OARI_TRY(oari_form_list(call, call->number[0]));
    form_view(call, form);
    for (int i = 0; i < call->number[0]; i++) {
        OARI_TRY(oari_form_dim(call, call->number[1 + i], ndim, &dim));
        form->whole |= 1u << dim;
    }
    if (call->number[0] == 0)
        form->whole = (1u << ndim) - 1;
    return OAR_OK;
}

RULE(flip, form_flip)
{
    return oar_flip(c->tape, in[0], list_of(c));
}

oar_dtensor oar_dtensor_flip(oar_tape *tape, oar_dtensor a, oar_dims dims)
{
    return run_listed(tape, &rule_flip, a, dims);
}
