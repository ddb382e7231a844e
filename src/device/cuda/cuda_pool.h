/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_pool.h: a cache of device memory. */
#ifndef OARI_DEVICE_CUDA_CUDA_POOL_H
#define OARI_DEVICE_CUDA_CUDA_POOL_H

#include "device/cuda/cuda.h"

/* Allocates memory of a GPU, aligned to 512 bytes. Any thread may call this. */
oar_status oari_cuda_pool_alloc(int device, size_t bytes, void **memory);

/* Frees memory; it is given out again when the stream has run all that is on it
 * now. OAR_E_ARG if it is not the pool's. */
oar_status oari_cuda_pool_free(int device, void *memory, oari_cu_stream stream);

/* Returns the chunks to the driver that are neither used nor held. */
oar_status oari_cuda_pool_trim(int device);

/* Gives the pool's counters. */
oar_status oari_cuda_pool_usage(int device, oar_device_usage *usage);

#endif
