/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/save_plan.h: which rank writes what of which tensor.
 *
 * A pure function of the lists of all ranks: every rank makes the same plan.
 * Ranks that list the same box of the same name hold the same numbers, and one
 * of them writes it. */
#ifndef OARI_PARALLEL_CHECKPOINT_SAVE_PLAN_H
#define OARI_PARALLEL_CHECKPOINT_SAVE_PLAN_H

#include "parallel/checkpoint/part_list.h"

/* The section whose tensors are kept whole where that is possible, so that its
 * folder is one of Hugging Face. */
#define OARI_CKPT_MODEL "model"

typedef struct oari_ckpt_save_opts {
    int writers;         /* ranks that write what several hold, spread evenly;
                            0: all. What one rank alone holds it writes */
    int64_t whole_bytes; /* replicas of up to so many bytes are not cut; 0 means
                            64 KiB */
} oari_ckpt_save_opts;

/* What one rank writes of a tensor at one place of a file. */
typedef struct oari_ckpt_chunk {
    int64_t tensor; /* of the plan */
    int writer;
    int64_t replicas; /* how many ranks hold it */
    oari_box box;     /* what is written, */
    oari_box part;    /* a box of this part, which is in the writer's list */
} oari_ckpt_chunk;

typedef struct oari_ckpt_saved_tensor {
    oari_ckpt_tensor is;
    int64_t first, chunks; /* of the plan: the boxes, sorted, cover it once */
} oari_ckpt_saved_tensor;

typedef struct oari_ckpt_save_plan {
    int ranks;
    OARI_VEC(oari_ckpt_saved_tensor) tensor; /* by section, then by name */
    OARI_VEC(oari_ckpt_chunk) chunk;         /* by tensor, then by box */
    uint64_t *load;                          /* bytes that each rank writes */
    uint64_t bytes;                          /* of all ranks */
    char *text;
} oari_ckpt_save_plan;

/* Makes the plan; it keeps nothing of the lists. All ranks add the lists in the
 * same order. Fails as every rank does:
 *   OAR_E_MISMATCH  two ranks give a tensor another dtype, kind or shape;
 *   OAR_E_ARG       parts of a tensor overlap without being the same, or leave
 *                   a gap. */
oar_status oari_ckpt_save_plan_make(const oari_ckpt_lists *lists,
                                    const oari_ckpt_save_opts *opts,
                                    oari_ckpt_save_plan *plan);
void oari_ckpt_save_plan_free(oari_ckpt_save_plan *plan); /* empties it */

/* Returns whether all chunks of a tensor are one: all of it. */
int oari_ckpt_is_whole(const oari_ckpt_save_plan *plan, int64_t tensor);

#endif
