/* SPDX-License-Identifier: Apache-2.0 */
/* record/recorder.h: writes and reads the ring of one group in the recorder
 * file of this process (record/recorder_file.h). */
#ifndef OARI_RECORD_RECORDER_H
#define OARI_RECORD_RECORDER_H

#include <oarsong/recorder.h>

#include "record/recorder_file.h"
#include "record/operation.h"

typedef struct oari_recorder oari_recorder;

/* What oari_recorder_base points to: a ring, as long as it has that serial
 * number; with another it belongs to another group. */
typedef struct oari_ring_view {
    const oari_ring *ring;
    uint64_t serial;
} oari_ring_view;

/* Takes a ring in the recorder file of this process. */
oar_status oari_recorder_make(const oari_ring_owner *owner,
                              oari_recorder **recorder);
/* Adds a holder, which has to destroy the recorder too. */
oari_recorder *oari_recorder_retain(oari_recorder *recorder);
/* Drops a holder; the last one ends the ring. NULL is fine. */
void oari_recorder_destroy(oari_recorder *recorder);

/* ---- facts about the group ----------------------------------------------- */

/* Records that the group is made. */
void oari_recorder_opened(oari_recorder *recorder);
/* Records which ranks of the world the members are, by rank. */
void oari_recorder_place(oari_recorder *recorder, const int *member, int count);
/* Records the fault that broke the group. Only the first is kept. */
void oari_recorder_fault(oari_recorder *recorder, const oar_error *error);

/* Records that an operation was posted. Several threads may post at once, each
 * sequence number once. state: OARI_POSTED, or OARI_AWAITED if the caller does
 * not return before the operation is done. */
void oari_recorder_post(oari_recorder *recorder, uint64_t sequence,
                        const oari_operation *op, uint64_t state);
/* Records whether a caller waits for the operation. */
void oari_recorder_wait(oari_recorder *recorder, uint64_t sequence, int waits);
/* Records that a caller begins to wait for operations it had posted before, and
 * gives when; and that it has waited since then. */
uint64_t oari_recorder_wait_begin(oari_recorder *recorder);
void oari_recorder_wait_end(oari_recorder *recorder, uint64_t since);
void oari_recorder_done(oari_recorder *recorder, uint64_t sequence,
                        oar_record_state state);

/* ---- views: rings of this or another process, live or dead --------------- */

/* Returns the view of this recorder's own ring, valid as long as it is. */
const void *oari_recorder_base(const oari_recorder *recorder);

/* Return what a peer needs to map the ring: the descriptor, which stays ours,
 * and the place in it. */
int oari_recorder_fd(const oari_recorder *recorder);
uint64_t oari_recorder_at(const oari_recorder *recorder);
/* Maps the ring of a peer. Borrows fd. */
oar_status oari_recorder_map(int fd, uint64_t at, const void **base);
void oari_recorder_unmap(const void *base); /* NULL is fine */

/* Read the index-th newest record, or that of one operation. Bytes in a ring
 * are checked, not trusted. OAR_E_NOT_FOUND also if the ring now belongs to
 * another group. */
oar_status oari_recorder_newest(const void *base, int index,
                                oar_record *record);
oar_status oari_recorder_by_sequence(const void *base, uint64_t sequence,
                                     oar_record *record);

/* ---- rings as bytes ------------------------------------------------------ */

/* Returns the highest sequence number in a ring, or 0. */
uint64_t oari_ring_newest(const oari_ring *ring);
/* Finds the record of a sequence number; returns whether there is one. rate:
 * ticks of the counter a second; 0: as the ring says. */
int oari_ring_find(const oari_ring *ring, double rate, uint64_t sequence,
                   oar_record *record);
/* Copies a text out of a field, cut to fit and ended. */
void oari_text_copy(char *to, size_t room, const char *from, size_t bytes);

#endif
