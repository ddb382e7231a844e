/* SPDX-License-Identifier: Apache-2.0 */
/* Many references, made, passed on and dropped at random by four ranks, of
 * which one is killed and comes back again and again. None is dropped early and
 * none is leaked; memory and descriptors stay flat. OARSONG_TEST_ALL says how
 * many references the ranks make that live, for scripts/nightly. */
#include "support/test_job.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <oarsong/rpc.h>

#include "base/rng.h"
#include "parallel/rpc/rpc_ref.h"
#include "support/rpc_functions.h"

enum {
    RANKS = 4,
    VICTIM = 3,
    PLACES = 16,
    VALUES = 1 << 21, /* of one rank, at most */
    FEW = 6000,
    REFS_A_KILL = 50000, /* where there are many */
    SLOW_MS = 5000,
    WAIT_MS = 60000
};

typedef struct ref_soak {
    int64_t refs; /* that each survivor makes */
    int kills, wait_ms;
    shared_flag opened, deaths, restarted, done, answered;
    shared_flag made[RANKS], dropped[RANKS];
    shared_flag early; /* a value was used after it was dropped */
    shared_flag alive[RANKS][VALUES / 32];
} ref_soak;

typedef struct ref_value {
    ref_soak *k;
    int rank;
    uint32_t number;
} ref_value;

static oar_rref *kept[PLACES];
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static void drop_value(void *arg)
{
    ref_value *v = arg;

    atomic_fetch_and(&v->k->alive[v->rank][v->number / 32],
                     ~(1u << v->number % 32));
    shared_flag_raise(&v->k->dropped[v->rank]);
    free(v);
}

static oar_rref *make_value(ref_soak *k, oar_rpc *rpc)
{
    ref_value *v = malloc(sizeof *v);
    oar_rref *rref = NULL;

    if (v == NULL)
        abort();
    *v = (ref_value){ k, oar_rpc_rank(rpc), 0 };
    v->number = atomic_load(&k->made[v->rank]) % VALUES;
    shared_flag_raise(&k->made[v->rank]);
    atomic_fetch_or(&k->alive[v->rank][v->number / 32], 1u << v->number % 32);
    if (oar_rref_create(rpc, "soak", v, drop_value, &rref) != OAR_OK)
        abort();
    return rref;
}

/* Keeps a reference in a place, and drops what was there. */
static oar_status take(void *arg, oar_rpc_call *call)
{
    oar_rref *got = NULL, *before;
    int64_t place;

    (void)arg;
    if (oar_rpc_get_i64(oar_rpc_args(call), &place) != OAR_OK ||
        oar_rpc_get_rref(oar_rpc_args(call), &got) != OAR_OK)
        return OAR_E_DATA;
    pthread_mutex_lock(&kept_lock);
    before = kept[place % PLACES];
    kept[place % PLACES] = got;
    pthread_mutex_unlock(&kept_lock);
    oar_rref_release(before);
    return OAR_OK;
}

/* Called on a value: it must not have been dropped. */
static oar_status touch(void *arg, oar_rpc_call *call)
{
    ref_soak *k = arg;
    ref_value *v;
    void *value;

    if (oar_rref_local(oar_rpc_self(call), "soak", &value) != OAR_OK)
        return OAR_E_DATA;
    v = value;
    if ((atomic_load(&k->alive[v->rank][v->number / 32]) >> v->number % 32 &
         1) == 0)
        shared_flag_raise(&k->early);
    return OAR_OK;
}

static oar_rref *take_kept(int place)
{
    oar_rref *got;

    pthread_mutex_lock(&kept_lock);
    got = kept[place];
    kept[place] = NULL;
    pthread_mutex_unlock(&kept_lock);
    return got;
}

/* Whether that can happen while ranks die and come back. */
static int is_allowed(const ref_soak *k, oar_status status)
{
    return status == OAR_OK ||
           (atomic_load(&k->deaths) > 0 &&
            (status == OAR_E_PEER || status == OAR_E_NOT_FOUND));
}

/* One step: makes a value or takes one that is kept, uses it, and gives it to a
 * rank. */
static int pass_one(test_job *c, int rank, ref_soak *k, oar_rpc *rpc,
                    const uint32_t word[4], int make)
{
    oar_rref *rref =
        make ? make_value(k, rpc) : take_kept((int)(word[0] % PLACES));
    oar_future *future = NULL;
    oar_rpc_message *m;

    if (rref == NULL)
        return 0;
    if (word[1] % 4 == 0) {
        oar_status status = oar_rref_call(rref, "touch", NULL, NULL, &future);

        if (status == OAR_OK)
            status = oar_future_wait(future, NULL);
        RANK_CHECK(is_allowed(k, status));
        oar_future_release(future);
    }
    RANK_OK(oar_rpc_message_create(&m));
    RANK_OK(oar_rpc_put_i64(m, word[2] % PLACES));
    RANK_OK(oar_rpc_put_rref(m, rref));
    oar_rref_release(rref);
    RANK_CHECK(is_allowed(
        k, oar_rpc_async(rpc, (int)(word[3] % RANKS), "take", m, NULL, NULL)));
    return 0;
}

static oar_status open_rpc(test_job *c, int rank, ref_soak *k, int again,
                           oar_store **store, oar_rpc **rpc)
{
    const oar_rpc_function functions[] = {
        { .size = sizeof *functions, .name = "take", .fn = take },
        { .size = sizeof *functions, .name = "touch", .fn = touch, .arg = k },
    };
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_group *group;
    oar_status status = test_job_store(c, store);

    opts.functions = functions;
    opts.function_count = 2;
    opts.lease_ms = 10 * WAIT_MS; /* or it would hide what is leaked */
    opts.rejoin = "soak";
    opts.store = *store;
    if (status != OAR_OK || again)
        return status != OAR_OK ? status : oar_rpc_rejoin(rank, &opts, rpc);
    status = test_job_join(c, rank, NULL, &group);
    if (status != OAR_OK)
        return status;
    status = oar_rpc_create(group, &opts, rpc);
    oar_group_destroy(group);
    return status;
}

/* Waits until all calls of this rank are answered. */
static int settle(test_job *c, int rank, oar_rpc *rpc)
{
    oar_rpc_stats stats = oar_rpc_stats_init();

    for (int ms = 0; ms < WAIT_MS; ms++) {
        RANK_OK(oar_rpc_read_stats(rpc, &stats));
        if (stats.pending == 0)
            return 0;
        usleep(1000);
    }
    RANK_CHECK(stats.pending == 0);
    return 1;
}

static void print_value(oar_rref *r, void *arg)
{
    int rank = *(int *)arg;

    fprintf(stderr, "rank %d: value %llx of rank %d:", rank,
            (unsigned long long)r->id, r->owner);
    for (int i = 0; i < RANKS; i++)
        fprintf(stderr, " %u", r->numbers[i]);
    if (!oari_rref_is_own(r))
        fprintf(stderr,
                " (waits for), %u handles, %u granted, asked %d, "
                "broken %d",
                r->held.handles, r->held.granted, r->held.asked,
                r->held.broken);
    fprintf(stderr, "\n");
}

/* Says what is left here after a long time. */
static void say_left(int rank, oar_rpc *rpc, const oar_rpc_stats *stats)
{
    fprintf(stderr, "rank %d: %lld owned, %lld held, %lld pending, lives", rank,
            (long long)stats->values_owned, (long long)stats->values_held,
            (long long)stats->pending);
    for (int i = 0; i < RANKS; i++)
        fprintf(stderr, " %d", oar_rpc_incarnation(rpc, i));
    fprintf(stderr, "\n");
    pthread_mutex_lock(&rpc->refs_lock);
    oari_rref_each(rpc, print_value, &rank);
    pthread_mutex_unlock(&rpc->refs_lock);
}

/* Drops what is kept until nothing is left here. */
static int drain(test_job *c, int rank, oar_rpc *rpc)
{
    oar_rpc_stats stats = oar_rpc_stats_init();

    for (int ms = 0; ms < WAIT_MS; ms++) {
        for (int i = 0; i < PLACES; i++)
            oar_rref_release(take_kept(i));
        RANK_OK(oar_rpc_read_stats(rpc, &stats));
        if (stats.values_owned == 0 && stats.values_held == 0 &&
            stats.pending == 0)
            return 0;
        if (ms == SLOW_MS)
            say_left(rank, rpc, &stats);
        usleep(1000);
    }
    RANK_CHECK(stats.values_owned == 0);
    RANK_CHECK(stats.values_held == 0);
    return 1;
}

static int live(test_job *c, int rank, ref_soak *k, int again)
{
    oari_rng rng = { .seed = 23, .stream = (uint64_t)rank };
    int64_t steps = rank == VICTIM ? INT64_MAX : k->refs * 2;
    size_t used = 0;
    int files = 0;
    oar_store *store;
    oar_rpc *rpc;

    RANK_OK(open_rpc(c, rank, k, again, &store, &rpc));
    shared_flag_raise(again ? &k->restarted : &k->opened);
    for (int64_t i = 0; i < steps; i++) {
        uint32_t word[4];

        oari_rng_block(rng, (uint64_t)i, word);
        RANK_ZERO(pass_one(c, rank, k, rpc, word, i % 2 == 0));
        if (rank == VICTIM && atomic_load(&k->done) == RANKS - 1)
            break;
        if (i == steps / 4) {
            used = mallinfo2().uordblks;
            files = open_descriptors();
        }
    }
    if (rank != VICTIM) {
        /* a group or two with the rank that comes back may differ */
        RANK_CHECK(open_descriptors() < files + 64);
        RANK_CHECK(mallinfo2().uordblks < used + ((size_t)8 << 20));
    }
    /* no rank is killed after it has counted itself */
    RANK_CHECK(
        shared_flag_await(&k->restarted, (uint32_t)k->kills, k->wait_ms));
    shared_flag_raise(&k->done);
    RANK_CHECK(shared_flag_await(&k->done, RANKS, k->wait_ms));
    RANK_ZERO(settle(c, rank, rpc));
    shared_flag_raise(&k->answered);
    RANK_CHECK(shared_flag_await(&k->answered, RANKS, k->wait_ms));
    RANK_ZERO(drain(c, rank, rpc));
    RANK_OK(oar_rpc_shutdown(rpc, WAIT_MS));
    oar_rpc_destroy(rpc);
    oar_store_destroy(store);
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    return live(c, rank, arg, 0);
}

static int run_again(test_job *c, int rank, void *arg)
{
    return live(c, rank, arg, 1);
}

static void references_at_random_are_dropped_once(void **state)
{
    const char *text = getenv("OARSONG_TEST_ALL");
    ref_soak *k = shared_page(sizeof *k);
    int64_t refs = text != NULL ? atoll(text) : FEW;
    test_job c;

    (void)state;
    refs = refs < FEW ? FEW : refs;
    k->refs = refs / (RANKS - 1);
    k->kills = 3 + (int)(refs / REFS_A_KILL);
    k->wait_ms = WAIT_MS + (int)(refs / 2);
    test_job_start(&c, RANKS, run_rank, k, "%lld references", (long long)refs);
    assert_true(shared_flag_await(&k->opened, RANKS, WAIT_MS));
    for (int i = 1; i <= k->kills; i++) { /* spread over the values of rank 0 */
        while (atomic_load(&k->made[0]) <
               (uint64_t)(k->refs * i / (k->kills + 1)))
            usleep(1000);
        shared_flag_raise(&k->deaths);
        kill(c.pid[VICTIM], SIGKILL);
        test_job_expect(&c, VICTIM, 128 + SIGKILL);
        test_job_restart(&c, VICTIM, run_again, k);
        assert_true(shared_flag_await(&k->restarted, (uint32_t)i, WAIT_MS));
    }
    for (int r = 0; r < RANKS; r++) {
        int code = test_job_wait(&c, r, k->wait_ms + WAIT_MS);

        assert_int_equal(code, 0);
        if (r != VICTIM) /* whose earlier lives took theirs with them */
            assert_int_equal(k->made[r], k->dropped[r]);
    }
    assert_int_equal(k->early, 0);
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_at_random_are_dropped_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
