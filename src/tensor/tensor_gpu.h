/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/tensor_gpu.h: tensors whose storage is on a GPU: making, copying in
 * every direction, sums and multiples. Everything is in the order of the
 * thread's current stream of the device. */
#ifndef OARI_TENSOR_TENSOR_GPU_H
#define OARI_TENSOR_TENSOR_GPU_H

#include "tensor/tensor.h"

/* Returns whether a tensor's storage is on a GPU; 0 for NULL. */
static inline int oari_on_gpu(const oar_tensor *t)
{
    return t != NULL && t->storage != NULL &&
           t->storage->device.kind == OAR_CUDA;
}

/* Makes a tensor on a device, also the cpu: row by row, its contents undefined.
 * Returns NULL on failure. */
oar_tensor *oari_tensor_on(oar_device device, oar_dtype dtype, oar_shape shape);

/* Copies `from` to `to`, of the same shape, whatever their devices and dtypes.
 */
oar_status oari_gpu_assign(const oar_tensor *to, const oar_tensor *from);

/* Copy between a tensor and numbers on the host, row by row at `data`. */
oar_status oari_gpu_read(const oar_tensor *from, oar_dtype dtype, void *data);
oar_status oari_gpu_write(const oar_tensor *to, oar_dtype dtype, void *data);

oar_status oari_gpu_fill(const oar_tensor *to, double value);

/* Set `to`, which is row by row, to a + b, which broadcast to it, or to factor
 * times a. All are on one GPU and of one dtype. */
oar_status oari_gpu_add(const oar_tensor *to, const oar_tensor *a,
                        const oar_tensor *b);
oar_status oari_gpu_scale(const oar_tensor *to, const oar_tensor *a,
                          double factor);

#endif
