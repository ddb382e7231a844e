/* SPDX-License-Identifier: Apache-2.0 */
/* op_group_norm: groups of channels normalised in each image alone. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/stash.h"
#include "base/status.h"
#include "tensor/desk.h"
#include "tensor/cpu/nn/nn_kernels.h"

enum { X, WEIGHT, BIAS };    /* inputs */
enum { MEAN = 2, RSTD = 3 }; /* saved, besides x and weight */

/* All gradients at once: that of x to dx, or nowhere; the others to the stash.
 */
static oar_status all_back(oari_node *node, const oari_array *dx, int add)
{
    int64_t channels = node->saved[X]->at.shape.dim[1];
    oar_dtype dtype = node->saved[X]->dtype;
    oari_array mean = oari_array_of(node->saved[MEAN]);
    oari_array rstd = oari_array_of(node->saved[RSTD]), dweight, dbias;
    oari_desk desk = { .pool = &node->tape->pool };
    oari_norm_back n = { .mean = &mean, .rstd = &rstd, .add = add };

    OARI_TRY(
        oari_stash_open(node, WEIGHT, dtype, OAR_SHAPE(channels), &dweight));
    OARI_TRY(oari_stash_open(node, BIAS, dtype, OAR_SHAPE(channels), &dbias));
    n.dweight = node->stash[WEIGHT] != NULL ? &dweight : NULL;
    n.dbias = node->stash[BIAS] != NULL ? &dbias : NULL;
    n.grad = oari_desk_tensor(&desk, node->grad);
    n.x = oari_desk_tensor(&desk, node->saved[X]);
    n.weight = oari_desk_tensor(&desk, node->saved[WEIGHT]);
    n.dx = oari_desk_out(&desk, dx, add);
    n.sums = oari_desk_scratch(&desk, OAR_F64, 2 * channels);
    if (desk.status == OAR_OK)
        oari_group_norm_back(&n, node->extra.groups);
    return oari_desk_clear(&desk);
}

static oar_status group_norm_back(oari_node *node, int i, const oari_array *to,
                                  int add)
{
    return oari_stash_backward(node, i, to, add, all_back);
}

static const oari_op group_norm_op = { .name = "group_norm",
                                       .backward = group_norm_back,
                                       .in_place = 1,
                                       .stashes = 1 };

static oar_status check_param(const oar_tensor *x, const oar_tensor *param,
                              const char *what)
{
    const char *name = group_norm_op.name;
    int64_t channels = x->at.shape.dim[1];

    if (param == NULL)
        return OAR_OK;
    OARI_TRY(oari_check_same_dtype(name, x, param));
    if (param->at.shape.ndim == 1 && param->at.shape.dim[0] == channels)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of %s with %s %s: it is [%lld]", name,
                     oari_shape_text(x->at.shape).text, what,
                     oari_shape_text(param->at.shape).text,
                     (long long)channels);
}

static oar_status check(oar_tape *tape, oar_tensor *x, int64_t groups,
                        oar_tensor *weight, oar_tensor *bias)
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
    return check_param(x, bias, "bias");
}

/* What the operation makes: the result, and two numbers of each group. */
typedef struct made {
    oar_tensor *out, *mean, *rstd;
} made;

static oar_status compute(oari_pool *pool, const made *m, const oar_tensor *x,
                          int64_t groups, const oar_tensor *weight,
                          const oar_tensor *bias, double eps)
{
    oari_array to = oari_array_of(m->out);
    oari_desk desk = { .pool = pool };
    const oari_array *a = oari_desk_tensor(&desk, x);
    const oari_array *w = oari_desk_tensor(&desk, weight);
    const oari_array *b = oari_desk_tensor(&desk, bias);
    const oari_array *y = oari_desk_out(&desk, &to, 0);

    if (desk.status == OAR_OK)
        oari_group_norm(y, oar_tensor_data(m->mean), oar_tensor_data(m->rstd),
                        a, groups, w, b, eps);
    return oari_desk_clear(&desk);
}

/* All that is needed; on failure out is NULL. */
static made make_all(oari_pool *pool, const oar_tensor *x, int64_t groups)
{
    oar_shape shape = OAR_SHAPE(x->at.shape.dim[0] * groups);
    made m = { .mean = oari_tensor_make(pool, OAR_F64, shape) };

    if (m.mean != NULL)
        m.rstd = oari_tensor_make(pool, OAR_F64, shape);
    if (m.rstd != NULL)
        m.out = oari_tensor_make(pool, x->dtype, x->at.shape);
    return m;
}

oar_tensor *oar_group_norm(oar_tape *tape, oar_tensor *x, int64_t groups,
                           oar_tensor *weight, oar_tensor *bias, double eps)
{
    oari_pool *pool = oari_tape_pool(tape);
    made m;

    if (check(tape, x, groups, weight, bias) != OAR_OK)
        return NULL;
    m = make_all(pool, x, groups);
    if (m.out != NULL &&
        compute(pool, &m, x, groups, weight, bias, eps) != OAR_OK) {
        oari_tensor_drop(pool, m.out);
        m.out = NULL;
    }
    m.out =
        oari_emit(tape, m.out,
                  &(oari_recipe){
                      .op = &group_norm_op,
                      .inputs = 3,
                      .input = { x, weight, bias },
                      .saved = { x, weight, [MEAN] = m.mean, [RSTD] = m.rstd },
                      .extra = { .groups = groups } });
    oari_tensor_drop(pool, m.mean);
    oari_tensor_drop(pool, m.rstd);
    return m.out;
}
