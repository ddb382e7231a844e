/* SPDX-License-Identifier: Apache-2.0 */
/* No wake-up is lost. Ranks that never spin go to sleep some 50 us after they
 * have arrived; their peers arrive, by a seed, just then.
 *
 * A lost wake-up does not hang: the engine sleeps for 100 ms at most and looks
 * again. So its sleeps are observed. One that runs to its end goes on for as
 * long as there is nothing to wake up for: a peer may be slow, on a busy
 * machine. But if there is something, and no rank wakes the sleeper for another
 * second, then a wake-up was lost. */
#include "support/test_job.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "comm/engine/engine.h"
#include "comm/group/group.h"
#include "link/shm/inproc.h"
#include "link/shm/shm_messages.h"

enum {
    NAP_MS = 100,
    RING_MS = 1000,
    LOOKS = 20,
    LONG = 30000,
    FDS = 1024,
    LATE_NS = 20000,
    TURN = 16 /* operations between two that wait for a sleeper */
};

/* ---- naps ---------------------------------------------------------------- */

/* For all ranks, threads or processes. */
typedef struct sleep_counts {
    _Atomic int naps, overslept, asleep;
    _Atomic int64_t arrived; /* at barriers */
} sleep_counts;

static sleep_counts *book;
static nfds_t most_fds; /* 2: the engine's thread is observed, too */
static int64_t spins;   /* as the groups were told; below 0: they do not */
/* by the descriptor it sleeps on */
static _Atomic(oar_group *) group_of[FDS];

static uint64_t counter_at(const oari_control_page *control, size_t offset)
{
    return atomic_load(
        (const _Atomic uint64_t *)((const char *)control + offset));
}

static int has_mail(const oari_shm *b, int from)
{
    size_t ring = b->layout.mail + (size_t)b->rank * b->layout.ring;
    size_t taken = b->layout.taken + (size_t)from * OARI_SLOT_ALIGN;

    return counter_at(b->control[from], ring) !=
           counter_at(b->control[b->rank], taken);
}

/* Without shared memory: messages that were posted and not begun. */
static int has_fresh(oari_engine *e)
{
    int found;

    pthread_mutex_lock(&e->lock);
    found = e->fresh != NULL;
    pthread_mutex_unlock(&e->lock);
    return found;
}

/* Returns whether this rank should be awake: all have reached its sync point,
 * or there is a message. (Room for more messages shows only as a very long
 * sleep.) */
static int something_there(oar_group *g)
{
    const oari_shm *b = g->shm;

    if (b == NULL)
        return has_fresh(&g->engine);
    if (b->complete != b->sync_point && oari_sync_missing(b) < 0)
        return 1;
    for (int r = 0; r < b->ranks; r++)
        if (has_mail(b, r))
            return 1;
    return 0;
}

static int wait_for(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    struct timespec time = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };

    return ppoll(fds, count, timeout_ms >= 0 ? &time : NULL, NULL);
}

/* Returns whether it is this sleeper that must wake up: the engine's thread
 * sleeps on while a user drives. */
static int is_duty(oar_group *g, nfds_t count)
{
    return count == 1 || atomic_load(&g->engine.dozing) == OARI_DOZE_ALONE;
}

static int sleep_on(struct pollfd *fds, nfds_t count, oar_group *g)
{
    int late = 0, ready = 0;

    for (int i = 0; i < LOOKS && ready == 0 && !late; i++) {
        late = is_duty(g, count) && something_there(g);
        ready = wait_for(fds, count, RING_MS);
    }
    if (ready == 0)
        atomic_fetch_add(&book->overslept, 1);
    return ready;
}

static oar_group *find_group(const struct pollfd *fds, nfds_t count)
{
    return count >= 1 && count <= most_fds && fds->fd >= 0 && fds->fd < FDS
               ? group_of[fds->fd]
               : NULL;
}

static int nap(struct pollfd *fds, nfds_t count, int timeout_ms, oar_group *g)
{
    int ready;

    atomic_fetch_add(&book->naps, 1);
    atomic_fetch_add(&book->asleep, 1);
    ready = wait_for(fds, count, timeout_ms);
    if (ready == 0 && timeout_ms >= NAP_MS / 2)
        ready = sleep_on(fds, count, g);
    atomic_fetch_sub(&book->asleep, 1);
    return ready;
}

/* In place of the C library's. */
int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    int ready = wait_for(fds, count, 0);
    oar_group *g = find_group(fds, count);

    if (g != NULL)
        return nap(fds, count, timeout_ms, g);
    return ready != 0 ? ready : wait_for(fds, count, timeout_ms);
}

/* Used by the mesh of TCP links to look for what has come, rings among it. A
 * little late here, so that some are posted meanwhile. */
int epoll_wait(int fd, struct epoll_event *event, int most, int timeout_ms)
{
    int64_t end = oari_now_ns() + LATE_NS;

    while (oari_now_ns() < end)
        continue;
    return epoll_pwait(fd, event, most, timeout_ms, NULL);
}

/* Between spinning and sleeping the engine yields for 50 us. On a busy machine
 * that takes too long for any rank to sleep here. */
int sched_yield(void)
{
    return 0;
}

/* ---- dawdling ------------------------------------------------------------ */

static _Thread_local uint64_t seed;

static void dawdle(void)
{
    uint64_t r = next_random(&seed);
    int64_t us = r & 1   ? 0
                 : r & 2 ? 40 + (int64_t)(r >> 8) % 60
                         : (int64_t)(r >> 8) % 200;
    int64_t end = oari_now_ns() + us * 1000;

    while (us != 0 && oari_now_ns() < end)
        continue;
}

/* Now and then a rank, each in its turn, arrives only when another sleeps: so
 * there are sleeps however fast or slow the machine is. The others wait for it
 * meanwhile, and so one of them will sleep; unless the other thread keeps them
 * awake, for which there is the deadline. */
static void await_sleeper(uint64_t round, int rank, int ranks)
{
    int64_t deadline = oari_deadline(RING_MS);

    if (round % TURN != 0 || round / TURN % (uint64_t)ranks != (uint64_t)rank)
        return;
    while (atomic_load(&book->asleep) == 0 && oari_now_ns() < deadline)
        syscall(SYS_sched_yield); /* the real one */
}

static void dawdle_at_first(const oari_exec *exec)
{
    if (exec->at != 0)
        return;
    dawdle();
    if (spins < 0)
        await_sleeper(exec->number, exec->rank, exec->ranks);
}

/* Begins a rank's part. */
static void begin(oar_group *g, int chore)
{
    seed = (uint64_t)(10 * chore + oar_group_rank(g));
    group_of[g->shm != NULL ? g->shm->wait_fd : g->backend->wait_fd(g->self)] =
        g;
}

/* ---- what ranks do ------------------------------------------------------- */

static oar_status barriers(oar_group *g, void *arg)
{
    int rounds = *(const int *)arg, n = oar_group_size(g);

    begin(g, 1);
    for (int i = 1; i <= rounds; i++) {
        atomic_fetch_add(&book->arrived, 1);
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK(atomic_load(&book->arrived) >= (int64_t)i * n);
    }
    return OAR_OK;
}

static oar_status sums(oar_group *g, void *arg)
{
    int rounds = *(const int *)arg, n = oar_group_size(g);
    int rank = oar_group_rank(g);

    begin(g, 2);
    for (int i = 0; i < rounds; i++) {
        int64_t x[3] = { i, rank, i * rank };
        CHECK_OK(
            oar_all_reduce(g, oar_span_of(x, 3, OAR_I64), OAR_SUM, NULL, NULL));
        CHECK(x[0] == (int64_t)i * n && x[1] == n * (n - 1) / 2);
        CHECK(x[2] == x[1] * i);
    }
    return OAR_OK;
}

/* Each to the next; now and then more than a ring holds. */
static oar_status messages(oar_group *g, void *arg)
{
    int rounds = *(const int *)arg, n = oar_group_size(g);
    int rank = oar_group_rank(g), to = (rank + 1) % n;
    int from = (rank + n - 1) % n;
    int32_t *out = calloc(LONG, 4), *in = calloc(LONG, 4);

    begin(g, 3);
    for (int i = 0; i < rounds; i++) {
        size_t count = i % 64 == 63 ? LONG : 3;
        oar_work *work;
        out[0] = out[count - 1] = i + rank;
        if (spins < 0)
            await_sleeper((uint64_t)i, rank, n);
        CHECK_OK(
            oar_send(g, oar_span_of(out, count, OAR_I32), to, 7, NULL, &work));
        dawdle();
        CHECK_OK(
            oar_recv(g, oar_span_of(in, count, OAR_I32), from, 7, NULL, NULL));
        CHECK(in[0] == i + from && in[count - 1] == i + from);
        CHECK_OK(oar_work_wait(work));
        oar_work_release(work);
    }
    free(out);
    free(in);
    return OAR_OK;
}

static void note_done(void *arg, oar_status status)
{
    if (status == OAR_OK)
        shared_flag_raise(arg);
}

/* The engine's thread begins them. It ends them too, or hands them over to the
 * user's at some moment. */
static oar_status handovers(oar_group *g, void *arg)
{
    int rounds = *(const int *)arg, n = oar_group_size(g);
    shared_flag ended = 0;
    uint32_t ends = 0;

    begin(g, 4);
    for (int i = 0; i < rounds; i++) {
        int64_t x[2] = { 1, i };
        oar_work *work[2];
        int done = 0;
        for (int k = 0; k < 2; k++)
            CHECK_OK(oar_all_reduce(g, oar_span_of(&x[k], 1, OAR_I64), OAR_SUM,
                                    NULL, &work[k]));
        dawdle();
        if (i % 3 == 0) {
            CHECK_OK(oar_work_then(work[1], note_done, &ended));
            CHECK(shared_flag_await(&ended, ++ends, TEST_JOB_LIMIT_MS));
        }
        while (i % 3 == 1 && !done) {
            CHECK_OK(oar_work_test(work[1], &done));
            syscall(SYS_sched_yield); /* the real one */
        }
        CHECK_OK(oar_work_wait_all(2, work));
        CHECK(x[0] == n && x[1] == (int64_t)i * n);
        oar_work_release(work[0]);
        oar_work_release(work[1]);
    }
    return OAR_OK;
}

/* Two user threads that both want to drive, and the engine's. */
typedef struct user_thread {
    oar_group *group;
    int rounds;
    oar_status status;
} user_thread;

static void *exchange_messages(void *arg)
{
    user_thread *t = arg;

    t->status = messages(t->group, &t->rounds);
    return NULL;
}

static oar_status both(oar_group *g, void *arg)
{
    int rounds = *(const int *)arg;
    user_thread t = { g, rounds, OAR_OK };
    pthread_t thread;
    oar_status status;

    CHECK(pthread_create(&thread, NULL, exchange_messages, &t) == 0);
    status = handovers(g, &rounds);
    pthread_join(thread, NULL);
    CHECK(t.status == OAR_OK);
    return status;
}

/* One thread drives, because it waits for a message that comes last; another
 * posts, and only its post wakes the first. */
static oar_status wait_for_last(oar_group *g)
{
    int32_t last = 0;

    CHECK_OK(oar_recv(g, oar_span_of(&last, 1, OAR_I32), oar_group_rank(g), 8,
                      NULL, NULL));
    CHECK(last == 3);
    return OAR_OK;
}

static void *drive_on(void *arg)
{
    user_thread *t = arg;

    t->status = wait_for_last(t->group);
    return NULL;
}

static oar_status post_beside(oar_group *g, int rounds)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);
    shared_flag ended = 0;

    for (int i = 0; i < rounds; i++) {
        int32_t in = 0, out = i;
        int step = 1 + i % (n - 1); /* so that there are many connections */
        oar_work *work[2];
        CHECK_OK(oar_recv(g, oar_span_of(&in, 1, OAR_I32),
                          (rank + n - step) % n, 7, NULL, &work[0]));
        dawdle();
        if (spins < 0)
            await_sleeper((uint64_t)i, rank, n);
        CHECK_OK(oar_send(g, oar_span_of(&out, 1, OAR_I32), (rank + step) % n,
                          7, NULL, &work[1]));
        CHECK_OK(oar_work_then(work[0], note_done, &ended));
        CHECK(shared_flag_await(&ended, (uint32_t)i + 1, TEST_JOB_LIMIT_MS));
        CHECK(in == i);
        CHECK_OK(oar_work_wait(work[1]));
        oar_work_release(work[0]);
        oar_work_release(work[1]);
    }
    return OAR_OK;
}

static oar_status beside(oar_group *g, void *arg)
{
    int32_t last = 3;
    user_thread t = { .group = g };
    pthread_t thread;
    oar_status status;

    begin(g, 5);
    CHECK(pthread_create(&thread, NULL, drive_on, &t) == 0);
    status = post_beside(g, *(const int *)arg);
    CHECK_OK(oar_send(g, oar_span_of(&last, 1, OAR_I32), oar_group_rank(g), 8,
                      NULL, NULL));
    pthread_join(thread, NULL);
    CHECK(t.status == OAR_OK);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    return status;
}

/* ---- the tests ----------------------------------------------------------- */

static void repeat_on(const char *backend, int64_t spin_us, oar_rank_fn fn,
                      int ranks, int rounds)
{
    oar_group_opts o = oar_group_opts_init();
    int naps, overslept;

    o.spin_us = spins = spin_us;
    most_fds = strcmp(backend, "tcp") == 0 ? 1 : 2; /* others poll there, too */
    oari_exec_hook = dawdle_at_first;
    book = shared_page(sizeof *book);
    memset(group_of, 0, sizeof group_of);
    if (ranks_run(backend, ranks, &o, fn, &rounds) != OAR_OK)
        fail_msg("%s, %d ranks: %s", backend, ranks, oar_last_error_text());
    naps = book->naps;
    overslept = book->overslept;
    shared_page_free(book, sizeof *book);
    book = NULL;
    if (overslept != 0)
        fail_msg("%s, %d ranks: %d of %d sleeps: no wake-up", backend, ranks,
                 overslept, naps);
    if (spin_us < 0 && naps < rounds / 50)
        fail_msg("%s, %d ranks: only %d naps", backend, ranks, naps);
    print_message("%s, %d ranks, spin %d us: %d rounds, %d naps\n", backend,
                  ranks, (int)spin_us, rounds, naps);
}

/* Two ranks also with a little spinning, which looks for sleepers later. */
static void repeat(oar_rank_fn fn, int ranks, int rounds)
{
    repeat_on("shm", -1, fn, ranks, rounds);
    repeat_on("sim", -1, fn, ranks, rounds);
    if (ranks == 2)
        repeat_on("shm", 20, fn, ranks, rounds / 2);
}

static void no_barrier_loses_a_wakeup(void **state)
{
    repeat(barriers, 2, 6000);
    repeat(barriers, 3, 2000);
    repeat(barriers, 5, 800);
}

static void no_small_sum_loses_a_wakeup(void **state)
{
    repeat(sums, 2, 4000);
    repeat(sums, 3, 1500);
    repeat(sums, 5, 700);
}

static void no_message_loses_a_wakeup(void **state)
{
    repeat(messages, 2, 3000);
    repeat(messages, 3, 1500);
    repeat(messages, 5, 800);
}

static void no_handover_to_a_caller_loses_a_wakeup(void **state)
{
    repeat(handovers, 2, 2000);
    repeat(handovers, 3, 1000);
    repeat(handovers, 5, 400);
}

static void two_callers_and_the_engine_lose_no_wakeup(void **state)
{
    repeat(both, 2, 1000);
    repeat(both, 3, 500);
}

static void no_rank_sleeps_through_a_post_of_another_thread(void **state)
{
    repeat(beside, 3, 1000);
    repeat_on("tcp", -1, beside, 6, 600);
}

/* ---- the handshake alone ------------------------------------------------- */

/* Two threads, a sleeper and an arriver, do their two accesses at the same
 * time, again and again: at least one of them must see the other. A store that
 * is still on its way when the load behind it is served shows here, and hardly
 * ever in a whole operation. */
enum { TRIES = 200000, TRY_MS = 4000 };

typedef struct wakeup_pair {
    oari_world *world;
    oari_recorder *recorder[2];
    oari_shm shm[2];
    oari_match *match[2];
    oari_shm_messages *mail[2];
    int by_mail;
    _Atomic int64_t turn; /* how often a side was ready */
    _Atomic int over;
    int tries, lost;
} wakeup_pair;

/* Both sides go on together. */
static void meet_at_start(wakeup_pair *d, int64_t *turns)
{
    atomic_fetch_add(&d->turn, 1);
    *turns += 2;
    for (int i = 1; atomic_load(&d->turn) < *turns; i++)
        if (i % 1000 == 0)
            syscall(SYS_sched_yield);
}

static void wait_a_little(void)
{
    for (volatile int i = (int)(next_random(&seed) % 40); i > 0;)
        i = i - 1;
}

static oar_transfer send_message(int peer, int *text)
{
    return (oar_transfer){ .size = sizeof(oar_transfer),
                           .peer = peer,
                           .tag = 1,
                           .data = text,
                           .bytes = sizeof *text };
}

static void *arrive(void *arg)
{
    wakeup_pair *d = arg;
    oari_shm *b = &d->shm[0];
    int64_t turns = 0;
    int text = 1;

    seed = 1;
    for (;;) {
        oar_transfer t = send_message(1, &text);
        meet_at_start(d, &turns);
        if (d->over)
            return NULL;
        wait_a_little();
        if (d->by_mail)
            oari_shm_messages_send(d->mail[0], &t, 1);
        else {
            oari_sync_begin(b, OARI_AWAIT_ALL);
            oari_sync_poll(b);
        }
        meet_at_start(d, &turns);
    }
}

/* Arms and looks once; whether it saw the other. */
static int arm_and_look(wakeup_pair *d, const oar_transfer *t)
{
    int seen;

    oari_shm_arm(&d->shm[1]);
    if (d->by_mail) {
        oari_shm_messages_progress(d->mail[1]);
        seen = t->done;
    } else
        seen = oari_sync_poll(&d->shm[1]);
    return seen;
}

/* Ends a try on the sleeper's side: was it woken, and is it there now? */
static int look_again(wakeup_pair *d, const oar_transfer *t)
{
    uint64_t rings = 0;
    int rung = read(d->shm[1].wait_fd, &rings, sizeof rings) > 0;

    oari_shm_awake(&d->shm[1]);
    if (d->by_mail)
        oari_shm_messages_progress(d->mail[1]);
    if (!(d->by_mail ? t->done : oari_sync_poll(&d->shm[1])))
        fail_msg("try %d: it is not there at all", d->tries);
    return rung;
}

static void fall_asleep_often(wakeup_pair *d)
{
    int64_t turns = 0, deadline = oari_deadline(TRY_MS);
    int text = 0;

    seed = 2;
    for (; d->tries < TRIES && oari_now_ns() < deadline; d->tries++) {
        oar_transfer t = send_message(0, &text);
        int seen;
        if (d->by_mail)
            oari_match_recv(d->match[1], &t);
        else
            oari_sync_begin(&d->shm[1], OARI_AWAIT_ALL);
        meet_at_start(d, &turns);
        wait_a_little();
        seen = arm_and_look(d, &t);
        meet_at_start(d, &turns);
        d->lost += !look_again(d, &t) && !seen;
    }
    d->over = 1;
    meet_at_start(d, &turns);
}

static void open_pair(wakeup_pair *d)
{
    assert_int_equal(oari_world_create(2, 512, 4096, &d->world), OAR_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(
            oari_recorder_make(
                &(oari_ring_owner){ .group = "pair", .rank = r, .ranks = 2 },
                &d->recorder[r]),
            OAR_OK);
        assert_int_equal(
            oari_world_join(d->world, r, -1, d->recorder[r], &d->shm[r]),
            OAR_OK);
        assert_int_equal(oari_match_create(r, 2, 4096, &d->match[r]), OAR_OK);
        assert_int_equal(oari_shm_messages_create(&d->shm[r], d->match[r], 4096,
                                                  &d->mail[r]),
                         OAR_OK);
    }
}

static void close_pair(wakeup_pair *d)
{
    for (int r = 0; r < 2; r++) {
        oari_shm_messages_destroy(d->mail[r]);
        oari_match_destroy(d->match[r]);
        oari_world_leave(&d->shm[r]);
        oari_recorder_destroy(d->recorder[r]);
    }
    oari_world_release(d->world);
}

static void neither_side_of_the_handshake_misses_the_other(void **state)
{
    for (int by_mail = 0; by_mail < 2; by_mail++) {
        wakeup_pair d = { .by_mail = by_mail };
        pthread_t thread;
        open_pair(&d);
        assert_int_equal(pthread_create(&thread, NULL, arrive, &d), 0);
        fall_asleep_often(&d);
        pthread_join(thread, NULL);
        close_pair(&d);
        print_message("%s: %d tries\n", by_mail ? "messages" : "sync points",
                      d.tries);
        assert_int_equal(d.lost, 0);
    }
}

static int is_rung(const oari_shm *shm)
{
    uint64_t rings;

    return read(shm->wait_fd, &rings, sizeof rings) > 0;
}

/* A rank that comes before the last one would take a core from it. */
static void
without_cores_to_spare_only_the_last_rank_wakes_the_others(void **state)
{
    enum { RANKS = 3 };
    oari_recorder *recorder[RANKS];
    oari_shm shm[RANKS];
    oari_world *world;

    memset(shm, 0, sizeof shm);
    assert_int_equal(oari_world_create(RANKS, 512, 4096, &world), OAR_OK);
    for (int r = 0; r < RANKS; r++) {
        oari_ring_owner owner = { .group = "crowd", .rank = r, .ranks = RANKS };

        assert_int_equal(oari_recorder_make(&owner, &recorder[r]), OAR_OK);
        assert_int_equal(oari_world_join(world, r, -1, recorder[r], &shm[r]),
                         OAR_OK);
    }
    for (int r = 0; r < RANKS; r++) {
        assert_false(is_rung(&shm[0]) || is_rung(&shm[1]));
        oari_sync_begin(&shm[r], OARI_AWAIT_ALL);
        assert_int_equal(oari_sync_poll(&shm[r]), r == RANKS - 1);
        oari_shm_arm(&shm[r]);
    }
    assert_true(is_rung(&shm[0]) && is_rung(&shm[1]));
    for (int r = 0; r < RANKS; r++) {
        assert_true(oari_sync_poll(&shm[r]));
        oari_world_leave(&shm[r]);
        oari_recorder_destroy(recorder[r]);
    }
    oari_world_release(world);
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neither_side_of_the_handshake_misses_the_other),
        cmocka_unit_test(
            without_cores_to_spare_only_the_last_rank_wakes_the_others),
        cmocka_unit_test(no_barrier_loses_a_wakeup),
        cmocka_unit_test(no_small_sum_loses_a_wakeup),
        cmocka_unit_test(no_message_loses_a_wakeup),
        cmocka_unit_test(no_handover_to_a_caller_loses_a_wakeup),
        cmocka_unit_test(two_callers_and_the_engine_lose_no_wakeup),
        cmocka_unit_test(no_rank_sleeps_through_a_post_of_another_thread),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
