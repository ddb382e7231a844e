/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks that see a death before they hear of each other: both have a record
 * of their own, and one of them is held up before it can tell its own, for less
 * time than the other has patience, for more, and for about as long. All
 * survivors must end with the same record all the same. */
#include "support/crew.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "net/frame.h"

enum { RANKS = 5, VICTIM = 4 };

typedef struct scene {
    const char *backend;
    int late, other, hold_ms; /* late is held up, once other has told its own */
    crew_flag ready, seen, told;
    oar_error record[RANKS];
} scene;

/* ---- holding up ---------------------------------------------------------- */

static scene *held;
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
    crew_raise(&held->seen);
    crew_await(&held->seen, 2, CREW_PATIENCE_MS);
    if (my_rank != held->late)
        return;
    crew_await(&held->told, 1, CREW_PATIENCE_MS);
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
        crew_raise(&held->told);
    return sent;
}

/* ---- ranks --------------------------------------------------------------- */

static oar_status receive(oar_group *g, int from)
{
    char x = 0;

    return oar_recv(g, oar_span_of(&x, 1, OAR_U8), from, 1, NULL, NULL);
}

static int join(crew *c, int rank, const scene *s, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = s->backend;
    o.timeout_ms = CREW_PATIENCE_MS;
    setenv("OARSONG_HOST_ID", rank < 2 ? "a" : "b", 1);
    return crew_join(c, rank, &o, g) == OAR_OK;
}

/* The two wait for the victim, all others for the one that is not late. */
static int act(crew *c, int rank, void *arg)
{
    scene *s = arg;
    int sees = rank == s->late || rank == s->other;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g));
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    held = s;
    my_rank = rank;
    crew_raise(&s->ready);
    if (rank == VICTIM) {
        crew_await(&s->ready, RANKS, CREW_PATIENCE_MS);
        raise(SIGKILL);
    }
    CREW_CHECK(c, rank, receive(g, sees ? VICTIM : s->other) == OAR_E_PEER);
    s->record[rank].size = sizeof *s->record;
    CREW_CHECK(c, rank, oar_group_fault(g, &s->record[rank]) == OAR_E_PEER);
    oar_group_destroy(g);
    return 0;
}

/* ---- scenes -------------------------------------------------------------- */

static void expect_one_record(const scene *s)
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

static void play(const char *backend, int late, int other, int hold_ms)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    s->backend = backend;
    s->late = late;
    s->other = other;
    s->hold_ms = hold_ms;
    crew_start(&c, RANKS, act, s, "%s: rank %d is held up for %d ms", backend,
               late, hold_ms);
    for (int r = 0; r < RANKS; r++)
        crew_expect(&c, r, r == VICTIM ? 128 + SIGKILL : 0);
    crew_end(&c);
    expect_one_record(s);
    assert_int_equal(atomic_load(&s->seen), 2);
    crew_drop_page(s, sizeof *s);
}

/* The lower rank's record counts, if it is heard in time: the late one is once
 * the lower, once the higher. */
static void play_all(int hold_ms)
{
    static const char *const backend[] = { "tcp", "native" };

    for (int b = 0; b < 2; b++) {
        play(backend[b], 1, 2, hold_ms);
        play(backend[b], 2, 1, hold_ms);
    }
}

static void ranks_that_see_it_at_once_agree(void **state)
{
    play_all(0);
}

static void one_that_is_held_up_for_a_while_is_heard(void **state)
{
    play_all(333);
}

static void
one_that_is_held_up_too_long_takes_over_what_is_settled(void **state)
{
    play_all(400);
    play_all(777);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_see_it_at_once_agree),
        cmocka_unit_test(one_that_is_held_up_for_a_while_is_heard),
        cmocka_unit_test(
            one_that_is_held_up_too_long_takes_over_what_is_settled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
