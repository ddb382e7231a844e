/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint/load/read_plan.h: which bytes of which files are read for what
 * a rank wants, and where they go.
 *
 * What is wanted of a tensor is compared with its chunks. What they have in
 * common are fetches: boxes whose bytes lie close together in a file. Fetches
 * that are closer than the plan's gap are read in one range. The runs of a
 * fetch are walked through when its bytes are there (oari_box_runs_start), so
 * that the plan is small, however thin the columns are that are wanted. */
#ifndef OARI_PARALLEL_CHECKPOINT_LOAD_READ_PLAN_H
#define OARI_PARALLEL_CHECKPOINT_LOAD_READ_PLAN_H

#include "base/vec.h"
#include "parallel/checkpoint/part_list.h"

/* A chunk of a tensor in a file, row by row. */
typedef struct oari_ckpt_stored {
    oari_box box;
    int64_t file;
    uint64_t at; /* bytes from the start of the file */
} oari_ckpt_stored;

/* A box of a tensor that is to lie row by row in memory of the caller's. */
typedef struct oari_ckpt_wanted {
    oari_box box;
    int64_t target; /* which memory: the caller's number */
    uint64_t at;    /* bytes from its start */
} oari_ckpt_wanted;

typedef struct oari_ckpt_fetch {
    uint64_t at, bytes; /* in the file: from its first byte to its last one */
    oari_box box;
    oari_ckpt_stored from; /* box lies in both of these */
    oari_ckpt_wanted to;
    size_t element;
} oari_ckpt_fetch;

typedef struct oari_ckpt_range {
    int64_t file;
    uint64_t at, bytes;
    int64_t first, count; /* of the plan's fetches */
} oari_ckpt_range;

/* Zeros, but for gap, are an empty plan. */
typedef struct oari_ckpt_read_plan {
    uint64_t gap; /* bytes: what is less far apart is read at once */
    OARI_VEC(oari_ckpt_fetch) fetch; /* once finished: by file and place */
    OARI_VEC(oari_ckpt_range) range; /* once finished */
    OARI_VEC(oari_box) common;       /* while a tensor is added */
    uint64_t wanted_bytes, read_bytes;
} oari_ckpt_read_plan;

/* Adds boxes that are wanted of a tensor, of which `chunks` are stored, sorted
 * by oari_box_compare. OAR_E_SHAPE if a wanted box is not in the tensor;
 * OAR_E_DATA if the chunks are not what they should be or do not have each
 * wanted element exactly once. After a failure the plan can only be freed. */
oar_status oari_ckpt_read_plan_add(oari_ckpt_read_plan *plan,
                                   const oari_ckpt_tensor *tensor,
                                   int64_t chunks,
                                   const oari_ckpt_stored *stored,
                                   int64_t count,
                                   const oari_ckpt_wanted *wanted);

/* Sorts the fetches and joins them to ranges. */
oar_status oari_ckpt_read_plan_finish(oari_ckpt_read_plan *plan);

void oari_ckpt_read_plan_free(oari_ckpt_read_plan *plan); /* empties it */

#endif
