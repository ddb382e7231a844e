/* SPDX-License-Identifier: Apache-2.0 */
/* Saves in the background: they have the numbers of their step, whatever
 * happens to those afterwards; a failure comes with the next call, on all
 * ranks; and a run that goes on from one is the run that did not stop. Writes
 * are held up (support/held_disk.h) where a save has to be under way. */
#include "support/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/checkpoint.h>
#include <oarsong/layers.h>
#include <oarsong/log.h>
#include <oarsong/ops.h>
#include <oarsong/safetensors.h>
#include <oarsong/tape.h>

#include "support/held_disk.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"
#include "support/trained_net.h"

/* Runs a function on every backend, each time in a new folder, with writes that
 * can be held up. */
static void run_everywhere(int ranks, oar_rank_fn fn, void *arg)
{
    static const char *const backend[] = { "sim", "native", "tcp" };

    for (int i = 0; i < 3; i++) {
        runs_folder_renew();
        held_disk_use();
        if (ranks_run(backend[i], ranks, NULL, fn, arg) != OAR_OK)
            fail_msg("%s: %s", backend[i], oar_last_error_text());
        held_disk_stop();
    }
}

/* All ranks hold writes up, or let them go: they may be threads of one process.
 */
static oar_status hold_writes(oar_group *g)
{
    CHECK_OK(oar_barrier(g, NULL, NULL));
    held_disk_hold();
    return oar_barrier(g, NULL, NULL);
}

static oar_status let_writes_go(oar_group *g)
{
    CHECK_OK(oar_barrier(g, NULL, NULL));
    held_disk_let_go();
    return OAR_OK;
}

/* ---- numbers ------------------------------------------------------------- */

enum { BLOCK = 64 << 10, NUMBERS = 100000 };

static const oar_checkpoint_opts small_blocks = { .size = sizeof small_blocks,
                                                  .block_bytes = BLOCK,
                                                  .no_sync = 1 };

/* What all ranks hold, and what each has a part of. */
typedef struct step_numbers {
    oar_state *state;
    float *all, *part;
    int64_t step, parts; /* elements of the part */
} step_numbers;

static oar_status make_numbers(oar_group *g, step_numbers *n)
{
    oar_place place = { .size = sizeof place };
    oar_shape shape;

    CHECK_OK(oar_place_of_rank(OAR_SHAPE(NUMBERS), 0, oar_group_rank(g),
                               oar_group_size(g), &place, &shape));
    n->parts = shape.dim[0];
    n->step = 0;
    n->all = calloc(NUMBERS, sizeof *n->all);
    n->part = calloc((size_t)n->parts, sizeof *n->part);
    CHECK(n->all != NULL && n->part != NULL);
    CHECK_OK(oar_state_create(&n->state));
    CHECK_OK(oar_state_add_span(n->state, "model", "all",
                                oar_span_of(n->all, NUMBERS, OAR_F32),
                                OAR_SHAPE(NUMBERS), NULL));
    CHECK_OK(oar_state_add_span(n->state, "model", "part",
                                oar_span_of(n->part, (size_t)n->parts, OAR_F32),
                                shape, &place));
    return oar_state_add_i64(n->state, "step", &n->step);
}

static void set_numbers(step_numbers *n, int64_t step)
{
    n->step = step;
    for (int i = 0; i < NUMBERS; i++)
        n->all[i] = (float)(1000 * step + i);
    for (int64_t i = 0; i < n->parts; i++)
        n->part[i] = (float)(7 * step + i);
}

/* Returns whether they are those of a step. */
static int are_numbers(const step_numbers *n, int64_t step)
{
    int same = n->step == step;

    for (int i = 0; i < NUMBERS; i++)
        same &= n->all[i] == (float)(1000 * step + i);
    for (int64_t i = 0; i < n->parts; i++)
        same &= n->part[i] == (float)(7 * step + i);
    return same;
}

static void drop_numbers(step_numbers *n)
{
    oar_state_destroy(n->state);
    free(n->all);
    free(n->part);
}

/* Loads a step into new memory, and looks at it. */
static oar_status check_step(oar_group *g, oar_checkpoint *runs, int64_t step)
{
    step_numbers n;

    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_load(runs, n.state, step, NULL));
    CHECK(are_numbers(&n, step));
    drop_numbers(&n);
    return OAR_OK;
}

#define BACKGROUND OAR_OPTS(oar_save_opts, .background = 1)

static oar_status overwrite_after_save(oar_group *g, void *arg)
{
    oar_checkpoint_stats stats = { .size = sizeof stats };
    uint64_t share = 2 * NUMBERS * sizeof(float) / (uint64_t)oar_group_size(g);
    int done = 1, nice_before = getpriority(PRIO_PROCESS, 0);
    oar_checkpoint *runs;
    step_numbers n;

    (void)arg;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    CHECK_OK(oar_checkpoint_wait(runs));
    for (int64_t step = 1; step <= 3; step++) {
        set_numbers(&n, step);
        CHECK_OK(hold_writes(g));
        CHECK_OK(oar_checkpoint_save(runs, n.state, step, BACKGROUND));
        CHECK_OK(oar_checkpoint_copied(runs));
        CHECK_OK(oar_checkpoint_test(runs, &done));
        CHECK(!done);
        set_numbers(&n, 100 + step);
        if (step == 3)
            drop_numbers(&n);
        CHECK_OK(let_writes_go(g));
        CHECK_OK(oar_checkpoint_wait(runs));
        CHECK_OK(oar_checkpoint_wait(runs));
        CHECK_OK(oar_checkpoint_test(runs, &done));
        CHECK(done);
    }
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.step == 3 && stats.all_bytes == 2 * NUMBERS * sizeof(float));
    CHECK(stats.staging_bytes >= stats.bytes);
    /* a share of all, a header, and what the parts of large shares add */
    CHECK(stats.staging_bytes < share + share / 8 + 3 * 8192);
    CHECK(held_disk_nice() >= 10);
    CHECK(getpriority(PRIO_PROCESS, 0) == nice_before);
    CHECK(stats.stall_s > 0 && stats.copy_s > 0 &&
          stats.stall_s <= stats.total_s);
    for (int64_t step = 1; step <= 3; step++)
        CHECK_OK(check_step(g, runs, step));
    oar_checkpoint_close(runs);
    return OAR_OK;
}

static void a_background_save_has_the_numbers_of_its_step(void **state)
{
    (void)state;
    run_everywhere(3, overwrite_after_save, NULL);
}

/* ---- staging ------------------------------------------------------------- */

/* Saves through one block of memory: the call waits for the disk. */
static oar_status save_through_one_block(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = small_blocks;
    oar_checkpoint_stats stats = { .size = sizeof stats };
    const int *lazy = arg;
    oar_checkpoint *runs;
    step_numbers n;

    opts.staging_bytes = 1;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    for (int64_t step = 1; step <= 2; step++) {
        set_numbers(&n, step);
        CHECK_OK(oar_checkpoint_save(
            runs, n.state, step,
            OAR_OPTS(oar_save_opts, .background = 1, .lazy = *lazy)));
        CHECK_OK(oar_checkpoint_copied(runs));
        set_numbers(&n, 100 + step);
    }
    CHECK_OK(oar_checkpoint_wait(runs));
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.staging_bytes == BLOCK);
    for (int64_t step = 1; step <= 2; step++)
        CHECK_OK(check_step(g, runs, step));

    /* The step is there: nothing is written, and nothing waits for room. */
    CHECK_OK(oar_checkpoint_save(
        runs, n.state, 2,
        OAR_OPTS(oar_save_opts, .background = 1, .lazy = *lazy)));
    CHECK_OK(oar_checkpoint_copied(runs));
    CHECK(fails_with(oar_checkpoint_wait(runs), OAR_E_STATE, "step 2 already"));
    oar_checkpoint_close(runs);
    drop_numbers(&n);
    return OAR_OK;
}

static void staging_may_be_smaller_than_what_is_written(void **state)
{
    (void)state;
    for (int lazy = 0; lazy < 2; lazy++)
        run_everywhere(2, save_through_one_block, &lazy);
}

/* What is not as it is saved is converted on the way. */
static oar_status convert_in_background(oar_group *g, void *arg)
{
    oar_tensor *a = oar_uniform(NULL, OAR_F32, OAR_SHAPE(300, 200), 3, 0, 2);
    oar_tensor *turned = oar_transpose(NULL, a, 0, 1);
    oar_tensor *b = oar_zeros(NULL, OAR_BF16, OAR_SHAPE(200, 300));
    oar_tensor *want = oar_zeros(NULL, OAR_BF16, OAR_SHAPE(200, 300));
    const int *lazy = arg;
    oar_checkpoint *runs;
    oar_state *out, *in;

    CHECK(a != NULL && turned != NULL && b != NULL && want != NULL);
    CHECK_OK(oar_tensor_copy(want, turned));
    CHECK_OK(oar_state_create(&out));
    CHECK_OK(oar_state_create(&in));
    CHECK_OK(oar_state_add_tensor(out, "model", "a", turned, NULL));
    CHECK_OK(oar_state_add_tensor(out, "model", "b", a, NULL));
    CHECK_OK(oar_state_add_tensor(in, "model", "a", b, NULL));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    CHECK_OK(oar_checkpoint_save(runs, out, 1,
                                 OAR_OPTS(oar_save_opts, .background = 1,
                                          .lazy = *lazy, .has_dtype = 1,
                                          .dtype = OAR_BF16)));
    CHECK_OK(oar_checkpoint_copied(runs));
    CHECK_OK(oar_tensor_fill(a, 0));
    CHECK_OK(oar_checkpoint_load(
        runs, in, 1,
        OAR_OPTS(oar_load_opts, .no_convert = 1, .partial = OAR_LOAD_UNUSED)));
    CHECK(memcmp(oar_tensor_data(b), oar_tensor_data(want),
                 200 * 300 * sizeof(uint16_t)) == 0);
    oar_checkpoint_close(runs);
    oar_state_destroy(in);
    oar_state_destroy(out);
    oar_tensor_release(want);
    oar_tensor_release(b);
    oar_tensor_release(turned);
    oar_tensor_release(a);
    return OAR_OK;
}

static void what_lies_otherwise_is_converted(void **state)
{
    (void)state;
    for (int lazy = 0; lazy < 2; lazy++)
        run_everywhere(2, convert_in_background, &lazy);
}

/* ---- failures ------------------------------------------------------------ */

/* Checks that all ranks have the same last error. */
static oar_status same_text(oar_group *g)
{
    char mine[512], first[512];

    snprintf(mine, sizeof mine, "%s", oar_last_error_text());
    memcpy(first, mine, sizeof first);
    CHECK_OK(oar_broadcast(g, oar_span_of(first, sizeof first, OAR_U8), 0, NULL,
                           NULL));
    CHECK(strcmp(first, mine) == 0);
    return OAR_OK;
}

/* One rank's disk is full for a moment. */
static oar_status fill_one_disk(oar_group *g, void *arg)
{
    int threads = strcmp(oar_group_backend(g), "sim") == 0;
    oar_checkpoint *runs;
    int64_t newest;
    step_numbers n;
    int done;

    (void)arg;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    set_numbers(&n, 1);
    CHECK_OK(oar_checkpoint_save(runs, n.state, 1, BACKGROUND));
    CHECK_OK(oar_checkpoint_wait(runs));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    if (oar_group_rank(g) == 2)
        held_disk_fail(1, ENOSPC);
    CHECK_OK(oar_barrier(g, NULL, NULL));

    set_numbers(&n, 2);
    CHECK_OK(oar_checkpoint_save(runs, n.state, 2, BACKGROUND));
    CHECK(fails_with(oar_checkpoint_save(runs, n.state, 3, BACKGROUND),
                     OAR_E_SYSTEM, threads ? "write " : "rank 2: write "));
    CHECK(oar_last_error()->sys_errno == ENOSPC);
    CHECK_OK(same_text(g));
    CHECK(oar_checkpoint_test(runs, &done) == OAR_E_SYSTEM && done);
    CHECK_OK(oar_checkpoint_newest(runs, &newest));
    CHECK(newest == 1);

    /* It has been told: the next call saves. */
    set_numbers(&n, 3);
    CHECK_OK(oar_checkpoint_save(runs, n.state, 3, BACKGROUND));
    CHECK_OK(oar_checkpoint_wait(runs));
    CHECK_OK(check_step(g, runs, 1));
    CHECK_OK(check_step(g, runs, 3));

    /* A failure that wait has told does not come again; a test tells nobody. */
    CHECK_OK(oar_checkpoint_save(runs, n.state, 3, BACKGROUND));
    CHECK(oar_checkpoint_wait(runs) == OAR_E_STATE);
    CHECK(oar_checkpoint_wait(runs) == OAR_E_STATE);
    CHECK(oar_checkpoint_test(runs, &done) == OAR_E_STATE && done);
    set_numbers(&n, 4);
    CHECK_OK(oar_checkpoint_save(runs, n.state, 4, NULL));
    CHECK_OK(oar_checkpoint_wait(runs));
    CHECK_OK(check_step(g, runs, 4));
    oar_checkpoint_close(runs);
    drop_numbers(&n);
    return OAR_OK;
}

static void
a_background_failure_comes_with_the_next_call_on_all_ranks(void **state)
{
    (void)state;
    run_everywhere(3, fill_one_disk, NULL);
}

static oar_status refuse_to_wait(oar_group *g, void *arg)
{
    const oar_save_opts no_wait = { .size = sizeof no_wait,
                                    .background = 1,
                                    .no_wait = 1 };
    oar_checkpoint *runs;
    step_numbers n;

    (void)arg;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    set_numbers(&n, 1);
    CHECK_OK(hold_writes(g));
    CHECK_OK(oar_checkpoint_save(runs, n.state, 1, &no_wait));
    for (int64_t step = 2; step <= 4; step++)
        CHECK(fails_with(oar_checkpoint_save(runs, n.state, step, &no_wait),
                         OAR_E_STATE, "is still under way"));
    CHECK(fails_with(oar_checkpoint_save(runs, n.state, -4, &no_wait),
                     OAR_E_ARG, "step -4"));
    CHECK(fails_with(oar_checkpoint_save(runs, n.state, 2,
                                         OAR_OPTS(oar_save_opts, .lazy = 1)),
                     OAR_E_ARG, "lazy"));
    CHECK(fails_with(
        oar_checkpoint_save(runs, n.state, oar_group_rank(g), BACKGROUND),
        OAR_E_MISMATCH, "different steps: 0 and 1"));
    CHECK(fails_with(
        oar_checkpoint_save(runs, n.state, 2,
                            OAR_OPTS(oar_save_opts, .background = 1,
                                     .keep = oar_group_rank(g) == 1)),
        OAR_E_MISMATCH,
        "different options: .background and .background .keep"));
    CHECK_OK(let_writes_go(g));
    CHECK_OK(oar_checkpoint_wait(runs));
    set_numbers(&n, 5);
    CHECK_OK(oar_checkpoint_save(runs, n.state, 5, &no_wait));
    CHECK_OK(oar_checkpoint_wait(runs));
    CHECK_OK(check_step(g, runs, 1));
    CHECK_OK(check_step(g, runs, 5));
    oar_checkpoint_close(runs);
    drop_numbers(&n);
    return OAR_OK;
}

static void
a_call_that_does_not_want_to_wait_is_refused_on_all_ranks(void **state)
{
    (void)state;
    run_everywhere(2, refuse_to_wait, NULL);
}

/* ---- the end ------------------------------------------------------------- */

static atomic_int logged;

static void count_line(void *arg, oar_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    if (strstr(line, "the last save to ") != NULL &&
        strstr(line, "step 1 already") != NULL)
        atomic_fetch_add(&logged, 1);
}

static void *let_go_soon(void *arg)
{
    (void)arg;
    held_disk_let_go();
    return NULL;
}

static oar_status close_while_saving(oar_group *g, void *arg)
{
    oar_checkpoint *runs;
    pthread_t thread;
    step_numbers n;

    (void)arg;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    set_numbers(&n, 1);
    CHECK_OK(hold_writes(g));
    CHECK_OK(oar_checkpoint_save(runs, n.state, 1, BACKGROUND));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK(pthread_create(&thread, NULL, let_go_soon, NULL) == 0);
    oar_checkpoint_close(runs);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* the lock is free */

    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    CHECK_OK(check_step(g, runs, 1));
    /* It fails, and nobody asks. */
    CHECK_OK(oar_checkpoint_save(runs, n.state, 1, BACKGROUND));
    oar_checkpoint_close(runs);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK(atomic_load(&logged) > 0);
    drop_numbers(&n);
    return oar_barrier(g, NULL, NULL);
}

static void close_waits_for_the_save_and_logs_its_failure(void **state)
{
    leak_check before;

    (void)state;
    oar_log_to(count_line, NULL, OAR_LOG_WARN);
    run_everywhere(2, close_while_saving, NULL);
    before = leak_check_begin();
    run_everywhere(2, close_while_saving, NULL);
    leak_check_end(&before);
    oar_log_to(NULL, NULL, OAR_LOG_WARN);
}

/* ---- training ------------------------------------------------------------ */

enum { WIDTH = 60, HIDDEN = 700, STEPS = 9, STOP = 4 };

static oar_status make_training(oar_group *g, int stage, trained_net *t)
{
    CHECK_OK(trained_net_make(t, g, stage, WIDTH, HIDDEN));
    return oar_loader_start(t->loader, 0, 0);
}

static int same_tensor(const oar_tensor *a, const oar_tensor *b)
{
    return memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                  (size_t)oar_tensor_count(a) *
                      oar_dtype_size(oar_tensor_dtype(a))) == 0;
}

/* Returns whether two networks have the same parameters and buffers. All ranks
 * have the same buffers, but of DDP only before a forward. */
static int same_net(const trained_net *a, const trained_net *b)
{
    int same = trained_net_same_params(a, b);

    for (int i = 0; same && i < oar_module_buffers(a->net); i++)
        same = same_tensor(oar_module_buffer(a->net, i),
                           oar_module_buffer(b->net, i));
    return same;
}

typedef struct resume_case {
    int stage, lazy;
    size_t staging_bytes;
} resume_case;

/* Training goes on while the save is under way. */
static oar_status stop_and_go_on(oar_group *g, void *arg)
{
    const resume_case *r = arg;
    oar_checkpoint_opts opts = small_blocks;
    trained_net whole, first, second;
    oar_checkpoint *runs;

    opts.staging_bytes = r->staging_bytes;
    CHECK_OK(make_training(g, r->stage, &whole));
    CHECK_OK(trained_net_train(&whole, STEPS));
    CHECK_OK(make_training(g, r->stage, &first));
    CHECK_OK(trained_net_train(&first, STOP));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_save(
        runs, first.state, first.step,
        OAR_OPTS(oar_save_opts, .background = 1, .lazy = r->lazy)));
    CHECK_OK(trained_net_train(&first, STOP + 2));
    CHECK_OK(oar_checkpoint_save(
        runs, first.state, first.step,
        OAR_OPTS(oar_save_opts, .background = 1, .lazy = r->lazy)));
    trained_net_drop(&first);

    for (int64_t step = STOP; step <= STOP + 2; step += 2) {
        CHECK_OK(make_training(g, r->stage, &second));
        CHECK_OK(oar_checkpoint_load(runs, second.state, step, NULL));
        CHECK(second.step == step);
        CHECK_OK(trained_net_train(&second, STEPS));
        CHECK(same_net(&whole, &second));
        trained_net_drop(&second);
    }
    CHECK_OK(oar_checkpoint_wait(runs));
    oar_checkpoint_close(runs);
    trained_net_drop(&whole);
    return OAR_OK;
}

static void a_run_goes_on_from_a_background_save_bitwise(void **state)
{
    static const char *const backend[] = { "native", "tcp" };

    (void)state;
    for (int i = 0; i < 10; i++) {
        resume_case r = { .stage = i & 1 ? 1 + (i / 2 ^ i / 4) % 2 : 0,
                          .lazy = i >> 1 & 1,
                          .staging_bytes = i & 4 ? BLOCK : 0 };

        runs_folder_renew();
        if (ranks_run(i < 8 ? "sim" : backend[i - 8], 1 + i % 3, NULL,
                      stop_and_go_on, &r) != OAR_OK)
            fail_msg("case %d: %s", i, oar_last_error_text());
    }
}

/* ---- lazy saves ---------------------------------------------------------- */

/* Hooks before and behind the one that waits, and the thread that lets the disk
 * go once the step has begun. */
typedef struct lazy_step {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int begun, passed; /* the hooks were called */
    int early;         /* the second one before the disk was let go */
} lazy_step;

static oar_status note_begun(oar_optim *optim, void *arg)
{
    lazy_step *l = arg;

    (void)optim;
    pthread_mutex_lock(&l->lock);
    l->begun = 1;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return OAR_OK;
}

static oar_status note_passed(oar_optim *optim, void *arg)
{
    lazy_step *l = arg;

    (void)optim;
    pthread_mutex_lock(&l->lock);
    l->passed = 1;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return OAR_OK;
}

/* A step that does not wait has a moment to show that. */
static void *let_go_in_step(void *arg)
{
    lazy_step *l = arg;
    struct timespec until;

    pthread_mutex_lock(&l->lock);
    while (!l->begun)
        pthread_cond_wait(&l->changed, &l->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 200 * 1000 * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!l->passed &&
           pthread_cond_timedwait(&l->changed, &l->lock, &until) == 0)
        continue;
    l->early = l->passed;
    pthread_mutex_unlock(&l->lock);
    held_disk_let_go();
    return NULL;
}

static oar_status step_while_copying(oar_group *g, void *arg)
{
    const int *stage = arg;
    lazy_step l = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0,
                    0 };
    oar_checkpoint_opts opts = small_blocks;
    trained_net saved, other, loaded;
    oar_hook *before, *behind;
    oar_checkpoint *runs;
    pthread_t thread;

    opts.staging_bytes = BLOCK;
    CHECK_OK(make_training(g, *stage, &saved));
    CHECK_OK(make_training(g, *stage, &other));
    CHECK_OK(trained_net_train(&saved, STOP));
    CHECK_OK(trained_net_train(&other, STOP)); /* a twin that stays there */
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_optim_on_step(saved.optim, note_begun, &l, &before));
    CHECK_OK(hold_writes(g));
    CHECK_OK(oar_checkpoint_save(
        runs, saved.state, STOP,
        OAR_OPTS(oar_save_opts, .background = 1, .lazy = 1)));
    CHECK_OK(oar_optim_on_step(saved.optim, note_passed, &l, &behind));
    CHECK(pthread_create(&thread, NULL, let_go_in_step, &l) == 0);
    CHECK_OK(trained_net_train(&saved, STOP + 1));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(l.begun && l.passed && !l.early);
    CHECK(!same_net(&saved, &other));

    CHECK_OK(make_training(g, *stage, &loaded));
    CHECK_OK(oar_checkpoint_load(runs, loaded.state, STOP, NULL));
    CHECK(oar_group_rank(g) == 0 ? same_net(&loaded, &other)
                                 : trained_net_same_params(&loaded, &other));
    CHECK_OK(trained_net_train(&loaded, STEPS));
    CHECK_OK(trained_net_train(&saved, STEPS));
    CHECK(same_net(&loaded, &saved));
    oar_hook_remove(before);
    oar_hook_remove(behind);
    oar_checkpoint_close(runs);
    trained_net_drop(&loaded);
    trained_net_drop(&other);
    trained_net_drop(&saved);
    return OAR_OK;
}

/* Each rank has a disk of its own to hold up, so that ranks are processes, or
 * one thread. */
static void a_step_waits_until_a_lazy_save_has_copied(void **state)
{
    static const char *const backend[] = { "sim", "native", "tcp" };

    (void)state;
    for (int i = 0; i < 6; i++) {
        int stage = i & 1 ? 1 + i % 4 / 2 : 0;

        runs_folder_renew();
        held_disk_use();
        assert_int_equal(ranks_run(backend[i / 2], i < 2 ? 1 : 2, NULL,
                                   step_while_copying, &stage),
                         OAR_OK);
        held_disk_stop();
    }
}

/* ---- fork ---------------------------------------------------------------- */

/* What a child made by fork does; returns its exit code. */
static int use_in_child(oar_checkpoint *runs, trained_net *t, step_numbers *n)
{
    int done;

    if (oar_checkpoint_save(runs, n->state, 9, BACKGROUND) != OAR_E_STATE ||
        oar_checkpoint_wait(runs) != OAR_E_STATE ||
        oar_checkpoint_test(runs, &done) != OAR_E_STATE)
        return 1;
    if (oar_optim_step(t->optim) != OAR_OK) /* nobody copies here */
        return 2;
    oar_state_destroy(t->state);
    oar_state_destroy(n->state);
    oar_checkpoint_close(runs);
    return 0;
}

static oar_status fork_while_saving(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = small_blocks;
    oar_checkpoint *runs;
    trained_net t, other;
    step_numbers n;
    pid_t child;
    int ended;

    (void)arg;
    opts.staging_bytes = BLOCK;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(make_training(g, 0, &t));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(hold_writes(g));
    CHECK_OK(oar_checkpoint_save(
        runs, t.state, 1, OAR_OPTS(oar_save_opts, .background = 1, .lazy = 1)));
    child = fork();
    if (child == 0)
        _exit(use_in_child(runs, &t, &n));
    CHECK(child > 0 && waitpid(child, &ended, 0) == child);
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    CHECK_OK(let_writes_go(g));
    CHECK_OK(oar_checkpoint_wait(runs));
    CHECK_OK(make_training(g, 0, &other));
    CHECK_OK(oar_checkpoint_load(runs, other.state, 1, NULL));
    CHECK(trained_net_same_params(&t, &other));
    oar_checkpoint_close(runs);
    trained_net_drop(&other);
    trained_net_drop(&t);
    drop_numbers(&n);
    return OAR_OK;
}

static void a_child_made_by_fork_leaves_the_save_alone(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* its runtime does not outlive a fork of several threads */
#endif
    runs_folder_renew();
    held_disk_use();
    assert_int_equal(ranks_run("native", 2, NULL, fork_while_saving, NULL),
                     OAR_OK);
    held_disk_stop();
}

/* ---- replicas and aliases ------------------------------------------------ */

static oar_status save_different_replicas(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = small_blocks;
    oar_checkpoint *runs;
    uint32_t bits;
    step_numbers n;

    (void)arg;
    opts.check_replicas = 1;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    set_numbers(&n, 1);
    CHECK_OK(oar_checkpoint_save(runs, n.state, 1, NULL));
    CHECK_OK(oar_checkpoint_save(runs, n.state, 2, BACKGROUND));
    CHECK_OK(oar_checkpoint_wait(runs));
    memcpy(&bits, &n.all[NUMBERS - 1], sizeof bits);
    bits ^= oar_group_rank(g) == 1;
    memcpy(&n.all[NUMBERS - 1], &bits, sizeof bits);
    for (int background = 0; background < 2; background++) {
        CHECK(fails_with(
            oar_checkpoint_save(
                runs, n.state, 3,
                OAR_OPTS(oar_save_opts, .background = background)),
            OAR_E_MISMATCH,
            "\"model/all\" [0:100000] differs between rank 0 and rank 1"));
        CHECK_OK(same_text(g));
    }
    set_numbers(&n, 3);
    CHECK_OK(oar_checkpoint_save(runs, n.state, 3, BACKGROUND));
    CHECK_OK(check_step(g, runs, 3));
    oar_checkpoint_close(runs);
    drop_numbers(&n);
    return OAR_OK;
}

static void replicas_that_differ_are_named(void **state)
{
    (void)state;
    run_everywhere(3, save_different_replicas, NULL);
}

/* A stage of a pipeline on rank 1 has tied parameters; rank 0 has others. */
static oar_status save_aliases(oar_group *g, void *arg)
{
    oar_tensor *a = oar_uniform(NULL, OAR_F32, OAR_SHAPE(5), 3, 0, 2);
    oar_tensor *b = oar_zeros(NULL, OAR_F32, OAR_SHAPE(5));
    int rank = oar_group_rank(g);
    oar_module *layer[2], *tied;
    oar_state *out, *in;
    oar_checkpoint *runs;
    char prefix[16];

    (void)arg;
    CHECK_OK(oar_linear_create(5, 5, 1, NULL, &layer[0]));
    layer[1] = oar_module_retain(layer[0]); /* the same layer twice */
    CHECK_OK(oar_sequential_create(2, layer, &tied));
    CHECK_OK(oar_state_create(&out));
    snprintf(prefix, sizeof prefix, "s%d.", rank);
    if (rank == 1)
        CHECK_OK(oar_state_add_module(out, tied, prefix));
    CHECK_OK(oar_state_add_tensor(out, "model", "x", a, NULL));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    CHECK_OK(oar_checkpoint_save(runs, out, 1, NULL));
    CHECK_OK(oar_checkpoint_save(runs, out, 2, BACKGROUND));

    /* "s1.1.bias" is only there as an alias. */
    CHECK_OK(oar_state_create(&in));
    CHECK_OK(oar_state_add_tensor(in, "model", "s1.1.bias", b, NULL));
    for (int64_t step = 1; step <= 2; step++) {
        CHECK_OK(oar_tensor_fill(b, 9));
        CHECK_OK(oar_checkpoint_load(runs, in, step,
                                     OAR_OPTS(oar_load_opts,
                                              .partial = OAR_LOAD_UNUSED,
                                              .sections = "model")));
        CHECK(same_tensor(b, oar_module_param(tied, 1)));
    }
    oar_checkpoint_close(runs);
    oar_state_destroy(in);
    oar_state_destroy(out);
    oar_module_release(tied);
    oar_tensor_release(b);
    oar_tensor_release(a);
    return OAR_OK;
}

static void aliases_of_every_rank_are_in_the_index(void **state)
{
    (void)state;
    run_everywhere(2, save_aliases, NULL);
}

/* ---- loads that are shared ----------------------------------------------- */

enum { ROWS = 330, COLUMNS = 1000, TENSORS = 4 };

/* Tensors of which each rank saves its rows. */
static oar_status save_rows(oar_group *g, oar_checkpoint *runs)
{
    oar_shape whole = OAR_SHAPE(ROWS, COLUMNS), shape;
    oar_place place = { .size = sizeof place };
    oar_tensor *all, *part[TENSORS];
    oar_state *state;
    char name[16];

    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_place_of_rank(whole, 0, oar_group_rank(g), oar_group_size(g),
                               &place, &shape));
    for (int i = 0; i < TENSORS; i++) {
        all = oar_uniform(NULL, OAR_F32, whole, (uint64_t)i, 0, 2);
        part[i] = oar_narrow(NULL, all, 0, place.offset[0], shape.dim[0]);
        CHECK(part[i] != NULL);
        oar_tensor_release(all);
        snprintf(name, sizeof name, "t%d", i);
        CHECK_OK(oar_state_add_tensor(state, "model", name, part[i], &place));
    }
    CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    oar_state_destroy(state);
    for (int i = 0; i < TENSORS; i++)
        oar_tensor_release(part[i]);
    return OAR_OK;
}

/* Returns whether a tensor is columns first .. of tensor i, converted. */
static int is_saved(const oar_tensor *got, int i, int64_t first)
{
    oar_tensor *all =
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(ROWS, COLUMNS), (uint64_t)i, 0, 2);
    oar_tensor *cut =
        oar_narrow(NULL, all, 1, first, oar_tensor_shape(got).dim[1]);
    oar_tensor *want =
        oar_zeros(NULL, oar_tensor_dtype(got), oar_tensor_shape(got));
    int same = oar_tensor_copy(want, cut) == OAR_OK && same_tensor(want, got);

    oar_tensor_release(want);
    oar_tensor_release(cut);
    oar_tensor_release(all);
    return same;
}

/* Loads t0 and t1 on all ranks, one of them converted, t2 on ranks 0 and 1, and
 * of t3 half the columns, the same on ranks 0 and 1. Gives the bytes that all
 * ranks have read. */
static oar_status load_rows(oar_group *g, oar_checkpoint *runs, int share,
                            uint64_t *read)
{
    oar_shape whole = OAR_SHAPE(ROWS, COLUMNS), half = OAR_SHAPE(ROWS, 500);
    oar_checkpoint_stats stats = { .size = sizeof stats };
    int rank = oar_group_rank(g);
    oar_tensor *into[TENSORS] = { oar_zeros(NULL, OAR_F32, whole),
                                  oar_zeros(NULL, OAR_F64, whole),
                                  oar_zeros(NULL, OAR_F32, whole),
                                  oar_zeros(NULL, OAR_F32, half) };
    oar_place place = { .size = sizeof place, .whole = whole };
    oar_state *state;
    char name[16];

    CHECK_OK(oar_state_create(&state));
    place.offset[1] = rank == 2 ? 500 : 0;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "t%d", i);
        if (i != 2 || rank < 2)
            CHECK_OK(oar_state_add_tensor(state, "model", name, into[i],
                                          i == 3 ? &place : NULL));
    }
    CHECK_OK(oar_checkpoint_load(runs, state, 1,
                                 OAR_OPTS(oar_load_opts, .share = share)));
    for (int i = 0; i < TENSORS; i++)
        CHECK((i == 2 && rank == 2) ||
              is_saved(into[i], i, i == 3 ? place.offset[1] : 0));
    oar_state_destroy(state);
    for (int i = 0; i < TENSORS; i++)
        oar_tensor_release(into[i]);
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.wanted_bytes > 0 && stats.wanted_bytes <= stats.bytes);
    *read = stats.bytes;
    return oar_all_reduce(g, oar_span_of(read, 1, OAR_U64), OAR_SUM, NULL,
                          NULL);
}

static oar_status load_in_both_ways(oar_group *g, void *arg)
{
    uint64_t all = TENSORS * ROWS * COLUMNS * sizeof(float), alone, shared;
    oar_checkpoint *runs;

    (void)arg;
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    CHECK_OK(save_rows(g, runs));
    CHECK_OK(load_rows(g, runs, -1, &alone));
    CHECK(alone > 2 * all);
    CHECK_OK(load_rows(g, runs, 0, &shared)); /* they are on one host */
    CHECK(shared == alone);
    if (strcmp(oar_group_backend(g), "sim") != 0) { /* pretend it is three */
        char host[16];

        snprintf(host, sizeof host, "host-%d", oar_group_rank(g));
        CHECK(setenv("OARSONG_HOST_ID", host, 1) == 0);
        CHECK_OK(load_rows(g, runs, 0, &shared));
        CHECK(shared < all + all / 2);
    }
    CHECK_OK(load_rows(g, runs, 1, &shared));
    /* once, but for t3, of which rank 2 wants columns of its own */
    CHECK(shared < all + all / 2);
    oar_checkpoint_close(runs);
    return OAR_OK;
}

static void shared_loads_give_the_same_and_read_less(void **state)
{
    (void)state;
    run_everywhere(3, load_in_both_ways, NULL);
}

/* One rank finds a damaged block; all fail, and the group goes on. */
static oar_status load_damaged(oar_group *g, void *arg)
{
    float *into = calloc(ROWS * COLUMNS, sizeof *into);
    char name[FOLDER_PATH + 128];
    oar_checkpoint *runs;
    oar_state *state;
    FILE *file;

    (void)arg;
    CHECK_OK(oar_checkpoint_open(g, runs_path, &small_blocks, &runs));
    CHECK_OK(save_rows(g, runs));
    if (oar_group_rank(g) == 0) {
        snprintf(name, sizeof name,
                 "%s/step-000000000001/model/"
                 "shard-00002-model-00001-of-00001.safetensors",
                 runs_path);
        file = fopen(name, "r+");
        CHECK(file != NULL && fseek(file, 200000, SEEK_SET) == 0);
        CHECK(fputc(7, file) == 7 && fclose(file) == 0);
    }
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_span(state, "model", "t0",
                                oar_span_of(into, ROWS * COLUMNS, OAR_F32),
                                OAR_SHAPE(ROWS, COLUMNS), NULL));
    CHECK(fails_with(oar_checkpoint_load(runs, state, 1,
                                         OAR_OPTS(oar_load_opts, .share = 1,
                                                  .partial = OAR_LOAD_UNUSED)),
                     OAR_E_DATA, "is damaged"));
    CHECK_OK(same_text(g));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    free(into);
    return oar_barrier(g, NULL, NULL);
}

static void a_damaged_block_fails_a_shared_load_on_all_ranks(void **state)
{
    (void)state;
    run_everywhere(3, load_damaged, NULL);
}

/* ---- memory -------------------------------------------------------------- */

/* Opens a folder, saves in the background, loads and closes, in one process. */
static oar_status save_alone(void *arg)
{
    static float number[3 * BLOCK / sizeof(float)];
    size_t count = sizeof number / sizeof *number;
    oar_checkpoint *runs = NULL;
    oar_state *state = NULL;
    oar_status status;
    int done;

    runs_folder_renew(); /* an earlier try may have left a generation */
    status = oar_checkpoint_open(NULL, runs_path, &small_blocks, &runs);
    if (status == OAR_OK)
        status = oar_state_create(&state);
    if (status == OAR_OK)
        status = oar_state_add_span(state, "model", "n",
                                    oar_span_of(number, count, OAR_F32),
                                    OAR_SHAPE((int64_t)count), NULL);
    if (status == OAR_OK)
        status = oar_checkpoint_save(runs, state, 1, arg);
    if (status == OAR_OK)
        status = oar_checkpoint_wait(runs);
    if (status == OAR_OK)
        status = oar_checkpoint_test(runs, &done);
    if (status == OAR_OK)
        status = oar_checkpoint_load(runs, state, 1, NULL);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return status;
}

static void without_memory_a_background_save_fails_whole(void **state)
{
    oar_save_opts opts = { .size = sizeof opts, .background = 1 };

    (void)state;
    fail_each_allocation(save_alone, &opts);
    opts.lazy = 1;
    fail_each_allocation(save_alone, &opts);
}

/* ---- pruning and importing ----------------------------------------------- */

static void *let_go_later(void *arg)
{
    (void)arg;
    usleep(50000); /* any time is right: the prune has to wait for it */
    held_disk_let_go();
    return NULL;
}

/* Keeps whether the save was over when a step was to be removed. */
typedef struct pruned {
    oar_checkpoint *runs;
    int64_t steps;
    int over;
} pruned;

static void see_pruned(void *arg, int64_t step)
{
    pruned *p = arg;

    p->steps += step;
    (void)oar_checkpoint_test(p->runs, &p->over);
}

static oar_status prune_while_saving(oar_group *g, void *arg)
{
    pruned p = { .over = -1 };
    char left[sizeof runs_path + 40];
    oar_checkpoint_opts opts = small_blocks;
    pthread_t thread;
    step_numbers n;

    (void)arg;
    CHECK_OK(make_numbers(g, &n));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &p.runs));
    for (int64_t step = 1; step <= 2; step++)
        CHECK_OK(oar_checkpoint_save(p.runs, n.state, step, NULL));
    oar_checkpoint_close(p.runs);
    opts.keep = 2;
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &p.runs));
    /* as a prune leaves it that could not remove all */
    snprintf(left, sizeof left, "%s/step-000000000000.part-old", runs_path);
    if (oar_group_rank(g) == 0)
        CHECK(mkdir(left, 0777) == 0);
    CHECK_OK(hold_writes(g));
    CHECK_OK(oar_checkpoint_save(p.runs, n.state, 3, BACKGROUND));
    CHECK(pthread_create(&thread, NULL, let_go_later, NULL) == 0);
    CHECK_OK(oar_checkpoint_prune(p.runs, see_pruned, &p));
    CHECK(pthread_join(thread, NULL) == 0);
    /* The save has pruned step 1 itself. */
    CHECK(p.steps == 0 && p.over == -1);
    CHECK(access(left, F_OK) != 0);
    oar_checkpoint_close(p.runs);
    drop_numbers(&n);
    return OAR_OK;
}

static void a_prune_waits_for_the_save(void **state)
{
    (void)state;
    run_everywhere(3, prune_while_saving, NULL);
}

static void an_import_in_the_background_returns_its_failure(void **state)
{
    const char *const name[] = { "w" };
    char file[sizeof runs_folder + 32];
    oar_tensor *zeros = oar_zeros(NULL, OAR_F32, OAR_SHAPE(NUMBERS));

    (void)state;
    snprintf(file, sizeof file, "%s/w.safetensors", runs_folder);
    assert_true(oar_safetensors_save(file, 1, name, &zeros, 0, NULL) == OAR_OK);
    held_disk_use();
    held_disk_fail(1, ENOSPC);
    assert_fails_with(oar_checkpoint_import(file, runs_path, 1, BACKGROUND),
                      OAR_E_SYSTEM, "write ");
    assert_true(oar_checkpoint_import(file, runs_path, 1, BACKGROUND) ==
                OAR_OK);
    held_disk_stop();
    oar_tensor_release(zeros);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, runs_folder_make, runs_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_background_save_has_the_numbers_of_its_step),
        TEST(staging_may_be_smaller_than_what_is_written),
        TEST(what_lies_otherwise_is_converted),
        TEST(a_background_failure_comes_with_the_next_call_on_all_ranks),
        TEST(a_call_that_does_not_want_to_wait_is_refused_on_all_ranks),
        TEST(close_waits_for_the_save_and_logs_its_failure),
        TEST(a_prune_waits_for_the_save),
        TEST(an_import_in_the_background_returns_its_failure),
        TEST(a_run_goes_on_from_a_background_save_bitwise),
        TEST(a_step_waits_until_a_lazy_save_has_copied),
        TEST(a_child_made_by_fork_leaves_the_save_alone),
        TEST(replicas_that_differ_are_named),
        TEST(aliases_of_every_rank_are_in_the_index),
        TEST(without_memory_a_background_save_fails_whole),
        TEST(shared_loads_give_the_same_and_read_less),
        TEST(a_damaged_block_fails_a_shared_load_on_all_ranks),
    };

    return cmocka_run_group_tests_name("checkpoint_background", tests, NULL,
                                       NULL);
}
