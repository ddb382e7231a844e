/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/loss.h: what losses have in common. */
#ifndef OARI_AUTOGRAD_OPS_LOSS_H
#define OARI_AUTOGRAD_OPS_LOSS_H

#include <oarsong/ops.h>

#include "autograd/record.h"

/* Checks that weights, which may be NULL, have the dtype of a and want no
 * gradient. Shapes are the caller's to check. */
oar_status oari_check_weight(const char *name, oar_tape *tape,
                             const oar_tensor *a, oar_tensor *weight);
oar_status oari_weight_mismatch(const char *name, const oar_tensor *a,
                                const oar_tensor *weight, const char *why);

/* Checks what a cross entropy is given. Targets are below `classes`, which is
 * what logits has if it is negative. */
oar_status oari_check_cross_entropy(oar_tape *tape, oar_tensor *logits,
                                    oar_tensor *target,
                                    const oar_cross_entropy_opts *o,
                                    int64_t classes);

/* Returns the gradient of a loss that is one number. */
double oari_grad_number(const oari_node *node);

#endif
