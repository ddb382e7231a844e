/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/cuda_step.h: an optimizer's step on all parameters of a GPU, and
 * the norm of their gradients, without the host. Memory for results is the
 * caller's, on that device. */
#ifndef OARI_TENSOR_CUDA_CUDA_STEP_H
#define OARI_TENSOR_CUDA_CUDA_STEP_H

#include "tensor/cuda/step_job.h"
#include "tensor/tensor.h"

/* All row-major and of one shape. grad has the parameter's dtype, or f32 for a
 * half; states and master are f64 for f64, else f32. */
typedef struct oari_step_param {
    oari_array param, grad;
    void *state[OARI_STEP_STATES]; /* those that the rule has */
    void *master;                  /* or NULL */
} oari_step_param;

/* Moves parameters by their gradients, times scale[0] unless NULL; not at all
 * if that is below 0. room: memory for the factors until the step has run;
 * factors NULL: they are there. skipped: so many of the steps that were counted
 * were not taken; may be NULL. */
oar_status oari_cuda_step(oari_step_rule rule, const oari_step_factors *factors,
                          oari_step_factors *room, const double *scale,
                          const double *skipped, int count,
                          const oari_step_param *param);

/* Multiplies gradients by scale[0]. */
oar_status oari_cuda_scale_grads(const double *scale, int count,
                                 const oari_step_param *param);

/* A scaler for oari_cuda_grad_norm: see oari_clip_job. */
typedef struct oari_step_scaler {
    oari_scaler_numbers *numbers;
    double *skipped;
    double interval;
} oari_step_scaler;

/* Gives numbers[0], the norm of all gradients, and numbers[1], what makes it at
 * most limit (1 if it is not finite); norm may be NULL. partial has room for
 * oari_cuda_squares_room numbers. At least one parameter. scaler may be NULL;
 * with one, numbers[1] is below 0 if a gradient is not finite. */
oar_status oari_cuda_grad_norm(int count, const oari_step_param *param,
                               double limit, double *partial, double *numbers,
                               float *norm, const oari_step_scaler *scaler);
int64_t oari_cuda_squares_room(int count, const oari_step_param *param);

#endif
