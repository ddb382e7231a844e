/* SPDX-License-Identifier: Apache-2.0 */
/* gradcheck.h: compares gradients with differences of values, in f64. For
 * tests, one file each: everything is static and some of it may be unused. */
#ifndef OARI_TESTS_GRADCHECK_H
#define OARI_TESTS_GRADCHECK_H

#include <math.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/last_error.h"

enum { GRADCHECK_LEAVES = 3 };
static const double gradcheck_step = 1e-5, gradcheck_tolerance = 1e-8;

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

/* What is differentiated: a result of leaves that fn knows of. */
typedef struct gradcheck_subject {
    const char *name;
    oar_tensor *(*fn)(const void *self, oar_tape *tape);
    const void *self;
} gradcheck_subject;

/* Weighs each element of the result differently. */
static inline oar_tensor *gradcheck_loss(const gradcheck_subject *s,
                                         oar_tape *tape)
{
    oar_tensor *out = s->fn(s->self, tape), *weight;

    if (out == NULL)
        fail_msg("%s: %s", s->name, oar_last_error_text());
    weight = oar_uniform(tape, OAR_F64, oar_tensor_shape(out), 99, 0.5, 1.5);
    return oar_sum(tape, oar_mul(tape, out, weight));
}

static inline double gradcheck_value(const gradcheck_subject *s, oar_tape *tape)
{
    double value;

    OK(oar_tensor_item(gradcheck_loss(s, tape), &value));
    oar_tape_reset(tape);
    return value;
}

static inline double gradcheck_slope(const gradcheck_subject *s, oar_tape *tape,
                                     double *x)
{
    double middle = *x, high, low;

    *x = middle + gradcheck_step;
    high = gradcheck_value(s, tape);
    *x = middle - gradcheck_step;
    low = gradcheck_value(s, tape);
    *x = middle;
    return (high - low) / (2 * gradcheck_step);
}

/* Compares the gradient of one leaf; i is its number, to say so. */
static inline void gradcheck_compare(const gradcheck_subject *s, oar_tape *tape,
                                     oar_tensor *leaf, int i)
{
    double *x = oar_tensor_data(leaf);
    const double *grad = oar_tensor_const_data(oar_tensor_grad(leaf));

    assert_true(oar_tensor_is_contiguous(oar_tensor_grad(leaf)));
    for (int64_t k = 0; k < oar_tensor_count(leaf); k++) {
        double want = gradcheck_slope(s, tape, &x[k]);

        if (!(fabs(grad[k] - want) <= gradcheck_tolerance * (1 + fabs(want))))
            fail_msg("%s: d/d input %d [%ld] is %.12g, differences say %.12g",
                     s->name, i, k, grad[k], want);
    }
}

/* Backward so often that the gradients are those of one pass: 2 and more add to
 * what the first stored. Leaves a tape that records nothing. */
static inline void gradcheck_passes(const gradcheck_subject *s, oar_tape *tape,
                                    int passes)
{
    for (int p = 0; p < passes; p++) {
        oar_tensor *loss = gradcheck_loss(s, tape);

        OK(oar_backward(tape, oar_scale(tape, loss, 1.0 / passes)));
        oar_tape_reset(tape);
    }
    oar_tape_record(tape, 0);
}

/* ---- cases of shapes ----------------------------------------------------- */

typedef struct gradcheck_leaves {
    const gradcheck *of;
    oar_tensor *in[GRADCHECK_LEAVES];
} gradcheck_leaves;

static inline oar_tensor *gradcheck_apply(const void *self, oar_tape *tape)
{
    const gradcheck_leaves *l = self;

    return l->of->fn(tape, l->in);
}

/* only: the leaf that wants a gradient; -1: all do. */
static inline void gradcheck_run(const gradcheck *c, int passes, int only)
{
    gradcheck_leaves l = { .of = c };
    gradcheck_subject s = { c->name, gradcheck_apply, &l };
    oar_tape *tape;
    int leaves = 0;

    OK(oar_tape_create(&tape));
    for (; leaves < GRADCHECK_LEAVES && c->shape[leaves].ndim >= 0; leaves++) {
        l.in[leaves] = gradcheck_leaf(c->shape[leaves], 7 + (uint64_t)leaves);
        if (only >= 0 && leaves != only)
            OK(oar_tensor_require_grad(l.in[leaves], 0));
    }
    gradcheck_passes(&s, tape, only < leaves ? passes : 0);
    for (int i = 0; i < leaves; i++)
        if (only < 0 || i == only)
            gradcheck_compare(&s, tape, l.in[i], i);
    for (int i = 0; i < leaves; i++)
        oar_tensor_release(l.in[i]);
    oar_tape_destroy(tape);
}

/* All of them; see gradcheck_run. */
static inline void gradcheck_all(const gradcheck *c, size_t count, int passes,
                                 int only)
{
    for (size_t i = 0; i < count; i++)
        gradcheck_run(&c[i], passes, only);
}

/* Takes a tensor. Gives it on the device of another one. */
static inline oar_tensor *beside(oar_tape *tape, oar_tensor *made,
                                 const oar_tensor *other)
{
    oar_tensor *there = oar_to(tape, made, oar_tensor_device(other));

    if (tape == NULL)
        oar_tensor_release(made);
    return there;
}

/* The targets of rows of logits. */
static inline oar_tensor *gradcheck_targets(oar_tape *tape,
                                            const oar_tensor *logits)
{
    oar_shape s = oar_tensor_shape(logits);
    int64_t number[16];

    for (int64_t i = 0; i < s.dim[0]; i++)
        number[i] = i * 5 % s.dim[1];
    return beside(tape,
                  oar_from_data(tape, OAR_I64, OAR_SHAPE(s.dim[0]), number),
                  logits);
}

#endif
