/* SPDX-License-Identifier: Apache-2.0 */
/* fill: sets all elements to one value, without kernels: the driver sets
 * elements of up to 4 bytes; of those with 8 bytes it sets the first, which is
 * then copied to the others, twice as many each time. This file has no state.
 */
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/driver.h"

typedef struct pattern {
    uint32_t word[2];
} pattern;

static int fill_wide(const oari_cuda *cu, oari_cu_memory to, pattern value,
                     size_t count, oari_cu_stream stream)
{
    size_t total = count * sizeof value, done = sizeof value;
    int result;

    if (value.word[0] == value.word[1])
        return cu->MemsetD32Async(to, value.word[0], 2 * count, stream);
    result = cu->MemsetD32Async(to, value.word[0], 1, stream);
    if (result == OARI_CU_SUCCESS)
        result = cu->MemsetD32Async(to + 4, value.word[1], 1, stream);
    while (done < total && result == OARI_CU_SUCCESS) {
        size_t step = done < total - done ? done : total - done;

        result = cu->MemcpyDtoDAsync(to + done, to, step, stream);
        done += step;
    }
    return result;
}

static int fill_gpu(const oari_cuda *cu, const oar_span *span, pattern value,
                    oari_cu_stream stream)
{
    oari_cu_memory to = (uintptr_t)span->data;
    uint8_t byte;
    uint16_t half;

    switch (oar_dtype_size(span->dtype)) {
    case 1:
        memcpy(&byte, &value, sizeof byte);
        return cu->MemsetD8Async(to, byte, span->count, stream);
    case 2:
        memcpy(&half, &value, sizeof half);
        return cu->MemsetD16Async(to, half, span->count, stream);
    case 4: return cu->MemsetD32Async(to, value.word[0], span->count, stream);
    }
    return fill_wide(cu, to, value, span->count, stream);
}

oar_status oar_device_fill(oar_span span, double value, void *stream)
{
    pattern made = { { 0, 0 } };
    size_t bytes = oar_dtype_size(span.dtype);
    unsigned char *to = span.data;
    const oari_cuda *cu;
    int result;

    if ((unsigned)span.dtype >= OAR_DTYPE_COUNT)
        return oari_fail(OAR_E_ARG, "fill: there is no dtype %d",
                         (int)span.dtype);
    if (span.count > 0 && span.data == NULL)
        return oari_fail(OAR_E_ARG, "fill: %zu elements at NULL", span.count);
    if (span.count > 0 && span.read_only)
        return oari_fail(OAR_E_ARG, "fill would write to a read-only span");
    oari_convert(&made, span.dtype, &value, OAR_F64, 1);
    if (span.device.kind == OAR_CPU) {
        for (size_t i = 0; i < span.count; i++)
            memcpy(to + i * bytes, &made, bytes);
        return OAR_OK;
    }
    OARI_TRY(oari_cuda_check_span("fill", &span));
    if (span.count == 0)
        return OAR_OK;
    OARI_TRY(oari_cuda_enter(span.device.index, &cu));
    result = fill_gpu(cu, &span, made, stream);
    oari_cuda_leave();
    return oari_cuda_check(result, "fill");
}
