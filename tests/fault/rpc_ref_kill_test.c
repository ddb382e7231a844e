/* SPDX-License-Identifier: Apache-2.0 */
/* Remote references when a rank dies: the owner, whose references break on the
 * others, and a holder, whose holds are dropped. */
#include "support/test_job.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/rpc.h>

#include "support/rpc_functions.h"

enum { RANKS = 3, OWNER = 0, HOLDER = 1, OTHER = 2, WAIT_MS = 15000 };

typedef struct ref_kill {
    const char *backend;
    int victim;
    shared_flag held; /* by HOLDER and OTHER */
    shared_flag dropped, broken, done;
} ref_kill;

static oar_rref *_Atomic kept; /* of this process */

static oar_status keep_one(void *arg, oar_rpc_call *call)
{
    oar_rref *got = NULL;
    oar_status status = oar_rpc_get_rref(oar_rpc_args(call), &got);

    (void)arg;
    atomic_store(&kept, got);
    return status;
}

static void note_drop(void *value)
{
    shared_flag_raise(&((ref_kill *)value)->dropped);
}

static void note_broken(void *arg, const oar_error *why)
{
    ref_kill *k = arg;

    if (why->status == OAR_E_PEER && why->peer == OWNER)
        shared_flag_raise(&k->broken);
}

/* The owner gives it to HOLDER, which passes it on to OTHER. */
static int give(test_job *c, int rank, ref_kill *k, oar_rpc *rpc)
{
    oar_rpc_message *m;
    oar_rref *own;

    RANK_OK(oar_rpc_message_create(&m));
    if (rank == OWNER) {
        RANK_OK(oar_rref_create(rpc, "value", k, note_drop, &own));
        RANK_OK(oar_rpc_put_rref(m, own));
        RANK_OK(oar_rpc_sync(rpc, HOLDER, "keep_one", m, NULL, NULL));
        oar_rref_release(own);
    } else {
        RANK_OK(oar_rpc_put_rref(m, kept));
        RANK_OK(oar_rpc_sync(rpc, OTHER, "keep_one", m, NULL, NULL));
    }
    shared_flag_raise(&k->held);
    return 0;
}

/* OTHER sees the reference break, or outlives the holder it came from. */
static int look(test_job *c, int rank, ref_kill *k, oar_rpc *rpc)
{
    oar_future *future = NULL;
    oar_status status;

    if (k->victim == OWNER) {
        RANK_OK(oar_rref_on_broken(kept, note_broken, k));
        RANK_CHECK(oar_rref_on_broken(kept, note_broken, k) == OAR_E_STATE);
        RANK_CHECK(shared_flag_await(&k->broken, 1, WAIT_MS));
        status = oar_rref_call(kept, "add_one", NULL, NULL, &future);
        RANK_CHECK(status == OAR_E_PEER && oar_last_error()->peer == OWNER);
        return 0;
    }
    RANK_OK(oar_rref_call(kept, "add_one", rpc_message_of(1), NULL, &future));
    RANK_OK(oar_future_wait(future, NULL));
    oar_future_release(future);
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    ref_kill *k = arg;
    oar_group_opts o = { .size = sizeof o, .backend = k->backend };
    oar_rpc_function f = { .size = sizeof f,
                           .name = "keep_one",
                           .fn = keep_one };
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_group *group;
    oar_rpc *rpc;

    RANK_OK(test_job_join(c, rank, &o, &group));
    RANK_OK(rpc_open(group, NULL, &rpc));
    RANK_OK(oar_rpc_register(rpc, &f));
    RANK_OK(oar_barrier(group, NULL, NULL));
    if (rank == HOLDER)
        RANK_CHECK(shared_flag_await(&k->held, 1, WAIT_MS));
    if (rank != OTHER && give(c, rank, k, rpc) != 0)
        return 1;
    RANK_CHECK(shared_flag_await(&k->held, 2, WAIT_MS));
    if (rank == k->victim)
        raise(SIGKILL);
    if (rank == OTHER && look(c, rank, k, rpc) != 0)
        return 1;
    if (rank == OTHER) {
        RANK_CHECK(atomic_load(&k->dropped) == 0);
        oar_rref_release(kept);
        shared_flag_raise(&k->done);
    }
    if (rank == OWNER) /* the holder's death and OTHER's release free it */
        RANK_CHECK(shared_flag_await(&k->dropped, 1, WAIT_MS));
    if (rank == HOLDER)
        oar_rref_release(kept);
    RANK_CHECK(shared_flag_await(&k->done, 1, WAIT_MS));
    RANK_OK(oar_rpc_shutdown(rpc, WAIT_MS));
    for (int ms = 0; ms < WAIT_MS; ms++) { /* the last HELD may be on its way */
        RANK_OK(oar_rpc_read_stats(rpc, &stats));
        if (stats.values_owned == 0 && stats.values_held == 0)
            break;
        usleep(1000);
    }
    RANK_CHECK(stats.values_owned == 0 && stats.values_held == 0);
    oar_rpc_destroy(rpc);
    oar_group_destroy(group);
    return 0;
}

static void run_case(const char *backend, int victim)
{
    ref_kill *k = shared_page(sizeof *k);
    test_job c;

    k->backend = backend;
    k->victim = victim;
    test_job_start(&c, RANKS, run_rank, k, "%s, rank %d is killed", backend,
                   victim);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, r == victim ? 128 + SIGKILL : 0);
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

static void references_break_when_their_owner_dies(void **state)
{
    (void)state;
    run_case("shm", OWNER);
    run_case("tcp", OWNER);
}

static void a_dead_holder_holds_nothing(void **state)
{
    (void)state;
    run_case("shm", HOLDER);
    run_case("tcp", HOLDER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_break_when_their_owner_dies),
        cmocka_unit_test(a_dead_holder_holds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
