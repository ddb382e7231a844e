/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of ops_cases.h without memory: whichever allocation fails, it
 * says so and leaves nothing behind. With memory, a second step like the first
 * allocates nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/memory.h>

#include "unit/ops_cases.h"
#include "support/leak_check.h"

enum { TOO_MANY = 200 };

/* Runs the case forward and backward; the status of the whole. */
static oar_status run_step(const op_case *c, oar_tape *tape, const leaves *l)
{
    oar_tensor *out;

    oar_clear_error();
    out = run_case(c, tape, l);
    if (out == NULL)
        return oar_last_error()->status;
    return oar_backward_from(tape, 1, &out, NULL);
}

static int fails_at(const op_case *c, oar_dtype dtype, int spread, uint64_t n)
{
    leaves l = leaves_of(c->name, dtype, spread);
    oar_status status;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    oar_memory_fail_after(n);
    status = run_step(c, tape, &l);
    oar_memory_fail_after(0);
    if (status != OAR_OK && status != OAR_E_NOMEM)
        fail_msg("%s without allocation %d: %s", c->name, (int)n,
                 oar_last_error_text());
    release_leaves(&l);
    oar_tape_destroy(tape);
    return status != OAR_OK;
}

static void fail_each(const op_case *c, oar_dtype dtype, int spread)
{
    uint64_t n = 1, live = memory_now().live;

    while (fails_at(c, dtype, spread, n))
        if (++n > TOO_MANY)
            fail_msg("%s never succeeds", c->name);
    assert_true(n > 1);
    if (memory_now().live != live)
        fail_msg("%s leaves %d allocations behind", c->name,
                 (int)(memory_now().live - live));
}

static void every_allocation_may_fail(void **state)
{
    for (int i = 0; i < OP_CASES; i++) {
        fail_each(&op_cases[i], OAR_F32, 0);
        fail_each(&op_cases[i], OAR_F32, 1);
        fail_each(&op_cases[i], OAR_BF16, 1);
    }
}

/* Cases of several operations need a tape to own what lies between. */
static int is_single(const op_case *c)
{
    static const char *const several[] = {
        "slice_cut",     "contiguous",   "split",        "chunk",
        "where",         "where_wide",   "masked_fill",  "topk",
        "matmul_turned", "matmul_heads", "where_scalar", "where_scalar_wide"
    };

    for (size_t i = 0; i < sizeof several / sizeof *several; i++)
        if (strcmp(several[i], c->name) == 0)
            return 0;
    return 1;
}

static void without_a_tape_every_allocation_may_fail(void **state)
{
    for (int i = 0; i < OP_CASES; i++) {
        leaves l = leaves_of(op_cases[i].name, OAR_F16, 0);
        uint64_t live = memory_now().live;
        oar_tensor *out = NULL;

        for (uint64_t n = 1; out == NULL && is_single(&op_cases[i]); n++) {
            oar_memory_fail_after(n);
            out = op_cases[i].fn(NULL, l.leaf);
            oar_memory_fail_after(0);
            assert_true(n < TOO_MANY);
        }
        oar_tensor_release(out);
        assert_int_equal(memory_now().live, live);
        release_leaves(&l);
    }
}

static void pieces_are_given_back_when_one_fails(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 7)), *part[3];
    uint64_t live = memory_now().live, n = 1;

    for (; oar_memory_fail_after(n), oar_chunk(NULL, a, 1, 3, part) != OAR_OK;
         n++)
        assert_int_equal(memory_now().live, live);
    assert_int_equal(n, 4);
    for (int i = 0; i < 3; i++)
        oar_tensor_release(part[i]);
    oar_memory_fail_after(0);
    for (n = 1; oar_memory_fail_after(n),
        oar_topk(NULL, a, 2, &part[0], &part[1]) != OAR_OK;
         n++)
        assert_int_equal(memory_now().live, live);
    oar_memory_fail_after(0);
    oar_tensor_release(part[0]);
    oar_tensor_release(part[1]);
    oar_tensor_release(a);
}

static void a_second_step_allocates_nothing(void **state)
{
    for (int i = 0; i < OP_CASES; i++) {
        leaves l = leaves_of(op_cases[i].name, OAR_F32, 1);
        uint64_t before = 0;
        oar_tape *tape;

        OK(oar_tape_create(&tape));
        for (int s = 0; s < 4; s++) {
            if (s == 1)
                before = memory_now().allocations;
            OK(run_step(&op_cases[i], tape, &l));
            oar_tape_reset(tape);
        }
        if (memory_now().allocations != before)
            fail_msg("%s: a step allocates %d times", op_cases[i].name,
                     (int)(memory_now().allocations - before) / 2);
        release_leaves(&l);
        oar_tape_destroy(tape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(without_a_tape_every_allocation_may_fail),
        cmocka_unit_test(pieces_are_given_back_when_one_fails),
        cmocka_unit_test(a_second_step_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, load_ops, golden_close);
}
