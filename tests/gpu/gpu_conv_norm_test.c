/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions, adaptive pools and group norm on a GPU: against PyTorch,
 * against differences, in halves, and cut into pieces. */
#include "gpu_cases.h"

#include "tensor/cuda/cuda_windows.h"
#include "unit/conv_norm_cases.h"

GPU_TEST(operations_agree_with_pytorch)
{
    RANK_ZERO(golden_load("layers"));
    RANK_ZERO(gpu_goldens(goldens, GOLDENS));
    return golden_close(NULL);
}

GPU_TEST(gradients_agree_with_differences)
{
    return gpu_slopes_of(checks, CHECKS);
}

/* Some images at a time, and some rows of an image: 300 bytes are less than the
 * columns of a row of most of them. */
GPU_TEST(pieces_of_convolutions_add_up)
{
    RANK_ZERO(golden_load("layers"));
    for (int64_t bytes = 300; bytes <= 4800; bytes *= 4) {
        oari_cuda_set_column_bytes(bytes);
        for (int i = 0; i < GOLDENS; i++)
            if (strncmp(goldens[i].name, "conv", 4) == 0) {
                RANK_ZERO(gpu_golden(&goldens[i], OAR_F32, 0));
                RANK_ZERO(gpu_agrees(&goldens[i], OAR_BF16));
            }
    }
    return golden_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(pieces_of_convolutions_add_up),
    };

    setenv("STANDIN_DELAY_US", "0", 0); /* order is other tests' */
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
