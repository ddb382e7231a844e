/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_link.h: one line to a store's server. A request at a time; a lost
 * connection is made again and the request repeated under its old number. */
#ifndef OARI_STORE_STORE_LINK_H
#define OARI_STORE_STORE_LINK_H

#include "store/store_auth.h"
#include "store/store_wire.h"

typedef struct oari_store_link {
    const char *address; /* borrowed, as is what follows */
    const oari_trust *trust;
    oari_stream stream; /* fd -1: not connected */
    int welcome;        /* the server has proved itself, and let us in */
    int reached;        /* it has been, once */
    unsigned attempts;  /* to connect, since one succeeded */
    uint64_t id;        /* who this is to the server, whatever connection */
    uint64_t number;    /* of the last request */
    uint64_t dice;
    unsigned char *reply; /* the body of the last reply */
    struct oari_store_link *next;
} oari_store_link;

oar_status oari_link_create(const char *address, const oari_trust *trust,
                            oari_store_link **link);
void oari_link_destroy(oari_store_link *link);

/* Connects, trying again until the deadline, at least once. */
oar_status oari_link_connect(oari_store_link *link, int64_t deadline_ns);

/* How long a request may take. */
typedef struct oari_patience {
    int64_t reach_ms; /* to make a connection, and to make it again */
    int64_t reply_ns; /* when a reply must have come */
    int64_t park_ns;  /* 0, or the deadline that the server is to keep: what is
                         left of it goes into request->amount, and no more than
                         that, but a second, is spent on connections */
    int once;         /* a connection that fails is not made again */
} oari_patience;

/* Asks and gives the reply, which borrows from the link until the next request.
 * A reply that is a failure is one of this call. */
oar_status oari_link_ask(oari_store_link *link, oari_wire_message *request,
                         const oari_patience *patience,
                         oari_wire_message *reply);

/* ---- store_tcp.c --------------------------------------------------------- */

/* As oar_store_create_tcp, with a secret of one's own: it may be unknown, and
 * is only read. */
oar_status oari_store_join(const char *address, int64_t timeout_ms,
                           const oari_secret *secret, oar_store **store);

#endif
