/* SPDX-License-Identifier: Apache-2.0 */
/* native: ranks as processes. Within a host they share memory: each rank's
 * control block is a memfd that the others map read-only, and its segments are
 * mapped as they come into use. Across hosts (TCP) is not there yet. */
#include "backends/native/native.h"

#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fork.h"
#include "base/status.h"
#include "device/segment.h"

static oar_status native_probe(oar_backend_caps *caps)
{
    caps->note = "ranks as processes, shared memory within a host";
    return OAR_OK;
}

static oar_status shm_probe(oar_backend_caps *caps)
{
    caps->note = "native, shared memory only";
    return OAR_OK;
}

static oar_status make_peers(native *n, const oar_backend_env *env)
{
    n->peer = oari_alloc((size_t)env->ranks, sizeof *n->peer);
    if (n->peer == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < env->ranks; r++)
        n->peer[r].socket = n->peer[r].pidfd = -1;
    return OAR_OK;
}

static oar_status native_open(void *self, const oar_backend_env *env)
{
    native *n = self;
    oari_board *b = &n->base.board;

    n->control_fd = n->event_fd = n->epoll_fd = -1;
    b->ops = &native_board_ops;
    b->self = n;
    b->rank = env->rank;
    b->ranks = env->ranks;
    OARI_TRY(make_peers(n, env));
    OARI_TRY(oari_board_init(b));
    OARI_TRY(native_meet(n, env));
    OARI_TRY(oari_board_ready(b, env->core->spin_us));
    return oari_boarded_open(&n->base);
}

/* ---- leaving
 * -------------------------------------------------------------------*/

static void say_goodbye(native *n)
{
    oari_board *b = &n->base.board;

    if (b->control == NULL || b->control[b->rank] == NULL)
        return;
    atomic_store(&b->control[b->rank]->closed, 1);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank && b->control[r] != NULL)
            oari_board_notify(b, r);
}

static void drop_peer(native *n, int rank)
{
    oari_board *b = &n->base.board;
    native_peer *p = &n->peer[rank];

    oari_fork_close(p->socket);
    oari_fork_close(p->pidfd);
    for (uint32_t i = 0; i < p->segments; i++)
        oari_segment_unmap(p->segment[i].base, p->segment[i].bytes);
    oari_free(p->segment);
    if (b->control != NULL)
        oari_segment_unmap(b->control[rank], b->layout.bytes);
    if (rank == b->rank)
        return;
    if (b->recorder != NULL && b->recorder[rank] != NULL) {
        void *base;
        memcpy(&base, &b->recorder[rank], sizeof base);
        oari_segment_unmap(base, oari_recorder_bytes());
    }
    if (b->event != NULL)
        oari_fork_close(b->event[rank]);
}

static void native_close(void *self)
{
    native *n = self;
    oari_board *b = &n->base.board;

    oari_boarded_close(&n->base);
    say_goodbye(n);
    for (int r = 0; n->peer != NULL && r < b->ranks; r++)
        drop_peer(n, r);
    oari_fork_close(n->control_fd);
    oari_fork_close(n->event_fd);
    oari_fork_close(n->epoll_fd);
    oari_free(n->peer);
    oari_board_clear(b);
}

extern const oar_backend_ops oari_backend_native, oari_backend_shm;
const oar_backend_ops oari_backend_native = {
    OARI_BOARDED_OPS,      .name = "native",    .self_size = sizeof(native),
    .probe = native_probe, .open = native_open, .close = native_close,
};
const oar_backend_ops oari_backend_shm = {
    OARI_BOARDED_OPS,   .name = "shm",       .self_size = sizeof(native),
    .probe = shm_probe, .open = native_open, .close = native_close,
};
