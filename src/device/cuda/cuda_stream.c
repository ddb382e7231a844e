/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_stream: streams and events of GPUs, and a cache of events without
 * timing. A lock guards the cache; each thread has its own current streams. */
#include <pthread.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda/cuda_blas.h"
#include "device/cuda/driver.h"
#include "device/cuda/index_error.h"

enum { NON_BLOCKING = 1, TIMED = 0, UNTIMED = 2 }; /* CUstream, CUevent flags */

enum { KEPT_EVENTS = 512 }; /* a device; more are destroyed */

typedef struct event_cache {
    oari_cu_event event[KEPT_EVENTS];
    int count;
} event_cache;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static event_cache caches[OARI_CUDA_DEVICES];
static _Thread_local oari_cu_stream streams[OARI_CUDA_DEVICES];

static oar_status enter_device(oar_device device, const char *what,
                               const oari_cuda **cu)
{
    OARI_TRY(oari_cuda_only(device, what));
    return oari_cuda_enter(device.index, cu);
}

static oar_status leave_device(int result, const char *what)
{
    oari_cuda_leave();
    return oari_cuda_check(result, what);
}

/* Leaves the device after a query, for which "not ready" is no failure. */
static oar_status leave_query(int result, const char *what, int *done)
{
    oari_cuda_leave();
    if (result != OARI_CU_NOT_READY)
        OARI_TRY(oari_cuda_check(result, what));
    *done = result == OARI_CU_SUCCESS;
    return OAR_OK;
}

static oar_status fail_no_result(const char *what)
{
    return oari_fail(OAR_E_ARG, "%s: nowhere to put the result", what);
}

/* ---- streams ------------------------------------------------------------- */

oar_status oar_stream_create(oar_device device, int flags, void **stream)
{
    const oari_cuda *cu;
    oari_cu_stream made = NULL;
    int least = 0, greatest = 0, result;

    if (stream == NULL)
        return fail_no_result("make a stream");
    if ((flags & ~OAR_STREAM_URGENT) != 0)
        return oari_fail(OAR_E_ARG, "make a stream: unknown flags %#x", flags);
    if (!oari_alloc_allowed(sizeof *stream))
        return OAR_E_NOMEM;
    OARI_TRY(enter_device(device, "make a stream", &cu));
    result = cu->CtxGetStreamPriorityRange(&least, &greatest);
    if (result == OARI_CU_SUCCESS)
        result = cu->StreamCreateWithPriority(
            &made, NON_BLOCKING,
            (flags & OAR_STREAM_URGENT) != 0 ? greatest : least);
    OARI_TRY(leave_device(result, "make a stream"));
    *stream = made;
    return OAR_OK;
}

void oar_stream_destroy(oar_device device, void *stream)
{
    const oari_cuda *cu;

    if (stream == NULL || enter_device(device, "end a stream", &cu) != OAR_OK)
        return;
    oari_blas_forget(device.index, stream);
    leave_device(cu->StreamDestroy(stream), "end a stream");
}

oar_status oar_stream_synchronize(oar_device device, void *stream)
{
    const oari_cuda *cu;

    OARI_TRY(enter_device(device, "wait for a stream", &cu));
    OARI_TRY(leave_device(cu->StreamSynchronize(stream), "wait for a stream"));
    return oari_index_error(device.index);
}

oar_status oar_stream_query(oar_device device, void *stream, int *done)
{
    const oari_cuda *cu;

    if (done == NULL)
        return fail_no_result("ask a stream");
    OARI_TRY(enter_device(device, "ask a stream", &cu));
    return leave_query(cu->StreamQuery(stream), "ask a stream", done);
}

oar_status oar_stream_wait(oar_device device, void *stream, void *event)
{
    const oari_cuda *cu;

    if (event == NULL)
        return oari_fail(OAR_E_ARG, "make a stream wait: the event is NULL");
    OARI_TRY(enter_device(device, "make a stream wait", &cu));
    return leave_device(cu->StreamWaitEvent(stream, event, 0),
                        "make a stream wait");
}

oar_status oar_stream_set_current(oar_device device, void *stream)
{
    const oari_cuda *cu;

    OARI_TRY(oari_cuda_only(device, "set the current stream"));
    OARI_TRY(oari_cuda_known(device.index, &cu));
    streams[device.index] = stream;
    return OAR_OK;
}

void *oar_stream_current(oar_device device)
{
    if (device.kind != OAR_CUDA || device.index < 0 ||
        device.index >= OARI_CUDA_DEVICES)
        return NULL;
    return streams[device.index];
}

/* ---- events -------------------------------------------------------------- */

static oar_status make_event(int device, unsigned flags, oari_cu_event *event)
{
    const oari_cuda *cu;
    oari_cu_event made = NULL;

    if (!oari_alloc_allowed(sizeof *event))
        return OAR_E_NOMEM;
    OARI_TRY(oari_cuda_enter(device, &cu));
    OARI_TRY(leave_device(cu->EventCreate(&made, flags), "make an event"));
    *event = made;
    return OAR_OK;
}

oar_status oar_event_create(oar_device device, int timed, void **event)
{
    if (event == NULL)
        return fail_no_result("make an event");
    OARI_TRY(oari_cuda_only(device, "make an event"));
    return make_event(device.index, timed ? TIMED : UNTIMED, event);
}

void oar_event_destroy(oar_device device, void *event)
{
    const oari_cuda *cu;

    if (event == NULL || enter_device(device, "end an event", &cu) != OAR_OK)
        return;
    leave_device(cu->EventDestroy(event), "end an event");
}

oar_status oar_event_record(oar_device device, void *event, void *stream)
{
    const oari_cuda *cu;

    if (event == NULL)
        return oari_fail(OAR_E_ARG, "record an event: it is NULL");
    OARI_TRY(enter_device(device, "record an event", &cu));
    return leave_device(cu->EventRecord(event, stream), "record an event");
}

oar_status oar_event_query(oar_device device, void *event, int *done)
{
    const oari_cuda *cu;

    if (event == NULL || done == NULL)
        return fail_no_result("ask an event");
    OARI_TRY(enter_device(device, "ask an event", &cu));
    return leave_query(cu->EventQuery(event), "ask an event", done);
}

oar_status oar_event_synchronize(oar_device device, void *event)
{
    const oari_cuda *cu;

    if (event == NULL)
        return oari_fail(OAR_E_ARG, "wait for an event: it is NULL");
    OARI_TRY(enter_device(device, "wait for an event", &cu));
    return leave_device(cu->EventSynchronize(event), "wait for an event");
}

oar_status oar_event_elapsed(oar_device device, void *from, void *to,
                             double *ms)
{
    const oari_cuda *cu;
    float taken = 0;

    if (from == NULL || to == NULL || ms == NULL)
        return fail_no_result("time between events");
    OARI_TRY(enter_device(device, "time between events", &cu));
    OARI_TRY(leave_device(cu->EventElapsedTime(&taken, from, to),
                          "time between events"));
    *ms = (double)taken;
    return OAR_OK;
}

/* ---- the cache of events ------------------------------------------------- */

oar_status oari_cuda_event_take(int device, oari_cu_event *event)
{
    oari_cu_event kept = NULL;
    const oari_cuda *cu;

    OARI_TRY(oari_cuda_known(device, &cu));
    pthread_mutex_lock(&lock);
    if (caches[device].count > 0)
        kept = caches[device].event[--caches[device].count];
    pthread_mutex_unlock(&lock);
    if (kept == NULL)
        return make_event(device, UNTIMED, event);
    *event = kept;
    return OAR_OK;
}

void oari_cuda_event_give(int device, oari_cu_event event)
{
    const oari_cuda *cu;
    int kept;

    if (event == NULL || oari_cuda_known(device, &cu) != OAR_OK)
        return;
    pthread_mutex_lock(&lock);
    kept = caches[device].count < KEPT_EVENTS;
    if (kept)
        caches[device].event[caches[device].count++] = event;
    pthread_mutex_unlock(&lock);
    if (!kept)
        oar_event_destroy(oar_device_of(OAR_CUDA, device), event);
}
