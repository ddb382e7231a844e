/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong use of FSDP is named: units that differ, leaves that are spread,
 * wrappers in wrappers, writes to what other ranks read. */
#include "support/ranks.h"

#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/spread_gpt.h"

enum { WIDTH = 5 };

static oar_status make_row(oar_module **row)
{
    oar_module *layer[3];

    for (int i = 0; i < 3; i++)
        CHECK_OK(
            oar_linear_create(WIDTH, WIDTH, (uint64_t)i + 1, NULL, &layer[i]));
    return oar_sequential_create(3, layer, row);
}

static oar_fsdp_opts small_units(oar_hold hold)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();

    o.hold = hold;
    o.least_bytes = 1;
    return o;
}

/* Expects that the last error has this status and these words. */
static oar_status says(oar_status status, const char *words)
{
    CHECK(oar_last_error()->status == status);
    CHECK(strstr(oar_last_error_text(), words) != NULL);
    return OAR_OK;
}

static oar_status differ_in_units(oar_group *g, void *arg)
{
    static const char *const units[2][2] = { { "0", NULL }, { "1", NULL } };
    oar_fsdp_opts o = small_units(OAR_HOLD_AUTO);
    oar_module *net, *wrapped = NULL;

    o.units = units[oar_group_rank(g) % 2];
    CHECK_OK(make_row(&net));
    CHECK(oar_fsdp_wrap(net, g, &o, &wrapped) != OAR_OK && wrapped == NULL);
    CHECK_OK(says(OAR_E_MISMATCH, "unit"));
    CHECK_OK(says(OAR_E_MISMATCH, "for 0.weight"));
    return oar_barrier(g, NULL, NULL);
}

static void ranks_with_other_units_are_told(void **state)
{
    ranks_all(2, differ_in_units, NULL);
}

/* The optimizer is older than the wrapper, so it has the leaves. */
static oar_status step_a_leaf(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(*(const oar_hold *)arg);
    oar_tensor *x, *y, *leaf;
    oar_module *net;
    oar_optim *sgd;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_row(&net));
    leaf = oar_module_param(net, 0);
    CHECK_OK(oar_sgd_create(net, NULL, &sgd));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    x = oar_uniform(tape, OAR_F32, OAR_SHAPE(3, WIDTH), 1, 0, 1);
    y = oar_forward(tape, net, x);
    CHECK_OK(oar_backward(tape, oar_mean(tape, y)));
    CHECK(oar_optim_step(sgd) != OAR_OK);
    CHECK_OK(says(OAR_E_STATE, "oar_fsdp_params"));
    CHECK(oar_clip_grad_norm(1, &leaf, 1, NULL) != OAR_OK);
    CHECK_OK(says(OAR_E_STATE, "oar_fsdp_params"));
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void stepping_a_leaf_that_is_spread_is_refused(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", 2, NULL, step_a_leaf, &h), OAR_OK);
}

static oar_status wrap_wrongly(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(*(const oar_hold *)arg);
    oar_module *net, *outer, *layer[2], *again = NULL;

    CHECK_OK(make_row(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    /* twice */
    CHECK(oar_fsdp_wrap(oar_module_retain(net), g, &o, &again) != OAR_OK);
    CHECK_OK(says(OAR_E_STATE, "wrapped already"));
    CHECK(oar_ddp_wrap(oar_module_retain(net), g, NULL, &again) != OAR_OK);
    CHECK_OK(says(OAR_E_STATE, "FSDP"));
    /* the module inside, and a part of it */
    outer = oar_module_child(net, 0);
    CHECK(oar_fsdp_wrap(oar_module_retain(outer), g, &o, &again) != OAR_OK);
    CHECK_OK(says(OAR_E_STATE, "wrapped already"));
    outer = oar_module_child(outer, 1);
    CHECK(oar_fsdp_wrap(oar_module_retain(outer), g, &o, &again) != OAR_OK);
    CHECK_OK(says(OAR_E_STATE, "wrapped already"));
    /* around it */
    CHECK_OK(oar_linear_create(WIDTH, WIDTH, 4, NULL, &layer[0]));
    layer[1] = oar_module_retain(net);
    CHECK_OK(oar_sequential_create(2, layer, &outer));
    CHECK(oar_fsdp_wrap(outer, g, &o, &again) != OAR_OK);
    CHECK_OK(says(OAR_E_STATE, "has a part that is"));
    CHECK(again == NULL);
    oar_module_release(net);
    return oar_barrier(g, NULL, NULL);
}

static void wrapping_what_is_wrapped_is_refused(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", 2, NULL, wrap_wrongly, &h),
                         OAR_OK);
}

/* One rank alone must not change what the others read. */
static oar_status write_to_a_mapped_one(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(OAR_HOLD_MAPPED);
    float number[WIDTH * WIDTH] = { 0 }, before;
    oar_tensor *weight;
    oar_module *net;

    CHECK_OK(make_row(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    weight = oar_module_param(net, 0);
    before = *(const float *)oar_tensor_const_data(weight);
    if (oar_group_rank(g) == 1) {
        CHECK(oar_tensor_write(weight, OAR_F32, number) != OAR_OK);
        CHECK_OK(says(OAR_E_STATE, "oar_fsdp_write_param"));
        CHECK(oar_tensor_data(weight) == NULL);
    }
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK(*(const float *)oar_tensor_const_data(weight) == before);
    oar_module_release(net);
    return OAR_OK;
}

static void a_mapped_parameter_is_not_changed_by_one_rank(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, write_to_a_mapped_one, NULL),
                     OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, write_to_a_mapped_one, NULL),
                     OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_with_other_units_are_told),
        cmocka_unit_test(stepping_a_leaf_that_is_spread_is_refused),
        cmocka_unit_test(wrapping_what_is_wrapped_is_refused),
        cmocka_unit_test(a_mapped_parameter_is_not_changed_by_one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
