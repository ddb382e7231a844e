/* SPDX-License-Identifier: Apache-2.0 */
/* gradcheck.h: gradients against differences of values, in f64. For tests, one
 * file each: everything is static and some of it may go unused. */
#ifndef OARI_TESTS_GRADCHECK_H
#define OARI_TESTS_GRADCHECK_H

#include <math.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#define OK(call)                                              \
    do {                                                      \
        if ((call) != OAR_OK)                                 \
            fail_msg("%s: %s", #call, oar_last_error_text()); \
    } while (0)

enum { GRADCHECK_LEAVES = 3 };
static const double gradcheck_step = 1e-5, gradcheck_tolerance = 2e-8;

typedef oar_tensor *(*gradcheck_fn)(oar_tape *tape, oar_tensor *const *in);

typedef struct gradcheck {
    const char *name;
    gradcheck_fn fn;
    oar_shape shape[GRADCHECK_LEAVES]; /* of the leaves; ndim -1: no more */
} gradcheck;

#define OP(name, expression)                                       \
    static oar_tensor *name(oar_tape *tape, oar_tensor *const *in) \
    {                                                              \
        return expression;                                         \
    }

#define END        \
    {              \
        .ndim = -1 \
    }
#define S(...)                                                               \
    {                                                                        \
        .ndim = (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
        .dim = {                                                             \
            __VA_ARGS__                                                      \
        }                                                                    \
    }
#define NUMBER    \
    {             \
        .ndim = 0 \
    }

/* Numbers between 0.2 and 1 away from zero, where some functions have corners.
 */
static inline oar_tensor *gradcheck_leaf(oar_shape shape, uint64_t seed)
{
    oar_tensor *leaf = oar_uniform(NULL, OAR_F64, shape, seed, -0.8, 0.8);
    double *number = oar_tensor_data(leaf);

    for (int64_t i = 0; i < oar_tensor_count(leaf); i++)
        number[i] += number[i] < 0 ? -0.2 : 0.2;
    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

/* Weighs each element of the result differently. */
static inline oar_tensor *gradcheck_loss(const gradcheck *c, oar_tape *tape,
                                         oar_tensor *const *in)
{
    oar_tensor *out = c->fn(tape, in), *weight;

    if (out == NULL)
        fail_msg("%s: %s", c->name, oar_last_error_text());
    weight = oar_uniform(tape, OAR_F64, oar_tensor_shape(out), 99, 0.5, 1.5);
    return oar_sum(tape, oar_mul(tape, out, weight));
}

static inline double gradcheck_value(const gradcheck *c, oar_tape *tape,
                                     oar_tensor *const *in)
{
    double value;

    OK(oar_tensor_item(gradcheck_loss(c, tape, in), &value));
    oar_tape_reset(tape);
    return value;
}

static inline double gradcheck_slope(const gradcheck *c, oar_tape *tape,
                                     oar_tensor *const *in, double *x)
{
    double middle = *x, high, low;

    *x = middle + gradcheck_step;
    high = gradcheck_value(c, tape, in);
    *x = middle - gradcheck_step;
    low = gradcheck_value(c, tape, in);
    *x = middle;
    return (high - low) / (2 * gradcheck_step);
}

static inline void gradcheck_input(const gradcheck *c, oar_tape *tape,
                                   oar_tensor *const *in, int i)
{
    double *x = oar_tensor_data(in[i]);
    const double *grad = oar_tensor_data(oar_tensor_grad(in[i]));

    assert_true(oar_tensor_is_contiguous(oar_tensor_grad(in[i])));
    for (int64_t k = 0; k < oar_tensor_count(in[i]); k++) {
        double want = gradcheck_slope(c, tape, in, &x[k]);

        if (!(fabs(grad[k] - want) <= gradcheck_tolerance * (1 + fabs(want))))
            fail_msg("%s: d/d input %d [%ld] is %.12g, differences say %.12g",
                     c->name, i, k, grad[k], want);
    }
}

/* passes: 2 and more add to what the first stored. only: the leaf that wants a
 * gradient; -1: all do. */
static inline void gradcheck_run(const gradcheck *c, int passes, int only)
{
    oar_tensor *in[GRADCHECK_LEAVES] = { NULL };
    oar_tape *tape;
    int leaves = 0;

    OK(oar_tape_create(&tape));
    for (; leaves < GRADCHECK_LEAVES && c->shape[leaves].ndim >= 0; leaves++) {
        in[leaves] = gradcheck_leaf(c->shape[leaves], 7 + (uint64_t)leaves);
        if (only >= 0 && leaves != only)
            OK(oar_tensor_require_grad(in[leaves], 0));
    }
    for (int p = 0; only < leaves && p < passes; p++) {
        oar_tensor *loss = gradcheck_loss(c, tape, in);

        OK(oar_backward(tape, oar_scale(tape, loss, 1.0 / passes)));
        oar_tape_reset(tape);
    }
    oar_tape_record(tape, 0);
    for (int i = 0; i < leaves; i++)
        if (only < 0 || i == only)
            gradcheck_input(c, tape, in, i);
    for (int i = 0; i < leaves; i++)
        oar_tensor_release(in[i]);
    oar_tape_destroy(tape);
}

#endif
