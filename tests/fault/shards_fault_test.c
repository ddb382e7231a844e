/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that dies or stops at any step of a training over shards: the others
 * get an error that names it, every later call gives the same, and nothing is
 * left behind. */
#include "support/test_job.h"

#include <signal.h>
#include <string.h>

#include <oarsong/shards.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWLY = 4 };
#else
enum { SLOWLY = 1 };
#endif

enum { RANKS = 3, LOST = 1, UNITS = 3, COUNT = 5000, PASSES = 3 };
enum { TIMEOUT_MS = 1000 * SLOWLY };

/* Where the rank is lost, in the second pass; CREATE: before. */
typedef enum moment { CREATE, UNSHARD, GRADIENT, WAIT, STEP, MOMENTS } moment;

typedef struct loss_case {
    const char *backend;
    oar_hold hold;
    int signal;
    moment when;
    shared_flag over; /* ranks that have got their error */
} loss_case;

static void pass_moment(const loss_case *l, int rank, int pass, moment now)
{
    if (rank == LOST && now == l->when && (pass == 1 || now == CREATE))
        raise(l->signal);
}

static oar_status train_pass(oar_shards *s, const loss_case *l, int rank,
                             int pass)
{
    oar_status status = OAR_OK;

    for (int u = UNITS - 1; u >= 0 && status == OAR_OK; u--) {
        oar_span grad;

        if (u == 1)
            pass_moment(l, rank, pass, UNSHARD);
        status = oar_shards_unshard(s, u);
        if (status != OAR_OK)
            break;
        grad = oar_shards_grad(s, u);
        if (grad.data == NULL)
            return oar_last_error()->status;
        memset(grad.data, 0, grad.count * sizeof(float));
        if (u == 1)
            pass_moment(l, rank, pass, GRADIENT);
        status = oar_shards_ready(s, u);
        if (status == OAR_OK)
            status = oar_shards_reshard(s, u);
    }
    pass_moment(l, rank, pass, WAIT);
    if (status == OAR_OK)
        status = oar_shards_wait(s);
    pass_moment(l, rank, pass, STEP);
    return status == OAR_OK ? oar_shards_publish(s) : status;
}

static oar_status train_until_lost(oar_group *g, const loss_case *l, int rank,
                                   oar_shards **s)
{
    static const int unit[UNITS] = { 0, 1, 2 };
    oar_shards_opts o = oar_shards_opts_init();
    oar_span array[UNITS];
    oar_status status;

    o.hold = l->hold;
    for (int i = 0; i < UNITS; i++)
        array[i] = oar_span_of(NULL, COUNT, OAR_F32);
    pass_moment(l, rank, 0, CREATE);
    status = oar_shards_create(g, UNITS, array, unit, &o, s);
    for (int pass = 0; pass < PASSES && status == OAR_OK; pass++)
        status = train_pass(*s, l, rank, pass);
    return status;
}

/* Those that the loss reaches through another rank are told by that one. */
static int is_loss(const loss_case *l, oar_status status)
{
    oar_status direct = l->signal == SIGKILL ? OAR_E_PEER : OAR_E_TIMEOUT;

    return (status == direct || status == OAR_E_ABORTED) &&
           strstr(oar_last_error()->text, "rank 1 ") != NULL;
}

static int lose_one(test_job *c, int rank, void *arg)
{
    loss_case *l = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_shards *s = NULL;
    oar_status status;
    oar_group *g;

    o.backend = l->backend;
    o.timeout_ms = TIMEOUT_MS;
    RANK_OK(test_job_join(c, rank, &o, &g));
    status = train_until_lost(g, l, rank, &s);
    if (rank == LOST) { /* it was stopped, and went on too late */
        RANK_CHECK(status != OAR_OK);
    } else {
        RANK_CHECK(is_loss(l, status));
        if (s != NULL) {
            RANK_CHECK(oar_shards_wait(s) == status);
            RANK_CHECK(oar_shards_unshard(s, 0) == status);
        }
    }
    oar_shards_destroy(s);
    oar_group_destroy(g);
    shared_flag_raise(&l->over);
    return 0;
}

static void lose(const char *backend, oar_hold hold, int signal, moment when)
{
    loss_case *l = shared_page(sizeof *l);
    test_job job;

    *l = (loss_case){
        .backend = backend, .hold = hold, .signal = signal, .when = when
    };
    test_job_start(&job, RANKS, lose_one, l, "%s, hold %d, signal %d, step %d",
                   backend, (int)hold, signal, (int)when);
    if (signal == SIGSTOP) {
        if (!shared_flag_await(&l->over, RANKS - 1, TEST_JOB_LIMIT_MS))
            test_job_give_up(&job, "the others have not ended");
        kill(job.pid[LOST], SIGCONT);
    }
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&job, r,
                        r == LOST && signal == SIGKILL ? 128 + SIGKILL : 0);
    test_job_end(&job);
    shared_page_free(l, sizeof *l);
}

static void a_killed_rank_is_named(void **state)
{
    for (int when = 0; when < MOMENTS; when++) {
        lose("native", OAR_HOLD_MAPPED, SIGKILL, (moment)when);
        lose("native", OAR_HOLD_HOST, SIGKILL, (moment)when);
        lose("native", OAR_HOLD_OWN, SIGKILL, (moment)when);
        lose("tcp", OAR_HOLD_OWN, SIGKILL, (moment)when);
    }
}

static void a_stopped_rank_is_named_and_ends_when_it_goes_on(void **state)
{
    for (int when = 0; when < MOMENTS; when++) {
        lose("native", OAR_HOLD_MAPPED, SIGSTOP, (moment)when);
        lose("native", OAR_HOLD_OWN, SIGSTOP, (moment)when);
    }
    lose("native", OAR_HOLD_HOST, SIGSTOP, UNSHARD);
    lose("tcp", OAR_HOLD_OWN, SIGSTOP, GRADIENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_stopped_rank_is_named_and_ends_when_it_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
