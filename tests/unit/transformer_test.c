/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with masks, dropout and fewer heads of k and v, and embeddings with
 * padding: against PyTorch, against differences of values, and against the same
 * computed by other operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/models.h>

#include "support/leak_check.h"
#include "unit/same_numbers.h"
#include "unit/transformer_cases.h"

/* ---- against PyTorch ----------------------------------------------------- */

static void operations_agree_with_pytorch(void **state)
{
    golden_check_all(transformer_cases, TRANSFORMER_CASES, 0);
}

static void strided_views_give_the_same(void **state)
{
    golden_check_all(transformer_cases, TRANSFORMER_CASES, 1);
}

/* ---- against differences ------------------------------------------------- */

static void gradients_agree_with_differences(void **state)
{
    gradcheck_all(checks, CHECKS, 1, -1);
}

static void gradients_of_two_passes_add_up(void **state)
{
    gradcheck_all(checks, CHECKS, 2, -1);
}

static void each_input_has_its_gradient_alone(void **state)
{
    for (int i = 0; i < GRADCHECK_LEAVES; i++)
        gradcheck_all(checks, CHECKS, 1, i);
}

/* ---- against other operations -------------------------------------------- */

enum { ROWS = 17 }; /* more than a block */

typedef struct trio {
    oar_tensor *in[3];
} trio;

/* Numbers that all dtypes have. */
static trio trio_make(oar_dtype dtype)
{
    trio made;

    for (int i = 0; i < 3; i++) {
        oar_shape shape = OAR_SHAPE(2, 3, ROWS, 4);
        oar_tensor *half =
            oar_normal(NULL, OAR_BF16, shape, (uint64_t)i + 1, 0, 1);

        made.in[i] = oar_empty(NULL, dtype, shape);
        OK(oar_tensor_copy(made.in[i], half));
        OK(oar_tensor_require_grad(made.in[i], 1));
        oar_tensor_release(half);
    }
    return made;
}

static void trio_drop(trio *t)
{
    for (int i = 0; i < 3; i++)
        oar_tensor_release(t->in[i]);
}

static void compare_grads(const trio *got, const trio *want, double tolerance)
{
    for (int i = 0; i < 3; i++)
        assert_same(oar_tensor_retain(oar_tensor_grad(got->in[i])),
                    oar_tensor_retain(oar_tensor_grad(want->in[i])), tolerance);
}

/* The same by way of all probabilities at once. */
static oar_tensor *by_operations(oar_tape *tape, oar_tensor *const *in,
                                 const oar_attention_opts *o)
{
    oar_tensor *scores = oar_matmul(tape, in[0], t(tape, in[1])), *p;

    scores = oar_scale(tape, scores, 0.5); /* 1 / sqrt(4) */
    scores = oar_masked_fill(tape, scores, oar_logical_not(tape, o->mask),
                             -INFINITY);
    p = oar_dropout(tape, oar_softmax(tape, scores), o->dropout, o->seed);
    return oar_matmul(tape, p, in[2]);
}

static void masks_and_dropout_are_those_of_the_operations(void **state)
{
    trio a = trio_make(OAR_F64), b = trio_make(OAR_F64);
    oar_attention_opts o = oar_attention_opts_init();
    oar_tensor *got, *want;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    o.mask = shows(tape, a.in[0], OAR_SHAPE(3, ROWS, ROWS));
    o.dropout = 0.3;
    o.seed = 12345;
    got = oar_attention(tape, a.in[0], a.in[1], a.in[2], &o);
    want = by_operations(tape, b.in, &o);
    assert_same(oar_tensor_retain(got), oar_tensor_retain(want), 1e-14);
    OK(oar_backward_from(tape, 1, &got, NULL));
    OK(oar_backward_from(tape, 1, &want, NULL));
    compare_grads(&a, &b, 1e-13);
    trio_drop(&a);
    trio_drop(&b);
    oar_tape_destroy(tape);
}

/* In this dtype, with an added mask that gets a gradient and is put in *mask.
 * split: backward in two halves. */
static oar_tensor *run_masked(trio *of, oar_dtype dtype, int split,
                              oar_tensor **mask)
{
    oar_attention_opts o = oar_attention_opts_init();
    oar_tensor *half =
        oar_normal(NULL, OAR_BF16, OAR_SHAPE(3, 1, ROWS), 9, 0, 1);
    oar_tensor *y, *out;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    *of = trio_make(dtype);
    *mask = oar_empty(NULL, dtype, OAR_SHAPE(3, 1, ROWS));
    OK(oar_tensor_copy(*mask, half));
    OK(oar_tensor_require_grad(*mask, 1));
    o.mask = *mask;
    o.dropout = 0.25;
    y = oar_attention(tape, of->in[0], of->in[1], of->in[2], &o);
    if (y == NULL)
        fail_msg("%s", oar_last_error_text());
    if (split) {
        OK(oar_backward_inputs(tape, 1, &y, NULL));
        OK(oar_backward_weights(tape));
    } else {
        OK(oar_backward_from(tape, 1, &y, NULL));
    }
    out = oar_tensor_retain(y);
    oar_tensor_release(half);
    oar_tape_destroy(tape);
    return out;
}

static void compare_masked(oar_dtype dtype, int split, double tolerance)
{
    oar_tensor *mask[2], *want, *got;
    trio a, b;

    want = run_masked(&a, OAR_F32, 0, &mask[0]);
    got = run_masked(&b, dtype, split, &mask[1]);
    assert_int_equal(oar_tensor_dtype(got), dtype);
    assert_same(got, want, tolerance);
    compare_grads(&b, &a, 3 * tolerance);
    assert_same(oar_tensor_retain(oar_tensor_grad(mask[1])),
                oar_tensor_retain(oar_tensor_grad(mask[0])), 3 * tolerance);
    oar_tensor_release(mask[0]);
    oar_tensor_release(mask[1]);
    trio_drop(&a);
    trio_drop(&b);
}

static void halves_are_computed_in_f32_and_rounded(void **state)
{
    compare_masked(OAR_F16, 0, 0x1p-11);
    compare_masked(OAR_BF16, 0, 0x1p-8);
}

static void backward_in_two_halves_leaves_the_same_bits(void **state)
{
    compare_masked(OAR_F32, 1, 0);
}

/* ---- what is hidden ------------------------------------------------------ */

/* A mask of keys that hides the last one, or all in the first row. */
static oar_tensor *hiding(oar_tape *tape, oar_dtype dtype, int whole_row)
{
    oar_shape shape = OAR_SHAPE(ROWS, ROWS);
    oar_tensor *mask = oar_empty(tape, dtype, shape);
    double number[ROWS * ROWS];

    for (int i = 0; i < ROWS * ROWS; i++) {
        int hidden = whole_row ? i < ROWS : i % ROWS == ROWS - 1;

        if (dtype == OAR_BOOL)
            number[i] = !hidden;
        else
            number[i] = hidden ? -INFINITY : 0;
    }
    OK(oar_tensor_write(mask, OAR_F64, number));
    return mask;
}

static void a_hidden_key_has_no_part_in_the_result(void **state)
{
    const oar_dtype dtypes[] = { OAR_BOOL, OAR_F32 };

    for (int k = 0; k < 2; k++) {
        trio a = trio_make(OAR_F32), b = trio_make(OAR_F32);
        oar_tensor *last, *y[2];
        oar_tape *tape;

        OK(oar_tape_create(&tape));
        for (int i = 1; i < 3; i++) {
            last = oar_narrow(NULL, b.in[i], 2, ROWS - 1, 1);
            OK(oar_tensor_fill(last, 1e30));
            oar_tensor_release(last);
        }
        for (int i = 0; i < 2; i++) {
            trio *of = i == 0 ? &a : &b;

            y[i] = attend(tape, of->in, hiding(tape, dtypes[k], 0), 0);
            OK(oar_backward_from(tape, 1, &y[i], NULL));
        }
        assert_same(oar_tensor_retain(y[1]), oar_tensor_retain(y[0]), 0);
        compare_grads(&b, &a, 0);
        trio_drop(&a);
        trio_drop(&b);
        oar_tape_destroy(tape);
    }
}

static void a_row_that_sees_nothing_gives_zeros(void **state)
{
    const oar_dtype dtypes[] = { OAR_BOOL, OAR_F32 };

    for (int k = 0; k < 4; k++) {
        trio a = trio_make(OAR_F32);
        float number[2 * 3 * ROWS * 4];
        oar_tensor *y, *mask;
        oar_tape *tape;

        OK(oar_tape_create(&tape));
        mask = hiding(tape, dtypes[k % 2], 1);
        y = attend(tape, a.in, mask, k / 2);
        OK(oar_tensor_read(y, OAR_F32, number));
        for (int i = 0; i < 2 * 3 * ROWS * 4; i++)
            assert_true((number[i] == 0) == (i / 4 % ROWS == 0));
        OK(oar_backward_from(tape, 1, &y, NULL));
        OK(oar_tensor_read(oar_tensor_grad(a.in[0]), OAR_F32, number));
        for (int i = 0; i < 2 * 3 * ROWS * 4; i++)
            assert_true(isfinite(number[i]) &&
                        (i / 4 % ROWS != 0 || number[i] == 0));
        trio_drop(&a);
        oar_tape_destroy(tape);
    }
}

static void the_padding_gets_no_gradient_and_others_do(void **state)
{
    const int64_t number[] = { 2, 0, 2, 4 };
    oar_tensor *index = oar_from_data(NULL, OAR_I64, OAR_SHAPE(4), number);
    oar_embedding_layer_opts o = oar_embedding_layer_opts_init();
    oar_tensor *table, *y;
    float grad[5];
    oar_module *m;
    oar_tape *tape;

    o.has_padding = 1;
    o.padding = -3;
    OK(oar_tape_create(&tape));
    OK(oar_embedding_create_with(5, 1, 7, &o, &m));
    table = oar_module_param(m, 0);
    OK(oar_tensor_read(table, OAR_F32, grad));
    for (int i = 0; i < 5; i++)
        assert_true((grad[i] == 0) == (i == 2));
    y = oar_forward(tape, m, index);
    OK(oar_backward_from(tape, 1, &y, NULL));
    OK(oar_tensor_read(oar_tensor_grad(table), OAR_F32, grad));
    for (int i = 0; i < 5; i++)
        assert_true(grad[i] == (i == 0 || i == 4));
    oar_module_release(m);
    oar_tensor_release(index);
    oar_tape_destroy(tape);
}

/* ---- layers and models --------------------------------------------------- */

static oar_module *new_layer(int kv_heads, int rotary, double dropout)
{
    oar_attention_layer_opts o = oar_attention_layer_opts_init();
    oar_module *m;

    o.causal = 1;
    o.kv_heads = kv_heads;
    o.rotary_base = rotary ? 50 : 0;
    o.dropout = dropout;
    o.dropout_seed = 11;
    OK(oar_attention_create(8, 4, 5, &o, &m));
    return m;
}

/* Heads by views and the operation of three tensors. */
static oar_tensor *layer_by_views(oar_tape *tape, oar_module *m, oar_tensor *x,
                                  int kv_heads, int rotary, double dropout,
                                  uint64_t seed)
{
    const int heads[] = { 4, kv_heads, kv_heads };
    oar_tensor *qkv = oar_linear(tape, x, oar_module_find(m, "qkv.weight"),
                                 oar_module_find(m, "qkv.bias"));
    oar_tensor *part[3], *y;
    int64_t first = 0;

    for (int i = 0; i < 3; first += 2 * heads[i++]) {
        y = oar_narrow(tape, qkv, 2, first, 2 * heads[i]);
        y = oar_reshape(tape, y, OAR_SHAPE(3, 5, heads[i], 2));
        part[i] = oar_transpose(tape, y, 1, 2);
        if (rotary && i < 2)
            part[i] = oar_rotary(tape, part[i], 0, 50);
    }
    y = oar_attention(tape, part[0], part[1], part[2],
                      OAR_OPTS(oar_attention_opts, .causal = 1,
                               .dropout = dropout, .seed = seed));
    y = oar_reshape(tape, oar_transpose(tape, y, 1, 2), OAR_SHAPE(3, 5, 8));
    return oar_linear(tape, y, oar_module_find(m, "out.weight"),
                      oar_module_find(m, "out.bias"));
}

/* Backward from y, and the gradient of the first parameter, which is cleared.
 */
static oar_tensor *weight_grad(oar_tape *tape, oar_module *m, oar_tensor *y)
{
    oar_tensor *p = oar_module_param(m, 0), *grad;

    OK(oar_backward_from(tape, 1, &y, NULL));
    grad = oar_scale(NULL, oar_tensor_grad(p), 1);
    oar_tensor_clear_grad(p);
    return grad;
}

static void layers_are_the_same_packed_and_by_views(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(3, 5, 8), 1);
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int k = 0; k < 12; k++) {
        int kv_heads = k % 3 == 0 ? 1 : 2 * (k % 3), rotary = k / 3 % 2;
        double dropout = k < 6 ? 0 : 0.3;
        oar_module *m = new_layer(kv_heads, rotary, dropout);

        assert_int_equal(oar_tensor_shape(oar_module_param(m, 0)).dim[0],
                         8 + 4 * kv_heads);
        for (uint64_t seed = 11; seed < 13; seed++) {
            oar_tensor *y = oar_forward(tape, m, x);
            oar_tensor *z =
                layer_by_views(tape, m, x, kv_heads, rotary, dropout, seed);

            assert_same(oar_tensor_retain(y), oar_tensor_retain(z), 1e-6);
            assert_same(weight_grad(tape, m, y), weight_grad(tape, m, z), 1e-5);
        }
        oar_module_train(m, 0);
        assert_same(oar_forward(NULL, m, x),
                    oar_tensor_retain(
                        layer_by_views(tape, m, x, kv_heads, rotary, 0, 0)),
                    1e-6);
        oar_module_release(m);
        oar_tape_reset(tape);
    }
    oar_tensor_release(x);
    oar_tape_destroy(tape);
}

static oar_module *new_gpt(int recompute, int rotary)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_module *net;

    o.vocabulary = 11;
    o.context = 8;
    o.width = 16;
    o.heads = 4;
    o.kv_heads = 2;
    o.layers = 4;
    o.dropout = 0.1;
    o.attention_dropout = 0.2;
    o.rotary = rotary;
    o.recompute = recompute;
    OK(oar_gpt_create(&o, &net));
    return net;
}

/* One pass of training. split: backward in two halves. */
static void train(oar_module *net, int split)
{
    oar_tensor *x = oar_uniform(NULL, OAR_I64, OAR_SHAPE(3, 5), 1, 0, 11);
    oar_tensor *y = oar_uniform(NULL, OAR_I64, OAR_SHAPE(15), 2, 0, 11), *loss;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int step = 0; step < 2; step++) {
        loss = oar_cross_entropy(tape, oar_forward(tape, net, x), y);
        if (split) {
            OK(oar_backward_inputs(tape, 1, &loss, NULL));
            OK(oar_backward_weights(tape));
        } else {
            OK(oar_backward(tape, loss));
        }
        oar_tape_reset(tape);
    }
    oar_tensor_release(x);
    oar_tensor_release(y);
    oar_tape_destroy(tape);
}

static void recomputing_and_splitting_give_the_same_bits(void **state)
{
    for (int k = 0; k < 6; k++) {
        oar_module *a = new_gpt(0, k % 2), *b = new_gpt(k / 2 != 1, k % 2);

        train(a, 0);
        train(b, k / 2 != 0);
        assert_int_equal(oar_module_params(a), oar_module_params(b));
        for (int i = 0; i < oar_module_params(a); i++) {
            const oar_tensor *p = oar_tensor_grad(oar_module_param(a, i));
            const oar_tensor *q = oar_tensor_grad(oar_module_param(b, i));

            assert_memory_equal(oar_tensor_const_data(p),
                                oar_tensor_const_data(q),
                                (size_t)oar_tensor_count(p) * sizeof(float));
        }
        oar_module_release(a);
        oar_module_release(b);
    }
}

/* ---- failures ------------------------------------------------------------ */

/* Everything strided and in halves, so that all of it is copied first. */
static oar_status attend_once(void *arg)
{
    oar_tensor *const *in = arg;
    oar_tape *tape = NULL;
    oar_tensor *view[4] = { NULL }, *y = NULL;
    oar_status status = oar_tape_create(&tape);

    for (int i = 0; i < 4 && status == OAR_OK; i++) {
        view[i] = t(tape, in[i]);
        if (view[i] == NULL)
            status = oar_last_error()->status;
    }
    if (status == OAR_OK) {
        y = oar_attention(
            tape, view[0], view[1], view[2],
            OAR_OPTS(oar_attention_opts, .mask = view[3], .dropout = 0.5));
        status = y != NULL ? oar_backward_from(tape, 1, &y, NULL)
                           : oar_last_error()->status;
    }
    oar_tape_destroy(tape);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    const oar_shape shapes[] = { OAR_SHAPE(2, 4, 3, 5), OAR_SHAPE(2, 2, 3, 7),
                                 OAR_SHAPE(2, 2, 2, 7), OAR_SHAPE(4, 7, 5) };
    oar_tensor *in[4];

    for (int i = 0; i < 4; i++) {
        in[i] = oar_normal(NULL, OAR_F16, shapes[i], (uint64_t)i, 0, 1);
        OK(oar_tensor_require_grad(in[i], 1));
    }
    OK(attend_once(in)); /* the gradients stay */
    fail_each_allocation(attend_once, in);
    for (int i = 0; i < 4; i++)
        oar_tensor_release(in[i]);
}

static void wrong_attentions_are_refused_with_a_sentence(void **state)
{
    oar_tensor *q = normal(OAR_SHAPE(2, 4, 5, 3), 1);
    oar_tensor *three = normal(OAR_SHAPE(2, 3, 7, 3), 2);
    oar_tensor *two = normal(OAR_SHAPE(2, 2, 7, 3), 2);
    oar_tensor *none = normal(OAR_SHAPE(2, 0, 7, 3), 2);
    oar_tensor *other = normal(OAR_SHAPE(1, 4, 7, 3), 2);
    oar_tensor *wide = oar_zeros(NULL, OAR_F64, OAR_SHAPE(5, 7));
    oar_tensor *late = oar_zeros(NULL, OAR_BOOL, OAR_SHAPE(3, 2, 4, 5, 7));
    oar_tensor *bad[] = { three, none };

    for (int i = 0; i < 2; i++)
        assert_refused(oar_attention(NULL, q, bad[i], bad[i], NULL),
                       OAR_E_SHAPE, "do not divide");
    assert_refused(oar_attention(NULL, q, other, other, NULL), OAR_E_SHAPE,
                   "leading dims");
    assert_refused(oar_attention(NULL, q, two, three, NULL), OAR_E_SHAPE,
                   "leading dims");
    assert_refused(attend(NULL, (oar_tensor *[]){ q, two, two }, wide, 0),
                   OAR_E_DTYPE, "f64");
    assert_refused(attend(NULL, (oar_tensor *[]){ q, two, two }, two, 0),
                   OAR_E_SHAPE, "[2, 4, 5, 7]");
    assert_refused(attend(NULL, (oar_tensor *[]){ q, two, two }, late, 0),
                   OAR_E_SHAPE, "[3, 2, 4, 5, 7]");
    assert_refused(oar_attention(NULL, q, two, two,
                                 OAR_OPTS(oar_attention_opts, .dropout = 1.5)),
                   OAR_E_ARG, "1.5");
    oar_tensor_release(q);
    oar_tensor_release(three);
    oar_tensor_release(two);
    oar_tensor_release(none);
    oar_tensor_release(other);
    oar_tensor_release(wide);
    oar_tensor_release(late);
}

static void wrong_layers_are_refused_with_a_sentence(void **state)
{
    oar_tensor *table = normal(OAR_SHAPE(5, 3), 1);
    oar_tensor *index = oar_zeros(NULL, OAR_I64, OAR_SHAPE(2));
    oar_attention_layer_opts o = oar_attention_layer_opts_init();
    oar_embedding_layer_opts e = oar_embedding_layer_opts_init();
    oar_module *m = NULL;

    o.kv_heads = 3;
    assert_fails_with(oar_attention_create(16, 4, 0, &o, &m), OAR_E_ARG,
                      "divide the heads");
    o.kv_heads = 0;
    o.dropout = -1;
    assert_fails_with(oar_attention_create(16, 4, 0, &o, &m), OAR_E_ARG,
                      "dropout");
    e.has_padding = 1;
    e.padding = 5;
    assert_fails_with(oar_embedding_create_with(5, 3, 0, &e, &m), OAR_E_ARG,
                      "padding 5");
    assert_fails_with(oar_embedding_create_with(5, 3, 0, NULL, NULL), OAR_E_ARG,
                      "nowhere");
    assert_refused(pad(NULL, table, index, 5), OAR_E_ARG, "padding 5");
    assert_refused(pad(NULL, table, index, -6), OAR_E_ARG, "padding -6");
    assert_null(m);
    oar_tensor_release(table);
    oar_tensor_release(index);
}

static int open_golden(void **state)
{
    return golden_load("transformer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(gradients_of_two_passes_add_up),
        cmocka_unit_test(each_input_has_its_gradient_alone),
        cmocka_unit_test(masks_and_dropout_are_those_of_the_operations),
        cmocka_unit_test(halves_are_computed_in_f32_and_rounded),
        cmocka_unit_test(backward_in_two_halves_leaves_the_same_bits),
        cmocka_unit_test(a_hidden_key_has_no_part_in_the_result),
        cmocka_unit_test(a_row_that_sees_nothing_gives_zeros),
        cmocka_unit_test(the_padding_gets_no_gradient_and_others_do),
        cmocka_unit_test(layers_are_the_same_packed_and_by_views),
        cmocka_unit_test(recomputing_and_splitting_give_the_same_bits),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(wrong_attentions_are_refused_with_a_sentence),
        cmocka_unit_test(wrong_layers_are_refused_with_a_sentence),
    };

    return cmocka_run_group_tests(tests, open_golden, golden_close);
}
