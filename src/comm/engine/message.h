/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/message.h: what a message says besides its bytes, and what is
 * checked when it has come. */
#ifndef OARI_COMM_ENGINE_MESSAGE_H
#define OARI_COMM_ENGINE_MESSAGE_H

#include "comm/comm.h"

/* Tags on the wire: a collective's number; or the user's with bit 63 set; or
 * the library's own with bit 62 set. A message of the user's also says its
 * dtype (8 bits, from bit 32, one more than that) and 21 bits of the number of
 * its operation, which receives leave open, where the backend can do that. */
enum { OARI_TAG_DTYPE = 32, OARI_TAG_SEQUENCE = 40 };
static const uint64_t oari_tag_says =
    ((UINT64_C(1) << 61) - 1) & ~(uint64_t)UINT32_MAX;

static inline uint64_t oari_message_tag(int64_t tag)
{
    return OARI_USER_TAG | (uint64_t)(tag >= 0 ? tag : 0);
}
static inline uint64_t oari_message_any(const oar_group *group, int64_t tag)
{
    return (tag >= 0 ? 0 : UINT32_MAX) |
           ((group->can & OAR_CAN_ANY) != 0 ? oari_tag_says : 0);
}

/* Fills in what a receive was to say of what came. */
void oari_message_came(const oar_work *work);

/* What a send adds to its tag. */
uint64_t oari_message_says(const oar_work *work);
/* The dtype of a message that has come, plus one; 0: it does not say. */
int oari_message_dtype(const oar_transfer *transfer);
/* OAR_OK, or OAR_E_DTYPE: the receive is done, and both sides said what it is
 * of, but not the same. */
oar_status oari_message_check(const oar_work *work);
/* Whether a message that is done may end. Of one that did not fit, the sender
 * is asked for its call, unless its recorder can be seen. */
int oari_message_settled(oar_work *work);
/* Writes the send that a recorder has, by what its tag says of its number; ""
 * if there is none. */
void oari_message_recall(const void *recorder, uint64_t tag, char *text,
                         size_t bytes);

#endif
