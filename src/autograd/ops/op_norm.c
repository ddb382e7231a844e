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
            &operands, work,
            oari_cuda_norm_sums(oari_rows_of(node->saved[X]->at.shape)));
    } else {
        n.scratch = oari_operands_scratch(&operands, work, 4 * width);
        n.sums = oari_operands_scratch(&operands, OAR_F64, 2 * width);
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
    if (weight != NULL && bias != NULL)
        OARI_TRY(oari_check_same_dtype(name, weight, bias));
    OARI_TRY(check_param(name, x, weight, "weight"));
    return check_param(name, x, bias, "bias");
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
