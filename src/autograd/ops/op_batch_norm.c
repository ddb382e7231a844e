/* SPDX-License-Identifier: Apache-2.0 */
/* op_batch_norm: over all dims but the channels', by the batch's statistics or
 * by running ones. */
#include <math.h>

#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/fused_backward.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

enum { X, WEIGHT, BIAS };    /* inputs, and what is saved of them */
enum { MEAN = 2, RSTD = 3 }; /* saved too, f64 [channels] */

/* Computes all gradients at once: that of x goes to dx, which may be NULL, the
 * others to node->fused_grad. */
static oar_status batch_norm_back_all(oari_node *node, const oari_array *dx,
                                      int add)
{
    oar_tensor *x = node->saved[X];
    oar_shape channels = OAR_SHAPE(x->at.shape.dim[1]);
    oari_operands operands = { .pool = &node->tape->pool };
    oari_array mean = oari_array_of(node->saved[MEAN]);
    oari_array rstd = oari_array_of(node->saved[RSTD]), dweight, dbias;
    oari_norm_back n = { .mean = &mean, .rstd = &rstd, .add = add };
    const oar_batch_norm_merge *merge = node->extra.norm.merge;
    int fixed = node->extra.norm.fixed;

    OARI_TRY(oari_fused_grad_open(node, WEIGHT, x->dtype, channels, &dweight));
    OARI_TRY(oari_fused_grad_open(node, BIAS, x->dtype, channels, &dbias));
    n.dweight = node->fused_grad[WEIGHT] != NULL ? &dweight : NULL;
    n.dbias = node->fused_grad[BIAS] != NULL ? &dbias : NULL;
    n.grad = oari_operands_tensor(&operands, node->grad);
    n.x = oari_operands_tensor(&operands, x);
    if (dx != NULL) /* the others do not depend on it */
        n.weight = oari_operands_tensor(&operands, node->saved[WEIGHT]);
    n.dx = oari_operands_out(&operands, dx, add);
    n.sums = oari_operands_scratch(&operands, OAR_F64, 2 * channels.dim[0]);
    if (operands.status == OAR_OK)
        oari_batch_norm_sums(&n);
    /* dweight and dbias are of this batch; dx needs the sums over all of it */
    if (operands.status == OAR_OK && dx != NULL && merge != NULL && !fixed)
        operands.status = merge->sums(merge->arg, 2 * channels.dim[0], n.sums);
    if (operands.status == OAR_OK && dx != NULL)
        oari_batch_norm_back(&n, node->extra.norm.count, fixed);
    return oari_operands_finish(&operands);
}

enum { READS = 1u << X | 1u << MEAN | 1u << RSTD };

static const oari_op_class batch_norm_op = {
    .name = "batch_norm",
    .fused_backward = batch_norm_back_all,
    .reads = { [X] = READS | 1u << WEIGHT, [WEIGHT] = READS, [BIAS] = READS },
};

/* What the caller gave. */
typedef struct given {
    oar_tensor *x, *weight, *bias, *mean, *var; /* the last two running ones */
    int training;
    double momentum, eps;
    const oar_batch_norm_merge *merge; /* or NULL */
} given;

/* ---- checks -------------------------------------------------------------- */

static oar_status check_channels(const oar_tensor *x, const oar_tensor *a,
                                 const char *what)
{
    if (a == NULL ||
        (a->at.shape.ndim == 1 && a->at.shape.dim[0] == x->at.shape.dim[1]))
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE,
                     "batch_norm of %s with %s %s: it is [channels]",
                     oari_shape_text(x->at.shape).text, what,
                     oari_shape_text(a->at.shape).text);
}

static oar_status too_few(const oar_tensor *x)
{
    return oari_fail(OAR_E_SHAPE,
                     "batch_norm of %s in training: one number per channel "
                     "has no variance",
                     oari_shape_text(x->at.shape).text);
}

/* Checks dtypes, and that running statistics can be written. */
static oar_status check_tensors(const given *g)
{
    OARI_TRY(oari_check_float("batch_norm", g->x));
    if (g->weight != NULL)
        OARI_TRY(oari_check_same_dtype("batch_norm", g->x, g->weight));
    if (g->bias != NULL)
        OARI_TRY(oari_check_same_dtype("batch_norm", g->x, g->bias));
    if (g->mean == NULL)
        return OAR_OK;
    OARI_TRY(oari_check_float("batch_norm", g->mean));
    OARI_TRY(oari_check_float("batch_norm", g->var));
    if (!g->training)
        return OAR_OK;
    /* the one thing an operation writes that it did not make */
    OARI_TRY(oari_check_writable("batch_norm into running_mean", g->mean));
    return oari_check_writable("batch_norm into running_var", g->var);
}

static oar_status check_batch_norm(oar_tape *tape, const given *g)
{
    oar_tensor *all[] = { g->x, g->weight, g->bias, g->mean, g->var };
    oar_tensor *in[5];
    int count = 0;
    const oar_tensor *x = g->x;

    for (int i = 0; i < 5; i++)
        if (i == 0 || all[i] != NULL)
            in[count++] = all[i];
    OARI_TRY(oari_check_inputs("batch_norm", tape, count, in));
    OARI_TRY(oari_check_on_cpu("batch_norm", x));
    if ((g->mean == NULL) != (g->var == NULL) ||
        (g->mean == NULL && !g->training))
        return oari_fail(OAR_E_ARG,
                         "batch_norm of %s: running_mean and running_var come "
                         "together, and are needed outside of training",
                         oari_shape_text(x->at.shape).text);
    OARI_TRY(check_tensors(g));
    if (x->at.shape.ndim < 2)
        return oari_fail(OAR_E_SHAPE,
                         "batch_norm of %s: it is [n, channels, ..]",
                         oari_shape_text(x->at.shape).text);
    OARI_TRY(check_channels(x, g->weight, "weight"));
    OARI_TRY(check_channels(x, g->bias, "bias"));
    OARI_TRY(check_channels(x, g->mean, "running_mean"));
    OARI_TRY(check_channels(x, g->var, "running_var"));
    if (g->training && g->merge == NULL && x->count == x->at.shape.dim[1])
        return too_few(x);
    return OAR_OK;
}

/* ---- statistics ---------------------------------------------------------- */

/* running = (1 - momentum) running + momentum factor new. */
static void move_running(oar_tensor *running, double momentum, double factor,
                         const double *fresh, double *scratch)
{
    int64_t channels = running->count;
    oari_array to = oari_array_of(running);
    oari_array old = oari_host_array(scratch, OAR_F64, running->at.shape);

    oari_copy(&old, &to);
    for (int64_t c = 0; c < channels; c++)
        scratch[c] = (1 - momentum) * scratch[c] + momentum * factor * fresh[c];
    oari_copy(&to, &old);
    running->storage->version++;
}

/* Fills in mean, var and how many numbers of a channel they are of. */
static oar_status batch_moments(const given *g, const oari_array *x,
                                double *count, double *mean, double *var,
                                double *scratch)
{
    int64_t channels = g->x->at.shape.dim[1];

    if (*count > 0)
        oari_channel_moments(x, mean, var);
    else
        for (int64_t c = 0; c < channels; c++)
            mean[c] = var[c] = 0;
    if (g->merge != NULL) {
        /* Others add what they hold; the variance is a sum meanwhile. */
        for (int64_t c = 0; c < channels; c++)
            var[c] *= *count;
        OARI_TRY(g->merge->moments(g->merge->arg, channels, count, mean, var));
        for (int64_t c = 0; c < channels; c++)
            var[c] /= *count;
        if (!(*count > 1))
            return too_few(g->x);
    }
    if (g->mean == NULL || !(*count > 1))
        return OAR_OK;
    move_running(g->mean, g->momentum, 1, mean, scratch);
    move_running(g->var, g->momentum, *count / (*count - 1), var, scratch);
    return OAR_OK;
}

static oar_status normalise_batch(oari_pool *pool, const given *g,
                                  const oar_tensor *out, double *mean,
                                  double *rstd, double *count)
{
    int64_t channels = g->x->at.shape.dim[1];
    oari_array to = oari_array_of(out);
    oari_operands operands = { .pool = pool };
    const oari_array *x = oari_operands_tensor(&operands, g->x);
    const oari_array *w = oari_operands_tensor(&operands, g->weight);
    const oari_array *b = oari_operands_tensor(&operands, g->bias);
    const oari_array *y = oari_operands_out(&operands, &to, 0);
    double *scratch = oari_operands_scratch(&operands, OAR_F64, channels);

    if (operands.status != OAR_OK)
        return oari_operands_finish(&operands);
    *count = channels > 0 ? (double)g->x->count / (double)channels : 0;
    if (!g->training) {
        oari_array m = oari_array_of(g->mean);
        oari_array v = oari_array_of(g->var);
        oar_shape rows = g->mean->at.shape;
        oari_array to_mean = oari_host_array(mean, OAR_F64, rows);
        oari_array to_var = oari_host_array(rstd, OAR_F64, rows);

        oari_copy(&to_mean, &m);
        oari_copy(&to_var, &v);
    } else {
        operands.status = batch_moments(g, x, count, mean, rstd, scratch);
    }
    if (operands.status != OAR_OK)
        return oari_operands_finish(&operands);
    for (int64_t c = 0; g->x->count > 0 && c < channels; c++)
        rstd[c] = 1 / sqrt(rstd[c] + g->eps);
    oari_batch_norm(y, x, mean, rstd, w, b);
    return oari_operands_finish(&operands);
}

/* ---- the call ------------------------------------------------------------ */

static oar_tensor *run_batch_norm(oar_tape *tape, const given *g,
                                  oar_tensor *mean, oar_tensor *rstd)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out = oari_tensor_make(pool, g->x->dtype, g->x->at.shape);
    double count = 0;

    if (out == NULL)
        return NULL;
    if (normalise_batch(pool, g, out, oar_tensor_data(mean),
                        oar_tensor_data(rstd), &count) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(
        tape, out,
        &(oari_node_record){ .op = &batch_norm_op,
                             .inputs = 3,
                             .input = { g->x, g->weight, g->bias },
                             .saved = { g->x, g->weight, mean, rstd },
                             .extra = { .norm = { .fixed = !g->training,
                                                  .merge = g->merge,
                                                  .count = count } } });
}

oar_tensor *oar_batch_norm(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                           oar_tensor *bias, oar_tensor *running_mean,
                           oar_tensor *running_var, int training,
                           double momentum, double eps)
{
    return oar_batch_norm_merged(tape, x, weight, bias, running_mean,
                                 running_var, training, momentum, eps, NULL);
}

oar_tensor *oar_batch_norm_merged(oar_tape *tape, oar_tensor *x,
                                  oar_tensor *weight, oar_tensor *bias,
                                  oar_tensor *running_mean,
                                  oar_tensor *running_var, int training,
                                  double momentum, double eps,
                                  const oar_batch_norm_merge *merge)
{
    given g = { x,        weight,   bias, running_mean, running_var,
                training, momentum, eps,  merge };
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *mean, *rstd, *out = NULL;
    oar_shape channels;

    if (check_batch_norm(tape, &g) != OAR_OK)
        return NULL;
    channels = OAR_SHAPE(x->at.shape.dim[1]);
    mean = oari_tensor_make(pool, OAR_F64, channels);
    rstd = oari_tensor_make(pool, OAR_F64, channels);
    if (mean != NULL && rstd != NULL)
        out = run_batch_norm(tape, &g, mean, rstd);
    oari_tensor_drop(pool, mean);
    oari_tensor_drop(pool, rstd);
    return out;
}
