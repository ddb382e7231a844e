/* SPDX-License-Identifier: Apache-2.0 */
/* record/recorder_host.h: which host and which process a recorder file is of,
 * and whether that process still lives. */
#ifndef OARI_RECORD_RECORDER_HOST_H
#define OARI_RECORD_RECORDER_HOST_H

#include "record/recorder_file.h"

/* The state of a process. The letters are kept in copies of recorder files. */
typedef enum oari_process_state {
    OARI_PROCESS_UNKNOWN = '?', /* of another host, or hidden */
    OARI_PROCESS_ABSENT = '-',  /* no process uses this file yet */
    OARI_PROCESS_RUNS = 'R',
    OARI_PROCESS_SLEEPS = 'S',
    OARI_PROCESS_STOPPED = 'T',
    OARI_PROCESS_EXITED = 'E', /* by itself */
    OARI_PROCESS_DEAD = 'X'    /* ended otherwise */
} oari_process_state;

/* Writes into a head which process this is, and on which host. */
void oari_host_sign(oari_recorder_head *head);

/* Returns whether the clocks of two recorder files compare: one boot of one
 * host. */
int oari_host_same(const oari_recorder_head *a, const oari_recorder_head *b);

/* Returns the state of the process that owns a recorder file; of a copy, the
 * state then. here: a head signed by this process. */
oari_process_state oari_host_process_state(const oari_recorder_head *head,
                                           const oari_recorder_head *here);

/* Returns the rank in a name of the form rank-N and suffix, or -1. Handlers of
 * signals may call it. */
int oari_rank_in_name(const char *name, const char *suffix);

#endif
