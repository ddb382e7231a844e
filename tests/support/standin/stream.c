/* SPDX-License-Identifier: Apache-2.0 */
/* standin/stream.c: streams of the stand-in: a thread each, which runs what it
 * is given in order, and each thing a little late. An operation of the default
 * stream waits for what was on the others before it, and they for it, except
 * those that are non-blocking. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "standin/driver.h"

struct operation {
    operation *next;
    int refs;
    int done;
    int64_t ended_ns;
    operation_fn run;
    void *arg;
    operation **after; /* what has to be done first */
    int after_count;
    uint64_t captured; /* the number of the graph that it stands in: it never
                          runs. The graph may be gone. 0: none */
    int joined;
};

struct stream {
    stream *next;
    context *owner;
    unsigned flags;
    int standard;
    int doomed;     /* destroyed; ends when it is empty */
    graph *capture; /* what is put on the stream goes there */
    uint64_t seed;
    operation *first, **end;
    operation *last; /* the newest that was put, done or not */
};

static stream *streams;
static uint64_t made;

/* ---- operations ---------------------------------------------------------- */

void standin_release_locked(operation *op)
{
    if (op && --op->refs == 0)
        free(op);
}

operation *standin_keep_locked(operation *op)
{
    op->refs++;
    return op;
}

void standin_release(operation *op)
{
    pthread_mutex_lock(&standin_lock);
    standin_release_locked(op);
    pthread_mutex_unlock(&standin_lock);
}

int standin_is_done(const operation *op)
{
    return op->done;
}

int64_t standin_ended_ns(const operation *op)
{
    return op->ended_ns;
}

static _Thread_local long waits; /* by this thread, for a stream */

long standin_waits(void)
{
    return waits;
}

static void wait_locked(operation *op)
{
    while (!op->done)
        pthread_cond_wait(&standin_moved, &standin_lock);
}

void standin_finish(operation *op)
{
    waits++;
    pthread_mutex_lock(&standin_lock);
    wait_locked(op);
    standin_release_locked(op);
    pthread_mutex_unlock(&standin_lock);
}

static void add_after(operation *op, operation *earlier)
{
    if (!earlier || earlier->done)
        return;
    op->after =
        realloc(op->after, sizeof *op->after * (size_t)(op->after_count + 1));
    op->after[op->after_count++] = earlier;
    earlier->refs++;
}

/* What the rule of the default stream makes an operation wait for. */
static void add_standard(operation *op, stream *s)
{
    if (s->flags & STANDIN_NON_BLOCKING)
        return;
    for (stream *other = streams; other; other = other->next)
        if (other != s && other->owner == s->owner &&
            !(other->flags & STANDIN_NON_BLOCKING) &&
            (s->standard || other->standard))
            add_after(op, other->last);
}

graph **standin_stream_capture(stream *s)
{
    return &s->capture;
}

uint64_t standin_captured_in(const operation *op)
{
    return op->captured;
}

int *standin_joined(operation *op)
{
    return &op->joined;
}

operation *standin_last(stream *s)
{
    return s->last;
}

int standin_is_standard(const stream *s)
{
    return s->standard;
}

void standin_each_stream(void (*fn)(stream *s, void *arg), void *arg)
{
    for (stream *s = streams; s; s = s->next)
        fn(s, arg);
}

operation *standin_captured_operation(stream *s)
{
    operation *op = calloc(1, sizeof *op);
    op->refs = 2; /* s->last, the caller */
    op->done = 1;
    op->captured = standin_graph_number(s->capture);
    standin_release_locked(s->last);
    s->last = op;
    return op;
}

operation *standin_put_locked(stream *s, operation_fn fn, void *arg,
                              operation *after)
{
    operation *op;
    if (s->capture) {
        standin_capture(s->capture, fn, arg);
        return standin_captured_operation(s);
    }
    op = calloc(1, sizeof *op);
    op->refs = 3; /* the queue, s->last, the caller */
    op->run = fn;
    op->arg = arg;
    add_after(op, after);
    add_standard(op, s);
    standin_release_locked(s->last);
    s->last = op;
    *s->end = op;
    s->end = &op->next;
    pthread_cond_broadcast(&standin_moved);
    return op;
}

operation *standin_put(stream *s, operation_fn fn, void *arg, operation *after)
{
    operation *op;
    pthread_mutex_lock(&standin_lock);
    op = standin_put_locked(s, fn, arg, after);
    pthread_mutex_unlock(&standin_lock);
    return op;
}

/* ---- the thread of a stream ---------------------------------------------- */

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void standin_dawdle(uint64_t *seed)
{
    uint64_t most_us = (uint64_t)standin_setting("STANDIN_DELAY_US", 300);
    uint64_t ns = most_us ? next_random(seed) % (most_us * 1000) : 0;
    struct timespec pause = { (time_t)(ns / 1000000000),
                              (long)(ns % 1000000000) };
    if (ns)
        nanosleep(&pause, NULL);
}

static void run_first(stream *s)
{
    operation *op = s->first;
    for (int i = 0; i < op->after_count; i++) {
        wait_locked(op->after[i]);
        standin_release_locked(op->after[i]);
    }
    free(op->after);
    op->after = NULL;
    pthread_mutex_unlock(&standin_lock);
    standin_dawdle(&s->seed);
    if (op->run)
        op->run(op->arg);
    free(op->arg);
    pthread_mutex_lock(&standin_lock);
    op->ended_ns = standin_now_ns();
    op->done = 1;
    s->first = op->next;
    if (!s->first)
        s->end = &s->first;
    standin_release_locked(op);
    pthread_cond_broadcast(&standin_moved);
}

static void unlist(stream *s)
{
    stream **link = &streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
}

static void *serve(void *arg)
{
    stream *s = arg;
    pthread_mutex_lock(&standin_lock);
    while (s->first || !s->doomed) {
        if (s->first)
            run_first(s);
        else
            pthread_cond_wait(&standin_moved, &standin_lock);
    }
    unlist(s);
    standin_release_locked(s->last);
    pthread_mutex_unlock(&standin_lock);
    free(s);
    return NULL;
}

/* Its signals go to the program's own threads. */
static int start_thread(stream *s)
{
    pthread_t thread;
    sigset_t all, before;
    int failed;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    failed = pthread_create(&thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return OARI_CU_OUT_OF_MEMORY;
    pthread_detach(thread);
    return OARI_CU_SUCCESS;
}

/* Locked. NULL: no thread to be had. */
static stream *make_stream(context *c, unsigned flags, int standard)
{
    stream *s = calloc(1, sizeof *s);
    s->owner = c;
    s->flags = flags;
    s->standard = standard;
    s->seed = (uint64_t)standin_setting("STANDIN_SEED", 1) * 1000003 + made++;
    s->end = &s->first;
    if (start_thread(s)) {
        free(s);
        return NULL;
    }
    s->next = streams;
    streams = s;
    return s;
}

/* ---- which streams there are --------------------------------------------- */

stream *standin_stream_locked(context *c, oari_cu_stream handle)
{
    if (handle == NULL || handle == (void *)1) { /* CU_STREAM_LEGACY */
        if (c && !c->standard)
            c->standard = make_stream(c, 0, 1);
        return c ? c->standard : NULL;
    }
    for (stream *s = streams; s; s = s->next)
        if (s == handle && !s->doomed && !s->standard)
            return s;
    return NULL;
}

stream *standin_stream(context *c, oari_cu_stream handle)
{
    stream *s;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, handle);
    pthread_mutex_unlock(&standin_lock);
    return s;
}

context *standin_stream_context(stream *s)
{
    return s->owner;
}

/* Locked. One at a time, because the list may change while it waits; what is
 * put meanwhile may be waited for too. */
static operation *find_undone(context *c)
{
    for (stream *s = streams; s; s = s->next)
        if (s->owner == c && s->last && !s->last->done)
            return s->last;
    return NULL;
}

void standin_drain(context *c)
{
    operation *op;
    pthread_mutex_lock(&standin_lock);
    waits++;
    while ((op = find_undone(c)) != NULL) {
        op->refs++;
        wait_locked(op);
        standin_release_locked(op);
    }
    pthread_mutex_unlock(&standin_lock);
}

int cuStreamCreateWithPriority(oari_cu_stream *handle, unsigned flags,
                               int priority)
{
    context *c;
    stream *s;
    int bad = standin_enter(&c);
    (void)priority; /* out of range is taken as the nearest */
    if (bad)
        return bad;
    if (flags & ~(unsigned)STANDIN_NON_BLOCKING)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    s = make_stream(c, flags, 0);
    pthread_mutex_unlock(&standin_lock);
    if (s)
        *handle = s;
    return s ? OARI_CU_SUCCESS : OARI_CU_OUT_OF_MEMORY;
}

int cuStreamDestroy_v2(oari_cu_stream handle)
{
    context *c;
    stream *s;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    s = handle && handle != (void *)1 ? standin_stream_locked(c, handle) : NULL;
    if (s)
        s->doomed = 1;
    pthread_cond_broadcast(&standin_moved);
    pthread_mutex_unlock(&standin_lock);
    return s ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

/* The default stream is done when those are that it would wait for. */
static operation *newest(stream *s)
{
    return s->standard ? standin_put_locked(s, NULL, NULL, NULL) : s->last;
}

int cuStreamSynchronize(oari_cu_stream handle)
{
    context *c;
    stream *s;
    operation *op;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, handle);
    if (s && s->capture) {
        bad = standin_spoil_capture(s->capture);
        pthread_mutex_unlock(&standin_lock);
        return bad;
    }
    op = s ? newest(s) : NULL;
    waits++;
    if (op) {
        op->refs += !s->standard;
        wait_locked(op);
        standin_release_locked(op);
    }
    pthread_mutex_unlock(&standin_lock);
    return s ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

/* Whether anything of a stream, or, for the default one, of a stream that it
 * waits for, is still to run. Locked. */
static int is_busy(const stream *s)
{
    for (const stream *other = streams; other; other = other->next)
        if ((other == s || (s->standard && other->owner == s->owner &&
                            !(other->flags & STANDIN_NON_BLOCKING))) &&
            other->first)
            return 1;
    return 0;
}

int cuStreamQuery(oari_cu_stream handle)
{
    context *c;
    stream *s;
    int busy, bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    s = standin_stream_locked(c, handle);
    busy = s && is_busy(s);
    if (s && s->capture)
        bad = standin_spoil_capture(s->capture);
    pthread_mutex_unlock(&standin_lock);
    if (!s || bad)
        return bad ? bad : CU_INVALID_HANDLE;
    return busy ? OARI_CU_NOT_READY : OARI_CU_SUCCESS;
}
