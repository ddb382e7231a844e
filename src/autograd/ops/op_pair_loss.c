/* SPDX-License-Identifier: Apache-2.0 */
/* op_pair_loss: losses of two tensors of one shape, number by number. */
#include "autograd/ops/loss.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/cuda_kernels.h"

enum { A, B, WEIGHT, POSITIVE }; /* what is saved; the first two are inputs */

/* ---- the computation ----------------------------------------------------- */

/* A tensor repeated to a shape, as kernels like it. NULL gives NULL. */
static const oari_array *broadcast_to(oari_operands *operands,
                                      const oar_tensor *t, oar_shape shape)
{
    oari_array array;

    if (t == NULL)
        return NULL;
    array = oari_array_of(t);
    array.at = oari_layout_expand(&array.at, shape);
    return oari_operands_in(operands, &array);
}

static oari_pairs pairs_of(oari_operands *operands, oar_tensor *const *in,
                           const oari_extra *extra)
{
    oar_shape shape = in[A]->at.shape;

    return (oari_pairs){ .kind = (oari_pair_kind)extra->pairs.kind,
                         .edge = extra->pairs.edge,
                         .a = oari_operands_tensor(operands, in[A]),
                         .b = oari_operands_tensor(operands, in[B]),
                         .weight = broadcast_to(operands, in[WEIGHT], shape),
                         .positive =
                             broadcast_to(operands, in[POSITIVE], shape) };
}

static oar_status pair_loss_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    const oari_extra *extra = &node->extra;
    int each = extra->pairs.each;
    double factor = 1 / extra->pairs.divisor;
    oari_operands operands = { .pool = &node->tape->pool };
    oari_pairs p = pairs_of(&operands, node->saved, extra);
    const int on_gpu = to->device.kind == OAR_CUDA;
    const oari_array *grad =
        each || on_gpu ? oari_operands_tensor(&operands, node->grad) : NULL;
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (!each && !on_gpu)
        factor *= oari_grad_number(node);
    if (operands.status == OAR_OK && on_gpu)
        operands.status =
            oari_cuda_pair_loss_back(&p, i == B, y, add, grad, each, factor);
    else if (operands.status == OAR_OK)
        oari_pair_loss_back(&p, i == B, y, add, grad, factor);
    return oari_operands_finish(&operands);
}

/* ---- checking and recording ---------------------------------------------- */

static oar_status check_pair_loss(const char *name, oar_tape *tape,
                                  oar_tensor *const *in)
{
    OARI_TRY(oari_check_inputs(name, tape, 2, in));
    OARI_TRY(oari_check_same_dtype(name, in[A], in[B]));
    OARI_TRY(oari_check_float(name, in[A]));
    if (!oari_shape_equal(in[A]->at.shape, in[B]->at.shape))
        return oari_fail(OAR_E_SHAPE, "%s of %s and %s: the shapes differ",
                         name, oari_shape_text(in[A]->at.shape).text,
                         oari_shape_text(in[B]->at.shape).text);
    for (int k = WEIGHT; k <= POSITIVE; k++) {
        oar_shape both;

        OARI_TRY(oari_check_weight(name, tape, in[A], in[k]));
        if (in[k] != NULL &&
            (!oari_shape_broadcast(in[k]->at.shape, in[A]->at.shape, &both) ||
             !oari_shape_equal(both, in[A]->at.shape)))
            return oari_weight_mismatch(name, in[A], in[k],
                                        "they do not broadcast to it");
    }
    return OAR_OK;
}

/* What the sum is divided by, or that there is none. */
static oar_status choose_divisor(const char *name, oar_loss_reduction reduction,
                                 const oar_tensor *a, oari_extra *extra)
{
    oar_shape shape = a->at.shape;

    extra->pairs.divisor = 1;
    switch (reduction) {
    case OAR_LOSS_MEAN: extra->pairs.divisor = (double)a->count; return OAR_OK;
    case OAR_LOSS_SUM: return OAR_OK;
    case OAR_LOSS_NONE: extra->pairs.each = 1; return OAR_OK;
    case OAR_LOSS_BATCH_MEAN:
        if (shape.ndim == 0)
            break;
        extra->pairs.divisor = (double)shape.dim[0];
        return OAR_OK;
    }
    return oari_fail(OAR_E_ARG, "%s of %s with reduction %d: there is no such",
                     name, oari_shape_text(shape).text, (int)reduction);
}

/* The loss of each pair to `each`, or if that is NULL all losses divided to
 * `to`. */
static void compute_pairs(oari_operands *operands, const oari_pairs *p,
                          const oari_array *to, const oari_array *each,
                          double divisor)
{
    const int on_gpu = to->device.kind == OAR_CUDA;
    void *partial = NULL;
    double sum;

    if (on_gpu && each == NULL)
        partial = oari_operands_scratch(operands, to->device, OAR_F64,
                                        oari_cuda_pair_partial());
    if (operands->status != OAR_OK)
        return;
    if (on_gpu) {
        operands->status =
            each != NULL ? oari_cuda_pair_loss(p, each)
                         : oari_cuda_pair_sum(p, to, 1 / divisor, partial);
        return;
    }
    sum = oari_pair_loss(p, each);
    if (each == NULL)
        oari_fill(to, sum / divisor);
}

/* in has room for all that is saved; weights may be NULL. */
static oar_tensor *pair_loss(oar_tape *tape, const oari_op_class *op,
                             oar_tensor *const *in,
                             oar_loss_reduction reduction, oari_extra extra)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;
    oari_array to;
    oari_operands operands = { .pool = pool };
    oari_pairs p;
    const oari_array *each;

    if (check_pair_loss(op->name, tape, in) != OAR_OK ||
        choose_divisor(op->name, reduction, in[A], &extra) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(pool, oari_device_of(in[A]), in[A]->dtype,
                              extra.pairs.each ? in[A]->at.shape : OAR_SCALAR);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    p = pairs_of(&operands, in, &extra);
    each = extra.pairs.each ? oari_operands_out(&operands, &to, 0) : NULL;
    compute_pairs(&operands, &p, &to, each, extra.pairs.divisor);
    if (oari_operands_finish(&operands) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(tape, out,
                     &(oari_node_record){
                         .op = op,
                         .inputs = 2,
                         .input = { in[A], in[B] },
                         .saved = { in[A], in[B], in[WEIGHT], in[POSITIVE] },
                         .extra = extra });
}

/* ---- the losses ---------------------------------------------------------- */

static const oari_op_class mse_op = { .name = "mse",
                                      .backward = pair_loss_back };
static const oari_op_class l1_op = { .name = "l1_loss",
                                     .backward = pair_loss_back };
static const oari_op_class huber_op = { .name = "huber_loss",
                                        .backward = pair_loss_back };
static const oari_op_class smooth_op = { .name = "smooth_l1_loss",
                                         .backward = pair_loss_back };
static const oari_op_class bce_op = { .name = "bce_with_logits",
                                      .backward = pair_loss_back };
static const oari_op_class kl_op = { .name = "kl_div",
                                     .backward = pair_loss_back };

/* Those whose options are the reduction only. */
static oar_tensor *distance_loss(oar_tape *tape, const oari_op_class *op,
                                 oar_tensor *a, oar_tensor *b, oari_extra extra,
                                 const oar_loss_opts *opts)
{
    oar_tensor *in[] = { a, b, NULL, NULL };
    oar_loss_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    return pair_loss(tape, op, in, o.reduction, extra);
}

oar_tensor *oar_mse_with(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                         const oar_loss_opts *opts)
{
    return distance_loss(tape, &mse_op, a, b,
                         (oari_extra){ .pairs = { .kind = OARI_SQUARE } },
                         opts);
}

oar_tensor *oar_mse(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    return oar_mse_with(tape, a, b, NULL);
}

oar_tensor *oar_l1_loss(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                        const oar_loss_opts *opts)
{
    return distance_loss(tape, &l1_op, a, b,
                         (oari_extra){ .pairs = { .kind = OARI_ABSOLUTE } },
                         opts);
}

oar_tensor *oar_huber_loss(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                           double delta, const oar_loss_opts *opts)
{
    if (!(delta > 0)) {
        oari_fail(OAR_E_ARG, "huber_loss with delta %g: it is above 0", delta);
        return NULL;
    }
    return distance_loss(
        tape, &huber_op, a, b,
        (oari_extra){ .pairs = { .kind = OARI_HUBER, .edge = delta } }, opts);
}

oar_tensor *oar_smooth_l1_loss(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                               double beta, const oar_loss_opts *opts)
{
    if (!(beta >= 0)) {
        oari_fail(OAR_E_ARG, "smooth_l1_loss with beta %g: it is not negative",
                  beta);
        return NULL;
    }
    return distance_loss(
        tape, &smooth_op, a, b,
        (oari_extra){ .pairs = { .kind = OARI_SMOOTH, .edge = beta } }, opts);
}

oar_tensor *oar_bce_with_logits(oar_tape *tape, oar_tensor *logits,
                                oar_tensor *target, const oar_bce_opts *opts)
{
    oar_bce_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    return pair_loss(
        tape, &bce_op,
        (oar_tensor *[]){ logits, target, o.weight, o.positive_weight },
        o.reduction, (oari_extra){ .pairs = { .kind = OARI_BCE } });
}

oar_tensor *oar_kl_div(oar_tape *tape, oar_tensor *a, oar_tensor *target,
                       const oar_kl_div_opts *opts)
{
    oar_tensor *in[] = { a, target, NULL, NULL };
    oar_kl_div_opts o;
    int kind;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    kind = o.log_target ? OARI_KL_LOG : OARI_KL;
    return pair_loss(tape, &kl_op, in, o.reduction,
                     (oari_extra){ .pairs = { .kind = kind } });
}
