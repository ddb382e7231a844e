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
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

enum {
    NAMES = 1 << 16,      /* of the table; half of them are used */
    MOST_STEPS = 1 << 20, /* after that many, thinning goes by seconds */
    MOST_FILES = 1000,    /* of one rank in one folder */
    DEFAULT_BYTES = 48 << 20
};

typedef enum chunk_state { CHUNK_FREE, CHUNK_OWNED, CHUNK_FULL } chunk_state;

const char oari_trace_magic[8] = "OARTRACE";
_Atomic uint32_t oari_trace_on;

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
    _Atomic uint32_t hash_at[NAMES]; /* 1 + number of the name, 0: free */
    uint32_t offset_of[NAMES];       /* of each name, in bytes */
    uint32_t names;
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

/* What launchers call the rank and the number of ranks. */
static const char *const rank_names[] = { "OARSONG_RANK", "RANK",
                                          "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                          "SLURM_PROCID" };
static const char *const size_names[] = { "OARSONG_SIZE", "WORLD_SIZE",
                                          "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                          "SLURM_NTASKS" };
enum { LAUNCHERS = sizeof rank_names / sizeof rank_names[0] };

/* Returns the number in the first of these variables that has one; else -1. */
static int read_number(const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        const char *text = getenv(names[i]);

        if (text != NULL && text[0] >= '0' && text[0] <= '9')
            return atoi(text);
    }
    return -1;
}

static void read_line(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, room - 1) : -1;

    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    if (fd >= 0)
        close(fd);
}

static void fill_head(oari_trace_head *h)
{
    static const char *const epoch = "OARSONG_EPOCH";
    struct timespec wall;

    memcpy(h->magic, oari_trace_magic, sizeof h->magic);
    h->version = OARI_TRACE_VERSION;
    h->chunks = trace.chunks;
    h->rank = read_number(rank_names, LAUNCHERS);
    h->world = read_number(size_names, LAUNCHERS);
    h->epoch = read_number(&epoch, 1);
    if (h->world < 0)
        h->world = 0;
    if (h->epoch < 0)
        h->epoch = 0;
    h->pid = getpid();
    h->ticks_per_second = oari_ticks_per_second();
    if (oari_env_text("OARSONG_RUN_ID") != NULL)
        snprintf(h->run, sizeof h->run, "%s", oari_env_text("OARSONG_RUN_ID"));
    gethostname(h->host, sizeof h->host - 1);
    read_line("/proc/sys/kernel/random/boot_id", h->boot, sizeof h->boot);
    clock_gettime(CLOCK_REALTIME, &wall);
    h->base_ns = oari_now_ns();
    h->base_ticks = oari_ticks();
    h->wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
    atomic_store(&h->names, 1);
    atomic_store(&h->groups, 1);
    atomic_store(&h->one_in, 1);
}

/* Makes a file that nobody else has: rank-3.oartrace, or rank-3.2.oartrace if
 * another process of that rank was first. */
static int make_file(void)
{
    int rank = read_number(rank_names, LAUNCHERS);
    char path[640], number[32] = "";

    if (mkdir(trace.folder, 0777) != 0 && errno != EEXIST)
        return -1;
    for (int i = 2; i < MOST_FILES; i++) {
        int fd;

        snprintf(path, sizeof path, "%s/%s-%d%s" OARI_TRACE_SUFFIX,
                 trace.folder, rank >= 0 ? "rank" : "pid",
                 rank >= 0 ? rank : (int)getpid(), number);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
        snprintf(number, sizeof number, ".%d", i);
    }
    return -1;
}

/* Copies the names and groups of the process that forked this one: numbers of
 * theirs are kept in many places. */
static void inherit(void)
{
    oari_trace_file *from = trace.parent, *to = trace.file;
    uint32_t names = atomic_load(&from->head.names);
    uint32_t groups = atomic_load(&from->head.groups);

    memcpy(to->name, from->name, names);
    memcpy(to->group, from->group, groups * sizeof to->group[0]);
    atomic_store(&to->head.names, names);
    atomic_store(&to->head.groups, groups);
    munmap(from, trace.parent_bytes);
    trace.parent = NULL;
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
    trace.fd = make_file();
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
    fill_head(&trace.file->head);
    if (trace.parent != NULL)
        inherit();
    else
        trace.names = 1;
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
 * Returns how many chunks are free afterwards. */
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
        unsigned freed = thin();

        oari_log(OAR_LOG_WARN,
                 "the trace in %s is full: one %s in %u is kept from now on "
                 "(OARSONG_TRACE_BYTES)",
                 trace.folder,
                 atomic_load(&trace.file->head.by_time) ? "second" : "step",
                 atomic_load(&trace.file->head.one_in));
        c = find_free();
        if (freed == 0 && c == trace.chunks) {
            stop("more threads write than it has chunks", ENOSPC);
            return 0;
        }
    }
    error = oari_file_reserve(
        trace.fd, (off_t)(chunks_at() + (size_t)c * OARI_TRACE_CHUNK_BYTES),
        OARI_TRACE_CHUNK_BYTES);
    if (error != 0) {
        stop("there is no room for it", error);
        return 0;
    }
    trace.state[c] = CHUNK_OWNED;
    if (atomic_load(&trace.file->head.taken) < c + 1)
        atomic_store(&trace.file->head.taken, c + 1);
    mine.chunk = c;
    mine.next = &trace.file->chunk[c].event[trace.left[c]];
    mine.end = &trace.file->chunk[c].event[OARI_TRACE_EVENTS];
    trace.left[c] = 0;
    return 1;
}

static void put(const oari_trace_entry *e)
{
    oari_trace_event *to = mine.next++;

    to->duration = oari_trace_shorten(e->end - e->start);
    to->name = (uint16_t)e->name;
    to->kind = (uint8_t)e->kind;
    to->sub = (uint8_t)e->sub;
    to->group = (uint16_t)e->group;
    to->peer = (uint16_t)e->peer;
    to->number = e->number;
    to->value = e->value;
    atomic_store_explicit(&to->start, e->start, memory_order_release);
}

static unsigned name_locked(const char *text);

/* Gives the thread room for one event at least, and says in the chunk whose it
 * is. Returns 0 if nothing can be written. */
__attribute__((noinline, cold)) static int make_room(void)
{
    char name[16] = "";
    oari_trace_entry thread = { .kind = OARI_TRACE_THREAD };
    int ok;

    pthread_mutex_lock(&trace.lock);
    ok = (trace.file != NULL || (!trace.warned && open_file())) && take_chunk();
    if (ok) {
        if (trace.has_key && !mine.registered)
            mine.registered = pthread_setspecific(trace.key, &mine) == 0;
        pthread_getname_np(pthread_self(), name, sizeof name);
        thread.start = thread.end = oari_ticks();
        thread.name = name_locked(name);
        thread.value = (uint64_t)gettid();
        put(&thread);
    }
    pthread_mutex_unlock(&trace.lock);
    return ok && (mine.next < mine.end || make_room());
}

void oari_trace_write(const oari_trace_entry *entry)
{
    if (mine.next == mine.end && !make_room())
        return;
    put(entry);
}

void oari_trace_finish(uint64_t start, oari_trace_kind kind, const char *name)
{
    oari_trace_entry e = { .start = start, .end = oari_ticks(), .kind = kind };

    e.name = oari_trace_name(name);
    oari_trace_write(&e);
}

/* ---- names and groups ---------------------------------------------------- */

static uint32_t hash_of(const char *text)
{
    uint32_t h = 2166136261u;

    for (; *text != 0; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

/* Returns the number of a name that has been entered, or 0. *at is where it is,
 * or belongs. */
static unsigned find_name(const char *text, uint32_t *at)
{
    uint32_t i = hash_of(text) % NAMES, found;

    while ((found = atomic_load_explicit(&trace.hash_at[i],
                                         memory_order_acquire)) != 0) {
        if (strcmp(&trace.file->name[trace.offset_of[found]], text) == 0)
            break;
        i = (i + 1) % NAMES;
    }
    *at = i;
    return found;
}

static unsigned name_locked(const char *text)
{
    uint32_t at = 0, used = atomic_load(&trace.file->head.names);
    size_t bytes = strlen(text) + 1;
    unsigned n = find_name(text, &at);

    if (n != 0 || bytes == 1 || trace.names == NAMES / 2 ||
        used + bytes > OARI_TRACE_NAME_BYTES)
        return n;
    n = trace.names++;
    trace.offset_of[n] = used;
    memcpy(&trace.file->name[used], text, bytes);
    atomic_store(&trace.file->head.names, used + (uint32_t)bytes);
    atomic_store_explicit(&trace.hash_at[at], n, memory_order_release);
    return n;
}

unsigned oari_trace_name(const char *text)
{
    uint32_t at;
    unsigned n = 0;

    if (text == NULL || (mine.next == mine.end && !make_room()))
        return 0;
    n = find_name(text, &at);
    if (n != 0)
        return n;
    pthread_mutex_lock(&trace.lock);
    n = name_locked(text);
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

    if (trace.folder[0] == 0)
        return;
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
