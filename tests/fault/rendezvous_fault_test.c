/* SPDX-License-Identifier: Apache-2.0 */
/* Faults while ranks find each other: a process that connects and sends nothing
 * delays no rank; ranks that missed each other, because one of them was late,
 * name the rank that all of them missed; and when one rank gives a group up,
 * all do. */
#include "support/test_job.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/store_local.h"

enum { RANKS = 4, STOPPED = 2, LATE = 1, PATIENT = 20000, GIVES_UP_MS = 2000 };

typedef struct rendezvous_context {
    shared_flag word;     /* a rank has published that it gives up */
    shared_flag reported; /* survivors that know why */
    _Atomic int named;    /* by the one that gave up */
} rendezvous_context;

/* What happens at a rank's connections to lower ranks, which come in order. */
static void (*before_connect)(int number, int fd,
                              const struct sockaddr *address, socklen_t length);
static int connects;
static rendezvous_context *here;

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    if (before_connect != NULL)
        before_connect(connects++, fd, address, length);
    return (int)syscall(SYS_connect, fd, address, length);
}

/* ---- a silent peer ------------------------------------------------------- */

/* Open until the end of the process, and never a word. */
static void connect_silently(int number, int fd, const struct sockaddr *address,
                             socklen_t length)
{
    int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    syscall(SYS_connect, silent, address, length);
}

static int join_beside_silent_peer(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.timeout_ms = PATIENT;
    before_connect = connect_silently;
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

/* A process that sends nothing connects to each rank before its peers do. */
static void a_peer_that_sends_nothing_delays_no_rank(void **state)
{
    int64_t start = oari_now_ns();
    test_job c;

    test_job_start(&c, 3, join_beside_silent_peer, NULL, "silent peers");
    for (int r = 0; r < 3; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    assert_true(is_in_time(start, PATIENT));
}

/* ---- ranks that miss each other ------------------------------------------ */

static oari_local_store_ops telling_ops;
static const oari_local_store_ops *file_ops;

static oar_status flagging_update(void *self, const char *key,
                                  oari_change_fn change, void *arg)
{
    oar_status status = file_ops->update(self, key, change, arg);

    if (strstr(key, "/missed/") != NULL)
        shared_flag_raise(&here->word);
    return status;
}

static oar_status join_with_flag(const test_job *c, int rank, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();
    oar_status status;
    oar_store *store;
    oari_local_store *shelf;

    if ((status = test_job_store(c, &store)) != OAR_OK)
        return status;
    shelf = store->self;
    file_ops = shelf->ops;
    telling_ops = *file_ops;
    telling_ops.update = flagging_update;
    shelf->ops = &telling_ops;
    o.backend = "shm";
    o.timeout_ms = GIVES_UP_MS;
    status = oar_group_create(store, rank, c->ranks, &o, g);
    oar_store_destroy(store);
    return status;
}

static void be_stopped(int number, int fd, const struct sockaddr *address,
                       socklen_t length)
{
    if (number == 0)
        raise(SIGSTOP);
}

/* Waits until another rank has given this one up. */
static void be_late(int number, int fd, const struct sockaddr *address,
                    socklen_t length)
{
    if (number == 0)
        shared_flag_await(&here->word, 1, TEST_JOB_LIMIT_MS);
}

static int miss_each_other(test_job *c, int rank, void *arg)
{
    oar_group *g;

    here = arg;
    before_connect = rank == STOPPED ? be_stopped
                     : rank == LATE  ? be_late
                                     : NULL;
    RANK_CHECK(join_with_flag(c, rank, &g) != OAR_OK);
    if (rank == STOPPED)
        return 0;
    RANK_CHECK(oar_last_error()->status == OAR_E_TIMEOUT);
    RANK_CHECK(oar_last_error()->peer == STOPPED);
    RANK_CHECK(strstr(oar_last_error_text(), "rank 2 ") != NULL);
    shared_flag_raise(&here->reported);
    RANK_CHECK(
        shared_flag_await(&here->reported, RANKS - 1, TEST_JOB_LIMIT_MS));
    return 0;
}

static void ranks_that_missed_each_other_name_the_one_all_missed(void **state)
{
    rendezvous_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, RANKS, miss_each_other, s, "ranks that miss each other");
    for (int r = 0; r < RANKS; r++)
        if (r != STOPPED)
            test_job_expect(&c, r, 0);
    if (!test_job_wait_stopped(&c, STOPPED, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "rank %d was not stopped", STOPPED);
    kill(c.pid[STOPPED], SIGCONT);
    test_job_expect(&c, STOPPED, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

/* ---- a group that one has given up --------------------------------------- */

/* Rank 0 gives up because of rank 2, which comes only then and finds all
 * others; rank 1 still waits. */
static int come_too_late(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;

    here = arg;
    o.backend = "tcp";
    o.timeout_ms = rank == 0 ? GIVES_UP_MS : TEST_JOB_LIMIT_MS;
    if (rank == 2)
        RANK_CHECK(shared_flag_await(&here->word, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_E_TIMEOUT);
    if (rank == 0)
        atomic_store(&here->named, oar_last_error()->peer);
    RANK_CHECK(oar_last_error()->peer == atomic_load(&here->named));
    RANK_CHECK(strstr(oar_last_error_text(), "did not join group") != NULL);
    shared_flag_raise(&here->word);
    return 0;
}

static void a_group_that_one_rank_has_given_up_is_given_up_by_all(void **state)
{
    rendezvous_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, 3, come_too_late, s, "a rank that comes too late");
    for (int r = 0; r < 3; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_that_sends_nothing_delays_no_rank),
        cmocka_unit_test(ranks_that_missed_each_other_name_the_one_all_missed),
        cmocka_unit_test(a_group_that_one_rank_has_given_up_is_given_up_by_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
