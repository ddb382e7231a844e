/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_parallel.h: one model of which every rank of a group computes a part
 * (tensor parallel), and what such models are made of.
 *
 * A dim of `whole` elements is cut into nearly equal parts, one for each rank
 * in their order, the first ones larger: 5 heads on 2 ranks are 3 and 2, and a
 * rank may have none. All ranks of the group run the same operations in the
 * same order.
 *
 * Threads: one model by one thread at a time, one group by one thread at a
 * time.
 */
#ifndef OARSONG_TENSOR_PARALLEL_H
#define OARSONG_TENSOR_PARALLEL_H

#include <oarsong/group.h>
#include <oarsong/models.h>

OAR_BEGIN_DECLS

/* Returns how many of `whole` elements rank `rank` of `ranks` has, and the
 * first of them in *first (may be NULL). 0 if there is no such rank. */
OAR_API int64_t oar_tp_part(int64_t whole, int rank, int ranks, int64_t *first);

/* ---- moving activations --------------------------------------------------
 * Operations on tensors of floats, recorded as those of ops.h are. Each is a
 * collective of the group, forward, backward or both:
 *
 *                          forward             backward
 *   oar_tp_copy            x itself            all_reduce of the gradient
 *   oar_tp_all_reduce      all_reduce          the gradient itself
 *   oar_tp_all_gather      all_gather          reduce_scatter
 *   oar_tp_reduce_scatter  reduce_scatter      all_gather
 *   oar_tp_gather          all_gather          this rank's part
 *   oar_tp_scatter         this rank's part    all_gather
 *
 * oar_tp_copy and oar_tp_all_gather go before what each rank computes another
 * part of; oar_tp_all_reduce and oar_tp_reduce_scatter after it. What follows
 * oar_tp_gather, and what went before oar_tp_scatter, is the same on all ranks.
 * Sums are over the ranks.
 *
 * dim is cut as above; negative: from the end. Those that gather are told its
 * size in the whole; a part of another size is OAR_E_SHAPE, on this rank only.
 * Results that lie in shared memory (oar_tape_share) are written in place. */
#define oar_tp_copy(tape, x, group) oar_tp_copy_at(OAR_HERE, tape, x, group)
OAR_API oar_tensor *oar_tp_copy_at(const char *file, int line, oar_tape *tape,
                                   oar_tensor *x, oar_group *group);
#define oar_tp_all_reduce(tape, x, group) \
    oar_tp_all_reduce_at(OAR_HERE, tape, x, group)
OAR_API oar_tensor *oar_tp_all_reduce_at(const char *file, int line,
                                         oar_tape *tape, oar_tensor *x,
                                         oar_group *group);
#define oar_tp_all_gather(tape, x, group, dim, whole) \
    oar_tp_all_gather_at(OAR_HERE, tape, x, group, dim, whole)
OAR_API oar_tensor *oar_tp_all_gather_at(const char *file, int line,
                                         oar_tape *tape, oar_tensor *x,
                                         oar_group *group, int dim,
                                         int64_t whole);
#define oar_tp_reduce_scatter(tape, x, group, dim) \
    oar_tp_reduce_scatter_at(OAR_HERE, tape, x, group, dim)
OAR_API oar_tensor *oar_tp_reduce_scatter_at(const char *file, int line,
                                             oar_tape *tape, oar_tensor *x,
                                             oar_group *group, int dim);
#define oar_tp_gather(tape, x, group, dim, whole) \
    oar_tp_gather_at(OAR_HERE, tape, x, group, dim, whole)
OAR_API oar_tensor *oar_tp_gather_at(const char *file, int line, oar_tape *tape,
                                     oar_tensor *x, oar_group *group, int dim,
                                     int64_t whole);
#define oar_tp_scatter(tape, x, group, dim) \
    oar_tp_scatter_at(OAR_HERE, tape, x, group, dim)
OAR_API oar_tensor *oar_tp_scatter_at(const char *file, int line,
                                      oar_tape *tape, oar_tensor *x,
                                      oar_group *group, int dim);

OAR_END_DECLS

#endif
