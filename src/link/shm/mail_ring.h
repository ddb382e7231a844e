/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/mail_ring.h: records from one rank to another through shared memory.
 *
 * A ring lies in its sender's control block. A record is a head of one cache
 * line and, if the data does not fit into that, the data behind it, rounded up
 * to whole lines; one longer than the ring flows through it. The first word of
 * a head, its stamp, is written last: the receiver waits for the line that it
 * is going to read anyway. A stamp is made of its place in the stream and a
 * random key, so that nothing left over from before looks like one.
 *
 * Two counters: `head`, bytes ever shown, stored by the sender, which tells how
 * far data has come that did not come with its head; and `taken`, bytes ever
 * read, stored by the receiver, which the sender reads only when the ring seems
 * full. After either store the other side's sleep flag is looked at (board.c),
 * so both are seq_cst.
 */
#ifndef OARI_LINK_SHM_MAIL_RING_H
#define OARI_LINK_SHM_MAIL_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OARI_MAIL_COUNTER = 128, /* before the bytes: lines of its own */
    OARI_MAIL_LINE = 64,
    OARI_MAIL_INLINE = 24,     /* data in the head itself */
    OARI_MAIL_SHARE = 16 << 10 /* shown at a time: both sides at work */
};

typedef struct oari_mail_head {
    uint64_t stamp;
    uint32_t kind;
    uint32_t shown; /* bytes of the data that came with the head; or a word
                       for a kind without data */
    uint64_t bytes, tag, number;
    union {
        unsigned char data[OARI_MAIL_INLINE]; /* if it fits */
        uint64_t word[3];                     /* of a kind without data */
    } is;
} oari_mail_head;

typedef struct oari_mail_out {
    unsigned char *ring;
    size_t bytes; /* a power of two */
    uint64_t key;
    _Atomic uint64_t *head;
    const _Atomic uint64_t *taken;
    uint64_t at;    /* shown so far */
    uint64_t known; /* of `taken` */
} oari_mail_out;

typedef struct oari_mail_in {
    const unsigned char *ring;
    size_t bytes;
    uint64_t key;
    const _Atomic uint64_t *head;
    _Atomic uint64_t *taken;
    uint64_t at;    /* read so far */
    uint64_t shown; /* data is there up to here, as far as is known */
} oari_mail_in;

/* Bytes that can be written now: asks the other side only if there seem to be
 * fewer than `wanted`. */
size_t oari_mail_room(oari_mail_out *out, size_t wanted);

/* Shows a head, for which there is room, with `bytes` of data behind it (0: in
 * the head, or none); last: there is no more. */
void oari_mail_put(oari_mail_out *out, oari_mail_head *record, const void *data,
                   size_t bytes, int last);
/* Shows more data of the record. */
void oari_mail_put_data(oari_mail_out *out, const void *data, size_t bytes,
                        int last);

/* The next head, if it is there. */
int oari_mail_get(oari_mail_in *in, oari_mail_head *record);
/* How many of `wanted` bytes of data are there. */
size_t oari_mail_ready(oari_mail_in *in, size_t wanted);
/* Reads data that is there; to == NULL: drops it. last: the record's last. */
void oari_mail_get_data(oari_mail_in *in, void *to, size_t bytes, int last);
/* Tells the sender what has been read. */
void oari_mail_tell(oari_mail_in *in);

#endif
