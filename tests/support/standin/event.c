/* SPDX-License-Identifier: Apache-2.0 */
/* standin/event.c: events of the stand-in. An event is the operation that
 * recorded it last; a wait for the event waits for that operation, whatever is
 * recorded afterwards. */
#include <stdlib.h>

#include "standin/driver.h"

enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2, INTERPROCESS = 4 };

typedef struct event {
    struct event *next;
    context *owner;
    unsigned flags;
    operation *mark; /* NULL: never recorded */
} event;

static event *events;

/* The wait for an event in a capture, or for one of a capture (graph.c). */
int standin_capture_wait(stream *s, operation *mark);

static event *find_event(oari_cu_event handle)
{
    for (event *e = events; e; e = e->next)
        if (e == handle)
            return e;
    return NULL;
}

int cuEventCreate(oari_cu_event *handle, unsigned flags)
{
    context *c;
    event *e;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (flags & ~7u || (flags & INTERPROCESS && !(flags & DISABLE_TIMING)))
        return OARI_CU_INVALID_VALUE;
    e = calloc(1, sizeof *e);
    e->owner = c;
    e->flags = flags;
    pthread_mutex_lock(&standin_lock);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&standin_lock);
    *handle = e;
    return OARI_CU_SUCCESS;
}

int cuEventDestroy_v2(oari_cu_event handle)
{
    event *e, **link = &events;
    int bad = standin_begin();
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    while (*link && *link != handle)
        link = &(*link)->next;
    e = *link;
    if (e) {
        *link = e->next;
        standin_release_locked(e->mark);
    }
    pthread_mutex_unlock(&standin_lock);
    free(e);
    return e ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

int cuEventRecord(oari_cu_event handle, oari_cu_stream stream_handle)
{
    context *c;
    event *e;
    stream *s;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    e = find_event(handle);
    s = standin_stream_locked(c, stream_handle);
    if (e && s && e->owner == standin_stream_context(s)) {
        standin_release_locked(e->mark);
        e->mark = standin_put_locked(s, NULL, NULL, NULL);
    } else
        bad = CU_INVALID_HANDLE;
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

int cuStreamWaitEvent(oari_cu_stream stream_handle, oari_cu_event handle,
                      unsigned flags)
{
    context *c;
    event *e;
    stream *s;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (flags != 0)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    e = find_event(handle);
    s = standin_stream_locked(c, stream_handle);
    if (!e || !s)
        bad = CU_INVALID_HANDLE;
    else if (e->mark &&
             (standin_captured_in(e->mark) || *standin_stream_capture(s)))
        bad = standin_capture_wait(s, e->mark);
    else if (e->mark)
        standin_release_locked(standin_put_locked(s, NULL, NULL, e->mark));
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

int cuEventQuery(oari_cu_event handle)
{
    event *e;
    int bad = standin_begin();
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    e = find_event(handle);
    if (!e)
        bad = CU_INVALID_HANDLE;
    else if (e->mark && standin_captured_in(e->mark))
        bad = OARI_CU_CAPTURED_EVENT;
    else if (e->mark && !standin_is_done(e->mark))
        bad = OARI_CU_NOT_READY;
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

int cuEventSynchronize(oari_cu_event handle)
{
    context *c;
    event *e;
    operation *mark = NULL;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    e = find_event(handle);
    if (e && e->mark && standin_captured_in(e->mark))
        bad = OARI_CU_CAPTURED_EVENT;
    else if (e && e->mark)
        mark = standin_keep_locked(e->mark);
    pthread_mutex_unlock(&standin_lock);
    if (bad)
        return bad;
    if (mark)
        standin_finish(mark);
    return e ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

/* Locked. */
static int elapsed(const event *from, const event *to, float *ms)
{
    if (!from || !to || !from->mark || !to->mark ||
        (from->flags | to->flags) & DISABLE_TIMING)
        return CU_INVALID_HANDLE;
    if (!standin_is_done(from->mark) || !standin_is_done(to->mark))
        return OARI_CU_NOT_READY;
    *ms = (float)(standin_ended_ns(to->mark) - standin_ended_ns(from->mark)) /
          1e6f;
    return OARI_CU_SUCCESS;
}

int cuEventElapsedTime(float *ms, oari_cu_event from, oari_cu_event to)
{
    context *c;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    bad = elapsed(find_event(from), find_event(to), ms);
    pthread_mutex_unlock(&standin_lock);
    return bad;
}
