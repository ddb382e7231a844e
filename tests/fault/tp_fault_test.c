/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies or stops before some step of some collective of a tensor parallel
 * pass, in forward, loss or backward: the others end in time with an error that
 * names it, every later pass gives the same, and nothing is left behind.
 * OARSONG_TEST_ALL: before every step. */
#include "support/test_job.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "base/clock.h"
#include "comm/exec/exec.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWLY = 4 };
#else
enum { SLOWLY = 1 };
#endif

enum { LOST = 1, WORDS = 13, ROWS = 2, CONTEXT = 4, MOST_PASSES = 3 };
enum { TIMEOUT_MS = 1000 * SLOWLY, NOTICED_MS = 2000 };

typedef struct tp_loss {
    const char *backend;
    int ranks;
    int data; /* so many copies of the model, under DDP; 0: one */
    int sequence;
    int signal;       /* that ends or stops the rank; 0: none does */
    int at;           /* before this step, from 1 on */
    int forward;      /* steps that the rank has until the end of the loss, */
    int steps;        /* and in the whole pass */
    shared_flag over; /* ranks that have got their error */
} tp_loss;

/* ---- the step ------------------------------------------------------------ */

static struct {
    int steps, signal, at;
    uint64_t number; /* the collective and its step that were counted last */
    int step;
} lost;

static void count_step(const oari_exec *exec)
{
    if (exec->number == lost.number && exec->at == lost.step)
        return; /* it waits for a message */
    lost.number = exec->number;
    lost.step = exec->at;
    lost.steps++;
    if (lost.steps == lost.at && lost.signal != 0)
        raise(lost.signal);
}

/* ---- training ------------------------------------------------------------ */

typedef struct tp_trainer {
    oar_group *world, *row; /* row: the ranks that share a model */
    oar_mesh *mesh;
    oar_module *model;
    oar_tape *tape;
} tp_trainer;

static oar_status make_model(tp_trainer *t, const tp_loss *f)
{
    oar_status status;

    t->row = t->world;
    if (f->data > 0) {
        CHECK_OK(oar_mesh_create(t->world, 2, (int[]){ f->data, -1 }, NULL,
                                 NULL, &t->mesh));
        t->row = oar_mesh_group(t->mesh, 1);
    }
    CHECK_OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                     .context = CONTEXT, .width = 12,
                                     .layers = 1, .heads = 3),
                            &t->model));
    status = oar_tp_parallelize_gpt(
        t->model, t->row, OAR_OPTS(oar_tp_opts, .sequence = f->sequence));
    if (status == OAR_OK && f->data > 0)
        status =
            oar_ddp_wrap(t->model, oar_mesh_group(t->mesh, 0), NULL, &t->model);
    CHECK_OK(oar_tape_create(&t->tape));
    oar_tape_share(t->tape, 256);
    return status;
}

/* forward: (may be NULL) gets the steps of this rank so far, after the loss. */
static oar_status run_pass(tp_trainer *t, int *forward)
{
    oar_tensor *x =
        oar_uniform(t->tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT), 1, 0, WORDS);
    oar_tensor *y =
        oar_uniform(t->tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT), 2, 0, WORDS);
    oar_tensor *logits = oar_forward(t->tape, t->model, x);
    oar_tensor *loss =
        logits != NULL
            ? oar_tp_cross_entropy(t->tape, logits, y, t->row, WORDS, NULL)
            : NULL;
    oar_status status;

    if (forward != NULL)
        *forward = lost.steps;
    status =
        loss != NULL ? oar_backward(t->tape, loss) : oar_last_error()->status;
    oar_tape_reset(t->tape);
    return status;
}

static void end_training(tp_trainer *t)
{
    oar_tape_destroy(t->tape);
    oar_module_release(t->model);
    oar_mesh_release(t->mesh);
    oar_group_destroy(t->world);
}

/* ---- the loss ------------------------------------------------------------ */

/* Those that the loss reaches through another rank are told by that one. In a
 * row of a mesh a rank has another number. */
static int is_loss(const tp_loss *f, oar_status status)
{
    oar_status direct = f->signal == SIGKILL ? OAR_E_PEER : OAR_E_TIMEOUT;
    const char *text = oar_last_error()->text;

    return (status == direct || status == OAR_E_ABORTED) &&
           (strstr(text, "rank 1 ") != NULL ||
            strstr(text, "world rank 1,") != NULL);
}

static int lose_one(test_job *c, int rank, void *arg)
{
    tp_loss *f = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_status status = OAR_OK;
    tp_trainer t = { NULL };
    int64_t start;

    o.backend = f->backend;
    o.timeout_ms = TIMEOUT_MS;
    RANK_OK(test_job_join(c, rank, &o, &t.world));
    RANK_OK(make_model(&t, f));
    RANK_OK(run_pass(&t, NULL));
    RANK_OK(oar_barrier(t.world, NULL, NULL));
    lost.at = f->at;
    lost.signal = rank == LOST ? f->signal : 0;
    oari_exec_hook = count_step;
    start = oari_now_ns();
    if (f->signal == 0) {
        int forward;

        RANK_OK(run_pass(&t, &forward));
        if (rank == LOST) {
            f->forward = forward;
            f->steps = lost.steps;
        }
    }
    /* It may be lost after it has done its part of a pass. */
    for (int i = 0; f->signal != 0 && i < MOST_PASSES && status == OAR_OK; i++)
        status = run_pass(&t, NULL);
    if (f->signal != 0 && rank == LOST) { /* it was stopped, and went on */
        RANK_CHECK(status != OAR_OK);
    } else if (f->signal != 0) {
        RANK_CHECK(is_loss(f, status));
        RANK_CHECK(is_in_time(start, NOTICED_MS + 2 * TIMEOUT_MS));
        RANK_CHECK(run_pass(&t, NULL) == status);
    }
    end_training(&t);
    shared_flag_raise(&f->over);
    return 0;
}

static void run_job(tp_loss *f)
{
    test_job job;

    f->over = 0;
    test_job_start(&job, f->ranks, lose_one, f,
                   "%s, %d copies, sequence %d, signal %d before step %d",
                   f->backend, f->data, f->sequence, f->signal, f->at);
    if (f->signal == SIGSTOP) {
        if (!shared_flag_await(&f->over, (uint32_t)f->ranks - 1,
                               TEST_JOB_LIMIT_MS))
            test_job_give_up(&job, "the others have not ended");
        kill(job.pid[LOST], SIGCONT);
    }
    for (int r = 0; r < f->ranks; r++)
        test_job_expect(&job, r,
                        r == LOST && f->signal == SIGKILL ? 128 + SIGKILL : 0);
    test_job_end(&job);
}

/* In short: in the middle of forward and of backward, and at the end. */
static void lose(tp_loss this)
{
    tp_loss *f = shared_page(sizeof *f);
    int signal = this.signal;

    *f = this;
    f->signal = 0;
    run_job(f);
    assert_true(f->forward > 4 && f->steps > f->forward + 4);
    f->signal = signal;
    if (getenv("OARSONG_TEST_ALL") != NULL) {
        for (f->at = 1; f->at <= f->steps; f->at += signal == SIGSTOP ? 5 : 1)
            run_job(f);
    } else {
        const int at[] = { f->forward / 2, (f->forward + f->steps) / 2,
                           f->steps };

        for (int i = 0; i < (signal == SIGSTOP ? 2 : 3); i++) {
            f->at = at[i];
            run_job(f);
        }
    }
    shared_page_free(f, sizeof *f);
}

static void a_killed_rank_is_named(void **state)
{
    for (int sequence = 0; sequence < 2; sequence++) {
        lose((tp_loss){ .backend = "native",
                        .ranks = 3,
                        .sequence = sequence,
                        .signal = SIGKILL });
        lose((tp_loss){ .backend = "tcp",
                        .ranks = 3,
                        .sequence = sequence,
                        .signal = SIGKILL });
    }
}

static void a_stopped_rank_is_named_and_ends_when_it_goes_on(void **state)
{
    for (int sequence = 0; sequence < 2; sequence++)
        lose((tp_loss){ .backend = "native",
                        .ranks = 3,
                        .sequence = sequence,
                        .signal = SIGSTOP });
}

/* Ranks 0 and 1 share a model, ranks 2 and 3 its copy. */
static void a_loss_reaches_the_other_copies_of_the_model(void **state)
{
    for (int sequence = 0; sequence < 2; sequence++)
        lose((tp_loss){ .backend = "native",
                        .ranks = 4,
                        .data = 2,
                        .sequence = sequence,
                        .signal = SIGKILL });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_stopped_rank_is_named_and_ends_when_it_goes_on),
        cmocka_unit_test(a_loss_reaches_the_other_copies_of_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
