/* SPDX-License-Identifier: Apache-2.0 */
/* unary: functions of one element, and their derivatives from what was saved.
 * The dtype is chosen once per row, never per element. */
#include "tensor/cpu/arith.h"
#include "tensor/cpu/normal.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/product/fused.h"
#include "tensor/cpu/math.h"
#include "tensor/cpu/walk.h"

#define GELU_SCALE  0.79788456080286535588 /* sqrt(2/pi) */
#define GELU_CUBIC  0.044715
#define SIZE(a)     ((a) > 0 ? (a) : 0 - (a))
#define POSITIVE(a) ((a) <= 0 ? (T)0 : (a)) /* a NaN stays one */

#define SIGN(a)   ((a) > 0 ? (T)1 : (a) == 0 || (a) != (a) ? (T)0 : (T)-1)
#define ERF_SLOPE 1.12837916709551257390 /* 2 / sqrt(pi), at zero */

/* By a function of libm's; an integer is whole already. */
#define WHOLE(name, a) \
    _Generic((a), float : name##f(a), double : name(a), default : (a))

/* ---- forward ------------------------------------------------------------- */

#define NUMBER_ROW(name, expression)                                          \
    OARI_TARGET_CLONES static void name##_row(const oari_walk_row *row,       \
                                              void *arg)                      \
    {                                                                         \
        const oar_dtype *dtype = arg;                                         \
                                                                              \
        OARI_BY_NUMBER(*dtype, { OARI_FLAT2(row, T, T, *Y = (expression)); }) \
    }

#define FLOAT_ROW(name, expression)                                          \
    OARI_TARGET_CLONES static void name##_row(const oari_walk_row *row,      \
                                              void *arg)                     \
    {                                                                        \
        const oar_dtype *dtype = arg;                                        \
                                                                             \
        OARI_BY_FLOAT(*dtype, { OARI_FLAT2(row, T, T, *Y = (expression)); }) \
    }

/* The tanh that gelu_tanh is made of. */
#define GELU_TANH(a) \
    OARI_TANH((T)GELU_SCALE *((a) + (T)GELU_CUBIC * (a) * (a) * (a)))

NUMBER_ROW(neg, (T) - (W)A)
NUMBER_ROW(abs, A > 0 ? A : (T)(0 - (W)A))
NUMBER_ROW(relu, POSITIVE(A))
NUMBER_ROW(sign, SIGN(A))
NUMBER_ROW(floor, WHOLE(floor, A))
NUMBER_ROW(ceil, WHOLE(ceil, A))
NUMBER_ROW(round, WHOLE(rint, A))
FLOAT_ROW(exp, OARI_EXP(A))
FLOAT_ROW(expm1, OARI_EXPM1(A))
FLOAT_ROW(log, OARI_LOG(A))
FLOAT_ROW(log1p, OARI_LOG1P(A))
FLOAT_ROW(erf, OARI_ERF(A))
FLOAT_ROW(sqrt, OARI_SQRT(A))
FLOAT_ROW(rsqrt, 1 / OARI_SQRT(A))
FLOAT_ROW(quick_sin, OARI_SIN(A))
FLOAT_ROW(quick_cos, OARI_COS(A))
FLOAT_ROW(tanh, OARI_TANH(A))
FLOAT_ROW(sigmoid, OARI_SIGMOID(A))
FLOAT_ROW(gelu_tanh, (T)0.5 * A * (1 + GELU_TANH(A)))
FLOAT_ROW(silu, A *OARI_SIGMOID(A))
FLOAT_ROW(softplus, POSITIVE(A) + OARI_LOG1P(OARI_EXP(-SIZE(A))))

static void gelu_row(const oari_walk_row *row, void *arg)
{
    const oar_dtype *dtype = arg;

    if (*dtype == OAR_F32)
        oari_fused()->gelu(row->data[0], row->data[1], row->count);
    else
        OARI_FLAT2(row, double, double, *Y = A * oari_normal_cdf(A));
}

/* After the quick loop, the few f32 that are too large for it, if any. */
#define TURNED_ROW(name)                                              \
    static void name##_row(const oari_walk_row *row, void *arg)       \
    {                                                                 \
        const oar_dtype *dtype = arg;                                 \
        float *y = row->data[0];                                      \
        const float *a = row->data[1];                                \
                                                                      \
        quick_##name##_row(row, arg);                                 \
        for (int64_t i = 0; *dtype == OAR_F32 && i < row->count; i++) \
            if (!(fabsf(a[i]) <= OARI_SINCOS_MAX))                    \
                y[i] = name##f(a[i]);                                 \
    }

TURNED_ROW(sin)
TURNED_ROW(cos)

oar_status oari_unary(oari_unary_kind kind, const oari_array *to,
                      const oari_array *a)
{
    static const oari_walk_fn rows[OARI_UNARY_COUNT] = {
#define X(name) [OARI_UNARY_##name] = name##_row,
        OAR_UNARY_LIST(X)
#undef X
    };
    oar_dtype dtype = oari_row_dtype(to->dtype);

    oari_walk_flat(to->at.shape, 2, (const oari_array *[]){ to, a }, 0,
                   rows[kind], &dtype);
    return OAR_OK;
}

int oari_unary_on_integers(oari_unary_kind kind)
{
    return kind < OARI_UNARY_exp;
}

/* ---- backward: A is the gradient, B what was saved ----------------------- */

typedef struct back {
    oar_dtype dtype;
    int add;
} back;

#define BACK_ROW(name, expression)                                       \
    OARI_TARGET_CLONES static void name##_back(const oari_walk_row *row, \
                                               void *arg)                \
    {                                                                    \
        const back *j = arg;                                             \
                                                                         \
        OARI_BY_FLOAT(j->dtype, {                                        \
            if (j->add)                                                  \
                OARI_FLAT3(row, T, T, T, *Y += (expression));            \
            else                                                         \
                OARI_FLAT3(row, T, T, T, *Y = (expression));             \
        })                                                               \
    }

#define GELU_TANH_SLOPE(a, t)         \
    ((T)0.5 * (1 + (t)) +             \
     (T)0.5 * (a) * (1 - (t) * (t)) * \
         ((T)GELU_SCALE + (T)(3 * GELU_SCALE * GELU_CUBIC) * (a) * (a)))
#define FLAT             ((void)A, (void)B, (T)0) /* no slope */
#define SILU_SLOPE(a, s) ((s) * (1 + (a) * (1 - (s))))

BACK_ROW(neg, -A)
BACK_ROW(abs, B > 0 ? A : B < 0 ? -A : (T)0)
BACK_ROW(relu, B <= 0 ? (T)0 : A)
BACK_ROW(sign, FLAT)
BACK_ROW(floor, FLAT)
BACK_ROW(ceil, FLAT)
BACK_ROW(round, FLAT)
BACK_ROW(exp, A *B)
BACK_ROW(expm1, A *(B + 1))
BACK_ROW(log, A / B)
BACK_ROW(log1p, A / (1 + B))
BACK_ROW(erf, A *(T)ERF_SLOPE *OARI_EXP(-(B *B)))
BACK_ROW(sqrt, A / (2 * B))
BACK_ROW(rsqrt, (T)-0.5 * A / (B * OARI_SQRT(B)))
BACK_ROW(tanh, A *(1 - B * B))
BACK_ROW(sigmoid, A *B *(1 - B))
BACK_ROW(gelu_tanh, A *GELU_TANH_SLOPE(B, GELU_TANH(B)))
BACK_ROW(silu, A *SILU_SLOPE(B, OARI_SIGMOID(B)))
BACK_ROW(softplus, A *OARI_SIGMOID(B))

BACK_ROW(gelu_f64, A *oari_gelu_slope(B))

static void gelu_back(const oari_walk_row *row, void *arg)
{
    const back *j = arg;

    if (j->dtype == OAR_F32)
        oari_fused()->gelu_back(row->data[0], j->add, row->data[1],
                                row->data[2], row->count);
    else
        gelu_f64_back(row, arg);
}

/* Turned by libm: exact for every size, and rare in training. */
#define TURN(name, b) _Generic((b), float : name##f, double : name)(b)
BACK_ROW(sin, A *TURN(cos, B))
BACK_ROW(cos, -A *TURN(sin, B))

oari_unary_saves oari_unary_saved(oari_unary_kind kind)
{
    switch (kind) {
    case OARI_UNARY_neg:
    case OARI_UNARY_sign:
    case OARI_UNARY_floor:
    case OARI_UNARY_ceil:
    case OARI_UNARY_round: return OARI_SAVES_NOTHING;
    case OARI_UNARY_relu:
    case OARI_UNARY_exp:
    case OARI_UNARY_expm1:
    case OARI_UNARY_sqrt:
    case OARI_UNARY_tanh:
    case OARI_UNARY_sigmoid: return OARI_SAVES_RESULT;
    default: return OARI_SAVES_INPUT;
    }
}

oar_status oari_unary_back(oari_unary_kind kind, const oari_array *to, int add,
                           const oari_array *grad, const oari_array *saved)
{
    static const oari_walk_fn rows[OARI_UNARY_COUNT] = {
#define X(name) [OARI_UNARY_##name] = name##_back,
        OAR_UNARY_LIST(X)
#undef X
    };
    back j = { oari_row_dtype(to->dtype), add };

    oari_walk_flat(to->at.shape, 3, (const oari_array *[]){ to, grad, saved },
                   add, rows[kind], &j);
    return OAR_OK;
}

/* ---- value and slope at once --------------------------------------------- */

/* Y becomes the value, X the slope; A is what X was. */
#define SPLIT_ROW(name, value, slope)                                      \
    OARI_TARGET_CLONES static void name##_split(oar_dtype dtype, void *to, \
                                                void *from, int64_t count) \
    {                                                                      \
        OARI_BY_FLOAT(dtype, {                                             \
            T *restrict y = to;                                            \
            T *restrict x = from;                                          \
            for (int64_t i = 0; i < count; i++) {                          \
                const T A = x[i];                                          \
                y[i] = (value);                                            \
                x[i] = (slope);                                            \
            }                                                              \
        })                                                                 \
    }

static void gelu_split(oar_dtype dtype, void *to, void *from, int64_t count)
{
    double *y = to, *x = from;

    if (dtype == OAR_F32) {
        oari_fused()->gelu_split(to, from, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i] * oari_normal_cdf(x[i]);
        x[i] = oari_gelu_slope(x[i]);
    }
}

SPLIT_ROW(gelu_tanh, (T)0.5 * A * (1 + GELU_TANH(A)),
          GELU_TANH_SLOPE(A, GELU_TANH(A)))
SPLIT_ROW(silu, A *OARI_SIGMOID(A), SILU_SLOPE(A, OARI_SIGMOID(A)))

int oari_unary_split(oari_unary_kind kind, const oari_array *to,
                     const oari_array *x)
{
    static void (*const splits[OARI_UNARY_COUNT])(oar_dtype dtype, void *to,
                                                  void *from, int64_t count) = {
        [OARI_UNARY_gelu] = gelu_split,
        [OARI_UNARY_gelu_tanh] = gelu_tanh_split,
        [OARI_UNARY_silu] = silu_split,
    };

    /* A slope rounded to a half would not be the slope backward computes. */
    if (splits[kind] == NULL || (to->dtype != OAR_F32 && to->dtype != OAR_F64))
        return 0;
    splits[kind](to->dtype, oari_array_data(to), oari_array_data(x),
                 oari_shape_count(to->at.shape));
    return 1;
}
