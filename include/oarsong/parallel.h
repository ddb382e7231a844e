/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.h: parameters that are spread over several groups of ranks: cut over
 * some, the same on all ranks of others.
 *
 * The groups are given as an array, which every rank that calls has in the same
 * order, each with its own groups: the rows and columns of a mesh, say. They
 * must connect all ranks that call. NULL stands for a group of this rank alone.
 *
 * Threads: as for collectives, one at a time on each group.
 */
#ifndef OARSONG_PARALLEL_H
#define OARSONG_PARALLEL_H

#include <oarsong/group.h>
#include <oarsong/optim.h>

OAR_BEGIN_DECLS

enum { OAR_OVER_GROUPS = 8 }; /* at most, in one call */

/* What a rank holds of a parameter. */
typedef struct oar_clip_part {
    oar_tensor *param;
    unsigned cut; /* bit i: the ranks of group i hold parts of their own; clear:
                      they all hold the same, and rank 0 of the group counts */
    int uncounted; /* scaled, but counted by another rank: the second copy of a
                      parameter that two stages of a pipeline share */
} oar_clip_part;

/* Scales all gradients of all ranks so that the 2-norm of all of them together
 * is at most limit, and gives the norm before that (norm may be NULL): the same
 * bits on all ranks. Ranks may have different parameters, or none. One that is
 * given twice counts once. Unwritten gradients do not count. If the norm is not
 * finite they all stay as they are.
 *
 * All ranks of all groups call it. It is one all-reduce of a few numbers in
 * each group, in the order given. If a rank cannot take part (its data is
 * detached, an argument is wrong) it returns why, the others return
 * OAR_E_STATE, and no gradient has changed. */
#define oar_clip_grad_norm_over(groups, group, count, part, limit, norm)    \
    oar_clip_grad_norm_over_at(OAR_HERE, groups, group, count, part, limit, \
                               norm)
OAR_API oar_status oar_clip_grad_norm_over_at(
    const char *file, int line, int groups, oar_group *const *group, int count,
    const oar_clip_part *part, double limit, double *norm);

/* oar_scaler_step that all ranks take, or none: they step if the gradients of
 * all ranks are finite, else all skip the step. Unscales the gradients if that
 * has not been done. The scales of all ranks then stay the same; where they
 * differ before, all get OAR_E_MISMATCH.
 *
 * All ranks of all groups call it; one small all-reduce in each. If a rank
 * cannot step it returns why, all others return OAR_E_STATE, and no rank has
 * stepped. Hooks of the optimizer run after that: one that fails on one rank
 * only leaves the others with their step. */
#define oar_scaler_step_over(groups, group, scaler, optim, stepped) \
    oar_scaler_step_over_at(OAR_HERE, groups, group, scaler, optim, stepped)
OAR_API oar_status oar_scaler_step_over_at(const char *file, int line,
                                           int groups, oar_group *const *group,
                                           oar_scaler *scaler, oar_optim *optim,
                                           int *stepped);

OAR_END_DECLS

#endif
