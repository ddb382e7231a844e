/* SPDX-License-Identifier: Apache-2.0 */
/* link/control_message.h: small messages of the library to itself, all of one
 * size, with a tag of their own: sent without waiting, and read as they arrive.
 * For backends that can probe (OAR_CAN_PROBE). Only the driver uses them. */
#ifndef OARI_LINK_CONTROL_MESSAGE_H
#define OARI_LINK_CONTROL_MESSAGE_H

#include <oarsong/backend.h>

typedef struct oari_letters {
    const oar_backend_ops *by;
    void *self;
    uint64_t tag;
    size_t bytes;
    struct oari_letter *under_way;
    int *count; /* by rank: how many of them */
    oar_transfer taking;
    int takes;
} oari_letters;

/* The owner sets by, self, tag and bytes. */
oar_status oari_letters_init(oari_letters *messages, int ranks);
/* Frees all, after the backend has been closed. */
void oari_letters_clear(oari_letters *messages);

/* Sends a copy: 1. Returns 0 if it cannot be sent, or if the rank has not read
 * several before it. */
int oari_letters_send(oari_letters *messages, int to, const void *data);

/* Reads the next message into data, which must be the same at every call.
 * Returns its sender; -1: none has arrived. */
int oari_letters_next(oari_letters *messages, void *data);

#endif
