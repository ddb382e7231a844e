/* SPDX-License-Identifier: Apache-2.0 */
/* Training on a GPU as PyTorch does it, number for number: the rules of the
 * optimizers, an MLP, weights of GPT-2 from files, and FSDP. */
#include "support/gpu.h"
#include "support/gpu_ranks.h"

#include "parallel/golden_fsdp.h"
#include "unit/gpt2_cases.h"
#include "unit/mlp_cases.h"
#include "unit/optim_rules_cases.h"

/* ---- one process --------------------------------------------------------- */

GPU_TEST(every_rule_agrees_with_pytorch)
{
    rules_on = gpu_at(0);
    RANK_ZERO(golden_load("optim") + golden_load("adam"));
    for (int i = 0; i < RULES; i++) {
        run_as(rules[i].name, rules[i].make, OAR_F32);
        run_as(rules[i].name, rules[i].make, OAR_F64);
    }
    skip_as(OAR_F32);
    skip_as(OAR_F64);
    schedule_as(OAR_F32);
    schedule_as(OAR_F64);
    return golden_close(NULL);
}

GPU_TEST(ten_steps_agree_with_pytorch)
{
    mlp_on = gpu_at(0);
    RANK_ZERO(golden_load("mlp"));
    for (int i = 0; i < MLP_RUNS; i++) {
        mlp_train(mlp_runs[i].kind, OAR_F32, &mlp_runs[i].opts);
        mlp_train(mlp_runs[i].kind, OAR_F64, &mlp_runs[i].opts);
    }
    return golden_close(NULL);
}

GPU_TEST(logits_of_files_are_those_of_pytorch)
{
    RANK_ZERO(golden_load("gpt2"));
    check_all_logits(gpu_at(0));
    return golden_close(NULL);
}

/* ---- ranks --------------------------------------------------------------- */

static int train_rank(test_job *c, int rank, void *arg)
{
    golden_run *t = arg;
    oar_group *group;

    RANK_ZERO(golden_load("fsdp"));
    RANK_OK(gpu_ranks_open(c, rank, "ipc", &t->device, &group));
    RANK_OK(train_like_torch(group, t));
    oar_group_destroy(group);
    return golden_close(NULL);
}

static void train_on(int ranks, golden_run t)
{
    test_job c;

    test_job_start(&c, ranks, train_rank, &t, "%d ranks, %s, hold %d, stage %d",
                   ranks, t.kind, (int)t.hold, (int)t.stage);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void every_hold_trains_what_fsdp2_trains(void **state)
{
    train_on(2, (golden_run){ .kind = "plain", .hold = OAR_HOLD_MAPPED });
    train_on(2,
             (golden_run){ .kind = "tied", .hold = OAR_HOLD_HOST, .steps = 2 });
    train_on(2, (golden_run){ .kind = "plain",
                              .hold = OAR_HOLD_OWN,
                              .stage = OAR_ZERO_STAGE_2,
                              .steps = 2 });
    train_on(
        3, (golden_run){
               .kind = "tied", .hold = OAR_HOLD_OWN, .uneven = 1, .steps = 2 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_agrees_with_pytorch),
        cmocka_unit_test(ten_steps_agree_with_pytorch),
        cmocka_unit_test(logits_of_files_are_those_of_pytorch),
        cmocka_unit_test(every_hold_trains_what_fsdp2_trains),
    };

    setenv("STANDIN_DELAY_US", "0", 0); /* order is other tests' */
    gpu_begin();
    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
