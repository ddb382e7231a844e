/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/save_staging.h: memory that blocks of files are copied
 * into before they are written, so that what they were copied from may change.
 *
 * One thread copies, block by block; others write the blocks in any order. The
 * place of each block is known beforehand: blocks lie one behind the other,
 * none over the end, and begin again at the start. A block may be copied when
 * all those before it that lie there have been written. */
#ifndef OARI_PARALLEL_CHECKPOINT_SAVE_STAGING_H
#define OARI_PARALLEL_CHECKPOINT_SAVE_STAGING_H

#include <pthread.h>

#include "parallel/checkpoint/file_image.h"

typedef struct oari_ckpt_staging {
    unsigned char *memory; /* kept for the next save; at a multiple of 4096 */
    size_t bytes;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* of the save that uses it; the lock guards the rest */
    int64_t blocks;
    uint64_t *place; /* of each block, as if memory never ended; and the end */
    unsigned char *written; /* by block */
    int64_t copied;         /* so many blocks */
    int64_t oldest;         /* block that is not written */
    int stopped;
    oar_error failure; /* why, if a copy failed */
} oari_ckpt_staging;

void oari_ckpt_staging_init(oari_ckpt_staging *staging);
void oari_ckpt_staging_free(oari_ckpt_staging *staging);

/* Makes room for the blocks of a save: all of them, or at most `limit` bytes
 * (0: no limit), but at least one block. OAR_E_NOMEM. */
oar_status oari_ckpt_staging_begin(oari_ckpt_staging *staging,
                                   const oari_ckpt_images *images,
                                   size_t limit);

/* Returns whether all blocks have room at once. */
int oari_ckpt_staging_holds_all(const oari_ckpt_staging *staging);

/* Copies all blocks, in order; waits for room. One that was stopped in the
 * meantime is OAR_OK. A failure stops it. */
oar_status oari_ckpt_staging_copy(oari_ckpt_staging *staging,
                                  const oari_ckpt_images *images,
                                  oari_ckpt_array_fn *find, void *arg);

/* Waits until a block has been copied, and gives it; fails if it never will
 * be, as the copy did. The caller then says that it is written. */
oar_status oari_ckpt_staging_take(oari_ckpt_staging *staging, int64_t block,
                                  const unsigned char **bytes);
void oari_ckpt_staging_written(oari_ckpt_staging *staging, int64_t block);

/* Ends all waiting: no more blocks are copied or written. */
void oari_ckpt_staging_stop(oari_ckpt_staging *staging);

#endif
