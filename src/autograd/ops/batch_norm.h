/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/batch_norm.h: batch norm with a counter of batches. */
#ifndef OARI_AUTOGRAD_OPS_BATCH_NORM_H
#define OARI_AUTOGRAD_OPS_BATCH_NORM_H

#include <oarsong/ops.h>

/* What a batch norm is given. */
typedef struct oari_batch_norm_given {
    oar_tensor *x, *weight, *bias, *mean, *var; /* the last two running ones */
    oar_tensor *batches; /* i64 on the GPU that x is on, counted up there; a
                            momentum below 0 is then 1 / batches. Or NULL */
    int training;
    double momentum, eps;
    const oar_batch_norm_merge *merge; /* or NULL */
} oari_batch_norm_given;

oar_tensor *oari_batch_norm_apply(oar_tape *tape,
                                  const oari_batch_norm_given *given);

#endif
