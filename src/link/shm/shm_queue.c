/* SPDX-License-Identifier: Apache-2.0 */
/* mail_ring: see shm_queue.h. */
#include "link/shm/shm_queue.h"

#include <string.h>

_Static_assert(sizeof(uint64_t) + sizeof(oari_header) == OARI_SHM_QUEUE_LINE,
               "one cache line");

static uint64_t stamp_of(uint64_t key, uint64_t at)
{
    return key ^ (at + 1) * 0x9e3779b97f4a7c15u;
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + OARI_SHM_QUEUE_LINE - 1) &
           ~(uint64_t)(OARI_SHM_QUEUE_LINE - 1);
}

/* ---- out ----------------------------------------------------------------- */

size_t oari_shm_queue_room(oari_shm_queue_out *out, size_t wanted)
{
    size_t room = out->bytes - (size_t)(out->at - out->known);

    if (room >= wanted)
        return room;
    out->known = atomic_load_explicit(out->taken, memory_order_acquire);
    return out->bytes - (size_t)(out->at - out->known);
}

static void copy_out(const oari_shm_queue_out *out, uint64_t at,
                     const void *from, size_t bytes)
{
    size_t first = at & (out->bytes - 1), part = out->bytes - first;

    if (part > bytes)
        part = bytes;
    memcpy(out->ring + first, from, part);
    if (bytes > part)
        memcpy(out->ring, (const unsigned char *)from + part, bytes - part);
}

void oari_shm_queue_put(oari_shm_queue_out *out, const oari_header *h,
                        const void *data, size_t bytes, int last)
{
    uint64_t at = out->at;
    unsigned char *line = out->ring + (at & (out->bytes - 1));

    if (bytes != 0)
        copy_out(out, at + OARI_SHM_QUEUE_LINE, data, bytes);
    memcpy(line + sizeof(uint64_t), h, sizeof *h);
    atomic_store_explicit((_Atomic uint64_t *)line, stamp_of(out->key, at),
                          memory_order_release);
    out->at += OARI_SHM_QUEUE_LINE + (last ? round_up(bytes) : bytes);
    atomic_store_explicit(out->head, out->at, memory_order_seq_cst);
}

void oari_shm_queue_put_data(oari_shm_queue_out *out, const void *data,
                             size_t bytes, int last)
{
    copy_out(out, out->at, data, bytes);
    out->at += last ? round_up(bytes) : bytes;
    atomic_store_explicit(out->head, out->at, memory_order_seq_cst);
}

/* ---- in ------------------------------------------------------------------ */

int oari_shm_queue_get(oari_shm_queue_in *in, oari_header *h)
{
    const unsigned char *line = in->ring + (in->at & (in->bytes - 1));

    if (atomic_load_explicit((const _Atomic uint64_t *)line,
                             memory_order_acquire) != stamp_of(in->key, in->at))
        return 0;
    memcpy(h, line + sizeof(uint64_t), sizeof *h);
    in->at += OARI_SHM_QUEUE_LINE;
    in->shown = in->at;
    if (h->bytes > OARI_SHM_QUEUE_INLINE && h->status <= OARI_SHM_QUEUE_SHARE)
        in->shown += h->status;
    return 1;
}

int oari_shm_queue_await(const oari_shm_queue_in *in, int looks, oari_header *h)
{
    const unsigned char *line = in->ring + (in->at & (in->bytes - 1));
    const _Atomic uint64_t *stamp = (const _Atomic uint64_t *)line;
    uint64_t wanted = stamp_of(in->key, in->at);

    while (atomic_load_explicit(stamp, memory_order_relaxed) != wanted)
        if (--looks <= 0)
            return 0;
    if (atomic_load_explicit(stamp, memory_order_acquire) != wanted)
        return 0; /* cannot be */
    memcpy(h, line + sizeof(uint64_t), sizeof *h);
    return 1;
}

void oari_shm_queue_take(oari_shm_queue_in *in, const oari_header *h, void *to)
{
    in->at += OARI_SHM_QUEUE_LINE;
    if (h->bytes > OARI_SHM_QUEUE_INLINE)
        oari_shm_queue_get_data(in, to, h->bytes, 1);
    else if (h->bytes != 0)
        memcpy(to, h->word, h->bytes);
    in->shown = in->at;
}

/* The counter may be behind what came with a head. */
size_t oari_shm_queue_ready(oari_shm_queue_in *in, size_t wanted)
{
    uint64_t head;

    if (in->shown - in->at >= wanted)
        return wanted;
    head = atomic_load_explicit(in->head, memory_order_acquire);
    if ((int64_t)(head - in->shown) > 0)
        in->shown = head;
    return in->shown - in->at < wanted ? (size_t)(in->shown - in->at) : wanted;
}

void oari_shm_queue_get_data(oari_shm_queue_in *in, void *to, size_t bytes,
                             int last)
{
    size_t first = in->at & (in->bytes - 1), part = in->bytes - first;

    if (part > bytes)
        part = bytes;
    if (to != NULL)
        memcpy(to, in->ring + first, part);
    if (to != NULL && bytes > part)
        memcpy((unsigned char *)to + part, in->ring, bytes - part);
    in->at += last ? round_up(bytes) : bytes;
}

void oari_shm_queue_tell(oari_shm_queue_in *in)
{
    in->told = in->at;
    atomic_store_explicit(in->taken, in->at, memory_order_seq_cst);
}
