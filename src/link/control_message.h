/* SPDX-License-Identifier: Apache-2.0 */
/* link/control_message.h: small messages of the library's own, all of one size,
 * with a tag of their own: sent without waiting, read as they come. For
 * backends that can look at messages (OAR_CAN_PROBE). Only the driver touches
 * them. */
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

/* by, self, tag and bytes are set by the owner. */
oar_status oari_letters_init(oari_letters *letters, int ranks);
/* When the backend has been closed. */
void oari_letters_clear(oari_letters *letters);

/* Sends a copy: 1. What cannot be sent is not said, and to who does not read
 * what is under way nothing more: 0. */
int oari_letters_send(oari_letters *letters, int to, const void *data);

/* The sender of the next that has come, read into data, which is the same at
 * every call; -1: none has. */
int oari_letters_next(oari_letters *letters, void *data);

#endif
