/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_client.h: one client of a store's server. It has one request at a
 * time. When its connection is lost it connects again, and repeats the request
 * under the old number. */
#ifndef OARI_STORE_STORE_CLIENT_H
#define OARI_STORE_STORE_CLIENT_H

#include "store/store_auth.h"
#include "store/store_wire.h"

typedef struct oari_store_client {
    const char *address;     /* borrowed */
    const oari_trust *trust; /* borrowed */
    oari_stream stream;      /* fd -1: not connected */
    int welcome;             /* the handshake of this connection is done */
    int reached;             /* a handshake was done, at some time */
    unsigned attempts;       /* to connect, since one succeeded */
    uint64_t id;             /* of this client, on all its connections */
    uint64_t number;         /* of the last request */
    uint64_t dice;           /* state of a random number generator */
    unsigned char *reply;    /* the body of the last reply */
    struct oari_store_client *next;
} oari_store_client;

oar_status oari_store_client_create(const char *address,
                                    const oari_trust *trust,
                                    oari_store_client **link);
void oari_store_client_destroy(oari_store_client *link);

/* Connects: tries at least once, and again until the deadline. */
oar_status oari_store_client_connect(oari_store_client *link,
                                     int64_t deadline_ns);

/* How long the parts of a request may take. */
typedef struct oari_request_limits {
    int64_t reach_ms; /* to connect, and to connect again */
    int64_t reply_ns; /* deadline of the reply */
    int64_t park_ns;  /* 0, or the deadline until which the server waits for a
                         key: request->amount is set to what is left of it, and
                         connecting may take no longer, but may take a second */
    int once;         /* a lost connection is not made again */
} oari_request_limits;

/* Sends a request and gives the reply, which borrows from the link until the
 * next request. Fails with the reply's failure if that is one. */
oar_status oari_store_client_ask(oari_store_client *link,
                                 oari_wire_message *request,
                                 const oari_request_limits *patience,
                                 oari_wire_message *reply);

/* ---- store_tcp.c --------------------------------------------------------- */

/* Connects as oar_store_create_tcp does, with this secret, which may be unknown
 * and is only read. */
oar_status oari_store_connect(const char *address, int64_t timeout_ms,
                              const oari_secret *secret, oar_store **store);

#endif
