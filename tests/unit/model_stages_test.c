/* SPDX-License-Identifier: Apache-2.0 */
/* Stages of models for a pipeline: whatever the cuts, they have the names, the
 * initial values, the dropout, the results and the gradients of the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/models.h>
#include <oarsong/schedule.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"

enum { ROWS = 3, TIME = 5, WORDS = 11, LAYERS = 5, PARTS = LAYERS + 2 };

static oar_gpt_opts some_gpt(int tied, int rotary)
{
    return *OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS, .context = 8,
                     .width = 12, .layers = LAYERS, .heads = 3, .seed = 3,
                     .tied = tied, .rotary = rotary, .dropout = 0.2,
                     .attention_dropout = rotary ? 0 : 0.3);
}

/* Stage i has count[i] parts. Returns how many stages there are. */
static int make_stages(const oar_gpt_opts *o, const int *count,
                       oar_module *stage[PARTS])
{
    int first = 0, stages = 0;

    for (; first < PARTS; first += count[stages++])
        OK(oar_gpt_stage_create(o, first, count[stages], &stage[stages]));
    return stages;
}

static void assert_same_bytes(const oar_tensor *a, const oar_tensor *b,
                              const char *name)
{
    if (a == NULL || b == NULL || oar_tensor_count(a) != oar_tensor_count(b) ||
        memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
               (size_t)oar_tensor_count(a) * sizeof(float)) != 0)
        fail_msg("%s differs", name);
}

/* Finds every parameter and counter of the stages in the whole, with the same
 * value, and all of the whole in some stage. */
static void assert_union(const oar_module *whole, int stages,
                         oar_module *const *stage, int tied)
{
    int params = 0, counters = 0;
    char name[64];

    for (int s = 0; s < stages; s++) {
        for (int i = 0; i < oar_module_params(stage[s]); i++, params++) {
            OK(oar_module_param_name(stage[s], i, name, sizeof name));
            assert_same_bytes(oar_module_param(stage[s], i),
                              oar_module_find(whole, name), name);
        }
        for (int i = 0; i < oar_module_counters(stage[s]); i++, counters++) {
            OK(oar_module_counter_name(stage[s], i, name, sizeof name));
            assert_non_null(oar_module_find_counter(whole, name));
            assert_true(*oar_module_find_counter(whole, name) ==
                        *oar_module_counter(stage[s], i));
        }
    }
    assert_int_equal(params, oar_module_params(whole) + tied);
    assert_int_equal(counters, oar_module_counters(whole));
}

/* Runs forward through all stages, on one tape, and backward; the gradients are
 * in the parameters. Reads the logits. */
static void run(oar_tape *tape, int stages, oar_module *const *stage,
                uint64_t seed, float logits[ROWS * TIME * WORDS])
{
    oar_tensor *x =
        oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, TIME), seed, 0, WORDS);
    oar_tensor *y =
        oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS * TIME), seed + 50, 0, WORDS);

    for (int s = 0; s < stages; s++)
        x = oar_forward(tape, stage[s], x);
    OK(oar_tensor_read(x, OAR_F32, logits));
    OK(oar_backward(tape, oar_cross_entropy(tape, x, y)));
    oar_tape_reset(tape);
}

static void compare_with_whole(const oar_gpt_opts *o, const int *count)
{
    oar_module *whole, *stage[PARTS];
    float logits[2][ROWS * TIME * WORDS];
    oar_tape *tape;
    int stages = make_stages(o, count, stage), tied = o->tied && stages > 1;

    OK(oar_gpt_create(o, &whole));
    assert_union(whole, stages, stage, tied);
    OK(oar_tape_create(&tape));
    for (uint64_t pass = 0; pass < 2; pass++) { /* the second drops others */
        run(tape, 1, &whole, pass, logits[0]);
        run(tape, stages, stage, pass, logits[1]);
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    }
    assert_union(whole, stages, stage, tied);
    for (int s = 0; s < stages; s++) {
        for (int i = 0; i < oar_module_params(stage[s]); i++) {
            char name[64];

            OK(oar_module_param_name(stage[s], i, name, sizeof name));
            if (!tied || strcmp(name, "tok.weight") != 0)
                assert_same_bytes(
                    oar_tensor_grad(oar_module_param(stage[s], i)),
                    oar_tensor_grad(oar_module_find(whole, name)), name);
        }
        oar_module_release(stage[s]);
    }
    oar_tape_destroy(tape);
    oar_module_release(whole);
}

static void stages_of_a_gpt_are_the_gpt(void **state)
{
    static const int cut[][PARTS] = {
        { 7 }, { 3, 4 }, { 1, 5, 1 }, { 2, 2, 2, 1 }, { 1, 1, 1, 1, 1, 1, 1 },
    };
    leak_check before = leak_check_begin();

    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        for (int kind = 0; kind < 4; kind++) {
            oar_gpt_opts o = some_gpt(kind & 1, kind >> 1);

            compare_with_whole(&o, cut[i]);
        }
    leak_check_end(&before);
}

/* Whether both are tables whose first numbers differ by a factor at most. */
static int has_same_signs(const oar_tensor *a, const oar_tensor *b)
{
    const float *x = oar_tensor_const_data(a), *y = oar_tensor_const_data(b);
    int same = 0;

    if (oar_tensor_shape(a).ndim != 2 || oar_tensor_shape(b).ndim != 2)
        return 0;
    while (same < 64 && (x[same] < 0) == (y[same] < 0))
        same++;
    return same == 64;
}

/* Every table and every dropout has random numbers of its own. */
static void no_two_layers_have_the_same_seed(void **state)
{
    for (int rotary = 0; rotary < 2; rotary++) {
        oar_gpt_opts o = some_gpt(0, rotary);
        oar_module *whole;

        o.attention_dropout = 0.3;
        OK(oar_gpt_create(&o, &whole));
        for (int i = 0; i < oar_module_counters(whole); i++)
            for (int k = 0; k < i; k++)
                assert_true(*oar_module_counter(whole, i) !=
                            *oar_module_counter(whole, k));
        for (int i = 0; i < oar_module_params(whole); i++)
            for (int k = 0; k < i; k++)
                assert_false(has_same_signs(oar_module_param(whole, i),
                                            oar_module_param(whole, k)));
        oar_module_release(whole);
    }
}

/* One table for both ends of a tied model, where they are in one process. */
static void both_ends_of_a_tied_gpt_can_share_the_table(void **state)
{
    oar_gpt_opts o = some_gpt(1, 0);
    oar_module *whole, *stage[PARTS];
    int stages = make_stages(&o, (int[]){ 3, 4 }, stage);
    oar_tensor *table = oar_module_find(stage[0], "tok.weight");
    float logits[ROWS * TIME * WORDS];
    oar_tape *tape;

    OK(oar_gpt_create(&o, &whole));
    OK(oar_tape_create(&tape));
    OK(oar_module_replace_param(stage[1], "tok.weight",
                                oar_tensor_retain(table)));
    run(tape, 1, &whole, 7, logits);
    run(tape, stages, stage, 7, logits);
    assert_same_bytes(oar_tensor_grad(table),
                      oar_tensor_grad(oar_module_find(whole, "tok.weight")),
                      "the table's gradient");
    oar_tape_destroy(tape);
    for (int s = 0; s < stages; s++)
        oar_module_release(stage[s]);
    oar_module_release(whole);
}

static void parts_that_a_gpt_has_not_are_refused(void **state)
{
    static const int wrong[][2] = {
        { -1, 2 },    { 0, 0 },     { 0, -1 },        { 0, PARTS + 1 },
        { PARTS, 1 }, { 3, PARTS }, { INT32_MAX, 1 }, { 1, INT32_MAX },
    };
    oar_gpt_opts o = some_gpt(0, 0);
    oar_module *stage = NULL;
    oar_tensor *x;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails_with(
            oar_gpt_stage_create(&o, wrong[i][0], wrong[i][1], &stage),
            OAR_E_ARG, "a gpt of 5 layers has parts 0 to 6");
    assert_null(stage);
    assert_fails_with(oar_gpt_stage_create(&o, 0, 1, NULL), OAR_E_ARG,
                      "nowhere");
    OK(oar_gpt_stage_create(&o, 2, 3, &stage));
    assert_fails_with(oar_gpt_describe(stage, &o), OAR_E_ARG, "gpt_stage");
    x = oar_zeros(NULL, OAR_F32, OAR_SHAPE(ROWS, TIME, 11));
    assert_null(oar_forward(NULL, stage, x));
    assert_fails_with(oar_last_error()->status, OAR_E_SHAPE,
                      "parts 2 to 4 of a gpt");
    oar_tensor_release(x);
    oar_module_release(stage);
}

static void layers_can_be_dealt_by_cost(void **state)
{
    oar_gpt_opts o = some_gpt(0, 0);
    double cost[PARTS] = { 0.1, 1, 1, 1, 1, 1, 3 };
    int count[3];

    OK(oar_schedule_balance(PARTS, cost, 3, count));
    assert_int_equal(count[0] + count[1] + count[2], PARTS);
    assert_int_equal(count[2], 1); /* the head alone */
    compare_with_whole(&o, count);
}

static oar_status make_a_stage(void *arg)
{
    oar_gpt_opts o = some_gpt(1, 0);
    oar_module *stage;
    oar_status status = oar_gpt_stage_create(&o, 4, 3, &stage);

    if (status == OAR_OK)
        oar_module_release(stage);
    return status;
}

static void a_stage_without_memory_leaves_nothing(void **state)
{
    fail_each_allocation(make_a_stage, NULL);
}

/* ---- sequential ---------------------------------------------------------- */

static oar_module *new_linear(uint64_t seed)
{
    oar_module *made;

    OK(oar_linear_create(4, 4, seed, NULL, &made));
    return made;
}

static void stages_of_a_sequential_have_its_names(void **state)
{
    oar_module *child[2] = { new_linear(1), new_linear(2) }, *stage = NULL;
    char name[32];

    OK(oar_sequential_stage_create(3, 2, child, &stage));
    assert_non_null(oar_module_find(stage, "3.weight"));
    OK(oar_module_param_name(stage, 3, name, sizeof name));
    assert_string_equal(name, "4.bias");
    oar_module_release(stage);
    stage = NULL;
    OK(oar_sequential_stage_create(7, 0, NULL, &stage));
    assert_int_equal(oar_module_children(stage), 0);
    oar_module_release(stage);
}

static void a_sequential_takes_children_also_on_failure(void **state)
{
    leak_check before = leak_check_begin();
    oar_module *child = new_linear(1), *stage = NULL;

    assert_fails_with(oar_sequential_stage_create(-1, 1, &child, &stage),
                      OAR_E_ARG, "from -1 on");
    child = new_linear(1);
    assert_fails_with(oar_sequential_stage_create(INT32_MAX, 1, &child, &stage),
                      OAR_E_ARG, "from 2147483647 on");
    child = new_linear(1);
    assert_fails_with(oar_sequential_create(1, &child, NULL), OAR_E_ARG,
                      "nowhere");
    assert_null(stage);
    leak_check_end(&before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_of_a_gpt_are_the_gpt),
        cmocka_unit_test(no_two_layers_have_the_same_seed),
        cmocka_unit_test(both_ends_of_a_tied_gpt_can_share_the_table),
        cmocka_unit_test(parts_that_a_gpt_has_not_are_refused),
        cmocka_unit_test(layers_can_be_dealt_by_cost),
        cmocka_unit_test(a_stage_without_memory_leaves_nothing),
        cmocka_unit_test(stages_of_a_sequential_have_its_names),
        cmocka_unit_test(a_sequential_takes_children_also_on_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
