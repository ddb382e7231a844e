/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/tensor_parallel/tensor_parallel.h: the inside of tensor parallel
 * models.
 *
 *   tp_move.c  moves along a dim over the ranks of a group
 *   tp_ops.c   the differentiable operations made of them
 */
#ifndef OARI_PARALLEL_TENSOR_PARALLEL_TENSOR_PARALLEL_H
#define OARI_PARALLEL_TENSOR_PARALLEL_TENSOR_PARALLEL_H

#include <oarsong/tensor_parallel.h>

/* ---- tp_move.c ----------------------------------------------------------- */

/* How a whole is cut: `outer` runs of `size` slices of `inner` elements, of
 * which every rank has a range in each run. */
typedef struct oari_tp_layout {
    oar_group *group;
    int64_t outer, size, inner;
} oari_tp_layout;

/* Returns the layout of a whole that is cut along dim. */
oari_tp_layout oari_tp_layout_along(oar_group *group, oar_shape whole, int dim);

/* Returns the layout, given the shapes of a whole and of this rank's part. */
oari_tp_layout oari_tp_layout_of(oar_group *group, oar_shape whole,
                                 oar_shape part);

/* Move between contiguous tensors that are apart, of one dtype: all parts into
 * the whole on every rank, the sum of the ranks' wholes into each rank's part,
 * and, without the others, the own part out of the whole. */
oar_status oari_tp_move_gather(const oari_tp_layout *layout,
                               const oar_tensor *part, oar_tensor *whole);
oar_status oari_tp_move_reduce_scatter(const oari_tp_layout *layout,
                                       const oar_tensor *whole,
                                       oar_tensor *part);
oar_status oari_tp_move_own(const oari_tp_layout *layout,
                            const oar_tensor *whole, oar_tensor *part);
oar_status oari_tp_move_all_reduce(oar_group *group, const oar_tensor *from,
                                   oar_tensor *to);

#endif
