/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules: against PyTorch's schedulers and against their formulas. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/optim.h>

#include "golden/golden.h"

#define SCHEDULE(...) OAR_OPTS(oar_lr_schedule, __VA_ARGS__)

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12))
        fail_msg("%.17g is not %.17g", got, want);
}

static void like_torch(const char *name, const oar_lr_schedule *schedule)
{
    const golden *want = golden_get("schedule", name);

    assert_int_equal(want->count, 16);
    for (int i = 0; i < 16; i++)
        near(oar_lr_schedule_at(schedule, i), want->number[i]);
}

static void all_kinds_agree_with_pytorch(void **state)
{
    like_torch("linear",
               SCHEDULE(.kind = OAR_LR_LINEAR, .steps = 15, .final = 0.2));
    like_torch("cosine",
               SCHEDULE(.kind = OAR_LR_COSINE, .steps = 15, .final = 0.1));
    like_torch("step", SCHEDULE(.kind = OAR_LR_STEP, .every = 4, .final = 0.3));
}

static void every_kind_rises_from_zero_first(void **state)
{
    for (int kind = OAR_LR_CONSTANT; kind <= OAR_LR_STEP; kind++) {
        const oar_lr_schedule *s =
            SCHEDULE(.kind = (oar_lr_schedule_kind)kind, .warmup = 5,
                     .steps = 20, .every = 3, .final = 0.5);

        for (int i = 0; i <= 5; i++)
            near(oar_lr_schedule_at(s, i), i / 5.0);
    }
}

static void after_the_rise_the_rest_of_the_steps_count(void **state)
{
    const oar_lr_schedule *linear =
        SCHEDULE(.kind = OAR_LR_LINEAR, .warmup = 10, .steps = 110);
    const oar_lr_schedule *cosine =
        SCHEDULE(.kind = OAR_LR_COSINE, .warmup = 10, .steps = 110,
                 .final = 0.1);

    near(oar_lr_schedule_at(linear, 60), 0.5);
    near(oar_lr_schedule_at(linear, 110), 0);
    near(oar_lr_schedule_at(cosine, 60), 0.55);
    near(oar_lr_schedule_at(cosine, 35), 0.1 + 0.9 * (1 + sqrt(0.5)) / 2);
    near(oar_lr_schedule_at(cosine, 110), 0.1);
}

static void after_the_last_step_the_factor_stays(void **state)
{
    const oar_lr_schedule *linear =
        SCHEDULE(.kind = OAR_LR_LINEAR, .steps = 7, .final = 0.3);
    const oar_lr_schedule *step =
        SCHEDULE(.kind = OAR_LR_STEP, .steps = 7, .every = 3, .final = 0.5);

    near(oar_lr_schedule_at(linear, 8), 0.3);
    near(oar_lr_schedule_at(linear, INT64_MAX), 0.3);
    near(oar_lr_schedule_at(step, 6), 0.25);
    near(oar_lr_schedule_at(step, 1000), 0.25);
}

static void a_constant_schedule_is_one_without_end(void **state)
{
    near(oar_lr_schedule_at(NULL, 0), 1);
    near(oar_lr_schedule_at(SCHEDULE(.kind = OAR_LR_CONSTANT), INT64_MAX), 1);
}

static void a_malformed_schedule_is_not_a_number(void **state)
{
    assert_true(isnan(oar_lr_schedule_at(NULL, -1)));
    assert_true(isnan(oar_lr_schedule_at(SCHEDULE(.kind = OAR_LR_LINEAR), 0)));
    assert_true(isnan(oar_lr_schedule_at(
        SCHEDULE(.kind = OAR_LR_COSINE, .warmup = 5, .steps = 5), 0)));
    assert_true(isnan(oar_lr_schedule_at(SCHEDULE(.kind = OAR_LR_STEP), 0)));
    assert_true(isnan(oar_lr_schedule_at(SCHEDULE(.warmup = -1), 0)));
    assert_true(isnan(oar_lr_schedule_at(SCHEDULE(.final = -1), 0)));
    assert_true(isnan(oar_lr_schedule_at(SCHEDULE(.final = INFINITY), 0)));
    assert_true(isnan(oar_lr_schedule_at(SCHEDULE(.final = NAN), 0)));
    assert_true(isnan(
        oar_lr_schedule_at(SCHEDULE(.kind = (oar_lr_schedule_kind)9), 0)));
    assert_true(isnan(oar_lr_schedule_at(&(oar_lr_schedule){ 0 }, 0)));
}

static int open_records(void **state)
{
    return golden_load("optim");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_agree_with_pytorch),
        cmocka_unit_test(every_kind_rises_from_zero_first),
        cmocka_unit_test(after_the_rise_the_rest_of_the_steps_count),
        cmocka_unit_test(after_the_last_step_the_factor_stays),
        cmocka_unit_test(a_constant_schedule_is_one_without_end),
        cmocka_unit_test(a_malformed_schedule_is_not_a_number),
    };

    return cmocka_run_group_tests(tests, open_records, golden_close);
}
