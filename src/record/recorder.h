/* SPDX-License-Identifier: Apache-2.0 */
/* record/recorder.h: writing and reading a ring of the box (record/box.h). */
#ifndef OARI_RECORD_RECORDER_H
#define OARI_RECORD_RECORDER_H

#include <oarsong/recorder.h>

#include "record/box.h"
#include "record/operation.h"

typedef struct oari_recorder oari_recorder;

/* Takes a ring in the box of this process. */
oar_status oari_recorder_make(const oari_ring_owner *owner,
                              oari_recorder **recorder);
/* The same for a rank that is a process, of a backend without a name. */
oar_status oari_recorder_create(const char *group, int rank, int ranks,
                                oari_recorder **recorder);
/* One more that has to destroy it. */
oari_recorder *oari_recorder_retain(oari_recorder *recorder);
/* With the last of them the ring has ended. NULL is fine. */
void oari_recorder_destroy(oari_recorder *recorder);

/* ---- what a group tells -------------------------------------------------- */

/* The group is made. */
void oari_recorder_opened(oari_recorder *recorder);
/* Which ranks of the world its members are, by rank. */
void oari_recorder_place(oari_recorder *recorder, const int *member, int count);
/* The group has broken. Only the first is kept. */
void oari_recorder_fault(oari_recorder *recorder, const oar_error *error);

/* Several threads may post at once; each sequence number once. state:
 * OARI_POSTED, or OARI_AWAITED if the caller does not return before it is done.
 */
void oari_recorder_post(oari_recorder *recorder, uint64_t sequence,
                        const oari_operation *op, uint64_t state);
/* From now on somebody waits for it; or has given up waiting. */
void oari_recorder_wait(oari_recorder *recorder, uint64_t sequence, int waits);
void oari_recorder_done(oari_recorder *recorder, uint64_t sequence,
                        oar_record_state state);

/* ---- views: rings of this or another process, live or dead --------------- */

/* This recorder's own, valid as long as it is. */
const void *oari_recorder_base(const oari_recorder *recorder);

/* What a peer needs to map the ring: the descriptor (borrowed) and where in it
 * the ring is. */
int oari_recorder_fd(const oari_recorder *recorder);
uint64_t oari_recorder_at(const oari_recorder *recorder);
/* A peer's. Borrows fd. */
oar_status oari_recorder_map(int fd, uint64_t at, const void **base);
void oari_recorder_unmap(const void *base); /* NULL is fine */

/* Bytes in a ring are checked, not trusted. by_sequence finds one operation.
 * OAR_E_NOT_FOUND also when the ring has become another group's. */
oar_status oari_recorder_newest(const void *base, int index,
                                oar_record *record);
oar_status oari_recorder_by_sequence(const void *base, uint64_t sequence,
                                     oar_record *record);

/* ---- rings as bytes ------------------------------------------------------ */

/* The highest number in it; 0: none. */
uint64_t oari_ring_newest(const oari_ring *ring);
/* 1 and the record of that number, or 0. The rate is the counter's; 0: as the
 * ring says. */
int oari_ring_find(const oari_ring *ring, double rate, uint64_t sequence,
                   oar_record *record);
/* A text in a field of a box, cut to fit and ended. */
void oari_box_text(char *to, size_t room, const char *from, size_t bytes);

#endif
