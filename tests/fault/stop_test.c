/* SPDX-License-Identifier: Apache-2.0 */
/* STOP, abort, refill, CONT, compare. Rank 1 is stopped in the middle of an
 * operation; the others give up on it and use their buffers for something else;
 * then rank 1 goes on as if nothing had happened, and writes to where it was
 * told to write. Not one byte of the others may change. */
#include "support/crew.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <oarsong/shared.h>

#include "base/clock.h"
#include "comm/group/group.h"
#include "device/segment.h"
#include "support/deed.h"

enum {
    STOPPED = 1,       /* the rank */
    TIMEOUT_MS = 200,  /* where the others give up by themselves */
    BOUND_MS = 1000,   /* beyond that, or after an abort */
    RUNS = 16,         /* until one fails: the first, or when mail is full */
    GUARD_BYTES = 5000 /* not a whole number of pages */
};

typedef struct scene {
    const deed *deed;
    int step;       /* at which rank 1 stops; -1: nobody stops */
    int by_timeout; /* else rank 0 aborts, from another thread */
    int threads;    /* the ranks are threads: rank 1 waits instead */
    int steps;      /* that rank 1 came to */
    crew_flag entered, give_up, refilled, go_on, went_on;
    _Atomic int64_t aborted_ns;
} scene;

/* What one rank has: its buffers between two that belong to nobody else. */
typedef struct stage {
    crew *c;
    scene *scene;
    int rank;
    deed_hands hands;
    unsigned char *guard[2];
    oari_segment_location place; /* of the output, if it is shared */
    oar_group *group;
} stage;

/* ---- memory -------------------------------------------------------------- */

static size_t bytes_of(const stage *s)
{
    return s->hands.deed->count * sizeof(float);
}

static size_t pages_of(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

static int make_guard(stage *s, int which)
{
    void *memory;

    CREW_CHECK(s->c, s->rank, oar_shared_alloc(GUARD_BYTES, &memory) == OAR_OK);
    s->guard[which] = memory;
    memset(memory, 0x11 << which, GUARD_BYTES);
    return 0;
}

static int make_memory(stage *s)
{
    const unsigned char *out;

    if (make_guard(s, 0) != 0)
        return 1;
    CREW_CHECK(s->c, s->rank,
               deed_take(&s->hands, s->scene->deed, s->rank, s->c->ranks) ==
                   OAR_OK);
    if (make_guard(s, 1) != 0)
        return 1;
    if (!s->hands.shared)
        return 0;
    out = (const unsigned char *)s->hands.out;
    CREW_CHECK(s->c, s->rank,
               (const unsigned char *)s->hands.in ==
                   s->guard[0] + pages_of(GUARD_BYTES));
    CREW_CHECK(s->c, s->rank, out + pages_of(bytes_of(s)) == s->guard[1]);
    CREW_CHECK(s->c, s->rank, oari_segment_find(out, bytes_of(s), &s->place));
    return 0;
}

static void drop_memory(stage *s)
{
    deed_drop(&s->hands);
    oar_shared_free(s->guard[0]);
    oar_shared_free(s->guard[1]);
}

static unsigned char pattern(const stage *s, size_t i, int out)
{
    return (unsigned char)(i * 7 + (size_t)s->rank * 31 + (size_t)out * 101);
}

static void refill(stage *s)
{
    unsigned char *out = (unsigned char *)s->hands.out;
    unsigned char *in = (unsigned char *)s->hands.in;

    for (size_t i = 0; i < bytes_of(s); i++) {
        in[i] = pattern(s, i, 0);
        out[i] = pattern(s, i, in != out);
    }
}

static int check_refill(const stage *s)
{
    const unsigned char *out = (const unsigned char *)s->hands.out;
    const unsigned char *in = (const unsigned char *)s->hands.in;

    for (size_t i = 0; i < bytes_of(s); i++) {
        CREW_CHECK(s->c, s->rank, in[i] == pattern(s, i, 0));
        CREW_CHECK(s->c, s->rank, out[i] == pattern(s, i, in != out));
    }
    return 0;
}

static int check_guards(const stage *s)
{
    for (int which = 0; which < 2; which++) {
        for (size_t i = 0; i < GUARD_BYTES; i++)
            CREW_CHECK(s->c, s->rank, s->guard[which][i] == 0x11 << which);
        CREW_CHECK(s->c, s->rank,
                   oar_shared_reachable(s->guard[which], GUARD_BYTES));
    }
    return 0;
}

/* Whether peers were told to write straight into the output. */
static int exposed(const stage *s)
{
    const deed *d = s->hands.deed;

    return d->kind == OAR_COLL_ALL_REDUCE && d->algorithm == NULL &&
           bytes_of(s) > 512 && s->hands.shared;
}

static int check_reach(const stage *s)
{
    const deed_hands *h = &s->hands;

    if (!h->shared || bytes_of(s) == 0)
        return 0;
    CREW_CHECK(s->c, s->rank,
               oar_shared_reachable(h->out, bytes_of(s)) == !exposed(s));
    if (h->in != h->out)
        CREW_CHECK(s->c, s->rank, oar_shared_reachable(h->in, bytes_of(s)));
    return 0;
}

/* What a late rank 1 leaves at place i of the others' old pages: the sum, or,
 * if their inputs were elsewhere and are used for something else by now, at
 * least not the zero that was there. */
static int was_written(const stage *s, const float *old, size_t i)
{
    int n = s->c->ranks;

    return s->hands.deed->apart ? old[i] != 0
                                : old[i] == (float)(n * (n + 1) / 2) +
                                                (float)n * (float)(i % 97);
}

/* The late write must have happened, or the test shows nothing. */
static int check_late_write(const stage *s)
{
    size_t count = s->hands.deed->count, bytes;
    size_t first = oari_slice_first(count, s->c->ranks, STOPPED);
    size_t end = oari_slice_first(count, s->c->ranks, STOPPED + 1);
    const float *old;
    void *base;
    int fd, written;

    if (!exposed(s) || s->hands.deed->memory != DEED_SHARED ||
        s->scene->step > 2)
        return 0;
    CREW_CHECK(s->c, s->rank,
               oari_segment_export(s->place.segment, &fd, &bytes) == OAR_OK);
    base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    CREW_CHECK(s->c, s->rank, base != MAP_FAILED);
    old = (const float *)((const char *)base + s->place.offset);
    written = was_written(s, old, first) && was_written(s, old, end - 1);
    munmap(base, bytes);
    CREW_CHECK(s->c, s->rank, written);
    return 0;
}

/* ---- the ranks ----------------------------------------------------------- */

static void stop_here(void *arg)
{
    scene *sc = arg;

    if (!sc->threads) {
        raise(SIGSTOP);
        return;
    }
    crew_raise(&sc->give_up);
    crew_await(&sc->go_on, 1, CREW_PATIENCE_MS);
}

/* Runs it until it fails: at once, unless rank 1 had done its part. */
static int run_until_failure(stage *s, oar_status *status)
{
    int64_t limit = s->scene->by_timeout ? TIMEOUT_MS : 0;

    *status = OAR_OK;
    for (int i = 0; i < RUNS && *status == OAR_OK; i++) {
        int64_t start = oari_now_ns();
        deed_fill(&s->hands);
        *status = deed_run(&s->hands, s->group, limit);
        if (s->rank != STOPPED && s->scene->by_timeout)
            CREW_CHECK(s->c, s->rank,
                       crew_in_time(start, TIMEOUT_MS + BOUND_MS));
        CREW_CHECK(s->c, s->rank, *status != OAR_OK || deed_right(&s->hands));
    }
    CREW_CHECK(s->c, s->rank,
               *status ==
                   (s->scene->by_timeout ? OAR_E_TIMEOUT : OAR_E_ABORTED));
    return 0;
}

/* Until everyone but rank 1 waits for it, asleep. */
static int await_sleepers(const stage *s)
{
    oari_control **control = s->group->board->control;
    int64_t deadline = oari_deadline(CREW_PATIENCE_MS);

    for (int r = 0; r < s->c->ranks; r++)
        while (r != STOPPED && !atomic_load(&control[r]->sleeping))
            if (oari_now_ns() > deadline || sched_yield() != 0)
                return 0;
    return 1;
}

static void *abort_when_told(void *arg)
{
    stage *s = arg;

    if (crew_await(&s->scene->give_up, 1, CREW_PATIENCE_MS) &&
        await_sleepers(s)) {
        atomic_store(&s->scene->aborted_ns, oari_now_ns());
        oar_group_abort(s->group, "tired of waiting");
    }
    return NULL;
}

static int give_up_in_time(stage *s)
{
    oar_status status;
    pthread_t thread;
    int aborts = s->rank == 0 && !s->scene->by_timeout, failed;

    if (s->scene->by_timeout)
        CREW_CHECK(s->c, s->rank,
                   crew_await(&s->scene->entered, 1, CREW_PATIENCE_MS));
    if (aborts)
        CREW_CHECK(s->c, s->rank,
                   pthread_create(&thread, NULL, abort_when_told, s) == 0);
    failed = run_until_failure(s, &status);
    if (aborts)
        pthread_join(thread, NULL);
    if (failed)
        return 1;
    if (!s->scene->by_timeout)
        CREW_CHECK(s->c, s->rank, crew_in_time(s->scene->aborted_ns, BOUND_MS));
    return 0;
}

static int be_patient(stage *s)
{
    if (give_up_in_time(s) != 0)
        return 1;
    refill(s);
    crew_raise(&s->scene->refilled);
    CREW_CHECK(s->c, s->rank,
               crew_await(&s->scene->went_on, 1, CREW_PATIENCE_MS));
    return check_refill(s) || check_guards(s) || check_reach(s) ||
           check_late_write(s);
}

static int be_stopped(stage *s)
{
    oar_status status;
    int failed;

    deed_watch(s->scene->step, stop_here, s->scene);
    crew_raise(&s->scene->entered);
    failed = run_until_failure(s, &status);
    crew_raise(&s->scene->went_on);
    return failed || check_guards(s) || check_reach(s);
}

/* The same buffers, in a group that is whole. */
static int use_again(stage *s)
{
    oar_group_opts o = deed_opts(s->hands.deed, CREW_PATIENCE_MS);

    o.name = "again";
    CREW_CHECK(s->c, s->rank,
               crew_join(s->c, s->rank, &o, &s->group) == OAR_OK);
    deed_fill(&s->hands);
    CREW_CHECK(s->c, s->rank, deed_run(&s->hands, s->group, 0) == OAR_OK);
    CREW_CHECK(s->c, s->rank, deed_right(&s->hands));
    oar_group_destroy(s->group);
    return check_guards(s);
}

static int run_scene(crew *c, int rank, void *arg)
{
    stage s = { .c = c, .scene = arg, .rank = rank };
    oar_group_opts o = deed_opts(s.scene->deed, CREW_PATIENCE_MS);
    int failed;

    if (make_memory(&s) != 0)
        return 1;
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &s.group) == OAR_OK);
    failed = rank == STOPPED ? be_stopped(&s) : be_patient(&s);
    oar_group_destroy(s.group);
    failed = failed || use_again(&s);
    drop_memory(&s);
    return failed;
}

static int count_scene(crew *c, int rank, void *arg)
{
    stage s = { .c = c, .scene = arg, .rank = rank };
    oar_group_opts o = deed_opts(s.scene->deed, CREW_PATIENCE_MS);

    if (make_memory(&s) != 0)
        return 1;
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &s.group) == OAR_OK);
    deed_watch(-1, NULL, NULL);
    CREW_CHECK(c, rank, deed_run(&s.hands, s.group, 0) == OAR_OK);
    CREW_CHECK(c, rank, deed_right(&s.hands));
    if (rank == STOPPED)
        s.scene->steps = deed_steps();
    oar_group_destroy(s.group);
    drop_memory(&s);
    return 0;
}

/* ---- ranks as threads ---------------------------------------------------- */

/* Rank 1 came too late to read: it must not have what the root has now. */
static int check_unread(stage *s)
{
    stage root = { .rank = s->hands.deed->last_root ? s->c->ranks - 1 : 0 };
    const unsigned char *out = (const unsigned char *)s->hands.out;
    size_t same = 0;

    if (s->hands.deed->kind != OAR_COLL_BROADCAST || root.rank == s->rank)
        return 0;
    for (size_t i = 0; i < bytes_of(s); i++)
        same += out[i] == pattern(&root, i, 0);
    CREW_CHECK(s->c, s->rank, same < bytes_of(s) / 2);
    return 0;
}

static int be_late_thread(stage *s)
{
    oar_status status;
    int failed;

    deed_watch(s->scene->step, stop_here, s->scene);
    failed = run_until_failure(s, &status) || check_unread(s);
    crew_raise(&s->scene->went_on);
    return failed;
}

static int be_patient_thread(stage *s)
{
    if (give_up_in_time(s) != 0)
        return 1;
    refill(s);
    crew_raise(&s->scene->refilled);
    CREW_CHECK(s->c, s->rank,
               crew_await(&s->scene->refilled, (uint32_t)s->c->ranks - 1,
                          CREW_PATIENCE_MS));
    crew_raise(&s->scene->go_on);
    CREW_CHECK(s->c, s->rank,
               crew_await(&s->scene->went_on, 1, CREW_PATIENCE_MS));
    return check_refill(s);
}

static oar_status run_thread(oar_group *g, void *arg)
{
    stage s = { .scene = arg, .rank = oar_group_rank(g), .group = g };
    crew c = { .ranks = oar_group_size(g) };
    int failed;

    s.c = &c;
    snprintf(c.what, sizeof c.what, "%s, %d threads, stop at step %d",
             s.scene->deed->name, c.ranks, s.scene->step);
    CHECK_OK(deed_take(&s.hands, s.scene->deed, s.rank, c.ranks));
    deed_watch(-1, NULL, NULL);
    failed = s.rank == STOPPED ? be_late_thread(&s) : be_patient_thread(&s);
    CHECK(!failed);
    deed_drop(&s.hands);
    return OAR_OK;
}

static oar_status count_thread(oar_group *g, void *arg)
{
    scene *sc = arg;
    deed_hands h;

    CHECK_OK(deed_take(&h, sc->deed, oar_group_rank(g), oar_group_size(g)));
    deed_watch(-1, NULL, NULL);
    CHECK_OK(deed_run(&h, g, 0));
    CHECK(deed_right(&h));
    if (oar_group_rank(g) == STOPPED)
        sc->steps = deed_steps();
    deed_drop(&h);
    return OAR_OK;
}

static void play_threads(const deed *d, int ranks, int step, int *steps)
{
    oar_group_opts o = deed_opts(d, CREW_PATIENCE_MS);
    scene *sc = crew_page(sizeof *sc);

    sc->deed = d;
    sc->step = step;
    sc->threads = 1;
    deed_watch(-1, NULL, NULL); /* before there are threads */
    if (oar_sim_run_with(ranks, &o, steps != NULL ? count_thread : run_thread,
                         sc) != OAR_OK)
        fail_msg("%s, %d threads, step %d: %s", d->name, ranks, step,
                 oar_last_error_text());
    if (steps != NULL)
        *steps = sc->steps;
    crew_drop_page(sc, sizeof *sc);
}

static void a_late_thread_finds_the_gate_shut(void **state)
{
    int scenarios = 0;

    for (int ranks = 2; ranks <= 3; ranks++)
        for (const deed *d = deed_list; d->name != NULL; d++) {
            int steps;
            play_threads(d, ranks, -1, &steps);
            for (int step = 0; step < steps - 1; step++, scenarios++)
                play_threads(d, ranks, step, NULL);
        }
    unsetenv("OARSONG_ALGO");
    print_message("%d stops\n", scenarios);
}

/* ---- the parent ---------------------------------------------------------- */

static int count_steps(const deed *d, int ranks)
{
    scene *sc = crew_page(sizeof *sc);
    int steps;
    crew c;

    sc->deed = d;
    crew_start(&c, ranks, count_scene, sc, "%s, %d ranks", d->name, ranks);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    steps = sc->steps;
    crew_drop_page(sc, sizeof *sc);
    return steps;
}

static void play(const deed *d, int ranks, int step, int by_timeout)
{
    scene *sc = crew_page(sizeof *sc);
    crew c;

    sc->deed = d;
    sc->step = step;
    sc->by_timeout = by_timeout;
    crew_start(&c, ranks, run_scene, sc, "%s, %d ranks, stop at step %d, %s",
               d->name, ranks, step, by_timeout ? "timeout" : "abort");
    if (!crew_wait_stopped(&c, STOPPED, CREW_PATIENCE_MS))
        crew_give_up(&c, "rank %d did not stop", STOPPED);
    crew_raise(&sc->give_up);
    if (!crew_await(&sc->refilled, (uint32_t)ranks - 1, CREW_PATIENCE_MS))
        crew_give_up(&c, "the others did not give up");
    kill(c.pid[STOPPED], SIGCONT);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    crew_drop_page(sc, sizeof *sc);
}

/* Every step but the END, after which there is nothing to be late with. */
static void stop_everywhere(int ranks)
{
    int scenarios = 0;

    for (const deed *d = deed_list; d->name != NULL; d++) {
        int steps = count_steps(d, ranks);
        for (int step = 0; step < steps - 1; step++, scenarios++)
            play(d, ranks, step, 0);
    }
    print_message("%d stops\n", scenarios);
}

static void a_late_writer_cannot_hurt_the_other_after_an_abort(void **state)
{
    stop_everywhere(2);
}

static void
a_late_writer_cannot_hurt_the_two_others_after_an_abort(void **state)
{
    stop_everywhere(3);
}

static const deed *find_deed(const char *name)
{
    for (const deed *d = deed_list; d->name != NULL; d++)
        if (strcmp(d->name, name) == 0)
            return d;
    fail_msg("there is no %s", name);
    return NULL;
}

/* Before the first meeting, after it, and before the last one. */
static void a_late_writer_cannot_hurt_the_others_after_a_timeout(void **state)
{
    static const char *const names[] = { "all_reduce, direct",
                                         "all_reduce, direct, apart",
                                         "all_reduce, direct, private",
                                         "broadcast, direct, last root" };

    for (int i = 0; i < 4; i++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            const deed *d = find_deed(names[i]);
            int last = count_steps(d, ranks) - 2;
            play(d, ranks, 0, 1);
            play(d, ranks, 2, 1);
            if (last > 2)
                play(d, ranks, last, 1);
        }
}

static void a_small_operation_times_out_without_a_meeting(void **state)
{
    play(find_deed("all_reduce, line"), 2, 0, 1);
    play(find_deed("all_reduce, line, shared, apart"), 3, 0, 1);
    play(find_deed("barrier, line"), 3, 0, 1);
    play(find_deed("all_reduce, staged, shared"), 2, 1, 1);
    play(find_deed("all_reduce, exchange"), 3, 3, 1);
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_writer_cannot_hurt_the_other_after_an_abort),
        cmocka_unit_test(
            a_late_writer_cannot_hurt_the_two_others_after_an_abort),
        cmocka_unit_test(a_late_writer_cannot_hurt_the_others_after_a_timeout),
        cmocka_unit_test(a_late_thread_finds_the_gate_shut),
        cmocka_unit_test(a_small_operation_times_out_without_a_meeting),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
