/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_transport: moves blocks for link/chunk_link.h by Gloo's send and recv.
 */
#include <stdlib.h>

#include "backends/gloo/gloo.h"
#include "base/status.h"

/* A receive of a header may fail without a fault: the peer may send one at any
 * time or never, and its connection may end first. */
static oar_status start_block(gloo *g, oari_chunk *p, int sends)
{
    gloo_block *block = calloc(1, sizeof *block);
    gloo_mesh *mesh = g->threads->mesh;
    int kind = sends ? GLOO_SENDS : p->lane == 0 ? GLOO_HEADERS : GLOO_DATA;
    oar_status status = OAR_OK;
    sigset_t before;

    if (block == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    block->chunk = p;
    block->may_fail = kind == GLOO_HEADERS;
    gloo_signal_block(&before);
    block->request = gloo_mesh_start(mesh, sends, p->peer, p->lane, p->data,
                                     p->bytes, block->why);
    gloo_signal_restore(&before);
    if (block->request == NULL) {
        if (!block->may_fail)
            status = oar_backend_fail(OAR_E_CLOSED, "gloo: %s", block->why);
        free(block);
        return status;
    }
    p->scratch[0] = block;
    return gloo_waiter_post(g->threads, p->peer, kind, block);
}

static oar_status put_block(void *self, oari_chunk *chunk)
{
    return start_block(self, chunk, 1);
}

static oar_status get_block(void *self, oari_chunk *chunk)
{
    return start_block(self, chunk, 0);
}

/* Gloo may use the data until the connections have ended. */
static int drop_block(void *self, oari_chunk *chunk)
{
    gloo *g = self;
    gloo_block *block = chunk->scratch[0];
    int over;

    pthread_mutex_lock(&g->threads->lock);
    over = g->threads->disconnected || g->threads->closed;
    if (block != NULL)
        block->chunk = NULL;
    pthread_mutex_unlock(&g->threads->lock);
    chunk->scratch[0] = NULL;
    return over;
}

oari_chunk_transport gloo_transport(gloo *g)
{
    return (oari_chunk_transport){ .put = put_block,
                                   .get = get_block,
                                   .drop = drop_block,
                                   .self = g,
                                   .lanes = 1u << 20 };
}
