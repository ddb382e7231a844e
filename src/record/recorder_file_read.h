/* SPDX-License-Identifier: Apache-2.0 */
/* record/recorder_file_read.h: reads a recorder file from bytes that may be
 * anything. */
#ifndef OARI_RECORD_RECORDER_FILE_READ_H
#define OARI_RECORD_RECORDER_FILE_READ_H

#include "record/recorder_file.h"

/* A copy of a recorder file in our own memory, put right: numbers are in range,
 * texts end and are printable, impossible rings and records are left out. Only
 * the first `rings` rings are there. */
typedef struct oari_recorder_copy {
    oari_recorder_file *box; /* owned; its first 1 + rings units */
    int rings;
    int damaged; /* rings that made no sense */
} oari_recorder_copy;

/* Reads a recorder file from memory, at any address. Returns OAR_E_DATA if the
 * bytes are not one. */
oar_status oari_recorder_file_read(const void *data, size_t bytes,
                                   oari_recorder_copy *image);

/* Reads a recorder file that may be written meanwhile: records that changed
 * while they were read are left out. Borrows fd. */
oar_status oari_recorder_file_load(int fd, oari_recorder_copy *image);

/* Returns a ring, or NULL if it is empty or damaged. */
const oari_ring *oari_recorder_copy_ring(const oari_recorder_copy *image,
                                         int index);

void oari_recorder_copy_clear(
    oari_recorder_copy *image); /* an empty one is fine */

/* Ends a text within `room` bytes, and turns what a terminal or a JSON reader
 * cannot take into question marks. */
void oari_text_mend(char *text, size_t room);

#endif
