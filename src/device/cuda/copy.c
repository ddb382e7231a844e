/* SPDX-License-Identifier: Apache-2.0 */
/* copy: bytes between host and GPUs, in the order of a stream.
 *
 * What the driver does with host memory that is not pinned depends on driver
 * and machine (it may stage it, or let the GPU read it later). Here such a copy
 * is over when the call returns. It has no state. */
#include <string.h>

#include "base/status.h"
#include "device/cuda/driver.h"

typedef struct job {
    void *to;
    const void *from;
    size_t bytes;
    int to_gpu, from_gpu; /* -1: the host */
    oari_cu_stream stream;
} job;

static oari_cu_memory at(const void *memory)
{
    return (oari_cu_memory)(uintptr_t)memory;
}

/* ---- starting one -------------------------------------------------------- */

static int across(const oari_cuda *cu, const job *j, oari_cu_context to,
                  oari_cu_context from)
{
    if (j->to_gpu == j->from_gpu)
        return cu->MemcpyDtoDAsync(at(j->to), at(j->from), j->bytes, j->stream);
    return cu->MemcpyPeerAsync(at(j->to), to, at(j->from), from, j->bytes,
                               j->stream);
}

static int host_side(const oari_cuda *cu, const job *j)
{
    const void *host = j->to_gpu < 0 ? j->to : j->from;
    int pinned = oari_cuda_is_pinned(cu, host, j->bytes), result;

    if (j->to_gpu < 0)
        result = cu->MemcpyDtoHAsync(j->to, at(j->from), j->bytes, j->stream);
    else
        result = cu->MemcpyHtoDAsync(at(j->to), j->from, j->bytes, j->stream);
    if (result == OARI_CU_SUCCESS && !pinned)
        result = cu->StreamSynchronize(j->stream);
    return result;
}

static oar_status copy_gpu(const job *j)
{
    oari_cu_context to = NULL, from = NULL;
    const oari_cuda *cu;
    int result;

    if (j->to_gpu >= 0)
        OARI_TRY(oari_cuda_context(j->to_gpu, &to));
    if (j->from_gpu >= 0)
        OARI_TRY(oari_cuda_context(j->from_gpu, &from));
    OARI_TRY(oari_cuda_enter(j->to_gpu >= 0 ? j->to_gpu : j->from_gpu, &cu));
    if (j->bytes == 0)
        result = OARI_CU_SUCCESS;
    else
        result = to != NULL && from != NULL ? across(cu, j, to, from)
                                            : host_side(cu, j);
    oari_cuda_leave();
    return oari_cuda_check(result, "copy");
}

/* ---- the public name ----------------------------------------------------- */

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
