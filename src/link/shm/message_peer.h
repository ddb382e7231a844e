/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/message_peer.h: what shm_messages.c and direct_messages.c share: the
 * state of messages with each peer. */
#ifndef OARI_LINK_SHM_MESSAGE_PEER_H
#define OARI_LINK_SHM_MESSAGE_PEER_H

#include "link/endpoint.h"
#include "link/shm/shm_messages.h"

typedef struct message_peer {
    oari_endpoint with; /* first: the transport is called with it */
    oari_shm_queue_out out;
    const _Atomic uint64_t *back; /* credit, as the peer shows it */
    _Atomic uint64_t *revoked;    /* offers to the peer that I took back */
    const oari_awaited *awaits;   /* what the peer waits for */
    int hasty;                    /* so many sends do not look for long */
    oar_transfer *sending;        /* its header is shown ... */
    size_t sent;                  /* ... and so much of its data */

    oari_shm_queue_in in;
    _Atomic uint64_t *shown_back;    /* credit, as I show it */
    oari_awaited *awaited;           /* what I wait for, as I show it */
    oari_transfer_list copying;      /* offers being copied */
    const _Atomic uint64_t *revokes; /* offers that the peer took back ... */
    uint64_t heard_revokes;          /* ... of which I have heard */
    int told_part;                   /* that some was read; not yet rung for */
    int reading;                     /* the data of a record */
    oari_header now;
    size_t got; /* bytes of it */
    oari_inbound inbound;
    oar_transfer *receive; /* of a DATA */
} message_peer;

struct oari_shm_messages {
    oari_shm *shm;
    oari_message_link link;
    size_t eager_bytes;
    oar_status aborted;
    int no_fetch;       /* other processes cannot be read */
    message_peer *peer; /* by rank in shared memory */
};

/* Returns whether the peer waits for this message, and can copy it out of a
 * segment. */
int oari_message_is_awaited(const oari_shm_messages *mail, message_peer *peer,
                            const oar_transfer *send);

/* Reads the credit that the peer has given back. */
static inline uint64_t oari_message_peer_credit(const message_peer *peer)
{
    return atomic_load_explicit(peer->back, memory_order_relaxed);
}

/* Shows the peer what it has been given back. It does not wait for credit:
 * without any its messages are offered. */
static inline void oari_message_peer_show_credit(const message_peer *peer,
                                                 uint64_t back)
{
    if (atomic_load_explicit(peer->shown_back, memory_order_relaxed) != back)
        atomic_store_explicit(peer->shown_back, back, memory_order_relaxed);
}

#endif
