/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the caller's own: against the library's, in halves, recomputed,
 * without a record, when they fail; and gradients against differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/custom_op.h>
#include <oarsong/module.h>
#include <oarsong/ops.h>

#include "support/last_error.h"
#include "support/leak_check.h"

static oar_tape *new_tape(void)
{
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    return tape;
}

static oar_tensor *leaf_of(oar_shape shape, uint64_t seed)
{
    oar_tensor *leaf = oar_uniform(NULL, OAR_F64, shape, seed, -1, 1);

    assert_non_null(leaf);
    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

/* ---- a product of two, by hand ------------------------------------------- */

enum { STEPS = 8 };

/* What went on in products, and how they should go wrong. */
static struct {
    int made, dropped;
    char calls[STEPS * 2 + 1]; /* the inputs whose gradients were asked for */
    oar_status ends;           /* of backward */
    int silent;                /* says nothing about a failure */
    int forgets_add, wrong;
} seen;

typedef struct product {
    oar_tensor *in[2];
} product;

static oar_status product_back(void *arg, int i, const oar_tensor *grad,
                               oar_tensor *to, int add)
{
    const product *p = arg;
    const double *other = oar_tensor_const_data(p->in[1 - i]);
    const double *g = oar_tensor_const_data(grad);
    double *out = oar_tensor_data(to);

    assert_true(oar_tensor_is_contiguous(grad) && oar_tensor_is_contiguous(to));
    assert_int_equal(oar_tensor_count(to), oar_tensor_count(p->in[i]));
    if (strlen(seen.calls) < STEPS * 2)
        seen.calls[strlen(seen.calls)] = (char)('0' + i);
    if (seen.ends != OAR_OK && seen.silent)
        return seen.ends;
    if (seen.ends != OAR_OK) {
        oar_tensor_fill(NULL, 0); /* sets the last error */
        return OAR_E_ARG;
    }
    for (int64_t k = 0; k < oar_tensor_count(to); k++) {
        double d = g[k] * other[k] * (seen.wrong && i == 1 && k == 4 ? 1.5 : 1);

        out[k] = add && !seen.forgets_add ? out[k] + d : d;
    }
    return OAR_OK;
}

static void product_drop(void *arg)
{
    product *p = arg;

    seen.dropped++;
    oar_tensor_release(p->in[0]);
    oar_tensor_release(p->in[1]);
    free(p);
}

static const oar_custom_op product_op = { .size = sizeof product_op,
                                          .name = "product",
                                          .backward = product_back,
                                          .drop = product_drop };

/* out: where the result goes; it is taken. */
static oar_tensor *multiply_to(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                               oar_tensor *out)
{
    product *p = malloc(sizeof *p);

    assert_non_null(p);
    p->in[0] = oar_tensor_retain(a);
    p->in[1] = oar_tensor_retain(b);
    seen.made++;
    if (a != NULL && b != NULL && out != NULL) {
        const double *x = oar_tensor_const_data(a);
        const double *y = oar_tensor_const_data(b);
        double *z = oar_tensor_data(out);

        for (int64_t k = 0; k < oar_tensor_count(out); k++)
            z[k] = x[k] * y[k];
    }
    return oar_record_op(tape, &product_op, p, 2, (oar_tensor *[]){ a, b },
                         out);
}

static oar_tensor *multiply(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    return multiply_to(tape, a, b,
                       oar_zeros(tape, OAR_F64, oar_tensor_shape(a)));
}

static void forget_seen(void)
{
    memset(&seen, 0, sizeof seen);
}

/* ---- against the library's ----------------------------------------------- */

enum { BUILT_IN, CUSTOM };

/* A use as a leaf, one as an activation, and one of both. */
static oar_tensor *compute(int how, oar_tape *tape, oar_tensor *x,
                           oar_tensor *w)
{
    oar_tensor *(*mul)(oar_tape *, oar_tensor *, oar_tensor *) =
        how == CUSTOM ? multiply : oar_mul;
    oar_tensor *h = oar_tanh(tape, mul(tape, x, w));

    h = mul(tape, h, oar_scale(tape, h, 2));
    return oar_sum(tape, mul(tape, mul(tape, h, w), w));
}

static void run(int how, int halves, double *out)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(3, 5), 1);
    oar_tensor *w = leaf_of(OAR_SHAPE(3, 5), 2), *in, *loss;

    for (int step = 0; step < 2; step++) {
        in = oar_tape_input(tape, x);
        loss = compute(how, tape, in, w);
        assert_non_null(loss);
        if (halves) {
            OK(oar_backward_inputs(tape, 1, &loss, NULL));
            assert_true(step > 0 || oar_tensor_grad(w) == NULL);
            OK(oar_backward_weights(tape));
        } else {
            OK(oar_backward(tape, loss));
        }
        OK(oar_tensor_read(oar_tensor_grad(in), OAR_F64, out));
        oar_tape_reset(tape);
    }
    OK(oar_tensor_read(oar_tensor_grad(w), OAR_F64, out + 15));
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
}

static void a_custom_operation_equals_the_built_in_one(void **state)
{
    leak_check before = leak_check_begin();
    double want[30], got[30];

    for (int halves = 0; halves < 2; halves++) {
        forget_seen();
        run(BUILT_IN, halves, want);
        run(CUSTOM, halves, got);
        assert_memory_equal(want, got, sizeof want);
        assert_int_equal(seen.made, 8);
        assert_int_equal(seen.dropped, 8);
    }
    leak_check_end(&before);
}

/* Backward goes from the last operation to the first; in halves, a leaf's
 * gradient is asked for in the second. */
static void halves_ask_for_leaves_in_the_second(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(3), 1), *w = leaf_of(OAR_SHAPE(3), 2);
    oar_tensor *y = multiply(tape, w, oar_tape_input(tape, x));

    forget_seen();
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_string_equal(seen.calls, "1");
    assert_int_equal(seen.dropped, 0);
    OK(oar_backward_weights(tape));
    assert_string_equal(seen.calls, "10");
    assert_int_equal(seen.dropped, 1);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
}

static oar_tensor *square_forward(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    return multiply(tape, multiply(tape, x, x), oar_module_param(module, 0));
}

static const oar_module_class square_class = { .size = sizeof square_class,
                                               .name = "square",
                                               .forward = square_forward };

static void a_custom_operation_may_be_recomputed(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = leaf_of(OAR_SHAPE(5), 1), *in, *y;
    double grad[2][5], param[2][5];
    oar_module *net;

    for (int again = 0; again < 2; again++) {
        forget_seen();
        OK(oar_module_create(&square_class, &net));
        OK(oar_module_add_param(net, "w", leaf_of(OAR_SHAPE(5), 2)));
        in = oar_tape_input(tape, x);
        y = again ? oar_recompute(tape, net, in) : oar_forward(tape, net, in);
        assert_int_equal(seen.dropped, again ? 2 : 0);
        OK(oar_backward_inputs(tape, 1, &y, NULL));
        OK(oar_backward_weights(tape));
        assert_int_equal(seen.made, again ? 4 : 2);
        assert_int_equal(seen.dropped, seen.made);
        OK(oar_tensor_read(oar_tensor_grad(in), OAR_F64, grad[again]));
        OK(oar_tensor_read(oar_tensor_grad(oar_module_param(net, 0)), OAR_F64,
                           param[again]));
        oar_tape_reset(tape);
        oar_module_release(net);
    }
    assert_memory_equal(grad[0], grad[1], sizeof grad[0]);
    assert_memory_equal(param[0], param[1], sizeof param[0]);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
}

/* ---- nothing recorded ---------------------------------------------------- */

static void without_a_record_drop_is_called_at_once(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *a = oar_ones(NULL, OAR_F64, OAR_SHAPE(3)), *y;
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);

    forget_seen();
    y = multiply(tape, a, a); /* no input needs a gradient */
    assert_false(oar_tensor_requires_grad(y));
    assert_int_equal(seen.dropped, 1);
    oar_tape_record(tape, 0);
    assert_false(oar_tensor_requires_grad(multiply(tape, a, w)));
    assert_int_equal(seen.dropped, 2);
    y = multiply(NULL, a, w); /* the caller's */
    assert_int_equal(seen.dropped, 3);
    assert_non_null(oar_tensor_data(y));
    oar_tensor_release(y);
    oar_tape_record(tape, 1);
    assert_true(oar_tensor_requires_grad(multiply(tape, a, w)));
    assert_int_equal(seen.dropped, 3);
    oar_tape_reset(tape);
    assert_int_equal(seen.dropped, 4);
    oar_tape_destroy(tape);
    oar_tensor_release(a);
    oar_tensor_release(w);
}

/* The result may be the tape's, the caller's, or a view of an input. */
static void every_kind_of_result_is_taken(void **state)
{
    leak_check before = leak_check_begin();
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *one, *y, *kept;

    one = oar_ones(NULL, OAR_F64, OAR_SHAPE(3));
    kept = oar_tensor_retain(oar_zeros(NULL, OAR_F64, OAR_SHAPE(3)));
    y = multiply_to(tape, one, w, kept);
    assert_ptr_equal(y, kept);
    OK(oar_backward(tape, oar_sum(tape, y)));
    oar_tape_reset(tape);
    assert_non_null(oar_tensor_data(kept)); /* it was retained */
    oar_tensor_release(kept);
    y = multiply_to(tape, one, w, oar_empty(NULL, OAR_F64, OAR_SHAPE(3)));
    y = multiply_to(tape, one, y, oar_reshape(NULL, y, OAR_SHAPE(3)));
    OK(oar_backward(tape, oar_sum(tape, y)));
    for (int i = 0; i < 3; i++)
        assert_true(((double *)oar_tensor_data(oar_tensor_grad(w)))[i] == 2);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(one);
    leak_check_end(&before);
}

static oar_status sum_back(void *arg, int i, const oar_tensor *grad,
                           oar_tensor *to, int add)
{
    oar_tensor *sum;
    oar_status status;

    if (!add)
        return oar_tensor_copy(to, grad);
    sum = oar_add(NULL, to, oar_tensor_retain((oar_tensor *)(uintptr_t)grad));
    oar_tensor_release((oar_tensor *)(uintptr_t)grad);
    status = oar_tensor_copy(to, sum);
    oar_tensor_release(sum);
    return status;
}

static const oar_custom_op sum_op = { .size = sizeof sum_op,
                                      .name = "sum of many",
                                      .backward = sum_back };

static void an_operation_may_have_many_inputs_or_none(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *in[OAR_CUSTOM_OP_INPUTS + 1], *y;

    for (int i = 0; i <= OAR_CUSTOM_OP_INPUTS; i++)
        in[i] = leaf_of(OAR_SHAPE(3), 1);
    y = oar_record_op(tape, &sum_op, NULL, OAR_CUSTOM_OP_INPUTS, in,
                      oar_zeros(tape, OAR_F64, OAR_SHAPE(3)));
    OK(oar_backward_from(tape, 1, &y, NULL));
    for (int i = 0; i < OAR_CUSTOM_OP_INPUTS; i++)
        assert_true(*(double *)oar_tensor_data(oar_tensor_grad(in[i])) == 1);
    y = oar_zeros(tape, OAR_F64, OAR_SHAPE(0));
    assert_ptr_equal(oar_record_op(tape, &sum_op, NULL, 0, NULL, y), y);
    assert_null(oar_record_op(tape, &sum_op, NULL, OAR_CUSTOM_OP_INPUTS + 1, in,
                              oar_zeros(NULL, OAR_F64, OAR_SHAPE(3))));
    assert_fails_with(oar_last_error()->status, OAR_E_ARG,
                      "sum of many of 9 inputs: from 0 to 8");
    for (int i = 0; i <= OAR_CUSTOM_OP_INPUTS; i++)
        oar_tensor_release(in[i]);
    oar_tape_destroy(tape);
}

/* ---- refusals ------------------------------------------------------------ */

static void assert_refused(const oar_tensor *made, oar_status status,
                           const char *text)
{
    assert_null(made);
    assert_fails_with(oar_last_error()->status, status, text);
    assert_int_equal(seen.dropped, seen.made);
    oar_clear_error();
}

static void wrong_results_and_inputs_are_refused(void **state)
{
    leak_check before = leak_check_begin();
    oar_tape *tape = new_tape(), *other = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *y = oar_scale(tape, w, 2);

    forget_seen();
    assert_refused(multiply_to(tape, w, w, oar_tensor_retain(y)), OAR_E_STATE,
                   "product gives a tensor [3] that is the result of");
    oar_tensor_release(y); /* of the tape's, nothing is taken */
    assert_refused(multiply_to(tape, w, w, oar_tensor_retain(w)), OAR_E_STATE,
                   "is a leaf which requires");
    assert_refused(
        multiply_to(tape, w, w, oar_zeros(other, OAR_F64, OAR_SHAPE(3))),
        OAR_E_STATE, "another tape owns");
    assert_refused(
        multiply_to(other, w, y, oar_ones(NULL, OAR_F64, OAR_SHAPE(3))),
        OAR_E_STATE, "computed on another tape");
    assert_refused(multiply_to(tape, w, w, NULL), OAR_E_ARG, "");
    assert_refused(oar_record_op(tape, &sum_op, NULL, 1,
                                 (oar_tensor *[]){ NULL },
                                 oar_zeros(NULL, OAR_F64, OAR_SHAPE(3))),
                   OAR_E_ARG, "");
    assert_refused(oar_record_op(tape, &sum_op, NULL, 1, &w,
                                 oar_zeros(NULL, OAR_I64, OAR_SHAPE(3))),
                   OAR_E_DTYPE, "sum of many of i64");
    assert_refused(oar_record_op(tape, NULL, NULL, 1, &w,
                                 oar_zeros(NULL, OAR_F64, OAR_SHAPE(3))),
                   OAR_E_ARG, "");
    assert_refused(oar_record_op(tape, &(oar_custom_op){ .size = 5 }, NULL, 1,
                                 &w, oar_zeros(NULL, OAR_F64, OAR_SHAPE(3))),
                   OAR_E_ARG, "size 5");
    assert_refused(oar_record_op(tape, OAR_OPTS(oar_custom_op, .name = "x"),
                                 NULL, 1, &w,
                                 oar_zeros(NULL, OAR_F64, OAR_SHAPE(3))),
                   OAR_E_ARG, "without a name or a backward");
    oar_tape_destroy(tape);
    oar_tape_destroy(other);
    oar_tensor_release(w);
    leak_check_end(&before);
}

/* ---- failures of backward ------------------------------------------------ */

static void keep_status(void *arg, oar_status status)
{
    *(oar_status *)arg = status;
}

static void a_failing_backward_ends_the_pass_and_is_told(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *loss;
    oar_status told = OAR_OK;

    for (int silent = 0; silent < 2; silent++) {
        forget_seen();
        oar_clear_error();
        seen.ends = silent ? OAR_E_PEER : OAR_E_ARG;
        seen.silent = silent;
        loss = oar_sum(tape, multiply(tape, w, w));
        OK(oar_tape_on_end(tape, keep_status, &told));
        assert_fails_with(oar_backward(tape, loss), seen.ends,
                          silent ? "backward of product failed" : "fill");
        assert_int_equal(told, seen.ends);
        assert_int_equal(seen.dropped, 1);
        assert_string_equal(seen.calls, "0");
        assert_fails_with(oar_backward(tape, loss), OAR_E_STATE,
                          "a second time");
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void a_second_backward_names_the_operation(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *y = multiply(tape, w, w);

    forget_seen();
    OK(oar_backward_from(tape, 1, &y, NULL));
    assert_fails_with(oar_backward_from(tape, 1, &y, NULL), OAR_E_STATE,
                      "backward through product a second time");
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

/* ---- gradcheck ----------------------------------------------------------- */

static oar_tensor *products(oar_tape *tape, oar_tensor *const *in, void *arg)
{
    return multiply(tape, multiply(tape, in[0], in[1]), in[1]);
}

static oar_tensor *built_in(oar_tape *tape, oar_tensor *const *in, void *arg)
{
    return oar_mul(tape, oar_tanh(tape, in[0]), in[1]);
}

static oar_tensor *unrecorded(oar_tape *tape, oar_tensor *const *in, void *arg)
{
    oar_tensor *y;
    int before = oar_tape_record(tape, 0);

    y = oar_scale(tape, in[0], 2);
    oar_tape_record(tape, before);
    return y;
}

static oar_tensor *no_result(oar_tape *tape, oar_tensor *const *in, void *arg)
{
    return arg != NULL ? oar_matmul(tape, in[0], in[0]) : NULL;
}

static void gradcheck_passes_what_is_right(void **state)
{
    leak_check before = leak_check_begin();
    oar_tensor *in[2] = { leaf_of(OAR_SHAPE(2, 3), 1),
                          leaf_of(OAR_SHAPE(2, 3), 2) };
    oar_tensor *single[2] = {
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(2, 3), 3, -1, 1),
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(3), 4, -1, 1)
    };
    double kept[6], now[6];

    forget_seen();
    OK(oar_tensor_read(in[0], OAR_F64, kept));
    OK(oar_gradcheck(products, NULL, 2, in, NULL));
    OK(oar_gradcheck(built_in, NULL, 2, in, NULL));
    OK(oar_gradcheck(built_in, NULL, 2, single, NULL));
    OK(oar_tensor_read(in[0], OAR_F64, now));
    assert_memory_equal(kept, now, sizeof kept);
    assert_null(oar_tensor_grad(in[0]));
    assert_int_equal(seen.made, seen.dropped);
    for (int i = 0; i < 2; i++) {
        oar_tensor_release(in[i]);
        oar_tensor_release(single[i]);
    }
    leak_check_end(&before);
}

static void gradcheck_finds_a_planted_mistake(void **state)
{
    oar_tensor *in[2] = { leaf_of(OAR_SHAPE(2, 3), 1),
                          leaf_of(OAR_SHAPE(2, 3), 2) };

    forget_seen();
    seen.wrong = 1;
    assert_fails_with(oar_gradcheck(products, NULL, 2, in, NULL), OAR_E_DATA,
                      "the gradient of input 1 at [1, 1] is ");
    assert_last_error_has(", but differences give ");
    OK(oar_gradcheck(products, NULL, 2, in,
                     OAR_OPTS(oar_gradcheck_opts, .tolerance = 10)));
    forget_seen();
    seen.forgets_add = 1;
    assert_fails_with(oar_gradcheck(products, NULL, 2, in, NULL), OAR_E_DATA,
                      "the gradient of input 0 at [0, 0] is ");
    forget_seen();
    assert_fails_with(oar_gradcheck(unrecorded, NULL, 1, in, NULL), OAR_E_DATA,
                      "the gradient of input 0 at [0, 0] is 0, but ");
    oar_tensor_release(in[0]);
    oar_tensor_release(in[1]);
}

static void gradcheck_refuses_what_it_cannot_move(void **state)
{
    oar_tensor *x = leaf_of(OAR_SHAPE(2, 3), 1);
    oar_tensor *strided = oar_transpose(NULL, x, 0, 1);
    oar_tensor *half = oar_zeros(NULL, OAR_BF16, OAR_SHAPE(3));
    oar_tensor *none = oar_zeros(NULL, OAR_F64, OAR_SHAPE(0));

    oar_clear_error();
    assert_fails_with(oar_gradcheck(no_result, NULL, 1, &x, NULL), OAR_E_STATE,
                      "gave no result");
    assert_fails_with(oar_gradcheck(no_result, x, 1, &x, NULL), OAR_E_SHAPE,
                      "matmul");
    assert_fails_with(oar_gradcheck(built_in, NULL, 1, &strided, NULL),
                      OAR_E_ARG, "input 0 [3, 2] is not contiguous");
    assert_fails_with(oar_gradcheck(built_in, NULL, 1, &half, NULL),
                      OAR_E_DTYPE, "input 0 is bf16");
    OK(oar_gradcheck(built_in, NULL, 2, (oar_tensor *[]){ none, none }, NULL));
    assert_int_equal(oar_gradcheck(NULL, NULL, 1, &x, NULL), OAR_E_ARG);
    assert_int_equal(oar_gradcheck(built_in, NULL, 1, NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_gradcheck(built_in, NULL, -1, &x, NULL), OAR_E_ARG);
    oar_tensor_release(strided);
    oar_tensor_release(half);
    oar_tensor_release(none);
    oar_tensor_release(x);
}

/* ---- failing allocations ------------------------------------------------- */

static oar_status record_and_run(void *arg)
{
    oar_tape *tape = NULL;
    oar_tensor *w = NULL, *y;
    oar_status status = oar_tape_create(&tape);

    if (status == OAR_OK) {
        w = oar_ones(NULL, OAR_F64, OAR_SHAPE(3));
        status = w != NULL ? oar_tensor_require_grad(w, 1) : OAR_E_NOMEM;
    }
    if (status == OAR_OK) {
        y = multiply_to(tape, w, w, oar_empty(NULL, OAR_F64, OAR_SHAPE(3)));
        status = y != NULL ? oar_backward_from(tape, 1, &y, NULL)
                           : oar_last_error()->status;
    }
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    return status;
}

static oar_status check_products(void *arg)
{
    return oar_gradcheck(products, NULL, 2, arg, NULL);
}

static void no_failed_allocation_leaks_or_crashes(void **state)
{
    oar_tensor *in[2] = { leaf_of(OAR_SHAPE(2), 1), leaf_of(OAR_SHAPE(2), 2) };

    forget_seen();
    fail_each_allocation(record_and_run, NULL);
    assert_int_equal(seen.made, seen.dropped);
    fail_each_allocation(check_products, in);
    assert_int_equal(seen.made, seen.dropped);
    oar_tensor_release(in[0]);
    oar_tensor_release(in[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_custom_operation_equals_the_built_in_one),
        cmocka_unit_test(halves_ask_for_leaves_in_the_second),
        cmocka_unit_test(a_custom_operation_may_be_recomputed),
        cmocka_unit_test(without_a_record_drop_is_called_at_once),
        cmocka_unit_test(every_kind_of_result_is_taken),
        cmocka_unit_test(an_operation_may_have_many_inputs_or_none),
        cmocka_unit_test(wrong_results_and_inputs_are_refused),
        cmocka_unit_test(a_failing_backward_ends_the_pass_and_is_told),
        cmocka_unit_test(a_second_backward_names_the_operation),
        cmocka_unit_test(gradcheck_passes_what_is_right),
        cmocka_unit_test(gradcheck_finds_a_planted_mistake),
        cmocka_unit_test(gradcheck_refuses_what_it_cannot_move),
        cmocka_unit_test(no_failed_allocation_leaks_or_crashes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
