/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_copy: copies bytes between host and GPUs, in the order of a stream.
 *
 * How the driver treats host memory that is not pinned depends on driver and
 * machine (it may stage it, or let the GPU read it later). Here such a copy is
 * complete when the call returns. This file has no state. */
#include <string.h>

#include "base/status.h"
#include "device/cuda/driver.h"
#include "device/cuda/index_error.h"

typedef struct job {
    void *to;
    const void *from;
    size_t bytes;
    int to_gpu, from_gpu; /* -1: the host */
    oari_cu_stream stream;
} job;

static oar_status copy_gpu(const job *j)
{
    const void *host = j->to_gpu < 0 ? j->to : j->from;
    oari_cu_memory to_at = oari_cu_address(j->to),
                   from_at = oari_cu_address(j->from);
    oari_cu_context to = NULL, from = NULL;
    const oari_cuda *cu;
    int result, pinned = 1;

    if (j->to_gpu >= 0)
        OARI_TRY(oari_cuda_context(j->to_gpu, &to));
    if (j->from_gpu >= 0)
        OARI_TRY(oari_cuda_context(j->from_gpu, &from));
    OARI_TRY(oari_cuda_enter(j->to_gpu >= 0 ? j->to_gpu : j->from_gpu, &cu));
    if (j->bytes > 0 && (j->to_gpu < 0 || j->from_gpu < 0))
        pinned = oari_cuda_is_pinned(cu, host, j->bytes);
    if (j->bytes == 0)
        result = OARI_CU_SUCCESS;
    else if (j->to_gpu < 0)
        result = cu->MemcpyDtoHAsync(j->to, from_at, j->bytes, j->stream);
    else if (j->from_gpu < 0)
        result = cu->MemcpyHtoDAsync(to_at, j->from, j->bytes, j->stream);
    else if (j->to_gpu == j->from_gpu)
        result = cu->MemcpyDtoDAsync(to_at, from_at, j->bytes, j->stream);
    else
        result =
            cu->MemcpyPeerAsync(to_at, to, from_at, from, j->bytes, j->stream);
    if (result == OARI_CU_SUCCESS && !pinned)
        result = cu->StreamSynchronize(j->stream);
    oari_cuda_leave();
    OARI_TRY(oari_cuda_check(result, "copy"));
    return pinned ? OAR_OK
                  : oari_index_error(j->to_gpu >= 0 ? j->to_gpu : j->from_gpu);
}

static oar_status check_device(oar_device device)
{
    const oari_cuda *cu;

    if (device.kind == OAR_CPU)
        return OAR_OK;
    OARI_TRY(oari_cuda_only(device, "copy"));
    return oari_cuda_known(device.index, &cu);
}

oar_status oar_device_copy(void *to, oar_device to_device, const void *from,
                           oar_device from_device, size_t bytes, void *stream)
{
    job j = { to, from, bytes, -1, -1, stream };

    OARI_TRY(check_device(to_device));
    OARI_TRY(check_device(from_device));
    if (bytes > 0 && (to == NULL || from == NULL))
        return oari_fail(OAR_E_ARG, "copy %zu bytes %s NULL", bytes,
                         to == NULL ? "to" : "from");
    if (to_device.kind == OAR_CPU && from_device.kind == OAR_CPU) {
        if (bytes > 0)
            memmove(to, from, bytes);
        return OAR_OK;
    }
    if (to_device.kind == OAR_CUDA)
        j.to_gpu = to_device.index;
    if (from_device.kind == OAR_CUDA)
        j.from_gpu = from_device.index;
    return copy_gpu(&j);
}
