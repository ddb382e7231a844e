/* SPDX-License-Identifier: Apache-2.0 */
/* opening: how a communicator comes to be: of an id, or of another one.
 *
 * NCCL does both in threads of its own and is asked how far it has come, so
 * that our deadline holds whatever it waits for. */
#include "backends/nccl/engine.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

/* A communicator that shares nothing with the one that it is cut from: either
 * may go first. */
static oari_nccl_config settings(void)
{
    return (oari_nccl_config){ .size = sizeof(oari_nccl_config),
                               .magic = 0xcafebeef,
                               .version = OARI_NCCL_FLOOR,
                               .blocking = 0,
                               .cluster_size = OARI_NCCL_UNSET,
                               .min_blocks = OARI_NCCL_UNSET,
                               .max_blocks = OARI_NCCL_UNSET,
                               .net = NULL,
                               .split_share = 0,
                               .unused = OARI_NCCL_UNSET };
}

/* Waits until NCCL is ready for the next call. A failure that came meanwhile
 * is in *state. OAR_E_TIMEOUT without a text. */
static oar_status settle(oari_nccl_comm *comm, int64_t deadline_ns, int *state)
{
    int64_t since = 0;

    for (;;) {
        pthread_mutex_lock(&comm->use);
        *state = comm->handle != NULL ? oari_nccl_comm_state(comm)
                                      : OARI_NCCL_INTERNAL;
        pthread_mutex_unlock(&comm->use);
        if (*state != OARI_NCCL_IN_PROGRESS)
            return OAR_OK;
        if (oari_now_ns() > deadline_ns)
            return OAR_E_TIMEOUT;
        oari_rest(&since);
    }
}

static oar_status too_slow(const char *what, int64_t timeout_ms)
{
    return oar_backend_fail(
        OAR_E_TIMEOUT,
        "NCCL did not come back from %s in %lld ms, although every rank had "
        "come to it: NCCL_SOCKET_IFNAME says which network it may use, "
        "NCCL_DEBUG=INFO shows what it does",
        what, (long long)timeout_ms);
}

/* ---- of an id ------------------------------------------------------------ */

static oar_status start_joining(oari_nccl_comm *comm,
                                const oar_backend_env *env,
                                const oari_nccl_id *id)
{
    oari_nccl_config config = settings();
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(comm->device, &cu));
    result = comm->lib->CommInitRankConfig(&comm->handle, env->ranks, *id,
                                           env->rank, &config);
    oari_cuda_leave();
    return oari_nccl_check(comm->lib, result, NULL, "joining the communicator");
}

oar_status oari_nccl_join(oari_nccl_comm *comm, const oar_backend_env *env,
                          const oari_nccl_id *id, int64_t deadline_ns)
{
    int state;

    OARI_TRY(start_joining(comm, env, id));
    if (settle(comm, deadline_ns, &state) != OAR_OK)
        return too_slow("making a communicator", env->timeout_ms);
    return oari_nccl_check(comm->lib, state, comm->handle,
                           "making a communicator");
}

/* ---- of another ---------------------------------------------------------- */

static oar_status start_splitting(oari_nccl_comm *parent, int colour, int key,
                                  oari_nccl_comm *child)
{
    oari_nccl_config config = settings();
    const oari_cuda *cu;
    int result = OARI_NCCL_INTERNAL;

    OARI_TRY(oari_cuda_enter(parent->device, &cu));
    pthread_mutex_lock(&parent->use);
    if (parent->handle != NULL)
        result =
            parent->lib->CommSplit(parent->handle, colour < 0 ? -1 : colour,
                                   key, &child->handle, &config);
    pthread_mutex_unlock(&parent->use);
    oari_cuda_leave();
    return oari_nccl_check(parent->lib, result, NULL,
                           "splitting the communicator");
}

/* NCCL writes the child's handle when the parent's state says so; then the
 * child has a state of its own. */
static oar_status finish_splitting(oari_nccl_comm *parent,
                                   oari_nccl_comm *child, int64_t deadline_ns,
                                   int64_t timeout_ms)
{
    static const char what[] = "splitting the communicator";
    int state;

    if (settle(parent, deadline_ns, &state) != OAR_OK)
        return too_slow(what, timeout_ms);
    OARI_TRY(oari_nccl_check(parent->lib, state, NULL, what));
    if (child->handle == NULL)
        return OAR_OK;
    if (settle(child, deadline_ns, &state) != OAR_OK)
        return too_slow(what, timeout_ms);
    return oari_nccl_check(child->lib, state, child->handle, what);
}

/* After a failure the parent is at odds with its peers, and NCCL may still be
 * about to write the child's handle: the child is let go only behind the
 * parent's end. */
static void give_up(oari_nccl_comm *parent, oari_nccl_comm *child)
{
    oari_nccl_comm_abort(parent);
    if (!oari_nccl_comm_wait(parent, oari_deadline(500)))
        return;
    oari_nccl_comm_abort(child);
    oari_nccl_comm_release(child);
}

oar_status oari_nccl_split_comm(oari_nccl_comm *parent, int colour, int key,
                                int64_t timeout_ms, oari_nccl_comm **child)
{
    oari_nccl_comm *made;
    oar_status status;

    OARI_TRY(oari_nccl_comm_create(parent->lib, parent->device, &made));
    made->has_fp8 = parent->has_fp8;
    status = start_splitting(parent, colour, key, made);
    if (status == OAR_OK)
        status = finish_splitting(parent, made, oari_deadline(timeout_ms),
                                  timeout_ms);
    if (status != OAR_OK) {
        give_up(parent, made);
        return status;
    }
    if (made->handle == NULL) { /* no part of any */
        oari_nccl_comm_release(made);
        made = NULL;
    }
    *child = made;
    return OAR_OK;
}
