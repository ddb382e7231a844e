/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with masks that want a gradient, dropout and fewer heads of k and
 * v, and embeddings with padding, on a GPU: against PyTorch, against
 * differences, and in halves. */
#include "gpu_cases.h"

#include "unit/transformer_cases.h"

GPU_TEST(operations_agree_with_pytorch)
{
    RANK_ZERO(golden_load("transformer"));
    RANK_ZERO(gpu_goldens(transformer_cases, TRANSFORMER_CASES));
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
