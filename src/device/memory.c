/* SPDX-License-Identifier: Apache-2.0 */
/* memory: allocates private host memory from the heap, shared host memory from
 * a segment, and a GPU's memory from its pool. It has no state of its own. */
#include "device/device.h"

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda/cuda_pool.h"
#include "device/cuda/cuda_replay.h"
#include "device/cuda/driver.h"
#include "device/segment.h"

enum { ALIGNMENT = 64 };

oar_status oari_device_alloc(oar_device device, oari_memory_kind kind,
                             size_t bytes, void **memory)
{
    oar_status status;
    void *made;
    int before;

    if (device.kind == OAR_CPU && kind == OARI_SHARED)
        return oari_segment_alloc(bytes, memory);
    if (device.kind == OAR_CPU) {
        if ((made = oari_alloc_aligned(ALIGNMENT, bytes)) == NULL)
            return OAR_E_NOMEM;
        *memory = made;
        return OAR_OK;
    }
    OARI_TRY(oari_cuda_only(device, "take memory"));
    if (kind == OARI_SHARED)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "shared memory is host memory, not memory of %s",
                         oar_device_text(device).text);
    before = oari_replay_alloc_begin(device.index);
    status = oari_cuda_pool_alloc(device.index, bytes, memory);
    oari_replay_alloc_end(device.index, before);
    return status;
}

void oari_device_free(oar_device device, oari_memory_kind kind, void *memory)
{
    if (device.kind == OAR_CUDA)
        oar_device_free(device, memory, oar_stream_current(device));
    else if (kind == OARI_SHARED)
        oari_segment_free(memory);
    else
        oari_free(memory);
}

/* ---- public functions ---------------------------------------------------- */

oar_status oar_device_alloc(oar_device device, size_t bytes, void **memory)
{
    if (memory == NULL)
        return oari_fail(OAR_E_ARG, "device_alloc with nowhere to put it");
    return oari_device_alloc(device, OARI_PRIVATE, bytes, memory);
}

void oar_device_free(oar_device device, void *memory, void *stream)
{
    if (memory == NULL)
        return;
    if (device.kind != OAR_CUDA)
        oari_free(memory);
    else if (!oari_replay_keep(device.index, memory))
        oari_cuda_pool_free(device.index, memory, stream);
}

oar_status oar_device_trim(oar_device device)
{
    if (device.kind == OAR_CPU)
        return OAR_OK;
    OARI_TRY(oari_cuda_only(device, "give memory back"));
    return oari_cuda_pool_trim(device.index);
}

oar_status oar_device_memory(oar_device device, oar_device_usage *usage)
{
    oar_device_usage made = oar_device_usage_init();

    OARI_TRY(oari_cuda_only(device, "memory in use"));
    OARI_TRY(oari_cuda_pool_usage(device.index, &made));
    return oari_struct_give(usage, &made, sizeof made, "device usage");
}
