/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/tiling.h: whether boxes cover a whole box without gaps,
 * each element once. */
#ifndef OARI_PARALLEL_CHECKPOINT_TILING_H
#define OARI_PARALLEL_CHECKPOINT_TILING_H

#include "parallel/place/box.h"

typedef enum oari_ckpt_tiling_kind {
    OARI_CKPT_TILED,   /* each element once */
    OARI_CKPT_OVERLAP, /* two boxes have an element in common */
    OARI_CKPT_GAP      /* no box has an element */
} oari_ckpt_tiling_kind;

typedef struct oari_ckpt_tiling {
    oari_ckpt_tiling_kind kind;
    /* OVERLAP: the two boxes, the smaller number first. GAP: the boxes that
     * begin last before it and first after it, or -1. */
    int64_t box[2];
    oari_box where; /* OVERLAP: what they have in common. GAP: a box of
                            missing elements, with the first missing one */
} oari_ckpt_tiling;

/* Looks for an overlap, then for a gap. Every box lies in `whole`; an empty one
 * neither covers nor overlaps anything. It sweeps along the dim that the fewest
 * boxes cross, so that it compares a box with those beside it, not with all.
 * OAR_E_NOMEM. */
oar_status oari_ckpt_tile(const oari_box *whole, int64_t count,
                          const oari_box *box, oari_ckpt_tiling *tiling);

#endif
