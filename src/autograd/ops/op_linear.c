/* SPDX-License-Identifier: Apache-2.0 */
/* op_linear: rows times a matrix of weights. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/saved.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

static oari_array transposed(oari_array a)
{
    a.at = oari_layout_transpose(a.at, 0, 1);
    return a;
}

/* ---- linear -------------------------------------------------------------- */

/* Inputs, and what is saved of them. x comes last: once the weight's gradient
 * is there, x itself is not needed any more, and goes before the memory for its
 * gradient is asked for. */
enum { WEIGHT, BIAS, X };

enum { ROWS = 16 }; /* computed at once, or a multiple: fewer are slow */

/* An array as a matrix of rows of its last dim. Row-major. */
static oari_array as_matrix(oari_array a)
{
    int64_t width = a.at.shape.dim[a.at.shape.ndim - 1], offset = a.at.offset;
    int64_t rows = 1;

    for (int i = 0; i + 1 < a.at.shape.ndim; i++)
        rows *= a.at.shape.dim[i];
    a.at = oari_layout_rows(OAR_SHAPE(rows, width));
    a.at.offset = offset;
    return a;
}

/* The same of a tensor whose strides may leave gaps between the rows. */
static oari_array rows_of(const oar_tensor *x)
{
    oari_array a = oari_array_of(x);

    if (x->at.shape.ndim != 2)
        oari_layout_reshape(&x->at, as_matrix(a).at.shape, &a.at);
    return a;
}

/* to = the bias in every row, plus the product. */
static oar_status multiply_rows(oari_pool *pool, const oari_array *to,
                                const oar_tensor *rows,
                                const oar_tensor *weight,
                                const oar_tensor *bias)
{
    oari_array into = as_matrix(*to), from = rows_of(rows);
    oari_array plain = oari_array_of(weight), w = transposed(plain), b;
    const oari_kernel_table *kernels = oari_kernels_on(into.device);

    if (bias != NULL)
        b = oari_array_of(bias);
    if (kernels->linear != NULL)
        return kernels->linear(pool, &into, &from, &plain,
                               bias != NULL ? &b : NULL);
    if (bias != NULL) {
        OARI_TRY(OARI_KERNEL(&into, copy, &into, &b));
    }
    return OARI_KERNEL(&into, matmul, pool, &into, bias != NULL, &from, &w);
}

static oar_status linear_rebuild(oari_node *node, const oari_array *to)
{
    return multiply_rows(&node->tape->pool, to, node->saved[X],
                         node->saved[WEIGHT], node->saved[BIAS]);
}

/* Rows [first, end) of a matrix. */
static oari_array row_range(oari_array a, int64_t first, int64_t end)
{
    a.at.offset += first * a.at.stride[0];
    a.at.shape.dim[0] = end - first;
    return a;
}

/* Computes the weight's gradient, some rows first if a hook wants to hear of
 * them before the rest. */
static oar_status weight_back(oari_node *node, const oari_array *to, int add)
{
    int64_t rows = to->at.shape.dim[0], width = to->at.shape.dim[1];
    int64_t first = 0, end, next;
    oari_array grad = transposed(as_matrix(oari_array_of(node->grad)));
    oari_array x = rows_of(node->saved[X]), part, into;

    OARI_TRY(oari_part_done(node, WEIGHT, 0, rows * width, &next));
    while (first < rows) {
        end = rows;
        if (next > first * width) /* the row by which `next` elements exist */
            end = ((next + width - 1) / width + ROWS - 1) / ROWS * ROWS;
        end = end < rows ? end : rows;
        into = row_range(*to, first, end);
        part = row_range(grad, first, end);
        OARI_TRY(OARI_KERNEL(&into, matmul, &node->tape->pool, &into, add,
                             &part, &x));
        OARI_TRY(
            oari_part_done(node, WEIGHT, end * width, rows * width, &next));
        first = end;
    }
    return OAR_OK;
}

/* y = x w' + b:  dx = dy w,  dw = dy' x,  db = the column sums of dy. */
static oar_status linear_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_pool *pool = &node->tape->pool;
    oari_array grad = as_matrix(oari_array_of(node->grad)), other, into;

    if (i == BIAS) {
        oari_operands operands = { .pool = pool };
        const oari_array *g = oari_operands_in(&operands, &grad);
        const oari_array *y = oari_operands_out(&operands, to, add);

        if (operands.status == OAR_OK)
            operands.status = OARI_KERNEL(y, sum_columns, pool, y, add, g);
        return oari_operands_finish(&operands);
    }
    if (i == WEIGHT) {
        OARI_TRY(weight_back(node, to, add));
        oari_unsave(node, X);
        return OAR_OK;
    }
    other = oari_array_of(node->saved[WEIGHT]);
    into = as_matrix(*to);
    return OARI_KERNEL(&into, matmul, pool, &into, add, &grad, &other);
}

static const oari_op_class linear_op = { .name = "linear",
                                         .backward = linear_back,
                                         .reads = { [WEIGHT] = 1u << X,
                                                    [BIAS] = OARI_READS_NONE,
                                                    [X] = 1u << WEIGHT },
                                         .widens = 1,
                                         .rebuild = linear_rebuild,
                                         .rebuild_from = 1u << X | 1u << WEIGHT,
                                         .costly = 1 };

static oar_status linear_mismatch(const oar_tensor *x, const oar_tensor *weight,
                                  const oar_tensor *bias, const char *why)
{
    return oari_fail(OAR_E_SHAPE, "linear of x %s, weight %s, bias %s: %s",
                     oari_shape_text(x->at.shape).text,
                     oari_shape_text(weight->at.shape).text,
                     bias ? oari_shape_text(bias->at.shape).text : "none", why);
}

static oar_status check_linear(oar_tape *tape, oar_tensor *x,
                               oar_tensor *weight, oar_tensor *bias)
{
    oar_tensor *in[] = { x, weight, bias };
    oar_shape xs = oar_tensor_shape(x), ws = oar_tensor_shape(weight);

    OARI_TRY(oari_check_inputs("linear", tape, bias != NULL ? 3 : 2, in));
    OARI_TRY(oari_check_same_dtype("linear", x, weight));
    if (bias != NULL)
        OARI_TRY(oari_check_same_dtype("linear", x, bias));
    OARI_TRY(oari_check_float("linear", x));
    if (ws.ndim != 2)
        return linear_mismatch(x, weight, bias, "weight needs two dims");
    if (xs.ndim < 1 || xs.dim[xs.ndim - 1] != ws.dim[1])
        return linear_mismatch(x, weight, bias,
                               "the last dims of x and weight differ");
    if (bias != NULL &&
        (bias->at.shape.ndim != 1 || bias->at.shape.dim[0] != ws.dim[0]))
        return linear_mismatch(
            x, weight, bias, "bias needs as many elements as weight has rows");
    return OAR_OK;
}

/* x itself if its strides let it be seen as a matrix, else a copy. Gives a
 * reference. */
static oar_tensor *make_rows(oari_pool *pool, oar_tensor *x)
{
    oari_array from = oari_array_of(x), to;
    oar_shape shape = as_matrix(from).at.shape;
    oari_layout at;
    oar_tensor *copy;

    if (x->at.shape.ndim == 2 || oari_layout_reshape(&x->at, shape, &at))
        return oar_tensor_retain(x);
    copy = oari_tensor_make_on(pool, oari_device_of(x), x->dtype, shape);
    if (copy == NULL)
        return NULL;
    to = oari_array_of(copy);
    to.at = oari_layout_rows(x->at.shape);
    return oari_settle(pool, copy, OARI_KERNEL(&to, copy, &to, &from));
}

/* The result, not yet recorded. */
static oar_tensor *compute_linear(oari_pool *pool, const oar_tensor *x,
                                  const oar_tensor *rows,
                                  const oar_tensor *weight,
                                  const oar_tensor *bias)
{
    oar_shape shape = x->at.shape;
    oar_tensor *out;
    oari_array to;

    shape.dim[shape.ndim - 1] = weight->at.shape.dim[0];
    out = oari_tensor_make_on(pool, oari_device_of(x), x->dtype, shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    if (multiply_rows(pool, &to, rows, weight, bias) == OAR_OK)
        return out;
    oari_tensor_drop(pool, out);
    return NULL;
}

oar_tensor *oar_linear(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                       oar_tensor *bias)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *rows, *out;

    if (check_linear(tape, x, weight, bias) != OAR_OK)
        return NULL;
    rows = make_rows(pool, x);
    if (rows == NULL)
        return NULL;
    out = compute_linear(pool, x, rows, weight, bias);
    out = oari_emit(
        tape, out,
        &(oari_node_record){
            .op = &linear_op,
            .inputs = 3,
            .input = { [WEIGHT] = weight, [BIAS] = bias, [X] = x },
            .saved = { [WEIGHT] = oari_grad_wanted(tape, x) ? weight : NULL,
                       [BIAS] = bias,
                       [X] = oari_grad_wanted(tape, weight) ? rows : NULL } });
    oari_tensor_drop(pool, rows);
    return out;
}
