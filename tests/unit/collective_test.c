/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on every backend: every operator on every dtype against numbers
 * computed the slow way, the same bits for every backend, algorithm and kind of
 * memory; operations in flight; and calls that are refused. */
#include "support/ranks.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <oarsong/p2p.h>
#include <oarsong/shared.h>
#include <oarsong/tensor.h>

#include "base/clock.h"
#include "reduce_reference.h"
#include "support/last_error.h"

static const int sizes[] = { 1, 2, 3, 4, 7 };
static const size_t counts[] = { 0, 1, 3, 17, 1000, 1025, 65537, 400003 };
enum {
    SIZES = sizeof sizes / sizeof *sizes,
    COUNTS = sizeof counts / sizeof *counts
};

/* ---- sums and broadcasts, all sizes -------------------------------------- */

/* How many of the counts a test takes. */
static int counts_of(const void *arg)
{
    return arg != NULL ? *(const int *)arg : COUNTS;
}

/* Memory for a test's buffer, shared or private, filled with a value that
 * depends on rank and place. */
static float *make_buffer(size_t count, int shared, int rank)
{
    void *memory = NULL;

    if (!shared)
        memory = malloc(count * sizeof(float) + 1);
    else if (oar_shared_alloc(count * sizeof(float), &memory) != OAR_OK)
        return NULL;
    for (size_t i = 0; i < count; i++)
        ((float *)memory)[i] = (float)(rank + 1) + (float)(i % 100);
    return memory;
}

static void drop_buffer(float *memory, int shared)
{
    if (shared)
        oar_shared_free(memory);
    else
        free(memory);
}

static float expected_sum(size_t i, int n)
{
    return (float)(n * (n + 1) / 2) + (float)n * (float)(i % 100);
}

static oar_status sum_one(oar_group *g, size_t count, int shared, int async)
{
    int n = oar_group_size(g);
    float *x = make_buffer(count, shared, oar_group_rank(g));
    oar_span s = oar_span_of(x, count, OAR_F32);
    oar_work *work = NULL;

    CHECK(x != NULL);
    CHECK_OK(oar_all_reduce(g, s, OAR_SUM, NULL, async ? &work : NULL));
    if (async) {
        CHECK_OK(oar_work_wait(work));
        oar_work_release(work);
    }
    for (size_t i = 0; i < count; i++)
        CHECK(x[i] == expected_sum(i, n));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    drop_buffer(x, shared);
    return OAR_OK;
}

static oar_status sum_all_counts(oar_group *g, void *arg)
{
    for (int c = 0; c < counts_of(arg); c++)
        for (int how = 0; how < 4; how++)
            CHECK_OK(sum_one(g, counts[c], how & 1, how >> 1));
    return OAR_OK;
}

static void all_reduce_sums_every_count_and_memory_kind(void **state)
{
    for (int i = 0; i < SIZES; i++)
        ranks_all(sizes[i], sum_all_counts, NULL);
}

static oar_status broadcast_all_roots(oar_group *g, void *arg)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);

    for (int c = 0; c < counts_of(arg); c++)
        for (int root = 0; root < n; root++) {
            int shared = (root + c) & 1;
            float *x = make_buffer(counts[c], shared, rank);
            CHECK(x != NULL);
            CHECK_OK(oar_broadcast(g, oar_span_of(x, counts[c], OAR_F32), root,
                                   NULL, NULL));
            for (size_t i = 0; i < counts[c]; i++)
                CHECK(x[i] == (float)(root + 1) + (float)(i % 100));
            CHECK_OK(oar_barrier(g, NULL, NULL));
            drop_buffer(x, shared);
        }
    return OAR_OK;
}

static void broadcast_reaches_all_ranks_from_every_root(void **state)
{
    for (int i = 0; i < SIZES; i++)
        ranks_all(sizes[i], broadcast_all_roots, NULL);
}

/* Lines of 8 bytes and chunks of one block: everything is an edge. But not the
 * largest count: its 12,000 sync points may be as many turns of other programs.
 */
static void the_smallest_lines_and_stages_do(void **state)
{
    oar_group_opts o = oar_group_opts_init();
    int all_but_one = COUNTS - 1;

    o.small_bytes = 8;
    o.stage_bytes = 64;
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        if (ranks_run(*b, 3, &o, sum_all_counts, &all_but_one) != OAR_OK ||
            ranks_run(*b, 3, &o, broadcast_all_roots, &all_but_one) != OAR_OK)
            fail_msg("backend %s: %s", *b, oar_last_error_text());
}

/* ---- every operator on every dtype --------------------------------------- */

enum { MAX_RANKS = 5, MAX_COUNT = 200, MEMORIES = 3 };
static const size_t matrix_counts[] = { 0, 1, 3, 67, MAX_COUNT };
enum { MATRIX_COUNTS = sizeof matrix_counts / sizeof *matrix_counts };

/* Factors and weights of the ranks: unequal, one of them 0. */
static const double factors[MAX_RANKS] = { 0.5, -1.25, 3, 0.1, 2 };
static const double weights[MAX_RANKS] = { 1.5, 0, 2.25, 1, 7 };

/* What one rank works with: buffers shared and private. */
typedef struct collective_buffers {
    int rank, ranks;
    void *memory[2][2];   /* private or shared; in or out */
    unsigned char *given; /* all ranks' inputs, one behind the other */
    unsigned char *expected;
    uint64_t hash; /* of all results so far */
} collective_buffers;

static oar_status make_buffers(collective_buffers *b, oar_group *g)
{
    *b = (collective_buffers){ .rank = oar_group_rank(g),
                               .ranks = oar_group_size(g) };
    for (int i = 0; i < 2; i++) {
        b->memory[0][i] = malloc(8 * MAX_COUNT);
        CHECK_OK(oar_shared_alloc(8 * MAX_COUNT, &b->memory[1][i]));
    }
    b->given = malloc(8 * MAX_COUNT * MAX_RANKS);
    b->expected = malloc(8 * MAX_COUNT);
    return OAR_OK;
}

static void free_buffers(collective_buffers *b)
{
    for (int i = 0; i < 2; i++) {
        free(b->memory[0][i]);
        oar_shared_free(b->memory[1][i]);
    }
    free(b->given);
    free(b->expected);
}

typedef struct collective_case {
    oar_dtype dtype;
    oar_reduce_op_kind kind;
    size_t count;
    int in_place;
    int memory; /* private, shared, or shared on every other rank */
    int mine;   /* this rank works out what comes of it */
} collective_case;

static unsigned char *given_to(const collective_buffers *b,
                               const collective_case *t, int rank)
{
    return b->given + (size_t)rank * t->count * oar_dtype_size(t->dtype);
}

/* Every rank knows what every rank puts in. */
static void fill_inputs(collective_buffers *b, const collective_case *t)
{
    uint64_t seed = 1 + (uint64_t)t->dtype + 100 * (uint64_t)t->kind +
                    10000 * (uint64_t)t->count;
    size_t size = oar_dtype_size(t->dtype);

    for (int r = 0; r < b->ranks; r++)
        for (size_t i = 0; i < t->count; i++)
            random_element(t->dtype, given_to(b, t, r) + i * size, &seed);
}

static void compute_expected(collective_buffers *b, const collective_case *t)
{
    const void *source[MAX_RANKS];
    double sum = 0;
    oari_reduction r = { .kind = t->kind,
                         .dtype = t->dtype,
                         .sources = b->ranks,
                         .source = source };

    for (int i = 0; i < b->ranks; i++) {
        source[i] = given_to(b, t, i);
        sum += weights[i];
    }
    if (t->kind == OAR_REDUCE_OP_PREMUL_SUM)
        r.factor = factors;
    if (t->kind == OAR_REDUCE_OP_WEIGHTED_MEAN) {
        r.factor = weights;
        r.divisor = sum;
    }
    if (t->kind == OAR_REDUCE_OP_AVG)
        r.divisor = b->ranks;
    if (r.factor != NULL || r.divisor != 0)
        r.kind = OAR_REDUCE_OP_SUM;
    reduce_reference(&r, t->count, (char *)b->expected);
}

static void add_to_hash(collective_buffers *b, const unsigned char *data,
                        size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        b->hash = (b->hash ^ data[i]) * 0x100000001b3u;
}

static oar_status check_result(collective_buffers *b, const collective_case *t,
                               unsigned char *in, unsigned char *out)
{
    size_t size = oar_dtype_size(t->dtype);

    for (size_t i = 0; t->mine && i < t->count; i++)
        if (!same_element(t->dtype, out + i * size, b->expected + i * size)) {
            fprintf(
                stderr,
                "rank %d of %d: %s of %zu %s [%zu]: %llx, not "
                "%llx\n",
                b->rank, b->ranks, oar_reduce_op_name(t->kind), t->count,
                oar_dtype_name(t->dtype), i,
                (unsigned long long)raw_get(t->dtype, out + i * size),
                (unsigned long long)raw_get(t->dtype, b->expected + i * size));
            CHECK(!"the result is what it should be");
        }
    CHECK(t->in_place || t->count == 0 ||
          memcmp(in, given_to(b, t, b->rank), t->count * size) == 0);
    add_to_hash(b, out, t->count * size);
    return OAR_OK;
}

static oar_status try_one(oar_group *g, collective_buffers *b,
                          const collective_case *t)
{
    int shared = t->memory == 2 ? b->rank & 1 : t->memory;
    unsigned char *in = b->memory[shared][0];
    unsigned char *out = b->memory[shared][!t->in_place];
    oar_call_opts o = oar_call_opts_init();

    o.weight = weights[b->rank];
    fill_inputs(b, t);
    memset(out, 0xee, 8 * MAX_COUNT);
    memcpy(in, given_to(b, t, b->rank), t->count * oar_dtype_size(t->dtype));
    if (t->mine)
        compute_expected(b, t);
    CHECK_OK(oar_all_reduce_into(g, oar_span_of(in, t->count, t->dtype),
                                 oar_span_of(out, t->count, t->dtype),
                                 OAR_REDUCE_OP(t->kind, factors[b->rank]), &o,
                                 NULL));
    return check_result(b, t, in, out);
}

static oar_status try_all(oar_group *g, collective_buffers *b)
{
    collective_case t;
    int number = 0;

    for (int d = 0; d < OAR_DTYPE_COUNT; d++)
        for (int k = 0; k < OAR_REDUCE_OP_COUNT; k++) {
            if (oar_reduce_op_check(OAR_REDUCE_OP((oar_reduce_op_kind)k, 1),
                                    (oar_dtype)d) != OAR_OK)
                continue;
            for (int c = 0; c < MATRIX_COUNTS; c++, number++) {
                t = (collective_case){
                    (oar_dtype)d,      (oar_reduce_op_kind)k,
                    matrix_counts[c],  number / MEMORIES & 1,
                    number % MEMORIES, number % b->ranks == b->rank
                };
                CHECK_OK(try_one(g, b, &t));
            }
        }
    return OAR_OK;
}

/* arg: a page that all ranks share, where each leaves its hash. */
static oar_status run_matrix(oar_group *g, void *arg)
{
    uint64_t *hash = arg;
    collective_buffers b;

    CHECK_OK(make_buffers(&b, g));
    CHECK_OK(try_all(g, &b));
    hash[b.rank] = b.hash;
    CHECK_OK(oar_barrier(g, NULL, NULL));
    free_buffers(&b);
    return OAR_OK;
}

static void run_matrix_on(const char *backend, const char *algorithm, int n,
                          uint64_t *hash)
{
    oar_status status;

    memset(hash, 0, MAX_RANKS * sizeof *hash);
    if (algorithm != NULL)
        setenv("OARSONG_ALGO", algorithm, 1);
    status = ranks_run(backend, n, NULL, run_matrix, hash);
    unsetenv("OARSONG_ALGO");
    if (status != OAR_OK)
        fail_msg("%s, %s, %d ranks: %s", backend,
                 algorithm != NULL ? algorithm : "by choice", n,
                 oar_last_error_text());
}

/* NULL: what the library chooses. The first needs shared memory. */
static const char *const algorithms[] = { "direct", "staged", "line", NULL,
                                          "exchange" };
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

static void
every_operator_on_every_dtype_gives_the_same_bits_everywhere(void **state)
{
    static const int few[] = { 1, 2, 3, 5 };
    uint64_t *hash = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (int i = 0; i < 4; i++) {
        uint64_t first = 0;
        for (const char *const *b = ranks_backends(); *b != NULL; b++) {
            int shm = strcmp(*b, "sim") == 0 || strcmp(*b, "shm") == 0;
            for (int a = shm ? 0 : ALGORITHMS - 2; a < ALGORITHMS; a++) {
                run_matrix_on(*b, algorithms[a], few[i], hash);
                first = first != 0 ? first : hash[0];
                for (int r = 0; r < few[i]; r++)
                    assert_int_equal(hash[r], first);
            }
        }
    }
    munmap(hash, 4096);
}

/* A broadcast keeps every bit, of NaNs and of bools that are neither 0 nor 1.
 */
static oar_status broadcast_bits(oar_group *g, void *arg)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);

    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        unsigned char x[8 * 67], expected[8 * 67];
        size_t bytes = 67 * oar_dtype_size((oar_dtype)d);
        for (size_t i = 0; i < sizeof x; i++) {
            expected[i] = (unsigned char)(i * 37 + (size_t)d);
            x[i] = rank == d % n ? expected[i] : 0;
        }
        CHECK_OK(oar_broadcast(g, oar_span_of(x, 67, (oar_dtype)d), d % n, NULL,
                               NULL));
        CHECK(memcmp(x, expected, bytes) == 0);
    }
    return OAR_OK;
}

static void broadcast_keeps_every_bit_of_every_dtype(void **state)
{
    ranks_all(3, broadcast_bits, NULL);
    ranks_all(5, broadcast_bits, NULL);
}

/* ---- weights ------------------------------------------------------------- */

static oar_status mean_of_weights(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    float x[17];
    oar_span s = oar_span_of(x, 17, OAR_F32);

    for (int i = 0; i < 17; i++)
        x[i] = (float)(rank + 1);
    CHECK_OK(oar_all_reduce(g, s, OAR_WEIGHTED_MEAN,
                            OAR_OPTS(oar_call_opts, .weight = rank == 2),
                            NULL));
    CHECK(x[0] == 3 && x[16] == 3); /* only rank 2 counts */
    CHECK_OK(oar_all_reduce(g, s, OAR_WEIGHTED_MEAN,
                            OAR_OPTS(oar_call_opts, .weight = 0), NULL));
    CHECK(x[0] == 0 && x[16] == 0); /* no rank does */
    return OAR_OK;
}

static void a_weighted_mean_knows_ranks_that_do_not_count(void **state)
{
    ranks_all(3, mean_of_weights, NULL);
}

/* Options as a program made before there were weights would pass them. */
static oar_status pass_short_options(oar_group *g, void *arg)
{
    size_t bytes = offsetof(oar_call_opts, weight);
    oar_call_opts whole = { .size = bytes, .label = "short" };
    void *cut = malloc(bytes); /* so that a read past the end shows */
    const oar_call_opts *o = cut;
    float x = 5;
    oar_status status;

    CHECK(cut != NULL);
    memcpy(cut, &whole, bytes);
    status = oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, o, NULL);
    CHECK(status == OAR_OK && x == 15);
    status = oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_WEIGHTED_MEAN,
                            o, NULL);
    CHECK(status == OAR_OK && x == 0); /* a weight of 0 on every rank */
    free(cut);
    return OAR_OK;
}

static void options_may_be_shorter_than_ours(void **state)
{
    ranks_all(3, pass_short_options, NULL);
}

/* ---- in flight ----------------------------------------------------------- */

enum { FLIGHT = 20, FLIGHT_COUNT = 1001 };

static oar_status fly_many(oar_group *g, void *arg)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);
    float *x = malloc(sizeof(float) * FLIGHT * FLIGHT_COUNT);
    oar_work *work[FLIGHT];

    for (int i = 0; i < FLIGHT * FLIGHT_COUNT; i++)
        x[i] = (float)(rank + 1 + i % 7);
    for (int i = 0; i < FLIGHT; i++) {
        size_t count = i % 3 == 0 ? 3 : FLIGHT_COUNT;
        oar_span s = oar_span_of(x + i * FLIGHT_COUNT, count, OAR_F32);
        if (i % 5 == 4)
            CHECK_OK(oar_broadcast(g, s, i % n, NULL, &work[i]));
        else
            CHECK_OK(oar_all_reduce(g, s, OAR_SUM, NULL, &work[i]));
    }
    for (int i = FLIGHT - 1; i >= 0; i--) {
        CHECK_OK(oar_work_wait(work[i]));
        CHECK_OK(oar_work_wait(work[i])); /* and again */
    }
    for (int i = 0; i < FLIGHT * FLIGHT_COUNT; i++) {
        int op = i / FLIGHT_COUNT, own = rank + 1 + i % 7;
        int sum = n * (n + 1) / 2 + n * (i % 7), sent = op % n + 1 + i % 7;
        int there = i % FLIGHT_COUNT < (op % 3 == 0 ? 3 : FLIGHT_COUNT);
        CHECK(x[i] == (float)(!there ? own : op % 5 == 4 ? sent : sum));
    }
    for (int i = 0; i < FLIGHT; i++)
        oar_work_release(work[i]);
    free(x);
    return OAR_OK;
}

static void many_operations_in_flight_are_waited_for_in_reverse(void **state)
{
    ranks_all(1, fly_many, NULL);
    ranks_all(3, fly_many, NULL);
    ranks_all(5, fly_many, NULL);
}

static oar_status release_early(oar_group *g, void *arg)
{
    int n = oar_group_size(g);
    float x[5][17];
    oar_work *work;

    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 17; k++)
            x[i][k] = (float)(i + 1);
        CHECK_OK(oar_all_reduce(g, oar_span_of(x[i], 17, OAR_F32), OAR_SUM,
                                NULL, &work));
        oar_work_release(work);
    }
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* comes after all of them */
    for (int i = 0; i < 5; i++)
        CHECK(x[i][0] == (float)(n * (i + 1)) && x[i][16] == x[i][0]);
    return OAR_OK;
}

static void an_operation_goes_on_when_its_handle_is_released(void **state)
{
    ranks_all(1, release_early, NULL);
    ranks_all(3, release_early, NULL);
}

static oar_status wait_for_all(oar_group *g, void *arg)
{
    float x[3] = { 1, 2, 3 };
    oar_work *work[5] = { NULL };

    for (int i = 0; i < 3; i++)
        CHECK_OK(oar_all_reduce(g, oar_span_of(&x[i], 1, OAR_F32), OAR_SUM,
                                NULL, &work[2 * i]));
    CHECK_OK(oar_work_wait_all(5, work)); /* two of them are NULL */
    for (int i = 0; i < 3; i++) {
        CHECK(x[i] == (float)(oar_group_size(g) * (i + 1)));
        oar_work_release(work[2 * i]);
    }
    CHECK_OK(oar_work_wait_all(0, NULL));
    return OAR_OK;
}

static void wait_all_waits_for_all_and_skips_null(void **state)
{
    ranks_all(3, wait_for_all, NULL);
}

static oar_status test_until_done(oar_group *g, void *arg)
{
    int64_t deadline = oari_deadline(20000);
    float x = 1;
    oar_work *work;
    int done = 0;

    for (int i = 0; i < 50; i++, done = 0) {
        x = 1;
        CHECK_OK(oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                                &work));
        while (!done) {
            CHECK_OK(oar_work_test(work, &done));
            CHECK(oari_now_ns() < deadline);
        }
        CHECK(x == (float)oar_group_size(g));
        CHECK_OK(oar_work_test(work, &done));
        CHECK(done);
        oar_work_release(work);
    }
    return OAR_OK;
}

static void test_drives_an_operation_to_its_end(void **state)
{
    ranks_all(1, test_until_done, NULL);
    ranks_all(3, test_until_done, NULL);
}

/* ---- callbacks ----------------------------------------------------------- */

typedef struct callback_chain {
    oar_group *group;
    _Atomic int calls, failures;
    float x[4];
    oar_work *work[4];
    sem_t end;
} callback_chain;

/* Posts the next link from within the last. */
static void link_on(void *arg, oar_status status)
{
    callback_chain *c = arg;
    int i = atomic_fetch_add(&c->calls, 1) + 1;

    if (status != OAR_OK)
        atomic_fetch_add(&c->failures, 1);
    if (i == 4) {
        sem_post(&c->end);
        return;
    }
    if (oar_all_reduce(c->group, oar_span_of(&c->x[i], 1, OAR_F32), OAR_SUM,
                       NULL, &c->work[i]) != OAR_OK ||
        oar_work_then(c->work[i], link_on, c) != OAR_OK)
        atomic_fetch_add(&c->failures, 1);
}

static int wait_for(sem_t *sem)
{
    struct timespec until;
    int got;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    do
        got = sem_timedwait(sem, &until);
    while (got != 0 && errno == EINTR);
    return got == 0;
}

static oar_status run_chain(oar_group *g, void *arg)
{
    callback_chain c = { .group = g, .x = { 1, 2, 3, 4 } };

    sem_init(&c.end, 0, 0);
    CHECK_OK(oar_all_reduce(g, oar_span_of(&c.x[0], 1, OAR_F32), OAR_SUM, NULL,
                            &c.work[0]));
    CHECK_OK(oar_work_then(c.work[0], link_on, &c));
    CHECK(wait_for(&c.end));
    CHECK_OK(oar_work_wait_all(4, c.work));
    CHECK(atomic_load(&c.calls) == 4 && atomic_load(&c.failures) == 0);
    for (int i = 0; i < 4; i++) {
        CHECK(c.x[i] == (float)((i + 1) * oar_group_size(g)));
        oar_work_release(c.work[i]);
    }
    sem_destroy(&c.end);
    return OAR_OK;
}

static void a_callback_runs_once_and_may_post(void **state)
{
    ranks_all(1, run_chain, NULL);
    ranks_all(3, run_chain, NULL);
}

static void count_call(void *arg, oar_status status)
{
    atomic_fetch_add((_Atomic int *)arg, status == OAR_OK ? 1 : 100);
}

static oar_status call_back_late(oar_group *g, void *arg)
{
    _Atomic int calls = 0, others = 0;
    oar_work *work;

    CHECK_OK(oar_barrier(g, NULL, &work));
    CHECK_OK(oar_work_wait(work));
    CHECK_OK(oar_work_then(work, count_call, &calls));
    CHECK(atomic_load(&calls) == 1); /* it was done: at once, and here */
    CHECK(fails_with(oar_work_then(work, count_call, &others), OAR_E_STATE,
                     "already"));
    CHECK(atomic_load(&calls) == 1 && atomic_load(&others) == 0);
    oar_work_release(work);
    return OAR_OK;
}

static void a_callback_on_what_is_done_runs_at_once(void **state)
{
    ranks_all(3, call_back_late, NULL);
}

static oar_status call_back_twice(oar_group *g, void *arg)
{
    _Atomic int calls = 0, others = 0;
    float x = 1;
    oar_work *work;

    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, &work));
    CHECK_OK(oar_work_then(work, count_call, &calls));
    CHECK(fails_with(oar_work_then(work, count_call, &others), OAR_E_STATE,
                     "already"));
    oar_work_release(work); /* the function is called all the same */
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* comes after it */
    for (int64_t end = oari_deadline(20000);
         atomic_load(&calls) == 0 && oari_now_ns() < end;)
        sched_yield();
    CHECK(atomic_load(&calls) == 1 && atomic_load(&others) == 0);
    return OAR_OK;
}

static void a_work_takes_one_callback(void **state)
{
    ranks_all(3, call_back_twice, NULL);
}

/* ---- several threads ----------------------------------------------------- */

static void *wait_as_well(void *work)
{
    return oar_work_wait(work) == OAR_OK ? NULL : work;
}

static oar_status wait_together(oar_group *g, void *arg)
{
    enum { WAITERS = 3, ROUNDS = 10 };
    pthread_t thread[WAITERS];
    void *failed;

    for (int i = 0; i < ROUNDS; i++) {
        float x[2] = { 1, 2 };
        oar_work *first, *second;
        CHECK_OK(oar_all_reduce(g, oar_span_of(&x[0], 1, OAR_F32), OAR_SUM,
                                NULL, &first));
        CHECK_OK(oar_all_reduce(g, oar_span_of(&x[1], 1, OAR_F32), OAR_SUM,
                                NULL, &second));
        for (int t = 0; t < WAITERS; t++)
            CHECK(pthread_create(&thread[t], NULL, wait_as_well,
                                 t == 0 ? first : second) == 0);
        CHECK_OK(oar_work_wait(second));
        CHECK(x[1] == (float)(2 * oar_group_size(g)));
        for (int t = 0; t < WAITERS; t++) {
            pthread_join(thread[t], &failed);
            CHECK(failed == NULL);
        }
        CHECK(x[0] == (float)oar_group_size(g));
        oar_work_release(first);
        oar_work_release(second);
    }
    return OAR_OK;
}

static void several_threads_wait_for_one_operation(void **state)
{
    ranks_all(1, wait_together, NULL);
    ranks_all(3, wait_together, NULL);
}

/* ---- refused ------------------------------------------------------------- */

static oar_status refuse_spans(oar_group *g, float *x)
{
    oar_span good = oar_span_of(x, 3, OAR_F32), s;

    s = oar_span_of(NULL, 3, OAR_F32);
    CHECK(fails_with(oar_broadcast(g, s, 0, NULL, NULL), OAR_E_ARG, "NULL"));
    CHECK(fails_with(oar_all_reduce(g, s, OAR_SUM, NULL, NULL), OAR_E_ARG,
                     "NULL"));
    CHECK(fails_with(oar_all_reduce_into(g, s, good, OAR_SUM, NULL, NULL),
                     OAR_E_ARG, "NULL"));
    CHECK(fails_with(oar_all_reduce_into(g, good, s, OAR_SUM, NULL, NULL),
                     OAR_E_ARG, "NULL"));
    s = oar_span_of(x, 3, (oar_dtype)77);
    CHECK(fails_with(oar_broadcast(g, s, 0, NULL, NULL), OAR_E_DTYPE, "77"));
    CHECK(fails_with(oar_all_reduce(g, s, OAR_SUM, NULL, NULL), OAR_E_DTYPE,
                     "77"));
    s = oar_span_of(x, SIZE_MAX / 4, OAR_F32);
    CHECK(fails_with(oar_all_reduce(g, s, OAR_SUM, NULL, NULL), OAR_E_ARG,
                     "elements"));
    s = good;
    s.device.kind = OAR_CUDA;
    CHECK(fails_with(oar_broadcast(g, s, 0, NULL, NULL), OAR_E_UNSUPPORTED,
                     "OARSONG_ENABLE_GPU_FALLBACK"));
    CHECK(
        fails_with(oar_all_reduce_into(g, good, oar_span_of(x + 1, 3, OAR_F32),
                                       OAR_SUM, NULL, NULL),
                   OAR_E_ARG, "overlap"));
    CHECK(
        fails_with(oar_all_reduce_into(g, good, oar_span_of(x + 4, 2, OAR_F32),
                                       OAR_SUM, NULL, NULL),
                   OAR_E_ARG, "into 2 f32"));
    CHECK(
        fails_with(oar_all_reduce_into(g, good, oar_span_of(x + 4, 3, OAR_I32),
                                       OAR_SUM, NULL, NULL),
                   OAR_E_ARG, "into 3 i32"));
    return OAR_OK;
}

static oar_status refuse_operators(oar_group *g, float *x)
{
    oar_span s = oar_span_of(x, 3, OAR_F32),
             truth = oar_span_of(x, 3, OAR_BOOL);
    oar_call_opts o = oar_call_opts_init();

    CHECK(fails_with(oar_all_reduce(g, s, OAR_BAND, NULL, NULL),
                     OAR_E_UNSUPPORTED, "band on f32"));
    CHECK(fails_with(oar_all_reduce(g, truth, OAR_AVG, NULL, NULL),
                     OAR_E_UNSUPPORTED, "avg on bool"));
    CHECK(fails_with(oar_all_reduce(g, s,
                                    OAR_REDUCE_OP((oar_reduce_op_kind)99, 0),
                                    NULL, NULL),
                     OAR_E_ARG, "99"));
    CHECK(fails_with(oar_all_reduce(g, s, OAR_WEIGHTED_MEAN, NULL, NULL),
                     OAR_E_ARG, "weight"));
    o.weight = -1;
    CHECK(fails_with(oar_all_reduce(g, s, OAR_WEIGHTED_MEAN, &o, NULL),
                     OAR_E_ARG, "weight of -1"));
    o.weight = NAN;
    CHECK(fails_with(oar_all_reduce(g, s, OAR_WEIGHTED_MEAN, &o, NULL),
                     OAR_E_ARG, "weight"));
    o.weight = INFINITY;
    CHECK(fails_with(oar_all_reduce(g, s, OAR_WEIGHTED_MEAN, &o, NULL),
                     OAR_E_ARG, "weight"));
    o.size = 0;
    CHECK(fails_with(oar_barrier(g, &o, NULL), OAR_E_ARG, "size 0"));
    return OAR_OK;
}

static oar_status refuse_the_rest(oar_group *g, float *x)
{
    int n = oar_group_size(g), done = 7;
    oar_span s = oar_span_of(x, 3, OAR_F32);
    oar_work *work = NULL;

    CHECK(fails_with(oar_broadcast(g, s, -1, NULL, &work), OAR_E_RANK,
                     "rank -1"));
    CHECK(fails_with(oar_broadcast(g, s, n, NULL, &work), OAR_E_RANK,
                     "group of"));
    CHECK(fails_with(oar_barrier(NULL, NULL, &work), OAR_E_ARG,
                     "without a group"));
    CHECK(
        fails_with(oar_broadcast(NULL, s, 0, NULL, &work), OAR_E_ARG, "group"));
    CHECK(fails_with(oar_all_reduce(NULL, s, OAR_SUM, NULL, &work), OAR_E_ARG,
                     "group"));
    CHECK(work == NULL);
    CHECK(fails_with(oar_work_wait(NULL), OAR_E_ARG, "NULL"));
    CHECK(fails_with(oar_work_test(NULL, &done), OAR_E_ARG, "work"));
    CHECK(fails_with(oar_work_then(NULL, count_call, x), OAR_E_ARG, "work"));
    CHECK(fails_with(oar_work_wait_all(-1, &work), OAR_E_ARG, "-1"));
    CHECK(fails_with(oar_work_wait_all(1, NULL), OAR_E_ARG, "1 works"));
    CHECK(done == 7);
    oar_work_release(NULL);
    CHECK_OK(oar_barrier(g, NULL, &work));
    CHECK(fails_with(oar_work_test(work, NULL), OAR_E_ARG, "place"));
    CHECK(fails_with(oar_work_then(work, NULL, x), OAR_E_ARG, "function"));
    CHECK_OK(oar_work_wait(work));
    oar_work_release(work);
    return OAR_OK;
}

static oar_status refuse_all(oar_group *g, void *arg)
{
    float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

    CHECK_OK(refuse_spans(g, x));
    CHECK_OK(refuse_operators(g, x));
    CHECK_OK(refuse_the_rest(g, x));
    CHECK_OK(oar_group_fault(g, NULL));
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(x, 3, OAR_F32), OAR_SUM, NULL, NULL));
    CHECK(x[2] == (float)(3 * oar_group_size(g)));
    return OAR_OK;
}

static void what_makes_no_sense_is_refused_and_the_group_goes_on(void **state)
{
    ranks_all(1, refuse_all, NULL);
    ranks_all(3, refuse_all, NULL);
}

/* ---- memory that can only be read ---------------------------------------- */

/* Whatever only reads takes it, from pages where a write would be a fault. */
static oar_status use_read_only(oar_group *g, oar_span in, float *out, size_t n)
{
    size_t ranks = (size_t)oar_group_size(g);
    int rank = oar_group_rank(g), last = (int)ranks - 1;
    oar_span one = oar_span_of(out, n, OAR_F32);
    oar_span row = oar_span_of(out, n * ranks, OAR_F32);
    oar_span part = oar_span_of(out, n / ranks, OAR_F32);

    CHECK_OK(oar_all_reduce_into(g, in, one, OAR_SUM, NULL, NULL));
    CHECK(out[n - 1] == 5 * (float)ranks);
    CHECK_OK(oar_reduce(g, in, one, OAR_SUM, last, NULL, NULL));
    CHECK_OK(oar_gather(g, in, row, last, NULL, NULL));
    CHECK_OK(oar_all_gather(g, in, row, NULL, NULL));
    CHECK(out[n * ranks - 1] == 5);
    CHECK_OK(oar_scatter(g, in, part, last, NULL, NULL));
    CHECK_OK(oar_reduce_scatter(g, in, part, OAR_SUM, NULL, NULL));
    CHECK_OK(oar_all_to_all(g, in, one, NULL, NULL));
    CHECK_OK(oar_broadcast(g, rank == last ? in : one, last, NULL, NULL));
    CHECK_OK(oar_sendrecv(g, in, (rank + 1) % (int)ranks, 1, one,
                          (rank + last) % (int)ranks, 1, NULL, NULL));
    CHECK(out[0] == 5);
    return OAR_OK;
}

static oar_status refuse_read_only(oar_group *g, oar_span in, float *out)
{
    size_t ranks = (size_t)oar_group_size(g);
    oar_span one = oar_span_of(out, in.count, OAR_F32);
    int others = (oar_group_rank(g) + 1) % (int)ranks;

    CHECK(fails_with(oar_all_reduce(g, in, OAR_SUM, NULL, NULL), OAR_E_ARG,
                     "all_reduce would write"));
    CHECK(fails_with(oar_all_reduce_into(g, one, in, OAR_SUM, NULL, NULL),
                     OAR_E_ARG, "read-only"));
    CHECK(
        fails_with(oar_recv(g, in, others, 1, NULL, NULL), OAR_E_ARG, "recv"));
    CHECK(fails_with(oar_sendrecv(g, one, others, 1, in, others, 1, NULL, NULL),
                     OAR_E_ARG, "recv"));
    CHECK(ranks == 1 || fails_with(oar_broadcast(g, in, others, NULL, NULL),
                                   OAR_E_ARG, "broadcast would write"));
    return OAR_OK;
}

static oar_status read_only_of(oar_group *g, size_t n)
{
    size_t bytes = n * sizeof(float);
    float *in = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    float *out = malloc(bytes * (size_t)oar_group_size(g));
    oar_span span = oar_span_of_const(in, n, OAR_F32);

    CHECK(in != MAP_FAILED && out != NULL);
    for (size_t i = 0; i < n; i++)
        in[i] = 5;
    CHECK(mprotect(in, bytes, PROT_READ) == 0);
    CHECK_OK(use_read_only(g, span, out, n));
    CHECK_OK(refuse_read_only(g, span, out));
    free(out);
    munmap(in, bytes);
    return OAR_OK;
}

static oar_status read_only(oar_group *g, void *arg)
{
    CHECK_OK(read_only_of(g, 12));
    CHECK_OK(read_only_of(g, 12 * 20000));
    return OAR_OK;
}

static void what_is_only_read_may_be_read_only(void **state)
{
    ranks_all(1, read_only, NULL);
    ranks_all(3, read_only, NULL);
}

/* ---- the macros ---------------------------------------------------------- */

static oar_span next_span(float *x, int *calls)
{
    return oar_span_of(&x[(*calls)++], 1, OAR_F32);
}

static oar_status reduce_what_a_call_gives(oar_group *g, void *arg)
{
    float x[2] = { 1, 10 };
    int calls = 0, dims = 0;
    oar_shape shape = OAR_SHAPE(++dims);

    CHECK(shape.ndim == 1 && shape.dim[0] == 1 && dims == 1);
    CHECK_OK(oar_all_reduce(g, next_span(x, &calls), OAR_SUM, NULL, NULL));
    CHECK(calls == 1);
    CHECK(x[0] == (float)oar_group_size(g));
    CHECK(x[1] == 10);
    return OAR_OK;
}

static void a_macro_evaluates_its_arguments_once(void **state)
{
    ranks_all(3, reduce_what_a_call_gives, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_only_read_may_be_read_only),
        cmocka_unit_test(a_macro_evaluates_its_arguments_once),
        cmocka_unit_test(all_reduce_sums_every_count_and_memory_kind),
        cmocka_unit_test(broadcast_reaches_all_ranks_from_every_root),
        cmocka_unit_test(the_smallest_lines_and_stages_do),
        cmocka_unit_test(
            every_operator_on_every_dtype_gives_the_same_bits_everywhere),
        cmocka_unit_test(broadcast_keeps_every_bit_of_every_dtype),
        cmocka_unit_test(a_weighted_mean_knows_ranks_that_do_not_count),
        cmocka_unit_test(options_may_be_shorter_than_ours),
        cmocka_unit_test(many_operations_in_flight_are_waited_for_in_reverse),
        cmocka_unit_test(an_operation_goes_on_when_its_handle_is_released),
        cmocka_unit_test(wait_all_waits_for_all_and_skips_null),
        cmocka_unit_test(test_drives_an_operation_to_its_end),
        cmocka_unit_test(a_callback_runs_once_and_may_post),
        cmocka_unit_test(a_callback_on_what_is_done_runs_at_once),
        cmocka_unit_test(a_work_takes_one_callback),
        cmocka_unit_test(several_threads_wait_for_one_operation),
        cmocka_unit_test(what_makes_no_sense_is_refused_and_the_group_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
