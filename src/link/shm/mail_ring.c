/* SPDX-License-Identifier: Apache-2.0 */
/* mail_ring: see mail_ring.h. */
#include "link/shm/mail_ring.h"

#include <string.h>

_Static_assert(sizeof(uint64_t) + sizeof(oari_header) == OARI_MAIL_LINE,
               "one cache line");

static uint64_t stamp_of(uint64_t key, uint64_t at)
{
    return key ^ (at + 1) * 0x9e3779b97f4a7c15u;
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + OARI_MAIL_LINE - 1) & ~(uint64_t)(OARI_MAIL_LINE - 1);
}

/* ---- out ----------------------------------------------------------------- */

size_t oari_mail_room(oari_mail_out *out, size_t wanted)
{
    size_t room = out->bytes - (size_t)(out->at - out->known);

    if (room >= wanted)
        return room;
    out->known = atomic_load_explicit(out->taken, memory_order_acquire);
    return out->bytes - (size_t)(out->at - out->known);
}

static void copy_out(const oari_mail_out *out, uint64_t at, const void *from,
                     size_t bytes)
{
    size_t first = at & (out->bytes - 1), part = out->bytes - first;

    if (part > bytes)
        part = bytes;
    memcpy(out->ring + first, from, part);
    if (bytes > part)
        memcpy(out->ring, (const unsigned char *)from + part, bytes - part);
}

void oari_mail_put(oari_mail_out *out, const oari_header *h, const void *data,
                   size_t bytes, int last)
{
    uint64_t at = out->at;
    unsigned char *line = out->ring + (at & (out->bytes - 1));

    if (bytes != 0)
        copy_out(out, at + OARI_MAIL_LINE, data, bytes);
    memcpy(line + sizeof(uint64_t), h, sizeof *h);
    atomic_store_explicit((_Atomic uint64_t *)line, stamp_of(out->key, at),
                          memory_order_release);
    out->at += OARI_MAIL_LINE + (last ? round_up(bytes) : bytes);
    atomic_store_explicit(out->head, out->at, memory_order_seq_cst);
}

void oari_mail_put_data(oari_mail_out *out, const void *data, size_t bytes,
                        int last)
{
    copy_out(out, out->at, data, bytes);
    out->at += last ? round_up(bytes) : bytes;
    atomic_store_explicit(out->head, out->at, memory_order_seq_cst);
}

/* ---- in ------------------------------------------------------------------ */

int oari_mail_get(oari_mail_in *in, oari_header *h)
{
    const unsigned char *line = in->ring + (in->at & (in->bytes - 1));

    if (atomic_load_explicit((const _Atomic uint64_t *)line,
                             memory_order_acquire) != stamp_of(in->key, in->at))
        return 0;
    memcpy(h, line + sizeof(uint64_t), sizeof *h);
    in->at += OARI_MAIL_LINE;
    in->shown = in->at;
    if (h->bytes > OARI_MAIL_INLINE && h->status <= OARI_MAIL_SHARE)
        in->shown += h->status;
    return 1;
}

/* The counter may be behind what came with a head. */
size_t oari_mail_ready(oari_mail_in *in, size_t wanted)
{
    uint64_t head;

    if (in->shown - in->at >= wanted)
        return wanted;
    head = atomic_load_explicit(in->head, memory_order_acquire);
    if ((int64_t)(head - in->shown) > 0)
        in->shown = head;
    return in->shown - in->at < wanted ? (size_t)(in->shown - in->at) : wanted;
}

void oari_mail_get_data(oari_mail_in *in, void *to, size_t bytes, int last)
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

void oari_mail_tell(oari_mail_in *in)
{
    atomic_store_explicit(in->taken, in->at, memory_order_seq_cst);
}
