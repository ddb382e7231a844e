/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu: buffers on a GPU.
 *
 * An iteration is a number of operations on a stream and one wait for them. For
 * small buffers it is one operation: the time from the call until the result is
 * there. For large ones it is several, as in nccl-tests: the time that the GPU
 * is busy, since the host prepares one operation while the one before runs.
 */
#include "bench.h"

#include <stdlib.h>

enum { LARGE = 1 << 20, ROW = 10 };

oar_status bench_gpu_open(bench_point *at, size_t bytes)
{
    oar_status status;

    at->device = oar_device_current();
    if ((at->mirror = calloc(1, bytes)) == NULL)
        return OAR_E_NOMEM;
    if ((status = oar_device_alloc(at->device, bytes, &at->first)) != OAR_OK ||
        (status = oar_device_alloc(at->device, bytes, &at->second)) != OAR_OK ||
        (status = oar_stream_create(at->device, 0, &at->stream)) != OAR_OK)
        return status;
    return oar_stream_set_current(at->device, at->stream);
}

void bench_gpu_close(bench_point *at)
{
    if (at->stream != NULL) {
        oar_stream_set_current(at->device, NULL);
        oar_stream_destroy(at->device, at->stream);
    }
    oar_device_free(at->device, at->first, NULL);
    oar_device_free(at->device, at->second, NULL);
    free(at->mirror);
}

/* Barriers and messages under way are waited for as they are. */
size_t bench_gpu_row(const bench_point *at)
{
    if (at->stream == NULL || at->p->kind >= BENCH_BARRIER)
        return 1;
    if (at->p->row != 0)
        return at->p->row;
    return at->bytes < LARGE ? 1 : ROW;
}

oar_status bench_gpu_operate(const bench_point *at)
{
    oar_status status = OAR_OK;

    for (size_t i = 0; i < at->row && status == OAR_OK; i++)
        status = bench_operate(at);
    if (status == OAR_OK && at->stream != NULL)
        status = oar_stream_synchronize(at->device, at->stream);
    return status;
}

static size_t bytes_of(oar_span span)
{
    return span.count * oar_dtype_size(span.dtype);
}

oar_status bench_gpu_put(const bench_point *at, oar_span to)
{
    return oar_device_copy(to.data, at->device, at->mirror,
                           oar_device_of(OAR_CPU, 0), bytes_of(to), at->stream);
}

oar_status bench_gpu_get(const bench_point *at, oar_span from)
{
    oar_status status =
        oar_device_copy(at->mirror, oar_device_of(OAR_CPU, 0), from.data,
                        at->device, bytes_of(from), at->stream);

    return status == OAR_OK ? oar_stream_synchronize(at->device, at->stream)
                            : status;
}

oar_status bench_gpu_clear(const bench_point *at)
{
    oar_span all = oar_span_of(at->first, at->bytes, OAR_U8);
    oar_status status;

    all.device = at->device;
    if ((status = oar_device_fill(all, 0, at->stream)) != OAR_OK)
        return status;
    all.data = at->second;
    return oar_device_fill(all, 0, at->stream);
}
