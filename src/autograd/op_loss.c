/* SPDX-License-Identifier: Apache-2.0 */
/* op_loss: softmax and the losses made from it. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernels.h"

/* ---- softmax ------------------------------------------------------------ */

static oar_status softmax_back(oari_node *node, int i, const oari_array *to,
                               int add)
{
    oari_array grad = oari_array_of(node->grad);
    oari_array result = oari_array_of(node->saved[0]);

    oari_softmax_back(to, add, &grad, &result);
    return OAR_OK;
}

static const oari_op softmax_op = { .name = "softmax",
                                    .backward = softmax_back,
                                    .in_place = 1 };

oar_tensor *oar_softmax(oar_tape *tape, oar_tensor *a)
{
    oar_tensor *out;
    oari_array to, from;

    if (oari_check_inputs("softmax", tape, 1, &a) != OAR_OK ||
        oari_check_float("softmax", a) != OAR_OK)
        return NULL;
    out = oari_tensor_make(oari_tape_pool(tape), a->dtype, a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    oari_softmax(&to, &from);
    return oari_emit(
        tape, out,
        &(oari_recipe){
            .op = &softmax_op, .inputs = 1, .input = { a }, .saved = { out } });
}

/* ---- cross entropy ------------------------------------------------------ */

enum { PROB, TARGET };

static oar_status cross_entropy_back(oari_node *node, int i,
                                     const oari_array *to, int add)
{
    oari_array grad = oari_array_of(node->grad);
    oari_array prob = oari_array_of(node->saved[PROB]);
    oari_array target = oari_array_of(node->saved[TARGET]);

    oari_cross_entropy_back(to, add, &grad, &prob, &target);
    return OAR_OK;
}

static const oari_op cross_entropy_op = { .name = "cross_entropy",
                                          .backward = cross_entropy_back };

static oar_status check_classes(const oar_tensor *logits,
                                const oar_tensor *target)
{
    const int64_t *t = oar_tensor_data(target);
    int64_t classes = logits->at.shape.dim[1];

    for (int64_t i = 0; i < target->count; i++) {
        int64_t chosen = t[i * target->at.stride[0]];

        if (chosen < 0 || chosen >= classes)
            return oari_fail(OAR_E_ARG,
                             "cross_entropy of logits %s: target %lld of row "
                             "%lld is no class",
                             oari_shape_text(logits->at.shape).text,
                             (long long)chosen, (long long)i);
    }
    return OAR_OK;
}

static oar_status check_cross_entropy(oar_tape *tape, oar_tensor *logits,
                                      oar_tensor *target)
{
    const char *name = "cross_entropy";
    oar_tensor *in[] = { logits, target };
    oar_shape ls = oar_tensor_shape(logits), ts = oar_tensor_shape(target);

    OARI_TRY(oari_check_inputs(name, tape, 2, in));
    OARI_TRY(oari_check_float(name, logits));
    if (target->dtype != OAR_I64)
        return oari_fail(OAR_E_DTYPE, "%s with targets of %s: they are i64",
                         name, oar_dtype_name(target->dtype));
    if (ls.ndim != 2 || ts.ndim != 1 || ls.dim[0] != ts.dim[0])
        return oari_fail(OAR_E_SHAPE,
                         "%s of logits %s and target %s: they are "
                         "[rows, classes] and [rows]",
                         name, oari_shape_text(ls).text,
                         oari_shape_text(ts).text);
    return check_classes(logits, target);
}

/* The loss, not yet recorded; its softmax goes to prob. */
static oar_tensor *compute_loss(oari_pool *pool, const oar_tensor *prob,
                                const oar_tensor *logits,
                                const oar_tensor *target)
{
    oar_tensor *out = oari_tensor_make(pool, logits->dtype, OAR_SCALAR);
    oari_array to, p, l, t;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    p = oari_array_of(prob);
    l = oari_array_of(logits);
    t = oari_array_of(target);
    oari_cross_entropy(&to, &p, &l, &t);
    return out;
}

oar_tensor *oar_cross_entropy(oar_tape *tape, oar_tensor *logits,
                              oar_tensor *target)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *prob, *out;

    if (check_cross_entropy(tape, logits, target) != OAR_OK)
        return NULL;
    prob = oari_tensor_make(pool, logits->dtype, logits->at.shape);
    if (prob == NULL)
        return NULL;
    out = compute_loss(pool, prob, logits, target);
    out = oari_emit(tape, out,
                    &(oari_recipe){ .op = &cross_entropy_op,
                                    .inputs = 1,
                                    .input = { logits },
                                    .saved = { prob, target } });
    oari_tensor_drop(pool, prob);
    return out;
}
