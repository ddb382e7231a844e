/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/read_files.h: reads the ranges of a plan, block by block,
 * compares every block with its checksum, and puts the wanted bytes where they
 * belong. */
#ifndef OARI_PARALLEL_CHECKPOINT_READ_FILES_H
#define OARI_PARALLEL_CHECKPOINT_READ_FILES_H

#include "file/disk.h"
#include "parallel/checkpoint/generation_index.h"
#include "parallel/checkpoint/read_plan.h"

typedef struct oari_ckpt_reading {
    const oari_disk *disk;
    int folder;       /* of the generations */
    const char *path; /* of it, for errors */
    const oari_ckpt_index *index;
    const oari_ckpt_read_plan *plan; /* finished */
    void *const *target;             /* by the plan's numbers */
    int threads, no_verify;
    uint64_t bytes; /* out: how many were read */
} oari_ckpt_reading;

/* Memory: `threads` buffers of one block. OAR_E_DATA with file, block and both
 * sums for damage; then some targets may have been written. */
oar_status oari_ckpt_read_files(oari_ckpt_reading *reading);

#endif
