/* SPDX-License-Identifier: Apache-2.0 */
/* op_batch_norm: over all dims but the channels', by the batch's statistics or
 * by running ones. */
#include <math.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "autograd/ops/batch_norm.h"
#include "autograd/record.h"
#include "autograd/fused_backward.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/channel_norm.h"

enum { X, WEIGHT, BIAS }; /* inputs, and what is saved of them */
enum {
    MEAN = 2,
    RSTD = 3,
    STATS = 4
}; /* saved too, f64: [channels]; on a
                                           GPU, in training, all of
                                           channel_norm.h's */

typedef oari_batch_norm_given given;

static oar_span span_of(const oari_array *a)
{
    return (oar_span){ .data = oari_array_data(a),
                       .count = (size_t)oari_shape_count(a->at.shape),
                       .dtype = a->dtype,
                       .device = a->device };
}

/* On a GPU: the numbers of all parts, [parts, count], in a new tensor. */
static oar_status gather_parts(oari_pool *pool,
                               const oar_batch_norm_merge *merge, int sums,
                               const oari_array *mine, oar_tensor **all)
{
    oari_array to;

    *all = oari_tensor_make_on(
        pool, mine->device, OAR_F64,
        OAR_SHAPE(merge->parts(merge->arg), oari_shape_count(mine->at.shape)));
    if (*all == NULL)
        return oar_last_error()->status;
    to = oari_array_of(*all);
    return merge->gather_on(merge->arg, sums, span_of(mine), span_of(&to));
}

/* sums become those of all parts. */
static oar_status merge_sums(oari_pool *pool, const oar_batch_norm_merge *merge,
                             const oari_array *sums)
{
    oari_array from, to = *sums;
    oar_tensor *all = NULL;
    oar_status status = gather_parts(pool, merge, 1, sums, &all);

    if (status == OAR_OK) {
        from = oari_array_of(all);
        to.at.shape = OAR_SHAPE(1, from.at.shape.dim[1]);
        to.at.stride[0] = to.at.stride[1] = 1;
        status = OARI_KERNEL(&to, sum_to, pool, &to, 0, &from);
    }
    oari_tensor_drop(pool, all);
    return status;
}

/* The sums and dx on a GPU. */
static oar_status batch_norm_back_gpu(oari_node *node, oari_norm_back *n,
                                      const oari_array *sums)
{
    const oar_batch_norm_merge *merge = node->extra.norm.merge;
    oari_array stats;

    OARI_TRY(oari_cuda_channel_sums(&node->tape->pool, n, 0, sums));
    if (n->dx == NULL)
        return OAR_OK;
    if (node->extra.norm.fixed)
        return oari_cuda_channel_norm_back(n, 0, NULL, NULL);
    if (merge != NULL)
        OARI_TRY(merge_sums(&node->tape->pool, merge, sums));
    stats = oari_array_of(node->saved[STATS]);
    return oari_cuda_channel_norm_back(n, 0, sums, &stats);
}

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
    n.sums = oari_operands_scratch(&operands, n.x->device, OAR_F64,
                                   2 * channels.dim[0]);
    if (operands.status == OAR_OK && n.x->device.kind == OAR_CUDA) {
        oari_array sums = { n.sums, OAR_F64,
                            oari_layout_rows(OAR_SHAPE(2 * channels.dim[0])),
                            n.x->device };

        operands.status = batch_norm_back_gpu(node, &n, &sums);
        return oari_operands_finish(&operands);
    }
    if (operands.status == OAR_OK)
        oari_batch_norm_sums(&n);
    /* dweight and dbias are of this batch; dx needs the sums over all of it */
    if (operands.status == OAR_OK && dx != NULL && merge != NULL && !fixed)
        operands.status = merge->sums(merge->arg, 2 * channels.dim[0], n.sums);
    if (operands.status == OAR_OK && dx != NULL)
        oari_batch_norm_back(&n, node->extra.norm.count, fixed);
    return oari_operands_finish(&operands);
}

enum { READS = 1u << X | 1u << MEAN | 1u << RSTD | 1u << STATS };

static const oari_op_class batch_norm_op = {
    .name = "batch_norm",
    .fused_backward = batch_norm_back_all,
    .reads = { [X] = READS | 1u << WEIGHT, [WEIGHT] = READS, [BIAS] = READS },
};

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

/* Of x's dtype, or f32 beside halves. */
static oar_status check_param(const oar_tensor *x, const oar_tensor *param)
{
    if (param == NULL ||
        (param->dtype == OAR_F32 && oari_dtype_is_half(x->dtype)))
        return OAR_OK;
    return oari_check_same_dtype("batch_norm", x, param);
}

/* Checks dtypes, and that running statistics can be written. */
static oar_status check_tensors(const given *g)
{
    OARI_TRY(oari_check_float("batch_norm", g->x));
    OARI_TRY(check_param(g->x, g->weight));
    OARI_TRY(check_param(g->x, g->bias));
    if (g->weight != NULL && g->bias != NULL)
        OARI_TRY(oari_check_same_dtype("batch_norm", g->weight, g->bias));
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
    if (g->merge != NULL && oari_device_of(x).kind != OAR_CPU &&
        (g->merge->parts == NULL || g->merge->gather_on == NULL))
        return oari_fail(OAR_E_DEVICE,
                         "batch_norm of %s on %s: what merges its statistics "
                         "has no functions for GPUs",
                         oari_shape_text(x->at.shape).text,
                         oar_device_text(oari_device_of(x)).text);
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
    double *scratch =
        oari_operands_scratch(&operands, to.device, OAR_F64, channels);

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

/* ---- on a GPU ------------------------------------------------------------ */

static const oari_array *array_or_null(const oar_tensor *t, oari_array *a)
{
    if (t == NULL)
        return NULL;
    *a = oari_array_of(t);
    return a;
}

static oar_status find_stats(oari_pool *pool, const given *g,
                             const oari_array *x, const oar_tensor *stats)
{
    oari_array to = oari_array_of(stats), parts;
    oar_tensor *all = NULL;
    oar_status status;

    OARI_TRY(oari_cuda_channel_moments(pool, &to, x, 0));
    if (g->merge == NULL)
        return OAR_OK;
    status = gather_parts(pool, g->merge, 0, &to, &all);
    if (status == OAR_OK) {
        parts = oari_array_of(all);
        status = oari_cuda_merge_moments(&to, &parts);
    }
    oari_tensor_drop(pool, all);
    return status;
}

/* stats: NULL outside of training. */
static oar_status normalise_on_gpu(oari_pool *pool, const given *g,
                                   const oar_tensor *out,
                                   const oar_tensor *mean,
                                   const oar_tensor *rstd,
                                   const oar_tensor *stats)
{
    oari_array to = oari_array_of(out), m = oari_array_of(mean);
    oari_array r = oari_array_of(rstd), s, old_mean, old_var, batches;
    oari_running running = { .momentum = g->momentum };
    oari_operands operands = { .pool = pool };
    const oari_array *x = oari_operands_tensor(&operands, g->x);
    const oari_array *w = oari_operands_tensor(&operands, g->weight);
    const oari_array *b = oari_operands_tensor(&operands, g->bias);

    running.mean = array_or_null(g->mean, &old_mean);
    running.var = array_or_null(g->var, &old_var);
    running.batches = array_or_null(g->batches, &batches);
    if (operands.status == OAR_OK && stats != NULL)
        operands.status = find_stats(pool, g, x, stats);
    if (operands.status == OAR_OK)
        operands.status = oari_cuda_channel_stats(
            &m, &r, array_or_null(stats, &s), &running, g->eps);
    if (operands.status == OAR_OK)
        operands.status = oari_cuda_channel_norm(&to, x, &m, &r, 0, w, b);
    if (operands.status == OAR_OK && stats != NULL && g->mean != NULL) {
        g->mean->storage->version++;
        g->var->storage->version++;
    }
    return oari_operands_finish(&operands);
}

/* ---- the call ------------------------------------------------------------ */

static oar_tensor *run_batch_norm(oar_tape *tape, const given *g,
                                  oar_tensor *mean, oar_tensor *rstd,
                                  oar_tensor *stats)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_device device = oari_device_of(g->x);
    oar_tensor *out =
        oari_tensor_make_on(pool, device, g->x->dtype, g->x->at.shape);
    double count = 0;

    if (out == NULL)
        return NULL;
    if ((device.kind == OAR_CPU
             ? normalise_batch(pool, g, out, oar_tensor_data(mean),
                               oar_tensor_data(rstd), &count)
             : normalise_on_gpu(pool, g, out, mean, rstd, stats)) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(
        tape, out,
        &(oari_node_record){ .op = &batch_norm_op,
                             .inputs = 3,
                             .input = { g->x, g->weight, g->bias },
                             .saved = { g->x, g->weight, mean, rstd, stats },
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
    return oari_batch_norm_apply(tape, &(given){ .x = x,
                                                 .weight = weight,
                                                 .bias = bias,
                                                 .mean = running_mean,
                                                 .var = running_var,
                                                 .training = training,
                                                 .momentum = momentum,
                                                 .eps = eps,
                                                 .merge = merge });
}

oar_tensor *oari_batch_norm_apply(oar_tape *tape, const given *g)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *mean, *rstd, *stats = NULL, *out = NULL;
    oar_device device;
    oar_shape channels;
    int has_stats;

    if (check_batch_norm(tape, g) != OAR_OK)
        return NULL;
    device = oari_device_of(g->x);
    channels = OAR_SHAPE(g->x->at.shape.dim[1]);
    has_stats = device.kind == OAR_CUDA && g->training;
    mean = oari_tensor_make_on(pool, device, OAR_F64, channels);
    rstd = oari_tensor_make_on(pool, device, OAR_F64, channels);
    if (has_stats)
        stats = oari_tensor_make_on(pool, device, OAR_F64,
                                    OAR_SHAPE(1 + 2 * channels.dim[0]));
    if (mean != NULL && rstd != NULL && (stats != NULL || !has_stats))
        out = run_batch_norm(tape, g, mean, rstd, stats);
    oari_tensor_drop(pool, mean);
    oari_tensor_drop(pool, rstd);
    oari_tensor_drop(pool, stats);
    return out;
}
