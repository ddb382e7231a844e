/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_copy: arrays of a GPU in pinned memory. */
#include "parallel/checkpoint/gpu_copy.h"

#include <string.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/status.h"

enum { ALIGN = 256 };

static const oar_device cpu = { OAR_CPU, 0 };

static void drop_stream(oari_ckpt_gpu_copy *f)
{
    if (f->device.kind == OAR_CPU)
        return;
    oar_event_destroy(f->device, f->begun);
    oar_event_destroy(f->device, f->over);
    oar_stream_destroy(f->device, f->stream);
    f->begun = f->over = f->stream = NULL;
    f->device = cpu;
}

void oari_ckpt_gpu_copy_free(oari_ckpt_gpu_copy *f)
{
    drop_stream(f);
    if (f->memory != NULL)
        oar_pinned_free(f->memory);
    memset(f, 0, sizeof *f);
}

/* Takes a stream of that device, and two events. */
static oar_status take_stream(oari_ckpt_gpu_copy *f, oar_device device)
{
    if (f->device.kind == device.kind && f->device.index == device.index)
        return OAR_OK;
    drop_stream(f);
    f->device = device;
    OARI_TRY(oar_stream_create(device, 0, &f->stream));
    OARI_TRY(oar_event_create(device, 0, &f->begun));
    return oar_event_create(device, 0, &f->over);
}

static oar_status take_memory(oari_ckpt_gpu_copy *f, size_t bytes)
{
    void *memory;

    if (bytes <= f->bytes)
        return OAR_OK;
    if (f->memory != NULL)
        oar_pinned_free(f->memory);
    f->memory = NULL;
    f->bytes = 0;
    OARI_TRY(oar_pinned_alloc(bytes, &memory));
    f->memory = memory;
    f->bytes = bytes;
    return OAR_OK;
}

static size_t array_bytes(const oari_ckpt_gpu_array *a)
{
    return (size_t)oar_tensor_count(a->tensor) * oar_dtype_size(a->dtype);
}

/* Gives the array row by row in the dtype that is saved: itself, or a copy on
 * the device. */
static oar_status as_saved(const oari_ckpt_gpu_array *a, oar_tensor **saved)
{
    oar_status status;

    if (oar_tensor_dtype(a->tensor) == a->dtype &&
        oar_tensor_is_contiguous(a->tensor)) {
        *saved = oar_tensor_retain(a->tensor);
        return OAR_OK;
    }
    *saved = oar_empty_on(NULL, oar_tensor_device(a->tensor), a->dtype,
                          oar_tensor_shape(a->tensor));
    if (*saved == NULL)
        return oar_last_error()->status;
    status = oar_tensor_copy(*saved, a->tensor);
    return status;
}

static oar_status copy_all(oari_ckpt_gpu_copy *f, int64_t count,
                           oari_ckpt_gpu_array *array, oar_tensor **saved)
{
    void *current = oar_stream_current(f->device);
    oar_status status = OAR_OK;
    size_t at = 0;

    OARI_TRY(oar_event_record(f->device, f->begun, current));
    OARI_TRY(oar_stream_wait(f->device, f->stream, f->begun));
    for (int64_t i = 0; i < count && status == OAR_OK; i++) {
        size_t bytes;

        if (array[i].tensor == NULL)
            continue;
        bytes = array_bytes(&array[i]);
        if (bytes > 0)
            status = oar_device_copy(f->memory + at, cpu,
                                     oar_tensor_const_data(saved[i]), f->device,
                                     bytes, f->stream);
        array[i].array = f->memory + at;
        at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    /* Also after a failure: what was begun has to end before what comes. */
    OARI_TRY(oar_event_record(f->device, f->over, f->stream));
    OARI_TRY(oar_stream_wait(f->device, current, f->over));
    return status;
}

oar_status oari_ckpt_gpu_copy_start(oari_ckpt_gpu_copy *f, oar_device device,
                                    int64_t count, oari_ckpt_gpu_array *array)
{
    oar_tensor **saved;
    oar_status status;
    size_t bytes = ALIGN;

    for (int64_t i = 0; i < count; i++)
        if (array[i].tensor != NULL)
            bytes += (array_bytes(&array[i]) + ALIGN - 1) / ALIGN * ALIGN;
    saved = oari_alloc((size_t)count + 1, sizeof *saved);
    if (saved == NULL)
        return OAR_E_NOMEM;
    status = take_stream(f, device);
    if (status != OAR_OK)
        drop_stream(f);
    if (status == OAR_OK)
        status = take_memory(f, bytes);
    for (int64_t i = 0; i < count && status == OAR_OK; i++)
        if (array[i].tensor != NULL)
            status = as_saved(&array[i], &saved[i]);
    if (status == OAR_OK)
        status = copy_all(f, count, array, saved);
    for (int64_t i = 0; i < count; i++)
        oar_tensor_release(saved[i]); /* freed behind the copies */
    oari_free(saved);
    return status;
}

oar_status oari_ckpt_gpu_copy_wait(const oari_ckpt_gpu_copy *f)
{
    return oar_event_synchronize(f->device, f->over);
}
