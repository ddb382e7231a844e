/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/cuda_kernels.h: the kernels of GPUs. Each does what the cpu's of
 * the same name does (kernel_table.h says where that is written), in the order
 * of the thread's current stream of the device. */
#ifndef OARI_TENSOR_CUDA_CUDA_KERNELS_H
#define OARI_TENSOR_CUDA_CUDA_KERNELS_H

#include "tensor/kernel_table.h"

/* ---- elementwise.c ------------------------------------------------------- */

oar_status oari_cuda_copy(const oari_array *to, const oari_array *from);
oar_status oari_cuda_fill(const oari_array *to, double value);
oar_status oari_cuda_scale(const oari_array *to, int add, const oari_array *a,
                           double factor);
oar_status oari_cuda_binary(oari_binary_kind kind, const oari_array *to,
                            const oari_array *a, const oari_array *b);

oar_status oari_cuda_sum_to(oari_pool *pool, const oari_array *to, int add,
                            const oari_array *a);

#endif
