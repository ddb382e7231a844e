/* SPDX-License-Identifier: Apache-2.0 */
/* optim/optim_gpu.h: parameters on a GPU: all are moved by a few kernels, in
 * the order of the current stream, and the host does not wait. */
#ifndef OARI_OPTIM_OPTIM_GPU_H
#define OARI_OPTIM_OPTIM_GPU_H

#include "optim/optim.h"

/* Memory of a GPU that an optimizer needs for a step, kept from step to step.
 * Zero is none. */
struct oari_optim_gpu {
    oar_device device;
    void *memory;
    size_t bytes;
    struct oari_step_param *list; /* of the parameters that a step moves */
    int *index;                   /* of each in the optimizer */
    unsigned char *done;          /* by parameter: this step has moved it */
    int room;
    int scaled; /* steps went through a scaler there: some that were counted
                   may have been skipped */
};

static inline int oari_is_gpu(oar_device device)
{
    return device.kind == OAR_CUDA;
}

/* Frees what a step has needed. */
void oari_optim_gpu_close(oar_optim *optim);

/* Moves the states to where their parameters are, if those were moved, and
 * makes room for a step. OAR_E_DEVICE if the parameters are on several GPUs,
 * or on one and a hook wants to see each move; the error of an index that a
 * kernel has found (index_error.h). */
oar_status oari_optim_gpu_ready(oar_optim *optim);

/* Moves the parameters that are on a GPU and have gradients, which are as many
 * as *moved says; their steps are counted. clip: so that the norm of these
 * gradients is at most that; 0: as they are. norm, one f32 on that GPU, gets
 * the norm before; may be NULL. scaler, which may be NULL: unscales, or nothing
 * is moved because a gradient is not finite, and its scale changes; the host
 * does not know which. After oari_optim_gpu_ready. */
oar_status oari_optim_gpu_step(oar_optim *optim, double clip, oar_tensor *norm,
                               oar_scaler *scaler, int *moved);

/* Waits for the GPU to know which steps were skipped, and takes them out of the
 * numbers of steps. Does nothing without a scaler. */
void oari_optim_gpu_settle(oar_optim *optim);

/* The gradients of parameters, of which at least one is on a GPU, together:
 * gives the sum of their squares (waits for the GPU); and scales those on GPUs
 * so that the norm of all on one GPU is at most limit (does not wait unless
 * norm is given). All have to be on one GPU: OAR_E_DEVICE. */
oar_status oari_gpu_grad_squares(int count, oar_tensor *const *grad,
                                 double *squares);
oar_status oari_gpu_clip(int count, oar_tensor *const *grad, double limit,
                         double *norm);

#endif
