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
    .softmax = oari_cuda_softmax,
    .softmax_back = oari_cuda_softmax_back,
    .log_softmax = oari_cuda_log_softmax,
    .log_softmax_back = oari_cuda_log_softmax_back,
    .dropout = oari_cuda_dropout,
    .layer_norm = oari_cuda_layer_norm,
    .layer_norm_again = oari_cuda_layer_norm_again,
    .layer_norm_back = oari_cuda_layer_norm_back,
    .rotary_angles = oari_cuda_rotary_angles,
    .rotary = oari_cuda_rotary,
};
