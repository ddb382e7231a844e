/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/move_run.h: moves the data of a tensor along a path. */
#ifndef OARI_PARALLEL_DTENSOR_MOVE_RUN_H
#define OARI_PARALLEL_DTENSOR_MOVE_RUN_H

#include <oarsong/collective.h>

#include "parallel/dtensor/move_plan.h"

/* Copies the elements that two parts have in common from the memory of one to
 * that of the other. packed: that side has only these elements, one piece
 * behind the other. Returns how many there are; with to NULL it only counts. */
int64_t oari_copy_common(const oari_part *from, const oari_part *to,
                         size_t element, const void *from_data, int from_packed,
                         void *to_data, int to_packed);

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
