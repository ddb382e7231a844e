/* SPDX-License-Identifier: Apache-2.0 */
/* ops_cases.h: each operation with the inputs that make_ops.py and
 * make_ops_more.py gave it, for the tests that go through all of them. For
 * tests, one file each. */
#ifndef OARI_TESTS_OPS_CASES_H
#define OARI_TESTS_OPS_CASES_H

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "golden/golden.h"
#include "support/last_error.h"

enum { MOST = 3 };

typedef oar_tensor *(*case_fn)(oar_tape *tape, oar_tensor *const *in);

#define CASE(name, expression)                                           \
    static oar_tensor *run_##name(oar_tape *tape, oar_tensor *const *in) \
    {                                                                    \
        return expression;                                               \
    }

#define BOTH in[0], in[1]

static oar_tensor *t(oar_tape *tape, oar_tensor *a)
{
    return oar_transpose(tape, a, 0, 1);
}

static oar_tensor *flags(oar_tape *tape, oar_tensor *a)
{
    return oar_cast(tape, a, OAR_BOOL);
}

/* One of the pieces. */
static oar_tensor *piece(oar_tape *tape, oar_tensor *a, const int64_t *size,
                         int which)
{
    oar_tensor *pieces[3] = { NULL };
    oar_status status = size != NULL
                            ? oar_tensor_split(tape, a, 1, 3, size, pieces)
                            : oar_chunk(tape, a, 1, 3, pieces);

    return status == OAR_OK ? pieces[which] : NULL;
}

static oar_tensor *top(oar_tape *tape, oar_tensor *a)
{
    oar_tensor *value = NULL, *index = NULL;

    return oar_topk(tape, a, 3, &value, &index) == OAR_OK ? value : NULL;
}

/* The values of an operation that gives indices besides. */
typedef oar_status (*extreme_fn)(oar_tape *tape, oar_tensor *a, int dim,
                                 int keep, oar_tensor **value,
                                 oar_tensor **index);

static oar_tensor *extreme(oar_tape *tape, oar_tensor *a, extreme_fn fn,
                           int dim, int keep)
{
    oar_tensor *value = NULL;

    return fn(tape, a, dim, keep, &value, NULL) == OAR_OK ? value : NULL;
}

static oar_tensor *sorted(oar_tape *tape, oar_tensor *a, int dim,
                          int descending)
{
    oar_tensor *value = NULL;

    return oar_sort(tape, a, dim, descending, &value, NULL) == OAR_OK ? value
                                                                      : NULL;
}

CASE(permute, oar_permute(tape, in[0], OAR_DIMS(2, 0, -2)))
CASE(slice, oar_slice(tape, in[0], 1, 1, -1, 2))
CASE(slice_cut,
     oar_slice(tape, oar_slice(tape, in[0], 0, -2, 99, 1), 1, 3, 99, 1))
CASE(select, oar_select(tape, in[0], 1, 2))
CASE(select_last, oar_select(tape, in[0], -1, -1))
CASE(expand, oar_expand(tape, in[0], OAR_SHAPE(2, -1, 5)))
CASE(squeeze, oar_squeeze(tape, in[0], 1))
CASE(unsqueeze, oar_unsqueeze(tape, in[0], -2))
CASE(contiguous, oar_contiguous(tape, t(tape, in[0])))
CASE(split, piece(tape, in[0], (int64_t[]){ 2, 4, 1 }, 1))
CASE(chunk, piece(tape, in[0], NULL, 0))
CASE(cat, oar_cat(tape, 3, in, 1))
CASE(cat_many, oar_cat(tape, 5, (oar_tensor *[]){ BOTH, BOTH, in[0] }, 0))
CASE(stack, oar_stack(tape, 3, in, 1))
CASE(stack_last, oar_stack(tape, 2, in, -1))

CASE(add, oar_add(tape, BOTH))
CASE(sub, oar_sub(tape, BOTH))
CASE(mul, oar_mul(tape, BOTH))
CASE(div, oar_div(tape, BOTH))
CASE(div_one, oar_div(tape, BOTH))
CASE(pow, oar_pow(tape, BOTH))
CASE(minimum, oar_minimum(tape, BOTH))
CASE(maximum, oar_maximum(tape, BOTH))
CASE(maximum_equal, oar_maximum(tape, BOTH))
CASE(scale, oar_scale(tape, in[0], -1.75))
CASE(shift, oar_shift(tape, in[0], 0.625))
CASE(power, oar_power(tape, in[0], 2.5))
CASE(power_two, oar_power(tape, in[0], 2))
CASE(power_three, oar_power(tape, in[0], 3))
CASE(power_zero, oar_power(tape, in[0], 0))
CASE(clamp, oar_clamp(tape, in[0], -0.5, 0.75))
CASE(clamp_low, oar_clamp(tape, in[0], -0.25, INFINITY))

#define X(name) CASE(name, oar_##name(tape, in[0]))
OAR_UNARY_LIST(X)
#undef X

CASE(minimum_scalar, oar_minimum_scalar(tape, in[0], 0.5))
CASE(maximum_scalar, oar_maximum_scalar(tape, in[0], -0.25))
CASE(maximum_scalar_equal, oar_maximum_scalar(tape, in[0], -0.25))
CASE(leaky_relu, oar_leaky_relu(tape, in[0], 0.1))
CASE(where_scalar, oar_where_scalar(tape, flags(tape, in[1]), in[0], 1.5))
CASE(where_scalar_wide, oar_where_scalar(tape, flags(tape, in[1]), in[0], 1.5))
CASE(where, oar_where(tape, flags(tape, in[2]), BOTH))
CASE(where_wide, oar_where(tape, flags(tape, in[2]), BOTH))
CASE(masked_fill, oar_masked_fill(tape, in[0], flags(tape, in[1]), -0.5))
CASE(tril, oar_tril(tape, in[0], 1))
CASE(triu, oar_triu(tape, in[0], -1))

CASE(sum, oar_sum(tape, in[0]))
CASE(mean, oar_mean(tape, in[0]))
CASE(sum_last, oar_sum_over(tape, in[0], OAR_DIMS(-1), 0))
CASE(sum_first, oar_sum_over(tape, in[0], OAR_DIMS(0), 1))
CASE(sum_ends, oar_sum_over(tape, in[0], OAR_DIMS(0, 2), 0))
CASE(mean_last, oar_mean_over(tape, in[0], OAR_DIMS(-1), 0))
CASE(mean_first, oar_mean_over(tape, in[0], OAR_DIMS(0), 1))
CASE(mean_ends, oar_mean_over(tape, in[0], OAR_DIMS(2, 0), 0))
CASE(prod_last, oar_prod_over(tape, in[0], OAR_DIMS(1), 0))
CASE(prod_zero, oar_prod_over(tape, in[0], OAR_DIMS(1), 0))
CASE(max_last, oar_max_over(tape, in[0], OAR_DIMS(-1), 0))
CASE(max_middle, oar_max_over(tape, in[0], OAR_DIMS(1), 1))
CASE(min_first, oar_min_over(tape, in[0], OAR_DIMS(0), 0))
CASE(var_last, oar_var_over(tape, in[0], OAR_DIMS(-1), 0, 1))
CASE(var_ends, oar_var_over(tape, in[0], OAR_DIMS(0, -1), 1, 0))
CASE(topk, top(tape, in[0]))

CASE(max_with_index, extreme(tape, in[0], oar_max_with_index, 1, 0))
CASE(min_with_index, extreme(tape, in[0], oar_min_with_index, -2, 1))
CASE(sort_last, sorted(tape, in[0], -1, 0))
CASE(sort_first, sorted(tape, in[0], 0, 1))
CASE(sort_middle, sorted(tape, in[0], 1, 0))
CASE(sort_long, sorted(tape, in[0], 0, 0))
CASE(cumsum_last, oar_cumsum(tape, in[0], -1))
CASE(cumsum_first, oar_cumsum(tape, in[0], 0))
CASE(cumsum_middle, oar_cumsum(tape, in[0], 1))
CASE(flip, oar_flip(tape, in[0], OAR_DIMS(0, -1)))
CASE(flip_all, oar_flip(tape, in[0], OAR_NO_DIMS))

CASE(index_select, oar_index_select(tape, in[0], 1, in[1]))
CASE(index_select_rows, oar_index_select(tape, in[0], 0, in[1]))
CASE(gather, oar_take_along(tape, in[0], 1, in[1]))
CASE(gather_first, oar_take_along(tape, in[0], 0, in[1]))
CASE(scatter_add, oar_tensor_scatter_add(tape, in[0], -1, in[2], in[1]))

CASE(matmul, oar_matmul(tape, BOTH))
CASE(matmul_turned, oar_matmul(tape, t(tape, in[0]), t(tape, in[1])))
CASE(matmul_many, oar_matmul(tape, BOTH))
CASE(matmul_one, oar_matmul(tape, BOTH))
CASE(matmul_wide, oar_matmul(tape, BOTH))
CASE(matmul_left, oar_matmul(tape, BOTH))
CASE(matmul_heads, oar_matmul(tape, oar_transpose(tape, in[0], 1, 2),
                              oar_permute(tape, in[1], OAR_DIMS(0, 2, 3, 1))))

/* Those whose gradient has a corner where the inputs lie say so: differences
 * tell nothing there. */
enum { SMOOTH = 0, CORNER = 1 };

typedef struct op_case {
    const char *name;
    case_fn fn;
    int corner;
} op_case;

#define X(name) { #name, run_##name, SMOOTH },
static const op_case op_cases[] = {
    X(permute) X(slice) X(slice_cut) X(select) X(select_last) X(expand) X(
        squeeze) X(unsqueeze) X(contiguous) X(split) X(chunk) X(cat) X(cat_many)
        X(stack) X(stack_last) X(add) X(sub) X(mul) X(div) X(div_one) X(pow) X(
            minimum) X(maximum) X(scale) X(shift) X(power) X(power_two)
            X(power_three) X(power_zero) X(clamp) X(clamp_low) OAR_UNARY_LIST(
                X) X(where) X(where_wide) X(masked_fill) X(tril) X(triu) X(sum)
                X(mean) X(sum_last) X(sum_first) X(sum_ends) X(mean_last) X(
                    mean_first) X(mean_ends) X(prod_last) X(prod_zero)
                    X(max_last) X(max_middle) X(min_first) X(var_last) X(
                        var_ends) X(topk) X(index_select) X(index_select_rows)
                        X(gather) X(gather_first) X(scatter_add) X(matmul) X(
                            matmul_turned) X(matmul_many) X(matmul_one)
                            X(matmul_wide) X(matmul_left) X(matmul_heads) X(
                                minimum_scalar) X(maximum_scalar)
                                X(leaky_relu) X(where_scalar) X(
                                    where_scalar_wide) X(max_with_index)
                                    X(min_with_index) X(sort_last) X(sort_first)
                                        X(sort_middle) X(sort_long)
                                            X(cumsum_last) X(cumsum_first) X(
                                                cumsum_middle) X(flip)
                                                X(flip_all){ "maximum_equal",
                                                             run_maximum_equal,
                                                             CORNER },
    { "maximum_scalar_equal", run_maximum_scalar_equal, CORNER },
};
#undef X

enum { OP_CASES = sizeof op_cases / sizeof *op_cases };

static int load_ops(void **state)
{
    return golden_load("ops") != 0 || golden_load("ops_more") != 0;
}

/* ---- inputs -------------------------------------------------------------- */

typedef struct leaves {
    oar_tensor *leaf[MOST];
    int spread;
} leaves;

/* spread: as golden_spread lays them out. */
static inline leaves leaves_of(const char *name, oar_dtype dtype, int spread)
{
    leaves l = { .spread = spread };

    for (int i = 0; i < MOST; i++)
        l.leaf[i] = golden_input(name, i, dtype, spread);
    return l;
}

static inline oar_tensor *run_case(const op_case *c, oar_tape *tape,
                                   const leaves *l)
{
    oar_tensor *in[MOST] = { NULL };

    for (int i = 0; i < MOST; i++)
        if (l->leaf[i] != NULL)
            in[i] = l->spread ? golden_view(tape, l->leaf[i]) : l->leaf[i];
    return c->fn(tape, in);
}

static inline void release_leaves(leaves *l)
{
    for (int i = 0; i < MOST; i++)
        oar_tensor_release(l->leaf[i]);
}

#endif
