/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_memory: finds the allocation of a pointer, and allocates host memory
 * that GPUs can reach. This file has no state. */
#include "device/cuda/driver.h"

#include "base/alloc.h"
#include "base/status.h"

/* CUpointer_attribute, CU_MEMHOSTALLOC_PORTABLE */
enum { MEMORY_TYPE = 2, BUFFER_ID = 7, ORDINAL = 9, PORTABLE = 1 };

/* ---- pointers ------------------------------------------------------------ */

/* Returns a device that has a context already, if there is one: attributes of
 * pointers can be read in any context. */
static int device_to_ask(void)
{
    for (int i = 0; i < OARI_CUDA_DEVICES; i++)
        if (oari_cuda_used(i))
            return i;
    return oar_device_current().index;
}

static int type_of(const oari_cuda *cu, oari_cu_memory at)
{
    unsigned type = 0;

    if (cu->PointerGetAttribute(&type, MEMORY_TYPE, at) != OARI_CU_SUCCESS)
        return 0;
    return (int)type;
}

/* Reads all of a block but its id. */
static oar_status read_block(const oari_cuda *cu, oari_cu_memory at,
                             oari_cuda_block *block)
{
    int type = type_of(cu, at), ordinal = 0, result;

    if (type != OARI_CU_DEVICE)
        return oari_fail(OAR_E_ARG, "%#llx is %s memory, not a GPU's",
                         (unsigned long long)at,
                         type == OARI_CU_HOST ? "pinned host" : "host");
    result = cu->PointerGetAttribute(&ordinal, ORDINAL, at);
    if (result == OARI_CU_SUCCESS)
        result = cu->MemGetAddressRange(&block->base, &block->bytes, at);
    block->device = ordinal;
    return oari_cuda_check(result, "examine a pointer");
}

oar_status oari_cuda_find(const void *memory, oari_cuda_block *block)
{
    oari_cu_memory at = (uintptr_t)memory;
    oari_cuda_block found = { 0 };
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_enter(device_to_ask(), &cu));
    status = read_block(cu, at, &found);
    if (status == OAR_OK)
        status =
            oari_cuda_check(cu->PointerGetAttribute(&found.id, BUFFER_ID, at),
                            "identify memory of a GPU");
    oari_cuda_leave();
    if (status == OAR_OK)
        *block = found;
    return status;
}

oar_status oari_cuda_check_span(const char *what, const oar_span *span)
{
    size_t bytes, offset, size = oar_dtype_size(span->dtype);
    oari_cuda_block found = { 0 };
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_only(span->device, what));
    OARI_TRY(oari_cuda_known(span->device.index, &cu));
    if (size == 0 || __builtin_mul_overflow(span->count, size, &bytes))
        return oari_fail(OAR_E_ARG, "%s: %zu elements of dtype %d", what,
                         span->count, (int)span->dtype);
    if (bytes == 0)
        return OAR_OK;
    OARI_TRY(oari_cuda_enter(span->device.index, &cu));
    status = read_block(cu, (uintptr_t)span->data, &found);
    oari_cuda_leave();
    if (status == OAR_E_ARG)
        return oari_fail(OAR_E_ARG, "%s: %p is host memory, its span says %s",
                         what, span->data, oar_device_text(span->device).text);
    OARI_TRY(status);
    if (found.device != span->device.index)
        return oari_fail(
            OAR_E_DEVICE,
            "%s: the memory lies on cuda:%d, its span says cuda:%d", what,
            found.device, span->device.index);
    offset = (size_t)((uintptr_t)span->data - found.base);
    if (offset > found.bytes || bytes > found.bytes - offset)
        return oari_fail(OAR_E_ARG,
                         "%s: %zu bytes, of which %zu are beyond the end of "
                         "their allocation",
                         what, bytes, bytes - (found.bytes - offset));
    return OAR_OK;
}

int oari_cuda_is_pinned(const oari_cuda *cu, const void *memory, size_t bytes)
{
    oari_cu_memory at = (uintptr_t)memory;

    return type_of(cu, at) == OARI_CU_HOST &&
           type_of(cu, at + bytes - 1) == OARI_CU_HOST;
}

/* ---- pinned host memory -------------------------------------------------- */

oar_status oar_pinned_alloc(size_t bytes, void **memory)
{
    const oari_cuda *cu;
    void *made = NULL;
    int result;

    if (memory == NULL)
        return oari_fail(OAR_E_ARG, "pinned_alloc with nowhere to put it");
    if (!oari_alloc_allowed(bytes))
        return OAR_E_NOMEM;
    OARI_TRY(oari_cuda_enter(oar_device_current().index, &cu));
    result = cu->MemHostAlloc(&made, bytes > 0 ? bytes : 1, PORTABLE);
    oari_cuda_leave();
    OARI_TRY(oari_cuda_check(result, "take pinned memory"));
    *memory = made;
    return OAR_OK;
}

void oar_pinned_free(void *memory)
{
    const oari_cuda *cu;

    if (memory == NULL || oari_cuda_enter(device_to_ask(), &cu) != OAR_OK)
        return;
    oari_cuda_check(cu->MemFreeHost(memory), "give pinned memory back");
    oari_cuda_leave();
}
