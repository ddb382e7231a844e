/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of layers on a GPU: against PyTorch, against differences, and
 * in halves. */
#include "gpu_cases.h"

#include "unit/nn_cases.h"
#include "unit/nn_gradcheck_cases.h"

GPU_TEST(operations_agree_with_pytorch)
{
    RANK_ZERO(golden_load("nn"));
    RANK_ZERO(gpu_goldens(nn_cases, NN_CASES));
    return golden_close(NULL);
}

GPU_TEST(gradients_agree_with_differences)
{
    return gpu_slopes_of(checks, CHECKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(gradients_agree_with_differences),
    };

    setenv("STANDIN_DELAY_US", "0", 0); /* order is other tests' */
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
