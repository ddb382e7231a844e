/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/dlpack_abi.h: the structs of DLPack, of 1.x and of before, as
 * dlpack/dlpack.h lays them out. That header is not needed to build, so they
 * are repeated here. */
#ifndef OARI_TENSOR_DLPACK_ABI_H
#define OARI_TENSOR_DLPACK_ABI_H

#include <stdint.h>

enum { OARI_DLPACK_MAJOR = 1, OARI_DLPACK_MINOR = 0 };

/* Devices and the codes of dtypes that we have. */
enum { OARI_DL_CPU = 1, OARI_DL_CUDA = 2, OARI_DL_CUDA_HOST = 3 };
enum {
    OARI_DL_INT = 0,
    OARI_DL_UINT = 1,
    OARI_DL_FLOAT = 2,
    OARI_DL_BFLOAT = 4,
    OARI_DL_BOOL = 6
};

#define OARI_DL_READ_ONLY 1u /* in flags */

typedef struct oari_dl_version {
    uint32_t major, minor;
} oari_dl_version;

typedef struct oari_dl_device {
    int32_t type, id;
} oari_dl_device;

typedef struct oari_dl_dtype {
    uint8_t code, bits;
    uint16_t lanes;
} oari_dl_dtype;

typedef struct oari_dl_tensor {
    void *data;
    oari_dl_device device;
    int32_t ndim;
    oari_dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row by row */
    uint64_t byte_offset;
} oari_dl_tensor;

typedef struct DLManagedTensorVersioned oari_dl_managed;

struct DLManagedTensorVersioned {
    oari_dl_version version;
    void *manager_ctx;
    void (*deleter)(oari_dl_managed *self);
    uint64_t flags;
    oari_dl_tensor tensor;
};

/* Before 1.0: without a version. */
typedef struct DLManagedTensor oari_dl_unversioned;

struct DLManagedTensor {
    oari_dl_tensor tensor;
    void *manager_ctx;
    void (*deleter)(oari_dl_unversioned *self);
};

#endif
