/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a pipeline that dies, stops, fails or has no memory, at any moment
 * of any action: the others end in time with an error that names stage, action
 * and micro-batch, what is left of the world goes on, and a new pipeline works.
 * With OARSONG_TEST_ALL every moment of every rank is struck; else some are. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/layers.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/pipeline.h>

#include "support/last_error.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWLY = 4 };
#else
enum { SLOWLY = 1 };
#endif

enum { WIDTH = 5, RANKS = 3, STAGES = 6, AT_ONCE = 6 };
enum { TIMEOUT_MS = 1000 * SLOWLY, NEVER = -1 };

typedef enum strike_way {
    BY_FAILURE, /* a hook of the module fails */
    NO_MEMORY,  /* the next allocation does */
    BY_SIGNAL
} strike_way;

typedef struct pipe_fault {
    oar_schedule_kind kind;
    int ranks, micro;
    int victim, moment; /* how many moments that rank passes before */
    strike_way way;
    int signal;
    shared_flag over;   /* ranks that have seen what they should */
    int moments[RANKS]; /* in a step, of each rank */
} pipe_fault;

/* ---- a rank -------------------------------------------------------------- */

typedef struct staged_rank staged_rank;

typedef struct watched_stage {
    staged_rank *t;
    int index;
    int forwards, backwards; /* begun in this step */
    oar_module *module;
    oar_hook *hook[5];
} watched_stage;

struct staged_rank {
    pipe_fault *f;
    int rank, ranks;
    int armed;   /* the step is the one that is struck */
    int moments; /* passed in it */
    int struck;
    char action[2][32]; /* what was struck, as errors call it; micro-batch */
    oar_schedule *schedule;
    oar_pipeline *pipe;
    int stages;
    watched_stage stage[STAGES];
};

/* A moment is before or after a stage's forward or backward, or in the middle
 * of the latter, when the gradient of its weight is there: in W, if that is
 * apart. */
static oar_status pass_moment(watched_stage *s, const char *act, int micro)
{
    staged_rank *t = s->t;

    if (!t->armed || t->rank != t->f->victim || t->moments++ != t->f->moment)
        return OAR_OK;
    t->struck = 1;
    snprintf(t->action[0], sizeof t->action[0], "stage %d, %s", s->index, act);
    if (micro >= 0)
        snprintf(t->action[1], sizeof t->action[1],
                 " of micro-batch %d: ", micro);
    if (t->f->way == BY_SIGNAL)
        raise(t->f->signal);
    else if (t->f->way == NO_MEMORY)
        oar_memory_fail_after(1);
    return t->f->way == BY_FAILURE ? OAR_E_DATA : OAR_OK;
}

static oar_status begin_forward(oar_tape *tape, oar_module *m, void *arg)
{
    watched_stage *s = arg;

    return pass_moment(s, "F", s->t->armed ? s->forwards++ : 0);
}

static oar_status end_forward(oar_tape *tape, oar_module *m, void *arg)
{
    watched_stage *s = arg;

    return pass_moment(s, "F", s->forwards - 1);
}

static oar_status begin_backward(oar_tape *tape, oar_module *m, void *arg)
{
    watched_stage *s = arg;

    return pass_moment(s, "", s->t->armed ? s->backwards++ : 0);
}

static oar_status end_backward(oar_tape *tape, oar_module *m, void *arg)
{
    watched_stage *s = arg;

    return pass_moment(s, "", s->backwards - 1);
}

static oar_status have_gradient(oar_tensor *weight, void *arg)
{
    return pass_moment(arg, "", -1);
}

static oar_status watch(watched_stage *s)
{
    static const oar_module_fn fn[] = { begin_forward, end_forward,
                                        begin_backward, end_backward };

    for (int i = 0; i < 4; i++)
        CHECK_OK(oar_module_on(s->module, (oar_module_moment)i, fn[i], s,
                               &s->hook[i]));
    return oar_tensor_on_grad(oar_module_param(s->module, 0), have_gradient, s,
                              &s->hook[4]);
}

static oar_tensor *mean_of(void *arg, oar_tape *tape, int micro,
                           oar_tensor *const *out, int targets,
                           oar_tensor *const *target)
{
    return oar_mean(tape, oar_mul(tape, out[0], out[0]));
}

static oar_status make_stages(staged_rank *t, oar_stage *stage)
{
    for (int s = 0; s < oar_schedule_stages(t->schedule); s++) {
        watched_stage *w = &t->stage[t->stages];

        if (oar_schedule_rank_of(t->schedule, s) != t->rank)
            continue;
        *w = (watched_stage){ .t = t, .index = s };
        CHECK_OK(oar_linear_create(WIDTH, WIDTH, (uint64_t)s,
                                   OAR_OPTS(oar_linear_opts, .no_bias = 1),
                                   &w->module));
        CHECK_OK(watch(w));
        stage[t->stages] = oar_stage_init();
        stage[t->stages].index = s;
        stage[t->stages++].module = w->module;
    }
    return OAR_OK;
}

/* Makes the pipeline. A failure of that itself is returned without a word. */
static oar_status begin_training(staged_rank *t, oar_group *g,
                                 oar_schedule_kind kind)
{
    oar_stage stage[STAGES];

    t->rank = oar_group_rank(g);
    t->ranks = oar_group_size(g);
    CHECK_OK(
        oar_schedule_make(kind, t->ranks, t->f->micro, NULL, &t->schedule));
    CHECK_OK(make_stages(t, stage));
    return oar_pipeline_create(g, t->schedule, t->stages, stage,
                               OAR_OPTS(oar_pipeline_opts, .loss = mean_of),
                               &t->pipe);
}

static void end_training(staged_rank *t)
{
    oar_pipeline_destroy(t->pipe);
    for (int s = 0; s < t->stages; s++) {
        for (int i = 0; i < 5; i++)
            oar_hook_remove(t->stage[s].hook[i]);
        oar_module_release(t->stage[s].module);
    }
    oar_schedule_release(t->schedule);
}

static oar_status run_step(staged_rank *t)
{
    oar_tensor *x =
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(2 * t->f->micro, WIDTH), 1, -1, 1);
    oar_pipeline_batch batch = oar_pipeline_batch_init();
    oar_status status;

    batch.inputs = oar_schedule_rank_of(t->schedule, 0) == t->rank;
    batch.input = &x;
    status = oar_pipeline_step(t->pipe, &batch, NULL);
    oar_tensor_release(x);
    return status;
}

/* A pipeline on what is left of the world trains. */
static oar_status train_anew(oar_group *g, const pipe_fault *f)
{
    pipe_fault none = { .micro = f->micro, .victim = NEVER };
    staged_rank t = { .f = &none };

    CHECK_OK(begin_training(&t, g, OAR_SCHEDULE_1F1B));
    for (int i = 0; i < 2; i++)
        CHECK_OK(run_step(&t));
    end_training(&t);
    return OAR_OK;
}

/* ---- how many moments there are ------------------------------------------ */

static oar_status count_moments(oar_group *g, void *arg)
{
    pipe_fault *f = arg;
    pipe_fault mine = *f; /* each rank is its own victim, of nothing */
    staged_rank t = { .f = &mine };

    mine.victim = oar_group_rank(g);
    mine.moment = NEVER;
    CHECK_OK(begin_training(&t, g, f->kind));
    CHECK_OK(run_step(&t));
    t.armed = 1;
    CHECK_OK(run_step(&t));
    f->moments[t.rank] = t.moments;
    end_training(&t);
    return OAR_OK;
}

static pipe_fault new_fault(oar_schedule_kind kind, int ranks, int micro)
{
    pipe_fault f = { .kind = kind, .ranks = ranks, .micro = micro };

    assert_int_equal(ranks_run("sim", ranks, NULL, count_moments, &f), OAR_OK);
    for (int r = 0; r < ranks; r++) /* F, and B or its halves */
        assert_true(f.moments[r] >= 5 * micro);
    return f;
}

static int is_wanted(const pipe_fault *f, int every)
{
    return getenv("OARSONG_TEST_ALL") != NULL ||
           (f->moment + f->victim) % every == 0;
}

/* ---- a rank that fails on its own ---------------------------------------- */

/* The victim names the action, and so do the others, who have it from there. */
static oar_status check_failure(const staged_rank *t, oar_group *g,
                                oar_status status)
{
    char action[2][sizeof t->action[0]];
    oar_error seen = *oar_last_error();

    memcpy(action, t->action, sizeof action);
    CHECK_OK(oar_broadcast(g, oar_span_of(action, sizeof action, OAR_U8),
                           t->f->victim, NULL, NULL));
    CHECK(status != OAR_OK);
    CHECK(t->rank != t->f->victim || status == OAR_E_DATA);
    if (strstr(seen.text, action[0]) == NULL ||
        strstr(seen.text, action[1]) == NULL) {
        fprintf(stderr, "rank %d: \"%s\" does not say \"%s...%s\"\n", t->rank,
                seen.text, action[0], action[1]);
        return OAR_E_INTERNAL;
    }
    return OAR_OK;
}

/* Strikes one moment. Tells all ranks whether it was there. */
static oar_status strike_once(oar_group *g, pipe_fault *f, int *failed)
{
    staged_rank t = { .f = f };
    oar_status status;

    CHECK_OK(begin_training(&t, g, f->kind));
    t.armed = f->way == NO_MEMORY; /* later steps allocate nothing */
    if (!t.armed)
        CHECK_OK(run_step(&t));
    t.armed = 1;
    status = run_step(&t);
    oar_memory_fail_after(0);
    if (f->way == BY_FAILURE)
        CHECK_OK(check_failure(&t, g, status));
    else if (status != OAR_OK && t.rank == f->victim)
        CHECK(last_error_has("out of memory"));
    *failed = status != OAR_OK;
    CHECK_OK(oar_all_reduce(g, oar_span_of(failed, 1, OAR_I32), OAR_MIN, NULL,
                            NULL));
    CHECK(*failed == (status != OAR_OK)); /* on all ranks or on none */
    t.armed = 0;
    status = run_step(&t); /* what fails before anything runs spoils nothing */
    CHECK(status == OAR_E_STATE || (status == OAR_OK && f->way == NO_MEMORY));
    end_training(&t);
    return OAR_OK;
}

static oar_status strike_all_moments(oar_group *g, void *arg)
{
    pipe_fault f = *(const pipe_fault *)arg;
    int failures = 0, failed;

    for (f.victim = 0; f.victim < f.ranks; f.victim++)
        for (f.moment = 0; f.moment < f.moments[f.victim]; f.moment++) {
            if (!is_wanted(&f, 2))
                continue;
            CHECK_OK(strike_once(g, &f, &failed));
            failures += failed;
            CHECK(failed || f.way == NO_MEMORY);
        }
    CHECK(failures > 4);
    return train_anew(g, &f);
}

static void strike_everywhere(pipe_fault f, const char *backend)
{
    if (ranks_run(backend, f.ranks, NULL, strike_all_moments, &f) != OAR_OK)
        fail_msg("%s over %s", oar_schedule_kind_name(f.kind), backend);
}

static void a_stage_that_fails_is_named_on_all_ranks(void **state)
{
    pipe_fault f = new_fault(OAR_SCHEDULE_1F1B, 3, 2);
    pipe_fault v = new_fault(OAR_SCHEDULE_ZB_V, 2, 2);

    strike_everywhere(f, "sim");
    strike_everywhere(f, "native");
    strike_everywhere(v, "sim");
    strike_everywhere(v, "tcp");
}

static void a_rank_without_memory_ends_the_step_on_all(void **state)
{
    pipe_fault f = new_fault(OAR_SCHEDULE_1F1B, 3, 2);
    pipe_fault v = new_fault(OAR_SCHEDULE_ZB_V, 2, 2);

    f.way = v.way = NO_MEMORY;
    strike_everywhere(f, "native");
    strike_everywhere(v, "native");
}

/* ---- a rank that dies or stops ------------------------------------------- */

/* A survivor names the action in which it waited or, if it was done with its
 * row, the last message of the rank that is lost ("1SEND_F0"). */
static int names_what_was_lost(const pipe_fault *f, oar_status status)
{
    oar_status direct = f->signal == SIGKILL ? OAR_E_PEER : OAR_E_TIMEOUT;

    if (status != direct && status != OAR_E_ABORTED)
        return 0;
    return (last_error_has("stage ") && last_error_has("micro-batch ")) ||
           last_error_has("SEND_") || last_error_has("RECV_");
}

static int lose_one(test_job *c, int rank, void *arg)
{
    pipe_fault *f = arg;
    staged_rank t = { .f = f };
    oar_group_opts o = oar_group_opts_init();
    oar_group *world, *rest;
    oar_status status;

    o.backend = "native";
    o.timeout_ms = TIMEOUT_MS;
    RANK_OK(test_job_join(c, rank, &o, &world));
    RANK_OK(begin_training(&t, world, f->kind));
    RANK_OK(run_step(&t));
    t.armed = 1;
    status = run_step(&t);
    if (rank != f->victim) {
        if (!names_what_was_lost(f, status))
            fprintf(stderr, "rank %d: %d: %s\n", rank, (int)status,
                    oar_last_error_text());
        RANK_CHECK(names_what_was_lost(f, status));
        RANK_CHECK(run_step(&t) == OAR_E_STATE);
    }
    end_training(&t);
    if (rank != f->victim) {
        RANK_OK(oar_group_shrink(
            world,
            OAR_OPTS(oar_shrink_opts, .any = 1, .timeout_ms = TIMEOUT_MS),
            &rest));
        RANK_CHECK(oar_group_size(rest) == f->ranks - 1);
        RANK_OK(train_anew(rest, f));
        oar_group_destroy(rest);
    }
    oar_group_destroy(world);
    shared_flag_raise(&f->over);
    return 0;
}

typedef struct running_job {
    test_job job;
    pipe_fault *f;
} running_job;

static void start_job(running_job *r, const pipe_fault *f)
{
    r->f = shared_page(sizeof *r->f);
    *r->f = *f;
    test_job_start(&r->job, f->ranks, lose_one, r->f,
                   "%s, signal %d of rank %d at moment %d",
                   oar_schedule_kind_name(f->kind), f->signal, f->victim,
                   f->moment);
}

static void await_ranks(running_job *r)
{
    pipe_fault *f = r->f;

    if (f->signal == SIGSTOP) {
        if (!shared_flag_await(&f->over, (uint32_t)f->ranks - 1,
                               TEST_JOB_LIMIT_MS))
            test_job_give_up(&r->job, "the others have not ended");
        kill(r->job.pid[f->victim], SIGCONT);
    }
    for (int k = 0; k < f->ranks; k++)
        test_job_expect(&r->job, k,
                        k == f->victim && f->signal == SIGKILL ? 128 + SIGKILL
                                                               : 0);
}

/* All ranks of all jobs have ended before test_job_end looks for orphans. */
static void end_jobs(int count, running_job *running)
{
    for (int i = 0; i < count; i++)
        await_ranks(&running[i]);
    for (int i = 0; i < count; i++) {
        test_job_end(&running[i].job);
        shared_page_free(running[i].f, sizeof *running[i].f);
    }
}

/* Jobs run some at a time: they mostly wait. */
static void lose_everywhere(pipe_fault f, int signal, int every)
{
    running_job running[AT_ONCE];
    int count = 0;

    f.way = BY_SIGNAL;
    f.signal = signal;
    for (f.victim = 0; f.victim < f.ranks; f.victim++)
        for (f.moment = 0; f.moment < f.moments[f.victim]; f.moment++) {
            if (!is_wanted(&f, every))
                continue;
            start_job(&running[count++], &f);
            if (count < AT_ONCE)
                continue;
            end_jobs(count, running);
            count = 0;
        }
    end_jobs(count, running);
}

static void a_death_at_any_moment_is_told(void **state)
{
    lose_everywhere(new_fault(OAR_SCHEDULE_1F1B, 3, 2), SIGKILL, 4);
    lose_everywhere(new_fault(OAR_SCHEDULE_ZB_V, 2, 2), SIGKILL, 5);
}

static void a_stop_at_any_moment_is_told(void **state)
{
    lose_everywhere(new_fault(OAR_SCHEDULE_1F1B, 3, 2), SIGSTOP, 5);
    lose_everywhere(new_fault(OAR_SCHEDULE_ZB_V, 2, 2), SIGSTOP, 7);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_that_fails_is_named_on_all_ranks),
        cmocka_unit_test(a_rank_without_memory_ends_the_step_on_all),
        cmocka_unit_test(a_death_at_any_moment_is_told),
        cmocka_unit_test(a_stop_at_any_moment_is_told),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
