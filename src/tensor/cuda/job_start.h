/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/job_start.h: what starts of kernels have in common. */
#ifndef OARI_TENSOR_CUDA_JOB_START_H
#define OARI_TENSOR_CUDA_JOB_START_H

#include "device/cuda/cuda.h"
#include "tensor/cuda/arith_job.h"
#include "tensor/tensor.h"

enum { MOST_BLOCKS = 8192 };

/* Starts a kernel, whose only argument is the job, with a thread for each of
 * `count` things, up to a limit; threads then take several. Does nothing for
 * none. On the thread's current stream. */
oar_status oari_cuda_start_flat(oar_device device, oari_cuda_kernel_ref *ref,
                                int64_t count, void *job);

/* Returns an array without its strides. One element on the cpu is read. */
oari_job_array oari_job_array_of(const oari_array *a);

/* Returns what numbers of this dtype are computed in (oari_job_numbers). */
int oari_job_numbers_of(oar_dtype dtype);

#endif
