/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_dims: many elements into one, over any dims.
 *
 * The results are an array that is repeated along the reduced dims: a walk over
 * the input then meets each result as often as it has elements. A row either
 * goes into one result or runs along a row of them. The order depends only on
 * shape and strides. */
#include <math.h>
#include <stdbool.h>

#include "tensor/cpu/arith.h"
#include "tensor/operands.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/walk.h"

enum { LANES = 8 };

/* ---- rows: data[0] are the results, data[1] elements, stride 1 ----------
 * Several lanes at once, so that one does not wait for the other. R is the type
 * of the results; JOIN(x, y) makes two of them one. */

#define JOIN_ROW(R, JOIN, identity)                       \
    do {                                                  \
        R *y = row->data[0];                              \
        const T *a = row->data[1];                        \
        const int64_t n = row->count, s = row->stride[0]; \
        if (s == 0)                                       \
            JOIN_ONE(R, JOIN, identity)                   \
        else if (s == 1)                                  \
            for (int64_t i = 0; i < n; i++)               \
                y[i] = JOIN(y[i], (R)a[i]);               \
        else                                              \
            for (int64_t i = 0; i < n; i++)               \
                y[i * s] = JOIN(y[i * s], (R)a[i]);       \
    } while (0)

#define JOIN_ONE(R, JOIN, identity)                   \
    {                                                 \
        R lane[LANES];                                \
        int64_t i = 0;                                \
        for (int k = 0; k < LANES; k++)               \
            lane[k] = identity;                       \
        for (; i + LANES <= n; i += LANES)            \
            for (int k = 0; k < LANES; k++)           \
                lane[k] = JOIN(lane[k], (R)a[i + k]); \
        for (; i < n; i++)                            \
            lane[0] = JOIN(lane[0], (R)a[i]);         \
        for (int k = 0; k < LANES; k++)               \
            *y = JOIN(*y, lane[k]);                   \
    }

#define SUM(x, y)  ((x) + (y))
#define PROD(x, y) ((x) * (y))
#define MAX(x, y)  ((y) > (x) || (y) != (y) ? (y) : (x)) /* a NaN stays */
#define MIN(x, y)  ((y) < (x) || (y) != (y) ? (y) : (x))
#define ANY(x, y)  ((x) | (y))
#define ALL(x, y)  ((x) & (y))

#define SUMS_ROW(name, JOIN, identity)                                       \
    OARI_TARGET_CLONES static void name(const oari_walk_row *row, void *arg) \
    {                                                                        \
        const oar_dtype *dtype = arg;                                        \
                                                                             \
        OARI_BY_FLOAT(*dtype, { JOIN_ROW(double, JOIN, identity); })         \
        OARI_BY_INTEGER(*dtype, { JOIN_ROW(uint64_t, JOIN, identity); })     \
    }

SUMS_ROW(sum_row, SUM, 0)
SUMS_ROW(prod_row, PROD, 1)

/* What is there already is the identity. */
#define EXTREME_ROW(name, JOIN)                                              \
    OARI_TARGET_CLONES static void name(const oari_walk_row *row, void *arg) \
    {                                                                        \
        const oar_dtype *dtype = arg;                                        \
                                                                             \
        OARI_BY_NUMBER(*dtype, { JOIN_ROW(T, JOIN, *y); })                   \
    }

EXTREME_ROW(max_row, MAX)
EXTREME_ROW(min_row, MIN)

/* The conversion to bool asks whether an element is not zero. */
#define TRUTH_ROW(name, JOIN, identity)                                      \
    OARI_TARGET_CLONES static void name(const oari_walk_row *row, void *arg) \
    {                                                                        \
        const oar_dtype *dtype = arg;                                        \
                                                                             \
        OARI_BY_NUMBER(*dtype, { JOIN_ROW(bool, JOIN, identity); })          \
    }

TRUTH_ROW(any_row, ANY, 0)
TRUTH_ROW(all_row, ALL, 1)

OARI_TARGET_CLONES static void set_row(const oari_walk_row *row, void *arg)
{
    const int64_t n = row->count, s = row->stride[0];
    const uint8_t *a = row->data[1];
    uint64_t *y = row->data[0], sum = 0;

    for (int64_t i = 0; s == 0 && i < n; i++)
        sum += a[i] != 0;
    for (int64_t i = 0; s != 0 && i < n; i++)
        y[i * s] += a[i] != 0;
    *y += sum;
}

/* ---- reductions ---------------------------------------------------------- */

/* Bools are counted. Their product and the least of them is whether all are
 * set, the largest whether any is. */
static oari_reduce_kind kind_on(oari_reduce_kind kind, oar_dtype dtype)
{
    static const oari_reduce_kind of_bools[OARI_REDUCE_COUNT] = {
        [OARI_REDUCE_SUM] = OARI_REDUCE_SET,
        [OARI_REDUCE_PROD] = OARI_REDUCE_ALL,
        [OARI_REDUCE_MAX] = OARI_REDUCE_ANY,
        [OARI_REDUCE_MIN] = OARI_REDUCE_ALL,
        [OARI_REDUCE_ANY] = OARI_REDUCE_ANY,
        [OARI_REDUCE_ALL] = OARI_REDUCE_ALL,
    };

    return dtype == OAR_BOOL ? of_bools[kind] : kind;
}

oar_dtype oari_sums_dtype(oari_reduce_kind kind, oar_dtype dtype)
{
    kind = kind_on(kind, dtype);
    if (kind == OARI_REDUCE_ANY || kind == OARI_REDUCE_ALL)
        return OAR_U8;
    if (kind == OARI_REDUCE_MAX || kind == OARI_REDUCE_MIN)
        return oari_row_dtype(dtype);
    return oari_dtype_is_float(dtype) ? OAR_F64 : OAR_U64;
}

oar_status oari_reduce_into(oari_reduce_kind kind, const oari_array *sums,
                            const oari_array *a)
{
    static const oari_walk_fn rows[OARI_REDUCE_COUNT] = {
        [OARI_REDUCE_SUM] = sum_row, [OARI_REDUCE_PROD] = prod_row,
        [OARI_REDUCE_MAX] = max_row, [OARI_REDUCE_MIN] = min_row,
        [OARI_REDUCE_ANY] = any_row, [OARI_REDUCE_ALL] = all_row,
        [OARI_REDUCE_SET] = set_row,
    };
    oar_dtype dtype = a->dtype == OAR_BOOL ? OAR_U8 : oari_row_dtype(a->dtype);

    oari_walk_into(a->at.shape, 2, (const oari_array *[]){ sums, a },
                   rows[kind_on(kind, a->dtype)], &dtype);
    return OAR_OK;
}

/* An array of sums, each holding `first`; NULL if there is no memory. */
static oar_tensor *make_sums(oari_pool *pool, oar_dtype dtype, oar_shape shape,
                             double first, oari_array *sums)
{
    oar_tensor *made = oari_tensor_make(pool, dtype, shape);

    if (made == NULL)
        return NULL;
    *sums = oari_array_of(made);
    oari_fill(sums, first);
    return made;
}

oar_status oari_reduce_over(oari_pool *pool, oari_reduce_kind kind,
                            const oari_array *to, const oari_array *a,
                            double factor)
{
    static const double first[OARI_REDUCE_COUNT] = {
        [OARI_REDUCE_PROD] = 1,
        [OARI_REDUCE_MAX] = -INFINITY, /* of integers: the least there is */
        [OARI_REDUCE_MIN] = INFINITY,
        [OARI_REDUCE_ALL] = 1,
    };
    oari_array sums;
    oar_tensor *scratch =
        make_sums(pool, oari_sums_dtype(kind, a->dtype), to->at.shape,
                  first[kind_on(kind, a->dtype)], &sums);

    if (scratch == NULL)
        return OAR_E_NOMEM;
    oari_reduce_into(kind, &sums, a);
    oari_scale(&sums, 0, &sums, factor);
    oari_copy(to, &sums);
    oari_tensor_drop(pool, scratch);
    return OAR_OK;
}

/* ---- max and min, backward ----------------------------------------------- */

typedef struct back {
    oar_dtype dtype;
    int add;
    double factor;
} back;

/* to, a, result, and what is left of the gradient: the first one takes it. */
static void extreme_back_row(const oari_walk_row *row, void *arg)
{
    const back *j = arg;
    const int64_t *s = row->stride;

    OARI_BY_FLOAT(j->dtype, {
        T *y = row->data[0];
        const T *a = row->data[1];
        const T *result = row->data[2];
        T *left = row->data[3];
        for (int64_t i = 0; i < row->count; i++) {
            T x = a[i * s[1]];
            T best = result[i * s[2]];
            int is = x == best || (x != x && best != best);
            y[i * s[0]] =
                (is ? left[i * s[3]] : (T)0) + (j->add ? y[i * s[0]] : (T)0);
            left[i * s[3]] = is ? (T)0 : left[i * s[3]];
        }
    })
}

oar_status oari_extreme_back(oari_pool *pool, const oari_array *to, int add,
                             const oari_array *grad, const oari_array *a,
                             const oari_array *result)
{
    oari_operands operands = { .pool = pool };
    const oari_array *from = oari_operands_in(&operands, a);
    const oari_array *best = oari_operands_in(&operands, result);
    const oari_array *y = oari_operands_out(&operands, to, add);
    oar_dtype dtype = oari_row_dtype(to->dtype);
    oar_tensor *scratch = oari_tensor_make(pool, dtype, grad->at.shape);
    oari_array left;

    if (scratch == NULL && operands.status == OAR_OK)
        operands.status = OAR_E_NOMEM;
    if (operands.status == OAR_OK) {
        left = oari_array_of(scratch);
        oari_copy(&left, grad);
        oari_walk(a->at.shape, 4,
                  (const oari_array *[]){ y, from, best, &left },
                  extreme_back_row, &(back){ dtype, add, 1 });
    }
    oari_tensor_drop(pool, scratch);
    return oari_operands_finish(&operands);
}

/* ---- prod, backward ------------------------------------------------------ */

/* Multiplies what is not zero. */
static void nonzero_row(const oari_walk_row *row, void *arg)
{
    const oar_dtype *dtype = arg;
    double *y = row->data[0];

    OARI_BY_FLOAT(*dtype, {
        const T *a = row->data[1];
        for (int64_t i = 0; i < row->count; i++)
            y[i * row->stride[0]] *= a[i] == 0 ? 1 : (double)a[i];
    })
}

static void count_zeros_row(const oari_walk_row *row, void *arg)
{
    const oar_dtype *dtype = arg;
    double *y = row->data[0];

    OARI_BY_FLOAT(*dtype, {
        const T *a = row->data[1];
        for (int64_t i = 0; i < row->count; i++)
            y[i * row->stride[0]] += a[i] == 0;
    })
}

/* A is the element, B the gradient times all elements but the zeros, C how many
 * zeros there are: one zero alone has a slope, beside two nothing has. */
static void prod_back_row(const oari_walk_row *row, void *arg)
{
    const back *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        OARI_FLAT4(row, T, T, double, double, {
            double others = A == 0 ? B : B / (double)A;
            double slope = C == (A == 0) ? others : 0;
            *Y = (T)slope + (j->add ? *Y : (T)0);
        });
    })
}

oar_status oari_prod_back(oari_pool *pool, const oari_array *to, int add,
                          const oari_array *grad, const oari_array *a)
{
    oar_shape shape = grad->at.shape;
    oari_array product, zeros;
    oar_tensor *p = make_sums(pool, OAR_F64, shape, 0, &product);
    oar_tensor *z = make_sums(pool, OAR_F64, shape, 0, &zeros);
    oar_dtype dtype = oari_row_dtype(a->dtype);

    if (p != NULL && z != NULL) {
        oari_copy(&product, grad);
        oari_walk_into(a->at.shape, 2, (const oari_array *[]){ &product, a },
                       nonzero_row, &dtype);
        oari_walk_into(a->at.shape, 2, (const oari_array *[]){ &zeros, a },
                       count_zeros_row, &dtype);
        oari_walk_flat(a->at.shape, 4,
                       (const oari_array *[]){ to, a, &product, &zeros }, add,
                       prod_back_row, &(back){ dtype, add, 1 });
    }
    oari_tensor_drop(pool, z);
    oari_tensor_drop(pool, p);
    return p != NULL && z != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* ---- variance ------------------------------------------------------------ */

/* data[2] is the mean. */
OARI_TARGET_CLONES static void spread_row(const oari_walk_row *row, void *arg)
{
    const oar_dtype *dtype = arg;
    double *y = row->data[0];
    const double *mean = row->data[2];

    OARI_BY_FLOAT(*dtype, {
        const T *a = row->data[1];
        for (int64_t i = 0; i < row->count; i++) {
            double off = (double)a[i] - mean[i];
            y[i * row->stride[0]] += off * off;
        }
    })
}

oar_status oari_var(oari_pool *pool, const oari_array *to,
                    const oari_array *mean, const oari_array *a, double divisor)
{
    int64_t results = oari_shape_count(to->at.shape);
    double each = (double)oari_shape_count(a->at.shape) / (double)results;
    oar_dtype dtype = oari_row_dtype(a->dtype);
    oari_array sums;
    oar_tensor *scratch = make_sums(pool, OAR_F64, to->at.shape, 0, &sums);

    if (scratch == NULL)
        return OAR_E_NOMEM;
    oari_fill(mean, 0);
    oari_reduce_into(OARI_REDUCE_SUM, mean, a);
    oari_scale(mean, 0, mean, 1 / each);
    oari_walk_into(a->at.shape, 3, (const oari_array *[]){ &sums, a, mean },
                   spread_row, &dtype);
    oari_scale(&sums, 0, &sums, 1 / divisor);
    oari_copy(to, &sums);
    oari_tensor_drop(pool, scratch);
    return OAR_OK;
}

OARI_TARGET_CLONES static void var_back_row(const oari_walk_row *row, void *arg)
{
    const back *j = arg;
    const double factor = j->factor;

    OARI_BY_FLOAT(j->dtype, {
        if (j->add)
            OARI_FLAT4(row, T, T, T, double,
                       *Y += A * (T)(factor * ((double)B - C)));
        else
            OARI_FLAT4(row, T, T, T, double,
                       *Y = A * (T)(factor * ((double)B - C)));
    })
}

oar_status oari_var_back(const oari_array *to, int add, const oari_array *grad,
                         const oari_array *a, const oari_array *mean,
                         double divisor)
{
    back j = { oari_row_dtype(to->dtype), add, 2 / divisor };

    oari_walk_flat(to->at.shape, 4, (const oari_array *[]){ to, grad, a, mean },
                   add, var_back_row, &j);
    return OAR_OK;
}
