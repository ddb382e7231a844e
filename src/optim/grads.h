/* SPDX-License-Identifier: Apache-2.0 */
/* optim/grads.h: arithmetic over whole gradients, of any float dtype: f32 and
 * f64 where they lie, half types block by block in f32. They are contiguous;
 * the caller has checked that their data is there. */
#ifndef OARI_OPTIM_GRADS_H
#define OARI_OPTIM_GRADS_H

#include <oarsong/tensor.h>

/* Gives the sum of the squares of all these gradients, in f64, added up one
 * gradient after the other. The host waits for those on a GPU. */
oar_status oari_grads_squares(int count, oar_tensor *const *grad,
                              double *squares);

/* Says whether no number is infinite or NaN. The host waits as above. */
oar_status oari_grads_finite(int count, oar_tensor *const *grad, int *finite);

/* These fail on a GPU only. */
oar_status oari_grad_scale(oar_tensor *grad, double factor);

/* Cuts the numbers to [-limit, limit]; NaN stays. */
oar_status oari_grad_clamp(oar_tensor *grad, double limit);

#endif
