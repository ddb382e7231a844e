/* SPDX-License-Identifier: Apache-2.0 */
/* mpi: the backend's table, as a plugin. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

enum {
    CHUNK = 1 << 30, /* elements */
    FLUSH_NS =
        2000 *
        1000000 /* for messages that are not sent yet when a group ends */
};

static oar_status mpi_probe(oar_backend_caps *caps)
{
    const char *version = mpi_version();

    if (version == NULL)
        return OAR_E_UNAVAILABLE;
    caps->note = version;
    caps->can = OAR_CAN_ANY | OAR_CAN_PROBE | OAR_CAN_SYNCHRONOUS |
                OAR_CAN_AT_MOST | OAR_WANTS_LINKS;
    return OAR_OK;
}

/* ---- from open to close -------------------------------------------------- */

static oar_status mpi_open(void *self, const oar_backend_env *env)
{
    mpi_engine *e = self;
    int64_t blocking = 0;

    e->rank = env->rank;
    e->ranks = env->ranks;
    e->last = &e->first;
    e->chunk_max = CHUNK;
    OARI_TRY(oari_env_int("OARSONG_MPI_CHUNK", 1, CHUNK, &e->chunk_max));
    OARI_TRY(oari_env_int("OARSONG_MPI_BLOCKING", 0, 1, &blocking));
    e->blocking = (int)blocking;
    if (e->ranks > 1) { /* a single rank needs no MPI */
        OARI_TRY(mpi_start(e->ranks, e->blocking));
        OARI_TRY(mpi_make_communicator(e, env));
        mpi_count_open(1);
    }
    return mpi_transport_open(e);
}

static oar_status make_progress(mpi_engine *e)
{
    OARI_TRY(mpi_operations_test(e));
    if (oari_chunk_link_idle(e->messages))
        return OAR_OK;
    OARI_TRY(mpi_transport_test(e));
    return oari_chunk_link_progress(e->messages);
}

static void end_operations(mpi_engine *e, oar_status why)
{
    e->ended = why;
    mpi_operations_abandon(e, why);
    if (e->messages != NULL)
        oari_chunk_link_abort(e->messages, why);
    mpi_count_abandoned();
}

static void mpi_close(void *self)
{
    mpi_engine *e = self;
    mpi_operation *p;
    int64_t deadline = oari_now_ns() + FLUSH_NS;
    int why = atomic_load(&e->why);

    if (why != OAR_OK && e->ended == OAR_OK)
        end_operations(e, (oar_status)why);
    if (e->ended == OAR_OK && e->first != NULL)
        end_operations(e, OAR_E_ABORTED);
    if (e->ended == OAR_OK && e->joined && mpi_is_finalized())
        end_operations(e, OAR_E_STATE);
    /* Small messages count as sent once they are copied: send them now. */
    if (e->ended == OAR_OK && e->messages != NULL)
        while (oari_chunk_link_leaving(e->messages) != 0 &&
               oari_now_ns() < deadline && make_progress(e) == OAR_OK)
            ;
    mpi_transport_close(e);
    while ((p = e->spare) != NULL) {
        e->spare = p->next;
        oari_free(p);
    }
    if (!e->joined)
        return;
    if (e->ended == OAR_OK) {
        mpi_lock();
        MPI_Comm_free(&e->comm);
        mpi_unlock();
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
        return make_progress(e);
    if (why == OAR_OK)
        return e->failed;
    if (e->ended == OAR_OK)
        end_operations(e, (oar_status)why);
    return OAR_OK;
}

/* ---- messages ------------------------------------------------------------ */

static oar_status mpi_send(void *self, oar_transfer *transfer)
{
    return oari_chunk_link_send(((mpi_engine *)self)->messages, transfer);
}

static oar_status mpi_recv(void *self, oar_transfer *transfer)
{
    return oari_chunk_link_recv(((mpi_engine *)self)->messages, transfer);
}

/* Messages stay in MPI until there is a receive or a probe. */
static int mpi_peek(void *self, int peer, uint64_t tag, uint64_t any,
                    oar_envelope *found)
{
    mpi_engine *e = self;
    oar_status status;

    if (oari_chunk_link_peek(e->messages, peer, tag, any, found))
        return 1;
    status = e->ended == OAR_OK ? mpi_transport_test(e) : OAR_OK;
    if (status == OAR_OK)
        status = oari_chunk_link_progress(e->messages);
    if (status != OAR_OK)
        e->failed = status;
    return oari_chunk_link_peek(e->messages, peer, tag, any, found);
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
        [OAR_COLL_BARRIER] = mpi_post,
        [OAR_COLL_BROADCAST] = mpi_post,
        [OAR_COLL_ALL_REDUCE] = mpi_post,
        [OAR_COLL_REDUCE] = mpi_post,
        [OAR_COLL_GATHER] = mpi_post,
        [OAR_COLL_SCATTER] = mpi_post,
        [OAR_COLL_ALL_GATHER] = mpi_post,
        [OAR_COLL_REDUCE_SCATTER] = mpi_post,
        [OAR_COLL_ALL_TO_ALL] = mpi_post,
    },
};

OAR_API const oar_backend_ops *oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    return &table;
}
