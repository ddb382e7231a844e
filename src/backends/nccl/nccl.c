/* SPDX-License-Identifier: Apache-2.0 */
/* nccl: the backend `nccl`: collectives on GPUs by the real NCCL.
 *
 * It has no messages on the host, and no barrier: the links that the core makes
 * beside it carry those, notice peers that are gone, and compare what ranks
 * call.
 */
#include <oarsong/device.h>

#include "backends/backends.h"
#include "backends/nccl/nccl_engine.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

enum { CLOSE_MS = 900 };

static oar_status probe_nccl(oar_backend_caps *caps)
{
    const oari_nccl *lib;

    OARI_TRY(oari_nccl_load(&lib));
    OARI_TRY(oar_device_available(OAR_CUDA));
    caps->note = lib->note;
    caps->devices = 1u << OAR_CUDA;
    caps->can = OAR_WANTS_LINKS;
    return OAR_OK;
}

/* ---- opening ------------------------------------------------------------- */

static oar_status open_new(oari_nccl_engine *e, const oari_open *with)
{
    int64_t deadline = oari_deadline(with->env.timeout_ms);
    oari_nccl_terms terms;

    OARI_TRY(oari_nccl_comm_create(e->lib, with->env.device, &e->comm));
    OARI_TRY(oari_nccl_comm_set_stream(e->comm, with->env.stream));
    OARI_TRY(oari_nccl_rendezvous(e->lib, with, deadline, &terms));
    e->comm->has_fp8 = terms.has_fp8;
    return oari_nccl_comm_init(e->comm, with, &terms.id, deadline);
}

/* Checks that the parent's split has these ranks, in this order. */
static oar_status open_split(oari_nccl_engine *e, const oari_open *with)
{
    const oari_nccl *lib = e->lib;
    int rank = -1, ranks = -1;

    e->comm = with->env.split;
    OARI_TRY(oari_nccl_comm_set_stream(e->comm, with->env.stream));
    OARI_TRY(oari_nccl_check(lib, lib->CommUserRank(e->comm->handle, &rank),
                             e->comm->handle, "asking for the rank"));
    OARI_TRY(oari_nccl_check(lib, lib->CommCount(e->comm->handle, &ranks),
                             e->comm->handle, "asking for the size"));
    if (rank == with->env.rank && ranks == with->env.ranks)
        return OAR_OK;
    return oar_backend_fail(OAR_E_INTERNAL,
                            "NCCL's split made this rank %d of %d, not %d of "
                            "%d",
                            rank, ranks, with->env.rank, with->env.ranks);
}

static oar_status open_engine(void *self, const oari_open *with)
{
    oari_nccl_engine *e = self;

    e->rank = with->env.rank;
    e->ranks = with->env.ranks;
    e->device = with->env.device;
    e->timeout_ms = with->env.timeout_ms;
    e->group = with->group;
    e->last = &e->first;
    OARI_TRY(oari_nccl_load(&e->lib));
    if (with->env.split != NULL)
        OARI_TRY(open_split(e, with));
    else
        OARI_TRY(open_new(e, with));
    e->opened = 1;
    return OAR_OK;
}

/* ---- splitting ----------------------------------------------------------- */

/* NCCL splits in the order of its calls: what was posted before comes first. */
static oar_status split_engine(void *self, int colour, int key, void **made)
{
    oari_nccl_engine *e = self;
    int64_t deadline = oari_deadline(e->timeout_ms), since = 0;
    oari_nccl_comm *child;
    oar_status status;

    while (!oari_nccl_is_idle(e)) {
        OARI_TRY(oari_nccl_progress(e));
        if (oari_now_ns() > deadline)
            return oar_backend_fail(OAR_E_TIMEOUT,
                                    "operations before a split did not start "
                                    "in %lld ms",
                                    (long long)e->timeout_ms);
        oari_backoff(&since);
    }
    if (e->why != OAR_OK)
        return oar_backend_fail((oar_status)e->why,
                                "split of an aborted group");
    status = oari_nccl_comm_split(e, colour, key, &child);
    if (status == OAR_OK)
        *made = child;
    else
        oari_nccl_record_failure(e,
                                 status); /* and the communicator is unusable */
    return status;
}

static void drop_split(void *made)
{
    if (made == NULL)
        return;
    oari_nccl_comm_finalize(made);
    oari_nccl_comm_wait(made, oari_deadline(CLOSE_MS));
    oari_nccl_comm_release(made);
}

/* ---- ending -------------------------------------------------------------- */

static void abort_engine(void *self, oar_status why)
{
    oari_nccl_engine *e = self;
    int none = OAR_OK;

    if (atomic_compare_exchange_strong(&e->why, &none, (int)why) &&
        e->comm != NULL)
        oari_nccl_comm_abort(e->comm);
}

/* After a failure ncclCommFinalize would wait for peers that do not come. */
static void close_engine(void *self)
{
    oari_nccl_engine *e = self;

    if (e->comm == NULL)
        return;
    if (e->opened && e->failed == OAR_OK && oari_nccl_is_idle(e))
        oari_nccl_comm_finalize(e->comm);
    else
        oari_nccl_comm_abort(e->comm);
    oari_nccl_comm_wait(e->comm, oari_deadline(CLOSE_MS));
    oari_nccl_comm_release(e->comm);
    oari_nccl_end_all(e, OAR_E_ABORTED);
}

/* ---- the table ----------------------------------------------------------- */

const oari_backend oari_backend_nccl = {
    .ops.size = sizeof(oar_backend_ops),
    .ops.abi = OAR_BACKEND_ABI,
    .ops.name = "nccl",
    .ops.self_size = sizeof(oari_nccl_engine),
    .ops.probe = probe_nccl,
    .ops.close = close_engine,
    .ops.progress = oari_nccl_progress,
    .ops.abort = abort_engine,
    .ops.takes = oari_nccl_takes,
    .ops.batch = oari_nccl_batch,
    .ops.split = split_engine,
    .ops.drop = drop_split,
    .ops.post_count = OAR_COLL_COUNT,
    .ops.post = OARI_POST_ON_DEVICE(oari_nccl_post),
    .open = open_engine,
};
