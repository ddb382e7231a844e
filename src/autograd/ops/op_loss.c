/* SPDX-License-Identifier: Apache-2.0 */
/* op_loss: cross entropy, and what losses have in common. */
#include "autograd/ops/loss.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/cuda_kernels.h"

/* ---- what losses have in common ------------------------------------------ */

double oari_grad_number(const oari_node *node)
{
    double number;
    oari_array grad = oari_array_of(node->grad);

    oari_convert(&number, OAR_F64, oari_array_data(&grad), grad.dtype, 1);
    return number;
}

oar_status oari_weight_mismatch(const char *name, const oar_tensor *a,
                                const oar_tensor *weight, const char *why)
{
    return oari_fail(OAR_E_SHAPE, "%s of %s with weights %s: %s", name,
                     oari_shape_text(a->at.shape).text,
                     oari_shape_text(weight->at.shape).text, why);
}

oar_status oari_check_weight(const char *name, oar_tape *tape,
                             const oar_tensor *a, oar_tensor *weight)
{
    if (weight == NULL)
        return OAR_OK;
    OARI_TRY(oari_check_inputs(name, tape, 1, &weight));
    if (!oari_device_equal(oari_device_of(a), oari_device_of(weight)))
        return oari_fail(OAR_E_DEVICE,
                         "%s of %s: the weights are on another "
                         "device",
                         name, oari_shape_text(a->at.shape).text);
    OARI_TRY(oari_check_same_dtype(name, a, weight));
    if (!oari_grad_wanted(tape, weight))
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s of %s with weights %s that want a gradient: there is "
                     "none by weights",
                     name, oari_shape_text(a->at.shape).text,
                     oari_shape_text(weight->at.shape).text);
}

/* ---- cross entropy ------------------------------------------------------- */

enum { LOGITS, TARGET, LSE, WEIGHT, SUMS }; /* the last on a GPU only */

static oari_entropy_rule rule_of(oari_operands *operands,
                                 const oari_extra *extra,
                                 const oar_tensor *weight)
{
    return (oari_entropy_rule){ extra->loss.has_ignore, extra->loss.ignore,
                                extra->loss.smoothing,
                                oari_operands_tensor(operands, weight) };
}

/* The divisor is in the sums, if these were saved. */
static oar_status cross_entropy_back_gpu(oari_node *node, const oari_array *to,
                                         int add)
{
    oari_array target = oari_array_of(node->saved[TARGET]);
    oari_array lse = oari_array_of(node->saved[LSE]), sums;
    oari_operands operands = { .pool = &node->tape->pool };
    oari_entropy_rule rule =
        rule_of(&operands, &node->extra, node->saved[WEIGHT]);
    oari_cuda_entropy e = { .target = &target,
                            .lse = &lse,
                            .rule = &rule,
                            .each = node->extra.loss.each,
                            .by_weight = node->saved[SUMS] != NULL };
    const oari_array *grad, *y;

    if (node->saved[SUMS] != NULL) {
        sums = oari_array_of(node->saved[SUMS]);
        e.sums = &sums;
    }
    e.logits = oari_operands_tensor(&operands, node->saved[LOGITS]);
    grad = oari_operands_tensor(&operands, node->grad);
    y = oari_operands_out(&operands, to, add);
    if (operands.status == OAR_OK)
        operands.status = oari_cuda_cross_entropy_back(&e, y, add, grad);
    return oari_operands_finish(&operands);
}

static oar_status cross_entropy_back_cpu(oari_node *node, const oari_array *to,
                                         int add)
{
    int each = node->extra.loss.each;
    double factor =
        each ? 1 : oari_grad_number(node) / node->extra.loss.divisor;
    oari_array target = oari_array_of(node->saved[TARGET]);
    oari_array lse = oari_array_of(node->saved[LSE]);
    oari_operands operands = { .pool = &node->tape->pool };
    oari_entropy_rule rule =
        rule_of(&operands, &node->extra, node->saved[WEIGHT]);
    const oari_array *logits =
        oari_operands_tensor(&operands, node->saved[LOGITS]);
    const oari_array *grad =
        each ? oari_operands_tensor(&operands, node->grad) : NULL;
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK)
        oari_cross_entropy_back(y, add, factor, grad, &lse, logits, &target,
                                &rule);
    return oari_operands_finish(&operands);
}

static oar_status cross_entropy_back(oari_node *node, int i,
                                     const oari_array *to, int add)
{
    return to->device.kind == OAR_CUDA ? cross_entropy_back_gpu(node, to, add)
                                       : cross_entropy_back_cpu(node, to, add);
}

static const oari_op_class cross_entropy_op = { .name = "cross_entropy",
                                                .backward =
                                                    cross_entropy_back };

oar_status oari_check_cross_entropy(oar_tape *tape, oar_tensor *logits,
                                    oar_tensor *target,
                                    const oar_cross_entropy_opts *o,
                                    int64_t classes)
{
    const char *name = "cross_entropy";
    oar_tensor *in[] = { logits, target };
    oar_shape ls = oar_tensor_shape(logits), ts = oar_tensor_shape(target);
    const int64_t *t;

    OARI_TRY(oari_check_inputs(name, tape, 2, in));
    if (classes >= 0)
        OARI_TRY(oari_check_on_cpu(name, logits));
    OARI_TRY(oari_check_float(name, logits));
    if (target->dtype != OAR_I64)
        return oari_fail(
            OAR_E_DTYPE, "%s of logits %s and target %s %s: it is i64", name,
            oari_shape_text(ls).text, oar_dtype_name(target->dtype),
            oari_shape_text(ts).text);
    if (ls.ndim != 2 || ts.ndim != 1 || ls.dim[0] != ts.dim[0])
        return oari_fail(OAR_E_SHAPE,
                         "%s of logits %s and target %s: they are "
                         "[rows, classes] and [rows]",
                         name, oari_shape_text(ls).text,
                         oari_shape_text(ts).text);
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return oari_fail(OAR_E_ARG,
                         "%s of logits %s with label_smoothing %g: from 0 to 1",
                         name, oari_shape_text(ls).text, o->label_smoothing);
    if ((int)o->reduction < OAR_LOSS_MEAN || (int)o->reduction > OAR_LOSS_NONE)
        return oari_fail(OAR_E_ARG,
                         "%s of logits %s with reduction %d: mean, sum or none",
                         name, oari_shape_text(ls).text, (int)o->reduction);
    OARI_TRY(oari_check_weight(name, tape, logits, o->weight));
    if (o->weight != NULL &&
        !oari_shape_equal(o->weight->at.shape, OAR_SHAPE(ls.dim[1])))
        return oari_weight_mismatch(name, logits, o->weight,
                                    "one for each class");
    if (oari_device_of(target).kind == OAR_CUDA)
        return OAR_OK; /* the kernel checks them */
    t = oar_tensor_const_data(target);
    classes = classes < 0 ? ls.dim[1] : classes;
    for (int64_t i = 0; i < target->count; i++) {
        int64_t chosen = t[i * target->at.stride[0]];

        if (o->has_ignore && chosen == o->ignore)
            continue;
        if (chosen < 0 || chosen >= classes)
            return oari_fail(OAR_E_ARG,
                             "cross_entropy of logits %s: target %lld of row "
                             "%lld is no class",
                             oari_shape_text(logits->at.shape).text,
                             (long long)chosen, (long long)i);
    }
    return OAR_OK;
}

/* The loss, not yet recorded; what backward needs goes to lse and extra. */
static oar_status compute_loss(oari_pool *pool, const oar_tensor *out,
                               const oar_tensor *lse, const oar_tensor *logits,
                               const oar_tensor *target,
                               const oar_cross_entropy_opts *o,
                               oari_extra *extra)
{
    oari_array to = oari_array_of(out), l = oari_array_of(lse);
    oari_array t = oari_array_of(target);
    oari_operands operands = { .pool = pool };
    oari_entropy_rule rule = rule_of(&operands, extra, o->weight);
    const oari_array *x = oari_operands_tensor(&operands, logits);
    const oari_array *y =
        extra->loss.each ? oari_operands_out(&operands, &to, 0) : NULL;
    oari_entropy_sums sum;

    if (operands.status == OAR_OK) {
        sum = oari_cross_entropy(y, &l, x, &t, &rule);
        extra->loss.divisor = o->reduction == OAR_LOSS_MEAN ? sum.weight : 1;
        if (y == NULL) /* of no rows the mean is NaN */
            oari_fill(&to, sum.loss / extra->loss.divisor);
    }
    return oari_operands_finish(&operands);
}

/* The same on a GPU, where sums [2] f64 get what the host would read. */
static oar_status
compute_loss_gpu(oari_pool *pool, const oar_tensor *out, const oar_tensor *lse,
                 const oar_tensor *sums, const oar_tensor *logits,
                 const oar_tensor *target, const oar_cross_entropy_opts *o,
                 const oari_extra *extra)
{
    oari_array to = oari_array_of(out), l = oari_array_of(lse), rows = l;
    oari_array t = oari_array_of(target), s = oari_array_of(sums);
    oari_operands operands = { .pool = pool };
    oari_entropy_rule rule = rule_of(&operands, extra, o->weight);
    oari_cuda_entropy e = { .target = &t,
                            .lse = &l,
                            .sums = &s,
                            .rule = &rule,
                            .by_weight = o->reduction == OAR_LOSS_MEAN };

    e.logits = oari_operands_tensor(&operands, logits);
    rows.data =
        oari_operands_scratch(&operands, l.device, l.dtype, target->count);
    rows.at = oari_layout_rows(l.at.shape);
    if (operands.status == OAR_OK)
        operands.status = oari_cuda_cross_entropy(&e, &rows, NULL);
    if (operands.status == OAR_OK)
        operands.status = extra->loss.each
                              ? OARI_KERNEL(&to, copy, &to, &rows)
                              : oari_cuda_entropy_total(&e, &to, &rows);
    return oari_operands_finish(&operands);
}

oar_tensor *oar_cross_entropy_with(oar_tape *tape, oar_tensor *logits,
                                   oar_tensor *target,
                                   const oar_cross_entropy_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_cross_entropy_opts o;
    oar_tensor *lse, *sums = NULL, *out = NULL;
    oar_device device = oar_tensor_device(logits);
    oar_status status = OAR_OK;
    oari_extra extra;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        oari_check_cross_entropy(tape, logits, target, &o, -1) != OAR_OK)
        return NULL;
    extra = (oari_extra){ .loss = { .has_ignore = o.has_ignore,
                                    .ignore = o.ignore,
                                    .each = o.reduction == OAR_LOSS_NONE,
                                    .smoothing = o.label_smoothing } };
    lse = oari_tensor_make_on(pool, device, oari_work_dtype(logits->dtype),
                              target->at.shape);
    if (lse != NULL && device.kind == OAR_CUDA)
        sums = oari_tensor_make_on(pool, device, OAR_F64, OAR_SHAPE(2));
    if (lse != NULL && (sums != NULL || device.kind != OAR_CUDA))
        out = oari_tensor_make_on(pool, device, logits->dtype,
                                  extra.loss.each ? target->at.shape
                                                  : OAR_SCALAR);
    if (out != NULL)
        status = sums != NULL
                     ? compute_loss_gpu(pool, out, lse, sums, logits, target,
                                        &o, &extra)
                     : compute_loss(pool, out, lse, logits, target, &o, &extra);
    out = oari_emit(tape, oari_settle(pool, out, status),
                    &(oari_node_record){
                        .op = &cross_entropy_op,
                        .inputs = 1,
                        .input = { logits },
                        .saved = { logits, target, lse, o.weight,
                                   o.reduction == OAR_LOSS_MEAN ? sums : NULL },
                        .extra = extra });
    oari_tensor_drop(pool, lse);
    oari_tensor_drop(pool, sums);
    return out;
}

oar_tensor *oar_cross_entropy(oar_tape *tape, oar_tensor *logits,
                              oar_tensor *target)
{
    return oar_cross_entropy_with(tape, logits, target, NULL);
}
