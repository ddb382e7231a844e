/* SPDX-License-Identifier: Apache-2.0 */
/* conform_reduce: what a reduction must give.
 *
 * A float result is compared with the exact one: in f64 for f32 and half types,
 * in long double for f64. A canonical result must have exactly the bits of
 * combining in the order of ranks, half types in f32. */
#include "conform.h"

#include <math.h>
#include <string.h>

/* ---- integers ------------------------------------------------------------ */

/* What a sum is divided by; 1: nothing. */
static double divisor(const conform_job *j)
{
    double sum = 0;

    if (j->t.op == OAR_REDUCE_OP_AVG)
        return j->size;
    if (j->t.op != OAR_REDUCE_OP_WEIGHTED_MEAN)
        return 1;
    for (int r = 0; r < j->size; r++)
        sum += value_factor(j, r);
    return sum;
}

static int is_less(oar_dtype dtype, uint64_t a, uint64_t b)
{
    return value_is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t combine(const conform_job *j, uint64_t a, uint64_t b)
{
    switch (j->t.op) {
    case OAR_REDUCE_OP_PROD: return a * b;
    case OAR_REDUCE_OP_MIN: return is_less(j->t.dtype, a, b) ? a : b;
    case OAR_REDUCE_OP_MAX: return is_less(j->t.dtype, a, b) ? b : a;
    case OAR_REDUCE_OP_BAND: return a & b;
    case OAR_REDUCE_OP_BOR: return a | b;
    case OAR_REDUCE_OP_BXOR: return a ^ b;
    default: return j->t.dtype == OAR_BOOL ? a | b : a + b;
    }
}

static void divide(const conform_job *j, value_block *sum, size_t n)
{
    int64_t by = (int64_t)divisor(j);

    for (size_t i = 0; by != 1 && i < n; i++)
        if (by == 0)
            sum->u[i] = 0; /* no weight at all */
        else if (value_is_signed(j->t.dtype))
            sum->u[i] = (uint64_t)((int64_t)sum->u[i] / by);
        else
            sum->u[i] /= (uint64_t)by;
}

static void reduce_integers(const conform_job *j, size_t start, size_t n,
                            value_block *sum)
{
    value_block x;

    for (int r = 0; r < j->size; r++) {
        uint64_t factor =
            value_is_scaled(j->t.op) ? (uint64_t)value_factor(j, r) : 1;
        value_integers(j, r, start, n, x.u);
        for (size_t i = 0; i < n; i++) {
            uint64_t term = x.u[i] * factor;
            sum->u[i] = r == 0 ? term : combine(j, sum->u[i], term);
        }
        value_widen(j->t.dtype, sum->u, n); /* wraps */
    }
    divide(j, sum, n);
}

/* ---- floats -------------------------------------------------------------- */

static double picked(oar_reduce_op_kind op, double a, double b)
{
    int a_first = a < b || (a == b && signbit(a));

    if (isnan(a) || isnan(b))
        return (double)NAN;
    return (op == OAR_REDUCE_OP_MIN) == a_first ? a : b;
}

/* The reduction of n elements in the order of ranks, computed in `type`. */
#define FOLD(name, type)                                                       \
    static void name(const conform_job *j, size_t start, size_t n, type *sum)  \
    {                                                                          \
        type by = (type)divisor(j);                                            \
        value_block b;                                                         \
        for (int r = 0; r < j->size; r++) {                                    \
            type factor =                                                      \
                value_is_scaled(j->t.op) ? (type)value_factor(j, r) : 1;       \
            value_floats(j, r, start, n, b.f);                                 \
            for (size_t i = 0; i < n; i++) {                                   \
                type x = (type)b.f[i] * factor;                                \
                if (r == 0)                                                    \
                    sum[i] = x;                                                \
                else if (value_is_pick(j->t.op))                               \
                    sum[i] = (type)picked(j->t.op, (double)sum[i], (double)x); \
                else if (j->t.op == OAR_REDUCE_OP_PROD)                        \
                    sum[i] *= x;                                               \
                else                                                           \
                    sum[i] += x;                                               \
            }                                                                  \
        }                                                                      \
        for (size_t i = 0; by != 1 && i < n; i++)                              \
            sum[i] = by == 0 ? 0 : sum[i] / by;                                \
    }
FOLD(fold_float, float)
FOLD(fold_double, double)
FOLD(fold_long, long double)

/* In the order of ranks, halves in f32, rounded once: canonical. */
static void reduce_floats(const conform_job *j, size_t start, size_t n,
                          value_block *sum)
{
    float narrow[VALUE_BLOCK] = { 0 };

    if (j->t.dtype == OAR_F64) {
        fold_double(j, start, n, sum->f);
        return;
    }
    fold_float(j, start, n, narrow);
    for (size_t i = 0; i < n; i++)
        sum->f[i] = float_rounded(j->t.dtype, (double)narrow[i]);
}

/* Each operation may be wrong by half a unit; for halves that is in f32. */
static double allowance(const conform_job *j)
{
    double roundings = j->size - 1;
    int spare = 23 - float_digits(j->t.dtype);

    if (j->t.op == OAR_REDUCE_OP_AVG)
        roundings += 1;
    if (value_is_scaled(j->t.op))
        roundings += 2;
    if (j->t.dtype == OAR_F64 || j->t.dtype == OAR_F32)
        return roundings;
    return 0.5 + ldexp(roundings, -spare);
}

/* How far what came is from the exact results, in units of the last place. */
static void find_errors(const conform_job *j, size_t start, size_t n,
                        const unsigned char *data, double *error)
{
    size_t size = oar_dtype_size(j->t.dtype);
    long double wide[VALUE_BLOCK] = { 0 };
    double exact[VALUE_BLOCK] = { 0 };

    if (j->t.dtype == OAR_F64) {
        fold_long(j, start, n, wide);
        for (size_t i = 0; i < n; i++) {
            double got = float_read(OAR_F64, data + i * size);
            error[i] = (double)fabsl(wide[i] - (long double)got) /
                       float_ulp(OAR_F64, (double)wide[i]);
        }
        return;
    }
    fold_double(j, start, n, exact);
    for (size_t i = 0; i < n; i++)
        error[i] = fabs(exact[i] - float_read(j->t.dtype, data + i * size)) /
                   float_ulp(j->t.dtype, exact[i]);
}

/* Whether only the same value will do: not a number like any other. */
static int is_odd(double got, double want)
{
    return isnan(want) || isinf(want) || want == 0 || isnan(got) || isinf(got);
}

static int is_same(const conform_job *j, double got, double want)
{
    if (isnan(want))
        return isnan(got);
    if (got == 0 && want == 0 && j->d->s->gpu &&
        (j->d->s->can & OAR_CAN_ORDER) == 0)
        return 1; /* which zero is NCCL's to choose */
    return got == want && !signbit(got) == !signbit(want);
}

static size_t wrong_floats(const conform_job *j, size_t start, size_t n,
                           const unsigned char *data, uint64_t *want,
                           double *worst)
{
    size_t size = oar_dtype_size(j->t.dtype);
    int strict = j->t.canonical || value_is_pick(j->t.op);
    double error[VALUE_BLOCK], allowed = allowance(j);
    value_block sum = { { 0 } };

    reduce_floats(j, start, n, &sum);
    find_errors(j, start, n, data, error);
    for (size_t i = 0; i < n; i++) {
        double got = float_read(j->t.dtype, data + i * size);
        int exact = strict || is_odd(got, sum.f[i]);
        if (exact ? !is_same(j, got, sum.f[i]) : !(error[i] <= allowed)) {
            float_write(j->t.dtype, sum.f[i], want);
            return i;
        }
        if (!is_odd(got, sum.f[i]) && error[i] > *worst)
            *worst = error[i];
    }
    return n;
}

static size_t wrong_integers(const conform_job *j, size_t start, size_t n,
                             const unsigned char *data, uint64_t *want)
{
    size_t size = oar_dtype_size(j->t.dtype), at;
    unsigned char made[8 * VALUE_BLOCK];
    value_block sum = { { 0 } };

    reduce_integers(j, start, n, &sum);
    value_store_integers(j->t.dtype, sum.u, n, made);
    at = value_first_other(data, made, n, size);
    if (at < n)
        memcpy(want, made + at * size, size);
    return at;
}

size_t value_find_wrong(const conform_job *j, size_t start, size_t count,
                        const void *data, uint64_t *want, double *worst)
{
    const unsigned char *from = data;
    size_t size = oar_dtype_size(j->t.dtype), at;

    *worst = 0;
    for (size_t done = 0; done < count; done += VALUE_BLOCK) {
        size_t n = count - done < VALUE_BLOCK ? count - done : VALUE_BLOCK;
        if (value_is_float(j->t.dtype))
            at = wrong_floats(j, start + done, n, from + done * size, want,
                              worst);
        else
            at = wrong_integers(j, start + done, n, from + done * size, want);
        if (at < n)
            return done + at;
    }
    return count;
}
