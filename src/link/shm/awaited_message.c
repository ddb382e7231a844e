/* SPDX-License-Identifier: Apache-2.0 */
/* awaited_message: a message that would be sent eagerly, but whose receiver
 * shows that it waits for it, is offered: then it is copied once. */
#include "link/shm/message_peer.h"

enum {
    LEAST_BYTES = 24 << 10, /* from which on a second copy costs more than to
                               find out whether the peer waits */
    LOOKS = 500,            /* so often, and once more for each ... */
    LOOK_BYTES = 128,       /* ... so many bytes: all in all less than the
                               second copy takes */
    HASTY_SENDS = 32 /* that look once, after one that found no receive */
};

/* Returns whether the peer has read all that was sent to it, and waits. A peer
 * that has just sent something, or taken a message, may be about to wait: it is
 * given a little time, unless it did not come the last time. */
static int has_come(const oari_shm *b, message_peer *p, size_t bytes)
{
    uint64_t at = p->out.at + 1;
    size_t looks =
        b->spin_ns != 0 && p->hasty == 0 ? LOOKS + bytes / LOOK_BYTES : 0;

    while (atomic_load_explicit(&p->awaits->at, memory_order_relaxed) != at)
        if (looks-- == 0) {
            p->hasty = p->hasty == 0 ? HASTY_SENDS : p->hasty - 1;
            return 0;
        }
    p->hasty = 0;
    return atomic_load_explicit(&p->awaits->at, memory_order_acquire) == at;
}

int oari_message_is_awaited(const oari_shm_messages *mail, message_peer *p,
                            const oar_transfer *t)
{
    const oari_shm *b = mail->shm;
    const oari_awaited *a = p->awaits;
    uint64_t at = p->out.at + 1, tag, any, bytes;

    if (t->bytes < LEAST_BYTES || t->bytes > mail->eager_bytes ||
        p->sending != NULL || p->with.queue.first != NULL ||
        b->ops->place(b->self, t->data, t->bytes) == 0 ||
        !has_come(b, p, t->bytes))
        return 0;
    tag = atomic_load_explicit(&a->tag, memory_order_acquire);
    any = atomic_load_explicit(&a->any, memory_order_acquire);
    bytes = atomic_load_explicit(&a->bytes, memory_order_acquire);
    return atomic_load_explicit(&a->at, memory_order_relaxed) == at &&
           bytes == t->bytes && ((tag ^ t->tag) & ~any) == 0;
}

void oari_shm_messages_await(oari_shm_messages *mail, int from,
                             const oar_transfer *receive)
{
    const message_peer *p = &mail->peer[from];
    oari_awaited *a = p->awaited;

    if (receive->done || receive->at_most || p->reading ||
        receive->bytes < LEAST_BYTES || receive->bytes > mail->eager_bytes)
        return;
    atomic_store_explicit(&a->at, 0, memory_order_relaxed);
    atomic_store_explicit(&a->tag, receive->tag, memory_order_release);
    atomic_store_explicit(&a->any, receive->any, memory_order_release);
    atomic_store_explicit(&a->bytes, receive->bytes, memory_order_release);
    atomic_store_explicit(&a->at, p->in.at + 1, memory_order_release);
}
