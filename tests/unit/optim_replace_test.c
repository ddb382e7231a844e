/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer whose parameters are cut again in the middle of a run goes on to
 * the bit; what it refuses; the function that runs after a step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/optim.h>
#include <oarsong/tensor.h>

#include "support/last_error.h"
#include "support/leak_check.h"

enum { COUNT = 37, CUT = 11, STEPS = 6, SLOTS = 4 };

static void write_grad(oar_tensor *param, int step, int64_t first)
{
    double grad[COUNT];
    int64_t count = oar_tensor_count(param);
    oar_tensor *home =
        oar_zeros(NULL, oar_tensor_dtype(param), oar_tensor_shape(param));

    for (int64_t i = 0; i < count; i++)
        grad[i] = (double)((first + i) * 7 % 13 - 6) / (step + 1);
    OK(oar_tensor_write(home, OAR_F64, grad));
    oar_tensor_clear_grad(param);
    OK(oar_tensor_bind_grad(param, home));
    OK(oar_tensor_mark_grad(param));
    oar_tensor_release(home);
}

/* Returns elements first .. first+count-1 as a tensor of their own. */
static oar_tensor *copy_part(const oar_tensor *from, int64_t first,
                             int64_t count)
{
    size_t size = oar_dtype_size(oar_tensor_dtype(from));
    const unsigned char *data = oar_tensor_const_data(from);

    return oar_from_data(NULL, oar_tensor_dtype(from), OAR_SHAPE(count),
                         data + (size_t)first * size);
}

static oar_tensor *make_param(oar_dtype dtype)
{
    oar_tensor *p = oar_uniform(NULL, dtype, OAR_SHAPE(COUNT), 3, -1, 1);

    OK(oar_tensor_require_grad(p, 1));
    return p;
}

static oar_optim *make_adam(oar_tensor *param, int masters)
{
    oar_optim *adam;

    OK(oar_adamw_create_over(
        1, &param,
        OAR_OPTS(oar_adam_opts, .amsgrad = 1, .master_weights = masters),
        &adam));
    return adam;
}

static oar_optim_entry cut_entry(oar_optim *adam, int64_t first, int64_t count)
{
    oar_optim_entry e = { .steps = oar_optim_param_steps(adam, 0) };

    e.param = copy_part(oar_optim_param(adam, 0), first, count);
    OK(oar_tensor_require_grad(e.param, 1));
    for (int k = 0; k < SLOTS; k++)
        if (oar_optim_state(adam, 0, k) != NULL)
            e.state[k] = copy_part(oar_optim_state(adam, 0, k), first, count);
    return e;
}

static void drop_entry(oar_optim_entry *e)
{
    oar_tensor_release(e->param);
    for (int k = 0; k < SLOTS; k++)
        oar_tensor_release(e->state[k]);
}

/* Puts two pieces of its parameter in the place of it. */
static void cut_params(oar_optim *adam)
{
    oar_optim_entry e[2] = { cut_entry(adam, 0, CUT),
                             cut_entry(adam, CUT, COUNT - CUT) };

    OK(oar_optim_replace(adam, 2, e));
    drop_entry(&e[0]);
    drop_entry(&e[1]);
}

static void run_cut(oar_dtype dtype)
{
    oar_tensor *whole = make_param(dtype), *other = make_param(dtype);
    oar_optim *a = make_adam(whole, 1), *b = make_adam(other, 1);
    size_t size = oar_dtype_size(dtype);

    for (int step = 0; step < STEPS; step++) {
        if (step == 2)
            cut_params(b);
        write_grad(whole, step, 0);
        write_grad(oar_optim_param(b, 0), step, 0);
        if (oar_optim_params(b) == 2)
            write_grad(oar_optim_param(b, 1), step, CUT);
        OK(oar_optim_step(a));
        OK(oar_optim_step(b));
    }
    assert_int_equal(oar_optim_steps(b), STEPS);
    assert_int_equal(oar_optim_param_steps(b, 1), STEPS);
    assert_memory_equal(oar_tensor_const_data(whole),
                        oar_tensor_const_data(oar_optim_param(b, 0)),
                        CUT * size);
    assert_memory_equal(
        (const unsigned char *)oar_tensor_const_data(whole) + CUT * size,
        oar_tensor_const_data(oar_optim_param(b, 1)), (COUNT - CUT) * size);
    oar_optim_destroy(a);
    oar_optim_destroy(b);
    oar_tensor_release(whole);
    oar_tensor_release(other);
}

static void pieces_go_on_where_the_whole_was(void **state)
{
    leak_check before = leak_check_begin();

    run_cut(OAR_F32);
    run_cut(OAR_F64);
    run_cut(OAR_BF16); /* with masters */
    leak_check_end(&before);
}

/* ---- refusals ------------------------------------------------------------ */

static void what_does_not_fit_is_refused(void **state)
{
    oar_tensor *param = make_param(OAR_F32);
    oar_optim *adam = make_adam(param, 0);
    oar_optim_entry e = cut_entry(adam, 0, CUT), twice[2];
    oar_optim_entry bad = e;

    bad.group = 1;
    assert_fails_with(oar_optim_replace(adam, 1, &bad), OAR_E_ARG,
                      "is in group 1 of 1");
    bad = e;
    bad.steps = -1;
    assert_fails_with(oar_optim_replace(adam, 1, &bad), OAR_E_ARG, "-1");
    bad = e;
    bad.state[2] = NULL;
    assert_fails_with(oar_optim_replace(adam, 1, &bad), OAR_E_ARG,
                      "has no state 2");
    bad = e;
    bad.state[0] = oar_optim_state(adam, 0, 0);
    assert_fails_with(oar_optim_replace(adam, 1, &bad), OAR_E_SHAPE, "[37]");
    bad.state[0] = oar_zeros(NULL, OAR_F64, OAR_SHAPE(CUT));
    assert_fails_with(oar_optim_replace(adam, 1, &bad), OAR_E_DTYPE, "f64");
    oar_tensor_release(bad.state[0]);
    twice[0] = twice[1] = e;
    assert_fails_with(oar_optim_replace(adam, 2, twice), OAR_E_ARG,
                      "0 and 1 are one tensor");
    bad = e;
    bad.param = e.state[0];
    assert_fails_with(oar_optim_replace(adam, 1, &bad), OAR_E_ARG,
                      "requires no gradient");
    assert_int_equal(oar_optim_replace(NULL, 1, &e), OAR_E_ARG);
    assert_ptr_equal(oar_optim_param(adam, 0), param); /* nothing has changed */
    OK(oar_optim_replace(adam, 0, NULL));
    assert_int_equal(oar_optim_params(adam), 0);
    drop_entry(&e);
    oar_optim_destroy(adam);
    oar_tensor_release(param);
}

static oar_status cut_once(void *arg)
{
    oar_optim *adam = arg;
    int count = oar_optim_params(adam);
    oar_optim_entry same[8] = { { 0 } };

    for (int i = 0; i < 8; i++) { /* more than there is room for */
        same[i].param = oar_uniform(NULL, OAR_F32, OAR_SHAPE(3), 1, -1, 1);
        if (same[i].param == NULL ||
            oar_tensor_require_grad(same[i].param, 1) != OAR_OK)
            break;
    }
    if (same[7].param != NULL && oar_optim_replace(adam, 8, same) == OAR_OK)
        count = 8;
    for (int i = 0; i < 8; i++)
        oar_tensor_release(same[i].param);
    if (count != 8)
        return OAR_E_NOMEM;
    return oar_optim_replace(adam, 0, NULL);
}

static void without_memory_nothing_changes(void **state)
{
    oar_tensor *param = make_param(OAR_F32);
    oar_optim *sgd;

    OK(oar_sgd_create_over(1, &param, NULL, &sgd));
    fail_each_allocation(cut_once, sgd);
    oar_optim_destroy(sgd);
    oar_tensor_release(param);
}

/* ---- after a step -------------------------------------------------------- */

static void note_number(oar_optim *optim, void *arg)
{
    *(double *)arg =
        *(const double *)oar_tensor_const_data(oar_optim_param(optim, 0));
}

static void a_function_runs_after_a_step(void **state)
{
    oar_tensor *param = make_param(OAR_F64);
    oar_optim *adam = make_adam(param, 0);
    oar_hook *hook;
    double seen = 0, last;

    OK(oar_optim_after_step(adam, note_number, &seen, &hook));
    write_grad(param, 0, 0);
    OK(oar_optim_step(adam));
    last = *(const double *)oar_tensor_const_data(param);
    assert_true(seen == last);
    oar_hook_remove(hook);
    write_grad(param, 1, 0);
    OK(oar_optim_step(adam));
    assert_true(seen == last);
    assert_true(seen != *(const double *)oar_tensor_const_data(param));
    assert_int_equal(oar_optim_after_step(NULL, note_number, NULL, NULL),
                     OAR_E_ARG);
    oar_optim_destroy(adam);
    oar_tensor_release(param);
}

/* ---- parts of a step ----------------------------------------------------- */

enum { LONG = 2 * OAR_OPTIM_CHUNK + 5 };

typedef struct move_log {
    int calls;
    int64_t first[8], count[8];
} move_log;

static void note_move(oar_optim *optim, int index, int64_t first, int64_t count,
                      void *arg)
{
    move_log *log = arg;

    assert_int_equal(index, 0);
    log->first[log->calls] = first;
    log->count[log->calls++] = count;
}

static oar_tensor *make_long(oar_dtype dtype, oar_tensor **grad)
{
    oar_tensor *p = oar_uniform(NULL, dtype, OAR_SHAPE(LONG), 3, -1, 1);

    OK(oar_tensor_require_grad(p, 1));
    *grad = oar_uniform(NULL, dtype, OAR_SHAPE(LONG), 4, -1, 1);
    OK(oar_tensor_bind_grad(p, *grad));
    OK(oar_tensor_mark_grad(p));
    return p;
}

/* A step at once, one in chunks, and one by parts have the same bits. */
static void step_in_parts(oar_dtype dtype)
{
    oar_tensor *param[3], *grad[3];
    oar_optim *adam[3];
    size_t size = oar_dtype_size(dtype);
    move_log log = { 0 };

    for (int i = 0; i < 3; i++) {
        param[i] = make_long(dtype, &grad[i]);
        adam[i] = make_adam(param[i], 1);
    }
    OK(oar_optim_on_move(adam[1], note_move, &log, NULL));
    OK(oar_optim_step(adam[0]));
    OK(oar_optim_step(adam[1]));
    for (int64_t first = 0; first < LONG; first += 1000) {
        int64_t n = LONG - first < 1000 ? LONG - first : 1000;
        unsigned char *g = oar_tensor_data(grad[2]);

        OK(oar_optim_move(
            adam[2], 0, first,
            oar_span_of(g + (size_t)first * size, (size_t)n, dtype)));
    }
    assert_int_equal(oar_optim_steps(adam[2]), 0);
    assert_int_equal(log.calls, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(log.first[i], i * OAR_OPTIM_CHUNK);
        assert_int_equal(log.count[i], i < 2 ? OAR_OPTIM_CHUNK : 5);
    }
    for (int i = 1; i < 3; i++)
        assert_memory_equal(oar_tensor_const_data(param[0]),
                            oar_tensor_const_data(param[i]), LONG * size);
    for (int i = 0; i < 3; i++) {
        oar_optim_destroy(adam[i]);
        oar_tensor_release(param[i]);
        oar_tensor_release(grad[i]);
    }
}

static void a_step_in_parts_has_the_same_bits(void **state)
{
    step_in_parts(OAR_F32);
    step_in_parts(OAR_F64);
    step_in_parts(OAR_F16);
}

static void parts_that_are_not_there_are_refused(void **state)
{
    oar_tensor *param = make_param(OAR_F32);
    oar_optim *adam = make_adam(param, 0);
    double number[COUNT] = { 0 };

    assert_fails_with(
        oar_optim_move(adam, 1, 0, oar_span_of(number, 1, OAR_F32)), OAR_E_ARG,
        "parameter 1 of 1");
    assert_fails_with(
        oar_optim_move(adam, 0, 30, oar_span_of(number, 8, OAR_F32)), OAR_E_ARG,
        "8 elements from 30 on, of 37");
    assert_fails_with(
        oar_optim_move(adam, 0, 0, oar_span_of(number, 3, OAR_F64)),
        OAR_E_DTYPE, "f64");
    OK(oar_optim_move(adam, 0, COUNT, oar_span_of(NULL, 0, OAR_F32)));
    assert_int_equal(oar_optim_on_move(NULL, note_move, NULL, NULL), OAR_E_ARG);
    oar_optim_destroy(adam);
    oar_tensor_release(param);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_go_on_where_the_whole_was),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(without_memory_nothing_changes),
        cmocka_unit_test(a_function_runs_after_a_step),
        cmocka_unit_test(a_step_in_parts_has_the_same_bits),
        cmocka_unit_test(parts_that_are_not_there_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
