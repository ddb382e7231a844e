/* SPDX-License-Identifier: Apache-2.0 */
/* device/device.h: memory by the kind of device it is on. */
#ifndef OARI_DEVICE_DEVICE_H
#define OARI_DEVICE_DEVICE_H

#include <oarsong/span.h>

typedef enum oari_memory_kind {
    OARI_PRIVATE = 0, /* this process only */
    OARI_SHARED = 1   /* in a segment that peers on the host can map */
} oari_memory_kind;

/* Memory for bytes (0 is fine), aligned to 64 bytes at least. Not zeroed,
 * except shared memory. Any thread. */
oar_status oari_device_alloc(oar_device device, oari_memory_kind kind,
                             size_t bytes, void **memory);

/* Takes back what oari_device_alloc gave, with the same device and kind. A
 * GPU's is not handed out again before this thread's current stream has run
 * what is on it by now: who has used it on another says so to oar_device_free.
 */
void oari_device_free(oar_device device, oari_memory_kind kind, void *memory);

#endif
