/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation that GPUs have against PyTorch's numbers, forward and
 * backward, in all four float dtypes and on strided views; its gradients
 * against differences; and a model that is trained on a GPU as on the cpu. */
#include "gpu_cases.h"

#include "unit/gradcheck_cases.h"
#define t transposed /* both files have a function of this name */
#include "unit/ops_cases.h"
#undef t

static const oar_device gpu = { OAR_CUDA, 0 };

/* ---- goldens ------------------------------------------------------------- */

static int check_all(test_job *c, int rank, oar_dtype one, oar_dtype other,
                     int spread)
{
    RANK_ZERO(load_ops(NULL));
    for (int i = 0; i < OP_CASES; i++) {
        golden_case of = { op_cases[i].name, op_cases[i].fn };

        RANK_ZERO(gpu_golden(&of, one, spread));
        RANK_ZERO(gpu_golden(&of, other, spread));
    }
    return golden_close(NULL);
}

GPU_TEST(operations_agree_with_pytorch)
{
    return check_all(c, rank, OAR_F64, OAR_F32, 0);
}

GPU_TEST(strided_views_give_the_same)
{
    return check_all(c, rank, OAR_F64, OAR_F32, 1);
}

GPU_TEST(halves_agree_with_pytorch)
{
    return check_all(c, rank, OAR_F16, OAR_BF16, 0);
}

/* ---- gradients against differences --------------------------------------- */

GPU_TEST(gradients_agree_with_differences)
{
    return gpu_slopes_of(checks, CHECKS);
}

/* ---- training ------------------------------------------------------------ */

enum { ROWS = 12, WIDTH = 9, HIDDEN = 20, STEPS = 10 };

/* One step of a model of two layers by plain gradient descent; the mean of the
 * squares is its loss. */
static int train_step(test_job *c, int rank, oar_tape *tape, oar_tensor *x,
                      oar_tensor *y, oar_tensor *const *param, double *loss)
{
    oar_tensor *h = oar_gelu(tape, oar_linear(tape, x, param[0], param[1]));
    oar_tensor *off = oar_sub(tape, oar_linear(tape, h, param[2], param[3]), y);
    oar_tensor *mean = oar_mean(tape, oar_mul(tape, off, off));

    RANK_CHECK(mean != NULL);
    RANK_OK(oar_backward(tape, mean));
    RANK_OK(oar_tensor_item(mean, loss));
    for (int i = 0; i < 4; i++) {
        oar_tensor *step = oar_scale(NULL, oar_tensor_grad(param[i]), -0.1);
        oar_tensor *moved = oar_add(NULL, param[i], step);

        RANK_CHECK(moved != NULL);
        RANK_OK(oar_tensor_copy(param[i], moved));
        oar_tensor_clear_grad(param[i]);
        oar_tensor_release(moved);
        oar_tensor_release(step);
    }
    oar_tape_reset(tape);
    return 0;
}

/* Numbers that are the same on every device. */
static oar_tensor *numbers_on(oar_device device, oar_shape shape, uint64_t seed)
{
    oar_tensor *host = oar_normal(NULL, OAR_F32, shape, seed, 0, 0.3);
    oar_tensor *there = oar_to(NULL, host, device);

    oar_tensor_release(host);
    return there;
}

static int train(test_job *c, int rank, oar_device device, double *loss)
{
    oar_tensor *x = numbers_on(device, OAR_SHAPE(ROWS, WIDTH), 1);
    oar_tensor *y = numbers_on(device, OAR_SHAPE(ROWS, 3), 2);
    oar_tensor *param[] = { numbers_on(device, OAR_SHAPE(HIDDEN, WIDTH), 3),
                            numbers_on(device, OAR_SHAPE(HIDDEN), 4),
                            numbers_on(device, OAR_SHAPE(3, HIDDEN), 5),
                            numbers_on(device, OAR_SHAPE(3), 6) };
    uint64_t asked = 0;
    oar_device_usage usage = oar_device_usage_init();
    oar_tape *tape;

    RANK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 4; i++)
        RANK_OK(oar_tensor_require_grad(param[i], 1));
    for (int i = 0; i < STEPS; i++) {
        RANK_ZERO(train_step(c, rank, tape, x, y, param, &loss[i]));
        if (device.kind == OAR_CUDA)
            RANK_OK(oar_device_memory(device, &usage));
        RANK_CHECK(i < 2 || usage.from_driver == asked);
        asked = usage.from_driver;
    }
    oar_tape_destroy(tape);
    for (int i = 0; i < 4; i++)
        oar_tensor_release(param[i]);
    oar_tensor_release(y);
    oar_tensor_release(x);
    return 0;
}

GPU_TEST(a_model_is_trained_as_on_the_cpu_and_twice_with_the_same_bits)
{
    double here[STEPS], there[STEPS], again[STEPS];

    RANK_ZERO(train(c, rank, oar_device_of(OAR_CPU, 0), here));
    RANK_ZERO(train(c, rank, gpu, there));
    RANK_ZERO(train(c, rank, gpu, again));
    RANK_CHECK(here[STEPS - 1] < 0.9 * here[0]);
    for (int i = 0; i < STEPS; i++) {
        RANK_CHECK(fabs(here[i] - there[i]) <= 1e-4 * here[i]);
        RANK_CHECK(there[i] == again[i]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(halves_agree_with_pytorch),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(
            a_model_is_trained_as_on_the_cpu_and_twice_with_the_same_bits),
    };

    setenv("STANDIN_DELAY_US", "0", 0); /* order is other tests' */
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
