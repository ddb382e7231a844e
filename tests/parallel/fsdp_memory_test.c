/* SPDX-License-Identifier: Apache-2.0 */
/* What FSDP asks of memory: nothing once it is warm, and never a whole model
 * where a lazy one starts. */
#include "support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/leak_check.h"
#include "support/spread_gpt.h"

/* ---- steps --------------------------------------------------------------- */

enum { WARM = 3, WINDOW = 3, WINDOWS = 5 };

/* The engine's thread may let go of an operation after the next one was posted.
 * That takes memory once more, so one window of steps without any is enough, if
 * it is the same one on both ranks. */
static oar_status train(oar_group *g, void *arg)
{
    const spread_gpt *c = arg;
    uint64_t before = 0;
    float none = 0;
    int count;
    oar_module *net;
    oar_optim *adam;
    oar_tape *tape;

    CHECK_OK(spread_gpt_make(c, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, &c->opts, &net));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_adamw_create_over(count, param, NULL, &adam));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < WARM + WINDOWS * WINDOW && none == 0; step++) {
        if (step >= WARM && (step - WARM) % WINDOW == 0)
            before = memory_now().allocations;
        CHECK_OK(spread_gpt_pass(net, tape, oar_group_rank(g), step));
        CHECK_OK(oar_fsdp_clip_grad_norm(net, 1, NULL));
        CHECK_OK(oar_optim_step(adam));
        oar_optim_zero_grad(adam);
        if (step >= WARM && (step - WARM) % WINDOW == WINDOW - 1) {
            none = memory_now().allocations == before;
            CHECK_OK(oar_all_reduce(g, oar_span_of(&none, 1, OAR_F32), OAR_MIN,
                                    NULL, NULL));
        }
    }
    CHECK(none != 0);
    oar_optim_destroy(adam);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_step_allocates_nothing_after_the_third(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int stage = 0; stage <= OAR_ZERO_STAGE_2; stage++)
            for (int ahead = -1; ahead <= 1; ahead += 2)
                for (int mixed = 0; mixed <= (ahead > 0); mixed++) {
                    spread_gpt c = spread_gpt_usual();

                    c.opts.hold = (oar_hold)h;
                    c.opts.stage = (oar_zero_stage)stage;
                    c.opts.prefetch = ahead;
                    c.opts.mixed = mixed;
                    c.opts.param_dtype = OAR_BF16;
                    if (ranks_run("native", 2, NULL, train, &c) != OAR_OK)
                        fail_msg("hold %d, stage %d, prefetch %d, mixed %d", h,
                                 stage, ahead, mixed);
                }
}

/* ---- a lazy start -------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COUNTS_PAGES = 0 }; /* theirs would count */
#else
enum { COUNTS_PAGES = 1 };
#endif

enum { SIDE = 2048, LAYERS = 12, RANKS = 4, PROCESS_KIB = 4096 };

/* Returns a line of /proc/self/status in KiB, or -1. */
static long status_kib(const char *which)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, which, strlen(which)) == 0)
            kib = strtol(line + strlen(which) + 1, NULL, 10);
    if (file != NULL)
        fclose(file);
    return kib;
}

/* Makes VmHWM what the process has now. Returns 0 where that is not allowed. */
static int forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    int done = file != NULL && fputs("5", file) >= 0;

    return file != NULL && fclose(file) == 0 && done;
}

static oar_status start_lazily(oar_group *g, void *arg)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();
    long shard = (long)LAYERS * SIDE * SIDE / RANKS * 4 / 1024, before;
    oar_module *layer[LAYERS], *net;

    o.hold = *(const oar_hold *)arg;
    oar_lazy(1);
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(oar_linear_create(SIDE, SIDE, (uint64_t)i, NULL, &layer[i]));
    CHECK_OK(oar_sequential_create(LAYERS, layer, &net));
    oar_lazy(0);
    CHECK(forget_peak());
    before = status_kib("VmRSS");
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    CHECK(status_kib("VmHWM") - before <= shard + shard / 10 + PROCESS_KIB);
    CHECK(status_kib("VmHWM") - before >= shard); /* it is there */
    oar_module_release(net);
    return OAR_OK;
}

static void a_lazy_model_starts_in_the_memory_of_its_shards(void **state)
{
    if (!COUNTS_PAGES || !forget_peak())
        skip();
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", RANKS, NULL, start_lazily, &h),
                         OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing_after_the_third),
        cmocka_unit_test(a_lazy_model_starts_in_the_memory_of_its_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
