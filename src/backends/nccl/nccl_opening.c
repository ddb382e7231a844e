/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_opening: how a communicator comes to be: of an id, or of another one.
 *
 * NCCL does both in threads of its own and is asked how far it has come, so
 * that our deadline holds whatever it waits for. */
#include "backends/nccl/nccl_engine.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/group/group.h"
#include "comm/fault/fault.h"

enum { LOOK_NS = 50 * 1000000, LOST_NS = 1000 * 1000000 };

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

int oari_nccl_lost(const oar_group *group, int rank, int ranks)
{
    if (group != NULL && group->board != NULL)
        group->board->ops->check(group->board->self);
    for (int r = 0; group != NULL && r < ranks; r++)
        if (r != rank && oari_group_gone(group, r))
            return r;
    return -1;
}

/* ---- waiting for NCCL ---------------------------------------------------- */

/* What is waited for, and for whom. */
typedef struct patience {
    const char *what;
    const oar_group *group;
    int rank, ranks;
    int64_t timeout_ms, deadline_ns;
    int64_t look_ns; /* when to look for ranks that are gone */
    int64_t lost_ns; /* since when one is; 0: none */
} patience;

static oar_status too_slow(const patience *p)
{
    return oar_backend_fail(
        OAR_E_TIMEOUT,
        "NCCL did not come back from %s in %lld ms, although every rank had "
        "come to it: NCCL_SOCKET_IFNAME says which network it may use, "
        "NCCL_DEBUG=INFO shows what it does",
        p->what, (long long)p->timeout_ms);
}

/* NCCL does not always see that a peer has died. One that is gone may only have
 * been faster, so there is a moment for NCCL to get done. */
static oar_status look_for_lost(patience *p)
{
    int64_t now = oari_now_ns();
    int lost;

    if (now < p->look_ns)
        return OAR_OK;
    p->look_ns = now + LOOK_NS;
    lost = oari_nccl_lost(p->group, p->rank, p->ranks);
    if (lost < 0 || p->lost_ns == 0)
        p->lost_ns = lost < 0 ? 0 : now;
    if (lost < 0 || now - p->lost_ns < LOST_NS)
        return OAR_OK;
    return oari_about(lost, oar_backend_fail(OAR_E_PEER,
                                             "rank %d was gone before NCCL had "
                                             "come back from %s",
                                             lost, p->what));
}

/* Waits until NCCL is ready for the next call, and says what it failed with. */
static oar_status settle(oari_nccl_comm *comm, patience *p)
{
    int64_t since = 0;
    int state;

    for (;;) {
        pthread_mutex_lock(&comm->use);
        state = comm->handle != NULL ? oari_nccl_comm_state(comm)
                                     : OARI_NCCL_INTERNAL;
        pthread_mutex_unlock(&comm->use);
        if (state != OARI_NCCL_IN_PROGRESS)
            return oari_nccl_check(comm->lib, state, NULL, p->what);
        if (oari_now_ns() > p->deadline_ns)
            return too_slow(p);
        OARI_TRY(look_for_lost(p));
        oari_backoff(&since);
    }
}

/* ---- of an id ------------------------------------------------------------ */

static oar_status start_joining(oari_nccl_comm *comm, const oari_open *with,
                                const oari_nccl_id *id)
{
    oari_nccl_config config = settings();
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(comm->device, &cu));
    result = comm->lib->CommInitRankConfig(&comm->handle, with->env.ranks, *id,
                                           with->env.rank, &config);
    oari_cuda_leave();
    return oari_nccl_check(comm->lib, result, NULL, "joining the communicator");
}

oar_status oari_nccl_join(oari_nccl_comm *comm, const oari_open *with,
                          const oari_nccl_id *id, int64_t deadline_ns)
{
    patience p = { .what = "making a communicator",
                   .group = with->group,
                   .rank = with->env.rank,
                   .ranks = with->env.ranks,
                   .timeout_ms = with->env.timeout_ms,
                   .deadline_ns = deadline_ns };

    OARI_TRY(start_joining(comm, with, id));
    return settle(comm, &p);
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
static oar_status finish_splitting(const oari_nccl_engine *e,
                                   oari_nccl_comm *child)
{
    patience p = { .what = "splitting the communicator",
                   .group = e->group,
                   .rank = e->rank,
                   .ranks = e->ranks,
                   .timeout_ms = e->timeout_ms,
                   .deadline_ns = oari_deadline(e->timeout_ms) };

    OARI_TRY(settle(e->comm, &p));
    return child->handle != NULL ? settle(child, &p) : OAR_OK;
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

oar_status oari_nccl_split_comm(const oari_nccl_engine *e, int colour, int key,
                                oari_nccl_comm **child)
{
    oari_nccl_comm *parent = e->comm, *made;
    oar_status status;

    OARI_TRY(oari_nccl_comm_create(parent->lib, parent->device, &made));
    made->has_fp8 = parent->has_fp8;
    status = start_splitting(parent, colour, key, made);
    if (status == OAR_OK)
        status = finish_splitting(e, made);
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
