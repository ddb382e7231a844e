/* SPDX-License-Identifier: Apache-2.0 */
/* stream: streams and events of GPUs, and those that only order, which are
 * kept. A lock guards what is kept; a thread's current streams are its own. */
#include <pthread.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cuda/driver.h"

enum { NON_BLOCKING = 1, TIMED = 0, UNTIMED = 2 }; /* CUstream, CUevent flags */

enum { KEPT_EVENTS = 512 }; /* a device; more are given back */

typedef struct shelf {
    oari_cu_event event[KEPT_EVENTS];
    int count;
} shelf;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static shelf shelves[OARI_CUDA_DEVICES];
static _Thread_local oari_cu_stream streams[OARI_CUDA_DEVICES];

static oar_status enter(oar_device device, const char *what,
                        const oari_cuda **cu)
{
    OARI_TRY(oari_cuda_only(device, what));
    return oari_cuda_enter(device.index, cu);
}

static oar_status leave(int result, const char *what)
{
    oari_cuda_leave();
    return oari_cuda_check(result, what);
}

/* Leaves after a query: not ready is an answer. */
static oar_status answer(int result, const char *what, int *done)
{
    oari_cuda_leave();
    if (result != OARI_CU_NOT_READY)
        OARI_TRY(oari_cuda_check(result, what));
    *done = result == OARI_CU_SUCCESS;
    return OAR_OK;
}

static oar_status nowhere(const char *what)
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
        return nowhere("make a stream");
    if ((flags & ~OAR_STREAM_URGENT) != 0)
        return oari_fail(OAR_E_ARG, "make a stream: unknown flags %#x", flags);
    if (!oari_alloc_allowed(sizeof *stream))
        return OAR_E_NOMEM;
    OARI_TRY(enter(device, "make a stream", &cu));
    result = cu->CtxGetStreamPriorityRange(&least, &greatest);
    if (result == OARI_CU_SUCCESS)
        result = cu->StreamCreateWithPriority(
            &made, NON_BLOCKING,
            (flags & OAR_STREAM_URGENT) != 0 ? greatest : least);
    OARI_TRY(leave(result, "make a stream"));
    *stream = made;
    return OAR_OK;
}

void oar_stream_destroy(oar_device device, void *stream)
{
    const oari_cuda *cu;

    if (stream == NULL || enter(device, "end a stream", &cu) != OAR_OK)
        return;
    leave(cu->StreamDestroy(stream), "end a stream");
}

oar_status oar_stream_synchronize(oar_device device, void *stream)
{
    const oari_cuda *cu;

    OARI_TRY(enter(device, "wait for a stream", &cu));
    return leave(cu->StreamSynchronize(stream), "wait for a stream");
}

oar_status oar_stream_query(oar_device device, void *stream, int *done)
{
    const oari_cuda *cu;

    if (done == NULL)
        return nowhere("ask a stream");
    OARI_TRY(enter(device, "ask a stream", &cu));
    return answer(cu->StreamQuery(stream), "ask a stream", done);
}

oar_status oar_stream_wait(oar_device device, void *stream, void *event)
{
    const oari_cuda *cu;

    if (event == NULL)
        return oari_fail(OAR_E_ARG, "make a stream wait: for which event?");
    OARI_TRY(enter(device, "make a stream wait", &cu));
    return leave(cu->StreamWaitEvent(stream, event, 0), "make a stream wait");
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
    OARI_TRY(leave(cu->EventCreate(&made, flags), "make an event"));
    *event = made;
    return OAR_OK;
}

oar_status oar_event_create(oar_device device, int timed, void **event)
{
    if (event == NULL)
        return nowhere("make an event");
    OARI_TRY(oari_cuda_only(device, "make an event"));
    return make_event(device.index, timed ? TIMED : UNTIMED, event);
}

void oar_event_destroy(oar_device device, void *event)
{
    const oari_cuda *cu;

    if (event == NULL || enter(device, "end an event", &cu) != OAR_OK)
        return;
    leave(cu->EventDestroy(event), "end an event");
}

oar_status oar_event_record(oar_device device, void *event, void *stream)
{
    const oari_cuda *cu;

    if (event == NULL)
        return oari_fail(OAR_E_ARG, "record an event: which?");
    OARI_TRY(enter(device, "record an event", &cu));
    return leave(cu->EventRecord(event, stream), "record an event");
}

oar_status oar_event_query(oar_device device, void *event, int *done)
{
    const oari_cuda *cu;

    if (event == NULL || done == NULL)
        return nowhere("ask an event");
    OARI_TRY(enter(device, "ask an event", &cu));
    return answer(cu->EventQuery(event), "ask an event", done);
}

oar_status oar_event_synchronize(oar_device device, void *event)
{
    const oari_cuda *cu;

    if (event == NULL)
        return oari_fail(OAR_E_ARG, "wait for an event: which?");
    OARI_TRY(enter(device, "wait for an event", &cu));
    return leave(cu->EventSynchronize(event), "wait for an event");
}

oar_status oar_event_elapsed(oar_device device, void *from, void *to,
                             double *ms)
{
    const oari_cuda *cu;
    float taken = 0;

    if (from == NULL || to == NULL || ms == NULL)
        return nowhere("time between events");
    OARI_TRY(enter(device, "time between events", &cu));
    OARI_TRY(
        leave(cu->EventElapsedTime(&taken, from, to), "time between events"));
    *ms = (double)taken;
    return OAR_OK;
}

/* ---- events that are kept ------------------------------------------------ */

static oari_cu_event take_kept(int device)
{
    oari_cu_event event = NULL;
    shelf *s = &shelves[device];

    pthread_mutex_lock(&lock);
    if (s->count > 0)
        event = s->event[--s->count];
    pthread_mutex_unlock(&lock);
    return event;
}

oar_status oari_cuda_event_take(int device, oari_cu_event *event)
{
    const oari_cuda *cu;
    oari_cu_event kept;

    OARI_TRY(oari_cuda_known(device, &cu));
    if ((kept = take_kept(device)) == NULL)
        return make_event(device, UNTIMED, event);
    *event = kept;
    return OAR_OK;
}

static int keep(int device, oari_cu_event event)
{
    shelf *s = &shelves[device];
    int kept;

    pthread_mutex_lock(&lock);
    if ((kept = s->count < KEPT_EVENTS))
        s->event[s->count++] = event;
    pthread_mutex_unlock(&lock);
    return kept;
}

void oari_cuda_event_give(int device, oari_cu_event event)
{
    const oari_cuda *cu;

    if (event != NULL && oari_cuda_known(device, &cu) == OAR_OK &&
        !keep(device, event))
        oar_event_destroy(oar_device_of(OAR_CUDA, device), event);
}
