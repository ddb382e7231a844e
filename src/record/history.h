/* SPDX-License-Identifier: Apache-2.0 */
/* record/history.h: the collectives that this rank has begun on a group.
 *
 * Each has a link: a hash of its fingerprint and of the link before it. So two
 * ranks whose links agree have called the same collectives in the same order
 * since the beginning; and where a wrong call made no rank wait, the next
 * message of a later call shows it. Only the driver touches a history.
 *
 * A monitored barrier that waits takes the place of the next collective, as
 * long as none begins; it leaves nothing behind but their count, by which a
 * rank that still waits in one knows those that have left it.
 */
#ifndef OARI_RECORD_HISTORY_H
#define OARI_RECORD_HISTORY_H

#include <stddef.h>
#include <stdint.h>

/* How many collectives a rank remembers. In shared memory no rank can be
 * further ahead of the others than it has slots. */
enum { OARI_HISTORY_SHM = 32, OARI_HISTORY_MESSAGES = 512 };

/* Four of them share a cache line. */
typedef struct oari_history_entry {
    uint64_t link;
    uint64_t what; /* sequence << 8 | OARI_FORM_ bits */
} oari_history_entry;

typedef struct oari_history {
    uint64_t number;          /* of the newest; 0: none yet */
    uint64_t link;            /* of the newest */
    uint64_t room;            /* of the ring, a power of two; 0: only links */
    oari_history_entry *ring; /* by number */
    uint64_t *key; /* by number, where the form has OARI_FORM_KEY; NULL: none */
    uint64_t monitored_count;  /* monitored barriers begun so far */
    uint64_t monitored_number; /* of a monitored barrier that waits; 0: none */
    oari_history_entry monitored;
    uint64_t monitored_key;
} oari_history;

static inline uint64_t oari_history_link(const oari_history *h,
                                         uint64_t fingerprint)
{
    uint64_t link = (h->link ^ fingerprint) * 0x9e3779b97f4a7c15u;

    return link ^ link >> 32;
}

/* Enters a collective: its number, the sequence number of the operation on this
 * rank, its form (OARI_FORM_ bits) and its fingerprint. Returns its link. */
static inline uint64_t oari_history_add(oari_history *h, uint64_t number,
                                        uint64_t sequence, uint32_t form,
                                        uint64_t fingerprint)
{
    uint64_t link = oari_history_link(h, fingerprint);

    h->number = number;
    h->link = link;
    if (h->room != 0)
        h->ring[number & (h->room - 1)] =
            (oari_history_entry){ link, sequence << 8 | form };
    return link;
}

/* Enters the key of the newest collective. */
static inline void oari_history_set_key(oari_history *h, uint64_t number,
                                        uint64_t key)
{
    if (h->room != 0 && h->key != NULL)
        h->key[number & (h->room - 1)] = key;
}

/* Enters a monitored barrier that begins to wait. */
static inline void oari_history_add_monitored(oari_history *h,
                                              uint64_t sequence, uint32_t form,
                                              uint64_t fingerprint)
{
    h->monitored_number = h->number + 1;
    h->monitored = (oari_history_entry){ oari_history_link(h, fingerprint),
                                         sequence << 8 | form };
}

/* Returns the number of the newest collective, or of a monitored barrier behind
 * it; 0: none. */
static inline uint64_t oari_history_newest(const oari_history *h)
{
    return h->monitored_number == h->number + 1 ? h->monitored_number
                                                : h->number;
}

/* Returns a collective, or NULL: not begun, or forgotten. */
static inline const oari_history_entry *oari_history_find(const oari_history *h,
                                                          uint64_t number)
{
    if (number == h->number + 1 && number == h->monitored_number)
        return &h->monitored;
    if (number == 0 || number > h->number || h->number - number >= h->room)
        return NULL;
    return &h->ring[number & (h->room - 1)];
}

/* Returns the key of a collective that oari_history_find has found. */
static inline uint64_t oari_history_key(const oari_history *h, uint64_t number)
{
    if (number == h->number + 1 && number == h->monitored_number)
        return h->monitored_key;
    return h->key != NULL ? h->key[number & (h->room - 1)] : 0;
}

#endif
