/* SPDX-License-Identifier: Apache-2.0 */
/* record/box_read.h: a box out of bytes that may be anything. */
#ifndef OARI_RECORD_BOX_READ_H
#define OARI_RECORD_BOX_READ_H

#include "record/box.h"

/* A box in our own memory, with everything in it put right: numbers in range,
 * texts ended and printable, rings and records that cannot be left out. Rings
 * from `rings` on are not there. */
typedef struct oari_image {
    oari_box *box; /* owned; its first 1 + rings units */
    int rings;
    int damaged; /* rings that made no sense */
} oari_image;

/* Reads bytes of any kind, at any address. OAR_E_DATA: not a box. */
oar_status oari_box_read(const void *data, size_t bytes, oari_image *image);

/* The same from a file that may be written meanwhile: records that changed
 * while they were read are left out. Borrows fd. */
oar_status oari_box_load(int fd, oari_image *image);

/* The ring, or NULL if that one is empty or damaged. */
const oari_ring *oari_image_ring(const oari_image *image, int index);

void oari_image_clear(oari_image *image); /* an empty one is fine */

/* Makes a text of `room` bytes end, and what a terminal or a JSON reader cannot
 * take a question mark. */
void oari_text_mend(char *text, size_t room);

#endif
