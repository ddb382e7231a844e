/* SPDX-License-Identifier: Apache-2.0 */
/* op_norm: layer norm and RMS norm, over the last dim. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/fused_backward.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/cuda_kernels.h"

enum { X, WEIGHT, BIAS };    /* inputs, and what is saved of them */
enum { MEAN = 3, RSTD = 4 }; /* saved too */

static const oari_array *tensor_or_null(const oar_tensor *t, oari_array *a)
{
    if (t == NULL)
        return NULL;
    *a = oari_array_of(t);
    return a;
}

/* Computes all gradients at once: that of x goes to dx, which may be NULL, the
 * others to node->fused_grad. */
static oar_status norm_back_all(oari_node *node, const oari_array *dx, int add)
{
    int64_t width = oari_rows_of(node->saved[X]->at.shape).width;
    oar_dtype dtype = node->saved[X]->dtype, work = oari_work_dtype(dtype);
    oari_operands operands = { .pool = &node->tape->pool };
    oari_array mean, rstd, dweight, dbias;
    oari_norm_back n = { .add = add };

    OARI_TRY(
        oari_fused_grad_open(node, WEIGHT, dtype, OAR_SHAPE(width), &dweight));
    OARI_TRY(oari_fused_grad_open(node, BIAS, dtype, OAR_SHAPE(width), &dbias));
    n.dweight = node->fused_grad[WEIGHT] != NULL ? &dweight : NULL;
    n.dbias = node->fused_grad[BIAS] != NULL ? &dbias : NULL;
    n.mean = tensor_or_null(node->saved[MEAN], &mean);
    n.rstd = tensor_or_null(node->saved[RSTD], &rstd);
    n.grad = oari_operands_tensor(&operands, node->grad);
    n.x = oari_operands_tensor(&operands, node->saved[X]);
    if (dx != NULL) /* the others do not depend on it */
        n.weight = oari_operands_tensor(&operands, node->saved[WEIGHT]);
    n.dx = oari_operands_out(&operands, dx, add);
    if (oari_device_of(node->saved[X]).kind == OAR_CUDA) {
        n.sums = oari_operands_scratch(
            &operands, n.x->device, work,
            oari_cuda_norm_sums(oari_rows_of(node->saved[X]->at.shape)));
    } else {
        n.scratch =
            oari_operands_scratch(&operands, n.x->device, work, 4 * width);
        n.sums =
            oari_operands_scratch(&operands, n.x->device, OAR_F64, 2 * width);
    }
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(n.x, layer_norm_back, &n);
    return oari_operands_finish(&operands);
}

static oar_status norm_rebuild(oari_node *node, const oari_array *to)
{
    oari_array rstd = oari_array_of(node->saved[RSTD]), mean;
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *x = oari_operands_tensor(&operands, node->saved[X]);
    const oari_array *w = oari_operands_tensor(&operands, node->saved[WEIGHT]);
    const oari_array *b = oari_operands_tensor(&operands, node->saved[BIAS]);
    const oari_array *y = oari_operands_out(&operands, to, 0);

    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, layer_norm_again, y,
                                      tensor_or_null(node->saved[MEAN], &mean),
                                      &rstd, x, w, b);
    return oari_operands_finish(&operands);
}

enum { READS = 1u << X | 1u << MEAN | 1u << RSTD };

#define OP(text)                                                        \
    {                                                                   \
        .name = (text), .fused_backward = norm_back_all, .in_place = 1, \
        .reads = { [X] = READS | 1u << WEIGHT,                          \
                   [WEIGHT] = READS,                                    \
                   [BIAS] = READS },                                    \
        .rebuild = norm_rebuild, .rebuild_from = 1u << X                \
    }
static const oari_op_class layer_norm_op = OP("layer_norm");
static const oari_op_class rms_norm_op = OP("rms_norm");

static oar_status check_param(const char *name, const oar_tensor *x,
                              const oar_tensor *param, const char *what)
{
    int64_t width = oari_rows_of(x->at.shape).width;

    if (param == NULL)
        return OAR_OK;
    if (param->dtype != OAR_F32 || !oari_dtype_is_half(x->dtype))
        OARI_TRY(oari_check_same_dtype(name, x, param));
    if (param->at.shape.ndim == 1 && param->at.shape.dim[0] == width)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of %s with %s %s: it is [%lld]", name,
                     oari_shape_text(x->at.shape).text, what,
                     oari_shape_text(param->at.shape).text, (long long)width);
}

static oar_status check_norm(const char *name, oar_tape *tape, oar_tensor *x,
                             oar_tensor *weight, oar_tensor *bias)
{
    oar_tensor *in[3] = { x };
    int count = 1;

    if (weight != NULL)
        in[count++] = weight;
    if (bias != NULL)
        in[count++] = bias;
    OARI_TRY(oari_check_inputs(name, tape, count, in));
    OARI_TRY(oari_check_float(name, x));
    if (x->at.shape.ndim == 0)
        return oari_fail(OAR_E_SHAPE, "%s of a single number", name);
    OARI_TRY(check_param(name, x, weight, "weight"));
    OARI_TRY(check_param(name, x, bias, "bias"));
    if (weight != NULL && bias != NULL)
        OARI_TRY(oari_check_same_dtype(name, weight, bias));
    return OAR_OK;
}

/* What an operation makes: the result, and numbers of each row. */
typedef struct made {
    oar_tensor *out, *mean, *rstd;
} made;

static oar_status normalise_rows(oari_pool *pool, const made *m,
                                 const oar_tensor *x, const oar_tensor *weight,
                                 const oar_tensor *bias, double eps)
{
    oari_array to = oari_array_of(m->out), rstd = oari_array_of(m->rstd), mean;
    oari_operands operands = { .pool = pool };
    const oari_array *a = oari_operands_tensor(&operands, x);
    const oari_array *w = oari_operands_tensor(&operands, weight);
    const oari_array *b = oari_operands_tensor(&operands, bias);
    const oari_array *y = oari_operands_out(&operands, &to, 0);

    if (operands.status == OAR_OK)
        operands.status =
            OARI_KERNEL(y, layer_norm, y, tensor_or_null(m->mean, &mean), &rstd,
                        a, w, b, eps);
    return oari_operands_finish(&operands);
}

static oar_tensor *norm(oar_tape *tape, const oari_op_class *op, oar_tensor *x,
                        oar_tensor *weight, oar_tensor *bias, double eps)
{
    oari_pool *pool = oari_tape_pool(tape);
    int centred = op == &layer_norm_op;
    made m = { .mean = NULL };
    oar_dtype work;
    oar_shape rows;

    if (check_norm(op->name, tape, x, weight, bias) != OAR_OK)
        return NULL;
    rows = OAR_SHAPE(oari_rows_of(x->at.shape).count);
    work = oari_work_dtype(x->dtype);
    m.rstd = oari_tensor_make_on(pool, oari_device_of(x), work, rows);
    if (m.rstd != NULL && centred)
        m.mean = oari_tensor_make_on(pool, oari_device_of(x), work, rows);
    if (m.rstd != NULL && (m.mean != NULL || !centred))
        m.out =
            oari_tensor_make_on(pool, oari_device_of(x), x->dtype, x->at.shape);
    if (m.out != NULL &&
        normalise_rows(pool, &m, x, weight, bias, eps) != OAR_OK) {
        oari_tensor_drop(pool, m.out);
        m.out = NULL;
    }
    m.out = oari_emit(
        tape, m.out,
        &(oari_node_record){ .op = op,
                             .inputs = 3,
                             .input = { x, weight, bias },
                             .saved = { x, weight, bias, m.mean, m.rstd } });
    oari_tensor_drop(pool, m.mean);
    oari_tensor_drop(pool, m.rstd);
    return m.out;
}

oar_tensor *oar_layer_norm(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                           oar_tensor *bias, double eps)
{
    return norm(tape, &layer_norm_op, x, weight, bias, eps);
}

oar_tensor *oar_rms_norm(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                         double eps)
{
    return norm(tape, &rms_norm_op, x, weight, NULL, eps);
}

/* ---- with a sum before it ------------------------------------------------ */

static oar_status sum_back(oari_node *node, int i, const oari_array *to,
                           int add)
{
    oari_array grad = oari_array_of(node->grad);

    return OARI_KERNEL(to, scale, to, add, &grad, 1);
}

static const oari_op_class sum_op = { .name = "add",
                                      .backward = sum_back,
                                      .reads = { OARI_READS_NONE,
                                                 OARI_READS_NONE },
                                      .passes = 1 };

/* Returns whether one kernel computes both: rows without gaps, on a GPU. */
static int is_one_pass(const oar_tensor *a, const oar_tensor *b,
                       const oar_tensor *weight, const oar_tensor *bias)
{
    return oari_device_of(a).kind == OAR_CUDA && a->dtype == b->dtype &&
           oari_shape_equal(a->at.shape, b->at.shape) &&
           oari_layout_is_rows(&a->at) && oari_layout_is_rows(&b->at) &&
           (weight == NULL || oari_layout_is_rows(&weight->at)) &&
           (bias == NULL || oari_layout_is_rows(&bias->at));
}

/* What both operations make. */
typedef struct both {
    oar_tensor *sum;
    made norm;
} both;

static oar_status make_both(oari_pool *pool, const oar_tensor *a, both *m)
{
    oar_device device = oari_device_of(a);
    oar_shape rows = OAR_SHAPE(oari_rows_of(a->at.shape).count);
    oar_dtype work = oari_work_dtype(a->dtype);

    m->sum = oari_tensor_make_on(pool, device, a->dtype, a->at.shape);
    m->norm.out = oari_tensor_make_on(pool, device, a->dtype, a->at.shape);
    m->norm.mean = oari_tensor_make_on(pool, device, work, rows);
    m->norm.rstd = oari_tensor_make_on(pool, device, work, rows);
    return m->sum != NULL && m->norm.out != NULL && m->norm.mean != NULL &&
                   m->norm.rstd != NULL
               ? OAR_OK
               : OAR_E_NOMEM;
}

static oar_status compute_both(const both *m, const oar_tensor *a,
                               const oar_tensor *b, const oar_tensor *weight,
                               const oar_tensor *bias, double eps)
{
    oari_array sum = oari_array_of(m->sum), to = oari_array_of(m->norm.out);
    oari_array mean = oari_array_of(m->norm.mean);
    oari_array rstd = oari_array_of(m->norm.rstd);
    oari_array x = oari_array_of(a), more = oari_array_of(b), w, bs;

    return oari_cuda_add_layer_norm(&sum, &to, &mean, &rstd, &x, &more,
                                    tensor_or_null(weight, &w),
                                    tensor_or_null(bias, &bs), eps);
}

/* In one pass. Gives a reference to the sum, or the tape's. */
static oar_tensor *add_and_norm(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                                oar_tensor *weight, oar_tensor *bias,
                                double eps, oar_tensor **sum)
{
    oari_pool *pool = oari_tape_pool(tape);
    both m = { .sum = NULL };
    oar_status status = make_both(pool, a, &m);

    if (status == OAR_OK)
        status = compute_both(&m, a, b, weight, bias, eps);
    *sum = oari_emit(
        tape, oari_settle(pool, m.sum, status),
        &(oari_node_record){ .op = &sum_op, .inputs = 2, .input = { a, b } });
    m.norm.out = oari_emit(
        tape,
        oari_settle(pool, m.norm.out, *sum != NULL ? status : OAR_E_NOMEM),
        &(oari_node_record){
            .op = &layer_norm_op,
            .inputs = 3,
            .input = { *sum, weight, bias },
            .saved = { *sum, weight, bias, m.norm.mean, m.norm.rstd } });
    oari_tensor_drop(pool, m.norm.mean);
    oari_tensor_drop(pool, m.norm.rstd);
    return m.norm.out;
}

oar_tensor *oar_add_layer_norm(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                               oar_tensor *weight, oar_tensor *bias, double eps,
                               oar_tensor **sum)
{
    oar_tensor *both_sum, *out;

    if (oari_check_inputs("add_layer_norm", tape, 2,
                          (oar_tensor *[]){ a, b }) != OAR_OK ||
        check_norm("add_layer_norm", tape, a, weight, bias) != OAR_OK)
        return NULL;
    if (is_one_pass(a, b, weight, bias)) {
        out = add_and_norm(tape, a, b, weight, bias, eps, &both_sum);
    } else {
        both_sum = oar_add(tape, a, b);
        out = oar_layer_norm(tape, both_sum, weight, bias, eps);
    }
    if (out != NULL && sum != NULL)
        *sum = both_sum;
    else if (tape == NULL)
        oar_tensor_release(both_sum);
    return out;
}
