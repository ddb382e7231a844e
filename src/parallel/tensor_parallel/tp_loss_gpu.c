/* SPDX-License-Identifier: Apache-2.0 */
/* tp_loss_gpu: cross entropy of logits whose classes are cut over the ranks, on
 * a GPU. Made of operations that have kernels, with two sums over the ranks on
 * the stream; backward sends nothing, and makes the exponentials again instead
 * of keeping them. */
#include <string.h>

#include <oarsong/collective.h>
#include <oarsong/custom_op.h>
#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/reducer/stream_call.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

#define LOSS_LABEL "tensor parallel loss (ranks are given the same targets)"

/* What backward needs. All but logits and the weights are [rows, 1]. */
typedef struct kept {
    oar_tensor *logits;
    oar_tensor *lse;
    oar_tensor *index;  /* the target's column; 0: another rank has it */
    oar_tensor *minus;  /* less what the target counts, where this rank has it;
                           else 0 */
    oar_tensor *share;  /* what the row counts in the loss */
    oar_tensor *whole;  /* what all its classes count together; NULL: 1 */
    oar_tensor *weight; /* of this rank's classes, [1, columns]; NULL: 1 */
    double smooth;      /* what each class counts, by its weight */
} kept;

static void drop_kept(void *arg)
{
    kept *k = arg;

    oar_tensor_release(k->logits);
    oar_tensor_release(k->lse);
    oar_tensor_release(k->index);
    oar_tensor_release(k->minus);
    oar_tensor_release(k->share);
    oar_tensor_release(k->whole);
    oar_tensor_release(k->weight);
    oari_free(k);
}

/* Numbers of halves are computed in f32. */
static oar_dtype work_dtype(const oar_tensor *logits)
{
    return oar_tensor_dtype(logits) == OAR_F64 ? OAR_F64 : OAR_F32;
}

/* ---- backward ------------------------------------------------------------ */

static oar_tensor *grad_on(oar_tape *tape, const kept *k, oar_tensor *grad)
{
    oar_dtype work = work_dtype(k->logits);
    int64_t rows = oar_tensor_count(grad);
    oar_tensor *p, *factor;

    p = oar_cast(tape, k->logits, work);
    p = oar_exp(tape, oar_sub(tape, p, k->lse));
    if (k->whole != NULL)
        p = oar_mul(tape, p, k->whole);
    p = oar_tensor_scatter_add(tape, p, 1, k->index, k->minus);
    if (k->smooth > 0 && k->weight != NULL)
        p = oar_sub(tape, p, oar_scale(tape, k->weight, k->smooth));
    else if (k->smooth > 0)
        p = oar_shift(tape, p, -k->smooth);
    factor = oar_reshape(tape, grad, OAR_SHAPE(rows, 1));
    factor = oar_mul(tape, k->share, oar_cast(tape, factor, work));
    return oar_mul(tape, p, factor);
}

static oar_status loss_back(void *arg, int i, const oar_tensor *grad,
                            oar_tensor *to, int add)
{
    oar_tensor *given, *made;
    oar_status status;
    oar_tape *tape;

    memcpy(&given, &grad, sizeof given); /* it is only read */
    OARI_TRY(oar_tape_create(&tape));
    oar_tape_record(tape, 0);
    made = grad_on(tape, arg, given);
    if (add && made != NULL)
        made = oar_add(tape, oar_cast(tape, to, oar_tensor_dtype(made)), made);
    status =
        made != NULL ? oar_tensor_copy(to, made) : oar_last_error()->status;
    oar_tape_destroy(tape);
    return status;
}

static const oar_custom_op loss_op = { .size = sizeof loss_op,
                                       .name = "tp_cross_entropy",
                                       .backward = loss_back,
                                       .drop = drop_kept };

/* ---- forward ------------------------------------------------------------- */

/* Leaves in x what all ranks have together. */
static oar_tensor *over_ranks(oar_group *group, oar_tensor *x, oar_reduce_op op)
{
    oar_span span;

    if (x == NULL || oar_tensor_span(x, &span) != OAR_OK ||
        oari_stream_call_run(&(oari_stream_call){
            .kind = OARI_CALL_ALL_REDUCE,
            .group = group,
            .in = span,
            .out = span,
            .op = op,
            .opts = *OAR_OPTS(oar_call_opts, .label = LOSS_LABEL) }) != OAR_OK)
        return NULL;
    return x;
}

/* Finds the column of each target. One that is no class stays outside of the
 * columns, and the kernel that reads it says so. counts: which rows do. */
static void find_targets(oar_tape *tape, oar_tensor *target, oar_tensor *counts,
                         const oar_cross_entropy_merge *part, int64_t own,
                         oar_tensor **index, oar_tensor **has)
{
    oar_tensor *column = oar_shift(tape, target, (double)-part->first);
    oar_tensor *valid, *elsewhere;

    *has = oar_logical_and(tape, oar_ge_scalar(tape, column, 0),
                           oar_lt_scalar(tape, column, (double)own));
    *has = oar_logical_and(tape, *has, counts);
    valid = oar_logical_and(tape, oar_ge_scalar(tape, target, 0),
                            oar_lt_scalar(tape, target, (double)part->classes));
    valid = oar_logical_or(tape, valid, oar_logical_not(tape, counts));
    elsewhere = oar_logical_and(tape, valid, oar_logical_not(tape, *has));
    *index = oar_masked_fill(tape, column, elsewhere, 0);
}

/* What of the rows is added up over the ranks, [rows, 1] each. */
typedef struct row_sums {
    oar_tensor *exponentials;
    oar_tensor *chosen; /* the target's logit */
    oar_tensor *smooth; /* logits by the weights of their classes; or NULL */
    oar_tensor *weight; /* of the target; NULL: 1 */
} row_sums;

/* Adds those that the options need up by one collective. Returns whether it
 * has; one that could not be computed is NULL, which fails. */
static int add_over_ranks(oar_tape *tape, oar_group *group,
                          const oar_cross_entropy_opts *o, row_sums *s)
{
    oar_tensor **each[] = { &s->exponentials, &s->chosen, &s->smooth,
                            &s->weight };
    int needed[] = { 1, 1, o->label_smoothing > 0, o->weight != NULL };
    oar_tensor *column[4], *all;
    int count = 0;

    for (int i = 0; i < 4; i++)
        if (needed[i])
            column[count++] = *each[i];
    all = over_ranks(group, oar_cat(tape, count, column, 1), OAR_SUM);
    count = 0;
    for (int i = 0; i < 4 && all != NULL; i++)
        if (needed[i])
            *each[i] = oar_narrow(tape, all, 1, count++, 1);
    return all != NULL;
}

/* Returns this rank's columns of a number for each class, [1, columns]. */
static oar_tensor *own_weights(oar_tape *tape, oar_tensor *weight,
                               oar_dtype work, int64_t first, int64_t own)
{
    weight = oar_cast(tape, oar_narrow(tape, weight, 0, first, own), work);
    return oar_reshape(tape, weight, OAR_SHAPE(1, own));
}

/* Returns the weight of each target that this rank has, else 0. */
static oar_tensor *target_weights(oar_tape *tape, oar_tensor *weight,
                                  oar_tensor *index, oar_tensor *has)
{
    int64_t rows = oar_tensor_count(index);

    weight = oar_index_select(tape, weight, 1,
                              oar_reshape(tape, index, OAR_SHAPE(rows)));
    weight = oar_reshape(tape, weight, OAR_SHAPE(rows, 1));
    return oar_where_scalar(tape, has, weight, 0);
}

/* Returns the loss of each row from the sums, and gives what its classes count
 * in backward. total: the weights of all classes, [1, 1]; or NULL. */
static oar_tensor *row_losses(oar_tape *tape, const row_sums *s,
                              const oar_cross_entropy_opts *o,
                              oar_tensor *total, int64_t classes, kept *k)
{
    double target = 1 - o->label_smoothing;
    oar_tensor *loss = oar_sub(tape, k->lse, s->chosen), *rest;

    if (s->weight != NULL) {
        k->whole = oar_scale(tape, s->weight, target);
        loss = oar_mul(tape, loss, k->whole);
        k->minus = oar_mul(tape, k->minus, s->weight);
    } else if (s->smooth != NULL)
        loss = oar_scale(tape, loss, target);
    if (s->smooth == NULL)
        return loss;
    k->smooth = o->label_smoothing / (double)classes;
    if (total == NULL)
        rest = oar_sub(tape, k->lse,
                       oar_scale(tape, s->smooth, 1 / (double)classes));
    else
        rest = oar_sub(tape, oar_mul(tape, k->lse, total), s->smooth);
    if (total != NULL)
        k->whole = oar_add(tape, k->whole, oar_scale(tape, total, k->smooth));
    rest =
        oar_scale(tape, rest, total == NULL ? o->label_smoothing : k->smooth);
    return oar_add(tape, loss, rest);
}

/* Returns the loss, and gives what backward needs; the tape has all of it. */
static oar_tensor *compute(oar_tape *tape, oar_tensor *logits,
                           oar_tensor *target, const oar_cross_entropy_opts *o,
                           const oar_cross_entropy_merge *part,
                           oar_group *group, kept *k)
{
    oar_shape shape = oar_tensor_shape(logits);
    oar_dtype work = work_dtype(logits);
    oar_tensor *t = oar_reshape(tape, target, OAR_SHAPE(shape.dim[0], 1));
    oar_tensor *x = oar_cast(tape, logits, work), *total = NULL;
    oar_tensor *counts, *has, *most, *weighed, *loss;
    row_sums s = { 0 };

    counts = o->has_ignore ? oar_ne_scalar(tape, t, (double)o->ignore)
                           : oar_eq(tape, t, t);
    most = oar_max_over(tape, x, OAR_DIMS(1), 1);
    most = over_ranks(group, most, OAR_MAX);
    s.exponentials = oar_exp(tape, oar_sub(tape, x, most));
    s.exponentials = oar_sum_over(tape, s.exponentials, OAR_DIMS(1), 1);
    find_targets(tape, t, counts, part, shape.dim[1], &k->index, &has);
    s.chosen = oar_take_along(tape, x, 1, k->index);
    s.chosen = oar_where_scalar(tape, has, s.chosen, 0);
    if (o->weight != NULL) {
        total = oar_sum(tape, oar_cast(tape, o->weight, work));
        total = oar_reshape(tape, total, OAR_SHAPE(1, 1));
        k->weight =
            own_weights(tape, o->weight, work, part->first, shape.dim[1]);
        s.weight = target_weights(tape, k->weight, k->index, has);
    }
    if (o->label_smoothing > 0) {
        s.smooth = k->weight != NULL ? oar_mul(tape, x, k->weight) : x;
        s.smooth = oar_sum_over(tape, s.smooth, OAR_DIMS(1), 1);
    }
    if (!add_over_ranks(tape, group, o, &s))
        return NULL;
    k->lse = oar_add(tape, oar_log(tape, s.exponentials), most);
    k->logits = logits;
    k->minus =
        oar_scale(tape, oar_cast(tape, has, work), o->label_smoothing - 1);
    loss = row_losses(tape, &s, o, total, part->classes, k);
    loss = oar_where_scalar(tape, counts, loss, 0);
    k->share = oar_cast(tape, counts, work);
    weighed = s.weight != NULL ? s.weight : k->share;
    if (o->reduction == OAR_LOSS_MEAN)
        k->share = oar_div(tape, k->share, oar_sum(tape, weighed));
    if (o->reduction == OAR_LOSS_NONE)
        loss = oar_reshape(tape, loss, OAR_SHAPE(shape.dim[0]));
    else
        loss = oar_sum(tape, oar_mul(tape, loss, k->share));
    return oar_cast(tape, loss, oar_tensor_dtype(logits));
}

static oar_status check_weight(const oar_tensor *weight,
                               const oar_tensor *logits, int64_t classes)
{
    oar_device at = oar_tensor_device(weight), home = oar_tensor_device(logits);
    oar_shape shape = oar_tensor_shape(weight);

    if (weight == NULL)
        return OAR_OK;
    if (at.kind != home.kind || at.index != home.index)
        return oari_fail(OAR_E_DEVICE,
                         "tp_cross_entropy of logits on %s with weights on %s: "
                         "bring them to one device",
                         oar_device_text(home).text, oar_device_text(at).text);
    if (shape.ndim != 1 || shape.dim[0] != classes)
        return oari_fail(
            OAR_E_SHAPE, "tp_cross_entropy of %lld classes with %lld weights",
            (long long)classes, (long long)oar_tensor_count(weight));
    if (oar_tensor_dtype(weight) != oar_tensor_dtype(logits))
        return oari_fail(OAR_E_DTYPE,
                         "tp_cross_entropy of %s logits with %s weights",
                         oar_dtype_name(oar_tensor_dtype(logits)),
                         oar_dtype_name(oar_tensor_dtype(weight)));
    if (oar_tensor_requires_grad(weight))
        return oari_fail(OAR_E_ARG, "tp_cross_entropy with weights that want a "
                                    "gradient: there is none by weights");
    return OAR_OK;
}

static oar_status check_options(const oar_cross_entropy_opts *o,
                                const oar_tensor *logits,
                                const oar_tensor *target, oar_group *group,
                                int64_t classes)
{
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return oari_fail(OAR_E_ARG,
                         "tp_cross_entropy with label_smoothing %g: from 0 to "
                         "1",
                         o->label_smoothing);
    if ((int)o->reduction < OAR_LOSS_MEAN || (int)o->reduction > OAR_LOSS_NONE)
        return oari_fail(OAR_E_ARG,
                         "tp_cross_entropy with reduction %d: mean, sum or "
                         "none",
                         (int)o->reduction);
    OARI_TRY(check_weight(o->weight, logits, classes));
    if (classes < oar_group_size(group))
        return oari_fail(OAR_E_DEVICE,
                         "tp_cross_entropy on a GPU of %lld classes for %d "
                         "ranks: each needs one",
                         (long long)classes, oar_group_size(group));
    if (oar_tensor_dtype(target) != OAR_I64 ||
        oar_tensor_shape(target).ndim != 1)
        return oari_fail(OAR_E_SHAPE,
                         "tp_cross_entropy: targets are i64 [rows]");
    return OAR_OK;
}

/* Takes references to all that backward keeps. */
static kept *keep(const kept *made)
{
    kept *k = oari_alloc(1, sizeof *k);

    if (k == NULL)
        return NULL;
    *k = *made;
    oar_tensor_retain(k->logits);
    oar_tensor_retain(k->lse);
    oar_tensor_retain(k->index);
    oar_tensor_retain(k->minus);
    oar_tensor_retain(k->share);
    oar_tensor_retain(k->whole);
    oar_tensor_retain(k->weight);
    return k;
}

oar_tensor *oari_tp_cross_entropy_on(oar_tape *tape, oar_tensor *logits,
                                     oar_tensor *target,
                                     const oar_cross_entropy_opts *o,
                                     const oar_cross_entropy_merge *part,
                                     oar_group *group)
{
    oar_tape *on = tape;
    kept made = { 0 }, *k;
    oar_tensor *loss;
    int recording;

    if (target == NULL ||
        check_options(o, logits, target, group, part->classes) != OAR_OK ||
        (tape == NULL && oar_tape_create(&on) != OAR_OK))
        return NULL;
    recording = oar_tape_record(on, 0);
    loss = compute(on, logits, target, o, part, group, &made);
    oar_tape_record(on, recording);
    if (tape == NULL) {
        oar_tensor_retain(loss);
        oar_tape_destroy(on);
        return loss;
    }
    k = loss != NULL ? keep(&made) : NULL;
    return k != NULL ? oar_record_op(tape, &loss_op, k, 1, &logits, loss)
                     : NULL;
}
