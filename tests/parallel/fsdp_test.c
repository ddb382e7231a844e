/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP trains what DDP trains, to the bit where sums have one order, however
 * parameters are held and whatever is spread. */
#include "support/test_job.h"

#include <stdlib.h>

#include "parallel/shards/shards.h"
#include "support/spread_gpt.h"

static void fsdp_trains_what_ddp_trains(void **state)
{
    for (int h = OAR_HOLD_AUTO; h <= OAR_HOLD_OWN; h++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            spread_gpt c = spread_gpt_usual();

            c.opts.hold = (oar_hold)h;
            spread_gpt_train_everywhere(&c, ranks);
        }
}

static void every_stage_trains_the_same(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int stage = OAR_ZERO_STAGE_1; stage <= OAR_ZERO_STAGE_2; stage++) {
            spread_gpt c = spread_gpt_usual();

            c.opts.hold = (oar_hold)h;
            c.opts.stage = (oar_zero_stage)stage;
            spread_gpt_train_everywhere(&c, 3);
        }
}

static void models_of_every_kind_train_the_same(void **state)
{
    static const char *const nested[] = { "blocks.*", "class:attention", NULL };

    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int kind = 0; kind < 6; kind++) {
            spread_gpt c = spread_gpt_usual();

            c.opts.hold = (oar_hold)h;
            c.gpt.recompute = kind == 0;
            c.gpt.tied = kind <= 1;
            c.gpt.rotary = kind == 2;
            c.freezes = kind == 3;
            c.opts.units = kind == 4 ? nested : NULL;
            c.opts.prefetch = kind == 5 ? 2 : 0;
            spread_gpt_train_everywhere(&c, 3);
        }
}

static void passes_add_up_with_and_without_communication(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2) {
        spread_gpt c = spread_gpt_usual();

        c.opts.hold = (oar_hold)h;
        c.passes = -3;
        spread_gpt_train_everywhere(&c, 2);
    }
}

static void eight_ranks_train_the_same(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++) {
        spread_gpt c = spread_gpt_usual();

        c.opts.hold = (oar_hold)h;
        assert_int_equal(
            ranks_run("native", 8, NULL, spread_gpt_train_both, &c), OAR_OK);
    }
}

/* ---- several hosts ------------------------------------------------------- */

typedef struct fsdp_hosts_case {
    spread_gpt c;
    int here; /* ranks on the first host; -1: every second one */
} fsdp_hosts_case;

static int train_on_hosts(test_job *c, int rank, void *arg)
{
    fsdp_hosts_case *h = arg;
    int first = h->here < 0 ? rank % 2 == 0 : rank < h->here;
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    setenv("OARSONG_HOST_ID", first ? "a" : "b", 1);
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(spread_gpt_train_both(g, &h->c));
    oar_group_destroy(g);
    return 0;
}

/* With one copy a host, sums go by index on the host, then by host: that is the
 * order of ranks if every second one is on the first host. */
static void two_hosts_train_the_same(void **state)
{
    static const struct {
        int ranks, here;
        oar_hold hold;
    } layout[] = { { 4, 2, OAR_HOLD_HOST },
                   { 4, -1, OAR_HOLD_HOST },
                   { 3, 2, OAR_HOLD_OWN },
                   { 4, 2, OAR_HOLD_AUTO } };

    for (int i = 0; i < 4; i++)
        for (int z = 0; z < 3; z++) {
            fsdp_hosts_case h = { .c = spread_gpt_usual(),
                                  .here = layout[i].here };
            test_job job;

            h.c.opts.hold = layout[i].hold;
            h.c.opts.stage = (oar_zero_stage)z;
            h.c.opts.prefetch = z == 0 ? 2 : 0;
            if (layout[i].hold != OAR_HOLD_OWN && h.here > 0)
                spread_gpt_allow_other_order(&h.c);
            test_job_start(&job, layout[i].ranks, train_on_hosts, &h,
                           "%d ranks, hold %d, stage %d", layout[i].ranks,
                           (int)layout[i].hold, z);
            for (int r = 0; r < layout[i].ranks; r++)
                test_job_expect(&job, r, 0);
            test_job_end(&job);
        }
}

/* ---- replicas ------------------------------------------------------------ */

static void shards_with_replicas_train_what_ddp_trains(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int passes = -2; passes <= 1; passes += 3) {
            spread_gpt c = spread_gpt_usual();

            c.opts.hold = (oar_hold)h;
            c.columns = 2;
            spread_gpt_allow_other_order(&c);
            c.passes = passes;
            spread_gpt_train_everywhere(&c, 4);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fsdp_trains_what_ddp_trains),
        cmocka_unit_test(every_stage_trains_the_same),
        cmocka_unit_test(models_of_every_kind_train_the_same),
        cmocka_unit_test(passes_add_up_with_and_without_communication),
        cmocka_unit_test(eight_ranks_train_the_same),
        cmocka_unit_test(two_hosts_train_the_same),
        cmocka_unit_test(shards_with_replicas_train_what_ddp_trains),
    };

    oari_shards_poison = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
