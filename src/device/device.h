/* SPDX-License-Identifier: Apache-2.0 */
/* device/device.h: allocates memory of any device. */
#ifndef OARI_DEVICE_DEVICE_H
#define OARI_DEVICE_DEVICE_H

#include <oarsong/span.h>

typedef enum oari_memory_kind {
    OARI_PRIVATE = 0, /* this process only */
    OARI_SHARED = 1   /* in a segment that peers on the host can map */
} oari_memory_kind;

/* Allocates bytes (0 is fine), aligned to 64 bytes at least. Only shared memory
 * is zeroed. Any thread may call this. */
oar_status oari_device_alloc(oar_device device, oari_memory_kind kind,
                             size_t bytes, void **memory);

/* Frees memory of oari_device_alloc, with the same device and kind. A GPU's
 * memory is not given out again before this thread's current stream has run all
 * that is on it now. If another stream has used it, call oar_device_free with
 * that stream instead. */
void oari_device_free(oar_device device, oari_memory_kind kind, void *memory);

#endif
