/* SPDX-License-Identifier: Apache-2.0 */
/* optim/grads.h: arithmetic over whole gradients, of any float dtype: f32 and
 * f64 where they lie, half types block by block in f32. They are contiguous;
 * the caller has checked that their data is there. */
#ifndef OARI_OPTIM_GRADS_H
#define OARI_OPTIM_GRADS_H

#include <oarsong/tensor.h>

/* Returns the sum of the squares, in f64. */
double oari_grad_squares(const oar_tensor *grad);

void oari_grad_scale(oar_tensor *grad, double factor);

/* Cuts the numbers to [-limit, limit]; NaN stays. */
void oari_grad_clamp(oar_tensor *grad, double limit);

/* Returns whether no number is infinite or NaN. */
int oari_grad_finite(const oar_tensor *grad);

#endif
