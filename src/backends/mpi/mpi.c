/* SPDX-License-Identifier: Apache-2.0 */
/* mpi: the backend, as a plugin. engine.h says how it is made. */
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

enum {
    CHUNK = 1 << 30,          /* elements */
    EAGER = 3072,             /* bytes of a message that goes at once */
    FLUSH_NS = 2000 * 1000000 /* for what is still leaving at the end */
};

static oar_status mpi_probe(oar_backend_caps *caps)
{
    const char *version = mpi_version();

    if (version == NULL)
        return OAR_E_UNAVAILABLE;
    caps->note = version;
    caps->can =
        OAR_CAN_ANY | OAR_CAN_PROBE | OAR_CAN_SYNCHRONOUS | OAR_WANTS_LINKS;
    return OAR_OK;
}

/* ---- from open to close -------------------------------------------------- */

static oar_status read_settings(mpi_engine *e)
{
    int64_t blocking = 0;

    e->chunk = CHUNK;
    OARI_TRY(oari_env_int("OARSONG_MPI_CHUNK", 1, CHUNK, &e->chunk));
    OARI_TRY(oari_env_int("OARSONG_MPI_BLOCKING", 0, 1, &blocking));
    e->blocking = (int)blocking;
    return OAR_OK;
}

static oar_status mpi_open(void *self, const oar_backend_env *env)
{
    mpi_engine *e = self;

    e->rank = env->rank;
    e->ranks = env->ranks;
    e->last = &e->first;
    OARI_TRY(read_settings(e));
    if (e->ranks > 1) { /* one alone needs no MPI */
        OARI_TRY(mpi_start(e->ranks, e->blocking));
        if (e->blocking && !mpi_is_shared())
            return oari_fail(OAR_E_UNSUPPORTED,
                             "OARSONG_MPI_BLOCKING=1 where MPI bears only one "
                             "thread at a time: groups would wait for each "
                             "other; initialise it with MPI_THREAD_MULTIPLE");
        OARI_TRY(mpi_join(e, env));
        mpi_count_open(1);
    }
    return mpi_carry_open(e, EAGER);
}

static oar_status progress(mpi_engine *e)
{
    OARI_TRY(mpi_posts_test(e));
    if (oari_relay_idle(e->relay))
        return OAR_OK;
    OARI_TRY(mpi_carry_test(e));
    return oari_relay_progress(e->relay);
}

/* Small messages are done when they are copied: they should go before we do. */
static void flush(mpi_engine *e)
{
    int64_t until = oari_now_ns() + FLUSH_NS;

    while (oari_relay_leaving(e->relay) != 0 && oari_now_ns() < until)
        if (progress(e) != OAR_OK)
            return;
}

static void end_all(mpi_engine *e, oar_status why)
{
    e->ended = why;
    mpi_posts_abandon(e, why);
    if (e->relay != NULL)
        oari_relay_abort(e->relay, why);
    mpi_count_ruin();
}

static void mpi_close(void *self)
{
    mpi_engine *e = self;
    int why = atomic_load(&e->why);

    if (why != OAR_OK && e->ended == OAR_OK)
        end_all(e, (oar_status)why);
    if (e->ended == OAR_OK && e->first != NULL)
        end_all(e, OAR_E_ABORTED);
    if (e->ended == OAR_OK && e->joined && mpi_is_over())
        end_all(e, OAR_E_STATE);
    if (e->ended == OAR_OK && e->relay != NULL)
        flush(e);
    mpi_carry_close(e);
    mpi_posts_free(e);
    if (!e->joined)
        return;
    if (e->ended == OAR_OK) {
        mpi_enter();
        MPI_Comm_free(&e->comm);
        mpi_leave();
    }
    mpi_count_open(-1);
}

static void mpi_abort(void *self, oar_status why)
{
    mpi_engine *e = self;
    int none = OAR_OK;

    atomic_compare_exchange_strong(&e->why, &none, (int)why);
}

static oar_status mpi_progress(void *self)
{
    mpi_engine *e = self;
    int why = atomic_load_explicit(&e->why, memory_order_relaxed);

    if (why == OAR_OK && e->failed == OAR_OK)
        return progress(e);
    if (why == OAR_OK)
        return e->failed;
    if (e->ended == OAR_OK)
        end_all(e, (oar_status)why);
    return OAR_OK;
}

/* ---- messages ------------------------------------------------------------ */

static oar_status mpi_send(void *self, oar_transfer *transfer)
{
    return oari_relay_send(((mpi_engine *)self)->relay, transfer);
}

static oar_status mpi_recv(void *self, oar_transfer *transfer)
{
    return oari_relay_recv(((mpi_engine *)self)->relay, transfer);
}

/* Messages stay in MPI as long as nobody asks for one. */
static int mpi_peek(void *self, int peer, uint64_t tag, uint64_t any,
                    oar_envelope *found)
{
    mpi_engine *e = self;
    oar_status status;

    if (oari_relay_peek(e->relay, peer, tag, any, found))
        return 1;
    status = e->ended == OAR_OK ? mpi_carry_test(e) : OAR_OK;
    if (status == OAR_OK)
        status = oari_relay_progress(e->relay);
    if (status != OAR_OK)
        e->failed = status;
    return oari_relay_peek(e->relay, peer, tag, any, found);
}

static const oar_backend_ops table = {
    .size = sizeof table,
    .abi = OAR_BACKEND_ABI,
    .name = OARSONG_MPI_NAME,
    .self_size = sizeof(mpi_engine),
    .probe = mpi_probe,
    .open = mpi_open,
    .close = mpi_close,
    .send = mpi_send,
    .recv = mpi_recv,
    .progress = mpi_progress,
    .abort = mpi_abort,
    .peek = mpi_peek,
    .takes = mpi_takes,
    .post_count = OAR_COLL_COUNT,
    .post = {
        [OAR_COLL_BARRIER] = mpi_post_barrier,
        [OAR_COLL_BROADCAST] = mpi_post_broadcast,
        [OAR_COLL_ALL_REDUCE] = mpi_post_fold,
        [OAR_COLL_REDUCE] = mpi_post_fold,
        [OAR_COLL_GATHER] = mpi_post_gather,
        [OAR_COLL_SCATTER] = mpi_post_scatter,
        [OAR_COLL_ALL_GATHER] = mpi_post_all_gather,
        [OAR_COLL_REDUCE_SCATTER] = mpi_post_reduce_scatter,
        [OAR_COLL_ALL_TO_ALL] = mpi_post_all_to_all,
    },
};

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    return &table;
}
