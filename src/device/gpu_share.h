/* SPDX-License-Identifier: Apache-2.0 */
/* device/gpu_share.h: memory that several processes use with one GPU: device
 * memory that one of them has and the others map (CUDA IPC), and host memory
 * that is pinned where it is. */
#ifndef OARI_DEVICE_GPU_SHARE_H
#define OARI_DEVICE_GPU_SHARE_H

#include <oarsong/span.h>

enum { OARI_GPU_HANDLE_BYTES = 64 };

/* What another process of the host needs to map device memory. */
typedef struct oari_gpu_handle {
    unsigned char bytes[OARI_GPU_HANDLE_BYTES];
} oari_gpu_handle;

/* Allocates device memory that is no part of a pool, and gives its handle. */
oar_status oari_gpu_share(oar_device device, size_t bytes, void **memory,
                          oari_gpu_handle *handle);

/* Frees it. No other process may have it mapped any more, and no stream may
 * use it. NULL is fine. */
void oari_gpu_unshare(oar_device device, void *memory);

/* Maps the memory of another process. Not twice in one process. */
oar_status oari_gpu_map(oar_device device, const oari_gpu_handle *handle,
                        void **memory);

/* Ends the mapping, which no stream may use any more. NULL is fine. */
void oari_gpu_unmap(oar_device device, void *memory);

/* Pins whole pages of host memory, so that copies to and from GPUs go on beside
 * the caller; and ends that. NULL and 0 bytes are fine. */
oar_status oari_gpu_pin(oar_device device, void *memory, size_t bytes);
void oari_gpu_unpin(oar_device device, void *memory);

/* Returns whether this thread records a step on that GPU (replay.h). */
int oari_gpu_records(oar_device device);

#endif
