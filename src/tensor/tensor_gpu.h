/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/tensor_gpu.h: tensors whose storage is on a GPU: making, copying in every
 * direction, sums and multiples. Everything is in the order of the thread's
 * current stream of the device. */
#ifndef OARI_TENSOR_TENSOR_GPU_H
#define OARI_TENSOR_TENSOR_GPU_H

#include "tensor/tensor.h"

/* NULL is not. */
static inline int oari_on_gpu(const oar_tensor *t)
{
    return t != NULL && t->storage != NULL &&
           t->storage->device.kind == OAR_CUDA;
}

/* Row by row, contents undefined; on the cpu too. NULL on failure. */
oar_tensor *oari_tensor_on(oar_device device, oar_dtype dtype, oar_shape shape);

/* to = from, converting, whatever devices they are on; same shape. */
oar_status oari_gpu_assign(const oar_tensor *to, const oar_tensor *from);

/* The same with numbers row by row at data, on the host. */
oar_status oari_gpu_read(const oar_tensor *from, oar_dtype dtype, void *data);
oar_status oari_gpu_write(const oar_tensor *to, oar_dtype dtype, void *data);

oar_status oari_gpu_fill(const oar_tensor *to, double value);

/* to, row by row, = a + b, which broadcast to it; = factor * a. On one GPU, of
 * one dtype. */
oar_status oari_gpu_add(const oar_tensor *to, const oar_tensor *a,
                        const oar_tensor *b);
oar_status oari_gpu_scale(const oar_tensor *to, const oar_tensor *a,
                          double factor);

#endif
