/* SPDX-License-Identifier: Apache-2.0 */
/* record/box_host.h: which host and which process a recorder file is of, and
 * whether that process still lives. */
#ifndef OARI_RECORD_BOX_HOST_H
#define OARI_RECORD_BOX_HOST_H

#include "record/box.h"

/* The state of a process. The letters are kept in copies of recorder files. */
typedef enum oari_life {
    OARI_LIFE_UNKNOWN = '?', /* of another host, or hidden */
    OARI_LIFE_ABSENT = '-',  /* no process uses this file yet */
    OARI_LIFE_RUNS = 'R',
    OARI_LIFE_SLEEPS = 'S',
    OARI_LIFE_STOPPED = 'T',
    OARI_LIFE_EXITED = 'E', /* by itself */
    OARI_LIFE_DEAD = 'X'    /* ended otherwise */
} oari_life;

/* Writes into a head which process this is, and on which host. */
void oari_host_sign(oari_head *head);

/* Returns whether the clocks of two recorder files compare: one boot of one
 * host. */
int oari_host_same(const oari_head *a, const oari_head *b);

/* Returns the state of the process that owns a recorder file; of a copy, the
 * state then. here: a head signed by this process. */
oari_life oari_host_life(const oari_head *head, const oari_head *here);

/* Returns the rank in a name of the form rank-N and suffix, or -1. Handlers of
 * signals may call it. */
int oari_rank_in_name(const char *name, const char *suffix);

#endif
