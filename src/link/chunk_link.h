/* SPDX-License-Identifier: Apache-2.0 */
/* link/chunk_link.h: full messages (any source, any tag, probe, synchronous,
 * wrong sizes told, memory bounded) for an engine that only moves blocks of
 * known size between two ranks, in order.
 *
 * A message is a header on lane 0, with its data in it if that is small. Of a
 * larger one, or a synchronous one, or one for which there is no credit, the
 * header is an offer; when there is a receive (match.h) its rank answers with
 * a header that says go, and the data moves on a lane of its own, from the
 * sender's buffer into the receiver's. Headers of a pair come in order, so
 * messages do.
 *
 * Only the driver touches this.
 */
#ifndef OARI_LINK_CHUNK_LINK_H
#define OARI_LINK_CHUNK_LINK_H

#include <oarsong/backend.h>

#include "base/plugin_export.h"

typedef struct oari_chunk_link oari_chunk_link;

/* A block under way. The link keeps it at its address until it is done. */
typedef struct oari_chunk {
    int peer; /* a get may have -1, see `mixed`; the transport then sets it */
    uint32_t lane;
    void *data;
    size_t bytes;
    int done; /* set last, with status before it */
    oar_status status;
    void *scratch[4]; /* the transport's */
} oari_chunk;

/* Moves blocks. Those of one pair and lane arrive in the order of their puts,
 * and fill the gets in the order of those. */
typedef struct oari_chunk_transport {
    /* Start moving a block. done may be set at once, or during the engine's own
     * progress. On lane 0 a get may be larger than what comes; on all other
     * lanes sizes agree. A failure ends the group. */
    oar_status (*put)(void *self, oari_chunk *chunk);
    oar_status (*get)(void *self, oari_chunk *chunk);
    /* Gives up a block that is not done. 1: nothing touches its data any more;
     * 0: the transport cannot let go, and the link never frees the memory that
     * the block names. (optional: the engine has stopped moving blocks before
     * the link is aborted or destroyed) */
    int (*drop)(void *self, oari_chunk *chunk);
    void *self;
    uint32_t lanes; /* lane numbers are below this; 2 at least */
    int mixed;      /* a get on lane 0 may have the peer -1: of any */
} oari_chunk_transport;

/* Copies the transport. Data up to eager_bytes goes in headers: the same on all
 * ranks; every rank keeps such a buffer for every peer (mixed: one). */
OARI_FOR_PLUGINS oar_status
oari_chunk_link_create(const oari_chunk_transport *transport, int rank,
                       int ranks, size_t eager_bytes, oari_chunk_link **link);

/* As in oar_backend_ops. A peek sees what the last progress brought. */
OARI_FOR_PLUGINS oar_status oari_chunk_link_send(oari_chunk_link *link,
                                                 oar_transfer *transfer);
OARI_FOR_PLUGINS oar_status oari_chunk_link_recv(oari_chunk_link *link,
                                                 oar_transfer *transfer);
OARI_FOR_PLUGINS int oari_chunk_link_peek(oari_chunk_link *link, int peer,
                                          uint64_t tag, uint64_t any,
                                          oar_envelope *found);

/* Looks for chunks that are done. To be called after the engine's own
 * progress. */
OARI_FOR_PLUGINS oar_status oari_chunk_link_progress(oari_chunk_link *link);

/* Returns whether no transfer waits for progress: the engine need not be
 * polled then. A peek needs a progress before it all the same. */
OARI_FOR_PLUGINS int oari_chunk_link_idle(const oari_chunk_link *link);

/* Returns how many puts are not done: they are lost if the engine ends now. */
OARI_FOR_PLUGINS int oari_chunk_link_leaving(const oari_chunk_link *link);

/* Ends every transfer; chunks with users' buffers are dropped. Idempotent. */
OARI_FOR_PLUGINS void oari_chunk_link_abort(oari_chunk_link *link,
                                            oar_status why);
OARI_FOR_PLUGINS void
oari_chunk_link_destroy(oari_chunk_link *link); /* NULL is fine */

#endif
