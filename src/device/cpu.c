/* SPDX-License-Identifier: Apache-2.0 */
/* cpu: host memory behind device.h: private from the heap, shared from a
 * segment. */
#include "device/device.h"

#include "base/alloc.h"
#include "base/status.h"
#include "device/segment.h"

enum { ALIGNMENT = 64 };

oar_status oari_device_alloc(oar_device device, oari_memory_kind kind,
                             size_t bytes, void **memory)
{
    void *made;

    if (device.kind != OAR_CPU)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "memory on device kind %d: this build knows the cpu",
                         (int)device.kind);
    if (kind == OARI_SHARED)
        return oari_segment_alloc(bytes, memory);
    made = oari_alloc_aligned(ALIGNMENT, bytes);
    if (made == NULL)
        return OAR_E_NOMEM;
    *memory = made;
    return OAR_OK;
}

void oari_device_free(oar_device device, oari_memory_kind kind, void *memory)
{
    if (kind == OARI_SHARED)
        oari_segment_free(memory);
    else
        oari_free(memory);
}
