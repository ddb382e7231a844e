/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of every operation of ops_cases.h against differences of its
 * values, in f64: on contiguous leaves, on strided views, and added up over two
 * passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/ops_cases.h"

static const double step = 1e-5, tolerance = 2e-8;

/* Weighs each element of the result differently. */
static oar_tensor *loss_of(const op_case *c, oar_tape *tape, const leaves *l)
{
    oar_tensor *out = run_case(c, tape, l), *weight;

    if (out == NULL)
        fail_msg("%s: %s", c->name, oar_last_error_text());
    weight = oar_uniform(tape, OAR_F64, oar_tensor_shape(out), 99, 0.5, 1.5);
    return oar_sum(tape, oar_mul(tape, out, weight));
}

static double value_of(const op_case *c, oar_tape *tape, const leaves *l)
{
    double value;

    OK(oar_tensor_item(loss_of(c, tape, l), &value));
    oar_tape_reset(tape);
    return value;
}

static double slope(const op_case *c, oar_tape *tape, const leaves *l,
                    double *x)
{
    double middle = *x, high, low;

    *x = middle + step;
    high = value_of(c, tape, l);
    *x = middle - step;
    low = value_of(c, tape, l);
    *x = middle;
    return (high - low) / (2 * step);
}

static void check_leaf(const op_case *c, oar_tape *tape, const leaves *l, int i)
{
    double *x = oar_tensor_data(l->leaf[i]);
    const double *grad = oar_tensor_data(oar_tensor_grad(l->leaf[i]));

    for (int64_t k = 0; k < oar_tensor_count(l->leaf[i]); k++) {
        double want = slope(c, tape, l, &x[k]);

        if (!(fabs(grad[k] - want) <= tolerance * (1 + fabs(want))))
            fail_msg("%s: d/d input %d [%d] is %.12g, differences say %.12g",
                     c->name, i, (int)k, grad[k], want);
    }
}

static void check_case(const op_case *c, int spread, int passes)
{
    leaves l = leaves_of(c->name, OAR_F64, spread);
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int p = 0; p < passes; p++) {
        oar_tensor *loss = loss_of(c, tape, &l);

        OK(oar_backward(tape, oar_scale(tape, loss, 1.0 / passes)));
        oar_tape_reset(tape);
    }
    oar_tape_record(tape, 0);
    for (int i = 0; i < MOST; i++)
        if (part_of(c->name, "grad", i) != NULL)
            check_leaf(c, tape, &l, i);
    release_leaves(&l);
    oar_tape_destroy(tape);
}

static void check_all(int spread, int passes)
{
    for (int i = 0; i < OP_CASES; i++)
        if (!op_cases[i].corner)
            check_case(&op_cases[i], spread, passes);
}

static void gradients_agree_with_differences(void **state)
{
    check_all(0, 1);
}

static void gradients_of_strided_views_do_too(void **state)
{
    check_all(1, 1);
}

static void gradients_of_two_passes_add_up(void **state)
{
    check_all(0, 2);
    check_all(1, 2);
}

/* Both halves of a split backward leave what the whole leaves. */
static void a_split_backward_leaves_the_same(void **state)
{
    for (int i = 0; i < OP_CASES; i++) {
        leaves l = leaves_of(op_cases[i].name, OAR_F64, 1);
        oar_tensor *loss, *whole[MOST] = { NULL };
        oar_tape *tape;

        OK(oar_tape_create(&tape));
        OK(oar_backward(tape, loss_of(&op_cases[i], tape, &l)));
        for (int k = 0; k < MOST; k++)
            if (part_of(op_cases[i].name, "grad", k) != NULL) {
                whole[k] = oar_scale(NULL, oar_tensor_grad(l.leaf[k]), 1);
                oar_tensor_clear_grad(l.leaf[k]);
            }
        oar_tape_reset(tape);
        loss = loss_of(&op_cases[i], tape, &l);
        OK(oar_backward_inputs(tape, 1, &loss, NULL));
        OK(oar_backward_weights(tape));
        for (int k = 0; k < MOST; k++)
            if (whole[k] != NULL) {
                assert_memory_equal(oar_tensor_data(whole[k]),
                                    oar_tensor_data(oar_tensor_grad(l.leaf[k])),
                                    (size_t)oar_tensor_count(whole[k]) * 8);
                oar_tensor_release(whole[k]);
            }
        release_leaves(&l);
        oar_tape_destroy(tape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(gradients_of_strided_views_do_too),
        cmocka_unit_test(gradients_of_two_passes_add_up),
        cmocka_unit_test(a_split_backward_leaves_the_same),
    };

    return cmocka_run_group_tests(tests, load_ops, golden_close);
}
