/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/message.h: what a message says besides its bytes, and what is
 * checked when it has come. */
#ifndef OARI_COMM_ENGINE_MESSAGE_H
#define OARI_COMM_ENGINE_MESSAGE_H

#include "comm/comm.h"

/* A tag on the wire is a collective's number; or the user's tag with bit 63
 * set; or one of the library's own with bit 62 set. Where the backend can
 * receive with some bits of the tag left open, a message of the user's also
 * says its dtype (8 bits from bit 32: the dtype plus one) and the low 21 bits
 * of its operation's number (from bit 40). */
enum { OARI_TAG_DTYPE = 32, OARI_TAG_SEQUENCE = 40 };
static const uint64_t oari_tag_says =
    ((UINT64_C(1) << 61) - 1) & ~(uint64_t)UINT32_MAX;

static const uint64_t oari_tag_sequence_mask =
    (UINT64_C(1) << (61 - OARI_TAG_SEQUENCE)) - 1;

static inline uint64_t oari_message_tag(int64_t tag)
{
    return OARI_USER_TAG | (uint64_t)(tag >= 0 ? tag : 0);
}
static inline uint64_t oari_message_any(const oar_group *group, int64_t tag)
{
    return (tag >= 0 ? 0 : UINT32_MAX) |
           ((group->can & OAR_CAN_ANY) != 0 ? oari_tag_says : 0);
}

/* Fills in the oar_message of a receive that has come, if it has one. */
void oari_message_came(const oar_work *work);

/* Returns the bits that a send with that number adds to its tag. */
static inline uint64_t oari_message_says(const oar_group *group,
                                         oar_dtype dtype, uint64_t sequence)
{
    if ((group->can & OAR_CAN_ANY) == 0)
        return 0;
    return (uint64_t)(dtype + 1) << OARI_TAG_DTYPE |
           (sequence & oari_tag_sequence_mask) << OARI_TAG_SEQUENCE;
}
/* Returns the dtype of a message that has come, plus one; 0: it does not say.
 */
int oari_message_dtype(const oar_transfer *transfer);
/* Returns the status of a message that is done: OAR_E_DTYPE if both sides said
 * their dtypes and these differ. */
oar_status oari_message_check(const oar_work *work);
/* Returns whether a message that is done may end. If it did not fit, its sender
 * is first asked for its call, unless its recorder is mapped here. */
int oari_message_settled(oar_work *work);
/* Writes the send that a recorder has for the number in a tag; "" if it has
 * none. */
void oari_message_recall(const void *recorder, uint64_t tag, char *text,
                         size_t bytes);

#endif
