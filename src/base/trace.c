/* SPDX-License-Identifier: Apache-2.0 */
/* trace: events in chunks of a mapped file, a chunk for each thread that
 * writes.
 *
 * The whole file is mapped once, sparse, and the disk's blocks of a chunk are
 * reserved when it is taken, so that a full disk is an answer and not a signal.
 * A thread's cursor is its own: an event is a few stores, the last of them its
 * start, without which a reader does not see it. Everything else is under one
 * lock. A thread that ends hands its chunk to the next one that begins.
 */
#include "base/trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/trace_parts.h"

enum {
    MOST_STEPS = 1 << 20, /* after that many, thinning goes by seconds */
    DEFAULT_BYTES = 48 << 20,
    AHEAD = 8 /* events */
};

typedef enum chunk_state { CHUNK_FREE, CHUNK_OWNED, CHUNK_FULL } chunk_state;

_Atomic uint32_t oari_trace_on;
_Atomic(void (*)(void)) oari_trace_at_step;

/* A thread's place in its chunk. */
typedef struct cursor {
    oari_trace_event *next, *end; /* NULL: no chunk */
    unsigned chunk;
    int registered; /* its end is noticed */
} cursor;

static _Thread_local cursor mine;

static struct {
    pthread_mutex_t lock;
    char folder[512]; /* "": not traced */
    oari_trace_file *file;
    oari_trace_file *parent; /* in a child: its names and groups hold here */
    size_t bytes, parent_bytes;
    int fd;
    unsigned char *state; /* of each chunk: chunk_state */
    unsigned *left;       /* where the owner of each left off */
    unsigned chunks;
    oari_trace_names names;
    uint64_t *step; /* ticks at which each step ended */
    size_t steps, step_room;
    uint64_t mask; /* steps whose number has none of these bits are kept */
    pthread_key_t key;
    int has_key, warned;
} trace = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

/* ---- the file ------------------------------------------------------------ */

static size_t chunks_at(void)
{
    return offsetof(oari_trace_file, chunk);
}

/* Stops writing, and says why once. */
static void stop(const char *what, int error)
{
    atomic_store(&oari_trace_on, 0);
    if (trace.file != NULL)
        atomic_store(&trace.file->head.full, 1);
    if (!trace.warned)
        oari_log(OAR_LOG_ERROR, "the trace in %s stops here: %s: %s",
                 trace.folder, what, strerror(error));
    trace.warned = 1;
}

/* Opens the file of this process. Returns 0 after stopping. */
static int open_file(void)
{
    int64_t limit = DEFAULT_BYTES;
    void *at;

    if (oari_env_int("OARSONG_TRACE_BYTES", 8 << 20, (int64_t)1 << 34,
                     &limit) != OAR_OK)
        limit = DEFAULT_BYTES; /* the first group says what is wrong */
    trace.chunks =
        (unsigned)(((size_t)limit - chunks_at()) / OARI_TRACE_CHUNK_BYTES);
    trace.bytes = chunks_at() + (size_t)trace.chunks * OARI_TRACE_CHUNK_BYTES;
    trace.state = oari_alloc(trace.chunks, sizeof *trace.state);
    trace.left = oari_alloc(trace.chunks, sizeof *trace.left);
    trace.fd = oari_trace_file_make(trace.folder);
    if (trace.state == NULL || trace.left == NULL || trace.fd < 0 ||
        oari_file_resize(trace.fd, (off_t)trace.bytes) != 0 ||
        oari_file_reserve(trace.fd, 0, OARI_TRACE_HEAD_BYTES) != 0) {
        stop("no file can be made", errno);
        return 0;
    }
    at = mmap(NULL, trace.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, trace.fd,
              0);
    if (at == MAP_FAILED) {
        stop("no file can be mapped", errno);
        return 0;
    }
    trace.file = at;
    oari_trace_head_fill(&trace.file->head, trace.chunks);
    if (trace.parent != NULL) {
        oari_trace_file_inherit(trace.file, trace.parent);
        munmap(trace.parent, trace.parent_bytes);
        trace.parent = NULL;
    } else
        trace.names.count = 1;
    return 1;
}

/* ---- thinning ------------------------------------------------------------ */

/* Returns which step, or without steps which second, a time belongs to. */
static uint64_t interval_of(uint64_t ticks)
{
    size_t low = 0, high = trace.steps;

    if (high == 0 || high == MOST_STEPS)
        return (uint64_t)((double)(ticks - trace.file->head.base_ticks) /
                          trace.file->head.ticks_per_second);
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (trace.step[middle] <= ticks)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int is_kept(const oari_trace_event *e)
{
    return e->kind == OARI_TRACE_THREAD ||
           (interval_of(atomic_load_explicit(&e->start, memory_order_relaxed)) &
            trace.mask) == 0;
}

static void copy_event(oari_trace_event *to, const oari_trace_event *from)
{
    memcpy((char *)to + sizeof to->start, (const char *)from + sizeof to->start,
           sizeof *to - sizeof to->start);
    atomic_store_explicit(
        &to->start, atomic_load_explicit(&from->start, memory_order_relaxed),
        memory_order_release);
}

static void clear_events(oari_trace_event *from, const oari_trace_event *end)
{
    for (; from < end; from++)
        atomic_store_explicit(&from->start, 0, memory_order_relaxed);
}

/* Drops every second step of what the full chunks hold, and packs the rest.
 * Returns how many chunks have room for as much again afterwards. */
static unsigned thin(void)
{
    unsigned to = trace.chunks, at = 0, freed = 0;

    trace.mask = trace.mask * 2 + 1;
    atomic_store(&trace.file->head.one_in, (uint32_t)(trace.mask + 1));
    atomic_store(&trace.file->head.by_time,
                 trace.steps == 0 || trace.steps == MOST_STEPS);
    for (unsigned c = 0; c < trace.chunks; c++) {
        oari_trace_event *e = trace.file->chunk[c].event;

        if (trace.state[c] != CHUNK_FULL)
            continue;
        if (to == trace.chunks)
            to = c;
        for (int i = 0; i < OARI_TRACE_EVENTS; i++) {
            if (!is_kept(&e[i]))
                continue;
            if (at == OARI_TRACE_EVENTS) {
                do
                    to++;
                while (trace.state[to] != CHUNK_FULL);
                at = 0;
            }
            if (&trace.file->chunk[to].event[at] != &e[i])
                copy_event(&trace.file->chunk[to].event[at], &e[i]);
            at++;
        }
    }
    for (unsigned c = to; c < trace.chunks; c++)
        if (trace.state[c] == CHUNK_FULL) {
            unsigned keep = c == to ? at : 0;

            clear_events(&trace.file->chunk[c].event[keep],
                         &trace.file->chunk[c].event[OARI_TRACE_EVENTS]);
            if (keep == OARI_TRACE_EVENTS)
                continue;
            trace.state[c] = CHUNK_FREE;
            trace.left[c] = keep;
            freed += keep < OARI_TRACE_EVENTS / 2;
        }
    return freed;
}

/* ---- chunks -------------------------------------------------------------- */

/* Gives back the chunk of a thread that ends. */
static void thread_ends(void *arg)
{
    cursor *c = arg;

    pthread_mutex_lock(&trace.lock);
    if (c->next != NULL && trace.file != NULL) {
        trace.left[c->chunk] =
            (unsigned)(c->next - trace.file->chunk[c->chunk].event);
        trace.state[c->chunk] = c->next == c->end ? CHUNK_FULL : CHUNK_FREE;
    }
    c->next = c->end = NULL;
    pthread_mutex_unlock(&trace.lock);
}

static unsigned find_free(void)
{
    unsigned c = 0;

    while (c < trace.chunks && trace.state[c] != CHUNK_FREE)
        c++;
    return c;
}

/* Gives the thread a chunk. Returns 0 after stopping. */
static int take_chunk(void)
{
    unsigned c;
    int error;

    if (mine.next != NULL)
        trace.state[mine.chunk] = CHUNK_FULL;
    mine.next = mine.end = NULL;
    c = find_free();
    if (c == trace.chunks) {
        unsigned freed = 0;

        while (freed == 0 && trace.mask < MOST_STEPS)
            freed = thin();
        if (freed == 0) { /* it is all of the first step */
            stop("all its chunks are in use", ENOSPC);
            return 0;
        }
        c = find_free();
        oari_log(OAR_LOG_WARN,
                 "the trace in %s is full: one %s in %u is kept from now on "
                 "(OARSONG_TRACE_BYTES)",
                 trace.folder,
                 atomic_load(&trace.file->head.by_time) ? "second" : "step",
                 atomic_load(&trace.file->head.one_in));
    }
    error = oari_file_reserve(
        trace.fd, (off_t)(chunks_at() + (size_t)c * OARI_TRACE_CHUNK_BYTES),
        OARI_TRACE_CHUNK_BYTES);
    if (error != 0) {
        stop("there is no room for it", error);
        return 0;
    }
#ifdef MADV_POPULATE_WRITE /* or each page would cost the writer a fault */
    madvise(&trace.file->chunk[c], OARI_TRACE_CHUNK_BYTES, MADV_POPULATE_WRITE);
#endif
    trace.state[c] = CHUNK_OWNED;
    if (atomic_load(&trace.file->head.taken) < c + 1)
        atomic_store(&trace.file->head.taken, c + 1);
    mine.chunk = c;
    mine.next = &trace.file->chunk[c].event[trace.left[c]];
    mine.end = &trace.file->chunk[c].event[OARI_TRACE_EVENTS];
    trace.left[c] = 0;
    return 1;
}

/* Gives the thread room for one event at least, and says in the chunk whose it
 * is. Returns 0 if nothing can be written. */
__attribute__((noinline, cold)) static int make_room(void)
{
    char name[16] = "";
    oari_trace_entry thread = { .kind = OARI_TRACE_THREAD };
    oari_moment now;
    int ok;

    pthread_mutex_lock(&trace.lock);
    ok = !trace.warned && (trace.file != NULL || open_file()) && take_chunk();
    if (ok) {
        if (trace.has_key && !mine.registered)
            mine.registered = pthread_setspecific(trace.key, &mine) == 0;
        pthread_getname_np(pthread_self(), name, sizeof name);
        now = oari_moment_now();
        thread.start = thread.end = now.ticks;
        thread.number = (uint32_t)(now.ns >> 32);
        thread.peer = now.ns >> 16 & 0xffff;
        thread.group = now.ns & 0xffff;
        thread.name = oari_trace_name_enter(&trace.names, trace.file, name);
        thread.value = (uint64_t)gettid();
        oari_trace_write(&thread);
    }
    pthread_mutex_unlock(&trace.lock);
    return ok && (mine.next < mine.end || make_room());
}

/* Stores the words of an event. The lines behind it are fetched meanwhile: a
 * store to memory that is not in the cache would delay every later one that
 * must not be seen before it. */
static inline void store(oari_trace_event *to, uint64_t start, uint64_t how,
                         uint64_t who, uint64_t value)
{
    __builtin_prefetch(to + AHEAD, 1);
    memcpy(&to->duration, &how, sizeof how);
    memcpy(&to->group, &who, sizeof who);
    to->value = value;
    atomic_store_explicit(&to->start, start, memory_order_release);
}

__attribute__((noinline, cold)) static void
put_in_next_chunk(uint64_t start, uint64_t how, uint64_t who, uint64_t value)
{
    if (make_room())
        store(mine.next++, start, how, who, value);
}

void oari_trace_put(uint64_t start, uint64_t how, uint64_t who, uint64_t value)
{
    cursor *c = &mine;
    oari_trace_event *to = c->next;

    if (__builtin_expect(to == c->end, 0)) {
        put_in_next_chunk(start, how, who, value);
        return;
    }
    c->next = to + 1;
    store(to, start, how, who, value);
}

void oari_trace_finish(uint64_t start, oari_trace_kind kind, const char *name)
{
    oari_trace_entry e = { .start = start, .end = oari_ticks(), .kind = kind };

    e.name = oari_trace_name(name);
    oari_trace_write(&e);
}

/* ---- names and groups ---------------------------------------------------- */

unsigned oari_trace_name(const char *text)
{
    uint32_t at;
    unsigned n = 0;

    if (text == NULL || (mine.next == mine.end && !make_room()))
        return 0;
    n = oari_trace_name_find(&trace.names, trace.file, text, &at);
    if (n != 0)
        return n;
    pthread_mutex_lock(&trace.lock);
    n = oari_trace_name_enter(&trace.names, trace.file, text);
    pthread_mutex_unlock(&trace.lock);
    return n;
}

unsigned oari_trace_group_enter(const oari_trace_group_of *of)
{
    oari_trace_group *g;
    unsigned n;

    if (mine.next == mine.end && !make_room())
        return 0;
    pthread_mutex_lock(&trace.lock);
    n = atomic_load(&trace.file->head.groups);
    if (n < OARI_TRACE_GROUPS) {
        g = &trace.file->group[n];
        snprintf(g->name, sizeof g->name, "%s", of->name);
        g->rank = of->rank;
        g->ranks = of->ranks;
        g->instance = of->instance;
        g->epoch = of->epoch;
        for (unsigned i = 0; i < of->members && i < OARI_TRACE_MEMBERS; i++)
            g->member[i] = of->member[i];
        atomic_store(&g->members, of->members);
        atomic_store_explicit(&g->ready, 1, memory_order_release);
        atomic_store(&trace.file->head.groups, n + 1);
    } else
        n = 0;
    pthread_mutex_unlock(&trace.lock);
    return n;
}

oari_trace_head *oari_trace_own_head(void)
{
    return mine.next != mine.end || make_room() ? &trace.file->head : NULL;
}

void oari_trace_process(int rank, int ranks)
{
    if (!oari_tracing() || (mine.next == mine.end && !make_room()))
        return;
    pthread_mutex_lock(&trace.lock);
    if (trace.file->head.rank < 0)
        trace.file->head.rank = rank;
    if (trace.file->head.world == 0)
        trace.file->head.world = ranks;
    pthread_mutex_unlock(&trace.lock);
}

/* ---- steps --------------------------------------------------------------- */

static void keep_step(uint64_t now)
{
    if (trace.steps == trace.step_room && trace.steps < MOST_STEPS) {
        size_t room = trace.step_room == 0 ? 1024 : trace.step_room * 2;
        uint64_t *step = realloc(trace.step, room * sizeof *step);

        if (step == NULL)
            return;
        trace.step = step;
        trace.step_room = room;
    }
    if (trace.steps < MOST_STEPS)
        trace.step[trace.steps++] = now;
}

/* A step that is dropped is not written at all: the flag is off while it lasts.
 */
void oari_trace_step(int64_t step)
{
    static _Thread_local uint64_t last;
    oari_trace_entry e = { .end = oari_ticks(), .kind = OARI_TRACE_STEP };
    void (*at_step)(void) = atomic_load(&oari_trace_at_step);

    if (trace.folder[0] == 0)
        return;
    if (at_step != NULL)
        at_step();
    e.start = last != 0 ? last : e.end;
    e.value = (uint64_t)step;
    last = e.end;
    if (oari_tracing())
        oari_trace_write(&e);
    pthread_mutex_lock(&trace.lock);
    if (trace.file != NULL && !trace.warned) {
        keep_step(e.end);
        atomic_store(&oari_trace_on, (trace.steps & trace.mask) == 0 ||
                                         trace.steps == MOST_STEPS);
    }
    pthread_mutex_unlock(&trace.lock);
}

/* ---- beginning, and forks ------------------------------------------------ */

static void before_fork(void)
{
    pthread_mutex_lock(&trace.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&trace.lock);
}

/* A child writes nothing into its parent's file: its first event makes another.
 */
static void in_child(void)
{
    mine = (cursor){ .registered = mine.registered };
    if (trace.file != NULL) {
        trace.parent = trace.file;
        trace.parent_bytes = trace.bytes;
        close(trace.fd);
        oari_free(trace.state);
        oari_free(trace.left);
    }
    trace.file = NULL;
    trace.fd = -1;
    trace.state = NULL;
    trace.left = NULL;
    trace.steps = 0;
    trace.mask = 0;
    pthread_mutex_unlock(&trace.lock);
}

__attribute__((constructor)) static void begin(void)
{
    const char *folder = oari_env_text("OARSONG_TRACE");

    if (folder == NULL)
        return;
    snprintf(trace.folder, sizeof trace.folder, "%s", folder);
    trace.has_key = pthread_key_create(&trace.key, thread_ends) == 0;
    pthread_atfork(before_fork, after_fork, in_child);
    atomic_store(&oari_trace_on, 1);
}
