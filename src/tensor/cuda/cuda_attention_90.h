/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/cuda_attention_90.h: attention of halves with heads of 64 or 128
 * by the kernels for Hopper GPUs. */
#ifndef OARI_TENSOR_CUDA_CUDA_ATTENTION_90_H
#define OARI_TENSOR_CUDA_CUDA_ATTENTION_90_H

#include "tensor/cpu/nn/attention.h"
#include "tensor/cuda/attention_job.h"

/* Whether the device is a Hopper GPU for which the kernels are there, and the
 * operands lie such that its engine for copies takes them. */
int oari_attend_90_is_for(const oari_attention *a);

/* job: as for attention_mma.cu. */
oar_status oari_attend_90(const oari_attention *a,
                          const oari_cuda_attention *job);
oar_status oari_attend_90_back(const oari_attention *a,
                               const oari_cuda_attention *job);
/* Numbers of scratch memory, f32, that backward needs. */
int64_t oari_attend_90_scratch(const oari_attention *a);

#endif
