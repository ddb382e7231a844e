/* SPDX-License-Identifier: Apache-2.0 */
/* Children by name, putting others in their place, and maps that change what
 * goes into a module and what comes out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/leak_check.h"
#include "support/last_error.h"

static oar_module *small_gpt(int tied, int rotary, int recompute)
{
    oar_module *net;

    OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = 11, .context = 7,
                               .width = 12, .layers = 3, .heads = 3,
                               .tied = tied, .rotary = rotary,
                               .recompute = recompute, .seed = 5),
                      &net));
    return net;
}

static oar_tensor *tokens(oar_tape *tape)
{
    static const int64_t t[] = { 1, 3, 0, 10, 4, 7, 7, 2, 9, 5 };

    return oar_from_data(tape, OAR_I64, OAR_SHAPE(2, 5), t);
}

/* ---- a module that hands its input on, and one that runs another --------- */

static oar_tensor *pass_forward(oar_tape *tape, oar_module *module,
                                oar_tensor *x)
{
    return tape == NULL ? oar_tensor_retain(x) : x;
}

static const oar_module_class pass_class = { .size = sizeof pass_class,
                                             .name = "pass",
                                             .forward = pass_forward };

static oar_module *pass_module(void)
{
    oar_module *made;

    OK(oar_module_create(&pass_class, &made));
    return made;
}

static oar_tensor *wrap_forward(oar_tape *tape, oar_module *module,
                                oar_tensor *x)
{
    return oar_forward(tape, oar_module_child(module, 0), x);
}

static const oar_module_class wrap_class = { .size = sizeof wrap_class,
                                             .name = "wrap",
                                             .forward = wrap_forward };

static oar_module *wrap(oar_module *inner)
{
    oar_module *made;

    OK(oar_module_create(&wrap_class, &made));
    OK(oar_module_add_child(made, "inner", oar_module_retain(inner)));
    return made;
}

/* ---- names --------------------------------------------------------------- */

static void children_are_found_by_index_and_by_dotted_name(void **state)
{
    oar_module *net = small_gpt(0, 0, 0), *block;
    const char *want[] = { "tok", "pos", "drop", "blocks", "norm", "head" };

    for (int i = 0; i < 6; i++)
        assert_string_equal(oar_module_child_name(net, i), want[i]);
    assert_null(oar_module_child_name(net, 6));
    assert_null(oar_module_child_name(net, -1));
    assert_null(oar_module_child_name(NULL, 0));
    block = oar_module_find_module(net, "blocks.2");
    assert_ptr_equal(block, oar_module_child(oar_module_child(net, 3), 2));
    assert_string_equal(oar_module_child_name(block, 1), "attention");
    assert_ptr_equal(oar_module_find_module(net, "blocks.2.attention.qkv"),
                     oar_module_child(oar_module_child(block, 1), 0));
    assert_null(oar_module_find_module(net, "blocks.3"));
    assert_null(oar_module_find_module(net, "blocks.2.up.weight"));
    assert_null(oar_module_find_module(net, "head.weight.more"));
    assert_null(oar_module_find_module(net, ""));
    assert_null(oar_module_find_module(net, NULL));
    assert_null(oar_module_find_module(NULL, "head"));
    oar_module_release(net);
}

static void a_name_that_is_not_there_is_told_with_the_nearest(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *net = small_gpt(0, 0, 0);
    oar_tensor *t = oar_full(NULL, OAR_F32, OAR_SHAPE(3), 1);

    assert_fails_with(
        oar_module_replace(net, "blocks.1.norm", pass_module()),
        OAR_E_NOT_FOUND,
        "module gpt has no child \"blocks.1.norm\"; the nearest: "
        "\"blocks.1.norm1\", \"blocks.1.norm2\", \"blocks.1.down\"");
    assert_fails_with(oar_module_replace(net, "blcks.1.up", pass_module()),
                      OAR_E_NOT_FOUND, "the nearest: \"blocks\"");
    assert_fails_with(oar_module_replace(net, "head.weight", pass_module()),
                      OAR_E_NOT_FOUND, "no child \"head.weight\"");
    assert_fails_with(
        oar_module_replace_param(net, "head.wait", oar_tensor_retain(t)),
        OAR_E_NOT_FOUND,
        "no parameter \"head.wait\"; the nearest: \"head.weight\"");
    assert_fails_with(
        oar_module_replace_param(net, "head", oar_tensor_retain(t)),
        OAR_E_NOT_FOUND, "no parameter \"head\"");
    assert_int_equal(oar_module_replace(net, NULL, pass_module()), OAR_E_ARG);
    assert_int_equal(oar_module_replace(NULL, "head", pass_module()),
                     OAR_E_ARG);
    assert_int_equal(oar_module_replace(net, "head", NULL), OAR_E_ARG);
    assert_int_equal(oar_module_replace_param(net, "head.weight", NULL),
                     OAR_E_ARG);
    assert_int_equal(
        oar_module_replace_param(NULL, "head", oar_tensor_retain(t)),
        OAR_E_ARG);
    assert_fails_with(oar_module_replace(oar_module_find_module(net, "blocks"),
                                         "0", oar_module_retain(net)),
                      OAR_E_ARG, "would be inside itself");
    oar_tensor_release(t);
    oar_module_release(net);
    assert_int_equal(leak_check_begin().live, before);
}

/* ---- replacement --------------------------------------------------------- */

/* The loss of one pass and the sum of all gradients, which follow from the
 * bits of everything that took part. */
static void run_pass(oar_module *net, double *loss, double *grads)
{
    oar_tape *tape;
    oar_tensor *y, *l;

    OK(oar_tape_create(&tape));
    y = oar_forward(tape, net, tokens(tape));
    l = oar_mean(tape, oar_mul(tape, y, y));
    OK(oar_backward(tape, l));
    OK(oar_tensor_item(l, loss));
    *grads = 0;
    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *p = oar_module_param(net, i);
        const float *g = oar_tensor_const_data(oar_tensor_grad(p));

        for (int64_t k = 0; k < oar_tensor_count(p); k++)
            *grads += (double)g[k] * (double)(k % 13 + 1);
        oar_tensor_clear_grad(p);
    }
    oar_tape_destroy(tape);
}

/* Each of a model's parts wrapped in a module that only runs it. */
static void a_replaced_child_is_the_one_that_runs(void **state)
{
    static const char *const name[] = {
        "tok",           "pos",           "drop",
        "blocks",        "norm",          "head",
        "blocks.0",      "blocks.1.up",   "blocks.2.attention.out",
        "blocks.1",      "blocks.2.down", "blocks.0.attention",
        "blocks.0.norm1"
    };
    uint64_t before = leak_check_begin().live;

    for (int recompute = 0; recompute < 2; recompute++)
        for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
            oar_module *net = small_gpt(0, 0, recompute), *child;
            double loss[2], grads[2];

            run_pass(net, &loss[0], &grads[0]);
            child = oar_module_find_module(net, name[i]);
            OK(oar_module_replace(net, name[i], wrap(child)));
            run_pass(net, &loss[1], &grads[1]);
            assert_true(loss[0] == loss[1]);
            assert_true(grads[0] == grads[1]);
            assert_ptr_equal(
                oar_module_child(oar_module_find_module(net, name[i]), 0),
                child);
            oar_module_release(net);
        }
    assert_int_equal(leak_check_begin().live, before);
}

/* A result that a child returns unchanged is still its input: it must not be
 * dropped between children. */
static void
a_child_may_be_replaced_by_one_that_passes_its_input_on(void **state)
{
    static const char *const name[] = { "drop",
                                        "norm",
                                        "blocks.1",
                                        "blocks.0",
                                        "blocks.0.norm1",
                                        "blocks.1.drop2",
                                        "blocks.2.norm2",
                                        "blocks.2.drop1",
                                        "blocks.1.attention",
                                        "blocks.0.attention.out" };

    for (int tied = 0; tied < 2; tied++)
        for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
            oar_module *net = small_gpt(tied, 1, 0);
            oar_tape *tape;
            oar_tensor *y;

            OK(oar_module_replace(net, name[i], pass_module()));
            OK(oar_tape_create(&tape));
            y = oar_forward(tape, net, tokens(tape));
            assert_non_null(y);
            OK(oar_backward(tape, oar_mean(tape, oar_mul(tape, y, y))));
            oar_tape_reset(tape);
            oar_tape_record(tape, 0);
            assert_non_null(oar_forward(tape, net, tokens(tape)));
            oar_tape_destroy(tape);
            oar_module_release(net);
        }
}

static void a_new_child_takes_the_training_mode_of_its_place(void **state)
{
    oar_module *net = small_gpt(0, 0, 0), *fresh = pass_module();

    oar_module_train(net, 0);
    assert_true(oar_module_training(fresh));
    OK(oar_module_replace(net, "blocks.0.drop1", fresh));
    assert_false(oar_module_training(fresh));
    OK(oar_module_replace(net, "blocks.0.drop1", oar_module_retain(fresh)));
    assert_ptr_equal(oar_module_find_module(net, "blocks.0.drop1"), fresh);
    oar_module_release(net);
}

static void a_replaced_parameter_is_used_and_keeps_its_place(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *layer;
    oar_tensor *w = oar_full(NULL, OAR_F32, OAR_SHAPE(2, 3), 2);
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(1, 3), 1), *y;
    oar_tensor *whole = oar_zeros(NULL, OAR_I32, OAR_SHAPE(2));
    double item[2];

    OK(oar_linear_create(3, 5, 1, OAR_OPTS(oar_linear_opts, .no_bias = 1),
                         &layer));
    OK(oar_module_replace_param(layer, "weight", oar_tensor_retain(w)));
    assert_ptr_equal(oar_module_param(layer, 0), w);
    assert_true(oar_tensor_requires_grad(w));
    y = oar_forward(NULL, layer, x);
    OK(oar_tensor_read(y, OAR_F64, item));
    assert_true(item[0] == 6 && item[1] == 6);
    assert_int_equal(oar_module_replace_param(layer, "weight", whole),
                     OAR_E_DTYPE);
    OK(oar_module_freeze(layer, 1));
    OK(oar_module_replace_param(layer, "weight",
                                oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 3))));
    assert_false(oar_tensor_requires_grad(oar_module_param(layer, 0)));
    oar_tensor_release(y);
    oar_tensor_release(x);
    oar_tensor_release(w);
    oar_module_release(layer);
    assert_int_equal(leak_check_begin().live, before);
}

/* ---- maps ---------------------------------------------------------------- */

static oar_tensor *scale_map(oar_tape *tape, oar_module *module, oar_tensor *x,
                             void *arg)
{
    return oar_scale(tape, x, *(double *)arg);
}

static oar_tensor *same_map(oar_tape *tape, oar_module *module, oar_tensor *x,
                            void *arg)
{
    ++*(int *)arg;
    return tape == NULL ? oar_tensor_retain(x) : x;
}

static oar_tensor *no_map(oar_tape *tape, oar_module *module, oar_tensor *x,
                          void *arg)
{
    return NULL;
}

static void maps_change_the_input_and_the_result(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *net;
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(2), -1), *y, *in;
    double in_by = -3, out_by = 5, again_by = 7, item[2];
    oar_hook *again;
    oar_tape *tape;

    OK(oar_relu_create(&net));
    OK(oar_module_map(net, OAR_BEFORE_FORWARD, scale_map, &in_by, NULL));
    OK(oar_module_map(net, OAR_AFTER_FORWARD, scale_map, &out_by, NULL));
    OK(oar_module_map(net, OAR_AFTER_FORWARD, scale_map, &again_by, &again));
    y = oar_forward(NULL, net, x);
    OK(oar_tensor_read(y, OAR_F64, item));
    assert_true(item[0] == 105);
    oar_tensor_release(y);
    oar_hook_remove(again);
    OK(oar_tape_create(&tape));
    in = oar_tape_input(tape, x);
    y = oar_forward(tape, net, in);
    OK(oar_tensor_read(y, OAR_F64, item));
    assert_true(item[1] == 15);
    OK(oar_backward(tape, oar_sum(tape, y)));
    OK(oar_tensor_read(oar_tensor_grad(in), OAR_F64, item));
    assert_true(item[0] == -15);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
    assert_int_equal(leak_check_begin().live, before);
}

static void maps_that_give_their_input_leak_nothing(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *net;
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(2), -1), *y;
    int calls = 0;

    OK(oar_module_create(&pass_class, &net));
    for (int i = 0; i < 2; i++) {
        OK(oar_module_map(net, OAR_BEFORE_FORWARD, same_map, &calls, NULL));
        OK(oar_module_map(net, OAR_AFTER_FORWARD, same_map, &calls, NULL));
    }
    y = oar_forward(NULL, net, x);
    assert_ptr_equal(y, x);
    assert_int_equal(calls, 4);
    oar_tensor_release(y);
    OK(oar_module_map(net, OAR_AFTER_FORWARD, no_map, NULL, NULL));
    oar_clear_error();
    assert_null(oar_forward(NULL, net, x));
    assert_last_error_has("a map of module pass returned NULL");
    OK(oar_module_map(net, OAR_BEFORE_FORWARD, no_map, NULL, NULL));
    assert_null(oar_forward(NULL, net, x));
    oar_tensor_release(x);
    oar_module_release(net);
    assert_int_equal(leak_check_begin().live, before);
}

/* A map of each part that gives its input leaves all bits as they were, and
 * may keep what it sees until the tape is reset. */
static void maps_anywhere_in_a_model_leave_the_rest_as_it_was(void **state)
{
    static const char *const name[] = { "tok",
                                        "blocks.0",
                                        "norm",
                                        "blocks",
                                        "blocks.1.attention.qkv",
                                        "blocks.1.attention.out",
                                        "blocks.2.down",
                                        "blocks.2.drop2" };

    for (int moment = 0; moment < 2; moment++)
        for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
            oar_module *net = small_gpt(1, 0, moment);
            double loss[2], grads[2];
            int calls = 0;

            run_pass(net, &loss[0], &grads[0]);
            OK(oar_module_map(oar_module_find_module(net, name[i]),
                              (oar_module_moment)moment, same_map, &calls,
                              NULL));
            run_pass(net, &loss[1], &grads[1]);
            assert_true(loss[0] == loss[1]);
            assert_true(grads[0] == grads[1]);
            assert_true(calls > 0);
            oar_module_release(net);
        }
}

typedef struct moments {
    char text[64];
    oar_tensor *inside; /* what the map made */
} moments;

static oar_tensor *logged_map(oar_tape *tape, oar_module *module, oar_tensor *x,
                              void *arg)
{
    strcat(((moments *)arg)->text, "m");
    return oar_scale(tape, x, 2);
}

static oar_status logged_before(oar_tape *tape, oar_module *module, void *arg)
{
    strcat(((moments *)arg)->text, "(");
    return OAR_OK;
}

static oar_status logged_after(oar_tape *tape, oar_module *module, void *arg)
{
    strcat(((moments *)arg)->text, ")");
    return OAR_OK;
}

static void hooks_enclose_maps(void **state)
{
    oar_module *net;
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(2), 1), *in;
    moments m = { "", NULL };
    oar_tape *tape;

    OK(oar_module_create(&pass_class, &net));
    OK(oar_module_on(net, OAR_BEFORE_FORWARD, logged_before, &m, NULL));
    OK(oar_module_on(net, OAR_AFTER_FORWARD, logged_after, &m, NULL));
    OK(oar_module_on(net, OAR_BEFORE_BACKWARD, logged_before, &m, NULL));
    OK(oar_module_on(net, OAR_AFTER_BACKWARD, logged_after, &m, NULL));
    OK(oar_module_map(net, OAR_BEFORE_FORWARD, logged_map, &m, NULL));
    OK(oar_module_map(net, OAR_AFTER_FORWARD, logged_map, &m, NULL));
    OK(oar_tape_create(&tape));
    in = oar_tape_input(tape, x);
    /* the module records nothing: only its maps lie between its marks */
    OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, in))));
    assert_string_equal(m.text, "(mm)()");
    assert_int_equal(
        oar_module_map(net, OAR_BEFORE_BACKWARD, logged_map, &m, NULL),
        OAR_E_ARG);
    assert_int_equal(
        oar_module_map(NULL, OAR_BEFORE_FORWARD, logged_map, &m, NULL),
        OAR_E_ARG);
    assert_int_equal(oar_module_map(net, OAR_AFTER_FORWARD, NULL, NULL, NULL),
                     OAR_E_ARG);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
}

static oar_status add_map(void *arg)
{
    oar_hook *hook;
    int calls = 0;
    oar_status status =
        oar_module_map(arg, OAR_AFTER_FORWARD, same_map, &calls, &hook);

    if (status == OAR_OK)
        oar_hook_remove(hook);
    return status;
}

static void a_map_without_memory_leaves_nothing_behind(void **state)
{
    oar_module *net = pass_module();

    fail_each_allocation(add_map, net);
    oar_module_release(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_are_found_by_index_and_by_dotted_name),
        cmocka_unit_test(a_name_that_is_not_there_is_told_with_the_nearest),
        cmocka_unit_test(a_replaced_child_is_the_one_that_runs),
        cmocka_unit_test(
            a_child_may_be_replaced_by_one_that_passes_its_input_on),
        cmocka_unit_test(a_new_child_takes_the_training_mode_of_its_place),
        cmocka_unit_test(a_replaced_parameter_is_used_and_keeps_its_place),
        cmocka_unit_test(maps_change_the_input_and_the_result),
        cmocka_unit_test(maps_that_give_their_input_leak_nothing),
        cmocka_unit_test(maps_anywhere_in_a_model_leave_the_rest_as_it_was),
        cmocka_unit_test(hooks_enclose_maps),
        cmocka_unit_test(a_map_without_memory_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
