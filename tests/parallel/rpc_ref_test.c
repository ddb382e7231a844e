/* SPDX-License-Identifier: Apache-2.0 */
/* Remote references: values that stay with their owner, calls on them in order,
 * and that each is dropped once, when nobody holds it any more. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "parallel/rpc/rpc_agent.h"
#include "support/last_error.h"
#include "support/ranks.h"
#include "support/rpc_functions.h"

/* An object of a rank: its methods are functions that are called on it. */
typedef struct counter {
    int64_t value, last;
    int out_of_order;
    atomic_int *dropped;
} counter;

typedef struct test_rank {
    oar_rpc *rpc;
    atomic_int made, dropped;
    pthread_mutex_t lock;
    oar_rref *kept[8]; /* what other ranks passed on */
    int rank;
} test_rank;

static void drop_counter(void *value)
{
    counter *c = value;

    atomic_fetch_add(c->dropped, 1);
    free(c);
}

static oar_status make_counter(void *arg, oar_rpc_call *call)
{
    test_rank *t = arg;
    counter *c = calloc(1, sizeof *c);
    oar_rref *rref;
    oar_status status;

    c->dropped = &t->dropped;
    atomic_fetch_add(&t->made, 1);
    status = oar_rref_create(t->rpc, "counter", c, drop_counter, &rref);
    if (status == OAR_OK)
        status = oar_rpc_put_rref(oar_rpc_reply(call), rref);
    oar_rref_release(rref);
    return status;
}

static oar_status increase(void *arg, oar_rpc_call *call)
{
    counter *c;
    int64_t by;

    if (oar_rref_local(oar_rpc_self(call), "counter", (void **)&c) != OAR_OK ||
        oar_rpc_get_i64(oar_rpc_args(call), &by) != OAR_OK)
        return OAR_E_ARG;
    c->out_of_order |= by != c->last + 1; /* one at a time: no lock */
    c->last = by;
    c->value += by;
    if (c->out_of_order)
        return oar_rpc_fail(call, OAR_E_STATE, "out of order");
    return oar_rpc_put_i64(oar_rpc_reply(call), c->value);
}

/* Keeps a reference in a place, in the stead of the one there. */
static oar_status keep(void *arg, oar_rpc_call *call)
{
    test_rank *t = arg;
    oar_rref *rref, *old;
    int64_t place;

    if (oar_rpc_get_i64(oar_rpc_args(call), &place) != OAR_OK ||
        oar_rpc_get_rref(oar_rpc_args(call), &rref) != OAR_OK)
        return OAR_E_ARG;
    pthread_mutex_lock(&t->lock);
    old = t->kept[place % 8];
    t->kept[place % 8] = rref;
    pthread_mutex_unlock(&t->lock);
    oar_rref_release(old);
    return OAR_OK;
}

/* Gives twice the bytes of what it is called on, or of its argument. */
static oar_status concat(void *arg, oar_rpc_call *call)
{
    oar_rpc_message *from = oar_rpc_self_message(call);
    const void *data;
    size_t bytes;
    char both[64];

    if (from == NULL)
        from = oar_rpc_args(call);
    if (oar_rpc_get_bytes(from, &data, &bytes) != OAR_OK || bytes > 32)
        return OAR_E_DATA;
    memcpy(both, data, bytes);
    memcpy(both + bytes, data, bytes);
    return oar_rpc_put_bytes(oar_rpc_reply(call), both, 2 * bytes);
}

static oar_status slow(void *arg, oar_rpc_call *call)
{
    struct timespec nap = { 0, 20000000 };

    nanosleep(&nap, NULL);
    return concat(arg, call);
}

static oar_status open_rank(oar_group *group, test_rank *t)
{
    oar_rpc_function f[] = {
        { .name = "make_counter", .fn = make_counter, .arg = t },
        { .name = "increase", .fn = increase },
        { .name = "keep", .fn = keep, .arg = t, .manner = OAR_RPC_SERIAL },
        { .name = "concat", .fn = concat },
        { .name = "slow", .fn = slow },
    };

    memset(t, 0, sizeof *t);
    t->rank = oar_group_rank(group);
    pthread_mutex_init(&t->lock, NULL);
    CHECK_OK(rpc_open(group, NULL, &t->rpc));
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
        f[i].size = sizeof f[i];
        CHECK_OK(oar_rpc_register(t->rpc, &f[i]));
    }
    return oar_barrier(group, NULL, NULL);
}

/* Waits until all values of this rank have been dropped, then ends. */
static oar_status close_rank(oar_group *group, test_rank *t)
{
    oar_rpc_stats stats = oar_rpc_stats_init();
    struct timespec nap = { 0, 1000000 };

    CHECK_OK(oar_barrier(group, NULL, NULL)); /* all calls have been made */
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < 8; i++) {
        oar_rref_release(t->kept[i]);
        t->kept[i] = NULL;
    }
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < 20000; i++) {
        CHECK_OK(oar_rpc_read_stats(t->rpc, &stats));
        if (stats.values_owned == 0 && stats.values_held == 0 &&
            atomic_load(&t->dropped) == atomic_load(&t->made))
            break;
        nanosleep(&nap, NULL);
    }
    CHECK(stats.values_owned == 0 && stats.values_held == 0);
    CHECK(atomic_load(&t->dropped) == atomic_load(&t->made));
    CHECK(stats.refused == 0);
    CHECK_OK(oar_barrier(group, NULL, NULL));
    return rpc_close(t->rpc);
}

static oar_rpc_message *bytes_of(const char *bytes, size_t count)
{
    oar_rpc_message *m = NULL;

    if (oar_rpc_message_create(&m) == OAR_OK)
        oar_rpc_put_bytes(m, bytes, count);
    return m;
}

static int has_bytes(oar_rpc_message *m, const char *bytes, size_t count)
{
    const void *data;
    size_t got;

    return oar_rpc_get_bytes(m, &data, &got) == OAR_OK && got == count &&
           memcmp(data, bytes, count) == 0;
}

static oar_status run_original(oar_group *group, void *arg)
{
    oar_rref *a, *b, *c;
    oar_rpc_message *got;
    void *value;
    test_rank t;

    CHECK_OK(open_rank(group, &t));
    CHECK_OK(
        oar_rpc_remote(t.rpc, t.rank, "concat", bytes_of("\52", 1), NULL, &a));
    CHECK_OK(oar_rref_fetch(a, NULL, &got));
    CHECK(has_bytes(got, "\52\52", 2));
    oar_rpc_message_destroy(got);
    CHECK_OK(oar_rpc_remote(t.rpc, 1 - t.rank, "concat", bytes_of("\1\2", 2),
                            NULL, &b));
    CHECK(oar_rref_owner(a) == t.rank && oar_rref_owner(b) == 1 - t.rank);
    CHECK(oar_rref_id(a) != 0 && oar_rref_id(b) != 0);
    CHECK_OK(oar_rref_fetch(b, NULL, &got));
    CHECK(has_bytes(got, "\1\2\1\2", 4));
    oar_rpc_message_destroy(got);
    CHECK(oar_rref_retain(b) == b);
    oar_rref_release(b);
    CHECK(oar_rpc_remote(t.rpc, 5, "concat", NULL, NULL, &c) == OAR_E_RANK);
    CHECK(fails_with(oar_rref_local(b, "x", &value), OAR_E_RANK,
                     "the value is rank"));
    CHECK_OK(oar_rref_create(t.rpc, "list", &t, NULL, &c));
    CHECK(oar_rref_id(c) != oar_rref_id(a));
    CHECK(fails_with(oar_rref_local(c, "lost", &value), OAR_E_ARG,
                     "of the kind \"list\", not \"lost\""));
    CHECK_OK(oar_rref_local(c, "list", &value));
    CHECK(value == &t);
    CHECK(fails_with(oar_rref_fetch(c, NULL, &got), OAR_E_ARG, "list"));
    CHECK(oar_rref_on_broken(c, (oar_broken_fn)1, NULL) == OAR_E_RANK);
    oar_rref_release(a);
    oar_rref_release(b);
    oar_rref_release(c);
    oar_rref_release(NULL);
    return close_rank(group, &t);
}

static void original_references(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, run_original, NULL), OAR_OK);
}

/* A chain of calls on a value that is not there yet, and one that fails. */
static oar_status run_pipelined(oar_group *group, void *arg)
{
    oar_rpc_message *got, *m;
    oar_future *future;
    oar_rref *a, *b;
    test_rank t;
    int peer;

    CHECK_OK(open_rank(group, &t));
    peer = 1 - t.rank;
    CHECK_OK(oar_rpc_remote(t.rpc, peer, "slow", bytes_of("a", 1), NULL, &a));
    CHECK_OK(oar_rref_call(a, "concat", NULL, NULL, &future));
    CHECK_OK(oar_rpc_message_create(&m));
    CHECK_OK(oar_rpc_put_i64(m, 0));
    CHECK_OK(oar_rpc_put_rref(m, a));
    CHECK_OK(oar_rpc_async(t.rpc, t.rank, "keep", m, NULL, NULL));
    CHECK_OK(oar_future_wait(future, &got));
    CHECK(has_bytes(got, "aaaa", 4));
    oar_rpc_message_destroy(got);
    oar_future_release(future);
    oar_rref_release(a);
    CHECK_OK(oar_rpc_remote(t.rpc, peer, "fail", NULL, NULL, &b));
    for (int i = 0; i < 2; i++) {
        CHECK(fails_with(oar_rref_fetch(b, NULL, &got), OAR_E_SHAPE,
                         "something went wrong"));
        CHECK(oar_last_error()->rank == peer);
    }
    oar_rref_release(b);
    CHECK_OK(oar_rpc_remote(t.rpc, peer, "nothing", NULL, NULL, &b));
    CHECK(fails_with(oar_rref_fetch(b, NULL, &got), OAR_E_NOT_FOUND,
                     "has no function \"nothing\""));
    oar_rref_release(b);
    return close_rank(group, &t);
}

static void calls_wait_for_the_value_and_a_failure_stays(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, run_pipelined, NULL), OAR_OK);
}

static oar_status run_actors(oar_group *group, void *arg)
{
    oar_future *last = NULL;
    oar_rpc_message *reply;
    oar_rref *actor;
    int64_t sum;
    test_rank t;

    CHECK_OK(open_rank(group, &t));
    CHECK_OK(oar_rpc_sync(t.rpc, (t.rank + 1) % 3, "make_counter", NULL, NULL,
                          &reply));
    CHECK_OK(oar_rpc_get_rref(reply, &actor));
    oar_rpc_message_destroy(reply);
    for (int64_t i = 1; i <= 100; i++) {
        oar_future_release(last);
        CHECK_OK(
            oar_rref_call(actor, "increase", rpc_message_of(i), NULL, &last));
    }
    CHECK_OK(oar_future_wait(last, &reply));
    CHECK_OK(oar_rpc_get_i64(reply, &sum));
    CHECK(sum == 5050);
    oar_rpc_message_destroy(reply);
    oar_future_release(last);
    oar_rref_release(actor);
    return close_rank(group, &t);
}

static void calls_on_an_actor_run_one_at_a_time_in_order(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks_run((const char *[]){ "sim", "shm", "tcp" }[i],
                                   3, NULL, run_actors, NULL),
                         OAR_OK);
}

/* The rank that passed a value on has died, and the owner has dropped it: a
 * HOLD that comes now must not make the owner wait for such a value. */
static oar_status run_late_hold(oar_group *group, void *arg)
{
    oari_rpc_head hold = { .kind = OARI_RPC_HOLD, .left_ms = -1 };
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_rref *own;
    test_rank t;

    CHECK_OK(open_rank(group, &t));
    CHECK_OK(oar_rref_create(t.rpc, "list", &t, NULL, &own));
    hold.reference = oar_rref_id(own);
    oar_rref_release(own);
    oari_rref_take_note(t.rpc, 1 - t.rank, &hold);
    CHECK_OK(oar_rpc_read_stats(t.rpc, &stats));
    CHECK(stats.values_owned == 0);
    return close_rank(group, &t);
}

static void a_value_that_was_dropped_is_not_yet_to_come(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, run_late_hold, NULL), OAR_OK);
}

/* Makes values everywhere and passes them on at random, mostly without holding
 * them oneself. */
static oar_status run_random(oar_group *group, void *arg)
{
    int rounds = *(const int *)arg, ranks = oar_group_size(group);
    oar_rref *mine[8] = { NULL };
    test_rank t;

    CHECK_OK(open_rank(group, &t));
    for (int i = 0; i < rounds; i++) {
        oari_rng rng = { .seed = 7, .stream = (uint64_t)t.rank };
        oar_rpc_message *m;
        uint32_t word[4];
        int place;

        oari_rng_block(rng, (uint64_t)i, word);
        place = (int)(word[0] % 8);
        if (mine[place] == NULL && word[1] % 2) {
            CHECK_OK(oar_rpc_sync(t.rpc, (int)(word[2] % (unsigned)ranks),
                                  "make_counter", NULL, NULL, &m));
            CHECK_OK(oar_rpc_get_rref(m, &mine[place]));
            oar_rpc_message_destroy(m);
        } else if (mine[place] == NULL) {
            CHECK_OK(oar_rpc_remote(t.rpc, (int)(word[2] % (unsigned)ranks),
                                    "concat", bytes_of("x", 1), NULL,
                                    &mine[place]));
        }
        CHECK_OK(oar_rpc_message_create(&m));
        CHECK_OK(oar_rpc_put_i64(m, place));
        CHECK_OK(oar_rpc_put_rref(m, mine[place]));
        CHECK_OK(oar_rpc_async(t.rpc, (int)(word[3] % (unsigned)ranks), "keep",
                               m, NULL, NULL));
        if (word[1] / 2 % 4 != 0) {
            oar_rref_release(mine[place]);
            mine[place] = NULL;
        }
    }
    for (int i = 0; i < 8; i++)
        oar_rref_release(mine[i]);
    for (int r = 0; r < ranks; r++) { /* the keeps before it have run */
        oar_rref *own;
        oar_rpc_message *m;

        CHECK_OK(oar_rref_create(t.rpc, "last", NULL, NULL, &own));
        CHECK_OK(oar_rpc_message_create(&m));
        CHECK_OK(oar_rpc_put_i64(m, t.rank));
        CHECK_OK(oar_rpc_put_rref(m, own));
        CHECK_OK(oar_rpc_sync(t.rpc, r, "keep", m, NULL, NULL));
        oar_rref_release(own);
    }
    return close_rank(group, &t);
}

static void values_passed_at_random_are_dropped_once(void **state)
{
    int rounds = 400;
    (void)state;

    assert_int_equal(ranks_run("sim", 3, NULL, run_random, &rounds), OAR_OK);
    assert_int_equal(ranks_run("shm", 4, NULL, run_random, &rounds), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(original_references),
        cmocka_unit_test(calls_wait_for_the_value_and_a_failure_stays),
        cmocka_unit_test(calls_on_an_actor_run_one_at_a_time_in_order),
        cmocka_unit_test(a_value_that_was_dropped_is_not_yet_to_come),
        cmocka_unit_test(values_passed_at_random_are_dropped_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
