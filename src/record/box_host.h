/* SPDX-License-Identifier: Apache-2.0 */
/* record/box_host.h: which host and which process a box is of, and whether that
 * process still lives. */
#ifndef OARI_RECORD_BOX_HOST_H
#define OARI_RECORD_BOX_HOST_H

#include "record/box.h"

/* How a process is. The letters are kept in copies of boxes. */
typedef enum oari_life {
    OARI_LIFE_UNKNOWN = '?', /* not of this host, or not to be seen */
    OARI_LIFE_ABSENT = '-',  /* nobody has come to this box yet */
    OARI_LIFE_RUNS = 'R',
    OARI_LIFE_SLEEPS = 'S',
    OARI_LIFE_STOPPED = 'T',
    OARI_LIFE_EXITED = 'E', /* by itself */
    OARI_LIFE_DEAD = 'X'    /* ended otherwise */
} oari_life;

/* Writes who this process is, and on which host, into its box. */
void oari_host_sign(oari_head *head);

/* Whether two boxes' clocks compare. */
int oari_host_same(const oari_head *a, const oari_head *b);

/* How the owner of a box is now; of a copy, how it was. here: a box signed by
 * this process. */
oari_life oari_host_life(const oari_head *head, const oari_head *here);

#endif
