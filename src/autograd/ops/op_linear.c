/* SPDX-License-Identifier: Apache-2.0 */
/* op_linear: rows times a matrix of weights, and a function of the result. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/saved.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/cuda_kernels.h"

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

/* Computes the gradient of the weight, which is input `weight`, some rows first
 * if a hook wants to hear of them before the rest. */
static oar_status weight_back(oari_node *node, int weight, const oari_array *to,
                              int add)
{
    int64_t rows = to->at.shape.dim[0], width = to->at.shape.dim[1];
    int64_t first = 0, end, next;
    oari_array grad = transposed(as_matrix(oari_array_of(node->grad)));
    oari_array x = rows_of(node->saved[X]), part, into;

    OARI_TRY(oari_part_done(node, weight, 0, rows * width, &next));
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
            oari_part_done(node, weight, end * width, rows * width, &next));
        first = end;
    }
    return OAR_OK;
}

static int takes_slope(const oari_node *node, int i, int add);
static oar_status multiply_slope(oari_node *from, const oari_array *to,
                                 const oari_array *grad,
                                 const oari_array *weight);

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
        OARI_TRY(weight_back(node, WEIGHT, to, add));
        oari_unsave(node, X);
        return OAR_OK;
    }
    other = oari_array_of(node->saved[WEIGHT]);
    into = as_matrix(*to);
    if (takes_slope(node, i, add)) {
        oar_status status =
            multiply_slope(node->input[i].node, &into, &grad, &other);

        if (status != OAR_E_UNSUPPORTED)
            return status;
    }
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

/* ---- with a function of the result --------------------------------------- */

/* On a GPU: one operation, which saves what the function is of. Inputs; saved
 * are x and the weight, as above, and PRE. The bias comes first, because its
 * gradient is made in the pass that makes the gradient of PRE, in place of that
 * of the result. */
enum { ACT_BIAS, ACT_WEIGHT, ACT_X, PRE = X + 1 };

/* Makes node->grad the gradient of PRE, and adds up its columns if asked. */
static oar_status slope_grad(oari_node *node, const oari_array *sums, int add)
{
    oari_pool *pool = &node->tape->pool;
    oari_array grad, pre;
    oari_cuda_act_grad g = { .kind = (oari_unary_kind)node->extra.act.kind,
                             .grad = &grad,
                             .pre = &pre,
                             .to = &grad,
                             .sums = sums,
                             .add = add };

    if (!node->extra.act.sloped) {
        OARI_TRY(oari_own_grad(node));
        grad = as_matrix(oari_array_of(node->grad));
        pre = as_matrix(oari_array_of(node->saved[PRE]));
        OARI_TRY(oari_cuda_act_back(pool, &g));
        node->extra.act.sloped = 1;
    } else if (sums != NULL) {
        grad = as_matrix(oari_array_of(node->grad));
        OARI_TRY(oari_cuda_sum_to(pool, sums, add, &grad));
    }
    oari_unsave(node, PRE);
    return OAR_OK;
}

static oar_status linear_act_back(oari_node *node, int i, const oari_array *to,
                                  int add)
{
    oari_array grad, weight, into = as_matrix(*to);

    OARI_TRY(slope_grad(node, i == ACT_BIAS ? to : NULL, add));
    if (i == ACT_BIAS)
        return OAR_OK;
    if (i == ACT_WEIGHT) {
        OARI_TRY(weight_back(node, ACT_WEIGHT, to, add));
        oari_unsave(node, X);
        return OAR_OK;
    }
    grad = as_matrix(oari_array_of(node->grad));
    weight = oari_array_of(node->saved[WEIGHT]);
    return OARI_KERNEL(&into, matmul, &node->tape->pool, &into, add, &grad,
                       &weight);
}

static oar_status linear_act_rebuild(oari_node *node, const oari_array *to)
{
    oari_array pre = oari_array_of(node->saved[PRE]);

    return oari_cuda_act((oari_unary_kind)node->extra.act.kind, to, &pre);
}

static const oari_op_class linear_act_op = {
    .name = "linear_act",
    .backward = linear_act_back,
    .reads = { [ACT_BIAS] = 1u << PRE,
               [ACT_WEIGHT] = 1u << X | 1u << PRE,
               [ACT_X] = 1u << WEIGHT | 1u << PRE },
    .widens = 1,
    .rebuild = linear_act_rebuild,
    .rebuild_from = 1u << PRE
};

/* Whether input i of a linear layer is such a result, which nothing else gives
 * a gradient: then the product that makes it may be that of PRE at once. */
static int takes_slope(const oari_node *node, int i, int add)
{
    const oari_edge *edge = &node->input[i];

    return !add && edge->kind == OARI_EDGE_NODE &&
           edge->node->op == &linear_act_op && edge->node->reached == 1 &&
           !edge->node->extra.act.sloped;
}

static oar_status multiply_slope(oari_node *from, const oari_array *to,
                                 const oari_array *grad,
                                 const oari_array *weight)
{
    oari_array pre = as_matrix(oari_array_of(from->saved[PRE]));
    oar_status status = oari_cuda_matmul_slope(
        (oari_unary_kind)from->extra.act.kind, to, &pre, grad, weight);

    from->extra.act.sloped = status == OAR_OK;
    return status;
}

/* out = the function of pre = the product. */
static oar_status compute_act(oari_pool *pool, oari_unary_kind kind,
                              const oar_tensor *out, const oar_tensor *pre,
                              const oar_tensor *rows, const oar_tensor *weight,
                              const oar_tensor *bias)
{
    oari_array to = as_matrix(oari_array_of(out)), b;
    oari_array mid = as_matrix(oari_array_of(pre)), from = rows_of(rows);
    oari_array w = oari_array_of(weight);

    if (bias != NULL)
        b = oari_array_of(bias);
    return oari_cuda_linear_act(pool, kind, &to, &mid, &from, &w,
                                bias != NULL ? &b : NULL);
}

static oar_tensor *fused_linear_act(oar_tape *tape, oar_tensor *x,
                                    oar_tensor *weight, oar_tensor *bias,
                                    oari_unary_kind kind)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_device device = oari_device_of(x);
    oar_tensor *rows = make_rows(pool, x), *pre = NULL, *out = NULL;
    oar_shape shape = x->at.shape;

    shape.dim[shape.ndim - 1] = weight->at.shape.dim[0];
    if (rows != NULL)
        pre = oari_tensor_make_on(pool, device, x->dtype, shape);
    if (pre != NULL)
        out = oari_tensor_make_on(pool, device, x->dtype, shape);
    if (out != NULL)
        out = oari_settle(
            pool, out, compute_act(pool, kind, out, pre, rows, weight, bias));
    out = oari_emit(
        tape, out,
        &(oari_node_record){
            .op = &linear_act_op,
            .inputs = 3,
            .input = { [ACT_BIAS] = bias, [ACT_WEIGHT] = weight, [ACT_X] = x },
            .saved = { [WEIGHT] = oari_grad_wanted(tape, x) ? weight : NULL,
                       [X] = oari_grad_wanted(tape, weight) ? rows : NULL,
                       [PRE] = pre },
            .extra = { .act = { .kind = (int)kind } } });
    oari_tensor_drop(pool, pre);
    oari_tensor_drop(pool, rows);
    return out;
}

#define CASE(kind, name) [kind] = { OARI_UNARY_##name, oar_##name }

static const struct act {
    oari_unary_kind kind;
    oar_tensor *(*apply)(oar_tape *tape, oar_tensor *a);
} acts[] = { CASE(OAR_RELU, relu),           CASE(OAR_GELU, gelu),
             CASE(OAR_GELU_TANH, gelu_tanh), CASE(OAR_SILU, silu),
             CASE(OAR_TANH, tanh),           CASE(OAR_SIGMOID, sigmoid),
             CASE(OAR_SOFTPLUS, softplus) };

oar_tensor *oar_linear_act(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                           oar_tensor *bias, oar_activation kind)
{
    oar_tensor *pre, *out;

    if ((int)kind < OAR_RELU || (int)kind > OAR_SOFTPLUS) {
        oari_fail(OAR_E_ARG, "linear_act: there is no activation %d",
                  (int)kind);
        return NULL;
    }
    if (check_linear(tape, x, weight, bias) != OAR_OK)
        return NULL;
    if (oari_device_of(x).kind == OAR_CUDA &&
        oari_cuda_act_kind(acts[kind].kind) >= 0)
        return fused_linear_act(tape, x, weight, bias, acts[kind].kind);
    pre = oar_linear(tape, x, weight, bias);
    if (pre == NULL)
        return NULL;
    out = acts[kind].apply(tape, pre);
    if (tape == NULL)
        oar_tensor_release(pre);
    return out;
}
