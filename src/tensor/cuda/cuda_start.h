/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/cuda_start.h: how launchers start kernels that are there once for
 * each float dtype. */
#ifndef OARI_TENSOR_CUDA_CUDA_START_H
#define OARI_TENSOR_CUDA_CUDA_START_H

#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/cuda.h"
#include "tensor/tensor.h"

enum {
    OARI_FLOAT_DTYPES = 4,
    OARI_PACK_BYTES = 16,
    OARI_SUM_BYTES = 32 * 8 /* of shared memory: a sum over a block */
};

/* NAME_f32 and so on of FILE.cu. A static object at the call site. */
typedef struct oari_float_kernels {
    oari_cuda_kernel_ref of[OARI_FLOAT_DTYPES];
} oari_float_kernels;

#define OARI_FLOAT_KERNEL(path, text) \
    {                                 \
        .file = (path), .name = text  \
    }
#define OARI_FLOAT_KERNELS(file, name)                \
    {                                                 \
        {                                             \
            OARI_FLOAT_KERNEL(file, name "_f32"),     \
                OARI_FLOAT_KERNEL(file, name "_f64"), \
                OARI_FLOAT_KERNEL(file, name "_f16"), \
                OARI_FLOAT_KERNEL(file, name "_bf16") \
        }                                             \
    }

/* Starts blocks x threads of the kernel for the dtype of `to`, on the current
 * stream of its device, with one argument. */
oar_status oari_start_float(oari_float_kernels *kernels, const oari_array *to,
                            int64_t blocks, unsigned threads,
                            unsigned shared_bytes, void *job);

/* The same with blocks in two dims, blocks x down. */
oar_status oari_start_float_grid(oari_float_kernels *kernels,
                                 const oari_array *to, int64_t blocks,
                                 int64_t down, unsigned threads,
                                 unsigned shared_bytes, void *job);

/* The same for a kernel that is there once. */
oar_status oari_start_one(oari_cuda_kernel_ref *kernel, const oari_array *to,
                          int64_t blocks, unsigned threads,
                          unsigned shared_bytes, void *job);

/* Blocks for `count` elements of a kernel that goes through them in strides of
 * its grid. */
int64_t oari_blocks_for(int64_t count, unsigned threads);

/* Returns whether rows of so many elements of an array, which may be NULL, can
 * be moved in packs of 16 bytes. */
int oari_is_packed(const oari_array *a, int64_t width);

/* Returns the data of an array; NULL for NULL. */
static inline void *oari_data_of(const oari_array *a)
{
    return a != NULL ? oari_array_data(a) : NULL;
}

#endif
