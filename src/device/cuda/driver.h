/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/driver.h: what the files of this folder know of the driver
 * beyond cuda.h. */
#ifndef OARI_DEVICE_CUDA_DRIVER_H
#define OARI_DEVICE_CUDA_DRIVER_H

#include "device/cuda/cuda.h"

enum { OARI_CUDA_DEVICES = 64 }; /* those beyond are not seen */

/* How many GPUs there are; fails as oari_cuda_load does. */
oar_status oari_cuda_count(int *count);

/* Of the loaded driver: 13000 is 13.0. */
int oari_cuda_version(void);

/* The driver, if there is such a device; OAR_E_DEVICE if not. */
oar_status oari_cuda_known(int device, const oari_cuda **cu);

/* The same, and its name for a device, which may have no context. */
oar_status oari_cuda_device(int device, const oari_cuda **cu,
                            oari_cu_device *handle);

/* The primary context of a device, made if need be. */
oar_status oari_cuda_context(int device, oari_cu_context *context);

/* Whether that context has been made here. */
int oari_cuda_used(int device);

/* Whether host memory is pinned, by its first and last byte. A context has to
 * be current. */
int oari_cuda_is_pinned(const oari_cuda *cu, const void *memory, size_t bytes);

/* OAR_OK if the device is a GPU; OAR_E_DEVICE, beginning with what, if not. */
oar_status oari_cuda_only(oar_device device, const char *what);

#endif
