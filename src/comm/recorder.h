/* SPDX-License-Identifier: Apache-2.0 */
/* comm/recorder.h: writing and reading the ring of oarsong/recorder.h. */
#ifndef OARI_COMM_RECORDER_H
#define OARI_COMM_RECORDER_H

#include <oarsong/recorder.h>

#include "comm/call.h"

typedef struct oari_recorder oari_recorder;

/* In a memfd, or in a file of OARSONG_RECORDER_DIR if that is set. */
oar_status oari_recorder_create(const char *group, int rank, int ranks,
                                oari_recorder **recorder);
/* One more that has to destroy it. */
oari_recorder *oari_recorder_retain(oari_recorder *recorder);
void oari_recorder_destroy(oari_recorder *recorder); /* NULL is fine */

/* The descriptor to pass to peers (borrowed), and the mapping's size. */
int oari_recorder_fd(const oari_recorder *recorder);
size_t oari_recorder_bytes(void);
const void *oari_recorder_base(const oari_recorder *recorder);

/* Several threads may post at once; each sequence number once. */
void oari_recorder_post(oari_recorder *recorder, uint64_t sequence,
                        const oari_call *call);
void oari_recorder_done(oari_recorder *recorder, uint64_t sequence,
                        oar_record_state state);

/* Reads from a mapping of any recorder, live or dead. Bytes in it are checked,
 * not trusted. by_sequence finds one operation. */
oar_status oari_recorder_newest(const void *base, int index,
                                oar_record *record);
oar_status oari_recorder_by_sequence(const void *base, uint64_t sequence,
                                     oar_record *record);

#endif
