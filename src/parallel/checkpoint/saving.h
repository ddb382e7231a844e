/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/saving.h: a save under way, and its larger phases. */
#ifndef OARI_PARALLEL_CHECKPOINT_SAVING_H
#define OARI_PARALLEL_CHECKPOINT_SAVING_H

#include "parallel/checkpoint/checkpoint.h"

/* A save under way. */
typedef struct oari_ckpt_saving {
    oar_checkpoint *c;
    const oar_state *state;
    int64_t step;
    oar_save_opts opts;
    oari_ckpt_part_list list;
    oari_ckpt_values values; /* of this rank; then, on rank 0, of all */
    void **copy;             /* by item: an array that is not as it is saved */
    const void **array;      /* by item */
    char id[17];
    char part_name[OARI_CKPT_STEP_NAME + 24];
    int generation; /* its folder, or -1 */
    oari_ckpt_written *written;
} oari_ckpt_saving;

/* Returns the dtype that an item is saved as. */
oar_dtype oari_ckpt_saved_dtype(const oari_ckpt_saving *saving,
                                const oari_ckpt_item *item);

/* Lists what this rank holds, and agrees with the others on plan and values. In
 * the steady state, when no list has changed and all ranks have the same
 * values, that is one all-reduce of 16 bytes. All ranks call it. */
oar_status oari_ckpt_agree_plan(oari_ckpt_saving *saving);

/* Sends the sizes and checksums of the files to rank 0. All ranks call it. */
oar_status oari_ckpt_gather_written(oari_ckpt_saving *saving);

/* Makes the generation what it is called: writes the index, syncs all folders,
 * renames the folder and syncs its parent. Rank 0 calls it. */
oar_status oari_ckpt_commit(oari_ckpt_saving *saving);

#endif
