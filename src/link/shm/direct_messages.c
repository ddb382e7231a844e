/* SPDX-License-Identifier: Apache-2.0 */
/* direct_messages: small messages that go into a queue, or come out of it, in
 * one step, without a transfer and without the lists of the match. */
#include <string.h>

#include "link/shm/message_peer.h"

/* Returns whether an eager message of so many bytes may be sent. */
static int has_credit(const oari_shm_messages *m, message_peer *p, size_t bytes)
{
    oari_endpoint *e = &p->with;

    if (oari_match_has_credit(m->link.match, e->spent, e->back, bytes))
        return 1;
    e->back = oari_message_peer_credit(p);
    return oari_match_has_credit(m->link.match, e->spent, e->back, bytes);
}

int oari_shm_messages_push(oari_shm_messages *mail, int to, uint64_t tag,
                           const void *data, size_t bytes)
{
    message_peer *p = &mail->peer[to];
    oari_endpoint *e = &p->with;
    size_t all = bytes + 2 * (size_t)OARI_SHM_QUEUE_LINE;
    int fits = bytes <= OARI_SHM_QUEUE_INLINE;
    oari_header h = { .kind = OARI_HEADER_EAGER, .bytes = bytes, .tag = tag };

    if (mail->aborted != OAR_OK || p->sending != NULL ||
        e->queue.first != NULL || e->answers.count != 0 ||
        bytes > mail->eager_bytes || bytes > OARI_SHM_QUEUE_SHARE ||
        oari_shm_queue_room(&p->out, all) < all || !has_credit(mail, p, bytes))
        return 0;
    e->spent += oari_credit_cost(bytes);
    h.number = ++e->number;
    if (fits && bytes != 0)
        memcpy(h.word, data, bytes);
    else
        h.status = (uint32_t)bytes;
    oari_shm_queue_put(&p->out, &h, fits ? NULL : data, fits ? 0 : bytes, 1);
    oari_shm_notify(mail->shm, e->index);
    return 1;
}

int oari_shm_messages_take(oari_shm_messages *mail, int from,
                           const oari_direct_receive *receive, int looks)
{
    message_peer *p = &mail->peer[from];
    oari_match *match = mail->link.match;
    oari_header h;

    if (mail->aborted != OAR_OK || p->reading || p->copying.first != NULL ||
        oari_match_has_kept(match, p->with.rank) ||
        !oari_shm_queue_await(&p->in, looks, &h) ||
        h.kind != OARI_HEADER_EAGER || h.bytes != receive->bytes ||
        ((h.tag ^ receive->tag) & ~receive->any) != 0 ||
        !oari_shm_queue_is_whole(&h))
        return 0;
    oari_shm_queue_take(&p->in, &h, receive->data);
    oari_message_peer_show_credit(
        p, oari_match_count(match, p->with.rank, h.bytes));
    if (oari_shm_queue_tell_due(&p->in)) {
        oari_shm_queue_tell(&p->in);
        oari_shm_notify(mail->shm, p->with.index);
    }
    return 1;
}
