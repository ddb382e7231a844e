/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels are found once by each call site and started in three dimensions;
 * what is wrong with a start is said. The kernels are those of the stand-in's
 * probe.cu, so on a real GPU there is nothing to run. */
#include "support/gpu.h"

#include "support/last_error.h"

static const oar_device gpu = { OAR_CUDA, 0 };

GPU_TEST(a_grid_has_three_dimensions)
{
    static oari_cuda_kernel_ref ref = { .file = "probe",
                                        .name = "probe_place" };
    oari_cuda_grid grid = { { 3, 2, 5 }, { 4, 3, 2 }, 0 };
    enum { COUNT = 3 * 2 * 5 * 4 * 3 * 2 };
    static unsigned back[COUNT];
    void *memory = NULL, *parameter[] = { &memory };

    RANK_OK(oar_device_alloc(gpu, sizeof back, &memory));
    for (int again = 0; again < 2; again++) {
        RANK_OK(oari_cuda_start(0, &ref, &grid, NULL, parameter));
        RANK_CHECK(ref.entry[0] != NULL);
    }
    RANK_OK(oar_device_copy(back, oar_device_of(OAR_CPU, 0), memory, gpu,
                            sizeof back, NULL));
    RANK_OK(oar_stream_synchronize(gpu, NULL));
    for (unsigned i = 0; i < COUNT; i++)
        RANK_CHECK(back[i] == i * 3 + 1);
    oar_device_free(gpu, memory, NULL);
    return 0;
}

GPU_TEST(a_wrong_start_is_named)
{
    static oari_cuda_kernel_ref place = { .file = "probe",
                                          .name = "probe_place" };
    static oari_cuda_kernel_ref missing = { .file = "probe",
                                            .name = "probe_missing" };
    oari_cuda_grid large = { { 1, 1, 1 }, { 1024, 2, 1 }, 0 };
    oari_cuda_grid greedy = { { 1, 1, 1 }, { 32, 1, 1 }, 300 << 10 };
    void *memory = NULL, *parameter[] = { &memory };

    RANK_CHECK(fails_with(oari_cuda_start(0, &missing, &large, NULL, parameter),
                          OAR_E_GPU, "probe_missing"));
    RANK_CHECK(fails_with(
        oari_cuda_start(0, &place, &large, NULL, parameter), OAR_E_GPU,
        "start probe_place with 1x1x1 blocks of 1024x2x1 threads"));
    RANK_CHECK(fails_with(oari_cuda_start(0, &place, &greedy, NULL, parameter),
                          OAR_E_GPU,
                          "allow probe_place 307200 bytes of dynamic shared"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grid_has_three_dimensions),
        cmocka_unit_test(a_wrong_start_is_named),
    };

    gpu_begin();
    if (gpu_is_real())
        return 0;
    return cmocka_run_group_tests_name("kernel_start", tests, NULL, NULL);
}
