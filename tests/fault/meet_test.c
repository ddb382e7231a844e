/* SPDX-License-Identifier: Apache-2.0 */
/* While ranks find each other: somebody who comes and says nothing keeps nobody
 * waiting; ranks that missed each other, because one of them was late, name the
 * one that all of them missed; and a group that one of them has given up is
 * given up by all. */
#include "support/crew.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/store_local.h"

enum { RANKS = 4, STOPPED = 2, LATE = 1, PATIENT = 20000, GIVES_UP_MS = 2000 };

typedef struct stage {
    crew_flag word;    /* somebody has left word that it gives up */
    crew_flag told;    /* survivors that know why */
    _Atomic int named; /* by the one that gave up */
} stage;

/* What happens at a rank's connections to lower ranks, which come in order. */
static void (*before_connect)(int number, int fd,
                              const struct sockaddr *address, socklen_t length);
static int connects;
static stage *here;

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    if (before_connect != NULL)
        before_connect(connects++, fd, address, length);
    return (int)syscall(SYS_connect, fd, address, length);
}

/* ---- a silent guest ------------------------------------------------------ */

/* Open until the end of the process, and never a word. */
static void come_silently(int number, int fd, const struct sockaddr *address,
                          socklen_t length)
{
    int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    syscall(SYS_connect, silent, address, length);
}

static int meet_beside_silence(crew *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.timeout_ms = PATIENT;
    before_connect = come_silently;
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

/* Each rank is called on by silence before anybody it waits for. */
static void a_guest_that_says_nothing_keeps_nobody_waiting(void **state)
{
    int64_t start = oari_now_ns();
    crew c;

    crew_start(&c, 3, meet_beside_silence, NULL, "silent guests");
    for (int r = 0; r < 3; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    assert_true(crew_in_time(start, PATIENT));
}

/* ---- ranks that miss each other ------------------------------------------ */

static oari_local_store_ops telling_ops;
static const oari_local_store_ops *file_ops;

static oar_status telling_update(void *self, const char *key,
                                 oari_change_fn change, void *arg)
{
    oar_status status = file_ops->update(self, key, change, arg);

    if (strstr(key, "/missed/") != NULL)
        crew_raise(&here->word);
    return status;
}

static oar_status join_telling(const crew *c, int rank, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();
    oar_status status;
    oar_store *store;
    oari_local_store *shelf;

    if ((status = crew_store(c, &store)) != OAR_OK)
        return status;
    shelf = store->self;
    file_ops = shelf->ops;
    telling_ops = *file_ops;
    telling_ops.update = telling_update;
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

/* Until somebody has given up waiting for this rank. */
static void be_late(int number, int fd, const struct sockaddr *address,
                    socklen_t length)
{
    if (number == 0)
        crew_await(&here->word, 1, CREW_PATIENCE_MS);
}

static int miss_each_other(crew *c, int rank, void *arg)
{
    oar_group *g;

    here = arg;
    before_connect = rank == STOPPED ? be_stopped
                     : rank == LATE  ? be_late
                                     : NULL;
    CREW_CHECK(c, rank, join_telling(c, rank, &g) != OAR_OK);
    if (rank == STOPPED)
        return 0;
    CREW_CHECK(c, rank, oar_last_error()->status == OAR_E_TIMEOUT);
    CREW_CHECK(c, rank, oar_last_error()->peer == STOPPED);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "rank 2 ") != NULL);
    crew_raise(&here->told);
    CREW_CHECK(c, rank, crew_await(&here->told, RANKS - 1, CREW_PATIENCE_MS));
    return 0;
}

static void ranks_that_missed_each_other_name_the_one_all_missed(void **state)
{
    stage *s = crew_page(sizeof *s);
    crew c;

    crew_start(&c, RANKS, miss_each_other, s, "ranks that miss each other");
    for (int r = 0; r < RANKS; r++)
        if (r != STOPPED)
            crew_expect(&c, r, 0);
    if (!crew_wait_stopped(&c, STOPPED, CREW_PATIENCE_MS))
        crew_give_up(&c, "rank %d was not stopped", STOPPED);
    kill(c.pid[STOPPED], SIGCONT);
    crew_expect(&c, STOPPED, 0);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

/* ---- a group that one has given up --------------------------------------- */

/* Rank 0 gives up because of rank 2, which comes only then and finds everybody;
 * rank 1 still waits. */
static int come_too_late(crew *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;

    here = arg;
    o.backend = "tcp";
    o.timeout_ms = rank == 0 ? GIVES_UP_MS : CREW_PATIENCE_MS;
    if (rank == 2)
        CREW_CHECK(c, rank, crew_await(&here->word, 1, CREW_PATIENCE_MS));
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_E_TIMEOUT);
    if (rank == 0)
        atomic_store(&here->named, oar_last_error()->peer);
    CREW_CHECK(c, rank, oar_last_error()->peer == atomic_load(&here->named));
    CREW_CHECK(c, rank,
               strstr(oar_last_error_text(), "did not join group") != NULL);
    crew_raise(&here->word);
    return 0;
}

static void a_group_that_one_has_given_up_is_made_by_nobody(void **state)
{
    stage *s = crew_page(sizeof *s);
    crew c;

    crew_start(&c, 3, come_too_late, s, "a rank that comes too late");
    for (int r = 0; r < 3; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guest_that_says_nothing_keeps_nobody_waiting),
        cmocka_unit_test(ranks_that_missed_each_other_name_the_one_all_missed),
        cmocka_unit_test(a_group_that_one_has_given_up_is_made_by_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
