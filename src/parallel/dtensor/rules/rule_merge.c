/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/dtensor/rules/rule_merge.h"

#include <math.h>

#include <oarsong/custom_op.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/dtensor/move_run.h"

/* The largest number of 64 bits is no double. */
static oar_status fill_largest(oar_tensor *tensor, uint64_t largest)
{
    oar_tensor *here =
        oar_empty(NULL, oar_tensor_dtype(tensor), oar_tensor_shape(tensor));
    oar_status status;

    if (here == NULL)
        return oar_last_error()->status;
    for (int64_t i = 0; i < oar_tensor_count(here); i++)
        ((uint64_t *)oar_tensor_data(here))[i] = largest;
    status = oar_tensor_copy(tensor, here);
    oar_tensor_release(here);
    return status;
}

oar_status oari_fill_neutral(oar_tensor *tensor, oar_reduce_op_kind op)
{
    oar_dtype dtype = oar_tensor_dtype(tensor);
    int bits = (int)oar_dtype_size(dtype) * 8;
    int has_sign = dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
                   dtype == OAR_I64;
    double low = has_sign ? -ldexp(1, bits - 1) : 0;

    if (dtype == OAR_BOOL)
        return oar_tensor_fill(tensor, op != OAR_REDUCE_OP_MAX);
    if (op == OAR_REDUCE_OP_PROD)
        return oar_tensor_fill(tensor, 1);
    if (op == OAR_REDUCE_OP_MAX)
        return oar_tensor_fill(tensor, low);
    if (bits < 64)
        return oar_tensor_fill(tensor, ldexp(1, bits - has_sign) - 1);
    return fill_largest(tensor, UINT64_MAX >> has_sign);
}

/* ---- backward: the gradient times a factor ------------------------------- */

static void factor_drop(void *arg)
{
    oar_tensor_release(arg);
}

static oar_status factor_back(void *arg, int i, const oar_tensor *grad,
                              oar_tensor *to, int add)
{
    oar_tensor *copy = oar_empty_on(NULL, oar_tensor_device(to),
                                    oar_tensor_dtype(to), oar_tensor_shape(to));
    oar_tensor *share = NULL, *sum = NULL;
    oar_status status = OAR_E_NOMEM;

    if (copy != NULL)
        status = oar_tensor_copy(copy, grad);
    if (status == OAR_OK) {
        share = oar_mul(NULL, copy, arg);
        sum = add ? oar_add(NULL, to, share) : oar_tensor_retain(share);
        status =
            sum != NULL ? oar_tensor_copy(to, sum) : oar_last_error()->status;
    }
    oar_tensor_release(sum);
    oar_tensor_release(share);
    oar_tensor_release(copy);
    return status;
}

static const oar_custom_op merge_op = { .size = sizeof merge_op,
                                        .name = "merge",
                                        .backward = factor_back,
                                        .drop = factor_drop };

/* ---- merging ------------------------------------------------------------- */

/* Finds the best of a column of numbers; NaN is better than any. */
static int winner(const double *number, int n, int64_t apart, int is_min)
{
    int best = 0;

    for (int i = 1; i < n; i++) {
        double a = number[i * apart], b = number[best * apart];

        if (!isnan(b) && (isnan(a) || (is_min ? a < b : a > b)))
            best = i;
    }
    return best;
}

/* Combines the numbers of n ranks: all has `count` of each. Leaves the result
 * in value, and in factor what this rank's own changes it by. */
static void combine(const double *all, int n, int me, int64_t count,
                    oar_reduce_op_kind op, double *value, double *factor)
{
    for (int64_t k = 0; k < count; k++) {
        const double *number = all + k;
        int best;

        if (op == OAR_REDUCE_OP_PROD) {
            factor[k] = 1;
            for (int i = 0; i < n; i++)
                factor[k] *= i == me ? 1 : number[i * count];
            value[k] = factor[k] * number[me * count];
            continue;
        }
        best = winner(number, n, count, op == OAR_REDUCE_OP_MIN);
        value[k] = number[best * count];
        factor[k] = best == me;
    }
}

/* Gathers and combines along one mesh dim, in f64. */
static oar_status merge_along(oar_group *row, const oari_decision *d,
                              oar_tensor *local, oar_reduce_op_kind op,
                              oar_tensor *value, oar_tensor *factor)
{
    oar_call_opts opts = oar_call_opts_init();
    int n = oar_group_size(row);
    int64_t count = oar_tensor_count(local);
    size_t room = (size_t)count + 1;
    double *own = oari_alloc(room * ((size_t)n + 1), sizeof *own);
    double *all = own + room;
    oar_status status;

    if (own == NULL)
        return OAR_E_NOMEM;
    opts.key = d->key;
    opts.label = d->label;
    status = oar_tensor_read(local, OAR_F64, own);
    if (status == OAR_OK)
        status = oar_all_gather(row, oar_span_of(own, (size_t)count, OAR_F64),
                                oar_span_of(all, (size_t)(count * n), OAR_F64),
                                &opts, NULL);
    if (status == OAR_OK) {
        double *made = oari_alloc(room * 2, sizeof *made);

        status = made != NULL ? OAR_OK : OAR_E_NOMEM;
        if (status == OAR_OK) {
            combine(all, n, oar_group_rank(row), count, op, made, made + room);
            status = oar_tensor_write(value, OAR_F64, made);
        }
        if (status == OAR_OK)
            status = oar_tensor_write(factor, OAR_F64, made + room);
        oari_free(made);
    }
    oari_free(own);
    return status;
}

static oar_tensor *merge_once(const oari_rule_call *c, const oari_decision *d,
                              oar_tensor *local, oar_reduce_op_kind op,
                              oar_group *row)
{
    oar_dtype dtype = oar_tensor_dtype(local);
    oar_shape shape = oar_tensor_shape(local);
    oar_device on = oar_tensor_device(local);
    oar_tensor *value = oar_empty_on(c->tape, on, dtype, shape);
    oar_tensor *factor = oar_empty_on(NULL, on, dtype, shape);

    if (value != NULL && factor != NULL &&
        merge_along(row, d, local, op, value, factor) == OAR_OK)
        return oar_record_op(c->tape, &merge_op, factor, 1, &local, value);
    oar_tensor_release(factor);
    return NULL;
}

oar_tensor *oari_merge_local(const oari_rule_call *c, const oari_decision *d,
                             oar_tensor *local, oar_reduce_op_kind op)
{
    const oar_spec *spec = d->in[0].spec, *out = d->out[0];

    /* The innermost cut first: its ranks have neighbouring elements. */
    for (int i = spec->mesh->grid.dims - 1; i >= 0 && local != NULL; i--) {
        int m = spec->layout.order[i];

        if (oari_cut_splits(&spec->layout.on[m]) &&
            out->layout.on[m].kind == OAR_REPLICATE &&
            spec->mesh->grid.size[m] > 1)
            local = merge_once(c, d, local, op, oar_mesh_group(spec->mesh, m));
    }
    return local;
}
