/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the operations of layers against differences of their values,
 * in f64, on odd, strided, single and empty shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/nn_gradcheck_cases.h"

static void gradients_agree_with_differences(void **state)
{
    gradcheck_all(checks, CHECKS, 1, -1);
}

static void gradients_of_two_passes_add_up(void **state)
{
    gradcheck_all(checks, CHECKS, 2, -1);
}

static void each_input_has_its_gradient_alone(void **state)
{
    for (int i = 0; i < GRADCHECK_LEAVES; i++)
        gradcheck_all(checks, CHECKS, 1, i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(gradients_of_two_passes_add_up),
        cmocka_unit_test(each_input_has_its_gradient_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
