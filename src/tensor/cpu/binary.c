/* SPDX-License-Identifier: Apache-2.0 */
/* binary: functions of two elements, and what each contributes to a gradient.
 * The dtype is chosen once per row, never per element. */
#include <math.h>

#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/walk.h"

#define POW(a, b) _Generic((a), float : powf, double : pow)(a, b)
#define LOG(a)    _Generic((a), float : logf, double : log)(a)

/* ---- forward ------------------------------------------------------------- */

#define NUMBER_ROW(name, expression)                                         \
    OARI_TARGET_CLONES static void name(const oari_walk_row *row, void *arg) \
    {                                                                        \
        const oar_dtype *dtype = arg;                                        \
                                                                             \
        OARI_BY_NUMBER(*dtype,                                               \
                       { OARI_FLAT3(row, T, T, T, *Y = (expression)); })     \
    }

/* The second comparison is true for NaN only: it stays. */
NUMBER_ROW(add_row, (T)((W)A + (W)B))
NUMBER_ROW(sub_row, (T)((W)A - (W)B))
NUMBER_ROW(mul_row, (T)((W)A *(W)B))
NUMBER_ROW(minimum_row, A < B || A != A ? A : B)
NUMBER_ROW(maximum_row, A > B || A != A ? A : B)

/* The one quotient that does not fit its type wraps. */
static void div_row(const oari_walk_row *row, void *arg)
{
    const oar_dtype *dtype = arg;

    OARI_BY_FLOAT(*dtype, { OARI_FLAT3(row, T, T, T, *Y = A / B); })
    OARI_BY_INTEGER(*dtype, {
        OARI_FLAT3(row, T, T, T,
                   *Y = (T)-1 < 1 && B == (T)-1 ? (T)(0 - (W)A) : (T)(A / B));
    })
}

static void pow_row(const oari_walk_row *row, void *arg)
{
    const oar_dtype *dtype = arg;

    OARI_BY_FLOAT(*dtype, { OARI_FLAT3(row, T, T, T, *Y = POW(A, B)); })
    OARI_BY_INTEGER(*dtype, {
        OARI_FLAT3(row, T, T, T,
                   *Y = (T)oari_whole_power((uint64_t)A, (uint64_t)B));
    })
}

oar_status oari_binary(oari_binary_kind kind, const oari_array *to,
                       const oari_array *a, const oari_array *b)
{
    static const oari_walk_fn rows[OARI_BINARY_COUNT] = {
        [OARI_ADD] = add_row,         [OARI_SUB] = sub_row,
        [OARI_MUL] = mul_row,         [OARI_DIV] = div_row,
        [OARI_POW] = pow_row,         [OARI_MINIMUM] = minimum_row,
        [OARI_MAXIMUM] = maximum_row,
    };
    oar_dtype dtype = oari_row_dtype(to->dtype);

    oari_walk_flat(to->at.shape, 3, (const oari_array *[]){ to, a, b }, 0,
                   rows[kind], &dtype);
    return OAR_OK;
}

/* ---- backward: A is the gradient, B and C the inputs --------------------- */

typedef struct back {
    oar_dtype dtype;
    int add;
} back;

#define BACK_ROW(name, expression)                                           \
    OARI_TARGET_CLONES static void name(const oari_walk_row *row, void *arg) \
    {                                                                        \
        const back *j = arg;                                                 \
                                                                             \
        OARI_BY_FLOAT(j->dtype, {                                            \
            if (j->add)                                                      \
                OARI_FLAT4(row, T, T, T, T, *Y += (expression));             \
            else                                                             \
                OARI_FLAT4(row, T, T, T, T, *Y = (expression));              \
        })                                                                   \
    }

/* Where both are equal, each has half of it. */
#define SHARE(wins, ties) ((wins) ? A : (ties) ? A / 2 : (T)0)

/* A B / C^2. Where one of the quotients is infinite, for a small C, the other
 * one divided once more need not be. */
#define FINITE(x) ((x) - (x) == 0)
#define QUOTIENT_SLOPE                             \
    (FINITE((A / C) * (B / C)) ? (A / C) * (B / C) \
     : FINITE(A / C)           ? B * (A / C / C)   \
                               : A * (B / C / C))

BACK_ROW(pass_back, A)
BACK_ROW(minus_back, -A)
BACK_ROW(mul_left, A *C)
BACK_ROW(mul_right, A *B)
BACK_ROW(div_left, A / C)
BACK_ROW(div_right, -QUOTIENT_SLOPE)
BACK_ROW(minimum_left, SHARE(B < C, B == C))
BACK_ROW(minimum_right, SHARE(C < B, B == C))
BACK_ROW(maximum_left, SHARE(B > C, B == C))
BACK_ROW(maximum_right, SHARE(C > B, B == C))

/* A constant power of zero has no slope, though its formula has no value. */
BACK_ROW(pow_left, C == 0 ? (T)0 : A * C * POW(B, C - 1))
BACK_ROW(pow_right, B == 0 && C >= 0 ? (T)0 : A * POW(B, C) * LOG(B))

oar_status oari_binary_back(oari_binary_kind kind, int side,
                            const oari_array *to, int add,
                            const oari_array *grad, const oari_array *a,
                            const oari_array *b)
{
    static const oari_walk_fn rows[OARI_BINARY_COUNT][2] = {
        [OARI_ADD] = { pass_back, pass_back },
        [OARI_SUB] = { pass_back, minus_back },
        [OARI_MUL] = { mul_left, mul_right },
        [OARI_DIV] = { div_left, div_right },
        [OARI_POW] = { pow_left, pow_right },
        [OARI_MINIMUM] = { minimum_left, minimum_right },
        [OARI_MAXIMUM] = { maximum_left, maximum_right },
    };
    back j = { oari_row_dtype(to->dtype), add };

    oari_walk_flat(to->at.shape, 4, (const oari_array *[]){ to, grad, a, b },
                   add, rows[kind][side], &j);
    return OAR_OK;
}

/* ---- what integers cannot be asked --------------------------------------- */

typedef struct search {
    oar_dtype dtype;
    oari_signs found;
} search;

static void search_row(const oari_walk_row *row, void *arg)
{
    search *s = arg;

    OARI_BY_INTEGER(s->dtype, {
        const T *a = row->data[0];
        for (int64_t i = 0; i < row->count; i++) {
            s->found.zero |= a[i * row->stride[0]] == 0;
            s->found.negative |=
                (int64_t)a[i * row->stride[0]] < 0 && (T)-1 < 1;
        }
    })
}

oari_signs oari_signs_of(const oari_array *a)
{
    search s = { .dtype = a->dtype };

    oari_walk(a->at.shape, 1, &a, search_row, &s);
    return s.found;
}
