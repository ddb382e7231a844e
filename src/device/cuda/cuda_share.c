/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_share: device memory that several processes map, and host memory that is
 * pinned where it is. This file has no state. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda/cuda_replay.h"
#include "device/cuda/driver.h"
#include "device/gpu_share.h"

/* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_MEMHOSTREGISTER_PORTABLE */
enum { LAZY_PEER_ACCESS = 1, PORTABLE = 1 };

_Static_assert(sizeof(oari_cu_ipc) == OARI_GPU_HANDLE_BYTES, "handle");

static void *memory_at(oari_cu_memory at)
{
    return (void *)(uintptr_t)at;
}

oar_status oari_gpu_share(oar_device device, size_t bytes, void **memory,
                          oari_gpu_handle *handle)
{
    oari_cu_memory made = 0;
    const oari_cuda *cu;
    oari_cu_ipc ipc;
    int result;

    if (!oari_alloc_allowed(bytes))
        return OAR_E_NOMEM;
    OARI_TRY(oari_cuda_enter(device.index, &cu));
    result = cu->MemAlloc(&made, bytes > 0 ? bytes : 1);
    if (result == OARI_CU_SUCCESS) {
        result = cu->IpcGetMemHandle(&ipc, made);
        if (result != OARI_CU_SUCCESS)
            cu->MemFree(made);
    }
    oari_cuda_leave();
    OARI_TRY(oari_cuda_check(result, "take memory that processes share"));
    memcpy(handle->bytes, &ipc, sizeof handle->bytes);
    *memory = memory_at(made);
    return OAR_OK;
}

void oari_gpu_unshare(oar_device device, void *memory)
{
    const oari_cuda *cu;

    if (memory == NULL || oari_cuda_enter(device.index, &cu) != OAR_OK)
        return;
    cu->MemFree(oari_cu_address(memory));
    oari_cuda_leave();
}

oar_status oari_gpu_map(oar_device device, const oari_gpu_handle *handle,
                        void **memory)
{
    oari_cu_memory here = 0;
    const oari_cuda *cu;
    oari_cu_ipc ipc;
    int result;

    memcpy(&ipc, handle->bytes, sizeof ipc);
    OARI_TRY(oari_cuda_enter(device.index, &cu));
    result = cu->IpcOpenMemHandle(&here, ipc, LAZY_PEER_ACCESS);
    oari_cuda_leave();
    OARI_TRY(oari_cuda_check(result, "map memory of another process"));
    *memory = memory_at(here);
    return OAR_OK;
}

void oari_gpu_unmap(oar_device device, void *memory)
{
    const oari_cuda *cu;

    if (memory == NULL || oari_cuda_enter(device.index, &cu) != OAR_OK)
        return;
    cu->IpcCloseMemHandle(oari_cu_address(memory));
    oari_cuda_leave();
}

oar_status oari_gpu_pin(oar_device device, void *memory, size_t bytes)
{
    const oari_cuda *cu;
    int result;

    if (memory == NULL || bytes == 0)
        return OAR_OK;
    OARI_TRY(oari_cuda_enter(device.index, &cu));
    result = cu->MemHostRegister(memory, bytes, PORTABLE);
    oari_cuda_leave();
    return oari_cuda_check(result, "pin memory of the host");
}

void oari_gpu_unpin(oar_device device, void *memory)
{
    const oari_cuda *cu;

    if (memory == NULL || oari_cuda_enter(device.index, &cu) != OAR_OK)
        return;
    cu->MemHostUnregister(memory);
    oari_cuda_leave();
}

int oari_gpu_records(oar_device device)
{
    return device.kind == OAR_CUDA && oari_replay_records(device.index);
}
