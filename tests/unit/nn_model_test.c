/* SPDX-License-Identifier: Apache-2.0 */
/* Whole models: recomputation, dropout, memory, several tapes, NULL tapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/memory.h>
#include <oarsong/models.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"

enum { BATCH = 3, TIME = 5, VOCABULARY = 11 };

static oar_gpt_opts tiny(void)
{
    oar_gpt_opts o = oar_gpt_opts_init();

    o.vocabulary = VOCABULARY;
    o.context = 8;
    o.width = 12;
    o.heads = 3;
    o.layers = 2;
    o.seed = 3;
    return o;
}

static oar_module *new_gpt(double dropout, int recompute, int tied)
{
    oar_gpt_opts o = tiny();
    oar_module *net;

    o.dropout = dropout;
    o.recompute = recompute;
    o.tied = tied;
    OK(oar_gpt_create(&o, &net));
    return net;
}

static oar_tensor *tokens(uint64_t seed)
{
    return oar_uniform(NULL, OAR_I64, OAR_SHAPE(BATCH, TIME), seed, 0,
                       VOCABULARY);
}

static oar_tensor *targets(uint64_t seed)
{
    return oar_uniform(NULL, OAR_I64, OAR_SHAPE(BATCH * TIME), seed, 0,
                       VOCABULARY);
}

/* A step of training; x and y are borrowed. */
static oar_status train_one_step(oar_tape *tape, oar_module *net,
                                 oar_optim *optim, oar_tensor *x, oar_tensor *y)
{
    oar_tensor *loss = oar_cross_entropy(tape, oar_forward(tape, net, x), y);
    oar_status status =
        loss != NULL ? oar_backward(tape, loss) : oar_last_error()->status;

    if (status == OAR_OK)
        status = oar_optim_step(optim);
    oar_optim_zero_grad(optim);
    oar_tape_reset(tape);
    return status;
}

static void train(oar_module *net, int steps)
{
    oar_tensor *x = tokens(1), *y = targets(2);
    oar_optim *adam;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_adamw_create(net, NULL, &adam));
    for (int i = 0; i < steps; i++)
        OK(train_one_step(tape, net, adam, x, y));
    oar_optim_destroy(adam);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(y);
}

static void assert_same_params(const oar_module *a, const oar_module *b)
{
    assert_int_equal(oar_module_params(a), oar_module_params(b));
    for (int i = 0; i < oar_module_params(a); i++) {
        const oar_tensor *p = oar_module_param(a, i);
        const oar_tensor *q = oar_module_param(b, i);

        assert_int_equal(oar_tensor_count(p), oar_tensor_count(q));
        assert_memory_equal(oar_tensor_data(p), oar_tensor_data(q),
                            (size_t)oar_tensor_count(p) * sizeof(float));
    }
}

/* ---- recomputation ------------------------------------------------------- */

static void recomputing_gives_the_same_bits(void **state)
{
    for (int k = 0; k < 4; k++) {
        oar_module *a = new_gpt(k % 2 * 0.2, 0, k / 2);
        oar_module *b = new_gpt(k % 2 * 0.2, 1, k / 2);

        train(a, 5);
        train(b, 5);
        assert_same_params(a, b);
        oar_module_release(a);
        oar_module_release(b);
    }
}

/* A module that recomputes its only child. */
static oar_tensor *again_forward(oar_tape *tape, oar_module *module,
                                 oar_tensor *x)
{
    return oar_recompute(tape, oar_module_child(module, 0), x);
}

static const oar_module_class again_class = { .size = sizeof again_class,
                                              .name = "again",
                                              .forward = again_forward };

static oar_module *again(oar_module *inner)
{
    oar_module *made;

    OK(oar_module_create(&again_class, &made));
    OK(oar_module_add_child(made, "inner", inner));
    return made;
}

static void recomputing_inside_recomputing_gives_the_same_bits(void **state)
{
    oar_module *a = new_gpt(0.2, 0, 0), *b = again(again(new_gpt(0.2, 1, 0)));

    train(a, 3);
    train(b, 3);
    assert_same_params(a, b);
    oar_module_release(a);
    oar_module_release(b);
}

static void a_parameter_that_moves_ends_what_is_to_be_recomputed(void **state)
{
    oar_tensor *x = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 3)), *weight, *y;
    oar_module *inner, *net;
    oar_storage *s;
    oar_tape *tape;

    OK(oar_linear_create(3, 4, 1, NULL, &inner));
    net = again(inner);
    weight = oar_module_param(net, 0);
    OK(oar_storage_create(48, 0, &s));
    OK(oar_tape_create(&tape));
    y = oar_sum(tape, oar_forward(tape, net, x));
    OK(oar_tensor_rebase(weight, s, 0, OAR_F32));
    OK(oar_tensor_fill(weight, 1));
    assert_fails_with(oar_backward(tape, y), OAR_E_STATE, "oar_tensor_rebase");
    assert_null(oar_tensor_grad(oar_module_param(net, 1))); /* nor another */
    oar_tape_reset(tape);
    OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
    assert_non_null(oar_tensor_grad(weight));
    oar_tape_destroy(tape);
    oar_storage_release(s);
    oar_module_release(net);
    oar_tensor_release(x);
}

static oar_status count_grad(oar_tensor *leaf, void *arg)
{
    assert_non_null(oar_tensor_grad(leaf));
    ++*(int *)arg;
    return OAR_OK;
}

/* The same layer twice, both times recomputed. */
static void hooks_run_once_when_the_gradient_is_complete(void **state)
{
    oar_tensor *x = oar_normal(NULL, OAR_F32, OAR_SHAPE(3, 4), 1, 0, 1), *y;
    int runs = 0;
    oar_module *layer;
    oar_hook *hook;
    oar_tape *tape;

    OK(oar_linear_create(4, 4, 1, NULL, &layer));
    OK(oar_tape_create(&tape));
    OK(oar_tensor_on_grad(oar_module_param(layer, 0), count_grad, &runs,
                          &hook));
    y = oar_recompute(tape, layer, oar_recompute(tape, layer, x));
    OK(oar_backward(tape, oar_sum(tape, y)));
    assert_int_equal(runs, 1);
    oar_hook_remove(hook);
    oar_tape_destroy(tape);
    oar_module_release(layer);
    oar_tensor_release(x);
}

/* How often a hook ran, and the first number of the gradient it saw. */
typedef struct hook_seen {
    int runs;
    float first;
} hook_seen;

static oar_status see_grad(oar_tensor *leaf, void *arg)
{
    hook_seen *s = arg;

    s->runs++;
    s->first = *(float *)oar_tensor_data(oar_tensor_grad(leaf));
    return OAR_OK;
}

/* A layer of which one use is recomputed, in the first half, and one is not;
 * and recomputed with a leaf for its input, which is of the second half. */
static void in_halves_too_hooks_run_once_and_last(void **state)
{
    for (int leaf = 0; leaf < 2; leaf++) {
        oar_tensor *x = oar_normal(NULL, OAR_F32, OAR_SHAPE(3, 4), 1, 0, 1), *y;
        hook_seen s = { 0 };
        oar_module *layer;
        oar_hook *hook;
        oar_tape *tape;

        OK(oar_linear_create(4, 4, 1, NULL, &layer));
        OK(oar_tape_create(&tape));
        OK(oar_tensor_require_grad(x, leaf));
        OK(oar_tensor_on_grad(oar_module_param(layer, 0), see_grad, &s, &hook));
        y = oar_recompute(tape, layer, x);
        y = oar_add(tape, oar_recompute(tape, layer, y),
                    oar_forward(tape, layer, y));
        OK(oar_backward_inputs(tape, 1, &y, NULL));
        assert_int_equal(s.runs, 0);
        OK(oar_backward_weights(tape));
        assert_int_equal(s.runs, 1);
        assert_true(s.first == *(float *)oar_tensor_data(oar_tensor_grad(
                                   oar_module_param(layer, 0))));
        oar_hook_remove(hook);
        oar_tape_destroy(tape);
        oar_module_release(layer);
        oar_tensor_release(x);
    }
}

static oar_status count_run(void *arg)
{
    ++*(int *)arg;
    return OAR_OK;
}

/* A stage that is recomputed, or frozen, has nothing left for the second half.
 */
static void a_weights_half_without_weights_runs_what_is_deferred(void **state)
{
    oar_tensor *x = oar_normal(NULL, OAR_F32, OAR_SHAPE(3, 4), 1, 0, 1);

    for (int frozen = 0; frozen < 2; frozen++) {
        oar_tensor *in, *y;
        oar_module *layer;
        oar_tape *tape;
        int runs = 0;

        OK(oar_linear_create(4, 4, 1, NULL, &layer));
        OK(oar_tape_create(&tape));
        OK(oar_module_freeze(layer, frozen));
        in = oar_tape_input(tape, x);
        y = frozen ? oar_forward(tape, layer, in)
                   : oar_recompute(tape, layer, in);
        OK(oar_tape_defer(tape, count_run, &runs));
        assert_fails_with(oar_backward_weights(tape), OAR_E_STATE,
                          "without a backward_inputs");
        OK(oar_backward_inputs(tape, 1, &y, NULL));
        assert_int_equal(runs, 0);
        OK(oar_backward_weights(tape));
        assert_int_equal(runs, 1);
        assert_non_null(oar_tensor_grad(in));
        assert_fails_with(oar_backward_weights(tape), OAR_E_STATE,
                          "without a backward_inputs");
        oar_tape_destroy(tape);
        oar_module_release(layer);
    }
    oar_tensor_release(x);
}

static void recomputing_does_not_count_a_batch_twice(void **state)
{
    oar_tensor *x = oar_normal(NULL, OAR_F32, OAR_SHAPE(3, 2), 1, 0, 1);
    oar_module *norm;
    oar_tape *tape;

    OK(oar_batch_norm_create(1, 2, NULL, &norm));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, oar_recompute(tape, norm, x))));
    assert_int_equal(*(int64_t *)oar_tensor_data(
                         oar_module_find(norm, "num_batches_tracked")),
                     1);
    oar_tape_destroy(tape);
    oar_module_release(norm);
    oar_tensor_release(x);
}

static void recomputing_wants_a_module_and_an_input(void **state)
{
    oar_tensor *x = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 4)), *y;
    oar_module *layer;

    OK(oar_linear_create(4, 4, 1, NULL, &layer));
    assert_null(oar_recompute(NULL, NULL, x));
    assert_null(oar_recompute(NULL, layer, NULL));
    y = oar_recompute(NULL, layer, x);
    assert_non_null(y);
    oar_tensor_release(y);
    oar_tensor_release(x);
    oar_module_release(layer);
}

/* ---- memory -------------------------------------------------------------- */

static void a_step_allocates_nothing_from_the_second_on(void **state)
{
    for (int recompute = 0; recompute < 2; recompute++) {
        oar_module *net = new_gpt(0.1, recompute, 0);
        oar_tensor *x = tokens(1), *y = targets(2);
        uint64_t before = 0;
        oar_optim *adam;
        oar_tape *tape;

        OK(oar_tape_create(&tape));
        OK(oar_adamw_create(net, NULL, &adam));
        for (int i = 0; i < 9; i++) {
            if (i == 1)
                before = memory_now().allocations;
            OK(train_one_step(tape, net, adam, x, y));
        }
        assert_int_equal(memory_now().allocations, before);
        oar_optim_destroy(adam);
        oar_tape_destroy(tape);
        oar_tensor_release(x);
        oar_tensor_release(y);
        oar_module_release(net);
    }
}

/* Everything from the model to the end of one step. */
static oar_status whole_life(oar_tensor *x, oar_tensor *y, int recompute)
{
    oar_gpt_opts o = tiny();
    oar_module *net = NULL;
    oar_optim *adam = NULL;
    oar_tape *tape = NULL;
    oar_status status;

    o.layers = 4; /* so that all that can be rebuilt is */
    o.dropout = 0.1;
    o.recompute = recompute;
    status = oar_gpt_create(&o, &net);
    if (status == OAR_OK)
        status = oar_adamw_create(net, NULL, &adam);
    if (status == OAR_OK)
        status = oar_tape_create(&tape);
    if (status == OAR_OK)
        status = train_one_step(tape, net, adam, x, y);
    oar_tape_destroy(tape);
    oar_optim_destroy(adam);
    oar_module_release(net);
    return status;
}

static void every_allocation_of_a_step_may_fail(void **state)
{
    oar_tensor *x = tokens(1), *y = targets(2);

    for (int recompute = 0; recompute < 2; recompute++) {
        uint64_t before = memory_now().live;
        oar_status status = OAR_E_NOMEM;

        for (uint64_t n = 1; status != OAR_OK && n < 10000; n++) {
            oar_memory_fail_after(n);
            status = whole_life(x, y, recompute);
            oar_memory_fail_after(0);
            assert_true(status == OAR_OK || status == OAR_E_NOMEM);
            assert_int_equal(memory_now().live, before);
        }
        assert_int_equal(status, OAR_OK);
    }
    oar_tensor_release(x);
    oar_tensor_release(y);
}

/* ---- tapes --------------------------------------------------------------- */

static void two_tapes_share_the_parameters(void **state)
{
    oar_module *net = new_gpt(0, 0, 0), *one = new_gpt(0, 0, 0);
    oar_tensor *x[2] = { tokens(1), tokens(3) };
    oar_tensor *y[2] = { targets(2), targets(4) }, *loss[2];
    oar_tape *tape[2], *single;

    OK(oar_tape_create(&single));
    for (int i = 0; i < 2; i++) {
        OK(oar_tape_create(&tape[i]));
        loss[i] =
            oar_cross_entropy(tape[i], oar_forward(tape[i], net, x[i]), y[i]);
    }
    for (int i = 0; i < 2; i++) {
        OK(oar_backward(tape[i], loss[i]));
        OK(oar_backward(
            single,
            oar_cross_entropy(single, oar_forward(single, one, x[i]), y[i])));
        oar_tape_reset(single);
    }
    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *a = oar_tensor_grad(oar_module_param(net, i));
        oar_tensor *b = oar_tensor_grad(oar_module_param(one, i));

        assert_memory_equal(oar_tensor_data(a), oar_tensor_data(b),
                            (size_t)oar_tensor_count(a) * sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        oar_tape_destroy(tape[i]);
        oar_tensor_release(x[i]);
        oar_tensor_release(y[i]);
    }
    oar_tape_destroy(single);
    oar_module_release(net);
    oar_module_release(one);
}

static void halves_of_backward_leave_the_same_bits(void **state)
{
    oar_module *a = new_gpt(0.1, 0, 0), *b = new_gpt(0.1, 0, 0);
    oar_tensor *x = tokens(1), *y = targets(2), *loss;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_cross_entropy(tape, oar_forward(tape, a, x), y)));
    oar_tape_reset(tape);
    loss = oar_cross_entropy(tape, oar_forward(tape, b, x), y);
    OK(oar_backward_inputs(tape, 1, &loss, NULL));
    OK(oar_backward_weights(tape));
    for (int i = 0; i < oar_module_params(a); i++) {
        oar_tensor *p = oar_tensor_grad(oar_module_param(a, i));
        oar_tensor *q = oar_tensor_grad(oar_module_param(b, i));

        assert_memory_equal(oar_tensor_data(p), oar_tensor_data(q),
                            (size_t)oar_tensor_count(p) * sizeof(float));
    }
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(y);
    oar_module_release(a);
    oar_module_release(b);
}

static void without_a_tape_the_caller_owns_the_result(void **state)
{
    uint64_t before = memory_now().live;
    oar_module *net = new_gpt(0.5, 1, 0);
    oar_tensor *x = tokens(1), *y, *z;
    oar_tape *tape;

    oar_module_train(net, 0);
    OK(oar_tape_create(&tape));
    y = oar_forward(NULL, net, x);
    z = oar_forward(tape, net, x);
    assert_int_equal(oar_tensor_shape(y).dim[0], BATCH * TIME);
    assert_int_equal(oar_tensor_shape(y).dim[1], VOCABULARY);
    assert_memory_equal(oar_tensor_data(y), oar_tensor_data(z),
                        (size_t)oar_tensor_count(y) * sizeof(float));
    oar_tensor_release(y);
    oar_tensor_release(x);
    oar_tape_destroy(tape);
    oar_module_release(net);
    assert_int_equal(memory_now().live, before);
}

/* ---- names and mistakes -------------------------------------------------- */

static void a_gpt_has_the_names_it_should(void **state)
{
    static const char *const names[] = {
        "tok.weight",
        "pos.weight",
        "blocks.0.norm1.weight",
        "blocks.0.attention.qkv.weight",
        "blocks.1.attention.out.bias",
        "blocks.1.norm2.bias",
        "blocks.0.up.weight",
        "blocks.1.down.bias",
        "norm.bias",
        "head.weight",
    };
    oar_module *net = new_gpt(0, 0, 0), *tied = new_gpt(0, 0, 1);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(oar_module_find(net, names[i]));
    assert_null(oar_module_find(net, "head.bias"));
    assert_null(oar_module_find(tied, "head.weight"));
    assert_int_equal(oar_module_params(net), 2 + 2 * 12 + 3);
    oar_module_release(net);
    oar_module_release(tied);
}

/* How many modules of that name there are below. */
static int count_named(const oar_module *net, const char *name)
{
    int count = strcmp(oar_module_name(net), name) == 0;

    for (int i = 0; i < oar_module_children(net); i++)
        count += count_named(oar_module_child(net, i), name);
    return count;
}

static void a_gpt_has_the_activation_it_was_given(void **state)
{
    static const struct {
        oar_activation kind;
        const char *name;
    } kinds[] = { { OAR_ACTIVATION_DEFAULT, "gelu" },
                  { OAR_RELU, "relu" },
                  { OAR_GELU, "gelu" },
                  { OAR_SILU, "silu" } };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        oar_gpt_opts o = tiny();
        oar_module *net;

        o.activation = kinds[i].kind;
        OK(oar_gpt_create(&o, &net));
        assert_int_equal(count_named(net, kinds[i].name), o.layers);
        oar_module_release(net);
    }
}

static void a_gpt_refuses_what_it_cannot_do(void **state)
{
    oar_module *net = new_gpt(0, 0, 0), *none = NULL;
    oar_tensor *longer = oar_zeros(NULL, OAR_I64, OAR_SHAPE(1, 9));
    oar_tensor *outside = oar_full(NULL, OAR_I64, OAR_SHAPE(1, 2), VOCABULARY);
    oar_gpt_opts o = tiny();

    assert_null(oar_forward(NULL, net, longer));
    assert_int_equal(oar_last_error()->status, OAR_E_SHAPE);
    assert_null(oar_forward(NULL, net, outside));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    o.heads = 5;
    assert_int_equal(oar_gpt_create(&o, &none), OAR_E_ARG);
    o.heads = -1;
    assert_int_equal(oar_gpt_create(&o, &none), OAR_E_ARG);
    assert_int_equal(oar_gpt_create(NULL, NULL), OAR_E_ARG);
    assert_null(none);
    oar_tensor_release(longer);
    oar_tensor_release(outside);
    oar_module_release(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputing_gives_the_same_bits),
        cmocka_unit_test(recomputing_inside_recomputing_gives_the_same_bits),
        cmocka_unit_test(a_parameter_that_moves_ends_what_is_to_be_recomputed),
        cmocka_unit_test(hooks_run_once_when_the_gradient_is_complete),
        cmocka_unit_test(in_halves_too_hooks_run_once_and_last),
        cmocka_unit_test(a_weights_half_without_weights_runs_what_is_deferred),
        cmocka_unit_test(recomputing_does_not_count_a_batch_twice),
        cmocka_unit_test(recomputing_wants_a_module_and_an_input),
        cmocka_unit_test(a_step_allocates_nothing_from_the_second_on),
        cmocka_unit_test(every_allocation_of_a_step_may_fail),
        cmocka_unit_test(two_tapes_share_the_parameters),
        cmocka_unit_test(halves_of_backward_leave_the_same_bits),
        cmocka_unit_test(without_a_tape_the_caller_owns_the_result),
        cmocka_unit_test(a_gpt_has_the_names_it_should),
        cmocka_unit_test(a_gpt_has_the_activation_it_was_given),
        cmocka_unit_test(a_gpt_refuses_what_it_cannot_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
