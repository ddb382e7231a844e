/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives recorded on the tape as operations of the caller's own: what
 * tensor parallel layers are made of. */
#include "support/ranks.h"

#include <stdlib.h>

#include <oarsong/custom_op.h>
#include <oarsong/ops.h>

#include "support/last_error.h"

enum { RANKS = 3, COUNT = 7 };

/* What an operation holds: borrowed, the group outlives the tape. */
typedef struct sum_call {
    oar_group *group;
    int fails_on; /* the rank whose backward fails; -1: none */
    int dropped;
} sum_call;

/* The sum over ranks of x, where every rank's loss counts: the gradient of a
 * rank's x is the sum of what the ranks say of the result. */
static oar_status sum_back(void *arg, int i, const oar_tensor *grad,
                           oar_tensor *to, int add)
{
    const sum_call *call = arg;
    oar_tensor *sum;
    oar_span span;
    oar_status status;

    if (oar_group_rank(call->group) == call->fails_on)
        return OAR_E_DATA;
    if (!add) {
        CHECK_OK(oar_tensor_copy(to, grad));
        CHECK_OK(oar_tensor_span(to, &span));
        return oar_all_reduce(call->group, span, OAR_SUM, NULL, NULL);
    }
    sum = oar_empty(NULL, oar_tensor_dtype(to), oar_tensor_shape(to));
    CHECK(sum != NULL);
    status = oar_tensor_copy(sum, grad);
    if (status == OAR_OK)
        status = oar_tensor_span(sum, &span);
    if (status == OAR_OK)
        status = oar_all_reduce(call->group, span, OAR_SUM, NULL, NULL);
    for (int64_t k = 0; k < oar_tensor_count(to) && status == OAR_OK; k++)
        ((double *)oar_tensor_data(to))[k] +=
            ((double *)oar_tensor_data(sum))[k];
    oar_tensor_release(sum);
    return status;
}

static void sum_drop(void *arg)
{
    sum_call *call = arg;

    call->dropped++;
}

static const oar_custom_op sum_op = { .size = sizeof sum_op,
                                      .name = "all_sum",
                                      .backward = sum_back,
                                      .drop = sum_drop };

static oar_tensor *all_sum(oar_tape *tape, sum_call *call, oar_tensor *x)
{
    oar_tensor *y = oar_zeros(tape, oar_tensor_dtype(x), oar_tensor_shape(x));
    oar_span span;

    if (y == NULL || oar_tensor_copy(y, x) != OAR_OK ||
        oar_tensor_span(y, &span) != OAR_OK ||
        oar_all_reduce(call->group, span, OAR_SUM, NULL, NULL) != OAR_OK)
        y = NULL;
    return oar_record_op(tape, &sum_op, call, 1, &x, y);
}

/* A rank's loss is (rank + 1) s s, where s is the sum over ranks of w x_rank:
 * ds = 2 (rank + 1) s on a rank, 2 * 6 s summed over three, and so the rank's
 * dw = 12 s x_rank, element by element. Twice, so that one adds. */
static oar_status sum_of_products(oar_group *group, void *arg)
{
    const int *halves = arg;
    int rank = oar_group_rank(group);
    sum_call call = { .group = group, .fails_on = -1 };
    oar_tensor *w, *x, *loss = NULL;
    double *grad;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    oar_tape_share(tape, 1);
    w = oar_full(NULL, OAR_F64, OAR_SHAPE(COUNT), 0.5);
    CHECK_OK(oar_tensor_require_grad(w, 1));
    for (int use = 0; use < 2; use++) {
        oar_tensor *s;

        x = oar_full(tape, OAR_F64, OAR_SHAPE(COUNT), rank + 1);
        s = all_sum(tape, &call, oar_mul(tape, w, x)); /* 0.5 (1 + 2 + 3) */
        s = oar_scale(tape, oar_mul(tape, s, s), rank + 1);
        s = oar_sum(tape, s);
        loss = loss == NULL ? s : oar_add(tape, loss, s);
    }
    CHECK(loss != NULL);
    if (*halves) {
        CHECK_OK(oar_backward_inputs(tape, 1, &loss, NULL));
        CHECK_OK(oar_backward_weights(tape));
    } else {
        CHECK_OK(oar_backward(tape, loss));
    }
    grad = oar_tensor_data(oar_tensor_grad(w));
    for (int k = 0; k < COUNT; k++)
        CHECK(grad[k] == 2 * 12 * 3.0 * (rank + 1));
    CHECK(call.dropped == 2);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    return OAR_OK;
}

static void a_recorded_all_reduce_gives_the_right_gradients(void **state)
{
    for (int halves = 0; halves < 2; halves++) {
        assert_int_equal(
            ranks_run("sim", RANKS, NULL, sum_of_products, &halves), OAR_OK);
        ranks_all(RANKS, sum_of_products, &halves);
    }
}

/* The same of a leaf itself, in the weights half; and two uses of it. */
static oar_status sum_of_a_leaf(oar_group *group, void *arg)
{
    sum_call call = { .group = group, .fails_on = -1 };
    oar_tensor *w, *y;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    w = oar_full(NULL, OAR_F64, OAR_SHAPE(COUNT), 1 + oar_group_rank(group));
    CHECK_OK(oar_tensor_require_grad(w, 1));
    y = oar_add(tape, all_sum(tape, &call, w), all_sum(tape, &call, w));
    CHECK(y != NULL && *(double *)oar_tensor_data(y) == 12);
    CHECK_OK(oar_backward_inputs(tape, 1, &y, NULL));
    CHECK(oar_tensor_grad(w) == NULL);
    CHECK_OK(oar_backward_weights(tape));
    CHECK(*(double *)oar_tensor_data(oar_tensor_grad(w)) == 2 * RANKS);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    return OAR_OK;
}

static void a_leaf_may_be_reduced_in_the_weights_half(void **state)
{
    ranks_all(RANKS, sum_of_a_leaf, NULL);
}

/* ---- a rank fails -------------------------------------------------------- */

static void keep_status(void *arg, oar_status status)
{
    *(oar_status *)arg = status;
}

static oar_status one_fails(oar_group *group, void *arg)
{
    sum_call call = { .group = group, .fails_on = 1 };
    oar_status told = OAR_OK, status;
    oar_tensor *w, *loss;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    w = oar_ones(NULL, OAR_F64, OAR_SHAPE(COUNT));
    CHECK_OK(oar_tensor_require_grad(w, 1));
    loss = oar_sum(tape, all_sum(tape, &call, w));
    CHECK_OK(oar_tape_on_end(tape, keep_status, &told));
    if (oar_group_rank(group) == call.fails_on) {
        CHECK(fails_with(oar_backward(tape, loss), OAR_E_DATA,
                         "backward of all_sum failed"));
        oar_group_abort(group, "its backward failed");
        status = OAR_E_DATA;
    } else {
        status = oar_backward(tape, loss);
        CHECK(status != OAR_OK);
    }
    CHECK(told == status && call.dropped == 1);
    oar_tape_destroy(tape);
    oar_tensor_release(w);
    return OAR_OK;
}

static void a_failure_in_backward_is_told_on_every_rank(void **state)
{
    assert_int_equal(ranks_run("sim", RANKS, NULL, one_fails, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recorded_all_reduce_gives_the_right_gradients),
        cmocka_unit_test(a_leaf_may_be_reduced_in_the_weights_half),
        cmocka_unit_test(a_failure_in_backward_is_told_on_every_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
