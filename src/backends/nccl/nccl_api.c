/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_api: <oarsong/nccl.h>: for programs that use NCCL themselves. */
#include <stdlib.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/nccl.h>

#include "backends/backends.h"
#include "backends/nccl/nccl_engine.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/group/group.h"
#include "comm/fault/fault.h"
#include "comm/engine/gpu_events.h"

_Static_assert(OAR_NCCL_ID_BYTES == sizeof(oari_nccl_id), "an id of NCCL's");

/* ---- the library --------------------------------------------------------- */

oar_status oar_nccl_available(void)
{
    const oari_nccl *lib;

    OARI_TRY(oari_nccl_load(&lib));
    return oar_device_available(OAR_CUDA);
}

oar_status oar_nccl_version(int *version)
{
    const oari_nccl *lib;

    if (version == NULL)
        return oari_fail(OAR_E_ARG, "nccl_version without a place for it");
    OARI_TRY(oari_nccl_load(&lib));
    *version = lib->version;
    return OAR_OK;
}

oar_status oar_nccl_unique_id(unsigned char id[128])
{
    const oari_nccl *lib;
    oari_nccl_id made;

    if (id == NULL)
        return oari_fail(OAR_E_ARG, "nccl_unique_id without a place for it");
    OARI_TRY(oari_nccl_load(&lib));
    OARI_TRY(oari_nccl_check(lib, lib->GetUniqueId(&made), NULL,
                             "making a unique id"));
    memcpy(id, made.bytes, sizeof made);
    return OAR_OK;
}

oar_status oar_nccl_op(oar_reduce_op_kind op, oar_dtype dtype, int *number)
{
    int found = oari_nccl_operator(op, dtype);

    if (number == NULL)
        return oari_fail(OAR_E_ARG, "nccl_op without a place for it");
    if (op == OAR_REDUCE_OP_PREMUL_SUM)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "premul_sum has no number of its own: NCCL makes one "
                         "for each factor (ncclRedOpCreatePreMulSum)");
    if (found < 0)
        return oari_fail(OAR_E_UNSUPPORTED, "NCCL has no %s on %s",
                         oar_reduce_op_name(op), oar_dtype_name(dtype));
    *number = found;
    return OAR_OK;
}

oar_status oar_nccl_dtype(oar_dtype dtype, int *number)
{
    int found = oari_nccl_type(dtype);

    if (number == NULL)
        return oari_fail(OAR_E_ARG, "nccl_dtype without a place for it");
    if (found < 0)
        return oari_fail(OAR_E_UNSUPPORTED, "NCCL has no %s",
                         oar_dtype_name(dtype));
    *number = found;
    return OAR_OK;
}

/* ---- making groups ------------------------------------------------------- */

static oar_status create_group(const char *backend, int rank, int size,
                               const char *address, const void *id,
                               const oar_group_opts *opts, oar_group **group)
{
    oar_group_opts o;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    o.size = sizeof o;
    if (o.backend == NULL)
        o.backend = backend;
    if (id != NULL)
        o.nccl_id = id;
    if (size == 1 && address == NULL)
        return oar_group_create(NULL, rank, size, &o, group);
    return oar_group_create_tcp(address, rank, size, &o, group);
}

oar_status oar_nccl_create(int rank, int size, const char *address,
                           const void *id, const oar_group_opts *opts,
                           oar_group **group)
{
    return create_group("nccl", rank, size, address, id, opts, group);
}

oar_status oar_hybrid_create(int rank, int size, const char *address,
                             const void *id, const oar_group_opts *opts,
                             oar_group **group)
{
    return create_group("hybrid", rank, size, address, id, opts, group);
}

/* ---- looking into groups ------------------------------------------------- */

static oari_nccl_engine *engine_of(const oar_group *group)
{
    return group != NULL ? oari_group_gpu(group, &oari_backend_nccl.ops) : NULL;
}

void *oar_nccl_communicator(const oar_group *group)
{
    oari_nccl_engine *e = engine_of(group);
    void *handle;

    if (e == NULL)
        return NULL;
    pthread_mutex_lock(&e->comm->use);
    handle = e->comm->handle;
    pthread_mutex_unlock(&e->comm->use);
    return handle;
}

void *oar_nccl_stream(const oar_group *group)
{
    const oari_nccl_engine *e = engine_of(group);

    return e != NULL ? e->comm->stream : NULL;
}

/* ---- waiting ------------------------------------------------------------- */

/* Whether everything that was posted is done, and the stream is empty: the
 * user, who can get the communicator, may have used it as well. */
static oar_status test_done(oar_group *group, const oari_nccl_engine *e,
                            int *done)
{
    const oar_work *work;
    int busy;

    oari_engine_hold(group);
    pthread_mutex_lock(&group->engine.lock);
    for (work = group->engine.first; work != NULL && work->call.gpu == NULL;)
        work = work->next;
    pthread_mutex_unlock(&group->engine.lock);
    busy = group->engine.on_gpu != 0 || work != NULL;
    oari_engine_let_go(group);
    OARI_TRY(oari_group_check(group));
    *done = 0;
    return busy ? OAR_OK
                : oar_stream_query(oar_device_of(OAR_CUDA, e->device),
                                   e->comm->stream, done);
}

oar_status oar_nccl_synchronize(oar_group *group)
{
    oari_nccl_engine *e = engine_of(group);
    int64_t since = 0, deadline;
    int done = 0;

    if (e == NULL)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "nccl_synchronize on a group without NCCL");
    deadline = oari_deadline(group->timeout_ms);
    for (;;) {
        OARI_TRY(test_done(group, e, &done));
        if (done)
            return OAR_OK;
        if (oari_now_ns() > deadline)
            return oari_fail(OAR_E_TIMEOUT,
                             "what was posted on the GPU of group \"%s\" has "
                             "not run after %lld ms",
                             group->name, (long long)group->timeout_ms);
        oari_backoff(&since);
    }
}
