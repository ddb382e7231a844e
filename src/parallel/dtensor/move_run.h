/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/move_run.h: moves the data of a tensor along a path. */
#ifndef OARI_PARALLEL_DTENSOR_MOVE_RUN_H
#define OARI_PARALLEL_DTENSOR_MOVE_RUN_H

#include <oarsong/collective.h>

#include "parallel/dtensor/move_plan.h"

/* Where a part's elements lie, row by row: in memory of the host, from `data`
 * on; or in a contiguous tensor on a GPU, from element `first` on. packed: only
 * the elements that are copied are there, one box behind the other. */
typedef struct oari_place {
    char *data;
    oar_tensor *tensor; /* borrowed; NULL: the host's */
    int64_t first;
    int packed;
} oari_place;

/* Returns the place of a contiguous tensor, of which this is the span. */
oari_place oari_place_of(const oar_tensor *tensor, const oar_span *span);
/* Moves a place on by elements of that size. */
void oari_place_skip(oari_place *place, int64_t elements, size_t element);

/* Copies the elements that two parts have in common from one place to the
 * other; on a GPU in the order of the current stream. Both places are on one
 * device. */
oar_status oari_copy_common(const oari_part *from, const oari_part *to,
                            size_t element, const oari_place *from_at,
                            const oari_place *to_at);

/* Checks that the mesh of a spec can move data now. call is for messages. */
oar_status oari_move_ready(const oar_spec *spec, const char *call);

/* Compares the path with those of the other ranks, the first time it is used.
 */
oar_status oari_move_compare(oari_move_path *path);

/* Fills `out`, which has the shape of this rank's part at the path's end, from
 * `in`, its part at the start. Both are contiguous. All ranks call it. */
oar_status oari_move_run(oari_move_path *path, const oar_tensor *in,
                         oar_tensor *out);

#endif
