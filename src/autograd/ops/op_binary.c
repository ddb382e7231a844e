/* SPDX-License-Identifier: Apache-2.0 */
/* op_binary: functions of two elements, with broadcasting. */
#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/saved.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/kernel_table.h"
#include "tensor/cpu/walk.h"

/* What the gradient of each input is computed from. */
enum { NEITHER = OARI_READS_NONE, LEFT = 1, RIGHT = 2, BOTH = 3 };

static oar_status binary_back(oari_node *node, int i, const oari_array *to,
                              int add);

#define OP(text, left, right)                                              \
    {                                                                      \
        .name = (text), .backward = binary_back, .in_place = 1, .reads = { \
            left,                                                          \
            right                                                          \
        }                                                                  \
    }

static const oari_op_class binary_ops[OARI_BINARY_COUNT] = {
    [OARI_ADD] = { .name = "add",
                   .backward = binary_back,
                   .reads = { NEITHER, NEITHER },
                   .in_place = 1,
                   .passes = 1 },
    [OARI_SUB] = OP("sub", NEITHER, NEITHER),
    [OARI_MUL] = OP("mul", RIGHT, LEFT),
    [OARI_DIV] = OP("div", RIGHT, BOTH),
    [OARI_POW] = OP("pow", BOTH, BOTH),
    [OARI_MINIMUM] = OP("minimum", BOTH, BOTH),
    [OARI_MAXIMUM] = OP("maximum", BOTH, BOTH),
};

static oar_status binary_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_binary_kind kind = (oari_binary_kind)(node->op - binary_ops);
    oari_array grad = oari_array_of(node->grad), a = grad, b = grad, all;
    oari_pool *pool = &node->tape->pool;
    oar_tensor *scratch;
    oar_status status;

    if (kind == OARI_ADD || (kind == OARI_SUB && i == 0))
        return OARI_KERNEL(to, sum_to, pool, to, add, &grad);
    if (node->saved[0] != NULL)
        a = oari_array_of(node->saved[0]);
    if (node->saved[1] != NULL)
        b = oari_array_of(node->saved[1]);
    if (!oari_shape_equal(to->at.shape, grad.at.shape)) {
        /* First in the shape of the result, halves as f32; then summed over
         * the dims that were broadcast. */
        scratch = oari_tensor_make_on(pool, to->device,
                                      oari_row_dtype(to->dtype), grad.at.shape);
        if (scratch == NULL)
            return OAR_E_NOMEM;
        all = oari_array_of(scratch);
        status =
            OARI_KERNEL(&all, binary_back, kind, i, &all, 0, &grad, &a, &b);
        if (status == OAR_OK)
            status = OARI_KERNEL(to, sum_to, pool, to, add, &all);
        oari_tensor_drop(pool, scratch);
        return status;
    }
    return OARI_KERNEL(to, binary_back, kind, i, to, add, &grad, &a, &b);
}

static oar_status pair_mismatch(oar_status status, const char *name,
                                const oar_tensor *a, const oar_tensor *b,
                                const char *why)
{
    return oari_fail(
        status, "%s of %s %s and %s %s: %s", name, oar_dtype_name(a->dtype),
        oari_shape_text(a->at.shape).text, oar_dtype_name(b->dtype),
        oari_shape_text(b->at.shape).text, why);
}

static oar_status check_binary(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                               oari_binary_kind kind, oar_shape *shape)
{
    const char *name = binary_ops[kind].name;
    oari_array second;
    oari_signs signs;

    OARI_TRY(oari_check_inputs(name, tape, 2, (oar_tensor *[]){ a, b }));
    OARI_TRY(oari_check_same_dtype(name, a, b));
    OARI_TRY(oari_check_number(name, a));
    if (!oari_shape_broadcast(a->at.shape, b->at.shape, shape))
        return oari_fail(OAR_E_SHAPE,
                         "%s of %s and %s: the shapes do not broadcast", name,
                         oari_shape_text(a->at.shape).text,
                         oari_shape_text(b->at.shape).text);
    if (oari_dtype_is_float(b->dtype) ||
        (kind != OARI_DIV && kind != OARI_POW) ||
        oari_device_of(b).kind != OAR_CPU) /* its kernel checks */
        return OAR_OK;
    second = oari_array_of(b); /* floats answer with infinity or NaN */
    signs = oari_signs_of(&second);
    if (kind == OARI_DIV && signs.zero)
        return pair_mismatch(OAR_E_ARG, "div", a, b, "a division by zero");
    if (kind == OARI_POW && signs.negative)
        return pair_mismatch(OAR_E_ARG, "pow", a, b,
                             "an integer to a negative power");
    return OAR_OK;
}

/* The result goes to the memory of over, a or b, if that is not NULL. */
static oar_tensor *apply_binary(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                                oari_binary_kind kind, const oar_tensor *over)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;
    oari_array to, x, y;
    oar_shape shape;
    int need;

    if (check_binary(tape, a, b, kind, &shape) != OAR_OK)
        return NULL;
    x = oari_array_of(a);
    y = oari_array_of(b);
    out = over != NULL
              ? oari_tensor_over(pool, over->storage, over->dtype, &over->at)
              : oari_tensor_make_on(pool, oari_device_of(a), a->dtype, shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    if (OARI_KERNEL(&to, binary, kind, &to, &x, &y) != OAR_OK)
        return oari_abandon(tape, out);
    need = (oari_grad_wanted(tape, a) ? binary_ops[kind].reads[0] : NEITHER) |
           (oari_grad_wanted(tape, b) ? binary_ops[kind].reads[1] : NEITHER);
    return oari_emit(
        tape, out,
        &(oari_node_record){
            .op = &binary_ops[kind],
            .inputs = 2,
            .input = { a, b },
            .saved = { need & LEFT ? a : NULL, need & RIGHT ? b : NULL } });
}

oar_tensor *oari_add_over(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    oar_tensor *out;
    oar_shape shape;
    int fits;

    if (a == NULL || b == NULL) {
        oari_null("add");
        return NULL;
    }
    fits = a != b && oari_unshared(tape, b) &&
           oari_shape_broadcast(a->at.shape, b->at.shape, &shape) &&
           oari_shape_equal(b->at.shape, shape);
    out = apply_binary(tape, a, b, OARI_ADD, fits ? b : NULL);
    oari_tape_drop(tape, b);
    return out;
}

oar_tensor *oar_add(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    return apply_binary(tape, a, b, OARI_ADD, NULL);
}

#define BINARY(name, kind)                                         \
    oar_tensor *name(oar_tape *tape, oar_tensor *a, oar_tensor *b) \
    {                                                              \
        return apply_binary(tape, a, b, kind, NULL);               \
    }

BINARY(oar_sub, OARI_SUB)
BINARY(oar_mul, OARI_MUL)
BINARY(oar_div, OARI_DIV)
BINARY(oar_pow, OARI_POW)
BINARY(oar_minimum, OARI_MINIMUM)
BINARY(oar_maximum, OARI_MAXIMUM)
