/* SPDX-License-Identifier: Apache-2.0 */
/* rule_elementwise: operations of single elements, with broadcasting. */
#include "base/status.h"
#include "parallel/dtensor/rules/rule.h"

/* ---- forms --------------------------------------------------------------- */

void oari_form_same(const oari_form_call *call, oari_form *form)
{
    oar_shape shape = call->shape[0];

    form->letters = shape.ndim;
    for (int d = 0; d < shape.ndim; d++) {
        form->size[d] = shape.dim[d];
        form->in[0].of[d] = form->out[0].of[d] = (signed char)d;
    }
    form->results = 1;
    form->shape[0] = shape;
}

/* Writes the shapes of all inputs, for messages. */
static const char *shapes_text(const oari_form_call *call, char *text,
                               size_t bytes)
{
    size_t at = 0;

    for (int i = 0; i < call->inputs; i++)
        at = oari_spec_text_add(text, bytes, at, "%s%s", i > 0 ? " and " : "",
                                oari_box_shape_text(call->shape[i]).text);
    return text;
}

oar_status oari_form_broadcast(const oari_form_call *call, oari_form *form)
{
    oar_shape *out = &form->shape[0];
    char text[200];

    for (int i = 0; i < call->inputs; i++)
        out->ndim =
            call->shape[i].ndim > out->ndim ? call->shape[i].ndim : out->ndim;
    for (int d = 0; d < out->ndim; d++)
        out->dim[d] = 1;
    form->letters = out->ndim;
    form->results = 1;
    form->flat = 1;
    for (int i = 0; i < call->inputs; i++) {
        int ahead = out->ndim - call->shape[i].ndim;

        for (int d = 0; d < call->shape[i].ndim; d++) {
            int64_t size = call->shape[i].dim[d];

            if (size == 1 || size == out->dim[ahead + d])
                continue;
            if (out->dim[ahead + d] != 1)
                return oari_fail(OAR_E_SHAPE, "%s: %s do not broadcast",
                                 call->name,
                                 shapes_text(call, text, sizeof text));
            out->dim[ahead + d] = size;
        }
    }
    for (int i = 0; i < call->inputs; i++) {
        int ahead = out->ndim - call->shape[i].ndim;

        form->flat &= oari_same_shape(call->shape[i], *out);
        for (int d = 0; d < call->shape[i].ndim; d++)
            form->in[i].of[d] = call->shape[i].dim[d] == out->dim[ahead + d]
                                    ? (signed char)(ahead + d)
                                    : OARI_WHOLE;
    }
    for (int d = 0; d < out->ndim; d++) {
        form->size[d] = out->dim[d];
        form->out[0].of[d] = (signed char)d;
    }
    return OAR_OK;
}

static oar_status form_unary(const oari_form_call *call, oari_form *form)
{
    oari_form_same(call, form);
    form->flat = 1;
    return OAR_OK;
}

static oar_status form_linear_unary(const oari_form_call *call, oari_form *form)
{
    oari_form_linear(form, 1);
    return form_unary(call, form);
}

/* A sum of floats may be rounded more finely, not more coarsely. */
static oar_status form_cast(const oari_form_call *call, oari_form *form)
{
    oar_dtype from = call->dtype[0], to = (oar_dtype)call->number[0];

    if (from == to || (oari_is_float(from) && oari_is_float(to) &&
                       oar_dtype_size(to) > oar_dtype_size(from)))
        oari_form_linear(form, 1);
    return form_unary(call, form);
}

static oar_status form_add(const oari_form_call *call, oari_form *form)
{
    oari_form_linear(form, 3);
    return oari_form_broadcast(call, form);
}

static oar_status form_mul(const oari_form_call *call, oari_form *form)
{
    oari_form_linear(form, 1);
    oari_form_linear(form, 2);
    return oari_form_broadcast(call, form);
}

/* Division of integers rounds. */
static oar_status form_div(const oari_form_call *call, oari_form *form)
{
    if (oari_is_float(call->dtype[0]))
        oari_form_linear(form, 1);
    return oari_form_broadcast(call, form);
}

static oar_status form_where(const oari_form_call *call, oari_form *form)
{
    oari_form_linear(form, 6);
    return oari_form_broadcast(call, form);
}

/* The mask broadcasts to the tensor, not the other way round. */
static oar_status form_fill(const oari_form_call *call, oari_form *form)
{
    OARI_TRY(oari_form_broadcast(call, form));
    if (!oari_same_shape(form->shape[0], call->shape[0]))
        return oari_fail(OAR_E_SHAPE, "%s: a mask %s for a tensor %s",
                         call->name, oari_box_shape_text(call->shape[1]).text,
                         oari_box_shape_text(call->shape[0]).text);
    return OAR_OK;
}

static oar_status form_triangle(const oari_form_call *call, oari_form *form)
{
    if (call->shape[0].ndim < 2)
        return oari_fail(OAR_E_SHAPE, "%s of %s, which is no matrix",
                         call->name, oari_box_shape_text(call->shape[0]).text);
    oari_form_same(call, form);
    oari_form_linear(form, 1);
    return OAR_OK;
}

/* ---- operations ---------------------------------------------------------- */

#define RULE(name, form)                                                       \
    static oar_tensor *run_##name(const oari_rule_call *c,                     \
                                  const oari_decision *d,                      \
                                  oar_tensor *const *in, oar_tensor **second); \
    static const oari_rule rule_##name = { #name, form, run_##name };          \
    static oar_tensor *run_##name(const oari_rule_call *c,                     \
                                  const oari_decision *d,                      \
                                  oar_tensor *const *in, oar_tensor **second)

#define UNARY(name, form)                                                \
    RULE(name, form)                                                     \
    {                                                                    \
        return oar_##name(c->tape, in[0]);                               \
    }                                                                    \
    oar_dtensor oar_dtensor_##name(oar_tape *tape, oar_dtensor a)        \
    {                                                                    \
        oari_rule_call c = {                                             \
            .rule = &rule_##name, .tape = tape, .inputs = 1, .in = { a } \
        };                                                               \
        return oari_rule_run(&c, NULL);                                  \
    }

#define BINARY(name, form)                                                  \
    RULE(name, form)                                                        \
    {                                                                       \
        return oar_##name(c->tape, in[0], in[1]);                           \
    }                                                                       \
    oar_dtensor oar_dtensor_##name(oar_tape *tape, oar_dtensor a,           \
                                   oar_dtensor b)                           \
    {                                                                       \
        oari_rule_call c = {                                                \
            .rule = &rule_##name, .tape = tape, .inputs = 2, .in = { a, b } \
        };                                                                  \
        return oari_rule_run(&c, NULL);                                     \
    }

#define SCALAR(name, form)                                        \
    RULE(name, form)                                              \
    {                                                             \
        return oar_##name(c->tape, in[0], c->real[0]);            \
    }                                                             \
    oar_dtensor oar_dtensor_##name(oar_tape *tape, oar_dtensor a, \
                                   double number)                 \
    {                                                             \
        oari_rule_call c = { .rule = &rule_##name,                \
                             .tape = tape,                        \
                             .inputs = 1,                         \
                             .in = { a },                         \
                             .real = { number } };                \
        return oari_rule_run(&c, NULL);                           \
    }

UNARY(neg, form_linear_unary)
UNARY(abs, form_unary)
UNARY(relu, form_unary)
UNARY(sign, form_unary)
UNARY(floor, form_unary)
UNARY(ceil, form_unary)
UNARY(round, form_unary)
UNARY(exp, form_unary)
UNARY(expm1, form_unary)
UNARY(log, form_unary)
UNARY(log1p, form_unary)
UNARY(erf, form_unary)
UNARY(sqrt, form_unary)
UNARY(rsqrt, form_unary)
UNARY(sin, form_unary)
UNARY(cos, form_unary)
UNARY(tanh, form_unary)
UNARY(sigmoid, form_unary)
UNARY(gelu, form_unary)
UNARY(gelu_tanh, form_unary)
UNARY(silu, form_unary)
UNARY(softplus, form_unary)
UNARY(logical_not, form_unary)

BINARY(add, form_add)
BINARY(sub, form_add)
BINARY(mul, form_mul)
BINARY(div, form_div)
BINARY(pow, oari_form_broadcast)
BINARY(minimum, oari_form_broadcast)
BINARY(maximum, oari_form_broadcast)
BINARY(logical_and, oari_form_broadcast)
BINARY(logical_or, oari_form_broadcast)
BINARY(logical_xor, oari_form_broadcast)
#define COMPARE(name)                 \
    BINARY(name, oari_form_broadcast) \
    SCALAR(name##_scalar, form_unary)
OAR_COMPARE_LIST(COMPARE)

SCALAR(scale, form_linear_unary)
SCALAR(shift, form_unary)
SCALAR(power, form_unary)
SCALAR(leaky_relu, form_unary)
SCALAR(minimum_scalar, form_unary)
SCALAR(maximum_scalar, form_unary)

RULE(clamp, form_unary)
{
    return oar_clamp(c->tape, in[0], c->real[0], c->real[1]);
}

oar_dtensor oar_dtensor_clamp(oar_tape *tape, oar_dtensor a, double low,
                              double high)
{
    oari_rule_call c = { .rule = &rule_clamp,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .real = { low, high } };
    return oari_rule_run(&c, NULL);
}

RULE(cast, form_cast)
{
    return oar_cast(c->tape, in[0], (oar_dtype)c->number[0]);
}

oar_dtensor oar_dtensor_cast(oar_tape *tape, oar_dtensor a, oar_dtype dtype)
{
    oari_rule_call c = { .rule = &rule_cast,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .numbers = 1,
                         .number = { dtype } };
    return oari_rule_run(&c, NULL);
}

RULE(where, form_where)
{
    return oar_where(c->tape, in[0], in[1], in[2]);
}

oar_dtensor oar_dtensor_where(oar_tape *tape, oar_dtensor mask, oar_dtensor a,
                              oar_dtensor b)
{
    oari_rule_call c = {
        .rule = &rule_where, .tape = tape, .inputs = 3, .in = { mask, a, b }
    };
    return oari_rule_run(&c, NULL);
}

RULE(where_scalar, oari_form_broadcast)
{
    return oar_where_scalar(c->tape, in[0], in[1], c->real[0]);
}

oar_dtensor oar_dtensor_where_scalar(oar_tape *tape, oar_dtensor mask,
                                     oar_dtensor a, double number)
{
    oari_rule_call c = { .rule = &rule_where_scalar,
                         .tape = tape,
                         .inputs = 2,
                         .in = { mask, a },
                         .real = { number } };
    return oari_rule_run(&c, NULL);
}

RULE(masked_fill, form_fill)
{
    return oar_masked_fill(c->tape, in[0], in[1], c->real[0]);
}

oar_dtensor oar_dtensor_masked_fill(oar_tape *tape, oar_dtensor a,
                                    oar_dtensor mask, double value)
{
    oari_rule_call c = { .rule = &rule_masked_fill,
                         .tape = tape,
                         .inputs = 2,
                         .in = { a, mask },
                         .real = { value } };
    return oari_rule_run(&c, NULL);
}

/* Returns the diagonal as the local part sees it. */
static int64_t local_diagonal(const oari_rule_call *c, const oari_decision *d)
{
    const oari_box *box = &d->out[0]->held.box;

    return c->number[0] + box->offset[box->ndim - 2] -
           box->offset[box->ndim - 1];
}

RULE(tril, form_triangle)
{
    return oar_tril(c->tape, in[0], local_diagonal(c, d));
}

RULE(triu, form_triangle)
{
    return oar_triu(c->tape, in[0], local_diagonal(c, d));
}

static oar_dtensor run_triangle(oar_tape *tape, const oari_rule *rule,
                                oar_dtensor a, int64_t diagonal)
{
    oari_rule_call c = { .rule = rule,
                         .tape = tape,
                         .inputs = 1,
                         .in = { a },
                         .numbers = 1,
                         .number = { diagonal } };
    return oari_rule_run(&c, NULL);
}

oar_dtensor oar_dtensor_tril(oar_tape *tape, oar_dtensor a, int64_t diagonal)
{
    return run_triangle(tape, &rule_tril, a, diagonal);
}

oar_dtensor oar_dtensor_triu(oar_tape *tape, oar_dtensor a, int64_t diagonal)
{
    return run_triangle(tape, &rule_triu, a, diagonal);
}
