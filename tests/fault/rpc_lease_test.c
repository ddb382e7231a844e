/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of references: a rank that is stopped holds nothing any more after a
 * while, and hears of that when it goes on; one that is merely quiet keeps what
 * it holds. */
#include "support/test_job.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/rpc.h>

#include "support/rpc_functions.h"

enum { OWNER, STOPPED, QUIET, RANKS, WAIT_MS = 60000 };

/* The values of the owner: held by the one that is stopped; by the quiet one;
 * by the quiet one, which passes it on to the one that is stopped. */
enum { OF_STOPPED, OF_QUIET, PASSED_ON, VALUES };

typedef struct lease_case {
    int lease_ms;
    shared_flag ready, stopped, resumed, broken, done;
    shared_flag dropped[VALUES];
} lease_case;

static oar_rref *_Atomic kept[2]; /* of this process */

static void note_drop(void *value)
{
    shared_flag_raise(value);
}

static void note_broken(void *arg, const oar_error *why)
{
    if (strstr(why->text, "lease") != NULL)
        shared_flag_raise(arg);
}

static oar_status keep_one(void *arg, oar_rpc_call *call)
{
    oar_rref *got = NULL;
    int64_t place;

    (void)arg;
    if (oar_rpc_get_i64(oar_rpc_args(call), &place) != OAR_OK ||
        oar_rpc_get_rref(oar_rpc_args(call), &got) != OAR_OK)
        return OAR_E_DATA;
    oar_rref_release(atomic_exchange(&kept[place % 2], got));
    return OAR_OK;
}

static oar_status touch(void *arg, oar_rpc_call *call)
{
    void *value;

    (void)arg;
    return oar_rref_local(oar_rpc_self(call), "value", &value);
}

/* Gives a reference to a value that is made for the caller. */
static oar_status give(void *arg, oar_rpc_call *call)
{
    oar_rref *own;
    oar_status status =
        oar_rref_create(oar_rpc_of(call), "value", arg, NULL, &own);

    if (status != OAR_OK)
        return status;
    status = oar_rpc_put_rref(oar_rpc_reply(call), own);
    oar_rref_release(own);
    return status;
}

static oar_status open_rpc(test_job *c, int rank, int lease_ms, oar_rpc **rpc)
{
    const oar_rpc_function functions[] = {
        { .size = sizeof *functions, .name = "keep_one", .fn = keep_one },
        { .size = sizeof *functions, .name = "touch", .fn = touch },
        { .size = sizeof *functions, .name = "give", .fn = give },
    };
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_group *group;
    oar_status status = test_job_join(c, rank, NULL, &group);

    if (status != OAR_OK)
        return status;
    opts.functions = functions;
    opts.function_count = 3;
    opts.lease_ms = lease_ms;
    opts.timeout_ms = WAIT_MS;
    status = oar_rpc_create(group, &opts, rpc);
    oar_group_destroy(group);
    return status;
}

static oar_rpc_message *with_ref(int64_t place, oar_rref *rref)
{
    oar_rpc_message *m = rpc_message_of(place);

    return m != NULL && oar_rpc_put_rref(m, rref) == OAR_OK ? m : NULL;
}

static oar_status call_on(oar_rref *rref)
{
    oar_future *future = NULL;
    oar_status status = oar_rref_call(rref, "touch", NULL, NULL, &future);

    if (status == OAR_OK)
        status = oar_future_wait(future, NULL);
    oar_future_release(future);
    return status;
}

static int own(test_job *c, int rank, lease_case *k, oar_rpc *rpc)
{
    for (int v = 0; v < VALUES; v++) {
        oar_rref *value;

        RANK_OK(
            oar_rref_create(rpc, "value", &k->dropped[v], note_drop, &value));
        RANK_OK(oar_rpc_sync(rpc, v == OF_STOPPED ? STOPPED : QUIET, "keep_one",
                             with_ref(v == PASSED_ON, value), NULL, NULL));
        oar_rref_release(value);
    }
    shared_flag_raise(&k->ready);
    return 0;
}

/* Is stopped after "ready", and then finds its reference broken. */
static int be_stopped(test_job *c, int rank, lease_case *k, oar_rpc *rpc)
{
    oar_rpc_message *reply;
    oar_rref *mine, *other;

    RANK_CHECK(shared_flag_await(&k->ready, 1, WAIT_MS));
    mine = atomic_exchange(&kept[0], NULL);
    RANK_OK(oar_rref_on_broken(mine, note_broken, &k->broken));
    shared_flag_raise(&k->ready);
    RANK_CHECK(shared_flag_await(&k->resumed, 1, WAIT_MS));
    RANK_CHECK(shared_flag_await(&k->broken, 1, WAIT_MS));
    RANK_CHECK(call_on(mine) == OAR_E_NOT_FOUND);
    RANK_CHECK(strstr(oar_last_error()->text, "lease") != NULL);
    oar_rref_release(mine);
    RANK_OK(oar_rpc_sync(rpc, OWNER, "give", NULL, NULL, &reply));
    RANK_OK(oar_rpc_get_rref(reply, &other));
    oar_rpc_message_destroy(reply);
    RANK_OK(call_on(other));
    oar_rref_release(other);
    return 0;
}

static int be_quiet(test_job *c, int rank, lease_case *k, oar_rpc *rpc)
{
    oar_rref *mine, *other;

    RANK_CHECK(shared_flag_await(&k->stopped, 1, WAIT_MS));
    mine = atomic_exchange(&kept[0], NULL);
    other = atomic_exchange(&kept[1], NULL);
    RANK_OK(oar_rpc_async(rpc, STOPPED, "keep_one", with_ref(1, other), NULL,
                          NULL));
    oar_rref_release(other);
    RANK_CHECK(shared_flag_await(&k->resumed, 1, 2 * WAIT_MS));
    RANK_OK(call_on(mine));
    oar_rref_release(mine);
    RANK_CHECK(shared_flag_await(&k->dropped[OF_QUIET], 1, WAIT_MS));
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    int (*const part[])(test_job *, int, lease_case *, oar_rpc *) = {
        [OWNER] = own, [STOPPED] = be_stopped, [QUIET] = be_quiet
    };
    oar_rpc_stats stats = oar_rpc_stats_init();
    lease_case *k = arg;
    oar_rpc *rpc;

    RANK_OK(open_rpc(c, rank, k->lease_ms, &rpc));
    RANK_ZERO(part[rank](c, rank, k, rpc));
    shared_flag_raise(&k->done);
    RANK_CHECK(shared_flag_await(&k->done, RANKS, 3 * WAIT_MS));
    oar_rref_release(atomic_exchange(&kept[1], NULL));
    for (int ms = 0; ms < WAIT_MS; ms++) {
        RANK_OK(oar_rpc_read_stats(rpc, &stats));
        if (stats.values_owned + stats.values_held + stats.pending == 0)
            break;
        usleep(1000);
    }
    RANK_CHECK(stats.values_owned == 0 && stats.values_held == 0);
    RANK_CHECK(stats.refused == 0);
    RANK_OK(oar_rpc_shutdown(rpc, WAIT_MS));
    oar_rpc_destroy(rpc);
    return 0;
}

static void a_stopped_rank_loses_its_holds_and_a_quiet_one_does_not(void **s)
{
    lease_case *k = shared_page(sizeof *k);
    int64_t lease_ms = busy_ms(400);
    test_job c;

    (void)s;
    k->lease_ms = lease_ms > 6000 ? 6000 : (int)lease_ms;
    test_job_start(&c, RANKS, run_rank, k, "a lease of %d ms", k->lease_ms);
    assert_true(shared_flag_await(&k->ready, 2, WAIT_MS));
    kill(c.pid[STOPPED], SIGSTOP);
    assert_true(test_job_wait_stopped(&c, STOPPED, WAIT_MS));
    shared_flag_raise(&k->stopped);
    assert_true(shared_flag_await(&k->dropped[OF_STOPPED], 1, WAIT_MS));
    assert_true(shared_flag_await(&k->dropped[PASSED_ON], 1, WAIT_MS));
    usleep((useconds_t)k->lease_ms * 2500); /* the quiet one renews in time */
    assert_int_equal(k->dropped[OF_QUIET], 0);
    kill(c.pid[STOPPED], SIGCONT);
    shared_flag_raise(&k->resumed);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    for (int v = 0; v < VALUES; v++)
        assert_int_equal(k->dropped[v], 1);
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_stopped_rank_loses_its_holds_and_a_quiet_one_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
