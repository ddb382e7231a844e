/* SPDX-License-Identifier: Apache-2.0 */
/* Loose groups: a message fails alone. One table for all transports: a rank is
 * killed, stopped, slow, leaves or aborts while messages with it are in every
 * state; those fail with OAR_E_PEER or OAR_E_TIMEOUT in time, and the others
 * exchange messages as if nothing had happened. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/p2p.h>
#include <oarsong/work.h>

#include "base/clock.h"

enum {
    RANKS = 3,
    VICTIM = 2,
    LARGE = 3 << 20,
    NOTICED_MS = 3000,  /* a death, at the latest */
    SHORT_MS = 400,     /* the timeout where one is expected */
    BEYOND_MS = 3000,   /* that timeout, at the latest */
    TIMEOUT_MS = 60000, /* where it is not what ends the message */
    ROUNDS = 50,
    KILLED = 128 + SIGKILL
};

typedef enum loose_way { DIES, STOPS, LEAVES, ABORTS } loose_way;

typedef struct transport {
    const char *name, *backend;
    int hosts;
} transport;

static const transport transports[] = {
    { "shm", "shm", 1 },
    { "tcp", "tcp", 1 },
    { "native on two hosts", "native", 2 },
};
enum { TRANSPORTS = sizeof transports / sizeof *transports };

typedef struct loose_case {
    const transport *by;
    loose_way way;
    shared_flag posted;   /* by the survivors: their messages are under way */
    shared_flag reported; /* by the survivors: these have failed */
} loose_case;

static oar_status join_loose(const test_job *c, int rank, const loose_case *p,
                             oar_group **world, oar_group **loose)
{
    oar_group_opts o = { .size = sizeof o,
                         .backend = p->by->backend,
                         .timeout_ms = TIMEOUT_MS };
    oar_status status;

    if (p->by->hosts > 1)
        setenv("OARSONG_HOST_ID", rank == VICTIM ? "far" : "near", 1);
    status = test_job_join(c, rank, &o, world);
    if (status != OAR_OK)
        return status;
    return oar_group_dup_with(
        *world, OAR_OPTS(oar_dup_opts, .name = "loose", .loose = 1), loose);
}

/* ---- what goes on -------------------------------------------------------- */

/* The survivors exchange messages of all kinds. */
static int exchange(test_job *c, int rank, oar_group *g, int rounds)
{
    static const size_t sizes[] = { 0, 8, 5000, 100000, LARGE };
    unsigned char *in = malloc(LARGE), *out = malloc(LARGE);
    int other = 1 - rank;

    RANK_CHECK(in != NULL && out != NULL);
    for (int i = 0; i < rounds; i++) {
        size_t bytes = sizes[i % 5];

        memset(out, i + rank, bytes);
        RANK_OK(oar_sendrecv(g, oar_span_of(out, bytes, OAR_U8), other, i,
                             oar_span_of(in, bytes, OAR_U8), other, i, NULL,
                             NULL));
        RANK_CHECK(bytes == 0 || (in[0] == (unsigned char)(i + other) &&
                                  in[bytes - 1] == (unsigned char)(i + other)));
    }
    free(in);
    free(out);
    return 0;
}

/* ---- messages with the victim -------------------------------------------- */

enum { RECEIVE, SMALL_SEND, LARGE_SEND, SYNCHRONOUS, PREPARED, MESSAGES };

static oar_status post_message(oar_group *g, int kind, void *data, int64_t ms,
                               oar_work **work)
{
    oar_call_opts o = { .size = sizeof o, .timeout_ms = ms };
    oar_status status;

    switch (kind) {
    case RECEIVE:
        return oar_recv(g, oar_span_of(data, 8, OAR_U8), VICTIM, 1, &o, work);
    case SMALL_SEND:
        return oar_send(g, oar_span_of(data, 8, OAR_U8), VICTIM, 2, &o, work);
    case LARGE_SEND:
        return oar_send(g, oar_span_of(data, LARGE, OAR_U8), VICTIM, 3, &o,
                        work);
    case SYNCHRONOUS:
        o.synchronous = 1;
        return oar_send(g, oar_span_of(data, 8, OAR_U8), VICTIM, 4, &o, work);
    default:
        o.prepare = 1;
        status = oar_recv(g, oar_span_of(data, 8, OAR_U8), VICTIM, 5, &o, work);
        return status == OAR_OK ? oar_work_start(*work) : status;
    }
}

static int check_failed(test_job *c, int rank, oar_status status,
                        oar_status wanted)
{
    const oar_error *e = oar_last_error();

    RANK_CHECK(status == wanted);
    RANK_CHECK(e->status == wanted);
    RANK_CHECK(e->peer == VICTIM);
    RANK_CHECK(e->rank == rank);
    RANK_CHECK(strstr(e->text, "rank 2 ") != NULL);
    return 0;
}

static void count_gone(void *arg, int rank, oar_gone how)
{
    _Atomic int *seen = arg;

    atomic_fetch_add(seen, 1 + 10 * rank + 100 * (int)how);
}

static int survive(test_job *c, int rank, oar_group *g, loose_case *p)
{
    oar_status wanted = p->way == STOPS ? OAR_E_TIMEOUT : OAR_E_PEER;
    int64_t ms = p->way == STOPS ? SHORT_MS : TIMEOUT_MS, start;
    int64_t limit = p->way == STOPS ? SHORT_MS + BEYOND_MS : NOTICED_MS;
    unsigned char *data[MESSAGES];
    oar_work *work[MESSAGES], *any;
    static _Atomic int gone;
    oar_message from = oar_message_init();
    int done = 0;

    RANK_OK(oar_group_on_gone(g, count_gone, &gone));
    for (int i = 0; i < MESSAGES; i++)
        RANK_CHECK((data[i] = calloc(1, LARGE)) != NULL);
    RANK_OK(oar_recv(
        g, oar_span_of(data[0] + 8, 8, OAR_U8), OAR_ANY_SOURCE, 77,
        OAR_OPTS(oar_call_opts, .timeout_ms = -1, .message = &from), &any));
    for (int i = 0; i < MESSAGES; i++)
        RANK_OK(post_message(g, i, data[i], ms, &work[i]));
    RANK_CHECK(exchange(c, rank, g, 5) == 0);
    shared_flag_raise(&p->posted);
    start = oari_now_ns();
    RANK_CHECK(exchange(c, rank, g, ROUNDS) == 0);
    for (int i = 0; i < MESSAGES; i++) {
        oar_status status = oar_work_wait(work[i]);

        if (i == SMALL_SEND) /* it is done before anything is known */
            RANK_CHECK(status == OAR_OK || status == wanted);
        else
            RANK_CHECK(check_failed(c, rank, status, wanted) == 0);
        oar_work_release(work[i]);
    }
    RANK_CHECK(is_in_time(start, limit));
    if (p->way != STOPS) {
        RANK_CHECK(check_failed(c, rank,
                                oar_recv(g, oar_span_of(data[0], 8, OAR_U8),
                                         VICTIM, 9, NULL, NULL),
                                OAR_E_PEER) == 0);
        while (atomic_load(&gone) == 0 && is_in_time(start, NOTICED_MS))
            usleep(1000);
        RANK_CHECK(atomic_load(&gone) == 121 ||
                   (p->way != DIES && atomic_load(&gone) == 221));
    } else
        RANK_CHECK(atomic_load(&gone) == 0);
    /* the receive from any rank is still there */
    RANK_OK(oar_work_test(any, &done));
    RANK_CHECK(!done);
    RANK_CHECK(exchange(c, rank, g, ROUNDS) == 0);
    RANK_OK(
        oar_send(g, oar_span_of(data[1], 8, OAR_U8), 1 - rank, 77, NULL, NULL));
    RANK_OK(oar_work_wait(any));
    RANK_CHECK(from.source == 1 - rank);
    oar_work_release(any);
    RANK_OK(oar_group_fault(g, NULL));
    RANK_CHECK(exchange(c, rank, g, 1) == 0);
    shared_flag_raise(&p->reported);
    if (p->way == STOPS) {
        memset(data[LARGE_SEND], 7, LARGE);
        RANK_OK(oar_send(g, oar_span_of(data[LARGE_SEND], LARGE, OAR_U8),
                         VICTIM, 3, NULL, NULL));
        RANK_OK(oar_recv(g, oar_span_of(data[0], 8, OAR_U8), VICTIM, 1, NULL,
                         NULL));
    }
    for (int i = 0; i < MESSAGES; i++)
        free(data[i]);
    return 0;
}

/* What was taken back does not come; what is sent now does. */
static int go_on(test_job *c, int rank, oar_group *g)
{
    unsigned char *data = malloc(LARGE), small[8];

    RANK_CHECK(data != NULL);
    for (int r = 0; r < VICTIM; r++) {
        RANK_OK(
            oar_recv(g, oar_span_of(data, LARGE, OAR_U8), r, 3, NULL, NULL));
        for (size_t i = 0; i < LARGE; i++)
            RANK_CHECK(data[i] == 7);
        RANK_OK(oar_recv(g, oar_span_of(small, 8, OAR_U8), r, 2, NULL, NULL));
        RANK_OK(oar_send(g, oar_span_of(small, 8, OAR_U8), r, 1, NULL, NULL));
    }
    free(data);
    return 0;
}

/* The victim has the messages of the others in its queues, and does nothing
 * with them. */
static int be_victim(test_job *c, int rank, oar_group *g, loose_case *p)
{
    RANK_CHECK(shared_flag_await(&p->posted, 2, TEST_JOB_LIMIT_MS));
    switch (p->way) {
    case DIES: raise(SIGKILL); break;
    case STOPS: raise(SIGSTOP); break;
    case LEAVES: break;
    case ABORTS: oar_group_abort(g, "enough"); break;
    }
    if (p->way == ABORTS)
        RANK_CHECK(shared_flag_await(&p->reported, 2, TEST_JOB_LIMIT_MS));
    return p->way == STOPS ? go_on(c, rank, g) : 0;
}

static int be_rank(test_job *c, int rank, void *arg)
{
    loose_case *p = arg;
    oar_group *world, *g;
    int failed;

    RANK_OK(join_loose(c, rank, p, &world, &g));
    failed = rank == VICTIM ? be_victim(c, rank, g, p) : survive(c, rank, g, p);
    oar_group_destroy(g);
    oar_group_destroy(world);
    return failed;
}

/* The others may have run out of time before it stops. */
static void wake_victim(test_job *c)
{
    if (!test_job_wait_stopped(c, VICTIM, TEST_JOB_LIMIT_MS))
        test_job_give_up(c, "the rank has not stopped");
    kill(c->pid[VICTIM], SIGCONT);
}

static void run_case(const transport *by, loose_way way)
{
    static const char *const ways[] = { "dies", "stops", "leaves", "aborts" };
    loose_case *p = shared_page(sizeof *p);
    test_job c;

    p->by = by;
    p->way = way;
    test_job_start(&c, RANKS, be_rank, p, "%s: rank %d %s", by->name, VICTIM,
                   ways[way]);
    if (way == STOPS) {
        shared_flag_await(&p->reported, 2, TEST_JOB_LIMIT_MS);
        wake_victim(&c);
    }
    for (int r = 0; r < VICTIM; r++)
        test_job_expect(&c, r, 0);
    test_job_expect(&c, VICTIM, way == DIES ? KILLED : 0);
    test_job_end(&c);
    shared_page_free(p, sizeof *p);
}

static void run_way(loose_way way)
{
    for (int i = 0; i < TRANSPORTS; i++)
        run_case(&transports[i], way);
}

static void a_death_ends_only_the_messages_with_that_rank(void **state)
{
    run_way(DIES);
}

static void a_late_message_ends_alone(void **state)
{
    run_way(STOPS);
}

static void a_rank_that_leaves_ends_only_its_messages(void **state)
{
    run_way(LEAVES);
}

static void an_abort_ends_only_the_messages_with_that_rank(void **state)
{
    run_way(ABORTS);
}

/* ---- in the middle of a message ------------------------------------------ */

enum { HUGE = 24 << 20, MOMENTS = 4 };

typedef struct halfway_case {
    loose_case base; /* first: for join_loose */
    int moment;
} halfway_case;

/* The victim stops while the message of rank 0 to it, and its own to rank 0,
 * are moving, as far as they have come by then. */
static int stop_halfway(test_job *c, int rank, oar_group *g, halfway_case *p)
{
    unsigned char *in = calloc(1, HUGE), *out = malloc(HUGE);
    oar_work *work[2];
    int done;

    RANK_CHECK(in != NULL && out != NULL);
    memset(out, 5, HUGE);
    RANK_OK(oar_recv(g, oar_span_of(in, HUGE, OAR_U8), 0, 1, NULL, &work[0]));
    RANK_OK(oar_send(g, oar_span_of(out, HUGE, OAR_U8), 0, 2, NULL, &work[1]));
    for (int i = 0; i < p->moment * 20; i++)
        RANK_OK(oar_work_test(work[1], &done));
    raise(SIGSTOP);
    RANK_OK(oar_work_wait(work[0]));
    for (size_t i = 0; i < HUGE; i++) /* the first whole one, or the second */
        RANK_CHECK(in[i] == in[0] && (in[i] == 3 || in[i] == 4));
    RANK_OK(oar_work_wait(work[1]));
    RANK_OK(oar_send(g, oar_span_of(out, 8, OAR_U8), 0, 3, NULL, NULL));
    RANK_CHECK(shared_flag_await(&p->base.reported, 2, TEST_JOB_LIMIT_MS));
    oar_work_release(work[0]);
    oar_work_release(work[1]);
    free(in);
    free(out);
    return 0;
}

/* Both messages run out of time, and their buffers are used for other things.
 * If the victim had taken the first message, the second waits for no receive;
 * if the receive here had been given up, the victim's message may wait. */
static int use_again(test_job *c, int rank, oar_group *g, halfway_case *p)
{
    unsigned char *in = malloc(HUGE), *out = malloc(HUGE), small[8];
    oar_call_opts late = { .size = sizeof late, .timeout_ms = SHORT_MS };
    oar_status received, sent;
    oar_work *work[2], *again = NULL;
    int given_up, found;

    RANK_CHECK(in != NULL && out != NULL);
    memset(out, 3, HUGE);
    RANK_OK(oar_send(g, oar_span_of(out, HUGE, OAR_U8), VICTIM, 1, &late,
                     &work[0]));
    RANK_OK(
        oar_recv(g, oar_span_of(in, HUGE, OAR_U8), VICTIM, 2, &late, &work[1]));
    sent = oar_work_wait(work[0]);
    received = oar_work_wait(work[1]);
    RANK_CHECK(sent == OAR_OK || sent == OAR_E_TIMEOUT);
    RANK_CHECK(received == OAR_OK || received == OAR_E_TIMEOUT);
    memset(out, 4, HUGE);
    memset(in, 6, HUGE);
    RANK_OK(
        oar_send(g, oar_span_of(out, HUGE, OAR_U8), VICTIM, 1, NULL, &again));
    shared_flag_raise(&p->base.reported);
    do { /* what the victim offers now is taken, but what was given up is not */
        RANK_OK(oar_probe(g, VICTIM, 2, &found, NULL));
        if (found) {
            unsigned char *other = malloc(HUGE);

            RANK_CHECK(other != NULL);
            RANK_OK(oar_recv(g, oar_span_of(other, HUGE, OAR_U8), VICTIM, 2,
                             NULL, NULL));
            RANK_CHECK(other[0] == 5 && other[HUGE - 1] == 5);
            free(other);
        }
        RANK_OK(oar_probe(g, VICTIM, 3, &found, NULL));
    } while (!found);
    RANK_OK(oar_recv(g, oar_span_of(small, 8, OAR_U8), VICTIM, 3, NULL, NULL));
    shared_flag_raise(&p->base.reported); /* the victim may leave */
    for (size_t i = 0; i < HUGE; i++)
        RANK_CHECK(in[i] == 6);
    RANK_OK(oar_work_cancel(again, &given_up));
    oar_work_release(again);
    oar_work_release(work[0]);
    oar_work_release(work[1]);
    free(in);
    free(out);
    return 0;
}

static int be_halfway(test_job *c, int rank, void *arg)
{
    halfway_case *p = arg;
    oar_group *world, *g;
    int failed = 0;

    RANK_OK(join_loose(c, rank, &p->base, &world, &g));
    if (rank == 0)
        failed = use_again(c, rank, g, p);
    else if (rank == VICTIM)
        failed = stop_halfway(c, rank, g, p);
    oar_group_destroy(g);
    oar_group_destroy(world);
    return failed;
}

static void buffers_of_messages_that_moved_are_left_alone(void **state)
{
    halfway_case *p = shared_page(sizeof *p);

    for (int i = 0; i < TRANSPORTS; i++)
        for (p->moment = 0; p->moment < MOMENTS; p->moment++) {
            test_job c;

            p->base.by = &transports[i];
            atomic_store(&p->base.reported, 0);
            test_job_start(&c, RANKS, be_halfway, p, "%s: stops at moment %d",
                           transports[i].name, p->moment);
            shared_flag_await(&p->base.reported, 1, TEST_JOB_LIMIT_MS);
            wake_victim(&c);
            for (int r = 0; r < RANKS; r++)
                test_job_expect(&c, r, 0);
            test_job_end(&c);
        }
    shared_page_free(p, sizeof *p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_ends_only_the_messages_with_that_rank),
        cmocka_unit_test(a_late_message_ends_alone),
        cmocka_unit_test(a_rank_that_leaves_ends_only_its_messages),
        cmocka_unit_test(an_abort_ends_only_the_messages_with_that_rank),
        cmocka_unit_test(buffers_of_messages_that_moved_are_left_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
