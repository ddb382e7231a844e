/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint/load/share.h: what several ranks want of a generation is read
 * by one of them and sent to the others. */
#ifndef OARI_PARALLEL_CHECKPOINT_LOAD_SHARE_H
#define OARI_PARALLEL_CHECKPOINT_LOAD_SHARE_H

#include "parallel/checkpoint/checkpoint.h"

/* A box that this rank wants, of at least one element. */
typedef struct oari_ckpt_want {
    const oari_ckpt_index_tensor *tensor;
    oari_box box;
    int shared; /* out: all of it has been read here or sent */
} oari_ckpt_want;

typedef struct oari_ckpt_sharing {
    oar_checkpoint *c;
    const oari_ckpt_index *index;
    int no_verify;
    int64_t wants;
    oari_ckpt_want *want;
    /* Gives memory for all of a want, row by row, before the first of it is
     * there; and is told when all of it is. */
    oar_status (*begin)(void *arg, int64_t want, void **memory);
    oar_status (*end)(void *arg, int64_t want);
    void *arg;
    uint64_t bytes, wanted; /* out: how many were read here, and needed */
} oari_ckpt_sharing;

/* Reads the boxes that another rank wants as well. All ranks call it. Memory:
 * four pieces of four blocks. After a failure of this rank's own it goes on
 * with the others to the end, so that all ranks can agree then. */
oar_status oari_ckpt_share(oari_ckpt_sharing *sharing);

/* Gives whether the ranks are on several hosts. All ranks call it. */
oar_status oari_ckpt_on_several_hosts(oar_checkpoint *checkpoint, int *several);

#endif
