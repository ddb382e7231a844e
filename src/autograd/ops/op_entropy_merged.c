/* SPDX-License-Identifier: Apache-2.0 */
/* op_entropy_merged: cross entropy of logits of which this is a part of the
 * classes. Forward merges what needs all of them; backward sends nothing. */
#include "autograd/ops/loss.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

enum { LOGITS, TARGET, LSE, WEIGHT, TARGET_WEIGHT };

/* Fills in a part but for its logits and weights, which are operands. */
static oari_entropy_part part_of(const oari_extra *extra,
                                 const oari_array *target)
{
    return (oari_entropy_part){ .target = target,
                                .rule = { .has_ignore = extra->loss.has_ignore,
                                          .ignore = extra->loss.ignore,
                                          .smoothing = extra->loss.smoothing },
                                .first = extra->loss.first,
                                .classes = extra->loss.classes };
}

static oar_status merged_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    const oari_extra *extra = &node->extra;
    int each = extra->loss.each;
    double factor = each ? 1 : oari_grad_number(node) / extra->loss.divisor;
    oari_array target = oari_array_of(node->saved[TARGET]);
    oari_array lse = oari_array_of(node->saved[LSE]), of;
    oari_entropy_part p = part_of(extra, &target);
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *grad =
        each ? oari_operands_tensor(&operands, node->grad) : NULL;
    const oari_array *y = oari_operands_out(&operands, to, add);

    p.logits = oari_operands_tensor(&operands, node->saved[LOGITS]);
    p.rule.weight = oari_operands_tensor(&operands, node->saved[WEIGHT]);
    if (node->saved[TARGET_WEIGHT] != NULL)
        of = oari_array_of(node->saved[TARGET_WEIGHT]);
    if (operands.status == OAR_OK)
        oari_entropy_part_back(&p, y, add, factor, grad, &lse,
                               node->saved[TARGET_WEIGHT] != NULL ? &of : NULL,
                               extra->loss.total);
    return oari_operands_finish(&operands);
}

static const oari_op_class merged_op = { .name = "cross_entropy_merged",
                                         .backward = merged_back };

/* What the call makes: the result, and what backward keeps. */
typedef struct made {
    oar_tensor *out, *lse, *weight; /* the last without weights NULL */
} made;

static oar_status check_merge(const oar_tensor *logits,
                              const oar_cross_entropy_merge *m)
{
    int64_t own = oar_tensor_shape(logits).dim[1];

    if (m->largest == NULL || m->sums == NULL)
        return oari_fail(OAR_E_ARG, "cross_entropy_merged without functions "
                                    "that merge");
    if (m->first >= 0 && m->classes >= own && m->first <= m->classes - own)
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "cross_entropy_merged of logits %s from class %lld on of "
                     "%lld: they do not fit",
                     oari_shape_text(logits->at.shape).text,
                     (long long)m->first, (long long)m->classes);
}

/* Computes the loss. All memory is there before the first merge, so that no
 * part fails while others wait for it. */
static oar_status
compute_merged(oari_pool *pool, const made *m, const oar_tensor *logits,
               const oar_tensor *target, const oar_cross_entropy_opts *o,
               const oar_cross_entropy_merge *merge, oari_extra *extra)
{
    int64_t rows = target->count, count;
    oari_array to = oari_array_of(m->out), lse = oari_array_of(m->lse);
    oari_array t = oari_array_of(target), of;
    oari_entropy_part p = part_of(extra, &t);
    oari_operands operands = { .pool = pool };
    const oari_array *y =
        extra->loss.each ? oari_operands_out(&operands, &to, 0) : NULL;
    double *most = oari_operands_scratch(&operands, to.device, OAR_F64, rows);
    double *sum;
    oari_entropy_sums all;

    p.logits = oari_operands_tensor(&operands, logits);
    p.rule.weight = oari_operands_tensor(&operands, o->weight);
    if (m->weight != NULL)
        of = oari_array_of(m->weight);
    count = oari_entropy_part_sums_count(&p, rows);
    sum = oari_operands_scratch(&operands, to.device, OAR_F64, count);
    if (operands.status == OAR_OK) {
        oari_entropy_part_largest(&p, most);
        operands.status = merge->largest(merge->arg, rows, most);
    }
    if (operands.status == OAR_OK) {
        oari_entropy_part_sums(&p, most, sum);
        operands.status = merge->sums(merge->arg, count, sum);
    }
    if (operands.status == OAR_OK) {
        all =
            oari_entropy_part_loss(&p, y, &lse, m->weight != NULL ? &of : NULL,
                                   most, sum, &extra->loss.total);
        extra->loss.divisor = o->reduction == OAR_LOSS_MEAN ? all.weight : 1;
        if (y == NULL) /* of no rows the mean is NaN */
            oari_fill(&to, all.loss / extra->loss.divisor);
    }
    return oari_operands_finish(&operands);
}

static made make_tensors(oari_pool *pool, const oar_tensor *logits,
                         const oar_tensor *target,
                         const oar_cross_entropy_opts *o)
{
    oar_dtype work = oari_work_dtype(logits->dtype);
    int each = o->reduction == OAR_LOSS_NONE;
    made m = { NULL, NULL, NULL };

    m.lse = oari_tensor_make(pool, work, target->at.shape);
    if (m.lse != NULL && o->weight != NULL)
        m.weight = oari_tensor_make(pool, work, target->at.shape);
    if (m.lse != NULL && (m.weight != NULL || o->weight == NULL))
        m.out = oari_tensor_make(pool, logits->dtype,
                                 each ? target->at.shape : OAR_SCALAR);
    return m;
}

oar_tensor *oar_cross_entropy_merged(oar_tape *tape, oar_tensor *logits,
                                     oar_tensor *target,
                                     const oar_cross_entropy_opts *opts,
                                     const oar_cross_entropy_merge *merge)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_cross_entropy_opts o;
    oar_cross_entropy_merge by;
    oari_extra extra;
    made m;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        oari_opts_read(&by, sizeof by, merge) != OAR_OK ||
        oari_check_cross_entropy(tape, logits, target, &o,
                                 by.classes > 0 ? by.classes : 0) != OAR_OK ||
        check_merge(logits, &by) != OAR_OK)
        return NULL;
    extra = (oari_extra){ .loss = { .has_ignore = o.has_ignore,
                                    .ignore = o.ignore,
                                    .each = o.reduction == OAR_LOSS_NONE,
                                    .smoothing = o.label_smoothing,
                                    .first = by.first,
                                    .classes = by.classes } };
    m = make_tensors(pool, logits, target, &o);
    if (m.out != NULL &&
        compute_merged(pool, &m, logits, target, &o, &by, &extra) != OAR_OK) {
        oari_tensor_drop(pool, m.out);
        m.out = NULL;
    }
    m.out = oari_emit(tape, m.out,
                      &(oari_node_record){ .op = &merged_op,
                                           .inputs = 1,
                                           .input = { logits },
                                           .saved = { logits, target, m.lse,
                                                      o.weight, m.weight },
                                           .extra = extra });
    oari_tensor_drop(pool, m.weight);
    oari_tensor_drop(pool, m.lse);
    return m.out;
}
