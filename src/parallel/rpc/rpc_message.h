/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_message.h: what a message is made of, for the files of this
 * folder. */
#ifndef OARI_PARALLEL_RPC_RPC_MESSAGE_H
#define OARI_PARALLEL_RPC_RPC_MESSAGE_H

#include <oarsong/rpc.h>
#include <oarsong/window.h>

#include "base/vec.h"
#include "parallel/rpc/rpc_wire.h"

enum { OARI_RPC_SMALL = 192 }; /* bytes of values that need no memory */

/* An array too large to lie among the values. */
typedef struct oari_rpc_attached {
    void *data;
    size_t bytes;
    int mapped;           /* it lies in a window; if received: to read only */
    oar_storage *storage; /* what the memory belongs to, if it was received */
    void (*drop)(void *arg); /* else NULL, or called when it is done with */
    void *arg;
} oari_rpc_attached;

struct oar_rpc_message {
    unsigned char *values; /* aligned to OARI_RPC_ALIGN */
    size_t bytes, capacity;
    OARI_VEC(oari_rpc_attached) arrays;
    size_t array_bytes;
    OARI_VEC(oar_window *) windows; /* in which arrays may lie */
    size_t mapped_bytes;            /* of array_bytes, those that do */
    OARI_VEC(oar_rref *) refs;      /* in order; a handle each */
    int received;                   /* 1: it cannot be written to */
    size_t at;                      /* the next value to read */
    int64_t read;                   /* values before it */
    int64_t next_array;             /* attached arrays before it */
    int64_t next_ref;               /* references before it */
    /* where the values lie at first */
    _Alignas(OARI_RPC_ALIGN) unsigned char inside[OARI_RPC_SMALL];
};

/* Makes a message to receive into: room for values and arrays of those sizes,
 * not yet filled. The sizes were checked against a limit before. An array whose
 * place in data is not NULL goes there, which is borrowed; data may be NULL. */
oar_status oari_rpc_message_receive(size_t value_bytes, uint32_t arrays,
                                    const uint64_t *array_bytes,
                                    void *const *data,
                                    oar_rpc_message **message);

/* Checks what was received into it, after which it may be read. */
oar_status oari_rpc_message_check(const oar_rpc_message *message);

/* Makes a copy that shares nothing, as another rank would receive it. NULL: an
 * empty one. */
oar_status oari_rpc_message_copy(const oar_rpc_message *from,
                                 oar_rpc_message **message);

/* Appends the value of a reference; the caller adds its handle to refs. */
oar_status oari_rpc_message_put_ref(oar_rpc_message *message, int owner,
                                    uint64_t id);

/* Reads the next value, a reference, and goes past it: *index says which of
 * refs it is. */
oar_status oari_rpc_message_get_ref(oar_rpc_message *message, int64_t *index);

/* rpc_ref.c: one handle more, and one less. Neither takes the agent's lock. */
oar_rref *oari_rref_add_handle(oar_rref *rref);
void oari_rref_drop_handle(oar_rref *rref);

#endif
