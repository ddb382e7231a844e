/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/checkpoint.h: what a checkpoint is inside, and what its
 * files share. */
#ifndef OARI_PARALLEL_CHECKPOINT_CHECKPOINT_H
#define OARI_PARALLEL_CHECKPOINT_CHECKPOINT_H

#include <pthread.h>

#include "file/disk.h"
#include "parallel/checkpoint/file_layout.h"
#include "parallel/checkpoint/state.h"

struct oar_checkpoint {
    oar_group *group; /* a duplicate of the user's; NULL: one process */
    int rank, ranks;
    const oari_disk *disk;
    char *path;
    int folder;  /* its descriptor */
    int lock;    /* rank 0's, or -1 */
    int64_t pid; /* that opened it */
    oar_checkpoint_opts opts;
    /* the plan of the last save, good as long as no rank's list changes */
    int planned;
    uint64_t list_hash[2];
    oari_ckpt_save_plan plan;
    oari_ckpt_file_layout layout;
    oar_checkpoint_stats stats;
    /* while this rank writes or reads; the lock guards both */
    pthread_mutex_t slow_lock;
    oar_timeout_scope *slow;
    int64_t slow_since_ns;
};

/* Checks that a checkpoint may be used: it is not NULL, and this process opened
 * it. `call` is for the error. */
oar_status oari_ckpt_check(const oar_checkpoint *checkpoint, const char *call);

/* ---- agree.c ------------------------------------------------------------- */

/* Returns OAR_OK if all ranks give OAR_OK; else, on all of them, the failure of
 * the lowest rank that gives another status, whose last error it is. All ranks
 * call it. */
oar_status oari_ckpt_agree(oar_checkpoint *checkpoint, oar_status mine);

/* Tell the other ranks that this one is at work on files, so that they wait for
 * it: begin and end around it, and renew, which any thread may call, whenever
 * there is progress. Without progress the others wait `ms` longer than their
 * timeout. */
void oari_ckpt_slow_begin(oar_checkpoint *checkpoint, int64_t ms);
void oari_ckpt_slow_renew(oar_checkpoint *checkpoint, int64_t ms);
void oari_ckpt_slow_end(oar_checkpoint *checkpoint);

/* ---- generations.c ------------------------------------------------------- */

enum { OARI_CKPT_STEP_NAME = 24 };
void oari_ckpt_step_name(int64_t step, char name[OARI_CKPT_STEP_NAME]);

typedef struct oari_ckpt_steps {
    OARI_VEC(int64_t) step; /* of folders called step-N, rising */
    OARI_VEC(char *) part;  /* names of what is half-written or being removed */
} oari_ckpt_steps;

/* Lists a folder of generations. */
oar_status oari_ckpt_steps_list(const oari_disk *disk, int folder,
                                const char *path, oari_ckpt_steps *steps);
void oari_ckpt_steps_free(oari_ckpt_steps *steps);

/* Reads the text of a generation's index: OAR_E_NOT_FOUND if there is no such
 * generation, OAR_E_DATA if it has no index. The byte behind the text is
 * writable. */
oar_status oari_ckpt_read_index(const oari_disk *disk, int folder,
                                const char *path, int64_t step, char **text,
                                size_t *bytes);

/* Checks that every file of an index is there with its size. */
oar_status oari_ckpt_check_files(const oari_disk *disk, int folder,
                                 const char *path, int64_t step,
                                 const oari_ckpt_index *index);

/* Gives the text of the index of the newest complete generation, and its step:
 * OAR_E_NOT_FOUND, with why the newest one is not complete. */
oar_status oari_ckpt_find_newest(const oari_disk *disk, int folder,
                                 const char *path, int64_t *step, char **text,
                                 size_t *bytes);

/* Removes a folder of two levels, the index first. */
oar_status oari_ckpt_remove_tree(const oari_disk *disk, int folder,
                                 const char *name);

/* Removes what was left half-written. */
oar_status oari_ckpt_remove_parts(const oari_disk *disk, int folder,
                                  const char *path);

/* Opens a file of a generation by its path "SECTION/NAME". */
oar_status oari_ckpt_open_file(const oari_disk *disk, int generation,
                               const char *what, const char *path, int how,
                               int *fd);

/* Removes generations that need not be kept, after a save. */
oar_status oari_ckpt_prune(oar_checkpoint *checkpoint);

/* ---- write_files.c ------------------------------------------------------- */

/* A file that this rank has written. */
typedef struct oari_ckpt_written {
    uint64_t bytes, data;
    OARI_VEC(uint64_t) sum;
} oari_ckpt_written;

/* Writes this rank's files of the plan into the folder of a generation, and
 * syncs them. `array` gives, for each item of the rank's list, its numbers in
 * host memory, row by row. One `written` for each file of the layout; those of
 * other ranks stay empty. */
oar_status oari_ckpt_write_files(oar_checkpoint *checkpoint, int generation,
                                 const char *id, int64_t step,
                                 const oari_ckpt_part_list *list,
                                 const void *const *array,
                                 oari_ckpt_written *written);

#endif
