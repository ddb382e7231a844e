/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and layers: registration, names, hooks around forward and backward.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/layers.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/leak_check.h"
#include "support/last_error.h"

/* ---- a module of our own ------------------------------------------------- */

typedef struct counted_module {
    int trained, *destroyed;
} counted_module;

static oar_tensor *counted_forward(oar_tape *tape, oar_module *module,
                                   oar_tensor *x)
{
    return oar_scale(tape, x, 2);
}

static void counted_destroy(void *self)
{
    counted_module *b = self;

    if (b->destroyed != NULL)
        ++*b->destroyed;
}

static void counted_train(void *self, int on)
{
    ((counted_module *)self)->trained = on;
}

static const oar_module_class counted_class = { .size = sizeof counted_class,
                                                .name = "box",
                                                .self_size =
                                                    sizeof(counted_module),
                                                .forward = counted_forward,
                                                .destroy = counted_destroy,
                                                .train = counted_train };

static oar_module *new_counted_module(void)
{
    oar_module *made;

    OK(oar_module_create(&counted_class, &made));
    return made;
}

static oar_tensor *numbers(double value)
{
    return oar_full(NULL, OAR_F32, OAR_SHAPE(2), value);
}

static void a_module_is_counted_and_destroyed_once(void **state)
{
    uint64_t before = leak_check_begin().live;
    int destroyed = 0;
    oar_module *outer = new_counted_module(), *inner = new_counted_module();

    ((counted_module *)oar_module_self(inner))->destroyed = &destroyed;
    assert_string_equal(oar_module_name(inner), "box");
    assert_true(oar_module_is(inner, &counted_class));
    OK(oar_module_add_child(outer, "in", oar_module_retain(inner)));
    oar_module_release(outer);
    assert_int_equal(destroyed, 0);
    oar_module_release(inner);
    assert_int_equal(destroyed, 1);
    oar_module_release(NULL);
    assert_null(oar_module_retain(NULL));
    assert_null(oar_module_self(NULL));
    assert_null(oar_module_name(NULL));
    assert_false(oar_module_is(NULL, &counted_class));
    assert_int_equal(leak_check_begin().live, before);
}

static void parameters_are_found_in_order_by_dotted_names(void **state)
{
    oar_module *outer = new_counted_module(), *inner = new_counted_module();
    const char *want[] = { "first", "in.w", "in.v", "last" };
    char name[32];

    OK(oar_module_add_param(inner, "w", numbers(1)));
    OK(oar_module_add_buffer(inner, "mean", numbers(9)));
    OK(oar_module_add_param(inner, "v", numbers(2)));
    OK(oar_module_add_param(outer, "first", numbers(0)));
    OK(oar_module_add_child(outer, "in", inner));
    OK(oar_module_add_param(outer, "last", numbers(3)));
    assert_int_equal(oar_module_params(outer), 4);
    for (int i = 0; i < 4; i++) {
        oar_tensor *p = oar_module_param(outer, i);

        OK(oar_module_param_name(outer, i, name, sizeof name));
        assert_string_equal(name, want[i]);
        assert_true(oar_tensor_requires_grad(p));
        assert_true(*(float *)oar_tensor_data(p) == (float)i);
        assert_ptr_equal(oar_module_param(outer, i), p);
    }
    assert_int_equal(oar_module_buffers(outer), 1);
    assert_true(*(float *)oar_tensor_data(oar_module_buffer(outer, 0)) == 9);
    assert_false(oar_tensor_requires_grad(oar_module_buffer(outer, 0)));
    assert_int_equal(oar_module_children(outer), 1);
    assert_ptr_equal(oar_module_child(outer, 0), inner);
    assert_null(oar_module_child(outer, 1));
    assert_null(oar_module_param(outer, 4));
    assert_null(oar_module_param(outer, -1));
    assert_null(oar_module_buffer(outer, 1));
    OK(oar_module_param_name(outer, 1, name, 4)); /* cut to fit */
    assert_string_equal(name, "in.");
    assert_int_equal(oar_module_param_name(outer, 4, name, 4), OAR_E_ARG);
    assert_int_equal(oar_module_params(NULL), 0);
    assert_int_equal(oar_module_buffers(NULL), 0);
    assert_int_equal(oar_module_children(NULL), 0);
    oar_module_release(outer);
}

static void registration_takes_its_reference_also_when_it_fails(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *a = new_counted_module(), *b = new_counted_module();
    oar_tensor *whole = oar_zeros(NULL, OAR_I32, OAR_SHAPE(2));

    OK(oar_module_add_param(a, "w", numbers(1)));
    assert_int_equal(oar_module_add_param(a, "w", numbers(1)), OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "\"w\""));
    assert_int_equal(oar_module_add_buffer(a, "w", numbers(1)), OAR_E_ARG);
    assert_int_equal(oar_module_add_param(a, "x.y", numbers(1)), OAR_E_ARG);
    assert_int_equal(oar_module_add_param(a, "", numbers(1)), OAR_E_ARG);
    assert_int_equal(oar_module_add_param(NULL, "v", numbers(1)), OAR_E_ARG);
    assert_int_equal(oar_module_add_param(a, "v", NULL), OAR_E_ARG);
    assert_int_equal(oar_module_add_param(a, "v", whole), OAR_E_DTYPE);
    assert_int_equal(oar_module_add_child(a, "c", NULL), OAR_E_ARG);
    OK(oar_module_add_child(a, "b", oar_module_retain(b)));
    assert_int_equal(oar_module_add_child(b, "a", oar_module_retain(a)),
                     OAR_E_ARG);
    assert_int_equal(oar_module_params(a), 1);
    oar_module_release(b);
    oar_module_release(a);
    assert_int_equal(leak_check_begin().live, before);
}

static void a_class_needs_a_name_and_a_forward(void **state)
{
    oar_module *made = NULL;
    const oar_module_class bare = { .size = sizeof bare, .name = "bare" };

    assert_int_equal(oar_module_create(&bare, &made), OAR_E_ARG);
    assert_int_equal(oar_module_create(NULL, &made), OAR_E_ARG);
    assert_null(made);
}

static void training_mode_reaches_all_below(void **state)
{
    oar_module *outer = new_counted_module(), *inner = new_counted_module();

    OK(oar_module_add_child(outer, "in", inner));
    assert_true(oar_module_training(inner));
    ((counted_module *)oar_module_self(inner))->trained = 1;
    oar_module_train(outer, 0);
    assert_false(oar_module_training(outer));
    assert_false(oar_module_training(inner));
    assert_int_equal(((counted_module *)oar_module_self(inner))->trained, 0);
    oar_module_train(outer, 1);
    assert_true(oar_module_training(inner));
    oar_module_train(NULL, 1);
    assert_false(oar_module_training(NULL));
    oar_module_release(outer);
}

/* ---- hooks --------------------------------------------------------------- */

typedef struct hook_log {
    char text[128];
    oar_tensor *weight, *input; /* whose gradients are looked at */
} hook_log;

typedef struct logged_hook {
    hook_log *in;
    const char *word;
    oar_status ends;
} logged_hook;

#define NOTE(text)             \
    {                          \
        .in = &d, .word = text \
    }

static oar_status log_hook(oar_tape *tape, oar_module *module, void *arg)
{
    logged_hook *n = arg;
    size_t used = strlen(n->in->text);

    snprintf(n->in->text + used, sizeof n->in->text - used, "%s%s%s ", n->word,
             oar_tensor_grad(n->in->weight) != NULL ? "+w" : "",
             oar_tensor_grad(n->in->input) != NULL ? "+x" : "");
    return n->ends;
}

static void watch(oar_module *module, logged_hook note_at[4])
{
    for (int moment = 0; moment < 4; moment++)
        OK(oar_module_on(module, (oar_module_moment)moment, log_hook,
                         &note_at[moment], NULL));
}

static oar_module *two_linears(void)
{
    oar_module *part[2], *net;

    OK(oar_linear_create(3, 5, 1, NULL, &part[0]));
    OK(oar_linear_create(5, 2, 3, NULL, &part[1]));
    OK(oar_sequential_create(2, part, &net));
    return net;
}

static void hooks_run_around_forward_and_backward(void **state)
{
    oar_module *net = two_linears();
    hook_log d = { .weight = oar_module_param(oar_module_child(net, 1), 0) };
    logged_hook outer[4] = { NOTE("F["), NOTE("]F"), NOTE("B["), NOTE("]B") };
    logged_hook inner[4] = { NOTE("f("), NOTE(")f"), NOTE("b("), NOTE(")b") };
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 3), 1);
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    watch(net, outer);
    watch(oar_module_child(net, 1), inner);
    d.input = oar_tape_input(tape, x);
    OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, d.input))));
    assert_string_equal(d.text, "F[ f( )f ]F B[ b( )b+w ]B+w+x ");
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
}

/* The first module of a model: nothing before it needs a gradient. */
static void backward_hooks_run_where_the_input_needs_no_gradient(void **state)
{
    oar_module *net = two_linears();
    hook_log d = { .weight = oar_module_param(net, 0) };
    logged_hook notes[4] = { NOTE("F["), NOTE("]F"), NOTE("B["), NOTE("]B") };
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 3), 1);
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    watch(oar_module_child(net, 0), notes);
    OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
    assert_string_equal(d.text, "F[ ]F B[ ]B+w ");
    oar_tape_reset(tape);
    oar_tape_record(tape, 0);
    assert_non_null(oar_forward(tape, net, x));
    oar_tape_record(tape, 1);
    (void)oar_forward(tape, net, x); /* recorded, but no root reaches it */
    OK(oar_backward(tape, oar_sum(tape, oar_module_param(net, 0))));
    assert_string_equal(d.text, "F[ ]F B[ ]B+w F[+w ]F+w F[+w ]F+w ");
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
}

static void in_halves_module_hooks_run_in_the_inputs_half(void **state)
{
    oar_module *net = two_linears();
    hook_log d = { .weight = oar_module_param(net, 0) };
    logged_hook notes[4] = { NOTE("F["), NOTE("]F"), NOTE("B["), NOTE("]B") };
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 3), 1), *y;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    watch(net, notes);
    d.input = oar_tape_input(tape, x);
    y = oar_forward(tape, net, d.input);
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_string_equal(d.text, "F[ ]F B[ ]B+x ");
    OK(oar_backward_weights(tape));
    assert_string_equal(d.text, "F[ ]F B[ ]B+x ");
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
}

static void a_failing_hook_ends_the_pass_with_its_status(void **state)
{
    oar_module *net = two_linears();
    hook_log d = { .weight = NULL };
    logged_hook bad = { &d, "bad", OAR_E_TIMEOUT };
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 3), 1);
    oar_hook *hook;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int moment = 0; moment < 4; moment++) {
        oar_tensor *y;

        OK(oar_module_on(oar_module_child(net, 1), (oar_module_moment)moment,
                         log_hook, &bad, &hook));
        oar_clear_error();
        y = oar_sum(tape, oar_forward(tape, net, x));
        if (moment <= OAR_AFTER_FORWARD)
            assert_null(y);
        else
            assert_int_equal(oar_backward(tape, y), OAR_E_TIMEOUT);
        assert_int_equal(oar_last_error()->status, OAR_E_TIMEOUT);
        oar_hook_remove(hook);
        oar_tape_reset(tape);
    }
    assert_int_equal(
        oar_module_on(net, (oar_module_moment)4, log_hook, &bad, &hook),
        OAR_E_ARG);
    assert_int_equal(
        oar_module_on(NULL, OAR_BEFORE_FORWARD, log_hook, &bad, &hook),
        OAR_E_ARG);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(net);
}

static void the_tape_keeps_a_module_it_recorded_alive(void **state)
{
    oar_module *net = two_linears();
    hook_log d = { .weight = NULL };
    logged_hook notes[4] = { NOTE("F["), NOTE("]F"), NOTE("B["), NOTE("]B") };
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 3), 1), *y;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    watch(net, notes);
    y = oar_sum(tape, oar_forward(tape, net, x));
    oar_module_release(net);
    OK(oar_backward(tape, y));
    assert_string_equal(d.text, "F[ ]F B[ ]B ");
    oar_tape_destroy(tape);
    oar_tensor_release(x);
}

/* ---- layers -------------------------------------------------------------- */

static void a_linear_layer_has_a_weight_and_a_bias_within_bounds(void **state)
{
    oar_module *layer;
    char name[16];
    const double *w;

    OK(oar_linear_create(16, 3, 7, OAR_OPTS(oar_linear_opts, .dtype = OAR_F64),
                         &layer));
    assert_string_equal(oar_module_name(layer), "linear");
    assert_int_equal(oar_module_params(layer), 2);
    OK(oar_module_param_name(layer, 0, name, sizeof name));
    assert_string_equal(name, "weight");
    OK(oar_module_param_name(layer, 1, name, sizeof name));
    assert_string_equal(name, "bias");
    assert_int_equal(oar_tensor_shape(oar_module_param(layer, 0)).dim[0], 3);
    assert_int_equal(oar_tensor_shape(oar_module_param(layer, 0)).dim[1], 16);
    w = oar_tensor_data(oar_module_param(layer, 0));
    for (int i = 0; i < 48; i++)
        assert_true(fabs(w[i]) <= 0.25);
    oar_module_release(layer);
    OK(oar_linear_create(16, 3, 7, OAR_OPTS(oar_linear_opts, .no_bias = 1),
                         &layer));
    assert_int_equal(oar_module_params(layer), 1);
    oar_module_release(layer);
    assert_int_equal(oar_linear_create(-1, 3, 7, NULL, &layer), OAR_E_ARG);
    assert_int_equal(
        oar_linear_create(3, 3, 7, OAR_OPTS(oar_linear_opts, .dtype = OAR_I8),
                          &layer),
        OAR_E_DTYPE);
}

static void a_sequential_without_a_tape_leaks_nothing(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *part[3], *net, *none;
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(4, 3), 1), *y;

    OK(oar_linear_create(3, 5, 1, NULL, &part[0]));
    OK(oar_sequential_create(0, NULL, &part[1]));
    OK(oar_relu_create(&part[2]));
    OK(oar_sequential_create(3, part, &net));
    assert_string_equal(oar_module_name(part[2]), "relu");
    y = oar_forward(NULL, net, x);
    assert_int_equal(oar_tensor_shape(y).dim[1], 5);
    oar_tensor_release(y);
    OK(oar_sequential_create(0, NULL, &none));
    y = oar_forward(NULL, none, x);
    assert_ptr_equal(y, x);
    oar_tensor_release(y);
    oar_module_release(none);
    oar_clear_error();
    assert_null(oar_forward(NULL, net, NULL));
    assert_null(oar_forward(NULL, NULL, x));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    oar_module_release(net);
    oar_tensor_release(x);
    assert_int_equal(leak_check_begin().live, before);
}

static void a_sequential_takes_its_children_also_when_it_fails(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_module *part[3] = { NULL }, *net = NULL;

    OK(oar_relu_create(&part[0]));
    OK(oar_relu_create(&part[2]));
    assert_int_equal(oar_sequential_create(3, part, &net), OAR_E_ARG);
    assert_null(net);
    assert_int_equal(leak_check_begin().live, before);
    assert_int_equal(oar_sequential_create(2, NULL, &net), OAR_E_ARG);
}

static void no_failed_allocation_in_a_constructor_leaks(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_status status = OAR_E_NOMEM;

    for (int n = 1; status != OAR_OK; n++) {
        oar_module *part[6] = { NULL }, *net = NULL;

        for (int i = 0; i < 6; i++) /* enough to make the register grow */
            OK(oar_relu_create(&part[i]));
        oar_memory_fail_after((uint64_t)n);
        status = oar_sequential_create(6, part, &net);
        if (status == OAR_OK) {
            oar_module_release(net);
            net = NULL;
            status = oar_linear_create(3, 5, 1, NULL, &net);
        }
        oar_memory_fail_after(0);
        if (status != OAR_OK)
            assert_null(net);
        oar_module_release(net);
        assert_int_equal(leak_check_begin().live, before);
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_is_counted_and_destroyed_once),
        cmocka_unit_test(parameters_are_found_in_order_by_dotted_names),
        cmocka_unit_test(registration_takes_its_reference_also_when_it_fails),
        cmocka_unit_test(a_class_needs_a_name_and_a_forward),
        cmocka_unit_test(training_mode_reaches_all_below),
        cmocka_unit_test(hooks_run_around_forward_and_backward),
        cmocka_unit_test(backward_hooks_run_where_the_input_needs_no_gradient),
        cmocka_unit_test(in_halves_module_hooks_run_in_the_inputs_half),
        cmocka_unit_test(a_failing_hook_ends_the_pass_with_its_status),
        cmocka_unit_test(the_tape_keeps_a_module_it_recorded_alive),
        cmocka_unit_test(a_linear_layer_has_a_weight_and_a_bias_within_bounds),
        cmocka_unit_test(a_sequential_without_a_tape_leaks_nothing),
        cmocka_unit_test(a_sequential_takes_its_children_also_when_it_fails),
        cmocka_unit_test(no_failed_allocation_in_a_constructor_leaks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
