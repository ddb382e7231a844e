/* SPDX-License-Identifier: Apache-2.0 */
/* scalar: functions of an element and one or two numbers. On integers the
 * numbers are whole. */
#include <math.h>

#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/walk.h"

#define POW(a, b) _Generic((a), float : powf, double : pow)(a, b)

typedef struct job {
    oar_dtype dtype;
    int add;
    const double *number;
} job;

/* A bound as an integer: those outside the type bound nothing. */
static int64_t whole_number(double number)
{
    return number >= 0x1p63    ? INT64_MAX
           : number <= -0x1p63 ? INT64_MIN
                               : (int64_t)number;
}

/* ---- forward ------------------------------------------------------------- */

OARI_TARGET_CLONES static void shift_row(const oari_walk_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        const T offset = (T)j->number[0];
        OARI_FLAT2(row, T, T, *Y = A + offset);
    })
    OARI_BY_INTEGER(j->dtype, {
        const W offset = (W)whole_number(j->number[0]);
        OARI_FLAT2(row, T, T, *Y = (T)((W)A + offset));
    })
}

OARI_TARGET_CLONES static void power_row(const oari_walk_row *row, void *arg)
{
    const job *j = arg;
    const double exponent = j->number[0];

    OARI_BY_FLOAT(j->dtype, {
        if (exponent == 2)
            OARI_FLAT2(row, T, T, *Y = A * A);
        else if (exponent == 3)
            OARI_FLAT2(row, T, T, *Y = A * A * A);
        else
            OARI_FLAT2(row, T, T, *Y = POW(A, (T)exponent));
    })
    OARI_BY_INTEGER(j->dtype, {
        const uint64_t times = (uint64_t)whole_number(exponent);
        OARI_FLAT2(row, T, T, *Y = (T)oari_whole_power((uint64_t)A, times));
    })
}

/* The upper bound wins; a NaN stays one. */
OARI_TARGET_CLONES static void clamp_row(const oari_walk_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        const T low = (T)j->number[0];
        const T high = (T)j->number[1];
        OARI_FLAT2(row, T, T, {
            T kept = A < low ? low : A;
            *Y = kept > high ? high : kept;
        });
    })
    OARI_BY_INTEGER(j->dtype, {
        const double low = ceil(j->number[0]);
        const double high = floor(j->number[1]);
        OARI_FLAT2(row, T, T, {
            T kept = (double)A < low ? (T)whole_number(low) : A;
            *Y = (double)kept > high ? (T)whole_number(high) : kept;
        });
    })
}

OARI_TARGET_CLONES static void leaky_relu_row(const oari_walk_row *row,
                                              void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        const T slope = (T)j->number[0];
        OARI_FLAT2(row, T, T, *Y = A > 0 ? A : A * slope);
    })
}

oar_status oari_scalar(oari_scalar_kind kind, const oari_array *to,
                       const oari_array *a, const double *number)
{
    static const oari_walk_fn rows[OARI_SCALAR_COUNT] = {
        [OARI_SHIFT] = shift_row,
        [OARI_POWER] = power_row,
        [OARI_CLAMP] = clamp_row,
        [OARI_LEAKY_RELU] = leaky_relu_row,
    };
    job j = { oari_row_dtype(to->dtype), 0, number };

    oari_walk_flat(to->at.shape, 2, (const oari_array *[]){ to, a }, 0,
                   rows[kind], &j);
    return OAR_OK;
}

/* ---- backward: A is the gradient, B the input ---------------------------- */

#define BACK(expression)                                  \
    do {                                                  \
        if (j->add)                                       \
            OARI_FLAT3(row, T, T, T, *Y += (expression)); \
        else                                              \
            OARI_FLAT3(row, T, T, T, *Y = (expression));  \
    } while (0)

OARI_TARGET_CLONES static void power_back(const oari_walk_row *row, void *arg)
{
    const job *j = arg;
    const double exponent = j->number[0];

    OARI_BY_FLOAT(j->dtype, {
        const T times = (T)exponent;
        if (exponent == 0)
            BACK(A * 0);
        else if (exponent == 2)
            BACK(A * 2 * B);
        else if (exponent == 3)
            BACK(A * 3 * B * B);
        else
            BACK(A * times * POW(B, times - 1));
    })
}

OARI_TARGET_CLONES static void clamp_back(const oari_walk_row *row, void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        const T low = (T)j->number[0];
        const T high = (T)j->number[1];
        BACK(B < low || B > high ? (T)0 : A);
    })
}

OARI_TARGET_CLONES static void leaky_relu_back(const oari_walk_row *row,
                                               void *arg)
{
    const job *j = arg;

    OARI_BY_FLOAT(j->dtype, {
        const T slope = (T)j->number[0];
        BACK(B > 0 ? A : A * slope);
    })
}

oar_status oari_scalar_back(oari_scalar_kind kind, const oari_array *to,
                            int add, const oari_array *grad,
                            const oari_array *saved, const double *number)
{
    static const oari_walk_fn rows[OARI_SCALAR_COUNT] = {
        [OARI_POWER] = power_back,
        [OARI_CLAMP] = clamp_back,
        [OARI_LEAKY_RELU] = leaky_relu_back,
    };
    job j = { oari_row_dtype(to->dtype), add, number };

    oari_walk_flat(to->at.shape, 3, (const oari_array *[]){ to, grad, saved },
                   add, rows[kind], &j);
    return OAR_OK;
}
