/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/shm_queue.h: a queue of records from one rank to another, in shared
 * memory.
 *
 * A queue lies in its sender's control block. A record is a stamp and a header,
 * together one cache line, and, if the data does not fit into the header's
 * words, the data behind it, rounded up to whole lines; data longer than the
 * queue flows through it. The status of a header with data says how many bytes
 * were shown together with it. The stamp is written last: the receiver waits
 * for the line that it is going to read anyway. A stamp is made of its place in
 * the stream and a random key, so that nothing left over looks like one.
 *
 * Two counters: `head`, bytes ever shown, stored by the sender, which tells how
 * far data has come that did not come with its header; and `taken`, bytes ever
 * read, stored by the receiver, which the sender reads only when the queue
 * seems full. It is stored once for each quarter of the queue, between parts of
 * a record, and when there is nothing more to read. After either store the
 * other side's sleep flag is read (control_page.c), so both are seq_cst.
 */
#ifndef OARI_LINK_SHM_SHM_QUEUE_H
#define OARI_LINK_SHM_SHM_QUEUE_H

#include <stdatomic.h>

#include "link/endpoint.h"

enum {
    OARI_SHM_QUEUE_COUNTER = 128, /* before the bytes: lines of its own */
    OARI_SHM_QUEUE_LINE = 64,
    OARI_SHM_QUEUE_INLINE = 24,     /* data in the words of the header */
    OARI_SHM_QUEUE_SHARE = 16 << 10 /* shown at a time: both sides at work */
};

typedef struct oari_shm_queue_out {
    unsigned char *ring;
    size_t bytes; /* a power of two */
    uint64_t key;
    _Atomic uint64_t *head;
    const _Atomic uint64_t *taken;
    uint64_t at;    /* shown so far */
    uint64_t known; /* of `taken` */
} oari_shm_queue_out;

typedef struct oari_shm_queue_in {
    const unsigned char *ring;
    size_t bytes;
    uint64_t key;
    const _Atomic uint64_t *head;
    _Atomic uint64_t *taken;
    uint64_t at;    /* read so far */
    uint64_t shown; /* data is there up to here, as far as is known */
    uint64_t told;  /* of `taken` */
} oari_shm_queue_in;

/* Returns how many bytes can be written now; asks the other side only if there
 * seem to be fewer than `wanted`. */
size_t oari_shm_queue_room(oari_shm_queue_out *out, size_t wanted);

/* Shows a header, for which there is room, with `bytes` of data behind it (0:
 * its data is in its words, or it has none); last: there is no more. */
void oari_shm_queue_put(oari_shm_queue_out *out, const oari_header *h,
                        const void *data, size_t bytes, int last);
/* Shows more data of the record. */
void oari_shm_queue_put_data(oari_shm_queue_out *out, const void *data,
                             size_t bytes, int last);

/* Reads the next header; 0: there is none. */
int oari_shm_queue_get(oari_shm_queue_in *in, oari_header *h);
/* Looks so many times for the next header, and copies it without taking it; 0:
 * there is none. */
int oari_shm_queue_await(const oari_shm_queue_in *in, int looks,
                         oari_header *h);
/* Returns whether all data of a record came with its header. */
static inline int oari_shm_queue_is_whole(const oari_header *h)
{
    return h->bytes <= OARI_SHM_QUEUE_INLINE ||
           (h->bytes <= OARI_SHM_QUEUE_SHARE && h->status == h->bytes);
}
/* Takes a record that is whole, whose header was awaited. */
void oari_shm_queue_take(oari_shm_queue_in *in, const oari_header *h, void *to);
/* Returns how many of `wanted` bytes of data are there. */
size_t oari_shm_queue_ready(oari_shm_queue_in *in, size_t wanted);
/* Reads data that is there; to == NULL: drops it. last: the record's last. */
void oari_shm_queue_get_data(oari_shm_queue_in *in, void *to, size_t bytes,
                             int last);
/* Tells the sender what has been read. */
void oari_shm_queue_tell(oari_shm_queue_in *in);
/* Returns whether the sender should be told: a quarter of the queue has been
 * read since. Until then it has room for more than it can need at once. */
static inline int oari_shm_queue_tell_due(const oari_shm_queue_in *in)
{
    return in->at - in->told >= in->bytes / 4;
}

#endif
