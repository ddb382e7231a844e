/* SPDX-License-Identifier: Apache-2.0 */
/* op_reduce: many elements into one, over all dims or some. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

/* ---- over everything ----------------------------------------------------- */

/* Every element has the same share in the result. */
static oar_status total_back(oari_node *node, int i, const oari_array *to,
                             int add)
{
    oari_array grad = oari_array_of(node->grad);

    return OARI_KERNEL(to, scale, to, add, &grad, node->extra.factor);
}

/* Sums of bools are counts. */
static oar_dtype sum_dtype(const oar_tensor *a)
{
    return a->dtype == OAR_BOOL ? OAR_I64 : a->dtype;
}

static const oari_op_class sum_op = { .name = "sum", .backward = total_back };
static const oari_op_class mean_op = { .name = "mean", .backward = total_back };

static oar_tensor *reduce_all(oar_tape *tape, oar_tensor *a,
                              const oari_op_class *op, double factor)
{
    oar_tensor *out = oari_tensor_make_on(
        oari_tape_pool(tape), oari_device_of(a), sum_dtype(a), OAR_SCALAR);
    oari_array to, from;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    if (OARI_KERNEL(&to, sum_all, &to, &from, factor) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = op,
                                          .inputs = 1,
                                          .input = { a },
                                          .extra = { .factor = factor } });
}

oar_tensor *oar_sum(oar_tape *tape, oar_tensor *a)
{
    if (oari_check_inputs("sum", tape, 1, &a) != OAR_OK)
        return NULL;
    return reduce_all(tape, a, &sum_op, 1);
}

oar_tensor *oar_mean(oar_tape *tape, oar_tensor *a)
{
    if (oari_check_inputs("mean", tape, 1, &a) != OAR_OK ||
        oari_check_float("mean", a) != OAR_OK)
        return NULL;
    return reduce_all(tape, a, &mean_op, 1.0 / (double)a->count);
}

/* ---- over some dims ------------------------------------------------------ */

/* What is asked, with its dims found. */
typedef struct request {
    const oari_op_class *op;
    oar_shape kept;   /* reduced dims have size 1 */
    oar_shape result; /* or are gone */
    double each;      /* elements per result */
} request;

static oar_status find_dims(const oar_tensor *a, oar_dims over, int keep,
                            request *r)
{
    int reduced[OAR_MAX_DIMS] = { 0 };

    if (over.count < 0 || over.count > OAR_MAX_DIMS)
        return oari_fail(OAR_E_ARG, "%s of %s over %d dims", r->op->name,
                         oari_shape_text(a->at.shape).text, over.count);
    for (int i = 0; i < a->at.shape.ndim; i++)
        reduced[i] = over.count == 0;
    for (int i = 0; i < over.count; i++) {
        int dim = over.dim[i], exists = oari_shape_dim(a->at.shape, &dim);

        if (!exists || reduced[dim]++)
            return oari_fail(OAR_E_SHAPE, "%s of dim %d of %s: %s", r->op->name,
                             over.dim[i], oari_shape_text(a->at.shape).text,
                             exists ? "it is listed twice" : "no such dim");
    }
    r->kept = a->at.shape;
    r->result = OAR_SCALAR;
    r->each = 1;
    for (int i = 0; i < a->at.shape.ndim; i++) {
        if (reduced[i]) {
            r->each *= (double)a->at.shape.dim[i];
            r->kept.dim[i] = 1;
        }
        if (keep || !reduced[i])
            r->result.dim[r->result.ndim++] = r->kept.dim[i];
    }
    return OAR_OK;
}

/* A row-major array in the shape that broadcasts to the input's. */
static oari_array kept_array(const oar_tensor *t, oar_shape kept)
{
    oari_array a = oari_array_of(t);
    int64_t offset = a.at.offset;

    a.at = oari_layout_rows(kept);
    a.at.offset = offset;
    return a;
}

/* The result, not yet recorded. */
static oar_tensor *compute_reduction(oari_pool *pool, const oar_tensor *a,
                                     const request *r, oari_reduce_kind kind,
                                     double factor, oar_dtype dtype)
{
    oar_tensor *out =
        oari_tensor_make_on(pool, oari_device_of(a), dtype, r->result);
    oari_array to, from;

    if (out == NULL)
        return NULL;
    to = kept_array(out, r->kept);
    from = oari_array_of(a);
    if (OARI_KERNEL(&to, reduce_over, pool, kind, &to, &from, factor) == OAR_OK)
        return out;
    oari_tensor_drop(pool, out);
    return NULL;
}

static oar_tensor *reduce_dims(oar_tape *tape, oar_tensor *a, const request *r,
                               oari_reduce_kind kind, double factor, int saves)
{
    int adds = kind == OARI_REDUCE_SUM || kind == OARI_REDUCE_PROD;
    oar_tensor *out = compute_reduction(oari_tape_pool(tape), a, r, kind,
                                        factor, adds ? sum_dtype(a) : a->dtype);

    return oari_emit(
        tape, out,
        &(oari_node_record){ .op = r->op,
                             .inputs = 1,
                             .input = { a },
                             .saved = { saves ? a : NULL, saves ? out : NULL },
                             .extra = { .reduce = { r->kept, factor } } });
}

/* ---- sum and mean -------------------------------------------------------- */

static oar_status sum_over_back(oari_node *node, int i, const oari_array *to,
                                int add)
{
    oari_array grad = kept_array(node->grad, node->extra.reduce.kept);

    return OARI_KERNEL(to, scale, to, add, &grad, node->extra.reduce.factor);
}

static const oari_op_class sum_over_op = { .name = "sum_over",
                                           .backward = sum_over_back };
static const oari_op_class mean_over_op = { .name = "mean_over",
                                            .backward = sum_over_back };

oar_tensor *oar_sum_over(oar_tape *tape, oar_tensor *a, oar_dims over, int keep)
{
    request r = { .op = &sum_over_op };

    if (oari_check_inputs(r.op->name, tape, 1, &a) != OAR_OK ||
        find_dims(a, over, keep, &r) != OAR_OK)
        return NULL;
    return reduce_dims(tape, a, &r, OARI_REDUCE_SUM, 1, 0);
}

oar_tensor *oar_mean_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                          int keep)
{
    request r = { .op = &mean_over_op };

    if (oari_check_inputs(r.op->name, tape, 1, &a) != OAR_OK ||
        oari_check_float(r.op->name, a) != OAR_OK ||
        find_dims(a, over, keep, &r) != OAR_OK)
        return NULL;
    return reduce_dims(tape, a, &r, OARI_REDUCE_SUM, 1 / r.each, 0);
}

/* ---- prod ---------------------------------------------------------------- */

static oar_status prod_over_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    oari_array grad = kept_array(node->grad, node->extra.reduce.kept);
    oari_array a = oari_array_of(node->saved[0]);

    return OARI_KERNEL(to, prod_back, &node->tape->pool, to, add, &grad, &a);
}

static const oari_op_class prod_over_op = { .name = "prod_over",
                                            .backward = prod_over_back };

oar_tensor *oar_prod_over(oar_tape *tape, oar_tensor *a, oar_dims over,
                          int keep)
{
    request r = { .op = &prod_over_op };

    if (oari_check_inputs(r.op->name, tape, 1, &a) != OAR_OK ||
        find_dims(a, over, keep, &r) != OAR_OK)
        return NULL;
    return reduce_dims(tape, a, &r, OARI_REDUCE_PROD, 1, 1);
}

/* ---- max and min --------------------------------------------------------- */

static oar_status extreme_back(oari_node *node, int i, const oari_array *to,
                               int add)
{
    oari_array grad = kept_array(node->grad, node->extra.reduce.kept);
    oari_array a = oari_array_of(node->saved[0]);
    oari_array result = kept_array(node->saved[1], node->extra.reduce.kept);

    return OARI_KERNEL(to, extreme_back, &node->tape->pool, to, add, &grad, &a,
                       &result);
}

static const oari_op_class max_over_op = { .name = "max_over",
                                           .backward = extreme_back };
static const oari_op_class min_over_op = { .name = "min_over",
                                           .backward = extreme_back };

static oar_tensor *reduce_to_extreme(oar_tape *tape, oar_tensor *a,
                                     oar_dims over, int keep,
                                     const oari_op_class *op,
                                     oari_reduce_kind kind)
{
    request r = { .op = op };

    if (oari_check_inputs(op->name, tape, 1, &a) != OAR_OK ||
        find_dims(a, over, keep, &r) != OAR_OK)
        return NULL;
    if (r.each == 0 && oari_shape_count(r.result) > 0) {
        oari_fail(OAR_E_SHAPE, "%s of %s: there are no elements", op->name,
                  oari_shape_text(a->at.shape).text);
        return NULL;
    }
    return reduce_dims(tape, a, &r, kind, 1, 1);
}

oar_tensor *oar_max_over(oar_tape *tape, oar_tensor *a, oar_dims over, int keep)
{
    return reduce_to_extreme(tape, a, over, keep, &max_over_op,
                             OARI_REDUCE_MAX);
}

oar_tensor *oar_min_over(oar_tape *tape, oar_tensor *a, oar_dims over, int keep)
{
    return reduce_to_extreme(tape, a, over, keep, &min_over_op,
                             OARI_REDUCE_MIN);
}

/* ---- any and all --------------------------------------------------------- */

static oar_tensor *reduce_to_bool(oar_tape *tape, oar_tensor *a, oar_dims over,
                                  int keep, const oari_op_class *op,
                                  oari_reduce_kind kind)
{
    request r = { .op = op };

    if (oari_check_inputs(op->name, tape, 1, &a) != OAR_OK ||
        find_dims(a, over, keep, &r) != OAR_OK)
        return NULL;
    return oari_keep(tape, compute_reduction(oari_tape_pool(tape), a, &r, kind,
                                             1, OAR_BOOL));
}

oar_tensor *oar_any_over(oar_tape *tape, oar_tensor *a, oar_dims over, int keep)
{
    static const oari_op_class any_over = { .name = "any_over" };

    return reduce_to_bool(tape, a, over, keep, &any_over, OARI_REDUCE_ANY);
}

oar_tensor *oar_all_over(oar_tape *tape, oar_tensor *a, oar_dims over, int keep)
{
    static const oari_op_class all_over = { .name = "all_over" };

    return reduce_to_bool(tape, a, over, keep, &all_over, OARI_REDUCE_ALL);
}

/* ---- var ----------------------------------------------------------------- */

enum { INPUT, MEAN };

static oar_status var_over_back(oari_node *node, int i, const oari_array *to,
                                int add)
{
    oari_array grad = kept_array(node->grad, node->extra.reduce.kept);
    oari_array a = oari_array_of(node->saved[INPUT]);
    oari_array mean = oari_array_of(node->saved[MEAN]);

    return OARI_KERNEL(to, var_back, to, add, &grad, &a, &mean,
                       node->extra.reduce.factor);
}

static const oari_op_class var_over_op = { .name = "var_over",
                                           .backward = var_over_back };

/* The variance, not yet recorded; its mean goes to `mean`. */
static oar_tensor *compute_var(oari_pool *pool, const oar_tensor *a,
                               const oar_tensor *mean, const request *r,
                               double divisor)
{
    oar_tensor *out =
        oari_tensor_make_on(pool, oari_device_of(a), a->dtype, r->result);
    oari_array to, middle, from;

    if (out == NULL)
        return NULL;
    to = kept_array(out, r->kept);
    middle = oari_array_of(mean);
    from = oari_array_of(a);
    if (OARI_KERNEL(&to, var, pool, &to, &middle, &from, divisor) == OAR_OK)
        return out;
    oari_tensor_drop(pool, out);
    return NULL;
}

oar_tensor *oar_var_over(oar_tape *tape, oar_tensor *a, oar_dims over, int keep,
                         int correction)
{
    oari_pool *pool = oari_tape_pool(tape);
    request r = { .op = &var_over_op };
    oar_tensor *mean, *out;
    double divisor;

    if (oari_check_inputs(r.op->name, tape, 1, &a) != OAR_OK ||
        oari_check_float(r.op->name, a) != OAR_OK ||
        find_dims(a, over, keep, &r) != OAR_OK)
        return NULL;
    divisor = r.each > correction ? r.each - correction : 0; /* 0: no number */
    mean = oari_tensor_make_on(pool, oari_device_of(a), OAR_F64, r.kept);
    if (mean == NULL)
        return NULL;
    out = compute_var(pool, a, mean, &r, divisor);
    out = oari_emit(
        tape, out,
        &(oari_node_record){ .op = r.op,
                             .inputs = 1,
                             .input = { a },
                             .saved = { [INPUT] = a, [MEAN] = mean },
                             .extra = { .reduce = { r.kept, divisor } } });
    oari_tensor_drop(pool, mean);
    return out;
}
