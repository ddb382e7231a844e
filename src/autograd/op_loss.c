/* SPDX-License-Identifier: Apache-2.0 */
/* op_loss: cross entropy and the mean square. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/desk.h"
#include "tensor/nn_kernels.h"

/* The gradient of a loss, one number of any float dtype. */
static double grad_number(const oari_node *node)
{
    double number;
    oari_array grad = oari_array_of(node->grad);

    oari_convert(&number, OAR_F64, oari_array_data(&grad), grad.dtype, 1);
    return number;
}

/* ---- cross entropy ------------------------------------------------------ */

enum { LOGITS, TARGET, LSE };

static oari_rule rule_of(const oari_extra *extra)
{
    return (oari_rule){ extra->loss.has_ignore, extra->loss.ignore,
                        extra->loss.smoothing };
}

static oar_status cross_entropy_back(oari_node *node, int i,
                                     const oari_array *to, int add)
{
    oari_rule rule = rule_of(&node->extra);
    double each = grad_number(node) / (double)node->extra.loss.counted;
    oari_array target = oari_array_of(node->saved[TARGET]);
    oari_array lse = oari_array_of(node->saved[LSE]);
    oari_desk desk = { .pool = &node->tape->pool };
    const oari_array *logits = oari_desk_tensor(&desk, node->saved[LOGITS]);
    const oari_array *y = oari_desk_out(&desk, to, add);

    if (desk.status == OAR_OK)
        oari_cross_entropy_back(y, add, each, &lse, logits, &target, &rule);
    return oari_desk_clear(&desk);
}

static const oari_op cross_entropy_op = { .name = "cross_entropy",
                                          .backward = cross_entropy_back };

static oar_status check_classes(const oar_tensor *logits,
                                const oar_tensor *target,
                                const oar_cross_entropy_opts *o)
{
    const int64_t *t = oar_tensor_const_data(target);
    int64_t classes = logits->at.shape.dim[1];

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

static oar_status check_cross_entropy(oar_tape *tape, oar_tensor *logits,
                                      oar_tensor *target,
                                      const oar_cross_entropy_opts *o)
{
    const char *name = "cross_entropy";
    oar_tensor *in[] = { logits, target };
    oar_shape ls = oar_tensor_shape(logits), ts = oar_tensor_shape(target);

    OARI_TRY(oari_check_inputs(name, tape, 2, in));
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
    return check_classes(logits, target, o);
}

/* The loss, not yet recorded; what backward needs goes to lse and extra. */
static oar_status compute_loss(oari_pool *pool, const oar_tensor *out,
                               const oar_tensor *lse, const oar_tensor *logits,
                               const oar_tensor *target, oari_extra *extra)
{
    oari_rule rule = rule_of(extra);
    oari_array to = oari_array_of(out), l = oari_array_of(lse);
    oari_array t = oari_array_of(target);
    oari_desk desk = { .pool = pool };
    const oari_array *x = oari_desk_tensor(&desk, logits);
    const oari_array *y = oari_desk_out(&desk, &to, 0);

    if (desk.status == OAR_OK)
        extra->loss.counted = oari_cross_entropy(y, &l, x, &t, &rule);
    return oari_desk_clear(&desk);
}

oar_tensor *oar_cross_entropy_with(oar_tape *tape, oar_tensor *logits,
                                   oar_tensor *target,
                                   const oar_cross_entropy_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_cross_entropy_opts o;
    oar_tensor *lse, *out = NULL;
    oari_extra extra;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK ||
        check_cross_entropy(tape, logits, target, &o) != OAR_OK)
        return NULL;
    extra = (oari_extra){ .loss = { .has_ignore = o.has_ignore,
                                    .ignore = o.ignore,
                                    .smoothing = o.label_smoothing } };
    lse = oari_tensor_make(pool, oari_work_dtype(logits->dtype),
                           target->at.shape);
    if (lse != NULL)
        out = oari_tensor_make(pool, logits->dtype, OAR_SCALAR);
    if (out != NULL &&
        compute_loss(pool, out, lse, logits, target, &extra) != OAR_OK) {
        oari_tensor_drop(pool, out);
        out = NULL;
    }
    out = oari_emit(tape, out,
                    &(oari_recipe){ .op = &cross_entropy_op,
                                    .inputs = 1,
                                    .input = { logits },
                                    .saved = { logits, target, lse },
                                    .extra = extra });
    oari_tensor_drop(pool, lse);
    return out;
}

oar_tensor *oar_cross_entropy(oar_tape *tape, oar_tensor *logits,
                              oar_tensor *target)
{
    return oar_cross_entropy_with(tape, logits, target, NULL);
}

/* ---- mean square -------------------------------------------------------- */

static oar_status mse_back(oari_node *node, int i, const oari_array *to,
                           int add)
{
    oari_desk desk = { .pool = &node->tape->pool };
    const oari_array *a = oari_desk_tensor(&desk, node->saved[0]);
    const oari_array *b = oari_desk_tensor(&desk, node->saved[1]);
    const oari_array *y = oari_desk_out(&desk, to, add);
    double count = (double)node->saved[0]->count;
    double factor = 2 * grad_number(node) / count;

    if (desk.status == OAR_OK)
        oari_difference(y, add, i == 0 ? factor : -factor, a, b);
    return oari_desk_clear(&desk);
}

static const oari_op mse_op = { .name = "mse", .backward = mse_back };

static oar_status check_mse(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    OARI_TRY(oari_check_inputs("mse", tape, 2, (oar_tensor *[]){ a, b }));
    OARI_TRY(oari_check_same_dtype("mse", a, b));
    OARI_TRY(oari_check_float("mse", a));
    if (oari_shape_equal(a->at.shape, b->at.shape))
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "mse of %s and %s: the shapes differ",
                     oari_shape_text(a->at.shape).text,
                     oari_shape_text(b->at.shape).text);
}

static oar_status compute_mse(oari_pool *pool, const oar_tensor *out,
                              const oar_tensor *a, const oar_tensor *b)
{
    oari_array to = oari_array_of(out);
    oari_desk desk = { .pool = pool };
    const oari_array *x = oari_desk_tensor(&desk, a);
    const oari_array *z = oari_desk_tensor(&desk, b);

    if (desk.status == OAR_OK)
        oari_fill(&to, oari_square_distance(x, z) / (double)a->count);
    return oari_desk_clear(&desk);
}

oar_tensor *oar_mse(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;

    if (check_mse(tape, a, b) != OAR_OK)
        return NULL;
    out = oari_tensor_make(pool, a->dtype, OAR_SCALAR);
    if (out == NULL)
        return NULL;
    if (compute_mse(pool, out, a, b) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(
        tape, out,
        &(oari_recipe){
            .op = &mse_op, .inputs = 2, .input = { a, b }, .saved = { a, b } });
}
