/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks see a death before they hear of each other, so each has a record of
 * its own. One of them is delayed before it can send its record: for less time
 * than the other waits, for more, and for about as long. All survivors must
 * still end with the same record. */
#include "support/test_job.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "comm/fault/fault.h"
#include "comm/fault/look.h"
#include "net/frame.h"

enum { RANKS = 5, VICTIM = 4 };

typedef struct concurrent_faults_context {
    const char *backend;
    int late, other, hold_ms; /* late is held up, once other has told its own */
    shared_flag ready, seen, reported;
    oar_error record[RANKS];
} concurrent_faults_context;

/* ---- holding up ---------------------------------------------------------- */

static concurrent_faults_context *held;
static int my_rank, passed;

static int is_fault(const struct msghdr *message)
{
    const unsigned char *at = message->msg_iov[0].iov_base;

    return message->msg_iov[0].iov_len >= OARI_FRAME_BYTES &&
           memcmp(at, "OARF", 4) == 0 && at[5] == OARI_FRAME_BULLETIN;
}

static void nap(int ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL);
}

/* Neither tells its own before both have one; and the late one is late. */
static void hold_up(void)
{
    passed = 1;
    shared_flag_raise(&held->seen);
    shared_flag_await(&held->seen, 2, TEST_JOB_LIMIT_MS);
    if (my_rank != held->late)
        return;
    shared_flag_await(&held->reported, 1, TEST_JOB_LIMIT_MS);
    nap(held->hold_ms);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    int mine = held != NULL && !passed &&
               (my_rank == held->late || my_rank == held->other) &&
               is_fault(message);
    ssize_t sent;

    if (mine)
        hold_up();
    sent = syscall(SYS_sendmsg, fd, message, flags);
    if (mine)
        shared_flag_raise(&held->reported);
    return sent;
}

/* What is one piece is sent by this. */
ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    struct iovec piece = { .iov_len = bytes };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

    memcpy(&piece.iov_base, &data, sizeof data); /* it is only read */
    return sendmsg(fd, &message, flags);
}

/* ---- ranks --------------------------------------------------------------- */

static oar_status receive(oar_group *g, int from)
{
    char x = 0;

    return oar_recv(g, oar_span_of(&x, 1, OAR_U8), from, 1, NULL, NULL);
}

static int join(test_job *c, int rank, const concurrent_faults_context *s,
                oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = s->backend;
    o.timeout_ms = TEST_JOB_LIMIT_MS;
    setenv("OARSONG_HOST_ID", rank < 2 ? "a" : "b", 1);
    return test_job_join(c, rank, &o, g) == OAR_OK;
}

/* The two wait for the victim, all others for the one that is not late. */
static int run_rank(test_job *c, int rank, void *arg)
{
    concurrent_faults_context *s = arg;
    int sees = rank == s->late || rank == s->other;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g));
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    held = s;
    my_rank = rank;
    shared_flag_raise(&s->ready);
    if (rank == VICTIM) {
        shared_flag_await(&s->ready, RANKS, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    RANK_CHECK(receive(g, sees ? VICTIM : s->other) == OAR_E_PEER);
    s->record[rank].size = sizeof *s->record;
    RANK_CHECK(oar_group_fault(g, &s->record[rank]) == OAR_E_PEER);
    oar_group_destroy(g);
    return 0;
}

/* ---- scenes -------------------------------------------------------------- */

static void expect_one_record(const concurrent_faults_context *s)
{
    const oar_error *one = &s->record[0];

    for (int r = 0; r < RANKS; r++) {
        const oar_error *e = &s->record[r];
        if (r == VICTIM)
            continue;
        if (e->rank != one->rank || strcmp(e->text, one->text) != 0)
            fail_msg("rank %d has: rank %d saw: %s; rank 0: rank %d saw: %s", r,
                     e->rank, e->text, one->rank, one->text);
        assert_int_equal(e->peer, VICTIM);
    }
    assert_true(one->rank == s->late || one->rank == s->other);
}

static void run_case(const char *backend, int late, int other, int hold_ms)
{
    concurrent_faults_context *s = shared_page(sizeof *s);
    test_job c;

    s->backend = backend;
    s->late = late;
    s->other = other;
    s->hold_ms = hold_ms;
    test_job_start(&c, RANKS, run_rank, s, "%s: rank %d is held up for %d ms",
                   backend, late, hold_ms);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, r == VICTIM ? 128 + SIGKILL : 0);
    test_job_end(&c);
    expect_one_record(s);
    assert_int_equal(atomic_load(&s->seen), 2);
    shared_page_free(s, sizeof *s);
}

/* The lower rank's record counts, if it is heard in time: the late one is once
 * the lower, once the higher. */
static void run_cases(int hold_ms)
{
    static const char *const backend[] = { "tcp", "native" };

    for (int b = 0; b < 2; b++) {
        run_case(backend[b], 1, 2, hold_ms);
        run_case(backend[b], 2, 1, hold_ms);
    }
}

static void ranks_that_see_a_death_at_once_agree(void **state)
{
    run_cases(0);
}

static void the_record_of_a_delayed_rank_counts(void **state)
{
    run_cases(333);
}

static void
one_that_is_held_up_too_long_takes_over_what_is_settled(void **state)
{
    run_cases(400);
    run_cases(777);
}

/* ---- what was complete before a fault ------------------------------------ */

static shared_flag looks, failed_later;

/* Looks for faults for the first time when a peer has one. */
static void look_late(oar_group *g)
{
    shared_flag_raise(&looks);
    if (shared_flag_await(&failed_later, 1, TEST_JOB_LIMIT_MS))
        oari_fault_look(g);
}

/* Rank 2 waits in a barrier and does not see that the others have arrived: rank
 * 0 passes it and leaves, rank 1 passes it and fails in its next call. */
static oar_status pass_barrier(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oari_engine_events late = oari_fault_events;
    static float row[70001];
    oar_status status;

    late.look = look_late;
    if (rank == 2)
        g->engine.events = &late;
    else
        CHECK(shared_flag_await(&looks, 1, TEST_JOB_LIMIT_MS));
    status = oar_barrier(g, NULL, NULL);
    g->engine.events = &oari_fault_events;
    CHECK(status == OAR_OK);
    if (rank != 1)
        return OAR_OK;
    CHECK(oar_all_reduce(g, oar_span_of(row, 70001, OAR_F32), OAR_SUM, NULL,
                         NULL) == OAR_E_PEER);
    shared_flag_raise(&failed_later);
    return OAR_OK;
}

static void a_fault_does_not_undo_what_all_ranks_have_done(void **state)
{
    if (ranks_run("sim", 3, NULL, pass_barrier, NULL) != OAR_OK)
        fail_msg("%s", oar_last_error_text());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_see_a_death_at_once_agree),
        cmocka_unit_test(the_record_of_a_delayed_rank_counts),
        cmocka_unit_test(
            one_that_is_held_up_too_long_takes_over_what_is_settled),
        cmocka_unit_test(a_fault_does_not_undo_what_all_ranks_have_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
