/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies while a save is under way in the background: the others learn it
 * in time from each call, close, and the generation before is whole. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/checkpoint.h>

#include "base/clock.h"
#include "support/held_disk.h"
#include "support/last_error.h"
#include "support/leak_check.h"

enum {
    NOTICED_MS = 5000, /* a death, at the latest, on an idle machine */
    TIMEOUT_MS = 60000,
    NUMBERS = 50000,
    KILLED = 128 + SIGKILL
};

static char path[FOLDER_PATH + 32];

typedef struct death {
    const char *backend;
    int victim, lazy;
    shared_flag *saving; /* ranks whose save is under way */
} death;

static float number[NUMBERS];

static void set_numbers(int64_t step)
{
    for (int i = 0; i < NUMBERS; i++)
        number[i] = (float)(step + i);
}

static int save_and_lose_a_rank(test_job *c, int rank, void *arg)
{
    const death *d = arg;
    oar_group_opts o = { .size = sizeof o,
                         .backend = d->backend,
                         .timeout_ms = TIMEOUT_MS };
    oar_checkpoint_opts opts = { .size = sizeof opts,
                                 .block_bytes = 64 << 10,
                                 .no_sync = 1 };
    oar_save_opts background = { .size = sizeof background, .background = 1 };
    oar_checkpoint *runs;
    oar_state *state;
    oar_group *g;
    int64_t start;

    held_disk_use();
    background.lazy = d->lazy;
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(oar_state_create(&state));
    RANK_OK(oar_state_add_span(state, "model", "n",
                               oar_span_of(number, NUMBERS, OAR_F32),
                               OAR_SHAPE(NUMBERS), NULL));
    RANK_OK(oar_checkpoint_open(g, path, &opts, &runs));
    set_numbers(1);
    RANK_OK(oar_checkpoint_save(runs, state, 1, &background));
    RANK_OK(oar_checkpoint_wait(runs));
    if (rank == d->victim)
        held_disk_hold();
    set_numbers(2);
    RANK_OK(oar_checkpoint_save(runs, state, 2, &background));
    shared_flag_raise(d->saving);
    RANK_CHECK(shared_flag_await(d->saving, (uint32_t)c->ranks, TIMEOUT_MS));
    if (rank == d->victim)
        raise(SIGKILL);
    start = oari_now_ns();
    RANK_CHECK(oar_checkpoint_wait(runs) == OAR_E_PEER);
    RANK_CHECK(oar_checkpoint_save(runs, state, 3, &background) == OAR_E_PEER);
    RANK_CHECK(oar_checkpoint_load(runs, state, 1, NULL) == OAR_E_PEER);
    RANK_CHECK(is_in_time(start, NOTICED_MS));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_group_destroy(g);
    return 0;
}

/* The next job finds the generation before. */
static void load_before(void)
{
    oar_checkpoint *runs;
    oar_state *state;
    int64_t newest;

    memset(number, 0, sizeof number);
    OK(oar_state_create(&state));
    OK(oar_state_add_span(state, "model", "n",
                          oar_span_of(number, NUMBERS, OAR_F32),
                          OAR_SHAPE(NUMBERS), NULL));
    OK(oar_checkpoint_open(NULL, path, NULL, &runs));
    OK(oar_checkpoint_newest(runs, &newest));
    assert_int_equal(newest, 1);
    OK(oar_checkpoint_load(runs, state, 1, NULL));
    for (int i = 0; i < NUMBERS; i++)
        assert_true(number[i] == (float)(1 + i));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
}

static void a_rank_that_dies_ends_the_save_on_the_others(void **state)
{
    static const char *const backend[] = { "native", "tcp" };
    char folder[FOLDER_PATH];

    (void)state;
    for (int i = 0; i < 4; i++) {
        death d = { .backend = backend[i & 1],
                    .victim = i % 3,
                    .lazy = i >> 1,
                    .saving = shared_page(sizeof *d.saving) };
        test_job c;

        folder_make(folder);
        snprintf(path, sizeof path, "%s/runs", folder);
        test_job_start(&c, 3, save_and_lose_a_rank, &d,
                       "%s, death of rank %d in a save", d.backend, d.victim);
        for (int r = 0; r < 3; r++)
            test_job_expect(&c, r, r == d.victim ? KILLED : 0);
        test_job_end(&c);
        load_before();
        shared_page_free(d.saving, sizeof *d.saving);
        assert_int_equal(folder_remove(folder), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_dies_ends_the_save_on_the_others),
    };

    return cmocka_run_group_tests_name("checkpoint_background_fault", tests,
                                       NULL, NULL);
}
