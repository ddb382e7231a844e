/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints and a power failure at any moment: after every call of a save or
 * a pruning, every state that the disk may be left in holds the newest
 * generation that was promised, and what it loads is what was saved. The disk
 * is a model (support/model_disk.h); mistakes that are planted in it must be
 * found. And real faults: a call that fails leaves older generations whole. */
#include "support/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/checkpoint.h>
#include <oarsong/ops.h>

#include "support/faulty_disk.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/model_disk.h"

enum { NUMBERS = 20 };

/* The numbers of a step. */
static void fill_numbers(int64_t step, float *number)
{
    for (int i = 0; i < NUMBERS; i++)
        number[i] = (float)(100 * step + i);
}

/* A state of two arrays and a number. */
typedef struct small_state {
    oar_state *state;
    float weight[NUMBERS], moment[NUMBERS];
    int64_t step;
} small_state;

static oar_status make_state(small_state *s)
{
    CHECK_OK(oar_state_create(&s->state));
    CHECK_OK(oar_state_add_span(s->state, "model", "weight",
                                oar_span_of(s->weight, NUMBERS, OAR_F32),
                                OAR_SHAPE(4, 5), NULL));
    CHECK_OK(oar_state_add_span(s->state, "optim", "moment",
                                oar_span_of(s->moment, NUMBERS, OAR_F32),
                                OAR_SHAPE(NUMBERS), NULL));
    CHECK_OK(oar_state_add_i64(s->state, "step", &s->step));
    return OAR_OK;
}

static void set_step(small_state *s, int64_t step)
{
    s->step = step;
    fill_numbers(step, s->weight);
    fill_numbers(step + 1000, s->moment);
}

/* Returns whether the state is that of its own step. */
static int is_whole(const small_state *s)
{
    small_state want;

    set_step(&want, s->step);
    return memcmp(want.weight, s->weight, sizeof want.weight) == 0 &&
           memcmp(want.moment, s->moment, sizeof want.moment) == 0;
}

static const oar_checkpoint_opts small_blocks = { .size = sizeof small_blocks,
                                                  .threads = 1,
                                                  .buffered = 1,
                                                  .block_bytes = 64 << 10 };

/* ---- a power failure, in a model ----------------------------------------- */

typedef struct crash_job {
    model_disk *disk;
    int saves, keep;
} crash_job;

static oar_status save_all(oar_group *g, void *arg)
{
    const crash_job *job = arg;
    oar_checkpoint_opts opts = small_blocks;
    oar_checkpoint *runs;
    small_state s;

    opts.keep = job->keep;
    CHECK_OK(make_state(&s));
    CHECK_OK(oar_checkpoint_open(g, "/runs", &opts, &runs));
    for (int64_t step = 1; step <= job->saves; step++) {
        set_step(&s, step);
        CHECK_OK(oar_checkpoint_save(runs, s.state, step, NULL));
        if (oar_group_rank(g) == 0)
            model_disk_promise(job->disk, step);
        CHECK_OK(oar_barrier(g, NULL, NULL));
    }
    oar_checkpoint_close(runs);
    oar_state_destroy(s.state);
    return OAR_OK;
}

typedef struct crash_count {
    long lost, torn;
} crash_count;

/* Opens the folder as the next run would, and loads what it finds. */
static void load_state(void *arg, const oari_disk *disk, int64_t promised)
{
    crash_count *count = arg;
    oar_checkpoint *runs = NULL;
    small_state s;
    oar_status status;

    assert_int_equal(make_state(&s), OAR_OK);
    set_step(&s, 0);
    oari_disk_replace(disk);
    status = oar_checkpoint_open(NULL, "/runs", &small_blocks, &runs);
    if (status == OAR_OK)
        status = oar_checkpoint_load(runs, s.state, OAR_NEWEST, NULL);
    oar_checkpoint_close(runs);
    oari_disk_replace(NULL);
    oar_state_destroy(s.state);
    if (status == OAR_OK ? s.step < promised : promised > 0)
        count->lost++;
    if ((status == OAR_OK && !is_whole(&s)) ||
        (status != OAR_OK && status != OAR_E_NOT_FOUND &&
         status != OAR_E_SYSTEM))
        count->torn++;
}

static long crash_everywhere(int ranks, int saves, int keep,
                             model_mistake mistake, crash_count *count)
{
    crash_job job = { model_disk_create(), saves, keep };
    long states;

    model_disk_mistake(job.disk, mistake);
    oari_disk_replace(model_disk_table(job.disk));
    assert_int_equal(ranks_run("sim", ranks, NULL, save_all, &job), OAR_OK);
    oari_disk_replace(NULL);
    *count = (crash_count){ 0, 0 };
    states = model_disk_each_state(job.disk, load_state, count);
    model_disk_destroy(job.disk);
    print_message("%ld states, the newest lost in %ld, torn in %ld\n", states,
                  count->lost, count->torn);
    return states;
}

static void no_power_failure_loses_or_tears_a_generation(void **state)
{
    crash_count count;
    long states = 0;

    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int keep = 0; keep <= 1; keep++) {
            states += crash_everywhere(ranks, 2 + keep, keep, MODEL_NO_MISTAKE,
                                       &count);
            assert_int_equal(count.lost, 0);
            assert_int_equal(count.torn, 0);
        }
    assert_true(states >= 5000);
}

static void every_planted_mistake_is_found(void **state)
{
    static const model_mistake mistakes[] = {
        MODEL_FILES_NOT_SYNCED, MODEL_INDEX_NOT_SYNCED, MODEL_PART_NOT_SYNCED,
        MODEL_PARENT_NOT_SYNCED, MODEL_FOLDERS_NOT_SYNCED
    };

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        crash_count count;

        crash_everywhere(1, 2, 0, mistakes[i], &count);
        assert_true(count.lost + count.torn > 0);
    }
}

/* ---- calls that fail ----------------------------------------------------- */

static char folder[FOLDER_PATH], path[FOLDER_PATH + 32];

static int open_folder(void **state)
{
    (void)state;
    folder_make(folder);
    snprintf(path, sizeof path, "%s/runs", folder);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    return folder_remove(folder);
}

/* Saves step 1, and step 2 with a fault at one call. Gives the status. */
static oar_status save_with_fault(disk_fault fault, long at, int error,
                                  oar_status *saved)
{
    oar_checkpoint_opts opts = small_blocks;
    oar_checkpoint *runs;
    small_state s;

    CHECK_OK(make_state(&s));
    faulty_disk_use(DISK_FAULT_NONE, 0, 0);
    CHECK_OK(oar_checkpoint_open(NULL, path, &opts, &runs));
    set_step(&s, 1);
    CHECK_OK(oar_checkpoint_save(runs, s.state, 1, NULL));
    faulty_disk_use(fault, at, error);
    set_step(&s, 2);
    *saved = oar_checkpoint_save(runs, s.state, 2, NULL);
    oar_checkpoint_close(runs);
    faulty_disk_stop();
    oar_state_destroy(s.state);
    return OAR_OK;
}

static void a_call_that_fails_leaves_older_generations(void **state)
{
    static const struct {
        disk_fault fault;
        int error;
    } faults[] = {
        { DISK_FAULT_ERROR, ENOSPC }, { DISK_FAULT_ERROR, EIO },
        { DISK_FAULT_ERROR, EDQUOT }, { DISK_FAULT_ERROR_AFTER, EIO },
        { DISK_FAULT_ERROR, EINTR },  { DISK_FAULT_SHORT, 0 }
    };
    int failures = 0;

    (void)state;
    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f++)
        for (long at = 1;; at++) {
            leak_check before = leak_check_begin();
            oar_checkpoint *runs;
            oar_status saved = OAR_OK;
            small_state s;
            const char *struck;

            assert_int_equal(
                save_with_fault(faults[f].fault, at, faults[f].error, &saved),
                OAR_OK);
            struck = faulty_disk_struck();
            failures += saved != OAR_OK;
            assert_int_equal(make_state(&s), OAR_OK);
            OK(oar_checkpoint_open(NULL, path, &small_blocks, &runs));
            OK(oar_checkpoint_load(runs, s.state, OAR_NEWEST, NULL));
            oar_checkpoint_close(runs);
            assert_true(is_whole(&s));
            if (saved == OAR_OK)
                assert_int_equal(s.step, 2);
            oar_state_destroy(s.state);
            leak_check_end(&before);
            close_folder(NULL);
            open_folder(NULL);
            if (struck == NULL)
                break;
        }
    assert_true(failures > 50);
}

/* SIGKILL before or after any call: the next run finds the newest generation
 * whole, and what was left half-written is gone. */
static void a_process_killed_at_any_call_loses_nothing(void **state)
{
    int kills = 0;

    (void)state;
    for (int after = 0; after < 2; after++)
        for (long at = 1;; at++) {
            oar_checkpoint *runs;
            oar_status saved;
            small_state s;
            pid_t child = fork();
            int ended;

            if (child == 0)
                _exit(save_with_fault(after ? DISK_FAULT_KILL_AFTER
                                            : DISK_FAULT_KILL,
                                      at, 0, &saved) != OAR_OK);
            assert_int_equal(waitpid(child, &ended, 0), child);
            assert_int_equal(make_state(&s), OAR_OK);
            OK(oar_checkpoint_open(NULL, path, &small_blocks, &runs));
            OK(oar_checkpoint_load(runs, s.state, OAR_NEWEST, NULL));
            oar_checkpoint_close(runs);
            assert_true(is_whole(&s));
            /* the lock, step 1 and perhaps step 2 */
            assert_true(folder_entries(path) <= 3);
            oar_state_destroy(s.state);
            close_folder(NULL);
            open_folder(NULL);
            if (WIFEXITED(ended)) {
                assert_int_equal(WEXITSTATUS(ended), 0);
                assert_int_equal(s.step, 2);
                break;
            }
            assert_int_equal(WTERMSIG(ended), SIGKILL);
            kills++;
        }
    print_message("killed at %d places\n", kills);
    assert_true(kills > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_power_failure_loses_or_tears_a_generation),
        cmocka_unit_test(every_planted_mistake_is_found),
        cmocka_unit_test_setup_teardown(
            a_call_that_fails_leaves_older_generations, open_folder,
            close_folder),
        cmocka_unit_test_setup_teardown(
            a_process_killed_at_any_call_loses_nothing, open_folder,
            close_folder),
    };

    return cmocka_run_group_tests_name("checkpoint crash", tests, NULL, NULL);
}
