/* SPDX-License-Identifier: Apache-2.0 */
/* Losses on a GPU with every reduction: against PyTorch, against differences,
 * and in halves; and one that never has all logits in memory. */
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

/* ---- without all logits in memory ---------------------------------------- */

enum { ROWS = 70, WIDTH = 16, CLASSES = 33 };

/* The loss and the gradients of x and weight, one behind the other. */
static int merged_loss(oar_device device, oar_dtype dtype, gpu_numbers *n)
{
    int64_t class_of[ROWS];
    oar_tensor *x = oar_normal(NULL, dtype, OAR_SHAPE(ROWS, WIDTH), 3, 0, 1);
    oar_tensor *w = oar_normal(NULL, dtype, OAR_SHAPE(CLASSES, WIDTH), 4, 0, 1);
    oar_tensor *y, *loss;
    oar_tape *tape;
    int bad;

    for (int64_t i = 0; i < ROWS; i++)
        class_of[i] = i * i % CLASSES;
    y = oar_from_data(NULL, OAR_I64, OAR_SHAPE(ROWS), class_of);
    oar_tensor_require_grad(x, 1);
    oar_tensor_require_grad(w, 1);
    x = leaf_on(device, x);
    w = leaf_on(device, w);
    y = leaf_on(device, y);
    bad = oar_tape_create(&tape) != OAR_OK;
    loss = oar_linear_cross_entropy(tape, x, w, y, NULL);
    bad =
        bad || loss == NULL || oar_backward(tape, loss) != OAR_OK ||
        oar_tensor_read(loss, OAR_F64, n->number) != OAR_OK ||
        oar_tensor_read(oar_tensor_grad(x), OAR_F64, n->number + 1) != OAR_OK ||
        oar_tensor_read(oar_tensor_grad(w), OAR_F64,
                        n->number + 1 + ROWS * WIDTH) != OAR_OK;
    n->count = 1 + (ROWS + CLASSES) * WIDTH;
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
    oar_tensor_release(y);
    return bad ? gpu_case_fails("linear_cross_entropy") : 0;
}

GPU_TEST(a_loss_without_logits_is_the_cpus)
{
    static const oar_dtype dtypes[] = { OAR_F32, OAR_BF16 };
    static gpu_numbers here, there, again;

    for (int d = 0; d < 2; d++) {
        RANK_ZERO(merged_loss((oar_device){ OAR_CPU, 0 }, dtypes[d], &here));
        RANK_ZERO(merged_loss(gpu_cases_on, dtypes[d], &there));
        RANK_ZERO(merged_loss(gpu_cases_on, dtypes[d], &again));
        RANK_ZERO(far_from("linear_cross_entropy", "all", dtypes[d],
                           gpu_tolerance(dtypes[d]), &there, here.number,
                           here.count));
        RANK_CHECK(same_numbers(&there, &again));
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_agree_with_pytorch),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(a_loss_without_logits_is_the_cpus),
    };

    setenv("STANDIN_DELAY_US", "0", 0); /* order is other tests' */
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
