/* SPDX-License-Identifier: Apache-2.0 */
/* Losses on a GPU with every reduction: against PyTorch, against differences,
 * and in halves. */
#include "gpu_cases.h"

#include "unit/losses_cases.h"

GPU_TEST(losses_agree_with_pytorch)
{
    RANK_ZERO(golden_load("losses"));
    RANK_ZERO(gpu_goldens(cases, LOSS_CASES));
    return golden_close(NULL);
}

GPU_TEST(gradients_agree_with_differences)
{
    return gpu_slopes_of(checks, COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_agree_with_pytorch),
        cmocka_unit_test(gradients_agree_with_differences),
    };

    setenv("STANDIN_DELAY_US", "0", 0); /* order is other tests' */
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
