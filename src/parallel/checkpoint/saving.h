/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/saving.h: a save under way, and its larger phases. */
#ifndef OARI_PARALLEL_CHECKPOINT_SAVING_H
#define OARI_PARALLEL_CHECKPOINT_SAVING_H

#include "base/call_site.h"
#include "parallel/checkpoint/checkpoint.h"

/* A save under way. What comes after the copy does not look at the state. */
struct oari_ckpt_saving {
    oar_checkpoint *c;
    const oar_state *state; /* until it has been copied */
    int64_t step;
    oar_save_opts opts;
    char note[208];
    oari_ckpt_part_list list;
    oari_ckpt_values values; /* of this rank; then of all */
    oari_ckpt_images images; /* of the files that this rank writes */
    /* arrays.c */
    int64_t items;      /* of the state */
    const void **array; /* by item, in host memory, as they are saved, or NULL:
                           it is converted when it is needed */
    void **copy;        /* by item: owned */
    int64_t current;    /* the item that was converted last, or -1, */
    void *converted;    /* and its numbers */
    int fetched; /* arrays of a GPU are on their way to pinned memory, which
                    the files are written from */
    int staged;  /* the files are written from the staging memory */
    /* background.c */
    oari_job job;
    char id[17];
    char part_name[OARI_CKPT_STEP_NAME + 24];
    int generation; /* its folder, or -1 */
    oari_ckpt_written *written;
    oar_checkpoint_stats stats;
    int64_t start_ns;
    oari_call_site site; /* the user's call, for the thread */
};

/* Returns the dtype that an item is saved as. */
oar_dtype oari_ckpt_saved_dtype(const oari_ckpt_saving *saving,
                                const oari_ckpt_item *item);

/* Lists what this rank holds, and agrees with the others on plan and values. In
 * the steady state, when no list has changed and all ranks have the same
 * values, that is one all-reduce of 16 bytes. All ranks call it. */
oar_status oari_ckpt_agree_plan(oari_ckpt_saving *saving);

/* Makes the folder step-N.part-ID with its sections and opens it: OAR_E_STATE
 * if the step is there. Rank 0 calls it. */
oar_status oari_ckpt_make_part(oari_ckpt_saving *saving);

/* Removes what a save that failed has left, without hiding why it failed. */
void oari_ckpt_remove_part(const oari_ckpt_saving *saving);
/* ---- arrays.c ------------------------------------------------------------ */

/* Finds the arrays of the state. Those that are not in host memory, row by row,
 * in the dtype that is saved are converted: at once if the save is not in the
 * background. A lazy save copies at once what changes without an optimizer.
 * Those of a GPU are fetched into pinned memory, if all have room within the
 * staging memory that is allowed; then the others are copied at once, too, in
 * the background. used: by item, which this rank writes; NULL: all. */
oar_status oari_ckpt_find_arrays(oari_ckpt_saving *saving,
                                 const unsigned char *used);
void oari_ckpt_free_arrays(oari_ckpt_saving *saving);

/* Gives the numbers of an item (an oari_ckpt_array_fn). In the background one
 * that is converted stays until the next one is: one thread calls this. */
oar_status oari_ckpt_array(void *saving, int64_t item, const void **array);

/* ---- replicas.c ---------------------------------------------------------- */

/* Compares what several ranks hold: OAR_E_MISMATCH on all of them with the name
 * of a tensor and two ranks. All ranks call it. */
oar_status oari_ckpt_check_replicas(oari_ckpt_saving *saving);

/* ---- save.c -------------------------------------------------------------- */

/* Makes, writes and commits the generation, and prunes. All ranks call it. */
oar_status oari_ckpt_run_phases(oari_ckpt_saving *saving);
void oari_ckpt_saving_free(oari_ckpt_saving *saving); /* NULL is fine */

/* ---- write_files.c ------------------------------------------------------- */

/* Writes the images into the folder of the generation, and syncs them: from the
 * staging memory, or from the arrays. */
oar_status oari_ckpt_write_files(oari_ckpt_saving *saving);

/* ---- commit.c ------------------------------------------------------------ */

/* Sends the sizes and checksums of the files to rank 0. All ranks call it. */
oar_status oari_ckpt_gather_written(oari_ckpt_saving *saving);

/* Makes the generation what it is called: writes the index, syncs all folders,
 * renames the folder and syncs its parent. Rank 0 calls it. */
oar_status oari_ckpt_commit(oari_ckpt_saving *saving);

/* Writes the index that makes a folder of whole models one of Hugging Face. */
oar_status oari_ckpt_write_weight_map(const oari_ckpt_saving *saving,
                                      int folder);
/* ---- background.c -------------------------------------------------------- */

/* Gets ready for a save in the background: the thread, the staging memory, and
 * for a lazy one the optimizers. */
oar_status oari_ckpt_background_prepare(oari_ckpt_saving *saving);

/* Makes the group for calls that come while a save is under way, once. All
 * ranks call it. */
oar_status oari_ckpt_background_group(oar_checkpoint *checkpoint);

/* Takes the save over, and returns when the numbers have been copied; a lazy
 * one, at once. */
void oari_ckpt_background_start(oari_ckpt_saving *saving);

/* Copies into the staging memory, for a lazy save that has not room for all of
 * it, while others write. */
void oari_ckpt_background_copy(oari_ckpt_saving *saving);

#endif
