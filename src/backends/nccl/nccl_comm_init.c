/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_comm_init: makes a communicator: from an id, or by a split of another.
 *
 * NCCL does both in threads of its own. Its state is polled, so that our
 * deadline holds whatever it waits for. */
#include "backends/nccl/nccl_engine.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/group/group.h"
#include "comm/fault/fault.h"

enum {
    CHECK_NS = 50 * 1000000,  /* between checks for ranks that are gone */
    LOST_NS = 1000 * 1000000, /* for NCCL to be done all the same */
    GIVE_UP_MS = 500          /* for the parent to end after a failure */
};

/* A child shares nothing with its parent: either may be destroyed first. */
static oari_nccl_config make_config(void)
{
    return (oari_nccl_config){ .size = sizeof(oari_nccl_config),
                               .magic = 0xcafebeef,
                               .version = OARI_NCCL_OLDEST,
                               .blocking = 0,
                               .cluster_size = OARI_NCCL_UNSET,
                               .min_blocks = OARI_NCCL_UNSET,
                               .max_blocks = OARI_NCCL_UNSET,
                               .net = NULL,
                               .split_share = 0,
                               .unused = OARI_NCCL_UNSET };
}

int oari_nccl_find_lost(const oar_group *group, int rank, int ranks)
{
    if (group != NULL && group->shm != NULL)
        group->shm->ops->check(group->shm->self);
    for (int r = 0; group != NULL && r < ranks; r++)
        if (r != rank && oari_group_gone(group, r))
            return r;
    return -1;
}

/* ---- waiting for NCCL ---------------------------------------------------- */

/* What NCCL is doing, and with which ranks. */
typedef struct wait_state {
    const char *what;
    const oar_group *group;
    int rank, ranks;
    int64_t timeout_ms, deadline_ns;
    int64_t check_ns; /* when to check for ranks that are gone */
    int64_t lost_ns;  /* since when one is; 0: none */
} wait_state;

/* NCCL does not always notice that a peer has died. A rank that is gone may
 * also have finished earlier, so NCCL gets a moment to finish here. */
static oar_status check_for_lost(wait_state *p)
{
    int64_t now = oari_now_ns();
    int lost;

    if (now < p->check_ns)
        return OAR_OK;
    p->check_ns = now + CHECK_NS;
    lost = oari_nccl_find_lost(p->group, p->rank, p->ranks);
    if (lost < 0 || p->lost_ns == 0)
        p->lost_ns = lost < 0 ? 0 : now;
    if (lost < 0 || now - p->lost_ns < LOST_NS)
        return OAR_OK;
    return oari_about(lost, oar_backend_fail(OAR_E_PEER,
                                             "rank %d was gone before NCCL had "
                                             "come back from %s",
                                             lost, p->what));
}

/* Waits until NCCL is ready for the next call, or has failed. */
static oar_status wait_until_ready(oari_nccl_comm *comm, wait_state *p)
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
            return oar_backend_fail(
                OAR_E_TIMEOUT,
                "NCCL did not return from %s in %lld ms, although every "
                "rank had called it: NCCL_SOCKET_IFNAME says which network it "
                "may use, NCCL_DEBUG=INFO shows what it does",
                p->what, (long long)p->timeout_ms);
        OARI_TRY(check_for_lost(p));
        oari_backoff(&since);
    }
}

/* ---- from an id ---------------------------------------------------------- */

oar_status oari_nccl_comm_init(oari_nccl_comm *comm, const oari_open *with,
                               const oari_nccl_id *id, int64_t deadline_ns)
{
    wait_state p = { .what = "making a communicator",
                     .group = with->group,
                     .rank = with->env.rank,
                     .ranks = with->env.ranks,
                     .timeout_ms = with->env.timeout_ms,
                     .deadline_ns = deadline_ns };
    oari_nccl_config config = make_config();
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(comm->device, &cu));
    result = comm->lib->CommInitRankConfig(&comm->handle, with->env.ranks, *id,
                                           with->env.rank, &config);
    oari_cuda_leave();
    OARI_TRY(
        oari_nccl_check(comm->lib, result, NULL, "joining the communicator"));
    return wait_until_ready(comm, &p);
}

/* ---- by a split ---------------------------------------------------------- */

/* NCCL writes the child's handle when the parent's state says so; then the
 * child has a state of its own. */
static oar_status split_comm(const oari_nccl_engine *e, int colour, int key,
                             oari_nccl_comm *child)
{
    wait_state p = { .what = "splitting the communicator",
                     .group = e->group,
                     .rank = e->rank,
                     .ranks = e->ranks,
                     .timeout_ms = e->timeout_ms,
                     .deadline_ns = oari_deadline(e->timeout_ms) };
    oari_nccl_config config = make_config();
    oari_nccl_comm *parent = e->comm;
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
    OARI_TRY(oari_nccl_check(parent->lib, result, NULL, p.what));
    OARI_TRY(wait_until_ready(parent, &p));
    return child->handle != NULL ? wait_until_ready(child, &p) : OAR_OK;
}

/* After a failure the parent does not match its peers any more, and NCCL may
 * yet write the child's handle: the child is released only after the parent's
 * end.
 */
oar_status oari_nccl_comm_split(const oari_nccl_engine *e, int colour, int key,
                                oari_nccl_comm **child)
{
    oari_nccl_comm *parent = e->comm, *made;
    oar_status status;

    OARI_TRY(oari_nccl_comm_create(parent->lib, parent->device, &made));
    made->has_fp8 = parent->has_fp8;
    status = split_comm(e, colour, key, made);
    if (status != OAR_OK) {
        oari_nccl_comm_abort(parent);
        if (oari_nccl_comm_wait(parent, oari_deadline(GIVE_UP_MS))) {
            oari_nccl_comm_abort(made);
            oari_nccl_comm_release(made);
        }
        return status;
    }
    if (made->handle == NULL) { /* of no part */
        oari_nccl_comm_release(made);
        made = NULL;
    }
    *child = made;
    return OAR_OK;
}
