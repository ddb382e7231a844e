/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of every operation of ops_cases.h against differences of its
 * values, in f64: on contiguous leaves, on strided views, and added up over two
 * passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/gradcheck.h"
#include "unit/ops_cases.h"

typedef struct op_subject {
    const op_case *of;
    leaves l;
} op_subject;

static oar_tensor *apply(const void *self, oar_tape *tape)
{
    const op_subject *s = self;

    return run_case(s->of, tape, &s->l);
}

static void check_case(const op_case *c, int spread, int passes)
{
    op_subject self = { c, leaves_of(c->name, OAR_F64, spread) };
    gradcheck_subject s = { c->name, apply, &self };
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    gradcheck_passes(&s, tape, passes);
    for (int i = 0; i < MOST; i++)
        if (golden_part(c->name, "grad", i) != NULL)
            gradcheck_compare(&s, tape, self.l.leaf[i], i);
    release_leaves(&self.l);
    oar_tape_destroy(tape);
}

static void check_all(int spread, int passes)
{
    for (int i = 0; i < OP_CASES; i++)
        if (!op_cases[i].corner)
            check_case(&op_cases[i], spread, passes);
}

static void gradients_agree_with_differences(void **state)
{
    check_all(0, 1);
}

static void gradients_of_strided_views_agree_too(void **state)
{
    check_all(1, 1);
}

static void gradients_of_two_passes_add_up(void **state)
{
    check_all(0, 2);
    check_all(1, 2);
}

static void same_bytes(const oar_tensor *a, const oar_tensor *b)
{
    assert_memory_equal(oar_tensor_const_data(a), oar_tensor_const_data(b),
                        (size_t)oar_tensor_count(a) * sizeof(double));
}

static void split_case(const op_case *c)
{
    op_subject self = { c, leaves_of(c->name, OAR_F64, 1) };
    gradcheck_subject s = { c->name, apply, &self };
    oar_tensor *loss, *whole[MOST] = { NULL }, **leaf = self.l.leaf;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, gradcheck_loss(&s, tape)));
    for (int k = 0; k < MOST; k++)
        if (golden_part(c->name, "grad", k) != NULL) {
            whole[k] = oar_scale(NULL, oar_tensor_grad(leaf[k]), 1);
            oar_tensor_clear_grad(leaf[k]);
        }
    oar_tape_reset(tape);
    loss = gradcheck_loss(&s, tape);
    OK(oar_backward_inputs(tape, 1, &loss, NULL));
    OK(oar_backward_weights(tape));
    for (int k = 0; k < MOST; k++)
        if (whole[k] != NULL)
            same_bytes(whole[k], oar_tensor_grad(leaf[k]));
    for (int k = 0; k < MOST; k++)
        oar_tensor_release(whole[k]);
    release_leaves(&self.l);
    oar_tape_destroy(tape);
}

/* Both halves of a split backward leave what the whole leaves. */
static void a_split_backward_leaves_the_same(void **state)
{
    for (int i = 0; i < OP_CASES; i++)
        split_case(&op_cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(gradients_of_strided_views_agree_too),
        cmocka_unit_test(gradients_of_two_passes_add_up),
        cmocka_unit_test(a_split_backward_leaves_the_same),
    };

    return cmocka_run_group_tests(tests, load_ops, golden_close);
}
