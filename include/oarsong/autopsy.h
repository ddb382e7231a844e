/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy.h: what a job did last, read from the recorder files of its ranks
 * (recorder.h) while they live, hang or are dead.
 *
 *     oar_autopsy *a;
 *     char *text;
 *     oar_autopsy_open("records", &a);
 *     oar_autopsy_text(a, &text);
 *
 * An autopsy is a copy: it does not change when the ranks go on. One thread at
 * a time uses it.
 */
#ifndef OARSONG_AUTOPSY_H
#define OARSONG_AUTOPSY_H

#include <oarsong/recorder.h>

OAR_BEGIN_DECLS

typedef struct oar_autopsy oar_autopsy;

/* Reads the *.oarrec files of a folder: OARSONG_RECORDER_DIR of a job, or where
 * oar_autopsy_save put them. A file that cannot be read stands for a rank about
 * which nothing is known; OAR_E_NOT_FOUND if there is no file at all. */
OAR_API oar_status oar_autopsy_open(const char *folder, oar_autopsy **autopsy);

/* Reads recorder files from descriptors, as a launcher has them, by rank; -1
 * stands for a rank about which nothing is known. Borrows them for the call. */
OAR_API oar_status oar_autopsy_from_fds(const int *fds, int count,
                                        oar_autopsy **autopsy);

OAR_API void oar_autopsy_destroy(oar_autopsy *autopsy); /* NULL is fine */

/* Notes how a rank ended, as the launcher that started it knows: "killed by
 * SIGKILL", "exit code 3", "exit code 0". Counts more than what the recorder
 * file says. Copies text. */
OAR_API oar_status oar_autopsy_note(oar_autopsy *autopsy, int rank,
                                    const char *text);

/* Writes the recorder files that could be read, with what is known about their
 * processes now, as rank-N.oarrec into an existing folder, in place of those of
 * the same ranks. Several hosts may save into one folder. */
OAR_API oar_status oar_autopsy_save(const oar_autopsy *autopsy,
                                    const char *folder);

/* Writes the verdict in one sentence, then a table for each group that is not
 * idle. *text is given: oar_free. */
OAR_API oar_status oar_autopsy_text(const oar_autopsy *autopsy, char **text);

/* Write the verdict, the groups and the last records of each rank as JSON
 * (docs/autopsy.md). `last`: how many records at most for each rank of each
 * group; below 0: all. *json is given: oar_free. */
OAR_API oar_status oar_autopsy_json(const oar_autopsy *autopsy, char **json);
OAR_API oar_status oar_autopsy_json_last(const oar_autopsy *autopsy, int last,
                                         char **json);

/* Returns whether anything is wrong: a rank died, ranks disagree, wait for each
 * other in a cycle, or have waited longer than a second for one that is
 * missing; or a group broke. */
OAR_API int oar_autopsy_wrong(const oar_autopsy *autopsy);

/* An operation that waits. */
typedef struct oar_stall {
    size_t size;
    char group[160];
    oar_coll kind;   /* OAR_COLL_COUNT: the group is being created */
    uint64_t number; /* of a collective: oar_record.number; of a message:
                        .sequence */
    int64_t waiting_ms;
    int rank;    /* the one in the world that waits longest */
    int missing; /* the first in the world that is missing; -1: not known */
    int missing_count;
    char site[96];
    char label[64];
    char text[512]; /* one sentence, as the verdict would be */
} oar_stall;
OAR_OPTS_INIT(oar_stall);

/* Finds the operation that has waited longest for a missing rank, if it is
 * older than that. Returns 1 and describes it (stall may be NULL), or returns
 * 0. Ranks whose process is gone do not count: they do not wait any more. */
OAR_API int oar_autopsy_stall(const oar_autopsy *autopsy, int64_t older_than_ms,
                              oar_stall *stall);

OAR_END_DECLS

#endif
