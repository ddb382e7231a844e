/* SPDX-License-Identifier: Apache-2.0 */
/* Options of FSDP that change what is whole when, and what is spread at all:
 * the bits stay those of DDP, and the figures say what was saved. */
#include "support/test_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/checkpoint.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "parallel/shards/shards.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/spread_gpt.h"

/* ---- keep ---------------------------------------------------------------- */

enum { BLOCKS = 3, UNITS = BLOCKS + 1 };

/* Units that a step gathers: each once for forward, and again for backward if
 * it was let go. */
static int gathers_of(oar_fsdp_keep keep)
{
    return keep == OAR_FSDP_KEEP_NOTHING ? 2 * UNITS
           : keep == OAR_FSDP_KEEP_PASS  ? UNITS
                                         : 2 * BLOCKS + 1;
}

static void what_is_kept_decides_how_often_units_are_gathered(void **state)
{
    for (int keep = 0; keep <= OAR_FSDP_KEEP_PASS; keep++)
        for (int ahead = -1; ahead <= 2; ahead += 3) {
            spread_gpt c = spread_gpt_usual();

            c.opts.hold = OAR_HOLD_OWN;
            c.opts.keep = (oar_fsdp_keep)keep;
            c.opts.prefetch = ahead;
            c.gathers = gathers_of(c.opts.keep);
            spread_gpt_train_everywhere(&c, 3);
        }
}

static void
parameters_kept_until_they_are_stepped_are_gathered_once(void **state)
{
    spread_gpt c = spread_gpt_usual();

    c.opts.hold = OAR_HOLD_OWN;
    c.opts.stage = OAR_ZERO_STAGE_2;
    c.gathers = UNITS;
    spread_gpt_train_everywhere(&c, 2);
}

static void models_of_every_kind_train_the_same_whatever_is_kept(void **state)
{
    static const char *const nested[] = { "blocks.*", "class:attention", NULL };

    for (int keep = OAR_FSDP_KEEP_NOTHING; keep <= OAR_FSDP_KEEP_PASS; keep++)
        for (int kind = 0; kind < 6; kind++) {
            spread_gpt c = spread_gpt_usual();

            c.opts.hold = kind == 5 ? OAR_HOLD_MAPPED : OAR_HOLD_OWN;
            c.opts.keep = (oar_fsdp_keep)keep;
            c.gpt.recompute = kind == 0;
            c.gpt.tied = kind <= 1;
            c.freezes = kind == 2;
            c.opts.units = kind == 3 ? nested : NULL;
            c.passes = kind == 4 ? -3 : 1;
            assert_int_equal(
                ranks_run("native", 3, NULL, spread_gpt_train_both, &c),
                OAR_OK);
        }
}

static int train_on_hosts(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", rank % 2 == 0 ? "a" : "b", 1);
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(spread_gpt_train_both(g, arg));
    oar_group_destroy(g);
    return 0;
}

static void two_hosts_gather_as_often(void **state)
{
    for (int keep = 0; keep <= OAR_FSDP_KEEP_PASS; keep++) {
        spread_gpt c = spread_gpt_usual();
        test_job job;

        c.opts.hold = OAR_HOLD_HOST;
        c.opts.keep = (oar_fsdp_keep)keep;
        c.gathers = gathers_of(c.opts.keep);
        test_job_start(&job, 4, train_on_hosts, &c, "keep %d", keep);
        for (int r = 0; r < 4; r++)
            test_job_expect(&job, r, 0);
        test_job_end(&job);
    }
}

/* A recorded forward that no backward follows keeps its units until the tape is
 * reset, however often; then shards can be published. */
static oar_status reset_without_backward(oar_group *g, void *arg)
{
    spread_gpt c = spread_gpt_usual();
    oar_shards *s;
    oar_module *net;
    oar_tape *tape;

    c.opts.hold = OAR_HOLD_OWN;
    c.opts.keep = OAR_FSDP_KEEP_PASS;
    CHECK_OK(spread_gpt_make(&c, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &c.opts, &net));
    CHECK_OK(oar_tape_create(&tape));
    s = oar_fsdp_shards(net);
    for (int i = 0; i < 2; i++) {
        oar_tensor *x =
            oar_zeros(tape, OAR_I64, OAR_SHAPE(SPREAD_ROWS, SPREAD_CONTEXT));

        CHECK(oar_forward(tape, net, x) != NULL);
        CHECK(oar_forward(tape, net, x) != NULL);
        CHECK(oar_shards_array(s, 0).data != NULL);
        CHECK(oar_shards_publish(s) == OAR_E_STATE);
        oar_tape_reset(tape);
        for (int a = 0; a < oar_module_params(net); a++)
            CHECK(oar_shards_array(s, a).data == NULL);
        CHECK_OK(oar_shards_publish(s));
    }
    CHECK_OK(spread_gpt_pass(net, tape, oar_group_rank(g), 0));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_tape_that_is_reset_lets_go_of_what_it_kept(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, reset_without_backward, NULL),
                     OAR_OK);
}

/* ---- ignored ------------------------------------------------------------- */

static const char *const left_alone[] = { "norm", "blocks.*.up.bias", NULL };

static void ignored_parameters_train_as_ddp_trains_them(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        spread_gpt c = spread_gpt_usual();

        c.opts.hold = (oar_hold)h;
        c.opts.ignored = left_alone;
        spread_gpt_train_everywhere(&c, 3);
    }
}

static oar_status wrap_lazily(oar_group *g, oar_module **net)
{
    spread_gpt c = spread_gpt_usual();

    c.opts.ignored = left_alone;
    oar_lazy(1);
    CHECK_OK(spread_gpt_make(&c, net));
    oar_lazy(0);
    return oar_fsdp_wrap(*net, g, &c.opts, net);
}

/* Each rank has numbers of its own, which nothing touches but its own calls. */
static oar_status keep_own_numbers(oar_group *g, void *arg)
{
    double rank = oar_group_rank(g), number[12], read[12] = { 0 };
    spread_gpt c = spread_gpt_usual();
    oar_module *net, *plain;
    oar_tensor *own;
    oar_tape *tape;

    CHECK_OK(wrap_lazily(g, &net));
    CHECK_OK(oar_tape_create(&tape));
    own = oar_module_find(net, "module.norm.weight");
    CHECK(own != NULL && !oar_tensor_is_lazy(own));
    for (int i = 0; i < 12; i++)
        number[i] = rank + i;
    CHECK_OK(oar_fsdp_write_param(net, "norm.weight", OAR_F64, number));
    CHECK_OK(spread_gpt_pass(net, tape, oar_group_rank(g), 0));
    CHECK(oar_tensor_grad(own) != NULL);
    CHECK_OK(oar_fsdp_read_param(net, "norm.weight", OAR_F64, read));
    CHECK(memcmp(read, number, sizeof read) == 0);
    /* a load replaces them, too */
    CHECK_OK(spread_gpt_make(&c, &plain));
    CHECK_OK(oar_fsdp_load(net, plain, 1));
    CHECK_OK(oar_fsdp_read_param(net, "norm.weight", OAR_F64, read));
    CHECK(read[0] == 1 && read[11] == 1);
    oar_module_release(plain);
    oar_module_release(net);
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void ignored_parameters_are_each_ranks_own(void **state)
{
    ranks_all(3, keep_own_numbers, NULL);
}

/* A checkpoint has the shards; each rank adds what is its own under a name of
 * its own. */
static oar_status save_and_load(oar_group *g, void *arg)
{
    static const double zeros[12];
    double number[12], read[12];
    oar_checkpoint *runs;
    oar_module *net;
    oar_state *state;
    oar_tensor *own;
    char name[32];

    CHECK_OK(wrap_lazily(g, &net));
    own = oar_module_find(net, "module.norm.weight");
    for (int i = 0; i < 12; i++)
        number[i] = oar_group_rank(g) + i;
    CHECK_OK(oar_fsdp_write_param(net, "norm.weight", OAR_F64, number));
    CHECK_OK(oar_fsdp_write_param(net, "norm.bias", OAR_F64, number));
    snprintf(name, sizeof name, "norm.%d", oar_group_rank(g));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_module(state, net, NULL));
    CHECK_OK(oar_state_add_tensor(state, "own", name, own, NULL));
    CHECK_OK(oar_checkpoint_open(g, arg, NULL, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    CHECK_OK(oar_fsdp_write_param(net, "norm.weight", OAR_F64, zeros));
    CHECK_OK(oar_fsdp_write_param(net, "norm.bias", OAR_F64, zeros));
    CHECK_OK(oar_checkpoint_load(runs, state, 1, NULL));
    CHECK_OK(oar_fsdp_read_param(net, "norm.weight", OAR_F64, read));
    CHECK(memcmp(read, number, sizeof read) == 0);
    CHECK_OK(oar_fsdp_read_param(net, "norm.bias", OAR_F64, read));
    CHECK(memcmp(read, zeros, sizeof read) == 0);
    oar_state_destroy(state);
    oar_checkpoint_close(runs);
    oar_module_release(net);
    return OAR_OK;
}

static void checkpoints_leave_ignored_parameters_to_the_program(void **state)
{
    char folder[FOLDER_PATH];

    folder_make(folder);
    assert_int_equal(ranks_run("native", 2, NULL, save_and_load, folder),
                     OAR_OK);
    assert_int_equal(folder_remove(folder), 0);
}

/* ---- what is refused ----------------------------------------------------- */

static oar_status refuse(oar_group *g, void *arg)
{
    static const char *const nowhere[] = { "norm", "middle.weight", NULL };
    spread_gpt c = spread_gpt_usual();
    oar_module *net, *wrapped = NULL;

    CHECK_OK(spread_gpt_make(&c, &net));
    c.opts.ignored = nowhere;
    CHECK(oar_fsdp_wrap(net, g, &c.opts, &wrapped) == OAR_E_NOT_FOUND);
    CHECK(strstr(oar_last_error_text(), "middle.weight") != NULL);
    c.opts.ignored = NULL;
    c.opts.keep = (oar_fsdp_keep)3;
    CHECK_OK(spread_gpt_make(&c, &net));
    CHECK(oar_fsdp_wrap(net, g, &c.opts, &wrapped) == OAR_E_ARG);
    CHECK(strstr(oar_last_error_text(), "keep 3") != NULL);
    c.opts.keep = (oar_fsdp_keep)oar_group_rank(g);
    CHECK_OK(spread_gpt_make(&c, &net));
    CHECK(oar_fsdp_wrap(net, g, &c.opts, &wrapped) == OAR_E_MISMATCH);
    CHECK(wrapped == NULL);
    return oar_barrier(g, NULL, NULL);
}

static void wrong_options_are_refused(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, refuse, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_decides_how_often_units_are_gathered),
        cmocka_unit_test(
            parameters_kept_until_they_are_stepped_are_gathered_once),
        cmocka_unit_test(models_of_every_kind_train_the_same_whatever_is_kept),
        cmocka_unit_test(two_hosts_gather_as_often),
        cmocka_unit_test(a_tape_that_is_reset_lets_go_of_what_it_kept),
        cmocka_unit_test(ignored_parameters_train_as_ddp_trains_them),
        cmocka_unit_test(ignored_parameters_are_each_ranks_own),
        cmocka_unit_test(checkpoints_leave_ignored_parameters_to_the_program),
        cmocka_unit_test(wrong_options_are_refused),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
