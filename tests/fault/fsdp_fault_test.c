/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that is lost, or that fails on its own, at any moment of a training
 * over FSDP: the others get an error that tells why, every later call gives the
 * same, and nothing is left behind. */
#include "support/test_job.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/fsdp.h>
#include <oarsong/layers.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWLY = 4 };
#else
enum { SLOWLY = 1 };
#endif

enum { RANKS = 3, LOST = 1, LAYERS = 3, WIDTH = 37, PASSES = 3 };
enum { TIMEOUT_MS = 1000 * SLOWLY };

/* When something happens to a rank, in the second pass; WRAP: before. The
 * middle layer is the one that runs. */
typedef enum train_moment {
    WRAP,
    FORWARD,
    BACKWARD,
    STEP,
    NEXT,
    MOMENTS
} train_moment;

typedef struct fault_case {
    const char *backend;
    oar_hold hold;
    int ranks;
    int first_host; /* ranks on it; 0: all */
    int replicas;   /* two ranks have the shards, and as many the same */
    int uneven;     /* rank 0 has no input, and follows the rank that is lost */
    int signal;     /* that ends or stops the rank; 0: a hook fails */
    train_moment when;
    shared_flag over; /* ranks that have got their error */
} fault_case;

/* What a rank trains. */
typedef struct trainer {
    const fault_case *c;
    int rank, pass;
    oar_group *row, *column;    /* with replicas */
    oar_module *layers, *model; /* inside; and wrapped */
    oar_optim *sgd;
    oar_tape *tape;
    oar_hook *hook[2];
} trainer;

static oar_status reach(const trainer *t, train_moment now)
{
    if (t->rank != LOST || now != t->c->when || (t->pass != 1 && now != WRAP))
        return OAR_OK;
    if (t->c->signal == 0)
        return OAR_E_DATA;
    raise(t->c->signal);
    return OAR_OK;
}

static oar_status reach_forward(oar_tape *tape, oar_module *module, void *arg)
{
    return reach(arg, FORWARD);
}

static oar_status reach_backward(oar_tape *tape, oar_module *module, void *arg)
{
    return reach(arg, BACKWARD);
}

/* ---- training ------------------------------------------------------------ */

static oar_status make_layers(trainer *t)
{
    oar_module *layer[LAYERS] = { NULL };

    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(oar_linear_create(WIDTH, WIDTH, (uint64_t)i, NULL, &layer[i]));
    CHECK_OK(oar_module_on(layer[1], OAR_BEFORE_FORWARD, reach_forward, t,
                           &t->hook[0]));
    CHECK_OK(oar_module_on(layer[1], OAR_BEFORE_BACKWARD, reach_backward, t,
                           &t->hook[1]));
    return oar_sequential_create(LAYERS, layer, &t->layers);
}

static oar_status split_for_replicas(trainer *t, oar_group *g)
{
    CHECK_OK(oar_group_split(g, t->rank / 2, t->rank, &t->row));
    return oar_group_split(g, t->rank % 2, t->rank, &t->column);
}

static oar_status wrap_layers(trainer *t, oar_group *g)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();
    oar_tensor *const *param;
    oar_status status;
    int count;

    o.hold = t->c->hold;
    o.least_bytes = 1;
    o.replicas = t->column;
    o.weighted = t->c->uneven;
    reach(t, WRAP);
    oar_module_retain(t->layers);
    status =
        oar_fsdp_wrap(t->layers, t->row != NULL ? t->row : g, &o, &t->model);
    if (status != OAR_OK)
        return status;
    CHECK(oar_fsdp_units(t->model) == LAYERS + 1);
    param = oar_fsdp_params(t->model, &count);
    return oar_sgd_create_over(count, param, OAR_OPTS(oar_sgd_opts, .lr = 1e-3),
                               &t->sgd);
}

static oar_status run_forward_and_backward(trainer *t)
{
    oar_tensor *x = oar_uniform(t->tape, OAR_F32, OAR_SHAPE(2, WIDTH),
                                (uint64_t)(t->rank + 9), -1, 1);
    oar_tensor *y = x != NULL ? oar_forward(t->tape, t->model, x) : NULL;
    oar_tensor *loss =
        y != NULL ? oar_mean(t->tape, oar_mul(t->tape, y, y)) : NULL;
    oar_status status =
        loss != NULL ? oar_backward(t->tape, loss) : oar_last_error()->status;

    oar_tape_reset(t->tape);
    return status;
}

static oar_status run_pass(trainer *t)
{
    int has = t->rank != 0, active;
    oar_status status =
        t->c->uneven ? oar_fsdp_join(t->model, has, &active) : OAR_OK;

    if (status != OAR_OK || (t->c->uneven && !has))
        return status;
    return run_forward_and_backward(t);
}

static oar_status train(trainer *t)
{
    oar_status status = OAR_OK;

    for (t->pass = 0; t->pass < PASSES && status == OAR_OK; t->pass++) {
        status = run_pass(t);
        if (status != OAR_OK)
            break;
        reach(t, STEP);
        status = oar_optim_step(t->sgd);
        oar_optim_zero_grad(t->sgd);
        reach(t, NEXT);
    }
    return status;
}

static void end_training(trainer *t)
{
    for (int i = 0; i < 2; i++)
        oar_hook_remove(t->hook[i]);
    oar_optim_destroy(t->sgd);
    oar_tape_destroy(t->tape);
    oar_module_release(t->model);
    oar_module_release(t->layers);
    oar_group_destroy(t->row);
    oar_group_destroy(t->column);
}

static oar_status join_group(const test_job *job, int rank, const fault_case *f,
                             oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = f->backend;
    o.timeout_ms = TIMEOUT_MS;
    if (f->first_host > 0)
        setenv("OARSONG_HOST_ID", rank < f->first_host ? "a" : "b", 1);
    return test_job_join(job, rank, &o, g);
}

/* ---- a rank that dies or stops ------------------------------------------- */

/* Those that the loss reaches through another rank are told by that one. */
static int is_loss(const fault_case *f, oar_status status)
{
    oar_status direct = f->signal == SIGKILL ? OAR_E_PEER : OAR_E_TIMEOUT;
    const char *text = oar_last_error()->text;

    return (status == direct || status == OAR_E_ABORTED) &&
           (strstr(text, "rank 1 ") != NULL ||
            strstr(text, "world rank 1,") != NULL); /* in a group by parts */
}

static int lose_one(test_job *c, int rank, void *arg)
{
    fault_case *f = arg;
    trainer t = { .c = f, .rank = rank };
    oar_status status;
    oar_group *g;

    RANK_OK(join_group(c, rank, f, &g));
    RANK_OK(oar_tape_create(&t.tape));
    RANK_OK(make_layers(&t));
    if (f->replicas)
        RANK_OK(split_for_replicas(&t, g));
    status = wrap_layers(&t, g);
    if (status == OAR_OK)
        status = train(&t);
    if (rank == LOST) { /* it was stopped, and went on too late */
        RANK_CHECK(status != OAR_OK);
    } else {
        RANK_CHECK(is_loss(f, status));
        for (int i = 0; i < 2 && t.model != NULL; i++) {
            RANK_CHECK(run_pass(&t) == status);
            RANK_CHECK(oar_fsdp_unshard(t.model, NULL) == status);
        }
    }
    end_training(&t);
    oar_group_destroy(g);
    shared_flag_raise(&f->over);
    return 0;
}

static void lose(fault_case this)
{
    fault_case *f = shared_page(sizeof *f);
    test_job job;

    *f = this;
    if (f->ranks == 0)
        f->ranks = RANKS;
    test_job_start(&job, f->ranks, lose_one, f,
                   "%s, hold %d, signal %d, moment %d, first host %d",
                   f->backend, (int)f->hold, f->signal, (int)f->when,
                   f->first_host);
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
    shared_page_free(f, sizeof *f);
}

static void lose_everywhere(int signal, train_moment when)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        lose((fault_case){ .backend = "native",
                           .hold = (oar_hold)h,
                           .signal = signal,
                           .when = when });
    lose((fault_case){ .backend = "tcp",
                       .hold = OAR_HOLD_OWN,
                       .signal = signal,
                       .when = when });
}

static void a_killed_rank_is_named(void **state)
{
    for (int when = 0; when < MOMENTS; when++)
        lose_everywhere(SIGKILL, (train_moment)when);
}

static void a_stopped_rank_is_named_and_ends_when_it_goes_on(void **state)
{
    for (int when = 0; when < MOMENTS; when++)
        lose_everywhere(SIGSTOP, (train_moment)when);
}

/* Two hosts of two ranks have a copy each; of two and one, each rank has its
 * own. */
static void a_rank_of_another_host_is_named(void **state)
{
    static const int signals[] = { SIGKILL, SIGSTOP };

    for (int s = 0; s < 2; s++)
        for (int when = 0; when < MOMENTS; when++) {
            lose((fault_case){ .backend = "native",
                               .hold = OAR_HOLD_HOST,
                               .ranks = 4,
                               .first_host = 2,
                               .signal = signals[s],
                               .when = (train_moment)when });
            lose((fault_case){ .backend = "native",
                               .hold = OAR_HOLD_OWN,
                               .first_host = 2,
                               .signal = signals[s],
                               .when = (train_moment)when });
        }
}

/* A loss among the ranks that share the shards reaches those that have the same
 * shards elsewhere. */
static void a_loss_reaches_the_replicas(void **state)
{
    for (int when = WRAP + 1; when < MOMENTS; when++)
        for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2)
            lose((fault_case){ .backend = "native",
                               .hold = (oar_hold)h,
                               .ranks = 4,
                               .replicas = 1,
                               .signal = SIGKILL,
                               .when = (train_moment)when });
}

static void a_rank_without_input_learns_of_the_loss(void **state)
{
    static const int signals[] = { SIGKILL, SIGSTOP };

    for (int s = 0; s < 2; s++)
        for (int when = FORWARD; when < MOMENTS; when++)
            for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
                lose((fault_case){ .backend = "native",
                                   .hold = (oar_hold)h,
                                   .uneven = 1,
                                   .signal = signals[s],
                                   .when = (train_moment)when });
}

/* ---- a rank that fails on its own ---------------------------------------- */

/* The hook fails on one rank. The others are told, also if it does not leave;
 * but where parameters are mapped, a forward is nobody else's business. */
static oar_status fail_in_hook(oar_group *g, void *arg)
{
    const fault_case *f = arg;
    int alone = f->hold == OAR_HOLD_MAPPED && f->when == FORWARD;
    trainer t = { .c = f, .rank = oar_group_rank(g) };
    oar_status status;

    CHECK_OK(oar_tape_create(&t.tape));
    CHECK_OK(make_layers(&t));
    if (f->replicas)
        CHECK_OK(split_for_replicas(&t, g));
    CHECK_OK(wrap_layers(&t, g));
    status = train(&t);
    CHECK(status == OAR_E_DATA || t.rank != LOST);
    CHECK(status == OAR_E_ABORTED || status == OAR_E_PEER || t.rank == LOST);
    if (t.rank != LOST)
        CHECK(strstr(oar_last_error_text(), "rank 1") != NULL);
    if (!alone)
        CHECK_OK(oar_barrier(g, NULL, NULL));
    end_training(&t);
    return oar_barrier(g, NULL, NULL); /* the caller's group goes on */
}

static void a_hook_that_fails_on_one_rank_ends_the_pass_on_all(void **state)
{
    for (int when = FORWARD; when <= BACKWARD; when++)
        for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
            for (int kind = 0; kind < 3; kind++) {
                int replicas = kind == 1;
                fault_case f = { .hold = (oar_hold)h,
                                 .replicas = replicas,
                                 .uneven = kind == 2,
                                 .when = (train_moment)when };
                int ranks = replicas ? 4 : RANKS;

                assert_int_equal(
                    ranks_run("native", ranks, NULL, fail_in_hook, &f), OAR_OK);
                assert_int_equal(
                    ranks_run("sim", ranks, NULL, fail_in_hook, &f), OAR_OK);
            }
}

/* ---- a rank without memory ----------------------------------------------- */

/* Trains with the n-th allocation of the second pass failing on one rank. That
 * pass has a tape of its own, or it would allocate next to nothing. Tells all
 * ranks whether it did. */
static oar_status train_without_memory(oar_group *g, const fault_case *f,
                                       uint64_t n, int *failed)
{
    trainer t = { .c = f, .rank = oar_group_rank(g) };
    oar_status status;

    CHECK_OK(oar_tape_create(&t.tape));
    CHECK_OK(make_layers(&t));
    CHECK_OK(wrap_layers(&t, g));
    CHECK_OK(run_pass(&t));
    CHECK_OK(oar_optim_step(t.sgd));
    oar_optim_zero_grad(t.sgd);
    oar_tape_destroy(t.tape);
    CHECK_OK(oar_tape_create(&t.tape));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    if (t.rank == LOST)
        oar_memory_fail_after(n);
    status = run_pass(&t);
    oar_memory_fail_after(0);
    if (status != OAR_OK && t.rank == LOST)
        CHECK(strstr(oar_last_error_text(), "out of memory") != NULL);
    if (status != OAR_OK && t.rank != LOST)
        CHECK(strstr(oar_last_error_text(), "rank 1") != NULL);
    end_training(&t);
    *failed = status != OAR_OK;
    CHECK_OK(oar_all_reduce(g, oar_span_of(failed, 1, OAR_I32), OAR_MIN, NULL,
                            NULL));
    CHECK(*failed == (status != OAR_OK)); /* on all ranks or on none */
    return OAR_OK;
}

static oar_status fail_each_allocation_on_one(oar_group *g, void *arg)
{
    uint64_t n = 0;
    int failed = 1;

    while (failed)
        CHECK_OK(train_without_memory(g, arg, ++n, &failed));
    CHECK(n > 1);
    return OAR_OK;
}

static void a_rank_without_memory_ends_the_pass_on_all(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int uneven = 0; uneven < 2; uneven++) {
            fault_case f = { .hold = (oar_hold)h,
                             .uneven = uneven,
                             .when = MOMENTS };

            assert_int_equal(
                ranks_run("native", 2, NULL, fail_each_allocation_on_one, &f),
                OAR_OK);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_stopped_rank_is_named_and_ends_when_it_goes_on),
        cmocka_unit_test(a_rank_of_another_host_is_named),
        cmocka_unit_test(a_loss_reaches_the_replicas),
        cmocka_unit_test(a_rank_without_input_learns_of_the_loss),
        cmocka_unit_test(a_hook_that_fails_on_one_rank_ends_the_pass_on_all),
        cmocka_unit_test(a_rank_without_memory_ends_the_pass_on_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
