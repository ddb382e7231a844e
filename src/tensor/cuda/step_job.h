/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/step_job.h: the arguments of the kernels of step.cu, for C and
 * C++: stretches of parameters, as many as fit the arguments of a kernel. */
#ifndef OARI_TENSOR_CUDA_STEP_JOB_H
#define OARI_TENSOR_CUDA_STEP_JOB_H

#include <stdint.h>

enum {
    OARI_STEP_THREADS = 256,
    OARI_STEP_SHARE = 4096,   /* elements of a block */
    OARI_STEP_STRETCHES = 56, /* of a launch: an argument has 4 KiB */
    OARI_STEP_STATES = 3
};

typedef enum oari_step_rule {
    OARI_STEP_SGD,
    OARI_STEP_MOMENTUM,
    OARI_STEP_NESTEROV,
    OARI_STEP_ADAM,
    OARI_STEP_AMSGRAD
} oari_step_rule;

/* What is the same for all numbers that a step moves alike; the rule says which
 * are used. */
typedef struct oari_step_factors {
    double lr, decay, momentum; /* sgd */
    double keep;                /* adam: of the parameter */
    double take1, beta2, take2; /* 1 - beta1, beta2, 1 - beta2 */
    double root2;               /* of the second bias correction */
    double eps;
    double step;   /* the learning rate over the first bias correction */
    double number; /* of the step, which the bias corrections are of */
} oari_step_factors;

/* A loss scaler, in device memory: its scale, and the good steps since it last
 * changed. */
typedef struct oari_scaler_numbers {
    float scale, unused;
    double good;
} oari_scaler_numbers;

/* Numbers of one parameter, of the kernel's dtype W/T; the states are of what
 * that is computed in, as is grad if is_wide. */
typedef struct oari_step_stretch {
    void *param;
    void *grad;
    void *state[OARI_STEP_STATES];
    void *master; /* or NULL */
    int64_t count;
    uint32_t first_block;
    uint16_t is_wide;
    uint16_t is_packed; /* all arrays are aligned to 16 bytes */
} oari_step_stretch;

typedef struct oari_step_job {
    oari_step_stretch stretch[OARI_STEP_STRETCHES];
    const oari_step_factors *factors; /* device memory */
    const double *scale; /* of the gradients, device memory; NULL: 1; below 0:
                            nothing is moved */
    double *partial;     /* gets the squares of the gradients of each block */
    int stretches;
    oari_step_rule rule;
} oari_step_job;

/* Puts factors where kernels read them, unless they are there; and corrects
 * those of Adam for steps that were counted but not taken. */
typedef struct oari_step_factors_job {
    oari_step_factors factors;
    oari_step_factors *to;
    const double *skipped; /* device memory; NULL: none */
    int are_there;
} oari_step_factors_job;

/* One block: numbers[0] = the norm of all gradients, numbers[1] = what to
 * multiply them by so that it is at most `limit`; norm, unless NULL, gets
 * the norm as f32. With a scaler the gradients are those of a scaled loss: the
 * norm is that of the unscaled ones, and so numbers[1] unscales, too; if one is
 * not finite it is -1, and *skipped grows. The scale changes as
 * optim/scaler.c has it. */
typedef struct oari_clip_job {
    const double *partial;
    int64_t blocks;
    double limit;
    double *numbers;
    float *norm;
    oari_scaler_numbers *scaler; /* NULL: none */
    double *skipped;
    double interval; /* good steps that double the scale */
} oari_clip_job;

#endif
