/* SPDX-License-Identifier: Apache-2.0 */
/* linear_cross_entropy is the cross entropy of linear, with its gradients, in
 * one piece and in several; what it refuses; a sum and its layer norm. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

enum { ROWS = 40, WIDTH = 2 };

static const oar_cross_entropy_opts *rule(int smooth)
{
    static oar_cross_entropy_opts o;

    o = oar_cross_entropy_opts_init();
    o.label_smoothing = smooth ? 0.1 : 0;
    o.has_ignore = smooth;
    o.ignore = 3;
    o.reduction = smooth ? OAR_LOSS_MEAN : OAR_LOSS_SUM;
    return &o;
}

static oar_tensor *leaf(oar_dtype dtype, oar_shape shape, uint64_t seed)
{
    oar_tensor *wide = oar_normal(NULL, OAR_F64, shape, seed, 0, 0.5);
    oar_tensor *made = oar_cast(NULL, wide, dtype);

    oar_tensor_release(wide);
    assert_int_equal(oar_tensor_require_grad(made, 1), OAR_OK);
    return made;
}

static oar_tensor *targets(int64_t classes)
{
    int64_t number[ROWS];

    for (int64_t i = 0; i < ROWS; i++)
        number[i] = i * i % (classes < 7 ? classes : 7);
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(ROWS), number);
}

static void expect_near(const oar_tensor *a, const oar_tensor *b, double limit)
{
    int64_t count = oar_tensor_count(a);
    double *x = calloc((size_t)count, sizeof *x);
    double *y = calloc((size_t)count, sizeof *y);

    assert_int_equal(oar_tensor_read(a, OAR_F64, x), OAR_OK);
    assert_int_equal(oar_tensor_read(b, OAR_F64, y), OAR_OK);
    for (int64_t i = 0; i < count; i++)
        assert_true(fabs(x[i] - y[i]) <= limit * fmax(1, fabs(x[i])));
    free(x);
    free(y);
}

/* Three times the loss, so that backward has something to multiply by. */
static void compare(oar_dtype dtype, int64_t classes, int smooth, double limit)
{
    oar_tensor *x = leaf(dtype, OAR_SHAPE(ROWS, WIDTH), 1), *dx;
    oar_tensor *w = leaf(dtype, OAR_SHAPE(classes, WIDTH), 2), *dw;
    oar_tensor *t = targets(classes), *loss, *other;
    oar_tape *tape;

    assert_int_equal(oar_tape_create(&tape), OAR_OK);
    loss = oar_cross_entropy_with(tape, oar_linear(tape, x, w, NULL), t,
                                  rule(smooth));
    other = oar_tensor_retain(loss);
    assert_int_equal(oar_backward(tape, oar_scale(tape, loss, 3)), OAR_OK);
    dx = oar_contiguous(NULL, oar_tensor_grad(x));
    dw = oar_contiguous(NULL, oar_tensor_grad(w));
    oar_tensor_clear_grad(x);
    oar_tensor_clear_grad(w);
    loss = oar_linear_cross_entropy(tape, x, w, t, rule(smooth));
    assert_non_null(loss);
    expect_near(other, loss, limit);
    assert_int_equal(oar_backward(tape, oar_scale(tape, loss, 3)), OAR_OK);
    expect_near(dx, oar_tensor_grad(x), limit);
    expect_near(dw, oar_tensor_grad(w), limit);
    oar_tensor_release(other);
    oar_tape_destroy(tape);
    oar_tensor_release(dx);
    oar_tensor_release(dw);
    oar_tensor_release(x);
    oar_tensor_release(w);
    oar_tensor_release(t);
}

static void it_is_the_cross_entropy_of_linear(void **state)
{
    for (int smooth = 0; smooth < 2; smooth++) {
        compare(OAR_F64, 5, smooth, 1e-12);
        compare(OAR_F32, 9, smooth, 1e-5);
        compare(OAR_BF16, 6, smooth, 4e-2);
    }
    compare(OAR_F32, 70000, 1, 1e-4); /* three pieces */
}

static void it_refuses_what_it_cannot_do(void **state)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();
    oar_tensor *x = leaf(OAR_F32, OAR_SHAPE(ROWS, WIDTH), 1);
    oar_tensor *w = leaf(OAR_F32, OAR_SHAPE(4, WIDTH), 2);
    oar_tensor *t = targets(4), *bad = targets(5);

    o.reduction = OAR_LOSS_NONE;
    assert_null(oar_linear_cross_entropy(NULL, x, w, t, &o));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    assert_null(oar_linear_cross_entropy(NULL, x, t, w, NULL));
    assert_null(oar_linear_cross_entropy(NULL, w, x, t, NULL));
    assert_int_equal(oar_last_error()->status, OAR_E_SHAPE);
    assert_null(oar_linear_cross_entropy(NULL, x, w, bad, NULL));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    oar_tensor_release(x);
    oar_tensor_release(w);
    oar_tensor_release(t);
    oar_tensor_release(bad);
}

static void a_sum_and_its_norm_are_those_of_two_calls(void **state)
{
    oar_tensor *a = leaf(OAR_F32, OAR_SHAPE(3, 8), 1);
    oar_tensor *b = leaf(OAR_F32, OAR_SHAPE(3, 8), 2), *sum;
    oar_tensor *one = oar_add_layer_norm(NULL, a, b, NULL, NULL, 1e-5, &sum);
    oar_tensor *both = oar_add(NULL, a, b);
    oar_tensor *two = oar_layer_norm(NULL, both, NULL, NULL, 1e-5);

    expect_near(one, two, 0);
    expect_near(sum, both, 0);
    oar_tensor_release(oar_add_layer_norm(NULL, a, b, NULL, NULL, 1e-5, NULL));
    oar_tensor_release(one);
    oar_tensor_release(two);
    oar_tensor_release(sum);
    oar_tensor_release(both);
    oar_tensor_release(a);
    oar_tensor_release(b);
}

static void the_loss_of_a_gpt_needs_no_logits(void **state)
{
    static const int64_t number[] = { 1, 4, 2, 0, 3, 3, 4, 1 };
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_module *gpt;
    oar_tensor *x = oar_from_data(NULL, OAR_I64, OAR_SHAPE(2, 4), number);
    oar_tensor *y = oar_from_data(NULL, OAR_I64, OAR_SHAPE(8), number), *one;
    oar_tape *tape;

    o.vocabulary = 5;
    o.context = 4;
    o.width = 8;
    o.layers = 1;
    o.heads = 2;
    for (o.tied = 0; o.tied < 2; o.tied++) {
        assert_int_equal(oar_gpt_create(&o, &gpt), OAR_OK);
        assert_int_equal(oar_tape_create(&tape), OAR_OK);
        one = oar_gpt_loss(tape, gpt, x, y, NULL);
        assert_non_null(one);
        expect_near(one, oar_cross_entropy(tape, oar_forward(tape, gpt, x), y),
                    1e-6);
        assert_null(oar_gpt_loss(tape, NULL, x, y, NULL));
        assert_int_equal(oar_last_error()->status, OAR_E_ARG);
        oar_tape_destroy(tape);
        oar_module_release(gpt);
    }
    oar_tensor_release(x);
    oar_tensor_release(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_cross_entropy_of_linear),
        cmocka_unit_test(it_refuses_what_it_cannot_do),
        cmocka_unit_test(the_loss_of_a_gpt_needs_no_logits),
        cmocka_unit_test(a_sum_and_its_norm_are_those_of_two_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
