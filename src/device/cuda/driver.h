/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/driver.h: functions of the driver for the files of src/device
 * alone; cuda.h has those for the rest of the library. */
#ifndef OARI_DEVICE_CUDA_DRIVER_H
#define OARI_DEVICE_CUDA_DRIVER_H

#include "device/cuda/cuda.h"

/* Gives the number of GPUs; fails as oari_cuda_load does. */
oar_status oari_cuda_count(int *count);

/* Returns the version of the loaded driver: 13000 is 13.0. */
int oari_cuda_version(void);

/* Gives the driver if there is such a device; OAR_E_DEVICE if not. */
oar_status oari_cuda_known(int device, const oari_cuda **cu);

/* Gives the primary context of a device; the first call makes it. */
oar_status oari_cuda_context(int device, oari_cu_context *context);

/* Returns whether this process has made that context. */
int oari_cuda_used(int device);

/* Returns whether the first and the last byte of host memory are pinned. A
 * context has to be current. */
int oari_cuda_is_pinned(const oari_cuda *cu, const void *memory, size_t bytes);

/* Checks that the device is a GPU; OAR_E_DEVICE, with a text that begins with
 * `what`, if not. */
oar_status oari_cuda_only(oar_device device, const char *what);

#endif
