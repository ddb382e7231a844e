/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy/live.h: finds the recorder files of running jobs, and keeps them open
 * while they are looked at. */
#ifndef OARI_AUTOPSY_LIVE_H
#define OARI_AUTOPSY_LIVE_H

#include <sys/types.h>

#include <oarsong/live.h>

#include "autopsy/autopsy.h"
#include "record/recorder_file.h"

/* A recorder file that is open here. */
typedef struct oari_live_file {
    int fd;
    dev_t device;
    ino_t inode;
    pid_t holder; /* a process that has it open */
    oari_recorder_head head;
} oari_live_file;

typedef struct oari_live_files {
    oari_live_file *file;
    int64_t count, room;
} oari_live_files;

/* Opens the recorder files that a process has open, and that are not open here
 * yet. pid 0: of all processes of this user. */
oar_status oari_live_find(pid_t pid, oari_live_files *files);
/* Opens those of a folder. */
oar_status oari_live_find_in(const char *folder, oari_live_files *files);
/* Reads the heads of all of them again. */
void oari_live_reread(oari_live_files *files);
/* Closes the files that do not belong to the job of the one at `index`. */
void oari_live_keep_job(oari_live_files *files, int64_t index);
/* Returns whether two files belong to one job. */
int oari_live_same_job(const oari_live_file *a, const oari_live_file *b);
void oari_live_files_close(oari_live_files *files);

/* ---- ranks (live_rank.c) ------------------------------------------------- */

/* A rank, as the last look has found it. */
typedef struct oari_live_view {
    oar_live_rank now;
    oar_live_metric metric[OARI_METRICS];
    int metrics;
    double waited_s; /* in all, by the last look */
    int64_t look_ns; /* when that was; 0: none yet */
    int64_t owner;   /* the process that was looked at */
} oari_live_view;

/* Fills in a rank. The view holds what the last look has found. */
void oari_live_describe(const oari_analysis *a, oari_live_view *r, int rank);

#endif
