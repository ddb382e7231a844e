/* SPDX-License-Identifier: Apache-2.0 */
/* op_group_norm: groups of channels normalised in each image alone. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/fused_backward.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/channel_norm.h"

enum { X, WEIGHT, BIAS }; /* inputs */
enum {
    MEAN = 2,
    RSTD = 3,
    STATS = 4
}; /* saved, besides x and weight; the
                                           last on a GPU */

static oar_status group_norm_back_gpu(oari_node *node, oari_operands *operands,
                                      const oari_norm_back *n)
{
    int64_t groups = node->extra.groups, count = node->saved[MEAN]->count;
    oari_array stats = oari_array_of(node->saved[STATS]);
    oari_array sums = { NULL, OAR_F64, oari_layout_rows(OAR_SHAPE(2 * count)),
                        n->x->device };

    sums.data =
        oari_operands_scratch(operands, sums.device, OAR_F64, 2 * count);
    if (operands->status == OAR_OK)
        operands->status =
            oari_cuda_channel_sums(operands->pool, n, groups, &sums);
    if (operands->status == OAR_OK && n->dx != NULL)
        operands->status =
            oari_cuda_channel_norm_back(n, groups, &sums, &stats);
    return oari_operands_finish(operands);
}

/* Computes all gradients at once: that of x goes to dx, which may be NULL, the
 * others to node->fused_grad. */
static oar_status group_norm_back_all(oari_node *node, const oari_array *dx,
                                      int add)
{
    int64_t channels = node->saved[X]->at.shape.dim[1];
    oar_dtype dtype = node->saved[X]->dtype;
    oari_array mean = oari_array_of(node->saved[MEAN]);
    oari_array rstd = oari_array_of(node->saved[RSTD]), dweight, dbias;
    oari_operands operands = { .pool = &node->tape->pool };
    oari_norm_back n = { .mean = &mean, .rstd = &rstd, .add = add };

    OARI_TRY(oari_fused_grad_open(node, WEIGHT, dtype, OAR_SHAPE(channels),
                                  &dweight));
    OARI_TRY(
        oari_fused_grad_open(node, BIAS, dtype, OAR_SHAPE(channels), &dbias));
    n.dweight = node->fused_grad[WEIGHT] != NULL ? &dweight : NULL;
    n.dbias = node->fused_grad[BIAS] != NULL ? &dbias : NULL;
    n.grad = oari_operands_tensor(&operands, node->grad);
    n.x = oari_operands_tensor(&operands, node->saved[X]);
    if (dx != NULL) /* the others do not depend on it */
        n.weight = oari_operands_tensor(&operands, node->saved[WEIGHT]);
    n.dx = oari_operands_out(&operands, dx, add);
    if (n.x->device.kind == OAR_CUDA)
        return group_norm_back_gpu(node, &operands, &n);
    n.sums =
        oari_operands_scratch(&operands, n.x->device, OAR_F64, 2 * channels);
    if (operands.status == OAR_OK)
        oari_group_norm_back(&n, node->extra.groups);
    return oari_operands_finish(&operands);
}

enum { READS = 1u << X | 1u << MEAN | 1u << RSTD | 1u << STATS };

static const oari_op_class group_norm_op = {
    .name = "group_norm",
    .fused_backward = group_norm_back_all,
    .reads = { [X] = READS | 1u << WEIGHT, [WEIGHT] = READS, [BIAS] = READS },
    .in_place = 1,
};

static oar_status check_param(const oar_tensor *x, const oar_tensor *param,
                              const char *what)
{
    const char *name = group_norm_op.name;
    int64_t channels = x->at.shape.dim[1];

    if (param == NULL)
        return OAR_OK;
    if (param->dtype != OAR_F32 || !oari_dtype_is_half(x->dtype))
        OARI_TRY(oari_check_same_dtype(name, x, param));
    if (param->at.shape.ndim == 1 && param->at.shape.dim[0] == channels)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of %s with %s %s: it is [%lld]", name,
                     oari_shape_text(x->at.shape).text, what,
                     oari_shape_text(param->at.shape).text,
                     (long long)channels);
}

static oar_status check_group_norm(oar_tape *tape, oar_tensor *x,
                                   int64_t groups, oar_tensor *weight,
                                   oar_tensor *bias)
{
    const char *name = group_norm_op.name;
    oar_tensor *in[3] = { x };
    int count = 1;

    if (weight != NULL)
        in[count++] = weight;
    if (bias != NULL)
        in[count++] = bias;
    OARI_TRY(oari_check_inputs(name, tape, count, in));
    OARI_TRY(oari_check_float(name, x));
    if (x->at.shape.ndim < 2)
        return oari_fail(OAR_E_SHAPE, "%s of %s: it is [n, channels, ..]", name,
                         oari_shape_text(x->at.shape).text);
    if (groups < 1 || x->at.shape.dim[1] % groups != 0)
        return oari_fail(groups < 1 ? OAR_E_ARG : OAR_E_SHAPE,
                         "%s of %s in %lld groups: they divide the channels",
                         name, oari_shape_text(x->at.shape).text,
                         (long long)groups);
    OARI_TRY(check_param(x, weight, "weight"));
    OARI_TRY(check_param(x, bias, "bias"));
    if (weight != NULL && bias != NULL)
        OARI_TRY(oari_check_same_dtype(name, weight, bias));
    return OAR_OK;
}

static oar_status normalise_on_gpu(oari_pool *pool, const oari_array *to,
                                   const oar_tensor *mean,
                                   const oar_tensor *rstd,
                                   const oar_tensor *stats, const oari_array *x,
                                   int64_t groups, const oari_array *weight,
                                   const oari_array *bias, double eps)
{
    oari_array m = oari_array_of(mean), r = oari_array_of(rstd);
    oari_array s = oari_array_of(stats);

    OARI_TRY(oari_cuda_channel_moments(pool, &s, x, groups));
    OARI_TRY(oari_cuda_channel_stats(&m, &r, &s, NULL, eps));
    return oari_cuda_channel_norm(to, x, &m, &r, groups, weight, bias);
}

/* to = x normalised; mean and rstd get one number for each group; stats: on a
 * GPU, as in channel_norm.h. */
static oar_status normalise(oari_pool *pool, const oari_array *to,
                            const oar_tensor *mean, const oar_tensor *rstd,
                            const oar_tensor *stats, const oar_tensor *x,
                            int64_t groups, const oar_tensor *weight,
                            const oar_tensor *bias, double eps)
{
    oari_operands operands = { .pool = pool };
    const oari_array *a = oari_operands_tensor(&operands, x);
    const oari_array *w = oari_operands_tensor(&operands, weight);
    const oari_array *b = oari_operands_tensor(&operands, bias);
    const oari_array *y = oari_operands_out(&operands, to, 0);

    if (operands.status == OAR_OK && stats != NULL)
        operands.status =
            normalise_on_gpu(pool, y, mean, rstd, stats, a, groups, w, b, eps);
    else if (operands.status == OAR_OK)
        oari_group_norm(y, oar_tensor_data(mean), oar_tensor_data(rstd), a,
                        groups, w, b, eps);
    return oari_operands_finish(&operands);
}

oar_tensor *oar_group_norm(oar_tape *tape, oar_tensor *x, int64_t groups,
                           oar_tensor *weight, oar_tensor *bias, double eps)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out = NULL, *mean, *rstd = NULL, *stats = NULL;
    oar_device device;
    oar_shape shape;
    oari_array to;
    int on_gpu;

    if (check_group_norm(tape, x, groups, weight, bias) != OAR_OK)
        return NULL;
    shape = OAR_SHAPE(x->at.shape.dim[0] * groups);
    device = oari_device_of(x);
    on_gpu = device.kind == OAR_CUDA;
    mean = oari_tensor_make_on(pool, device, OAR_F64, shape);
    if (mean != NULL)
        rstd = oari_tensor_make_on(pool, device, OAR_F64, shape);
    if (rstd != NULL && on_gpu)
        stats = oari_tensor_make_on(pool, device, OAR_F64,
                                    OAR_SHAPE(1 + 2 * shape.dim[0]));
    if (rstd != NULL && (stats != NULL || !on_gpu))
        out = oari_tensor_make_on(pool, device, x->dtype, x->at.shape);
    if (out != NULL) {
        to = oari_array_of(out);
        if (normalise(pool, &to, mean, rstd, stats, x, groups, weight, bias,
                      eps) != OAR_OK) {
            oari_tensor_drop(pool, out);
            out = NULL;
        }
    }
    out = oari_emit(
        tape, out,
        &(oari_node_record){ .op = &group_norm_op,
                             .inputs = 3,
                             .input = { x, weight, bias },
                             .saved = { x, weight, mean, rstd, stats },
                             .extra = { .groups = groups } });
    oari_tensor_drop(pool, mean);
    oari_tensor_drop(pool, rstd);
    oari_tensor_drop(pool, stats);
    return out;
}
