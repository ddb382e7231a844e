/* SPDX-License-Identifier: Apache-2.0 */
/* Storage: counted memory whose data can be freed and made again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/layers.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>
#include <oarsong/tensor.h>

#include "support/leak_check.h"
#include "support/last_error.h"

static void fresh_storage_is_aligned_and_counted(void **state)
{
    static const size_t sizes[] = { 0, 1, 3, 64, 1000 };
    uint64_t before = leak_check_begin().live;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        oar_storage *s;

        OK(oar_storage_create(sizes[i], 0, &s));
        assert_int_equal(oar_storage_bytes(s), sizes[i]);
        assert_int_equal((uintptr_t)oar_storage_data(s) % 64, 0);
        memset(oar_storage_data(s), 1, sizes[i]);
        assert_ptr_equal(oar_storage_retain(s), s);
        oar_storage_release(s);
        assert_int_equal(oar_storage_bytes(s), sizes[i]);
        oar_storage_release(s);
    }
    assert_int_equal(leak_check_begin().live, before);
}

static void shared_storage_is_ordinary_memory_to_its_owner(void **state)
{
    oar_storage *s;

    OK(oar_storage_create(5000, 1, &s));
    memset(oar_storage_data(s), 7, 5000);
    OK(oar_storage_detach(s));
    assert_null(oar_storage_data(s));
    OK(oar_storage_attach(s, NULL, NULL, NULL));
    memset(oar_storage_data(s), 8, 5000);
    oar_storage_release(s);
}

static void views_stay_while_the_data_is_away(void **state)
{
    oar_storage *s;
    oar_tensor *view, *part;
    float data[12];

    OK(oar_storage_create(sizeof data, 0, &s));
    view = oar_view_of(NULL, s, 2, OAR_F32, OAR_SHAPE(2, 5));
    part = oar_narrow(NULL, view, 1, 3, 2);
    OK(oar_storage_detach(s));
    OK(oar_storage_detach(s)); /* twice is fine */
    assert_null(oar_tensor_data(view));
    assert_int_equal(oar_tensor_fill(view, 1), OAR_E_STATE);
    assert_int_equal(oar_tensor_read(part, OAR_F32, data), OAR_E_STATE);
    assert_non_null(strstr(oar_last_error_text(), "[2, 2]"));
    for (int i = 0; i < 12; i++)
        data[i] = (float)i;
    OK(oar_storage_attach(s, data, NULL, NULL));
    assert_ptr_equal(oar_tensor_data(view), data + 2);
    OK(oar_tensor_fill(part, -1));
    assert_true(data[4] == 4 && data[5] == -1 && data[11] == -1);
    oar_storage_release(s); /* the views hold it */
    assert_ptr_equal(oar_tensor_data(part), data + 5);
    oar_tensor_release(view);
    oar_tensor_release(part);
}

static void count_drop(void *arg)
{
    ++*(int *)arg;
}

static void attached_data_is_dropped_exactly_once(void **state)
{
    oar_storage *s;
    int drops = 0;
    float data[4];

    OK(oar_storage_create(sizeof data, 0, &s));
    assert_int_equal(oar_storage_attach(s, data, count_drop, &drops),
                     OAR_E_STATE);
    OK(oar_storage_detach(s));
    OK(oar_storage_attach(s, data, count_drop, &drops));
    assert_int_equal(drops, 0);
    OK(oar_storage_detach(s));
    assert_int_equal(drops, 1);
    OK(oar_storage_attach(s, data, count_drop, &drops));
    oar_storage_release(s);
    assert_int_equal(drops, 2);
}

static void a_storage_can_be_made_without_memory(void **state)
{
    static const size_t sizes[] = { 0, 1, 65, 1000 };
    uint64_t before = leak_check_begin().live;

    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i / 2];
        oar_storage *s;

        OK(oar_storage_create_detached(bytes, i % 2, &s));
        assert_int_equal(oar_storage_bytes(s), bytes);
        assert_null(oar_storage_data(s));
        assert_int_equal(oar_storage_version(s), 0);
        OK(oar_storage_detach(s));
        OK(oar_storage_attach(s, NULL, NULL, NULL));
        assert_int_equal((uintptr_t)oar_storage_data(s) % 64, 0);
        memset(oar_storage_data(s), 1, bytes);
        oar_storage_release(s);
        OK(oar_storage_create_detached(bytes, i % 2, &s));
        oar_storage_release(s);
    }
    assert_int_equal(leak_check_begin().live, before);
}

/* ---- read-only ----------------------------------------------------------- */

/* Asserts that a call was refused because memory can only be read. */
static void was_refused(oar_status status)
{
    assert_fails_with(status, OAR_E_STATE, "can only be read");
    oar_clear_error();
}

/* Takes the memory of a tensor away and attaches it to be read only. */
static void protect_memory(oar_tensor *t, const void *data)
{
    OK(oar_storage_detach(oar_tensor_storage(t)));
    OK(oar_storage_attach_read_only(oar_tensor_storage(t), data, NULL, NULL));
}

static void memory_attached_to_be_read_is_not_written(void **state)
{
    float data[6] = { 0, 1, 2, 3, 4, 5 }, sum;
    oar_tensor *view, *row, *other, *made;
    oar_storage *s;
    oar_span span;
    int drops = 0;

    OK(oar_storage_create_detached(sizeof data, 0, &s));
    view = oar_view_of(NULL, s, 0, OAR_F32, OAR_SHAPE(2, 3));
    OK(oar_storage_attach_read_only(s, data, count_drop, &drops));
    row = oar_select(NULL, view, 0, 1);
    other = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 3));
    assert_true(oar_tensor_is_read_only(view) && oar_tensor_is_read_only(row));
    was_refused(oar_tensor_fill(row, 9));
    was_refused(oar_tensor_copy(view, other));
    was_refused(oar_tensor_write(view, OAR_F32, data));
    was_refused(oar_tensor_touch(view));
    was_refused(oar_tensor_span(view, &span));
    assert_null(oar_tensor_data(view));
    was_refused(oar_last_error()->status);
    assert_null(oar_storage_data(s));
    was_refused(oar_last_error()->status);
    assert_ptr_equal(oar_tensor_const_data(row), data + 3);
    assert_ptr_equal(oar_storage_const_data(s), data);
    OK(oar_tensor_copy(other, view));
    made = oar_sum(NULL, view);
    OK(oar_tensor_read(made, OAR_F32, &sum));
    assert_true(sum == 15);
    assert_int_equal(oar_storage_version(s), 0);

    assert_int_equal(oar_storage_attach_read_only(s, data, NULL, NULL),
                     OAR_E_STATE);
    OK(oar_storage_detach(s));
    assert_int_equal(drops, 1);
    OK(oar_storage_attach(s, data, count_drop, &drops)); /* to write again */
    OK(oar_tensor_fill(row, 9));
    assert_true(data[2] == 2 && data[3] == 9);
    oar_tensor_release(made);
    oar_tensor_release(other);
    oar_tensor_release(row);
    oar_tensor_release(view);
    oar_storage_release(s);
    assert_int_equal(drops, 2);
}

static oar_tensor *leaf_of(int64_t count)
{
    oar_tensor *leaf = oar_ones(NULL, OAR_F32, OAR_SHAPE(count));

    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

static void backward_writes_no_gradient_to_read_only_memory(void **state)
{
    oar_tensor *leaf = leaf_of(3), *home;
    float data[3] = { 7, 7, 7 };
    oar_tape *tape;

    home = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));
    OK(oar_tensor_bind_grad(leaf, home));
    protect_memory(home, data);
    OK(oar_tape_create(&tape));
    was_refused(oar_backward(tape, oar_sum(tape, leaf)));
    assert_null(oar_tensor_grad(leaf));
    assert_true(data[0] == 7);
    oar_tape_destroy(tape);
    oar_tensor_release(home);
    oar_tensor_release(leaf);
}

static void no_optimizer_writes_to_read_only_memory(void **state)
{
    oar_tensor *leaf = leaf_of(3), *moment;
    float data[3] = { 7, 7, 7 };
    oar_scaler *scaler;
    oar_optim *adam;
    oar_tape *tape;

    OK(oar_adam_create_over(1, &leaf, NULL, &adam));
    OK(oar_scaler_create(NULL, &scaler));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf)));

    protect_memory(leaf, data);
    was_refused(oar_optim_step(adam));
    was_refused(oar_scaler_step(scaler, adam, NULL));
    OK(oar_clip_grad_norm(1, &leaf, 1, NULL)); /* the gradient is elsewhere */
    OK(oar_storage_detach(oar_tensor_storage(leaf)));
    OK(oar_storage_attach(oar_tensor_storage(leaf), NULL, NULL, NULL));

    moment = oar_optim_state(adam, 0, 0);
    protect_memory(moment, data);
    was_refused(oar_optim_step(adam));
    OK(oar_storage_detach(oar_tensor_storage(moment)));
    OK(oar_storage_attach(oar_tensor_storage(moment), data, NULL, NULL));

    protect_memory(oar_tensor_grad(leaf), data);
    was_refused(oar_clip_grad_norm(1, &leaf, 1, NULL));
    was_refused(oar_clip_grad_value(1, &leaf, 1));
    was_refused(oar_scaler_unscale(scaler, adam, NULL));
    was_refused(oar_scaler_step(scaler, adam, NULL));
    assert_true(data[0] == 7 && oar_optim_steps(adam) == 0);
    OK(oar_optim_step(adam)); /* only reads the gradient */
    oar_tape_destroy(tape);
    oar_scaler_destroy(scaler);
    oar_optim_destroy(adam);
    oar_tensor_release(leaf);
}

static void a_batch_norm_counts_in_no_read_only_memory(void **state)
{
    oar_tensor *x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(4, 3), 1, 0, 1);
    int64_t batches = 5;
    float mean[3] = { 0 };
    oar_module *norm;

    OK(oar_batch_norm_create(1, 3, NULL, &norm));
    protect_memory(oar_module_buffer(norm, 2), &batches);
    oar_clear_error();
    assert_null(oar_forward(NULL, norm, x));
    was_refused(oar_last_error()->status);
    assert_int_equal(batches, 5);
    OK(oar_storage_detach(oar_tensor_storage(oar_module_buffer(norm, 2))));
    oar_clear_error();
    assert_null(oar_forward(NULL, norm, x));
    assert_int_equal(oar_last_error()->status, OAR_E_STATE);
    OK(oar_storage_attach(oar_tensor_storage(oar_module_buffer(norm, 2)),
                          &batches, NULL, NULL));
    protect_memory(oar_module_buffer(norm, 0), mean);
    oar_clear_error();
    assert_null(oar_forward(NULL, norm, x));
    was_refused(oar_last_error()->status);
    oar_module_release(norm);
    oar_tensor_release(x);
}

/* ---- versions ------------------------------------------------------------ */

/* Asserts that the storage was written to since, and keeps its version. */
static void has_grown(const oar_tensor *t, uint64_t *version)
{
    uint64_t now = oar_storage_version(oar_tensor_storage(t));

    assert_true(now > *version);
    *version = now;
}

static void every_call_that_writes_is_counted(void **state)
{
    oar_tensor *t = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 3)), *row, *other;
    float data[6] = { 0 };
    uint64_t version = oar_storage_version(oar_tensor_storage(t));

    row = oar_select(NULL, t, 0, 1);
    other = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 3));
    OK(oar_tensor_fill(row, 1));
    has_grown(t, &version);
    OK(oar_tensor_write(t, OAR_F32, data));
    has_grown(t, &version);
    OK(oar_tensor_copy(t, other));
    has_grown(row, &version);
    OK(oar_tensor_touch(row));
    has_grown(t, &version);
    OK(oar_tensor_copy(other, t)); /* reads */
    OK(oar_tensor_read(t, OAR_F32, data));
    assert_int_equal(oar_tensor_fill(NULL, 1), OAR_E_ARG);
    OK(oar_storage_detach(oar_tensor_storage(t)));
    assert_int_equal(oar_tensor_fill(t, 1), OAR_E_STATE);
    OK(oar_storage_attach(oar_tensor_storage(t), data, NULL, NULL));
    assert_int_equal(oar_storage_version(oar_tensor_storage(t)), version);
    assert_int_equal(oar_storage_version(NULL), 0);
    oar_tensor_release(row);
    oar_tensor_release(other);
    oar_tensor_release(t);
}

static void training_counts_as_writing(void **state)
{
    oar_tensor *leaf = leaf_of(3), *home, *x;
    uint64_t param = 0, grad = 0, moment = 0, mean = 0;
    oar_scaler *scaler;
    oar_module *norm;
    oar_optim *adam;
    oar_tape *tape;

    home = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));
    OK(oar_tensor_bind_grad(leaf, home));
    OK(oar_adam_create_over(1, &leaf, NULL, &adam));
    OK(oar_scaler_create(NULL, &scaler));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf)));
    has_grown(home, &grad);
    OK(oar_clip_grad_norm(1, &leaf, 1e-3, NULL));
    has_grown(home, &grad);
    OK(oar_clip_grad_value(1, &leaf, 1e-9));
    has_grown(home, &grad);
    OK(oar_scaler_unscale(scaler, adam, NULL));
    has_grown(home, &grad);
    OK(oar_optim_step(adam));
    has_grown(leaf, &param);
    has_grown(oar_optim_state(adam, 0, 0), &moment);
    OK(oar_tensor_mark_grad(leaf));
    has_grown(home, &grad);

    x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(4, 3), 1, 0, 1);
    OK(oar_batch_norm_create(1, 3, NULL, &norm));
    assert_non_null(oar_forward(tape, norm, x));
    has_grown(oar_module_buffer(norm, 0), &mean);
    mean = 0;
    has_grown(oar_module_buffer(norm, 2), &mean);
    oar_tape_destroy(tape);
    oar_module_release(norm);
    oar_scaler_destroy(scaler);
    oar_optim_destroy(adam);
    oar_tensor_release(x);
    oar_tensor_release(home);
    oar_tensor_release(leaf);
}

/* ---- absence ------------------------------------------------------------- */

static void errors_say_why_the_data_is_away(void **state)
{
    oar_tensor *t = leaf_of(3), *y;
    oar_storage *s = oar_tensor_storage(t);
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    y = oar_sum(tape, oar_mul(tape, t, t));
    OK(oar_storage_detach(s));
    assert_fails_with(oar_tensor_fill(t, 1), OAR_E_STATE,
                      "a tensor [3] whose storage is detached");
    oar_storage_explain_absence(s, "whose numbers other ranks hold");
    assert_fails_with(oar_tensor_fill(t, 1), OAR_E_STATE,
                      "a tensor [3] whose numbers other ranks hold");
    assert_null(oar_add(tape, t, t));
    assert_last_error_has("a tensor [3] whose numbers other ranks hold");
    assert_fails_with(oar_backward(tape, y), OAR_E_STATE,
                      "a tensor [3] whose numbers other ranks hold");
    OK(oar_storage_attach(s, NULL, NULL, NULL));
    OK(oar_tensor_fill(t, 1));
    OK(oar_storage_detach(s)); /* the text stays */
    assert_fails_with(oar_tensor_fill(t, 1), OAR_E_STATE, "other ranks");
    oar_storage_explain_absence(s, NULL);
    assert_fails_with(oar_tensor_fill(t, 1), OAR_E_STATE, "is detached");
    oar_storage_explain_absence(NULL, "nothing");
    oar_tape_destroy(tape);
    oar_tensor_release(t);
}

static void memory_of_a_tape_that_is_used_again_has_no_explanation(void **state)
{
    oar_tensor *x = oar_ones(NULL, OAR_F32, OAR_SHAPE(100)), *y;
    const oar_storage *first;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    y = oar_scale(tape, x, 2);
    first = oar_tensor_storage(y);
    oar_storage_explain_absence(oar_tensor_storage(y), "that was explained");
    oar_tape_reset(tape);
    y = oar_scale(tape, x, 2);
    assert_ptr_equal(oar_tensor_storage(y), first);
    OK(oar_storage_detach(oar_tensor_storage(y)));
    assert_fails_with(oar_tensor_fill(y, 1), OAR_E_STATE, "is detached");
    oar_tape_destroy(tape);
    oar_tensor_release(x);
}

static void nothing_is_asked_of_null(void **state)
{
    oar_clear_error();
    assert_int_equal(oar_storage_detach(NULL), OAR_E_ARG);
    assert_int_equal(oar_storage_attach(NULL, NULL, NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_storage_attach_read_only(NULL, "", NULL, NULL),
                     OAR_E_ARG);
    assert_int_equal(oar_storage_create(1, 0, NULL), OAR_E_ARG);
    assert_int_equal(oar_storage_create_detached(1, 0, NULL), OAR_E_ARG);
    assert_int_equal(oar_storage_bytes(NULL), 0);
    assert_null(oar_storage_data(NULL));
    assert_null(oar_storage_retain(NULL));
    oar_storage_release(NULL);
}

static void a_failed_allocation_leaves_nothing_behind(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_storage *s = NULL;

    for (int n = 1; n <= 2; n++) {
        oar_memory_fail_after((uint64_t)n);
        assert_int_equal(oar_storage_create(64, 0, &s), OAR_E_NOMEM);
        assert_null(s);
        assert_int_equal(leak_check_begin().live, before);
    }
    oar_memory_fail_after(1);
    assert_int_equal(oar_storage_create_detached(64, 0, &s), OAR_E_NOMEM);
    assert_null(s);
    OK(oar_storage_create(64, 0, &s));
    OK(oar_storage_detach(s));
    oar_memory_fail_after(1);
    assert_int_equal(oar_storage_attach(s, NULL, NULL, NULL), OAR_E_NOMEM);
    assert_null(oar_storage_data(s));
    OK(oar_storage_attach(s, NULL, NULL, NULL));
    oar_storage_release(s);
    oar_memory_fail_after(0);
    assert_int_equal(leak_check_begin().live, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fresh_storage_is_aligned_and_counted),
        cmocka_unit_test(shared_storage_is_ordinary_memory_to_its_owner),
        cmocka_unit_test(views_stay_while_the_data_is_away),
        cmocka_unit_test(attached_data_is_dropped_exactly_once),
        cmocka_unit_test(a_storage_can_be_made_without_memory),
        cmocka_unit_test(memory_attached_to_be_read_is_not_written),
        cmocka_unit_test(backward_writes_no_gradient_to_read_only_memory),
        cmocka_unit_test(no_optimizer_writes_to_read_only_memory),
        cmocka_unit_test(a_batch_norm_counts_in_no_read_only_memory),
        cmocka_unit_test(every_call_that_writes_is_counted),
        cmocka_unit_test(training_counts_as_writing),
        cmocka_unit_test(errors_say_why_the_data_is_away),
        cmocka_unit_test(
            memory_of_a_tape_that_is_used_again_has_no_explanation),
        cmocka_unit_test(nothing_is_asked_of_null),
        cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
