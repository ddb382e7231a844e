/* SPDX-License-Identifier: Apache-2.0 */
/* link/control_message.h: small messages of the library to itself, all of one
 * size, with a tag of their own: sent without waiting, and read as they arrive.
 * For backends that can probe (OAR_CAN_PROBE). Only the driver uses them. */
#ifndef OARI_LINK_CONTROL_MESSAGE_H
#define OARI_LINK_CONTROL_MESSAGE_H

#include <oarsong/backend.h>

typedef struct oari_control_messages {
    const oar_backend_ops *by;
    void *self;
    uint64_t tag;
    size_t bytes;
    struct oari_control_message *under_way;
    int *count; /* by rank: how many of them */
    oar_transfer taking;
    int takes;
} oari_control_messages;

/* The owner sets by, self, tag and bytes. */
oar_status oari_control_messages_init(oari_control_messages *messages,
                                      int ranks);
/* Frees all, after the backend has been closed. */
void oari_control_messages_clear(oari_control_messages *messages);

/* Sends a copy: 1. Returns 0 if it cannot be sent, or if the rank has not read
 * several before it. */
int oari_control_messages_send(oari_control_messages *messages, int to,
                               const void *data);

/* Reads the next message into data, which must be the same at every call.
 * Returns its sender; -1: none has arrived. */
int oari_control_messages_next(oari_control_messages *messages, void *data);

#endif
