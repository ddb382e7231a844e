/* SPDX-License-Identifier: Apache-2.0 */
/* The tape: what it owns and recycles, backward whole and in halves, gradient
 * slots, hooks in the middle of backward, and failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/layers.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

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
    oar_tensor *leaf = oar_uniform(NULL, OAR_F32, shape, seed, -1, 1);

    assert_non_null(leaf);
    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

static double at(const oar_tensor *t, int64_t i)
{
    double number[256];

    assert_true(oar_tensor_count(t) <= 256 && i < oar_tensor_count(t));
    OK(oar_tensor_read(t, OAR_F64, number));
    return number[i];
}

/* ---- owning -------------------------------------------------------------- */

static void the_tape_owns_results_and_reset_gives_them_up(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *a = oar_full(tape, OAR_F32, OAR_SHAPE(3), -1);
    oar_tensor *kept = oar_tensor_retain(oar_relu(tape, a));
    oar_tensor *next;

    oar_tape_reset(tape);
    next = oar_full(tape, OAR_F32, OAR_SHAPE(3), 9);
    assert_ptr_not_equal(next, kept);
    assert_ptr_not_equal(oar_tensor_storage(next), oar_tensor_storage(kept));
    assert_true(at(kept, 2) == 0);
    oar_tape_destroy(tape);
    assert_true(at(kept, 2) == 0);
    oar_tensor_release(kept);
    oar_tape_destroy(NULL);
    oar_tape_reset(NULL);
}

static void storage_that_is_referenced_is_never_recycled(void **state)
{
    oar_tape *tape = new_tape();
    oar_storage *kept = oar_storage_retain(
        oar_tensor_storage(oar_full(tape, OAR_F32, OAR_SHAPE(5), 3)));

    oar_tape_reset(tape);
    for (int i = 0; i < 5; i++)
        assert_ptr_not_equal(
            oar_tensor_storage(oar_zeros(tape, OAR_F32, OAR_SHAPE(5))), kept);
    assert_true(*(float *)oar_storage_data(kept) == 3);
    oar_storage_release(kept);
    oar_tape_destroy(tape);
}

static void storage_that_no_step_needs_any_more_is_given_back(void **state)
{
    oar_tape *tape = new_tape();
    uint64_t before = memory_now().live_bytes;

    for (int step = 0; step < 200; step++) {
        if (step < 3)
            oar_zeros(tape, OAR_F32, OAR_SHAPE(1000, 1000));
        oar_zeros(tape, OAR_F32, OAR_SHAPE(10));
        oar_tape_reset(tape);
    }
    assert_true(memory_now().live_bytes - before < 100000);
    oar_tape_destroy(tape);
}

static void a_tape_counts_what_it_has_in_use(void **state)
{
    oar_tensor *x = oar_ones(NULL, OAR_F32, OAR_SHAPE(1000)), *y;
    oar_tape *tape;
    size_t one;

    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(x, 1));
    assert_int_equal(oar_tape_bytes(NULL), 0);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(oar_tape_bytes(tape), 0);
        y = oar_exp(tape, x);
        one = oar_tape_bytes(tape);
        assert_in_range(one, 4000, 8000);
        y = oar_reshape(tape, y, OAR_SHAPE(10, 100)); /* a view */
        assert_int_equal(oar_tape_bytes(tape), one);
        assert_non_null(oar_exp(tape, y));
        assert_int_equal(oar_tape_bytes(tape), 2 * one);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(x);
}

static void a_result_kept_over_reset_is_a_plain_tensor(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *y = oar_tensor_retain(oar_scale(tape, w, 2));

    assert_true(oar_tensor_requires_grad(y));
    assert_int_equal(oar_tensor_require_grad(y, 1), OAR_E_STATE);
    oar_tape_reset(tape);
    assert_false(oar_tensor_requires_grad(y));
    assert_int_equal(oar_backward(tape, oar_sum(tape, y)), OAR_E_STATE);
    oar_tensor_release(y);
    oar_tensor_release(w);
    oar_tape_destroy(tape);
}

/* Every kind of use of a tensor that its tape has given up. */
static void assert_given_up(oar_tape *tape, oar_tensor *y)
{
    static const char *const why = "that oar_tape_reset has given up";
    float numbers[3] = { 1, 2, 3 };
    double number = 0;
    char text[64];
    oar_span span;

    assert_null(oar_scale(tape, y, 2));
    assert_fails_with(oar_last_error()->status, OAR_E_STATE, why);
    assert_null(oar_reshape(NULL, y, OAR_SHAPE(3, 1)));
    assert_null(oar_tape_input(tape, y));
    assert_fails_with(oar_last_error()->status, OAR_E_STATE, why);
    assert_fails_with(oar_tensor_read(y, OAR_F32, numbers), OAR_E_STATE, why);
    assert_fails_with(oar_tensor_write(y, OAR_F32, numbers), OAR_E_STATE, why);
    assert_fails_with(oar_tensor_fill(y, 1), OAR_E_STATE, why);
    assert_fails_with(oar_tensor_copy(y, y), OAR_E_STATE, why);
    assert_fails_with(oar_tensor_span(y, &span), OAR_E_STATE, why);
    assert_int_not_equal(oar_tensor_item(y, &number), OAR_OK);
    assert_fails_with(oar_backward_from(tape, 1, &y, NULL), OAR_E_STATE, why);
    assert_fails_with(oar_tensor_require_grad(y, 1), OAR_E_STATE, why);
    assert_null(oar_tensor_retain(y));
    assert_fails_with(oar_last_error()->status, OAR_E_STATE, why);
    oar_tensor_release(y); /* nothing happens */
    assert_null(oar_tensor_data(y));
    assert_null(oar_tensor_storage(y));
    assert_null(oar_tensor_grad(y));
    assert_false(oar_tensor_is_read_only(y));
    oar_tensor_text(y, text, sizeof text);
    assert_string_equal(text, "f32 [3] given up");
}

static void a_result_used_after_reset_is_refused(void **state)
{
    enum { STEPS = 3 };
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *stale[STEPS], *x, *grad, *y;

    for (int step = 0; step < 20; step++) {
        x = oar_tape_input(tape, w);
        y = oar_scale(tape, x, 2);
        for (int i = 0; i < STEPS && i < step; i++) {
            assert_ptr_not_equal(y, stale[i]);
            assert_given_up(tape, stale[i]);
        }
        OK(oar_backward(tape, oar_sum(tape, y)));
        assert_true(at(oar_tensor_grad(x), 1) == 2);
        grad = oar_tensor_grad(x);
        oar_tape_reset(tape);
        assert_given_up(tape, y);
        assert_given_up(tape, x);
        assert_given_up(tape, grad);
        assert_fails_with(oar_tensor_bind_grad(w, grad), OAR_E_STATE,
                          "given up");
        stale[step % STEPS] = y;
    }
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void while_recording_is_off_nothing_is_recorded(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *y;

    assert_int_equal(oar_tape_record(tape, 0), 1);
    y = oar_sum(tape, w);
    assert_false(oar_tensor_requires_grad(y));
    assert_int_equal(oar_backward(tape, y), OAR_E_STATE);
    assert_int_equal(oar_tape_record(tape, 1), 0);
    OK(oar_backward(tape, oar_sum(tape, w)));
    assert_int_equal(oar_tape_record(NULL, 1), 0);
    oar_tensor_release(w);
    oar_tape_destroy(tape);
}

static void a_result_of_another_tape_needs_oar_tape_input(void **state)
{
    oar_tape *first = new_tape(), *second = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *y = oar_scale(first, w, 2), *in;

    assert_null(oar_relu(second, y));
    assert_int_equal(oar_last_error()->status, OAR_E_STATE);
    assert_non_null(strstr(oar_last_error_text(), "oar_tape_input"));
    in = oar_tape_input(second, y);
    OK(oar_backward(second, oar_sum(second, oar_scale(second, in, 3))));
    OK(oar_backward_from(first, 1, &y,
                         (oar_tensor *[]){ oar_tensor_grad(in) }));
    assert_true(at(oar_tensor_grad(w), 1) == 6);
    oar_tape_destroy(second);
    oar_tape_destroy(first);
    oar_tensor_release(w);
}

/* ---- the gradient slot --------------------------------------------------- */

static void gradients_add_up_over_tapes_until_cleared(void **state)
{
    oar_tape *tape[2] = { new_tape(), new_tape() };
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *loss[2];

    assert_null(oar_tensor_grad(w));
    for (int i = 0; i < 2; i++) /* both recorded before either runs */
        loss[i] = oar_sum(tape[i], oar_scale(tape[i], w, 1 + 3 * i));
    OK(oar_backward(tape[1], loss[1]));
    assert_true(at(oar_tensor_grad(w), 0) == 4);
    OK(oar_backward(tape[0], loss[0]));
    assert_true(at(oar_tensor_grad(w), 0) == 5);
    oar_tensor_clear_grad(w);
    assert_null(oar_tensor_grad(w));
    oar_tape_reset(tape[0]);
    OK(oar_backward(tape[0], oar_sum(tape[0], w)));
    assert_true(at(oar_tensor_grad(w), 0) == 1);
    oar_tensor_clear_grad(NULL);
    oar_tape_destroy(tape[0]);
    oar_tape_destroy(tape[1]);
    oar_tensor_release(w);
}

static void a_bound_gradient_is_written_in_its_home(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(2, 3), 1);
    float bucket[16] = { 0 };
    oar_storage *storage;
    oar_tensor *home;

    OK(oar_storage_create(sizeof bucket, 0, &storage));
    OK(oar_storage_detach(storage));
    OK(oar_storage_attach(storage, bucket, NULL, NULL));
    for (int i = 0; i < 16; i++)
        bucket[i] = 77; /* must be stored over, not added to */
    home = oar_view_of(NULL, storage, 5, OAR_F32, OAR_SHAPE(2, 3));
    OK(oar_tensor_bind_grad(w, home));
    assert_null(oar_tensor_grad(w));
    OK(oar_backward(tape, oar_sum(tape, oar_add(tape, w, w))));
    assert_ptr_equal(oar_tensor_grad(w), home);
    for (int i = 0; i < 16; i++)
        assert_true(bucket[i] == (i >= 5 && i < 11 ? 2 : 77));
    oar_tensor_clear_grad(w);
    assert_true(bucket[5] == 2); /* no memory is touched */
    OK(oar_tensor_mark_grad(w));
    assert_ptr_equal(oar_tensor_grad(w), home);
    OK(oar_tensor_bind_grad(w, NULL)); /* moves what is there */
    assert_ptr_not_equal(oar_tensor_grad(w), home);
    assert_true(at(oar_tensor_grad(w), 3) == 2);
    assert_int_equal(oar_tensor_mark_grad(w), OAR_E_STATE);
    bucket[5] = 0;
    OK(oar_tensor_bind_grad(w, home)); /* and back */
    assert_true(bucket[5] == 2);
    oar_tape_destroy(tape);
    oar_tensor_release(home);
    oar_tensor_release(w);
    oar_storage_release(storage);
}

static void a_home_of_the_wrong_kind_is_refused(void **state)
{
    oar_tensor *w = leaf_of(OAR_SHAPE(2, 3), 1);
    oar_tensor *plain = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 3));
    oar_tensor *shape = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 2));
    oar_tensor *dtype = oar_zeros(NULL, OAR_F64, OAR_SHAPE(2, 3));
    oar_tensor *strided = oar_transpose(NULL, shape, 0, 1);
    oar_tensor *whole = oar_zeros(NULL, OAR_I32, OAR_SHAPE(2));

    assert_int_equal(oar_tensor_bind_grad(w, shape), OAR_E_SHAPE);
    assert_non_null(strstr(oar_last_error_text(), "[2, 3] to [3, 2]"));
    assert_int_equal(oar_tensor_bind_grad(w, dtype), OAR_E_DTYPE);
    assert_int_equal(oar_tensor_bind_grad(w, strided), OAR_E_ARG);
    assert_int_equal(oar_tensor_bind_grad(plain, w), OAR_E_STATE);
    assert_int_equal(oar_tensor_bind_grad(NULL, w), OAR_E_ARG);
    assert_int_equal(oar_tensor_require_grad(whole, 1), OAR_E_DTYPE);
    oar_tensor_release(strided);
    oar_tensor_release(whole);
    oar_tensor_release(dtype);
    oar_tensor_release(shape);
    oar_tensor_release(plain);
    oar_tensor_release(w);
}

static void a_leaf_that_no_longer_requires_a_gradient_gets_none(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1), *v = leaf_of(OAR_SHAPE(3), 2);

    OK(oar_tensor_require_grad(w, 0));
    assert_false(oar_tensor_requires_grad(w));
    OK(oar_backward(tape, oar_sum(tape, oar_mul(tape, w, v))));
    assert_null(oar_tensor_grad(w));
    assert_non_null(oar_tensor_grad(v));
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(v);
}

/* ---- hooks --------------------------------------------------------------- */

typedef struct tape_log {
    char text[256];
    oar_tensor *watched;
    oar_hook *hook;
} tape_log;

typedef struct tape_hook {
    tape_log *in;
    char letter;
    oar_status ends;
} tape_hook;

static oar_status log_hook(oar_tensor *leaf, void *arg)
{
    tape_hook *n = arg;
    size_t used = strlen(n->in->text);

    assert_non_null(oar_tensor_grad(leaf));
    n->in->text[used] = n->letter;
    if (n->in->watched != NULL && oar_tensor_grad(n->in->watched) != NULL)
        n->in->text[used + 1] = '!'; /* the watched one has its gradient too */
    return n->ends;
}

static oar_status log_at_end(void *arg)
{
    tape_hook *n = arg;

    n->in->text[strlen(n->in->text)] = n->letter;
    return n->ends;
}

static void gradient_hooks_fire_before_backward_returns(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *a = leaf_of(OAR_SHAPE(3, 3), 1),
               *b = leaf_of(OAR_SHAPE(3, 3), 2);
    tape_log d = { .watched = a };
    tape_hook na = { &d, 'a', OAR_OK }, nb = { &d, 'b', OAR_OK };
    tape_hook nc = { &d, 'c', OAR_OK }, nd = { &d, 'd', OAR_OK };
    oar_hook *hook[3];

    OK(oar_tensor_on_grad(a, log_hook, &na, &hook[0]));
    OK(oar_tensor_on_grad(b, log_hook, &nb, &hook[1]));
    OK(oar_tensor_on_grad(b, log_hook, &nc, &hook[2]));
    OK(oar_tape_defer(tape, log_at_end, &nd));
    OK(oar_backward(tape,
                    oar_sum(tape, oar_matmul(tape, b, oar_relu(tape, a)))));
    /* b's gradient is complete while a's is not there yet */
    assert_string_equal(d.text, "bca!d");
    oar_hook_remove(hook[1]);
    oar_hook_remove(NULL);
    oar_tape_reset(tape);
    OK(oar_backward(tape, oar_sum(tape, b)));
    assert_string_equal(d.text, "bca!dc!");
    oar_hook_remove(hook[0]);
    oar_hook_remove(hook[2]);
    oar_tape_destroy(tape);
    oar_tensor_release(a);
    oar_tensor_release(b);
}

static oar_status check_complete(oar_tensor *leaf, void *arg)
{
    int *calls = arg;

    ++*calls;
    return at(oar_tensor_grad(leaf), 0) == 6 ? OAR_OK : OAR_E_INTERNAL;
}

static void a_shared_leaf_is_ready_once_and_complete(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *y[2];
    oar_hook *hook;
    int calls = 0;

    OK(oar_tensor_on_grad(w, check_complete, &calls, &hook));
    y[0] = oar_add(tape, oar_scale(tape, w, 2), oar_add(tape, w, w));
    y[1] = oar_scale(tape, w, 2);
    (void)oar_scale(tape, w, 100); /* no root reaches it: not counted */
    OK(oar_backward_from(tape, 2, y, NULL));
    assert_int_equal(calls, 1);
    oar_hook_remove(hook);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void a_failing_hook_ends_backward_with_its_status(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *loss = oar_sum(tape, oar_relu(tape, w));
    tape_log d = { .watched = NULL };
    tape_hook n = { &d, 'w', OAR_E_PEER };
    oar_hook *hook;

    oar_clear_error();
    OK(oar_tensor_on_grad(w, log_hook, &n, &hook));
    assert_int_equal(oar_backward(tape, loss), OAR_E_PEER);
    assert_int_equal(oar_last_error()->status, OAR_E_PEER);
    assert_int_equal(oar_backward(tape, loss), OAR_E_STATE);
    assert_int_equal(oar_tensor_on_grad(w, NULL, NULL, NULL), OAR_E_ARG);
    oar_tape_destroy(tape);
    oar_tensor_release(w); /* frees the hook that was not removed */
}

static oar_status remove_myself(oar_tensor *leaf, void *arg)
{
    tape_log *d = arg;

    oar_hook_remove(d->hook);
    d->text[strlen(d->text)] = 'x';
    return OAR_OK;
}

static void a_hook_may_remove_itself(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    tape_log d = { .watched = NULL };

    OK(oar_tensor_on_grad(w, remove_myself, &d, &d.hook));
    for (int i = 0; i < 2; i++) {
        OK(oar_backward(tape, oar_sum(tape, w)));
        oar_tape_reset(tape);
    }
    assert_string_equal(d.text, "x");
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void deferred_functions_run_once_and_their_failure_is_the_calls(void **s)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    tape_log d = { .watched = NULL };
    tape_hook first = { &d, '1', OAR_E_TIMEOUT },
              second = { &d, '2', OAR_E_PEER };

    OK(oar_tape_defer(tape, log_at_end, &first));
    OK(oar_tape_defer(tape, log_at_end, &second));
    OK(oar_tape_defer(tape, log_at_end, &first)); /* is there already */
    assert_int_equal(oar_backward(tape, oar_sum(tape, w)), OAR_E_TIMEOUT);
    assert_string_equal(d.text, "12");
    OK(oar_backward(tape, oar_sum(tape, w)));
    assert_string_equal(d.text, "12");
    OK(oar_tape_defer(tape, log_at_end, &first));
    oar_tape_reset(tape); /* dropped unrun */
    OK(oar_backward(tape, oar_sum(tape, w)));
    assert_string_equal(d.text, "12");
    assert_int_equal(oar_tape_defer(tape, NULL, NULL), OAR_E_ARG);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

/* ---- backward ------------------------------------------------------------ */

static void a_second_backward_is_a_wrong_state(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *loss = oar_sum(tape, oar_relu(tape, w));

    OK(oar_backward(tape, loss));
    assert_int_equal(oar_backward(tape, loss), OAR_E_STATE);
    assert_non_null(strstr(oar_last_error_text(), "second time"));
    assert_int_equal(oar_backward_weights(tape), OAR_E_STATE);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void backward_refuses_what_it_cannot_start_from(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(3), 1);
    oar_tensor *y = oar_relu(tape, w);
    oar_tensor *seed = oar_zeros(tape, OAR_F32, OAR_SHAPE(4));

    assert_int_equal(oar_backward(tape, y), OAR_E_SHAPE);
    assert_int_equal(oar_backward(NULL, y), OAR_E_SHAPE);
    assert_int_equal(oar_backward_from(tape, 1, &y, &seed), OAR_E_SHAPE);
    assert_non_null(strstr(oar_last_error_text(), "[3] with a gradient [4]"));
    seed = oar_ones(tape, OAR_F64, OAR_SHAPE(3));
    assert_fails_with(oar_backward_from(tape, 1, &y, &seed), OAR_E_DTYPE,
                      "[3] of f32 with a gradient of f64");
    assert_int_equal(oar_backward_from(tape, 0, NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_backward_from(tape, 1, &w, NULL), OAR_E_STATE);
    assert_int_equal(
        oar_backward(tape, oar_sum(tape, oar_reshape(tape, y, OAR_SHAPE(5)))),
        OAR_E_SHAPE); /* what made the NULL */
    oar_clear_error();
    assert_int_equal(oar_backward(tape, NULL), OAR_E_ARG);
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    OK(oar_backward_from(tape, 1, &y, NULL)); /* nothing was harmed */
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void several_roots_and_seeds_add_up(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(2), 1);
    oar_tensor *y = oar_scale(tape, w, 3), *z = oar_scale(tape, y, 5);
    oar_tensor *seed = oar_full(tape, OAR_F32, OAR_SHAPE(2), 2);
    oar_tensor *root[] = { z, y, z };
    oar_tensor *seeds[] = { seed, NULL, NULL };

    OK(oar_backward_from(tape, 3, root, seeds));
    assert_true(at(oar_tensor_grad(w), 1) == (2 + 1) * 15 + 3);
    assert_true(at(seed, 0) == 2); /* borrowed, not used up */
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

/* A little of everything: shared weights, a residual, a tied transposition. */
static oar_tensor *tangle(oar_tape *tape, oar_tensor *x, oar_tensor *w,
                          oar_tensor *bias)
{
    oar_tensor *h = oar_relu(tape, oar_linear(tape, x, w, bias));

    h = oar_add(tape, h, oar_linear(tape, h, w, NULL));
    h = oar_matmul(tape, h, oar_transpose(tape, w, 0, 1));
    return oar_softmax(tape, oar_mul(tape, h, bias));
}

enum { WHOLE, HALVES };

static void run_tangle(int how, oar_tensor *x, oar_tensor *w, oar_tensor *bias,
                       float *out)
{
    oar_tape *tape = new_tape();
    oar_tensor *in = oar_tape_input(tape, x);
    oar_tensor *y = tangle(tape, in, w, bias);
    oar_tensor *seed =
        oar_uniform(tape, OAR_F32, oar_tensor_shape(y), 5, -1, 1);

    oar_tensor_clear_grad(w);
    oar_tensor_clear_grad(bias);
    if (how == WHOLE) {
        OK(oar_backward_from(tape, 1, &y, &seed));
    } else {
        OK(oar_backward_inputs(tape, 1, &y, &seed));
        assert_non_null(oar_tensor_grad(in));
        assert_null(oar_tensor_grad(w));
        assert_null(oar_tensor_grad(bias));
        assert_int_equal(oar_backward_inputs(tape, 1, &y, &seed), OAR_E_STATE);
        OK(oar_backward_weights(tape));
    }
    OK(oar_tensor_read(oar_tensor_grad(in), OAR_F32, out));
    OK(oar_tensor_read(oar_tensor_grad(w), OAR_F32, out + 35));
    OK(oar_tensor_read(oar_tensor_grad(bias), OAR_F32, out + 84));
    oar_tape_destroy(tape);
}

static void the_two_halves_leave_bitwise_what_the_whole_leaves(void **state)
{
    oar_tensor *x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(5, 7), 3, -1, 1);
    oar_tensor *w = leaf_of(OAR_SHAPE(7, 7), 1), *b = leaf_of(OAR_SHAPE(7), 2);
    float whole[91], halves[91];

    run_tangle(WHOLE, x, w, b, whole);
    run_tangle(HALVES, x, w, b, halves);
    assert_memory_equal(whole, halves, sizeof whole);
    oar_tensor_release(x);
    oar_tensor_release(w);
    oar_tensor_release(b);
}

/* Operations that make all their gradients at once, of which input 0 and a
 * third are leaves and another is an activation. */
typedef oar_tensor *(*mixed_fn)(oar_tape *tape, oar_tensor *leaf,
                                oar_tensor *activation, oar_tensor *third);

static oar_tensor *mixed_attention(oar_tape *tape, oar_tensor *leaf,
                                   oar_tensor *activation, oar_tensor *third)
{
    return oar_attention(tape, leaf, activation, third, NULL);
}

static oar_tensor *first_row(oar_tape *tape, oar_tensor *a)
{
    return oar_reshape(tape, oar_narrow(tape, a, 0, 0, 1), OAR_SHAPE(5));
}

static oar_tensor *mixed_layer_norm(oar_tape *tape, oar_tensor *leaf,
                                    oar_tensor *activation, oar_tensor *third)
{
    return oar_layer_norm(tape, leaf, first_row(tape, activation), third, 1e-5);
}

static oar_tensor *mixed_batch_norm(oar_tape *tape, oar_tensor *leaf,
                                    oar_tensor *activation, oar_tensor *third)
{
    return oar_batch_norm(tape, leaf, first_row(tape, activation), third, NULL,
                          NULL, 1, 0.1, 1e-5);
}

static const struct mixed_case {
    mixed_fn fn;
    oar_shape third;
} mixed_cases[] = {
    { mixed_attention, { 2, { 5, 5 } } },
    { mixed_layer_norm, { 1, { 5 } } },
    { mixed_batch_norm, { 1, { 5 } } },
};

/* The gradients of leaf and third, added up over three passes. Between the
 * halves `leaf` is changed, unseen: what is computed already stays. */
static void run_mixed(const struct mixed_case *c, int how, float *out)
{
    enum { PASSES = 3 };
    oar_tensor *leaf = leaf_of(OAR_SHAPE(5, 5), 1),
               *third = leaf_of(c->third, 2);
    oar_tensor *w = leaf_of(OAR_SHAPE(5, 5), 3);
    oar_tape *tape = new_tape();
    uint64_t live = 0;

    for (int i = 0; i < PASSES; i++) {
        oar_tensor *y = c->fn(tape, leaf, oar_scale(tape, w, 2), third);
        float *number = oar_tensor_data(leaf);

        if (how == WHOLE) {
            OK(oar_backward_from(tape, 1, &y, NULL));
        } else {
            OK(oar_backward_inputs(tape, 1, &y, NULL));
            assert_null(i == 0 ? oar_tensor_grad(leaf) : NULL);
            number[7] += 4;
            OK(oar_backward_weights(tape));
            number[7] -= 4;
        }
        oar_tape_reset(tape);
        if (i == 1)
            live = memory_now().live_bytes;
    }
    assert_int_equal(memory_now().live_bytes, live); /* a pass leaves nothing */
    OK(oar_tensor_read(oar_tensor_grad(leaf), OAR_F32, out));
    OK(oar_tensor_read(oar_tensor_grad(third), OAR_F32, out + 25));
    OK(oar_tensor_read(oar_tensor_grad(w), OAR_F32, out + 50));
    oar_tape_destroy(tape);
    oar_tensor_release(leaf);
    oar_tensor_release(third);
    oar_tensor_release(w);
}

static void gradients_made_at_once_are_made_once_in_halves_too(void **state)
{
    for (size_t k = 0; k < sizeof mixed_cases / sizeof *mixed_cases; k++) {
        float whole[75] = { 0 }, halves[75] = { 0 };
        uint64_t live = memory_now().live;

        run_mixed(&mixed_cases[k], WHOLE, whole);
        run_mixed(&mixed_cases[k], HALVES, halves);
        assert_memory_equal(whole, halves, sizeof whole);
        assert_int_equal(memory_now().live, live);
    }
}

/* A stage of a pipeline whose parameters are all frozen. */
static void the_weights_half_may_have_nothing_to_do(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(5, 7), 3, -1, 1);
    oar_tensor *w = oar_uniform(NULL, OAR_F32, OAR_SHAPE(3, 7), 4, -1, 1);
    oar_tensor *in = oar_tape_input(tape, x);
    oar_tensor *y = oar_linear(tape, in, w, NULL);

    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_non_null(oar_tensor_grad(in));
    OK(oar_backward_weights(tape));
    assert_null(oar_tensor_grad(w));
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(x);
}

static void hooks_of_weights_run_in_the_weights_half(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(5, 7), 3, -1, 1);
    oar_tensor *w = leaf_of(OAR_SHAPE(3, 7), 1), *in, *y;
    tape_log d = { .watched = NULL };
    tape_hook nw = { &d, 'w', OAR_OK }, ni = { &d, 'i', OAR_OK };
    tape_hook ne = { &d, 'e', OAR_OK };

    in = oar_tape_input(tape, x);
    OK(oar_tensor_on_grad(w, log_hook, &nw, NULL));
    OK(oar_tensor_on_grad(in, log_hook, &ni, NULL));
    OK(oar_tape_defer(tape, log_at_end, &ne));
    y = oar_linear(tape, in, w, NULL);
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    assert_string_equal(d.text, "i");
    OK(oar_backward_weights(tape));
    assert_string_equal(d.text, "iwe");
    assert_int_equal(oar_backward_weights(tape), OAR_E_STATE);
    assert_int_equal(oar_backward_weights(NULL), OAR_E_ARG);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(x);
}

/* ---- gradients in parts -------------------------------------------------- */

enum { TALL = 40, THIN = 7, STEP = 50 };

/* Hears of parts, and keeps what was there at the last one. */
typedef struct part_listener {
    const float *final; /* what the gradient will be, or NULL */
    int parts, whole;
    int64_t last;
    oar_status ends;
} part_listener;

static oar_status hear_part(oar_tensor *leaf, const oar_tensor *grad,
                            int64_t done, int64_t *next, void *arg)
{
    part_listener *l = arg;

    assert_int_equal(*next, oar_tensor_count(leaf));
    assert_true(l->parts == 0 ? done == 0 : done > l->last);
    assert_int_equal(l->whole, 0);
    if (l->final != NULL)
        assert_memory_equal(oar_tensor_const_data(grad), l->final,
                            (size_t)done * sizeof *l->final);
    l->last = done;
    l->parts++;
    *next = done + STEP;
    return done > 0 ? l->ends : OAR_OK;
}

static oar_status hear_whole(oar_tensor *leaf, void *arg)
{
    ((part_listener *)arg)->whole++;
    return OAR_OK;
}

/* w is used as often as said; its gradient is added to what is there. */
static oar_status use_weight(oar_tape *tape, oar_tensor *w, int times)
{
    oar_tensor *x = oar_uniform(tape, OAR_F32, OAR_SHAPE(5, THIN), 3, -1, 1);
    oar_tensor *root[2];
    oar_status status;

    for (int i = 0; i < times; i++)
        root[i] = oar_linear(tape, oar_scale(tape, x, i + 1), w, NULL);
    status = oar_backward_from(tape, times, root, NULL);
    oar_tape_reset(tape);
    return status;
}

/* Its gradient after `passes`, without a listener. */
static void gradient_of(oar_tensor *w, int times, int passes, float *to)
{
    oar_tape *tape = new_tape();

    oar_tensor_clear_grad(w);
    for (int i = 0; i < passes; i++)
        OK(use_weight(tape, w, times));
    OK(oar_tensor_read(oar_tensor_grad(w), OAR_F32, to));
    oar_tensor_clear_grad(w);
    oar_tape_destroy(tape);
}

static void parts_of_a_gradient_are_announced_once_they_are_final(void **state)
{
    oar_tensor *w = leaf_of(OAR_SHAPE(TALL, THIN), 1);
    float final[TALL * THIN];
    oar_hook *hook;

    for (int times = 1; times < 3; times++)
        for (int passes = 1; passes < 3; passes++) {
            oar_tape *tape = new_tape();
            part_listener l = { .final = NULL };

            gradient_of(w, times, passes, final);
            if (passes == 2) /* the second adds to the first */
                OK(use_weight(tape, w, times));
            l.final = final;
            OK(oar_tensor_on_grad_parts(w, hear_whole, hear_part, &l, &hook));
            OK(use_weight(tape, w, times));
            /* rows 0, 16, 32, all */
            assert_int_equal(l.parts, 4);
            assert_int_equal(l.last, TALL * THIN);
            assert_int_equal(l.whole, 1);
            oar_hook_remove(hook);
            oar_tape_destroy(tape);
        }
    oar_tensor_release(w);
}

static void only_the_first_hook_is_called_for_parts(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(TALL, THIN), 1);
    part_listener first = { .final = NULL }, second = { .final = NULL };
    oar_hook *hook[2];

    OK(oar_tensor_on_grad(w, hear_whole, &first, &hook[0]));
    OK(oar_tensor_on_grad_parts(w, hear_whole, hear_part, &second, &hook[1]));
    OK(use_weight(tape, w, 1));
    assert_int_equal(first.whole + second.whole, 2);
    assert_int_equal(second.parts, 0);
    oar_hook_remove(hook[0]);
    second.whole = 0;
    OK(use_weight(tape, w, 1));
    assert_int_equal(second.parts, 4);
    second = (part_listener){ .ends = OAR_E_PEER };
    assert_int_equal(use_weight(tape, w, 1), OAR_E_PEER);
    assert_int_equal(second.parts, 2);
    assert_int_equal(second.whole, 0);
    assert_int_equal(oar_tensor_on_grad_parts(w, NULL, hear_part, NULL, NULL),
                     OAR_E_ARG);
    oar_hook_remove(hook[1]);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

static void parts_are_not_announced_while_replaying(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(5, THIN), 3, -1, 1);
    part_listener l = { .final = NULL };
    oar_module *layer;
    oar_hook *hook;

    OK(oar_linear_create(THIN, TALL, 1, NULL, &layer));
    OK(oar_tensor_on_grad_parts(oar_module_param(layer, 0), hear_whole,
                                hear_part, &l, &hook));
    OK(oar_backward(tape, oar_sum(tape, oar_recompute(tape, layer, x))));
    assert_int_equal(l.parts, 0);
    assert_int_equal(l.whole, 1);
    oar_tape_reset(tape);
    l.whole = 0;
    OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, layer, x))));
    assert_int_equal(l.parts, 4);
    oar_hook_remove(hook);
    oar_tape_destroy(tape);
    oar_module_release(layer);
    oar_tensor_release(x);
}

static void an_input_shares_its_values_storage_and_is_a_float(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = oar_zeros(NULL, OAR_F32, OAR_SHAPE(5, 7));
    oar_tensor *i = oar_zeros(NULL, OAR_I64, OAR_SHAPE(5));

    assert_ptr_equal(oar_tensor_storage(oar_tape_input(tape, x)),
                     oar_tensor_storage(x));
    assert_null(oar_tape_input(tape, i));
    assert_int_equal(oar_last_error()->status, OAR_E_DTYPE);
    assert_null(oar_tape_input(tape, NULL));
    assert_null(oar_tape_input(NULL, x));
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(i);
}

static void a_weight_may_be_away_between_forward_and_backward(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(2, 3), 1), *in, *y;
    oar_tensor *w = leaf_of(OAR_SHAPE(5, 3), 1);
    oar_storage *storage = oar_tensor_storage(w);
    float saved[15];

    OK(oar_tensor_read(w, OAR_F32, saved));
    in = oar_tape_input(tape, x);
    y = oar_sum(tape, oar_linear(tape, in, w, NULL));
    OK(oar_storage_detach(storage));
    assert_int_equal(oar_backward(tape, y), OAR_E_STATE);
    assert_non_null(strstr(oar_last_error_text(), "[5, 3]"));
    oar_tape_reset(tape);
    OK(oar_storage_attach(storage, saved, NULL, NULL));
    in = oar_tape_input(tape, x);
    y = oar_sum(tape, oar_linear(tape, in, w, NULL));
    OK(oar_storage_detach(storage));
    OK(oar_storage_attach(storage, saved, NULL, NULL));
    OK(oar_backward(tape, y));
    assert_true(at(oar_tensor_grad(w), 0) == 2);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    oar_tensor_release(x);
}

static void backward_gives_back_what_was_saved(void **state)
{
    oar_tape *tape = new_tape();
    oar_tensor *w = leaf_of(OAR_SHAPE(64, 64), 1), *h = w;

    for (int i = 0; i < 20; i++) /* ends first, so gradients reuse memory */
        h = oar_scale(tape, h, 0.5);
    uint64_t before = memory_now().live_bytes;
    OK(oar_backward(tape, oar_sum(tape, h)));
    /* one gradient of w, and one or two that wander down the chain */
    assert_true(memory_now().live_bytes - before < 4 * 64 * 64 * sizeof(float));
    oar_tape_destroy(tape);
    oar_tensor_release(w);
}

/* ---- failing allocations ------------------------------------------------- */

typedef struct training_step {
    oar_tape *tape;
    oar_module *net;
    oar_optim *sgd;
    oar_tensor *x, *y;
} training_step;

static oar_status build(training_step *w)
{
    oar_module *part[3] = { NULL };
    oar_status status = oar_tape_create(&w->tape);

    if (status == OAR_OK)
        status = oar_linear_create(5, 7, 1, NULL, &part[0]);
    if (status == OAR_OK)
        status = oar_relu_create(&part[1]);
    if (status == OAR_OK)
        status = oar_linear_create(7, 3, 1, NULL, &part[2]);
    if (status != OAR_OK) {
        for (int i = 0; i < 3; i++)
            oar_module_release(part[i]);
        return status;
    }
    status = oar_sequential_create(3, part, &w->net);
    if (status == OAR_OK)
        status = oar_sgd_create(w->net, OAR_OPTS(oar_sgd_opts, .momentum = 0.9),
                                &w->sgd);
    return status;
}

static void tear_down(training_step *w)
{
    oar_tensor_release(w->x);
    oar_tensor_release(w->y);
    oar_optim_destroy(w->sgd);
    oar_module_release(w->net);
    oar_tape_destroy(w->tape);
}

static oar_status one_step(training_step *w)
{
    oar_tensor *in, *loss;
    oar_status status = OAR_OK;

    w->x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(2, 4, 5), 1, -1, 1);
    w->y = oar_zeros(NULL, OAR_I64, OAR_SHAPE(8));
    /* a view that no strides can say in two dims: everything must copy */
    in = oar_transpose(w->tape, oar_tape_input(w->tape, w->x), 0, 1);
    loss = oar_forward(w->tape, w->net, in);
    loss = oar_reshape(w->tape, loss, OAR_SHAPE(8, 3));
    loss = oar_add(w->tape, loss, oar_module_param(w->net, 3));
    loss = oar_mul(w->tape, loss, oar_narrow(w->tape, loss, 1, 0, 1));
    loss = oar_cross_entropy(w->tape, loss, w->y);
    if (loss == NULL)
        return oar_last_error()->status;
    status = oar_backward(w->tape, loss);
    if (status == OAR_OK)
        status = oar_optim_step(w->sgd);
    return status;
}

/* Fails the n-th allocation of build and one_step, for every n until none
 * fails; each time all is given back. */
static void no_failed_allocation_leaks_or_crashes(void **state)
{
    uint64_t live = memory_now().live;
    oar_status status = OAR_E_NOMEM;
    int n = 0;

    while (status != OAR_OK) {
        training_step w = { 0 };

        assert_true(++n < 1000);
        oar_clear_error();
        oar_memory_fail_after((uint64_t)n);
        status = build(&w);
        if (status == OAR_OK)
            status = one_step(&w);
        oar_memory_fail_after(0);
        if (status != OAR_OK) {
            assert_int_equal(status, OAR_E_NOMEM);
            assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
        }
        tear_down(&w);
        assert_int_equal(memory_now().live, live);
    }
    assert_true(n > 50);
}

/* After a failure in the middle, reset is enough to go on. */
static void a_step_after_a_failed_one_works(void **state)
{
    oar_status status = OAR_E_NOMEM;

    for (int n = 1; status != OAR_OK; n++) {
        training_step w = { 0 };

        OK(build(&w));
        oar_memory_fail_after((uint64_t)n);
        status = one_step(&w);
        oar_memory_fail_after(0);
        oar_tensor_release(w.x);
        oar_tensor_release(w.y);
        oar_tape_reset(w.tape);
        oar_optim_zero_grad(w.sgd);
        OK(one_step(&w));
        tear_down(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tape_owns_results_and_reset_gives_them_up),
        cmocka_unit_test(storage_that_is_referenced_is_never_recycled),
        cmocka_unit_test(storage_that_no_step_needs_any_more_is_given_back),
        cmocka_unit_test(a_tape_counts_what_it_has_in_use),
        cmocka_unit_test(a_result_kept_over_reset_is_a_plain_tensor),
        cmocka_unit_test(a_result_used_after_reset_is_refused),
        cmocka_unit_test(while_recording_is_off_nothing_is_recorded),
        cmocka_unit_test(a_result_of_another_tape_needs_oar_tape_input),
        cmocka_unit_test(gradients_add_up_over_tapes_until_cleared),
        cmocka_unit_test(a_bound_gradient_is_written_in_its_home),
        cmocka_unit_test(a_home_of_the_wrong_kind_is_refused),
        cmocka_unit_test(a_leaf_that_no_longer_requires_a_gradient_gets_none),
        cmocka_unit_test(gradient_hooks_fire_before_backward_returns),
        cmocka_unit_test(a_shared_leaf_is_ready_once_and_complete),
        cmocka_unit_test(a_failing_hook_ends_backward_with_its_status),
        cmocka_unit_test(a_hook_may_remove_itself),
        cmocka_unit_test(
            deferred_functions_run_once_and_their_failure_is_the_calls),
        cmocka_unit_test(a_second_backward_is_a_wrong_state),
        cmocka_unit_test(backward_refuses_what_it_cannot_start_from),
        cmocka_unit_test(several_roots_and_seeds_add_up),
        cmocka_unit_test(the_two_halves_leave_bitwise_what_the_whole_leaves),
        cmocka_unit_test(gradients_made_at_once_are_made_once_in_halves_too),
        cmocka_unit_test(the_weights_half_may_have_nothing_to_do),
        cmocka_unit_test(hooks_of_weights_run_in_the_weights_half),
        cmocka_unit_test(parts_of_a_gradient_are_announced_once_they_are_final),
        cmocka_unit_test(only_the_first_hook_is_called_for_parts),
        cmocka_unit_test(parts_are_not_announced_while_replaying),
        cmocka_unit_test(an_input_shares_its_values_storage_and_is_a_float),
        cmocka_unit_test(a_weight_may_be_away_between_forward_and_backward),
        cmocka_unit_test(backward_gives_back_what_was_saved),
        cmocka_unit_test(no_failed_allocation_leaks_or_crashes),
        cmocka_unit_test(a_step_after_a_failed_one_works),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
