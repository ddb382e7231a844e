/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_trace: intervals of GPUs in the trace. Each has two timed events, from
 * a pool of its device, and waits in the list of its stream until a later call
 * sees that its second event has come.
 *
 * Times of events are relative to an anchor (cuda_trace_clock.h).
 *
 * A call that puts something on a stream may wait for room there: no lock is
 * held meanwhile. `lock` guards the lists; `looking` makes one thread at a time
 * ask for events, and the others go on without. */
#include "device/cuda/cuda_trace.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "device/cuda/cuda_trace_clock.h"
#include "device/cuda/driver.h"

enum {
    ROWS = 32, /* streams of a device */
    LOOKS = 4, /* at events, when an interval ends */
    TIMED = 0
};

/* A stream. */
typedef struct gpu_row {
    oari_cu_stream stream;
    unsigned name;            /* in the trace */
    oari_gpu_interval *first; /* that is not over, in the order of ends */
    oari_gpu_interval *last;
    unsigned anchor; /* number of that of what was written last */
    uint64_t latest; /* end of all that was written, in ticks */
    uint64_t floor;  /* end of what was written with another anchor */
} gpu_row;

typedef struct gpu_tracer {
    oari_gpu_interval *pool, *unused;
    int made;                /* of the pool */
    int running;             /* begun and not ended */
    oari_gpu_interval *open; /* of operations that have not ended */
    gpu_row row[ROWS];
    int rows;
    oari_gpu_clock clock;
} gpu_tracer;

struct oari_gpu_interval {
    oari_gpu_interval *next;
    oari_cu_event begin, end;
    gpu_row *row;
    oari_gpu_anchor *anchor;
    const void *finished; /* of an operation */
    uint64_t posted;      /* ticks, before its first event was recorded */
    unsigned name;
    int device;
};

_Atomic int oari_gpu_trace_open;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
static gpu_tracer *tracers[OARI_CUDA_DEVICES];
static int has_hooks;

static void count_lost(uint32_t count)
{
    oari_trace_head *head = count > 0 ? oari_trace_own_head() : NULL;

    if (head != NULL)
        atomic_fetch_add(&head->gpu_lost, count);
}

/* Makes the device current, and lets the thread ask for events while it, or
 * another one, captures a stream. *mode is what leave_device takes. */
static int enter_device(int device, const oari_cuda **cu, int *mode)
{
    if (oari_cuda_enter(device, cu) != OAR_OK)
        return 0;
    *mode = OARI_CU_CAPTURE_RELAXED;
    (*cu)->ThreadExchangeStreamCaptureMode(mode);
    return 1;
}

static void leave_device(const oari_cuda *cu, int mode)
{
    cu->ThreadExchangeStreamCaptureMode(&mode);
    oari_cuda_leave();
}

static int is_captured(const oari_cuda *cu, oari_cu_stream stream)
{
    int state = 0;

    return cu->StreamIsCapturing(stream, &state) != OARI_CU_SUCCESS ||
           state != 0;
}

static void renew_anchor(gpu_tracer *t, const oari_cuda *cu)
{
    int running;

    if (pthread_mutex_trylock(&looking) != 0)
        return;
    pthread_mutex_lock(&lock);
    running = t->running;
    pthread_mutex_unlock(&lock);
    oari_gpu_clock_renew(&t->clock, cu, running);
    pthread_mutex_unlock(&looking);
}

/* ---- what is over -------------------------------------------------------- */

/* Says how much an interval errs that ended so many ticks after the anchor. */
static void say_error(const oari_gpu_anchor *a, uint64_t age)
{
    oari_trace_head *head = oari_trace_own_head();
    uint64_t ns = (uint64_t)(oari_gpu_anchor_width(a, age) / 2 * 1e9 /
                             oari_ticks_per_second());

    if (head != NULL && ns > atomic_load(&head->gpu_error_ns))
        atomic_store(&head->gpu_error_ns, ns);
}

/* What has another anchor than the interval before began when that was over,
 * whatever the clocks say. */
static void keep_order(const oari_gpu_interval *i, oari_trace_entry *e)
{
    gpu_row *row = i->row;

    if (row->anchor != i->anchor->number) {
        row->anchor = i->anchor->number;
        row->floor = row->latest;
    }
    if (e->start < row->floor)
        e->start = row->floor;
    if (e->end < e->start)
        e->end = e->start;
    if (e->end > row->latest)
        row->latest = e->end;
}

/* Returns 0 if the driver does not say when the interval was. */
static int write_interval(const oari_cuda *cu, const oari_gpu_interval *i)
{
    oari_gpu_anchor *a = i->anchor;
    double per_ms = oari_ticks_per_second() / 1e3;
    int64_t begin, end;
    uint64_t zero;
    float from = 0, to = 0;
    oari_trace_entry e = { .kind = OARI_TRACE_GPU };

    if (cu->EventElapsedTime(&from, a->event, i->begin) != OARI_CU_SUCCESS ||
        cu->EventElapsedTime(&to, a->event, i->end) != OARI_CU_SUCCESS)
        return 0;
    begin = (int64_t)((double)from * per_ms);
    end = (int64_t)((double)to * per_ms);
    oari_gpu_anchor_bound(a, i->posted - (uint64_t)begin,
                          oari_ticks() - (uint64_t)end);
    a->used = 1;
    zero = a->before + (a->after - a->before) / 2;
    e.start = zero + (uint64_t)begin;
    e.end = zero + (uint64_t)end;
    keep_order(i, &e);
    say_error(a, end > 0 ? (uint64_t)end : 0);
    e.name = i->name;
    e.number = i->row->name;
    oari_trace_write(&e);
    return 1;
}

/* Puts an interval back into the pool. The caller has the lock. */
static void give_interval(gpu_tracer *t, oari_gpu_interval *i)
{
    atomic_fetch_sub(&i->anchor->users, 1);
    i->next = t->unused;
    t->unused = i;
}

/* Writes what is over on a stream, at most so many intervals. The caller has
 * `looking`. */
static void look_at_row(gpu_tracer *t, const oari_cuda *cu, gpu_row *row,
                        int most)
{
    while (most-- > 0) {
        oari_gpu_interval *i;
        int result;

        pthread_mutex_lock(&lock);
        i = row->first;
        pthread_mutex_unlock(&lock);
        if (i == NULL)
            return;
        result = cu->EventQuery(i->end);
        if (result == OARI_CU_NOT_READY ||
            (result == OARI_CU_SUCCESS && !oari_gpu_anchor_see(cu, i->anchor)))
            return;
        count_lost(result != OARI_CU_SUCCESS || !write_interval(cu, i));
        pthread_mutex_lock(&lock);
        row->first = i->next;
        give_interval(t, i);
        pthread_mutex_unlock(&lock);
    }
}

static void look(gpu_tracer *t, const oari_cuda *cu, gpu_row *row, int most)
{
    if (pthread_mutex_trylock(&looking) != 0)
        return;
    oari_gpu_clock_see(&t->clock, cu);
    look_at_row(t, cu, row, most);
    pthread_mutex_unlock(&looking);
}

static gpu_tracer *find_tracer(int device, int *rows)
{
    gpu_tracer *t;

    pthread_mutex_lock(&lock);
    t = tracers[device];
    *rows = t != NULL ? t->rows : 0;
    pthread_mutex_unlock(&lock);
    return t;
}

/* Writes everything that is over, on all devices. */
static void look_at_all(void)
{
    for (int d = 0; d < OARI_CUDA_DEVICES; d++) {
        const oari_cuda *cu;
        int mode, rows;
        gpu_tracer *t = find_tracer(d, &rows);

        if (t == NULL || !enter_device(d, &cu, &mode))
            continue;
        for (int r = 0; r < rows; r++)
            look(t, cu, &t->row[r], OARI_GPU_INTERVALS);
        leave_device(cu, mode);
    }
}

/* When the process ends, what is not over by then is lost. */
static void at_exit(void)
{
    uint32_t lost = 0;

    look_at_all();
    pthread_mutex_lock(&lock);
    for (int d = 0; d < OARI_CUDA_DEVICES; d++)
        for (int r = 0; tracers[d] != NULL && r < tracers[d]->rows; r++)
            for (oari_gpu_interval *i = tracers[d]->row[r].first; i != NULL;
                 i = i->next)
                lost++;
    pthread_mutex_unlock(&lock);
    count_lost(lost);
}

/* A child by fork has no GPU: it forgets what its parent has begun. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&looking, NULL);
    for (int d = 0; d < OARI_CUDA_DEVICES; d++)
        tracers[d] = NULL;
    atomic_store(&oari_gpu_trace_open, 0);
}

/* ---- beginning and ending ------------------------------------------------ */

/* Returns NULL without memory. */
static gpu_tracer *tracer_of(int device)
{
    gpu_tracer *t;

    pthread_mutex_lock(&lock);
    t = tracers[device];
    if (t == NULL && (t = oari_alloc(1, sizeof *t)) != NULL) {
        oari_gpu_clock_init(&t->clock);
        t->pool = oari_alloc(OARI_GPU_INTERVALS, sizeof *t->pool);
        if (t->pool == NULL) {
            oari_free(t);
            t = NULL;
        }
        tracers[device] = t;
    }
    if (t != NULL && !has_hooks) {
        has_hooks = 1;
        atomic_store(&oari_trace_at_step, look_at_all);
        pthread_atfork(NULL, NULL, in_child);
        atexit(at_exit);
    }
    pthread_mutex_unlock(&lock);
    return t;
}

/* Returns NULL if there are too many streams. The caller has the lock. */
static gpu_row *row_of(gpu_tracer *t, int device, oari_cu_stream stream)
{
    char name[48];
    int r = 0;

    if ((uintptr_t)stream == OARI_CU_STREAM_LEGACY)
        stream = NULL;
    while (r < t->rows && t->row[r].stream != stream)
        r++;
    if (r == ROWS)
        return NULL;
    if (r == t->rows) {
        snprintf(name, sizeof name, "cuda:%d stream %d", device, r + 1);
        t->row[r] =
            (gpu_row){ .stream = stream, .name = oari_trace_name(name) };
        t->rows++;
    }
    return &t->row[r];
}

/* Returns NULL if too many are under way. */
static oari_gpu_interval *take_interval(gpu_tracer *t, int device,
                                        oari_cu_stream stream)
{
    oari_gpu_interval *i = NULL;
    oari_gpu_anchor *anchor;
    gpu_row *row;

    pthread_mutex_lock(&lock);
    row = row_of(t, device, stream);
    anchor = row != NULL ? oari_gpu_clock_hold(&t->clock) : NULL;
    if (anchor != NULL) {
        i = t->unused;
        if (i != NULL)
            t->unused = i->next;
        else if (t->made < OARI_GPU_INTERVALS)
            i = &t->pool[t->made++];
        else
            atomic_fetch_sub(&anchor->users, 1);
    }
    if (i != NULL) {
        i->next = NULL;
        i->row = row;
        i->device = device;
        i->anchor = anchor;
        t->running++;
    }
    pthread_mutex_unlock(&lock);
    return i;
}

/* Gives back an interval that has begun and will not be written. */
static void drop_interval(gpu_tracer *t, oari_gpu_interval *i)
{
    pthread_mutex_lock(&lock);
    t->running--;
    give_interval(t, i);
    pthread_mutex_unlock(&lock);
}

static int record_begin(const oari_cuda *cu, oari_gpu_interval *i)
{
    i->posted = oari_ticks();
    return (i->begin != NULL ||
            cu->EventCreate(&i->begin, TIMED) == OARI_CU_SUCCESS) &&
           (i->end != NULL ||
            cu->EventCreate(&i->end, TIMED) == OARI_CU_SUCCESS) &&
           cu->EventRecord(i->begin, i->row->stream) == OARI_CU_SUCCESS;
}

oari_gpu_interval *oari_gpu_trace_start(int device, void *stream)
{
    gpu_tracer *t;
    oari_gpu_interval *i = NULL;
    const oari_cuda *cu;
    int mode;

    if (device < 0 || device >= OARI_CUDA_DEVICES ||
        !enter_device(device, &cu, &mode))
        return NULL;
    if (!is_captured(cu, stream)) {
        t = tracer_of(device);
        if (t != NULL) {
            renew_anchor(t, cu);
            i = take_interval(t, device, stream);
        }
        if (i != NULL && !record_begin(cu, i)) {
            drop_interval(t, i);
            i = NULL;
        }
        count_lost(i == NULL);
    }
    leave_device(cu, mode);
    return i;
}

void oari_gpu_trace_finish(oari_gpu_interval *i, const char *name)
{
    int rows, mode, device = i->device, ok = 0;
    gpu_tracer *t = find_tracer(device, &rows);
    gpu_row *row = i->row;
    const oari_cuda *cu;

    if (t == NULL || !enter_device(device, &cu, &mode))
        return;
    if (name != NULL) {
        i->name = oari_trace_name(name);
        ok = !is_captured(cu, row->stream) &&
             cu->EventRecord(i->end, row->stream) == OARI_CU_SUCCESS;
        count_lost(!ok);
    }
    if (!ok)
        drop_interval(t, i);
    else {
        pthread_mutex_lock(&lock);
        t->running--;
        if (row->first != NULL)
            row->last->next = i;
        else
            row->first = i;
        row->last = i;
        pthread_mutex_unlock(&lock);
    }
    look(t, cu, row, LOOKS);
    leave_device(cu, mode);
}

/* ---- operations ---------------------------------------------------------- */

/* Returns the interval of an operation, which it is no longer; NULL: none. */
static oari_gpu_interval *take_open(int device, const void *finished)
{
    oari_gpu_interval *found = NULL, **at;

    pthread_mutex_lock(&lock);
    if (tracers[device] != NULL) {
        at = &tracers[device]->open;
        while (*at != NULL && (*at)->finished != finished)
            at = &(*at)->next;
        if ((found = *at) != NULL) {
            *at = found->next;
            found->next = NULL;
            atomic_fetch_sub(&oari_gpu_trace_open, 1);
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void oari_gpu_trace_call_start(int device, void *stream, const void *finished)
{
    oari_gpu_interval *i;

    oari_gpu_trace_end(take_open(device, finished), NULL);
    i = finished != NULL ? oari_gpu_trace_start(device, stream) : NULL;
    if (i == NULL)
        return;
    pthread_mutex_lock(&lock);
    i->finished = finished;
    i->next = tracers[device]->open;
    tracers[device]->open = i;
    atomic_fetch_add(&oari_gpu_trace_open, 1);
    pthread_mutex_unlock(&lock);
}

void oari_gpu_trace_call_finish(int device, const void *finished,
                                const char *name)
{
    oari_gpu_trace_end(take_open(device, finished), name);
}
