/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/checkpoint.h: what a checkpoint is inside, and what its
 * files share. */
#ifndef OARI_PARALLEL_CHECKPOINT_CHECKPOINT_H
#define OARI_PARALLEL_CHECKPOINT_CHECKPOINT_H

#include <pthread.h>

#include "base/worker.h"
#include "file/disk.h"
#include "parallel/checkpoint/gpu_copy.h"
#include "parallel/checkpoint/file_layout.h"
#include "parallel/checkpoint/save_staging.h"
#include "parallel/checkpoint/state/state.h"

typedef struct oari_ckpt_saving oari_ckpt_saving;

struct oar_checkpoint {
    oar_group *group; /* a duplicate of the user's; NULL: one process. The
                         thread has it while a save is under way */
    oar_group *calls; /* another one, for calls in the meantime; NULL: there
                         never was a save in the background */
    int rank, ranks;
    const oari_disk *disk;
    char *path;
    int folder;    /* its descriptor */
    int lock_file; /* rank 0's, or -1 */
    int64_t pid;   /* that opened it */
    oar_checkpoint_opts opts;
    /* the plan of the last save, good as long as no rank's list changes */
    int planned;
    uint64_t list_hash[2];
    oari_ckpt_save_plan plan;
    oari_ckpt_file_layout layout;
    /* saves in the background */
    oari_worker *worker; /* its thread, or NULL */
    oari_ckpt_staging staging;
    oari_ckpt_gpu_copy gpu_copy; /* for arrays of a GPU */
    pthread_mutex_t lock;        /* guards the following */
    pthread_cond_t changed;
    int busy;                 /* a save is under way in the thread */
    int copied;               /* and what it needs has been copied */
    oari_ckpt_saving *saving; /* the last one, until the next call */
    oar_status ended;         /* how the last save ended, */
    oar_error failure;
    int told; /* and whether a call has returned that */
    oar_checkpoint_stats stats;
    /* while this rank writes or reads; the lock guards both */
    pthread_mutex_t slow_lock;
    oar_timeout_scope *slow;
    int64_t slow_since_ns;
};

/* Checks that a checkpoint may be used: it is not NULL, and this process opened
 * it. `call` is for the error. */
oar_status oari_ckpt_check(const oar_checkpoint *checkpoint, const char *call);

/* ---- background.c -------------------------------------------------------- */

/* Waits for a save that is under way. Returns its failure if `tell` and if no
 * call has returned that yet; else OAR_OK. */
oar_status oari_ckpt_settle(oar_checkpoint *checkpoint, int tell);

/* Returns whether a save is under way. */
int oari_ckpt_is_busy(oar_checkpoint *checkpoint);

/* Keeps how a save ended, and its stats if it ended well. */
void oari_ckpt_ended(oari_ckpt_saving *saving, oar_status status, int told);

/* ---- agree.c ------------------------------------------------------------- */

/* What the ranks agree on when a save begins. */
typedef struct oari_ckpt_call {
    int64_t step;     /* the same on all ranks, as are */
    uint64_t options; /* by oari_ckpt_options */
    int busy;         /* this rank refuses to wait for the save before */
    char id[17];      /* of the generation: chosen by rank 0, given to all */
} oari_ckpt_call;

/* Returns a save's options as one number. */
uint64_t oari_ckpt_options(const oar_save_opts *opts);

/* Like oari_ckpt_agree, on the group for calls; also OAR_E_MISMATCH if steps or
 * options differ, with two of them, and OAR_E_STATE if a rank is busy. */
oar_status oari_ckpt_agree_call(oar_checkpoint *checkpoint,
                                oari_ckpt_call *call, oar_status mine);

/* A number that must be the same on all ranks, as a call names it. */
typedef struct oari_ckpt_same {
    const char *name;
    int64_t number;
} oari_ckpt_same;

/* Returns OAR_E_MISMATCH on all ranks if one of the numbers is not the same on
 * all of them, with its name and two numbers. All ranks call it. */
oar_status oari_ckpt_agree_same(oar_checkpoint *checkpoint, const char *call,
                                int count, const oari_ckpt_same *same);

/* Returns OAR_OK if all ranks give OAR_OK; else, on all of them, the failure of
 * the lowest rank that gives another status, whose last error it is. All ranks
 * call it. */
oar_status oari_ckpt_agree(oar_checkpoint *checkpoint, oar_status mine);

/* How long a rank may be at work on files without a sign of progress, beyond
 * the group's timeout: to write a block, to sync a file, to read what it wants.
 * Tests shorten them. */
typedef struct oari_ckpt_limits {
    int64_t block_ms, sync_ms, read_ms;
} oari_ckpt_limits;
extern oari_ckpt_limits oari_ckpt_slow_limits;

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

/* The same of an open folder that may have any name; path is for errors. */
oar_status oari_ckpt_read_index_in(const oari_disk *disk, int generation,
                                   const char *path, char **text,
                                   size_t *bytes);

/* Checks that a file of an index is in the generation's folder with its size.
 */
oar_status oari_ckpt_check_file(const oari_disk *disk, int generation,
                                const char *what,
                                const oari_ckpt_index_file *file);

/* Fills in what an index says of its generation. */
void oari_ckpt_describe(const oari_ckpt_index *index,
                        oar_generation *generation);

/* Writes ", saved 14 s ago" of a generation, or nothing if its index cannot be
 * read. */
void oari_ckpt_age_text(const oari_disk *disk, int folder, int64_t step,
                        char *text, size_t bytes);

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

/* Opens a file of a generation by its path "SECTION/NAME"; a path without a
 * section is in the folder itself. */
oar_status oari_ckpt_open_file(const oari_disk *disk, int generation,
                               const char *what, const char *path, int how,
                               int *fd);

/* Rank 0 removes generations that need not be kept, and calls fn (or NULL) with
 * each of their steps before. The others wait for it at their next call. No
 * save may be under way. */
oar_status oari_ckpt_prune(oar_checkpoint *checkpoint, oar_prune_fn fn,
                           void *arg);

/* A file that this rank has written. */
typedef struct oari_ckpt_written {
    uint64_t bytes, data;
    OARI_VEC(uint64_t) sum;
} oari_ckpt_written;

#endif
