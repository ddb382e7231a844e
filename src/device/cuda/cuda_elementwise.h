/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_elementwise.h: copies and conversions of arrays on a
 * GPU, in the order of a stream, with the same bits as on the host.
 *
 * The caller checks shapes and memory. Strides are in elements and may be 0
 * (broadcast), but no two elements of `to` may share an address. `to` may be
 * exactly an input of the same layout. If the kernels are missing, all but
 * copies without gaps fail with OAR_E_UNAVAILABLE.
 */
#ifndef OARI_DEVICE_CUDA_CUDA_ELEMENTWISE_H
#define OARI_DEVICE_CUDA_CUDA_ELEMENTWISE_H

#include "device/cuda/cuda.h"
#include "device/cuda/cuda_elementwise_job.h"

typedef struct oari_cuda_shape {
    int ndim; /* 0 to OARI_CUDA_DIMS; 0 is a single number */
    const int64_t *dim;
} oari_cuda_shape;

typedef struct oari_cuda_array {
    void *data; /* of the first element */
    oar_dtype dtype;
    const int64_t *stride; /* one for each dim of the shape */
} oari_cuda_array;

/* Sets to = from, converted as base/convert.c does if the dtypes differ. */
oar_status oari_cuda_assign(int device, oari_cuda_shape shape,
                            oari_cuda_array to, oari_cuda_array from,
                            oari_cu_stream stream);

#endif
