/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_table: the kernels that GPUs have. */
#include "tensor/cuda/cuda_kernels.h"

const oari_kernel_table oari_cuda_kernels = {
    .async = 1,
    .copy = oari_cuda_copy,
    .fill = oari_cuda_fill,
    .scale = oari_cuda_scale,
    .sum_to = oari_cuda_sum_to,
    .binary = oari_cuda_binary,
};
