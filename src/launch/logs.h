/* SPDX-License-Identifier: Apache-2.0 */
/* launch/logs.h: which output of which rank goes to a file, and where that is:
 * FOLDER/RUN_ID/attempt_N/RANK/stdout.log and stderr.log. Where an earlier run
 * with the same id has left files, FOLDER/RUN_ID.2 is used, and so on. */
#ifndef OARI_LAUNCH_LOGS_H
#define OARI_LAUNCH_LOGS_H

#include <limits.h>

#include <oarsong/launch.h>

enum { LAUNCH_STDOUT = 1, LAUNCH_STDERR = 2 };

typedef struct launch_logs {
    char folder[PATH_MAX]; /* FOLDER/RUN_ID; "": no files */
    int chosen;            /* the folder has no files of an earlier run */
    unsigned char *file;   /* by local rank: what goes to a file, */
    unsigned char *only;   /* of that, what goes nowhere else, */
    unsigned char *shown;  /* and whether the rest is passed on */
} launch_logs;

/* Reads the options for this many ranks. Makes no files yet. */
oar_status launch_logs_read(launch_logs *logs, const oar_launch_opts *opts,
                            const char *run_id, int ranks);
void launch_logs_drop(launch_logs *logs);

/* Reads "3" or "0:1,2:3": a number from 0 to 3 for each of the ranks. NULL: 0.
 * what names the option. */
oar_status launch_std_read(const char *what, const char *text, int ranks,
                           unsigned char *value);

/* Reads "0,2": gives 1 for each rank that is named. NULL: for all. */
oar_status launch_filter_read(const char *text, int ranks,
                              unsigned char *value);

/* Makes the file of a rank in an attempt; `again`: adds to the one it has. The
 * first call chooses the folder. */
oar_status launch_logs_open(launch_logs *logs, int attempt, int rank,
                            int stream, int again, int *fd);

/* Makes the folder for recorders and gives its path. `before` is how many such
 * folders of this attempt must stay as they are. */
oar_status launch_logs_recorder(const launch_logs *logs, int attempt,
                                int before, char path[PATH_MAX]);

#endif
