/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/cuda_windows.h: convolutions and pools on a GPU: as the cpu's in
 * cpu/nn/conv.h, and halves as they are. x and the gradient that is written may
 * be f32 where the rest are halves. */
#ifndef OARI_TENSOR_CUDA_CUDA_WINDOWS_H
#define OARI_TENSOR_CUDA_CUDA_WINDOWS_H

#include "tensor/cpu/nn/conv.h"

oar_status oari_cuda_conv_forward(const oari_conv *c, int add,
                                  const oari_array *bias);
oar_status oari_cuda_conv_back_input(const oari_conv *c, int add);
oar_status oari_cuda_conv_back_weight(const oari_conv *c, int add);
oar_status oari_cuda_conv_transpose(const oari_conv *c, const oari_array *bias);
oar_status oari_cuda_sum_channels(const oari_array *to, int add,
                                  const oari_array *a);

oar_status oari_cuda_max_pool(const oari_array *to, const oari_array *pick,
                              const oari_array *x, const oari_window *w);
oar_status oari_cuda_max_pool_back(const oari_array *to, int add,
                                   const oari_array *grad,
                                   const oari_array *pick,
                                   const oari_window *w);
oar_status oari_cuda_avg_pool(const oari_array *to, const oari_array *x,
                              const oari_window *w);
oar_status oari_cuda_avg_pool_back(const oari_array *to, int add,
                                   const oari_array *grad,
                                   const oari_window *w);
oar_status oari_cuda_adaptive_avg_pool(const oari_array *to,
                                       const oari_array *x,
                                       const oari_window *w);
oar_status oari_cuda_adaptive_avg_pool_back(const oari_array *to, int add,
                                            const oari_array *grad,
                                            const oari_window *w);

/* Sets how many bytes of columns a convolution has at a time, for tests; 0: the
 * default. */
void oari_cuda_set_column_bytes(int64_t bytes);

#endif
