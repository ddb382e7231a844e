/* SPDX-License-Identifier: Apache-2.0 */
#include "support/dtensor_program.h"

#include <stdio.h>

#include "parallel/dtensor/spec.h"
#include "support/dtensor_truth.h"

enum { MOST_ELEMENTS = 150 };

int program_random(dtensor_program *p, int below)
{
    return truth_random(&p->state, below);
}

static void note(dtensor_program *p, const char *name, int a, int b)
{
    if (p->at + 80 < sizeof p->text)
        p->at += (size_t)snprintf(p->text + p->at, sizeof p->text - p->at,
                                  " %%%d=%s(%d,%d)", p->values, name, a, b);
}

static oar_shape shape_of(const dtensor_program *p, int i)
{
    return oar_tensor_shape(p->value[i].whole);
}

static int64_t count_of(oar_shape shape)
{
    int64_t count = 1;

    for (int d = 0; d < shape.ndim; d++)
        count *= shape.dim[d];
    return count;
}

/* ---- values -------------------------------------------------------------- */

/* Adds what an operation gave. Returns 0 if one of both failed. */
static int add_value(dtensor_program *p, oar_tensor *whole, oar_dtensor spread)
{
    program_value *v = &p->value[p->values++];

    *v = (program_value){ .whole = whole, .spread = spread };
    return whole != NULL && spread.local != NULL;
}

int program_add_leaf(dtensor_program *p, oar_shape shape, int64_t index_below)
{
    int is_index = index_below > 0;
    const oar_spec *spec =
        truth_random_spec(p->mesh, shape, !is_index, &p->state);
    uint64_t seed = p->state >> 20;
    oar_tensor *whole =
        is_index
            ? oar_uniform(NULL, OAR_I64, shape, seed, 0, (double)index_below)
            : oar_normal(NULL, OAR_F64, shape, seed, 0, 0.8);
    oar_tensor *here = truth_part(whole, spec, seed);
    oar_tensor *part = oar_to(NULL, here, p->device);
    int number = p->values;

    oar_tensor_release(here);
    if (whole == NULL || part == NULL ||
        (!is_index && (oar_tensor_require_grad(whole, 1) != OAR_OK ||
                       oar_tensor_require_grad(part, 1) != OAR_OK)))
        return -1;
    add_value(p, whole, oar_dtensor_from_local(part, spec));
    p->value[number].is_leaf = 1;
    p->value[number].is_index = is_index;
    return number;
}

/* Picks a value with so many dims; the latest ones more often. -1: none. */
static int pick(dtensor_program *p, int least, int most)
{
    for (int tries = 0; tries < 20; tries++) {
        int back = program_random(p, program_random(p, 2) == 0 ? 3 : p->values);
        int i = p->values - 1 - back;

        if (i >= 0 && !p->value[i].is_index && shape_of(p, i).ndim >= least &&
            shape_of(p, i).ndim <= most)
            return i;
    }
    return -1;
}

/* ---- operations ----------------------------------------------------------
 * Each picks its operands, and returns 1, or 0 if there are none, or -1 if it
 * failed. */

#define WHOLE(i) p->value[i].whole
#define PARTS(i) p->value[i].spread
#define APPLY(name, a, b, whole, spread) \
    (note(p, name, a, b), add_value(p, whole, spread) ? 1 : -1)

static int do_unary(dtensor_program *p)
{
#define UNARY(n)                     \
    {                                \
#n, oar_##n, oar_dtensor_##n \
    }
    static const struct {
        const char *name;
        oar_tensor *(*plain)(oar_tape *tape, oar_tensor *a);
        oar_dtensor (*spread)(oar_tape *tape, oar_dtensor a);
    } op[] = { UNARY(neg),  UNARY(tanh), UNARY(sigmoid),  UNARY(sin),
               UNARY(cos),  UNARY(gelu), UNARY(softplus), UNARY(silu),
               UNARY(tanh), UNARY(sin) };
    int k = program_random(p, 10), a = pick(p, 0, 4);

    return a < 0 ? 0
                 : APPLY(op[k].name, a, 0, op[k].plain(p->tape, WHOLE(a)),
                         op[k].spread(p->tape, PARTS(a)));
}

static int do_scale(dtensor_program *p)
{
    double by = 0.25 * (1 + program_random(p, 5));
    int a = pick(p, 0, 4);

    return a < 0 ? 0
                 : APPLY("scale", a, 0, oar_scale(p->tape, WHOLE(a), by),
                         oar_dtensor_scale(p->tape, PARTS(a), by));
}

/* Returns a value that broadcasts with a: one that is there, or a leaf. */
static int beside(dtensor_program *p, int a)
{
    oar_shape shape = shape_of(p, a);
    int b = pick(p, 0, 4);

    if (b >= 0 && oari_same_shape(shape_of(p, b), shape))
        return b;
    if (program_random(p, 2) == 0 &&
        shape.ndim > 0) { /* without its first dim */
        for (int d = 1; d < shape.ndim; d++)
            shape.dim[d - 1] = shape.dim[d];
        shape.ndim--;
    }
    if (program_random(p, 3) == 0 && shape.ndim > 0)
        shape.dim[program_random(p, shape.ndim)] = 1;
    return program_add_leaf(p, shape, 0);
}

static int do_binary(dtensor_program *p)
{
    int a = pick(p, 0, 4), b = a < 0 ? -1 : beside(p, a),
        k = program_random(p, 3);

    if (b < 0)
        return a < 0 ? 0 : -1;
    if (k == 0)
        return APPLY("add", a, b, oar_add(p->tape, WHOLE(a), WHOLE(b)),
                     oar_dtensor_add(p->tape, PARTS(a), PARTS(b)));
    if (k == 1)
        return APPLY("sub", a, b, oar_sub(p->tape, WHOLE(a), WHOLE(b)),
                     oar_dtensor_sub(p->tape, PARTS(a), PARTS(b)));
    return APPLY("mul", a, b, oar_mul(p->tape, WHOLE(a), WHOLE(b)),
                 oar_dtensor_mul(p->tape, PARTS(a), PARTS(b)));
}

static int do_view(dtensor_program *p)
{
    int a = pick(p, 1, 4), k = program_random(p, 5), n, d, e;
    oar_shape shape;

    if (a < 0)
        return 0;
    shape = shape_of(p, a);
    n = shape.ndim;
    d = program_random(p, n);
    e = program_random(p, n);
    if (k == 0)
        return APPLY("transpose", a, d * 10 + e,
                     oar_transpose(p->tape, WHOLE(a), d, e),
                     oar_dtensor_transpose(p->tape, PARTS(a), d, e));
    if (k == 1 && n < 4)
        return APPLY("unsqueeze", a, d, oar_unsqueeze(p->tape, WHOLE(a), d),
                     oar_dtensor_unsqueeze(p->tape, PARTS(a), d));
    if (k == 2)
        return APPLY("flip", a, d, oar_flip(p->tape, WHOLE(a), OAR_DIMS(d)),
                     oar_dtensor_flip(p->tape, PARTS(a), OAR_DIMS(d)));
    if (n > 1 && d < n - 1) { /* two neighbours become one dim */
        shape.dim[d] *= shape.dim[d + 1];
        for (int i = d + 1; i < n - 1; i++)
            shape.dim[i] = shape.dim[i + 1];
        shape.ndim--;
    } else if (n < 4 && shape.dim[d] % 2 == 0) { /* or one becomes two */
        for (int i = n; i > d + 1; i--)
            shape.dim[i] = shape.dim[i - 1];
        shape.dim[d + 1] = 2;
        shape.dim[d] /= 2;
        shape.ndim++;
    }
    return APPLY("reshape", a, d, oar_reshape(p->tape, WHOLE(a), shape),
                 oar_dtensor_reshape(p->tape, PARTS(a), shape));
}

static int do_slice(dtensor_program *p)
{
    int a = pick(p, 1, 4), k = program_random(p, 3), d,
        step = 1 + program_random(p, 2);
    int64_t size, start, length;

    if (a < 0)
        return 0;
    d = program_random(p, shape_of(p, a).ndim);
    size = shape_of(p, a).dim[d];
    start = program_random(p, (int)size);
    length = 1 + program_random(p, (int)(size - start));
    if (k == 0)
        return APPLY("narrow", a, d,
                     oar_narrow(p->tape, WHOLE(a), d, start, length),
                     oar_dtensor_narrow(p->tape, PARTS(a), d, start, length));
    if (k == 1)
        return APPLY(
            "slice", a, d,
            oar_slice(p->tape, WHOLE(a), d, start, start + length, step),
            oar_dtensor_slice(p->tape, PARTS(a), d, start, start + length,
                              step));
    return APPLY("select", a, d, oar_select(p->tape, WHOLE(a), d, start),
                 oar_dtensor_select(p->tape, PARTS(a), d, start));
}

static int do_join(dtensor_program *p)
{
    int a = pick(p, 1, 3), b = pick(p, 1, 3), d;

    if (a < 0 || 2 * count_of(shape_of(p, a)) > MOST_ELEMENTS)
        return 0;
    if (b < 0 || !oari_same_shape(shape_of(p, a), shape_of(p, b)))
        b = program_add_leaf(p, shape_of(p, a), 0);
    if (b < 0)
        return -1;
    d = program_random(p, shape_of(p, a).ndim);
    if (program_random(p, 2) == 0)
        return APPLY(
            "cat", a, b,
            oar_cat(p->tape, 2, (oar_tensor *[]){ WHOLE(a), WHOLE(b) }, d),
            oar_dtensor_cat(p->tape, 2, (oar_dtensor[]){ PARTS(a), PARTS(b) },
                            d));
    return APPLY(
        "stack", a, b,
        oar_stack(p->tape, 2, (oar_tensor *[]){ WHOLE(a), WHOLE(b) }, d),
        oar_dtensor_stack(p->tape, 2, (oar_dtensor[]){ PARTS(a), PARTS(b) },
                          d));
}

static int do_reduce(dtensor_program *p)
{
    int a = pick(p, 1, 4), k = program_random(p, 4),
        keep = program_random(p, 2), d;

    if (a < 0)
        return 0;
    d = program_random(p, shape_of(p, a).ndim);
    if (k == 0)
        return APPLY(
            "sum_over", a, d,
            oar_sum_over(p->tape, WHOLE(a), OAR_DIMS(d), keep),
            oar_dtensor_sum_over(p->tape, PARTS(a), OAR_DIMS(d), keep));
    if (k == 1)
        return APPLY(
            "mean_over", a, d,
            oar_mean_over(p->tape, WHOLE(a), OAR_DIMS(d), keep),
            oar_dtensor_mean_over(p->tape, PARTS(a), OAR_DIMS(d), keep));
    if (k == 2)
        return APPLY(
            "var_over", a, d,
            oar_var_over(p->tape, WHOLE(a), OAR_DIMS(d), keep, 0),
            oar_dtensor_var_over(p->tape, PARTS(a), OAR_DIMS(d), keep, 0));
    return APPLY("cumsum", a, d, oar_cumsum(p->tape, WHOLE(a), d),
                 oar_dtensor_cumsum(p->tape, PARTS(a), d));
}

static int do_product(dtensor_program *p)
{
    int a = pick(p, 2, 4), w, b = -1;
    int64_t in, out = 1 + program_random(p, 5);

    if (a < 0)
        return 0;
    in = shape_of(p, a).dim[shape_of(p, a).ndim - 1];
    if (count_of(shape_of(p, a)) / in * out > MOST_ELEMENTS)
        return 0;
    if (program_random(p, 2) == 0) {
        w = program_add_leaf(p, OAR_SHAPE(in, out), 0);
        return w < 0 ? -1
                     : APPLY("matmul", a, w,
                             oar_matmul(p->tape, WHOLE(a), WHOLE(w)),
                             oar_dtensor_matmul(p->tape, PARTS(a), PARTS(w)));
    }
    w = program_add_leaf(p, OAR_SHAPE(out, in), 0);
    if (program_random(p, 2) == 0)
        b = program_add_leaf(p, OAR_SHAPE(out), 0);
    return w < 0 ? -1
                 : APPLY("linear", a, w,
                         oar_linear(p->tape, WHOLE(a), WHOLE(w),
                                    b < 0 ? NULL : WHOLE(b)),
                         oar_dtensor_linear(p->tape, PARTS(a), PARTS(w),
                                            b < 0 ? NULL : &PARTS(b)));
}

static int do_probability(dtensor_program *p)
{
    int a = pick(p, 1, 4), k = program_random(p, 3), d;
    uint64_t seed = p->state;

    if (a < 0)
        return 0;
    d = program_random(p, shape_of(p, a).ndim);
    if (k == 0)
        return APPLY("softmax_over", a, d,
                     oar_softmax_over(p->tape, WHOLE(a), d),
                     oar_dtensor_softmax_over(p->tape, PARTS(a), d));
    if (k == 1)
        return APPLY("log_softmax", a, d, oar_log_softmax(p->tape, WHOLE(a), d),
                     oar_dtensor_log_softmax(p->tape, PARTS(a), d));
    return APPLY("dropout", a, 0, oar_dropout(p->tape, WHOLE(a), 0.3, seed),
                 oar_dtensor_dropout(p->tape, PARTS(a), 0.3, seed));
}

static int do_norm(dtensor_program *p)
{
    int a = pick(p, 2, 4), k = program_random(p, 4), w, b;
    oar_shape shape;
    int64_t width;

    if (a < 0)
        return 0;
    shape = shape_of(p, a);
    width = shape.dim[k < 2 ? shape.ndim - 1 : 1];
    if (k == 3 && count_of(shape) == width)
        return 0; /* one number of each channel has no variance */
    w = program_add_leaf(p, OAR_SHAPE(width), 0);
    b = program_add_leaf(p, OAR_SHAPE(width), 0);
    if (w < 0 || b < 0)
        return -1;
    if (k == 0)
        return APPLY("layer_norm", a, w,
                     oar_layer_norm(p->tape, WHOLE(a), WHOLE(w), WHOLE(b), 0.1),
                     oar_dtensor_layer_norm(p->tape, PARTS(a), &PARTS(w),
                                            &PARTS(b), 0.1));
    if (k == 1)
        return APPLY("rms_norm", a, w,
                     oar_rms_norm(p->tape, WHOLE(a), WHOLE(w), 0.1),
                     oar_dtensor_rms_norm(p->tape, PARTS(a), &PARTS(w), 0.1));
    if (k == 2)
        return APPLY("group_norm", a, w,
                     oar_group_norm(p->tape, WHOLE(a),
                                    width % 2 == 0 ? width / 2 : width,
                                    WHOLE(w), WHOLE(b), 0.1),
                     oar_dtensor_group_norm(p->tape, PARTS(a),
                                            width % 2 == 0 ? width / 2 : width,
                                            &PARTS(w), &PARTS(b), 0.1));
    return APPLY("batch_norm", a, w,
                 oar_batch_norm(p->tape, WHOLE(a), WHOLE(w), WHOLE(b), NULL,
                                NULL, 1, 0.1, 0.1),
                 oar_dtensor_batch_norm(p->tape, PARTS(a), &PARTS(w), &PARTS(b),
                                        NULL, NULL, 1, 0.1, 0.1));
}

static int do_index(dtensor_program *p)
{
    int a = pick(p, 1, 3), k = program_random(p, 4), d, i, b;
    oar_shape shape;
    int64_t size;

    if (a < 0)
        return 0;
    shape = shape_of(p, a);
    d = program_random(p, shape.ndim);
    size = shape.dim[d];
    if (k == 0) {
        i = program_add_leaf(p, OAR_SHAPE(1 + program_random(p, 5)), size);
        return i < 0 ? -1
                     : APPLY("index_select", a, d,
                             oar_index_select(p->tape, WHOLE(a), d, WHOLE(i)),
                             oar_dtensor_index_select(p->tape, PARTS(a), d,
                                                      PARTS(i)));
    }
    if (k == 1) {
        b = program_add_leaf(
            p, OAR_SHAPE(1 + program_random(p, 7), 1 + program_random(p, 4)),
            0);
        i = b < 0 ? -1
                  : program_add_leaf(p, OAR_SHAPE(2, 1 + program_random(p, 4)),
                                     shape_of(p, b).dim[0]);
        return i < 0
                   ? -1
                   : APPLY("embedding", b, i,
                           oar_embedding(p->tape, WHOLE(b), WHOLE(i)),
                           oar_dtensor_embedding(p->tape, PARTS(b), PARTS(i)));
    }
    shape.dim[d] = 1 + program_random(p, 4);
    i = program_add_leaf(p, shape, size);
    if (i < 0)
        return -1;
    if (k == 2)
        return APPLY("take_along", a, i,
                     oar_take_along(p->tape, WHOLE(a), d, WHOLE(i)),
                     oar_dtensor_take_along(p->tape, PARTS(a), d, PARTS(i)));
    b = program_add_leaf(p, shape, 0);
    return b < 0 ? -1
                 : APPLY("scatter_add", a, i,
                         oar_tensor_scatter_add(p->tape, WHOLE(a), d, WHOLE(i),
                                                WHOLE(b)),
                         oar_dtensor_scatter_add(p->tape, PARTS(a), d, PARTS(i),
                                                 PARTS(b)));
}

static int do_attention(dtensor_program *p)
{
    int a = pick(p, 2, 4), k, v;
    oar_attention_opts o = oar_attention_opts_init();
    oar_shape shape;

    if (a < 0)
        return 0;
    shape = shape_of(p, a);
    if (shape.dim[shape.ndim - 1] % 2 == 0 && program_random(p, 3) == 0)
        return APPLY("rotary", a, 0, oar_rotary(p->tape, WHOLE(a), 2, 100),
                     oar_dtensor_rotary(p->tape, PARTS(a), 2, 100));
    o.causal = program_random(p, 2);
    shape.dim[shape.ndim - 2] = 1 + program_random(p, 5);
    k = program_add_leaf(p, shape, 0);
    shape.dim[shape.ndim - 1] = 1 + program_random(p, 3);
    v = k < 0 ? -1 : program_add_leaf(p, shape, 0);
    return v < 0
               ? -1
               : APPLY("attention", a, k,
                       oar_attention(p->tape, WHOLE(a), WHOLE(k), WHOLE(v), &o),
                       oar_dtensor_attention(p->tape, PARTS(a), PARTS(k),
                                             PARTS(v), NULL, &o));
}

static int do_conv(dtensor_program *p)
{
    int a = pick(p, 3, 4), w, b;
    oar_shape x, shape;

    if (a < 0)
        return 0;
    x = shape_of(p, a);
    if (x.ndim == 4 && program_random(p, 2) == 0)
        return APPLY("adaptive_avg_pool2d", a, 0,
                     oar_adaptive_avg_pool2d(p->tape, WHOLE(a), 2, 2),
                     oar_dtensor_adaptive_avg_pool2d(p->tape, PARTS(a), 2, 2));
    shape = x;
    shape.dim[0] = 1 + program_random(p, 4);
    for (int d = 2; d < x.ndim; d++)
        shape.dim[d] = 1 + program_random(p, (int)x.dim[d]);
    if (count_of(shape) > MOST_ELEMENTS ||
        count_of(x) / x.dim[1] * shape.dim[0] > MOST_ELEMENTS)
        return 0;
    w = program_add_leaf(p, shape, 0);
    b = w < 0 ? -1 : program_add_leaf(p, OAR_SHAPE(shape.dim[0]), 0);
    if (b < 0)
        return -1;
    if (x.ndim == 3)
        return APPLY(
            "conv1d", a, w,
            oar_conv1d(p->tape, WHOLE(a), WHOLE(w), WHOLE(b), NULL),
            oar_dtensor_conv1d(p->tape, PARTS(a), PARTS(w), &PARTS(b), NULL));
    return APPLY(
        "conv2d", a, w, oar_conv2d(p->tape, WHOLE(a), WHOLE(w), WHOLE(b), NULL),
        oar_dtensor_conv2d(p->tape, PARTS(a), PARTS(w), &PARTS(b), NULL));
}

static int do_loss(dtensor_program *p)
{
    int a = pick(p, 2, 2), t;

    if (a < 0)
        return 0;
    if (program_random(p, 2) == 0) {
        t = program_add_leaf(p, shape_of(p, a), 0);
        return t < 0 ? -1
                     : APPLY("mse", a, t, oar_mse(p->tape, WHOLE(a), WHOLE(t)),
                             oar_dtensor_mse(p->tape, PARTS(a), PARTS(t)));
    }
    t = program_add_leaf(p, OAR_SHAPE(shape_of(p, a).dim[0]),
                         shape_of(p, a).dim[1]);
    return t < 0
               ? -1
               : APPLY("cross_entropy", a, t,
                       oar_cross_entropy(p->tape, WHOLE(a), WHOLE(t)),
                       oar_dtensor_cross_entropy(p->tape, PARTS(a), PARTS(t)));
}

/* Moves a value to another spec; the whole stays. */
static int do_move(dtensor_program *p)
{
    int a = pick(p, 0, 4);
    const oar_spec *to;

    if (a < 0)
        return 0;
    to = truth_random_spec(p->mesh, shape_of(p, a), 1, &p->state);
    return APPLY("redistribute", a, 0, oar_scale(p->tape, WHOLE(a), 1),
                 oar_redistribute(p->tape, PARTS(a), to, NULL));
}

static int (*const operation[])(dtensor_program *p) = {
    do_unary,       do_scale, do_binary,    do_binary,  do_view,    do_view,
    do_slice,       do_join,  do_reduce,    do_product, do_product, do_norm,
    do_probability, do_index, do_attention, do_conv,    do_loss,    do_move,
};

int program_step(dtensor_program *p)
{
    int count = sizeof operation / sizeof *operation;

    return operation[program_random(p, count)](p);
}
