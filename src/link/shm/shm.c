/* SPDX-License-Identifier: Apache-2.0 */
/* shm: links between processes of a host. Each rank's control page is a memfd
 * that the others map to read; its segments are mapped when they are first
 * used. */
#include "link/shm/shm.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/fork.h"
#include "base/status.h"
#include "device/segment.h"

oar_status shm_links_open(shm_links *n, const oari_open *with, int one_host,
                          char prefix[OAR_STORE_KEY_MAX])
{
    oari_board *b = &n->base.board;

    n->control_fd = n->event_fd = n->epoll_fd = n->listener = -1;
    b->wait_fd = -1;
    b->ops = &shm_board_ops;
    b->self = n;
    OARI_TRY(shm_find_peers(n, with, one_host, prefix));
    OARI_TRY(oari_board_ready(b, with->spin_us));
    return oari_boarded_open(&n->base, with->env.rank, with->env.ranks,
                             with->eager_bytes);
}

/* ---- leaving ------------------------------------------------------------- */

static void drop_peer(shm_links *n, int rank)
{
    oari_board *b = &n->base.board;
    shm_peer *p = &n->peer[rank];

    oari_fork_close(p->socket);
    oari_fork_close(p->pidfd);
    if (p->calling >= 0)
        close(p->calling);
    for (uint32_t i = 0; i < p->segments; i++)
        oari_segment_unmap(p->segment[i].base, p->segment[i].bytes);
    oari_free(p->segment);
    if (b->control != NULL)
        oari_segment_unmap(b->control[rank], b->layout.bytes);
    if (rank == b->rank)
        return;
    if (rank == 0)
        oari_segment_unmap(b->first, b->layout.bytes - b->layout.first);
    if (b->recorder != NULL)
        oari_recorder_unmap(b->recorder[rank]);
    if (b->event != NULL)
        oari_fork_close(b->event[rank]);
}

void shm_links_close(shm_links *n)
{
    oari_board *b = &n->base.board;

    oari_boarded_close(&n->base);
    if (b->control != NULL && b->control[b->rank] != NULL) {
        atomic_store(&b->control[b->rank]->closed, 1);
        for (int r = 0; r < b->ranks; r++)
            if (r != b->rank && b->control[r] != NULL)
                oari_board_notify(b, r);
    }
    shm_close_listener(n);
    for (int r = 0; n->peer != NULL && r < b->ranks; r++)
        drop_peer(n, r);
    oari_fork_close(n->control_fd);
    oari_fork_close(n->event_fd);
    oari_fork_close(n->epoll_fd);
    oari_free(n->peer);
    oari_free(n->host);
    oari_free(n->member);
    oari_board_clear(b);
}
