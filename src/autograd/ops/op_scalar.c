/* SPDX-License-Identifier: Apache-2.0 */
/* op_scalar: functions of an element and a number. On integers the number is
 * whole. */
#include <math.h>

#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

static oar_status check_scalar(const char *name, oar_tape *tape, oar_tensor *a,
                               double number)
{
    OARI_TRY(oari_check_inputs(name, tape, 1, &a));
    OARI_TRY(oari_check_number(name, a));
    if (oari_dtype_is_float(a->dtype) ||
        (number == floor(number) && fabs(number) < 0x1p63))
        return OAR_OK;
    return oari_fail(
        OAR_E_ARG, "%s of %s %s with %g: integers take whole numbers", name,
        oar_dtype_name(a->dtype), oari_shape_text(a->at.shape).text, number);
}

/* ---- scale --------------------------------------------------------------- */

static oar_status scale_back(oari_node *node, int i, const oari_array *to,
                             int add)
{
    oari_array grad = oari_array_of(node->grad);

    return OARI_KERNEL(to, scale, to, add, &grad, node->extra.factor);
}

static const oari_op_class scale_op = { .name = "scale",
                                        .backward = scale_back,
                                        .in_place = 1 };

oar_tensor *oar_scale(oar_tape *tape, oar_tensor *a, double factor)
{
    oar_tensor *out;
    oari_array to, from;

    if (check_scalar("scale", tape, a, factor) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    if (OARI_KERNEL(&to, scale, &to, 0, &from, factor) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = &scale_op,
                                          .inputs = 1,
                                          .input = { a },
                                          .extra = { .factor = factor } });
}

/* ---- shift, power, clamp ------------------------------------------------- */

static oar_status scalar_back(oari_node *node, int i, const oari_array *to,
                              int add);

#define OP(text)                                               \
    {                                                          \
        .name = (text), .backward = scalar_back, .in_place = 1 \
    }

static const oari_op_class scalar_ops[OARI_SCALAR_COUNT] = {
    [OARI_SHIFT] = OP("shift"),
    [OARI_POWER] = OP("power"),
    [OARI_CLAMP] = OP("clamp"),
    [OARI_LEAKY_RELU] = OP("leaky_relu"),
};

static oar_status scalar_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_scalar_kind kind = (oari_scalar_kind)(node->op - scalar_ops);
    oari_array grad = oari_array_of(node->grad), saved = grad;

    if (kind == OARI_SHIFT) {
        return OARI_KERNEL(to, scale, to, add, &grad, 1);
    }
    saved = oari_array_of(node->saved[0]);
    return OARI_KERNEL(to, scalar_back, kind, to, add, &grad, &saved,
                       node->extra.number);
}

static oar_tensor *apply_scalar(oar_tape *tape, oar_tensor *a,
                                oari_scalar_kind kind, double first,
                                double second)
{
    double number[2] = { first, second };
    oar_tensor *out = oari_tensor_make_on(
        oari_tape_pool(tape), oari_device_of(a), a->dtype, a->at.shape);
    oari_array to, from;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    if (OARI_KERNEL(&to, scalar, kind, &to, &from, number) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(
        tape, out,
        &(oari_node_record){ .op = &scalar_ops[kind],
                             .inputs = 1,
                             .input = { a },
                             .saved = { kind == OARI_SHIFT ? NULL : a },
                             .extra = { .number = { first, second } } });
}

oar_tensor *oar_shift(oar_tape *tape, oar_tensor *a, double offset)
{
    if (check_scalar("shift", tape, a, offset) != OAR_OK)
        return NULL;
    return apply_scalar(tape, a, OARI_SHIFT, offset, 0);
}

oar_tensor *oar_power(oar_tape *tape, oar_tensor *a, double exponent)
{
    if (check_scalar("power", tape, a, exponent) != OAR_OK)
        return NULL;
    if (exponent < 0 && !oari_dtype_is_float(a->dtype)) {
        oari_fail(OAR_E_ARG,
                  "power of %s %s with %g: an integer to a negative power",
                  oar_dtype_name(a->dtype), oari_shape_text(a->at.shape).text,
                  exponent);
        return NULL;
    }
    return apply_scalar(tape, a, OARI_POWER, exponent, 0);
}

/* Bounds may be infinite, and on integers between two of them. */
oar_tensor *oar_clamp(oar_tape *tape, oar_tensor *a, double low, double high)
{
    if (check_scalar("clamp", tape, a, 0) != OAR_OK)
        return NULL;
    if (isnan(low) || isnan(high)) {
        oari_fail(OAR_E_ARG, "clamp of %s to [%g, %g]: NaN is no bound",
                  oari_shape_text(a->at.shape).text, low, high);
        return NULL;
    }
    return apply_scalar(tape, a, OARI_CLAMP, low, high);
}

oar_tensor *oar_leaky_relu(oar_tape *tape, oar_tensor *a, double slope)
{
    if (oari_check_inputs("leaky_relu", tape, 1, &a) != OAR_OK ||
        oari_check_float("leaky_relu", a) != OAR_OK)
        return NULL;
    return apply_scalar(tape, a, OARI_LEAKY_RELU, slope, 0);
}

/* ---- minimum and maximum ------------------------------------------------- */

/* One element of this dtype, as an array. */
typedef struct element {
    uint64_t bits;
    oari_array array;
} element;

static void set_element(element *e, oar_dtype dtype, double number)
{
    e->array = oari_host_array(&e->bits, dtype, OAR_SCALAR);
    oari_fill(&e->array, number);
}

static oar_status bound_back(oari_node *node, int i, const oari_array *to,
                             int add);

static const oari_op_class bound_ops[OARI_BINARY_COUNT] = {
    [OARI_MINIMUM] = { .name = "minimum_scalar",
                       .backward = bound_back,
                       .in_place = 1 },
    [OARI_MAXIMUM] = { .name = "maximum_scalar",
                       .backward = bound_back,
                       .in_place = 1 },
};

static oar_status bound_back(oari_node *node, int i, const oari_array *to,
                             int add)
{
    oari_binary_kind kind = (oari_binary_kind)(node->op - bound_ops);
    oari_array grad = oari_array_of(node->grad);
    oari_array a = oari_array_of(node->saved[0]);
    element bound;

    set_element(&bound, a.dtype, node->extra.factor);
    return OARI_KERNEL(to, binary_back, kind, 0, to, add, &grad, &a,
                       &bound.array);
}

static oar_tensor *apply_bound(oar_tape *tape, oar_tensor *a, double number,
                               oari_binary_kind kind)
{
    const oari_op_class *op = &bound_ops[kind];
    oar_tensor *out;
    oari_array to, from;
    element bound;

    if (check_scalar(op->name, tape, a, number) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    set_element(&bound, a->dtype, number);
    if (OARI_KERNEL(&to, binary, kind, &to, &from, &bound.array) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = op,
                                          .inputs = 1,
                                          .input = { a },
                                          .saved = { a },
                                          .extra = { .factor = number } });
}

oar_tensor *oar_minimum_scalar(oar_tape *tape, oar_tensor *a, double number)
{
    return apply_bound(tape, a, number, OARI_MINIMUM);
}

oar_tensor *oar_maximum_scalar(oar_tape *tape, oar_tensor *a, double number)
{
    return apply_bound(tape, a, number, OARI_MAXIMUM);
}
