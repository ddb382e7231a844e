/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_block.h: the dynamic shared memory of a block, for kernels
 * that nvcc compiles, and that a host's compiler does for the tests.
 *
 *     OARI_SHARED_MEMORY(float, row);    // float *row, aligned to 16 bytes
 */
#ifndef OARI_DEVICE_CUDA_CUDA_BLOCK_H
#define OARI_DEVICE_CUDA_CUDA_BLOCK_H

#ifdef __CUDACC__
extern __shared__ uint4 oari_shared_memory[];
#define OARI_SHARED_MEMORY(type, name) \
    type *name = (type *)(void *)oari_shared_memory
#else
#define OARI_SHARED_MEMORY(type, name) \
    type *name = (type *)standin::shared_memory()
#endif

#endif
