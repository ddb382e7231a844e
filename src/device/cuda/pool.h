/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/pool.h: device memory that is kept for the next one who asks. */
#ifndef OARI_DEVICE_CUDA_POOL_H
#define OARI_DEVICE_CUDA_POOL_H

#include "device/cuda/cuda.h"

/* Memory of a GPU, aligned to 512 bytes. Any thread. */
oar_status oari_cuda_pool_alloc(int device, size_t bytes, void **memory);

/* Takes it back; it is handed out again when what is on the stream has run.
 * OAR_E_ARG if it is not the pool's. */
oar_status oari_cuda_pool_free(int device, void *memory, oari_cu_stream stream);

/* Waits until the GPU has run everything and gives the driver back what nobody
 * uses or holds. */
oar_status oari_cuda_pool_trim(int device);

oar_status oari_cuda_pool_usage(int device, oar_device_usage *usage);

#endif
