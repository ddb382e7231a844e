/* SPDX-License-Identifier: Apache-2.0 */
/* link/relay.h: full messages (any source, any tag, probe, synchronous, wrong
 * sizes told, memory bounded) for an engine that only moves chunks of known
 * size between two ranks, in order: the protocol of link/endpoint.h over MPI
 * and Gloo.
 *
 * Headers, with eager data behind them, go on lane 0. The data of an accepted
 * offer moves on another lane, from the sender's buffer into the receiver's.
 *
 * Only the driver touches this.
 */
#ifndef OARI_LINK_RELAY_H
#define OARI_LINK_RELAY_H

#include <oarsong/backend.h>

#include "base/plugin_export.h"

typedef struct oari_relay oari_relay;

/* A chunk under way. It stays where it is until done. */
typedef struct oari_parcel {
    int peer; /* a get may have -1, see `mixed`; the engine then sets it */
    uint32_t lane;
    void *data;
    size_t bytes;
    int done; /* set last, with status before it */
    oar_status status;
    void *scratch[4]; /* the engine's */
} oari_parcel;

/* How an engine moves chunks. Those of one pair and lane arrive in the order
 * put, in the gets in the order got. */
typedef struct oari_courier {
    /* Start moving a chunk. done may be set at once, or during the engine's own
     * progress. On lane 0 a get may be larger than what comes; on all other
     * lanes sizes agree. A failure ends the group. */
    oar_status (*put)(void *self, oari_parcel *parcel);
    oar_status (*get)(void *self, oari_parcel *parcel);
    /* Gives up a chunk that is not done. 1: nothing touches its data any more;
     * 0: that could not be had (memory of the library that the chunk names is
     * then never freed). (optional: the engine has stopped moving chunks before
     * it calls oari_relay_abort or oari_relay_destroy) */
    int (*drop)(void *self, oari_parcel *parcel);
    void *self;
    uint32_t lanes; /* lane numbers are below this; 2 at least */
    int mixed;      /* a get on lane 0 may have the peer -1: of any */
} oari_courier;

/* Copies the courier. Data up to eager_bytes goes behind headers: the same on
 * all ranks; every rank keeps such a buffer for every peer (mixed: one). */
OARI_FOR_PLUGINS oar_status oari_relay_create(const oari_courier *courier,
                                              int rank, int ranks,
                                              size_t eager_bytes,
                                              oari_relay **relay);

/* As in oar_backend_ops. A peek sees what the last progress brought. */
OARI_FOR_PLUGINS oar_status oari_relay_send(oari_relay *relay,
                                            oar_transfer *transfer);
OARI_FOR_PLUGINS oar_status oari_relay_recv(oari_relay *relay,
                                            oar_transfer *transfer);
OARI_FOR_PLUGINS int oari_relay_peek(oari_relay *relay, int peer, uint64_t tag,
                                     uint64_t any, oar_envelope *found);

/* Acts on chunks that are done. Called after the engine's own progress. */
OARI_FOR_PLUGINS oar_status oari_relay_progress(oari_relay *relay);

/* Returns whether nothing it was given waits for progress: an engine need not
 * look after chunks then, and may leave what comes where it is. A peek needs a
 * progress before it all the same. */
OARI_FOR_PLUGINS int oari_relay_idle(const oari_relay *relay);

/* Returns how many chunks are put and not done: what is lost if the engine ends
 * now. */
OARI_FOR_PLUGINS int oari_relay_leaving(const oari_relay *relay);

/* Ends every transfer and drops chunks with users' buffers. Idempotent. */
OARI_FOR_PLUGINS void oari_relay_abort(oari_relay *relay, oar_status why);
OARI_FOR_PLUGINS void oari_relay_destroy(oari_relay *relay); /* NULL is fine */

#endif
