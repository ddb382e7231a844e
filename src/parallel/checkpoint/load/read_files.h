/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint/load/read_files.h: reads the ranges of a plan, block by block,
 * compares every block with its checksum, and puts the wanted bytes where they
 * belong. */
#ifndef OARI_PARALLEL_CHECKPOINT_LOAD_READ_FILES_H
#define OARI_PARALLEL_CHECKPOINT_LOAD_READ_FILES_H

#include "file/disk.h"
#include "parallel/checkpoint/generation_index.h"
#include "parallel/checkpoint/load/read_plan.h"

/* Returns how many bytes between two ranges are read rather than skipped: at
 * most a block, so that no block is read of which nothing is wanted. */
static inline uint64_t oari_ckpt_join_gap(const oari_ckpt_index *index)
{
    enum { GAP = 256 << 10 };

    return index->block_bytes < GAP ? index->block_bytes : GAP;
}

/* Adds boxes that are wanted of a tensor of an index: see
 * oari_ckpt_read_plan_add. */
oar_status oari_ckpt_read_plan_wanted(oari_ckpt_read_plan *plan,
                                      const oari_ckpt_index *index,
                                      const oari_ckpt_index_tensor *tensor,
                                      int64_t count,
                                      const oari_ckpt_wanted *wanted);

typedef struct oari_ckpt_reading {
    const oari_disk *disk;
    int folder;       /* of the generations */
    const char *name; /* of the generation in it; NULL: that of its step */
    const char *path; /* for errors */
    const oari_ckpt_index *index;
    const oari_ckpt_read_plan *plan; /* finished */
    void *const *target;             /* by the plan's numbers */
    int threads, no_verify;
    int buffered;    /* through the page cache */
    int rank, ranks; /* that read at the same time; 0: this one only */
    uint64_t bytes;  /* out: how many were read */
} oari_ckpt_reading;

/* Memory: `threads` buffers of one block. OAR_E_DATA with file, block and both
 * sums for damage; then some targets may have been written. */
oar_status oari_ckpt_read_files(oari_ckpt_reading *reading);

#endif
