/* SPDX-License-Identifier: Apache-2.0 */
/* The backend gloo: all of Gloo's algorithms, several operations in flight at
 * once, and what happens when a rank dies, stops, calls something else or
 * aborts. */
#include "support/test_job.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/backend.h>
#include <oarsong/p2p.h>

#include "base/clock.h"

enum {
    RANKS = 3,
    ODD = 1003,
    LARGE = (1 << 20) + 17, /* elements */
    REPORT_MS = 10000,      /* on a busy machine */
    ROUNDS = 6,
    AT_ONCE = 12,
    SKIPPED = 77
};

typedef struct gloo_context {
    shared_flag ready, over;
    const char *variable, *value; /* of the environment; NULL: none */
    int kind;                     /* of wrong program, or of call */
    oar_error record[TEST_JOB_RANKS];
} gloo_context;

static oar_status join(const test_job *c, int rank, const gloo_context *s,
                       int64_t timeout_ms, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    if (s->variable != NULL)
        setenv(s->variable, s->value, 1);
    o.backend = "gloo";
    o.timeout_ms = timeout_ms;
    return test_job_join(c, rank, &o, g);
}

static void run(int ranks, test_job_fn fn, gloo_context *s, const char *what)
{
    test_job c;

    test_job_start(&c, ranks, fn, s, "%s", what);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void run_plain(int ranks, test_job_fn fn, const char *what)
{
    gloo_context *s = shared_page(sizeof *s);

    run(ranks, fn, s, what);
    shared_page_free(s, sizeof *s);
}

/* ---- algorithms ---------------------------------------------------------- */

static const struct {
    const char *variable, *names;
} choices[] = {
    { "OARSONG_GLOO_BARRIER", "dissemination planned" },
    { "OARSONG_GLOO_BROADCAST", "tree planned" },
    { "OARSONG_GLOO_ALLREDUCE", "ring bcube planned" },
    { "OARSONG_GLOO_REDUCE", "ring planned" },
    { "OARSONG_GLOO_GATHER", "direct planned" },
    { "OARSONG_GLOO_SCATTER", "direct planned" },
    { "OARSONG_GLOO_ALLGATHER", "ring planned" },
    { "OARSONG_GLOO_REDUCE_SCATTER", "all_reduce planned" },
    { "OARSONG_GLOO_ALLTOALL", "pairwise planned" },
};
enum { CHOICES = sizeof choices / sizeof *choices, NAME = 32 };

/* The index-th word of a text; 0 past the last. */
static int word_of(const char *text, int index, char word[NAME])
{
    for (; index > 0; index--) {
        text = strchr(text, ' ');
        if (text == NULL)
            return 0;
        text++;
    }
    snprintf(word, NAME, "%.*s", (int)strcspn(text, " "), text);
    return 1;
}

/* Element i of what a rank gives. Small whole numbers: any order of adding
 * them gives the same. */
static float given(int rank, size_t i)
{
    return (float)((size_t)(rank + 1) * (i % 13 + 1));
}

static int is_sum(const float *data, size_t from, size_t count, int ranks)
{
    float whole = (float)(ranks * (ranks + 1) / 2);

    for (size_t i = 0; i < count; i++)
        if (data[i] != whole * (float)((from + i) % 13 + 1))
            return 0;
    return 1;
}

static int is_given(const float *data, size_t from, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != given(rank, from + i))
            return 0;
    return 1;
}

static void give(float *data, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        data[i] = given(rank, i);
}

static oar_span floats(float *data, size_t count)
{
    return oar_span_of(data, count, OAR_F32);
}

typedef struct gloo_buffers {
    float in[8 * ODD], out[8 * ODD];
} gloo_buffers;

static int reduce_all(test_job *c, int rank, oar_group *g, gloo_buffers *b)
{
    int n = c->ranks;
    oar_span none = floats(NULL, 0);

    give(b->in, ODD, rank);
    RANK_CHECK(oar_all_reduce_into(g, floats(b->in, ODD), floats(b->out, ODD),
                                   OAR_SUM, NULL, NULL) == OAR_OK);
    RANK_CHECK(is_sum(b->out, 0, ODD, n));
    RANK_CHECK(is_given(b->in, 0, ODD, rank));
    RANK_CHECK(oar_reduce(g, floats(b->in, ODD),
                          rank == n - 1 ? floats(b->out, ODD) : none, OAR_SUM,
                          n - 1, NULL, NULL) == OAR_OK);
    RANK_CHECK(rank != n - 1 || is_sum(b->out, 0, ODD, n));
    give(b->in, (size_t)n * ODD, rank);
    RANK_CHECK(oar_reduce_scatter(g, floats(b->in, (size_t)n * ODD),
                                  floats(b->out, ODD), OAR_SUM, NULL,
                                  NULL) == OAR_OK);
    RANK_CHECK(is_sum(b->out, (size_t)rank * ODD, ODD, n));
    return 0;
}

static int move_all(test_job *c, int rank, oar_group *g, gloo_buffers *b)
{
    size_t n = (size_t)c->ranks, last = n - 1;
    oar_span none = floats(NULL, 0), row = floats(b->out, n * ODD);

    give(b->in, n * ODD, rank);
    RANK_CHECK(oar_gather(g, floats(b->in, ODD),
                          (size_t)rank == last ? row : none, (int)last, NULL,
                          NULL) == OAR_OK);
    for (size_t r = 0; r < n && (size_t)rank == last; r++)
        RANK_CHECK(is_given(b->out + r * ODD, 0, ODD, (int)r));
    RANK_CHECK(oar_scatter(g, rank == 1 ? floats(b->in, n * ODD) : none,
                           floats(b->out, ODD), 1, NULL, NULL) == OAR_OK);
    RANK_CHECK(is_given(b->out, (size_t)rank * ODD, ODD, 1));
    RANK_CHECK(oar_all_gather(g, floats(b->in, ODD), row, NULL, NULL) ==
               OAR_OK);
    for (size_t r = 0; r < n; r++)
        RANK_CHECK(is_given(b->out + r * ODD, 0, ODD, (int)r));
    RANK_CHECK(oar_all_to_all(g, floats(b->in, n * ODD), row, NULL, NULL) ==
               OAR_OK);
    for (size_t r = 0; r < n; r++)
        RANK_CHECK(is_given(b->out + r * ODD, (size_t)rank * ODD, ODD, (int)r));
    return 0;
}

static int do_all(test_job *c, int rank, oar_group *g)
{
    gloo_buffers *b = calloc(1, sizeof *b);
    int bad;

    RANK_CHECK(b != NULL);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    bad = reduce_all(c, rank, g, b) != 0 || move_all(c, rank, g, b) != 0;
    give(b->in, ODD, rank);
    RANK_CHECK(oar_broadcast(g, floats(b->in, ODD), 1, NULL, NULL) == OAR_OK);
    RANK_CHECK(is_given(b->in, 0, ODD, 1));
    free(b);
    return bad;
}

/* One group for each column of names. */
static int try_every_way(test_job *c, int rank, void *arg)
{
    gloo_context *s = arg;
    oar_group *g;

    for (int column = 0;; column++) {
        int any = 0;
        for (int i = 0; i < CHOICES; i++) {
            char name[NAME];
            if (word_of(choices[i].names, column, name)) {
                setenv(choices[i].variable, name, 1);
                any = 1;
            }
        }
        if (!any)
            return 0;
        RANK_CHECK(join(c, rank, s, 20000, &g) == OAR_OK);
        RANK_CHECK(do_all(c, rank, g) == 0);
        oar_group_destroy(g);
    }
}

static void every_algorithm_gives_what_it_should(void **state)
{
    run_plain(3, try_every_way, "every algorithm, 3 ranks");
    run_plain(4, try_every_way, "every algorithm, 4 ranks");
}

static int ask_for_nonsense(test_job *c, int rank, void *arg)
{
    gloo_context *s = arg;
    const char *text;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, 20000, &g) == OAR_E_ARG);
    text = oar_last_error_text();
    RANK_CHECK(strstr(text, s->variable) != NULL);
    RANK_CHECK(strstr(text, "nonsense") != NULL);
    for (int i = 0;; i++) {
        char name[NAME];
        if (!word_of(choices[s->kind].names, i, name))
            break;
        RANK_CHECK(strstr(text, name) != NULL);
    }
    return 0;
}

static void a_name_that_is_none_is_refused_with_those_there_are(void **state)
{
    gloo_context *s = shared_page(sizeof *s);

    for (s->kind = 0; s->kind < CHOICES; s->kind++) {
        s->variable = choices[s->kind].variable;
        s->value = "nonsense";
        run(2, ask_for_nonsense, s, s->variable);
    }
    shared_page_free(s, sizeof *s);
}

/* ---- several at once ----------------------------------------------------- */

enum { MANY = 11 };

static int post_many(test_job *c, int rank, void *arg)
{
    static float data[MANY][ODD];
    oar_work *work[MANY];
    oar_group *g;

    RANK_CHECK(join(c, rank, arg, 20000, &g) == OAR_OK);
    for (int i = 0; i < MANY; i++) {
        give(data[i], ODD - (size_t)i, rank);
        RANK_CHECK(oar_all_reduce(g, floats(data[i], ODD - (size_t)i), OAR_SUM,
                                  NULL, &work[i]) == OAR_OK);
    }
    for (int i = MANY - 1; i >= 0; i--) {
        RANK_CHECK(oar_work_wait(work[i]) == OAR_OK);
        RANK_CHECK(is_sum(data[i], 0, ODD - (size_t)i, c->ranks));
        oar_work_release(work[i]);
    }
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void collectives_under_way_at_once_do_not_mix(void **state)
{
    gloo_context *s = shared_page(sizeof *s);
    static const char *const threads[] = { "1", "3", "8" };

    s->variable = "OARSONG_GLOO_THREADS";
    for (int i = 0; i < 3; i++) {
        s->value = threads[i];
        run(RANKS, post_many, s, threads[i]);
    }
    shared_page_free(s, sizeof *s);
}

/* Rank 0 begins a collective and then sends; the others receive first. */
static int send_behind(test_job *c, int rank, void *arg)
{
    static float data[LARGE];
    float word = 5;
    oar_work *work = NULL;
    oar_group *g;

    RANK_CHECK(join(c, rank, arg, 20000, &g) == OAR_OK);
    give(data, LARGE, rank);
    for (int i = 0; i < 3; i++) {
        if (rank != 0)
            RANK_CHECK(oar_recv(g, floats(&word, 1), 0, i, NULL, NULL) ==
                       OAR_OK);
        give(data, LARGE, rank);
        RANK_CHECK(oar_all_reduce(g, floats(data, LARGE), OAR_SUM, NULL,
                                  &work) == OAR_OK);
        for (int r = 1; rank == 0 && r < c->ranks; r++)
            RANK_CHECK(oar_send(g, floats(&word, 1), r, i, NULL, NULL) ==
                       OAR_OK);
        RANK_CHECK(oar_work_wait(work) == OAR_OK);
        oar_work_release(work);
        RANK_CHECK(is_sum(data, 0, LARGE, c->ranks));
    }
    oar_group_destroy(g);
    return 0;
}

static void a_message_passes_a_collective_that_waits_for_it(void **state)
{
    gloo_context *s = shared_page(sizeof *s);

    s->variable = "OARSONG_GLOO_ALLREDUCE";
    s->value = "ring";
    run(RANKS, send_behind, s, "ring");
    s->value = "bcube";
    run(RANKS, send_behind, s, "bcube");
    shared_page_free(s, sizeof *s);
}

/* ---- callers that work --------------------------------------------------- */

static int threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;

    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* One more operation is looked after by the engine, and by no caller. */
static int work_alone(test_job *c, int rank, void *arg)
{
    float data[ODD];
    int before;
    oar_group *g;

    RANK_CHECK(join(c, rank, arg, 20000, &g) == OAR_OK);
    before = threads();
    for (int i = 0; i < 20; i++) {
        give(data, ODD, rank);
        RANK_CHECK(oar_all_reduce(g, floats(data, ODD), OAR_SUM, NULL, NULL) ==
                   OAR_OK);
        RANK_CHECK(is_sum(data, 0, ODD, c->ranks));
    }
    RANK_CHECK(threads() <= before + 1);
    oar_group_destroy(g);
    return 0;
}

static void a_caller_that_waits_does_the_work_itself(void **state)
{
    run_plain(RANKS, work_alone, "callers alone");
}

enum { TURNS = 60 };

typedef struct gloo_thread {
    oar_group *group;
    int wrong;
} gloo_thread;

/* A number that goes round, on the group whose other thread is in Gloo. */
static void *exchange_messages(void *arg)
{
    gloo_thread *t = arg;
    int rank = oar_group_rank(t->group), ranks = oar_group_size(t->group);
    float mine = (float)rank, got;

    for (int i = 0; i < TURNS; i++) {
        got = -1;
        t->wrong |= oar_sendrecv(t->group, floats(&mine, 1), (rank + 1) % ranks,
                                 3, floats(&got, 1), (rank + ranks - 1) % ranks,
                                 3, NULL, NULL) != OAR_OK ||
                    got != (float)((rank + ranks - 1) % ranks);
    }
    return NULL;
}

/* What one rank does itself, another leaves to threads. */
static int work_together(test_job *c, int rank, void *arg)
{
    static float data[LARGE];
    gloo_thread t = { 0 };
    pthread_t thread;
    oar_work *work;

    RANK_CHECK(join(c, rank, arg, 20000, &t.group) == OAR_OK);
    RANK_CHECK(pthread_create(&thread, NULL, exchange_messages, &t) == 0);
    for (int i = 0; i < TURNS; i++) {
        size_t count = i % 20 == 7 ? LARGE : 1 + (size_t)i * 17 % ODD;
        int later = (rank + i) % 3 == 0;

        give(data, count, rank);
        RANK_CHECK(oar_all_reduce(t.group, floats(data, count), OAR_SUM, NULL,
                                  later ? &work : NULL) == OAR_OK);
        if (later) {
            RANK_CHECK(oar_work_wait(work) == OAR_OK);
            oar_work_release(work);
        }
        RANK_CHECK(is_sum(data, 0, count, c->ranks));
        if (i % 9 == 0)
            RANK_CHECK(oar_barrier(t.group, NULL, NULL) == OAR_OK);
    }
    pthread_join(thread, NULL);
    RANK_CHECK(!t.wrong);
    oar_group_destroy(t.group);
    return 0;
}

static void callers_and_threads_work_together(void **state)
{
    run_plain(RANKS, work_together, "callers and threads");
}

/* ---- faults -------------------------------------------------------------- */

/* What each survivor was told. */
static int note(test_job *c, int rank, gloo_context *s, oar_group *g,
                oar_status status)
{
    int64_t since;

    s->record[rank].size = sizeof s->record[rank];
    RANK_CHECK(oar_group_fault(g, &s->record[rank]) == status);
    since = oari_now_ns();
    oar_group_destroy(g);
    RANK_CHECK(is_in_time(since, 5000));
    return 0;
}

static oar_status call_large(oar_group *g, int kind, float *a, float *b,
                             int rank)
{
    size_t part = LARGE / 8;

    switch (kind) {
    case OAR_COLL_BROADCAST:
        return oar_broadcast(g, floats(a, LARGE), RANKS - 1, NULL, NULL);
    case OAR_COLL_ALL_GATHER:
        return oar_all_gather(g, floats(a, part), floats(b, part * RANKS), NULL,
                              NULL);
    case OAR_COLL_ALL_TO_ALL:
        return oar_all_to_all(g, floats(a, part * RANKS),
                              floats(b, part * RANKS), NULL, NULL);
    case OAR_COLL_BARRIER: return oar_barrier(g, NULL, NULL);
    case OAR_COLL_REDUCE_SCATTER: /* planned over messages */
        return oar_reduce_scatter(g, floats(a, part * RANKS), floats(b, part),
                                  OAR_SUM, NULL, NULL);
    default: return oar_all_reduce(g, floats(a, LARGE), OAR_SUM, NULL, NULL);
    }
}

/* The last rank dies while the others are in the collective. */
static int lose_a_peer(test_job *c, int rank, void *arg)
{
    static float a[LARGE], b[LARGE];
    gloo_context *s = arg;
    oar_group *g;
    int64_t since;
    oar_status status;

    RANK_CHECK(join(c, rank, s, 60000, &g) == OAR_OK);
    RANK_CHECK(call_large(g, s->kind, a, b, rank) == OAR_OK);
    if (rank == RANKS - 1) {
        shared_flag_await(&s->ready, RANKS - 1, REPORT_MS);
        raise(SIGKILL);
    }
    shared_flag_raise(&s->ready);
    since = oari_now_ns();
    status = call_large(g, s->kind, a, b, rank);
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(is_in_time(since, REPORT_MS));
    RANK_CHECK(oar_last_error()->peer == RANKS - 1);
    return note(c, rank, s, g, OAR_E_PEER);
}

static void lose_in(int kind)
{
    gloo_context *s = shared_page(sizeof *s);
    test_job c;

    s->kind = kind;
    test_job_start(&c, RANKS, lose_a_peer, s, "death in %s",
                   oar_coll_name((oar_coll)kind));
    test_job_expect(&c, RANKS - 1, 128 + SIGKILL);
    for (int r = 0; r < RANKS - 1; r++)
        test_job_expect(&c, r, 0);
    for (int r = 0; r < RANKS - 1; r++)
        assert_int_equal(s->record[r].peer, RANKS - 1);
    assert_string_equal(s->record[0].text, s->record[1].text);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void the_rank_that_died_is_named_by_all_others(void **state)
{
    static const int kinds[] = { OAR_COLL_ALL_REDUCE, OAR_COLL_BROADCAST,
                                 OAR_COLL_ALL_GATHER, OAR_COLL_ALL_TO_ALL,
                                 OAR_COLL_BARRIER,    OAR_COLL_REDUCE_SCATTER };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        lose_in(kinds[i]);
}

enum {
    ON_ITS_WAY_MS = 50,  /* for the receives to be known to the peers */
    TOO_LARGE = 24 << 20 /* elements: more than a connection keeps for a rank
                            that does not read */
};

/* The last rank stops in the middle of it, with data on the way: what is sent
 * to it fills the connection, and is half written when the time is over. */
static int wait_for_a_stopped_one(test_job *c, int rank, void *arg)
{
    static float a[TOO_LARGE], b[TOO_LARGE * RANKS];
    int last = RANKS - 1;
    gloo_context *s = arg;
    oar_span out = rank == last ? floats(b, TOO_LARGE * RANKS) : floats(b, 0);
    oar_work *work, **later = rank == last ? &work : NULL;
    oar_call_opts o = oar_call_opts_init();
    oar_group *g;
    oar_status status;

    o.timeout_ms = 1500;
    RANK_CHECK(join(c, rank, s, 60000, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    shared_flag_await(&s->ready, rank != last,
                      REPORT_MS); /* until it is stopped */
    status = s->kind == OAR_COLL_GATHER
                 ? oar_gather(g, floats(a, TOO_LARGE), out, last, &o, later)
                 : oar_all_reduce(g, floats(a, LARGE), OAR_SUM, &o, later);
    if (rank == last) {
        usleep(ON_ITS_WAY_MS * 1000);
        raise(SIGSTOP);
        _exit(0);
    }
    RANK_CHECK(status == OAR_E_TIMEOUT);
    return note(c, rank, s, g, OAR_E_TIMEOUT);
}

static void stop_in(int kind)
{
    gloo_context *s = shared_page(sizeof *s);
    test_job c;

    s->kind = kind;
    test_job_start(&c, RANKS, wait_for_a_stopped_one, s, "a stopped rank in %s",
                   oar_coll_name((oar_coll)kind));
    assert_true(test_job_wait_stopped(&c, RANKS - 1, TEST_JOB_LIMIT_MS));
    shared_flag_raise(&s->ready);
    for (int r = 0; r < RANKS - 1; r++)
        test_job_expect(&c, r, 0);
    kill(c.pid[RANKS - 1], SIGKILL);
    test_job_expect(&c, RANKS - 1, 128 + SIGKILL);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void no_rank_waits_for_a_stopped_one_beyond_the_timeout(void **state)
{
    stop_in(OAR_COLL_ALL_REDUCE);
    stop_in(OAR_COLL_GATHER);
}

/* Rank 0 begins a collective that no other rank joins; messages to a peer and
 * back make sure that it is running when the abort comes. */
static int exchange(test_job *c, int rank, oar_group *g)
{
    float word = 3;

    for (int i = 0; i < 5 && rank < 2; i++) {
        oar_span span = floats(&word, 1);
        RANK_CHECK((rank == 0 ? oar_send(g, span, 1, i, NULL, NULL)
                              : oar_recv(g, span, 0, i, NULL, NULL)) == OAR_OK);
        RANK_CHECK((rank == 0 ? oar_recv(g, span, 1, i, NULL, NULL)
                              : oar_send(g, span, 0, i, NULL, NULL)) == OAR_OK);
    }
    return 0;
}

static int give_up(test_job *c, int rank, void *arg)
{
    static float a[LARGE];
    gloo_context *s = arg;
    oar_group *g;
    oar_work *work = NULL;
    int64_t since;

    RANK_CHECK(join(c, rank, s, 60000, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 0)
        RANK_CHECK(oar_all_reduce(g, floats(a, LARGE), OAR_SUM, NULL, &work) ==
                   OAR_OK);
    RANK_CHECK(exchange(c, rank, g) == 0);
    shared_flag_raise(&s->ready);
    if (rank != 0) { /* is there all the time */
        RANK_CHECK(shared_flag_await(&s->over, 1, TEST_JOB_LIMIT_MS));
        oar_group_destroy(g);
        return 0;
    }
    RANK_CHECK(shared_flag_await(&s->ready, RANKS, TEST_JOB_LIMIT_MS));
    since = oari_now_ns();
    oar_group_abort(g, "enough");
    RANK_CHECK(oar_work_wait(work) == OAR_E_ABORTED);
    RANK_CHECK(is_in_time(since, REPORT_MS));
    oar_work_release(work);
    shared_flag_raise(&s->over);
    return note(c, rank, s, g, OAR_E_ABORTED);
}

static void an_abort_ends_a_wait_for_a_living_peer(void **state)
{
    run_plain(RANKS, give_up, "an abort");
}

/* ---- wrong programs ------------------------------------------------------ */

/* What the last rank calls where the others call all_reduce of 1003 f32. */
static const struct {
    const char *name, *says[2];
} wrongs[] = {
    { "another collective",
      { "rank 0 calls all_reduce of 1003 f32 sum at gloo_test.c:",
        "rank 2 calls broadcast of 1003 f32 from 0 at gloo_test.c:" } },
    { "another count",
      { "rank 0 passes count 1003 at gloo_test.c:",
        "rank 2 passes count 1002 at gloo_test.c:" } },
    { "another dtype",
      { "rank 0 passes dtype f32 at gloo_test.c:",
        "rank 2 passes dtype f64 at gloo_test.c:" } },
    { "another operator",
      { "rank 0 passes op sum at gloo_test.c:",
        "rank 2 passes op max at gloo_test.c:" } },
    { "what Gloo does not do",
      { "rank 0 passes dtype f32 at gloo_test.c:",
        "rank 2 passes dtype bf16 at gloo_test.c:" } },
};
enum { WRONGS = sizeof wrongs / sizeof *wrongs };

static oar_status call_wrongly(oar_group *g, int kind, double *room)
{
    switch (kind) {
    case 0:
        return oar_broadcast(g, oar_span_of(room, ODD, OAR_F32), 0, NULL, NULL);
    case 1:
        return oar_all_reduce(g, oar_span_of(room, ODD - 1, OAR_F32), OAR_SUM,
                              NULL, NULL);
    case 2:
        return oar_all_reduce(g, oar_span_of(room, ODD, OAR_F64), OAR_SUM, NULL,
                              NULL);
    case 3:
        return oar_all_reduce(g, oar_span_of(room, ODD, OAR_F32), OAR_MAX, NULL,
                              NULL);
    default:
        return oar_all_reduce(g, oar_span_of(room, ODD, OAR_BF16), OAR_SUM,
                              NULL, NULL);
    }
}

static int differ(test_job *c, int rank, void *arg)
{
    static double room[ODD];
    gloo_context *s = arg;
    oar_group *g;
    int64_t since;
    oar_status status;

    RANK_CHECK(join(c, rank, s, 60000, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    since = oari_now_ns();
    if (rank == RANKS - 1)
        status = call_wrongly(g, s->kind, room);
    else
        status = oar_all_reduce(g, oar_span_of(room, ODD, OAR_F32), OAR_SUM,
                                NULL, NULL);
    if (status == OAR_OK) /* it was rooted: the next one tells */
        status = oar_barrier(g, NULL, NULL);
    RANK_CHECK(status == OAR_E_MISMATCH);
    RANK_CHECK(is_in_time(since, REPORT_MS));
    return note(c, rank, s, g, OAR_E_MISMATCH);
}

static void ranks_that_call_different_things_are_both_named(void **state)
{
    gloo_context *s = shared_page(sizeof *s);

    for (s->kind = 0; s->kind < WRONGS; s->kind++) {
        run(RANKS, differ, s, wrongs[s->kind].name);
        for (int r = 0; r < RANKS; r++)
            for (int side = 0; side < 2; side++)
                if (strstr(s->record[r].text, wrongs[s->kind].says[side]) ==
                    NULL)
                    fail_msg("rank %d: %s", r, s->record[r].text);
    }
    shared_page_free(s, sizeof *s);
}

/* ---- what is left -------------------------------------------------------- */

static int come_and_go(test_job *c, int rank, void *arg)
{
    int before_threads = 0, before_descriptors = 0;
    oar_group *g;

    for (int round = 0; round < ROUNDS; round++) {
        RANK_CHECK(join(c, rank, arg, 20000, &g) == OAR_OK);
        RANK_CHECK(do_all(c, rank, g) == 0);
        oar_group_destroy(g);
        if (round == 0) { /* what the library keeps is there now */
            before_threads = threads();
            before_descriptors = open_descriptors();
        }
        RANK_CHECK(threads() <= before_threads);
        RANK_CHECK(open_descriptors() <= before_descriptors);
    }
    return 0;
}

static void groups_that_go_leave_no_thread_and_no_descriptor(void **state)
{
    run_plain(RANKS, come_and_go, "coming and going");
}

/* One that has opened may go at once: the others have opened, too. */
static int go_at_once(test_job *c, int rank, void *arg)
{
    oar_group *g;

    for (int round = 0; round < AT_ONCE; round++) {
        RANK_CHECK(join(c, rank, arg, 20000, &g) == OAR_OK);
        oar_group_destroy(g);
    }
    return 0;
}

static void a_group_may_go_as_soon_as_it_is_made(void **state)
{
    run_plain(2, go_at_once, "going at once");
    run_plain(RANKS, go_at_once, "going at once");
}

static int is_there(void)
{
    const char *build = getenv("OARSONG_BUILD_DIR");
    char path[512];

    snprintf(path, sizeof path, "%s/lib",
             build != NULL ? build : "build/release");
    setenv("OARSONG_PLUGIN_PATH", path, 0);
    if (oar_backend_available("gloo", NULL) == OAR_OK)
        return 1;
    printf("skipped: %s\n", oar_last_error_text());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_gives_what_it_should),
        cmocka_unit_test(a_name_that_is_none_is_refused_with_those_there_are),
        cmocka_unit_test(collectives_under_way_at_once_do_not_mix),
        cmocka_unit_test(a_message_passes_a_collective_that_waits_for_it),
        cmocka_unit_test(a_caller_that_waits_does_the_work_itself),
        cmocka_unit_test(callers_and_threads_work_together),
        cmocka_unit_test(the_rank_that_died_is_named_by_all_others),
        cmocka_unit_test(no_rank_waits_for_a_stopped_one_beyond_the_timeout),
        cmocka_unit_test(an_abort_ends_a_wait_for_a_living_peer),
        cmocka_unit_test(ranks_that_call_different_things_are_both_named),
        cmocka_unit_test(groups_that_go_leave_no_thread_and_no_descriptor),
        cmocka_unit_test(a_group_may_go_as_soon_as_it_is_made),
    };

    if (!is_there())
        return SKIPPED;
    return cmocka_run_group_tests_name("gloo", tests, NULL, NULL);
}
