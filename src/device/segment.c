/* SPDX-License-Identifier: Apache-2.0 */
/* segment: this process's shared memory, a list of memfds that only grows.
 *
 * Each page of a segment is free, used or dead. Dead pages were taken away from
 * peers: they are never shared again, because a peer that was stopped may still
 * map the old ones. Freed pages are punched out of the memfd, so free pages
 * read as zero and cost nothing.
 *
 * One lock guards the page tables. Lookups take it only when a segment has dead
 * pages: the list itself is append-only, its length an atomic.
 */
#include "device/segment.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <oarsong/shared.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"

enum { MAX_SEGMENTS = 1024, MIN_SEGMENT = 64 << 20, HUGE_PAGE = 2 << 20 };

enum page_state { FREE = 0, USED = 1, DEAD = 2 };

typedef struct segment {
    unsigned char *base;
    size_t bytes;
    int fd;
    unsigned char *state; /* per page */
    uint32_t *run;        /* at the first page of an allocation: its pages */
    atomic_size_t dead;   /* pages */
    int spent;            /* none of its pages can be shared: fd is empty_fd */
} segment;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static segment segments[MAX_SEGMENTS];
static atomic_uint segment_total;
static int empty_fd = -1; /* one page, in place of each spent segment */
static atomic_int copied; /* children made by fork have a copy */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- fork: a child starts without segments -------------------------------
 * If it is to have a copy, it maps what was allocated privately, at the same
 * place: a page is copied when the child writes to it. Dead pages are private
 * already. */

void oar_shared_copy_on_fork(int on)
{
    atomic_store(&copied, on);
}

typedef void (*run_fn)(segment *s, size_t first, size_t end);

/* Calls fn for each run of pages in one state, in every segment. */
static void each_run(enum page_state state, run_fn fn)
{
    unsigned total = atomic_load(&segment_total);

    for (unsigned i = 0; i < total; i++) {
        segment *s = &segments[i];
        size_t pages = s->spent ? 0 : s->bytes / page_size(), end;

        for (size_t at = 0; at < pages; at = end) {
            for (end = at + 1; end < pages && s->state[end] == s->state[at];)
                end++;
            if (s->state[at] == state)
                fn(s, at, end);
        }
    }
}

static void inherit_run(segment *s, size_t first, size_t end)
{
    size_t page = page_size();

    madvise(s->base + first * page, (end - first) * page, MADV_DOFORK);
}

static void copy_run(segment *s, size_t first, size_t end)
{
    size_t page = page_size();

    /* Where that fails, touching it is a fault, as without a copy. */
    (void)mmap(s->base + first * page, (end - first) * page,
               PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, s->fd,
               (off_t)(first * page));
}

static void lock_before_fork(void)
{
    pthread_mutex_lock(&lock);
    if (atomic_load(&copied))
        each_run(DEAD, inherit_run);
}

static void unlock_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void drop_segments_in_child(void)
{
    unsigned total = atomic_load(&segment_total);

    if (atomic_load(&copied))
        each_run(USED, copy_run);
    for (unsigned i = 0; i < total; i++)
        if (!segments[i].spent)
            close(segments[i].fd);
    if (empty_fd >= 0)
        close(empty_fd);
    empty_fd = -1;
    atomic_store(&segment_total, 0);
    pthread_mutex_unlock(&lock);
}

static void install_fork_handlers(void)
{
    pthread_atfork(lock_before_fork, unlock_in_parent, drop_segments_in_child);
}

/* ---- one memfd ----------------------------------------------------------- */

static oar_status make_memfd(const char *name, size_t bytes, int *fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (made < 0)
        return oari_fail(OAR_E_SYSTEM, "memfd_create");
    if (oari_file_resize(made, (off_t)bytes) != 0 ||
        fcntl(made, F_ADD_SEALS, seals) != 0) {
        oar_status status =
            oari_fail(OAR_E_SYSTEM, "size a segment of %zu bytes%s", bytes,
                      oari_file_limit());
        close(made);
        return status;
    }
    *fd = made;
    return OAR_OK;
}

static oar_status map_memfd(int fd, size_t bytes, int protection, void **base)
{
    void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "map a segment of %zu bytes", bytes);
    if (madvise(at, bytes, MADV_DONTFORK) != 0) {
        oar_status status =
            oari_fail(OAR_E_SYSTEM, "keep a segment from children");
        munmap(at, bytes);
        return status;
    }
    madvise(at, bytes, MADV_HUGEPAGE); /* where the system allows it */
    *base = at;
    return OAR_OK;
}

oar_status oari_segment_make(const char *name, size_t bytes, int *fd,
                             void **base)
{
    int made = -1;
    oar_status status;

    if (!oari_alloc_allowed(bytes))
        return OAR_E_NOMEM;
    OARI_TRY(make_memfd(name, bytes, &made));
    status = map_memfd(made, bytes, PROT_READ | PROT_WRITE, base);
    if (status != OAR_OK)
        close(made);
    else
        *fd = made;
    return status;
}

oar_status oari_segment_map(int fd, size_t bytes, int writable, void **base)
{
    struct stat info;
    int seals;

    if (!oari_alloc_allowed(bytes))
        return OAR_E_NOMEM;
    seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &info) != 0 || seals < 0)
        return oari_fail(OAR_E_SYSTEM, "examine a peer's segment");
    if (info.st_size < 0 || (size_t)info.st_size != bytes ||
        (seals & F_SEAL_SHRINK) == 0)
        return oari_fail(OAR_E_DATA,
                         "a peer's segment has %lld bytes, but should have %zu",
                         (long long)info.st_size, bytes);
    return map_memfd(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                     base);
}

oar_status oari_segment_map_part(int fd, size_t at, size_t bytes, void **base)
{
    void *found =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);

    if (found == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "map %zu bytes of a peer", bytes);
    madvise(found, bytes, MADV_DONTFORK);
    *base = found;
    return OAR_OK;
}

void oari_segment_unmap(void *base, size_t bytes)
{
    if (base != NULL)
        munmap(base, bytes);
}

/* ---- the list ------------------------------------------------------------ */

/* A segment's two tables of pages are one mapping: they stay as long as the
 * segment does, which is for ever, and what was never used takes no memory. */
enum { ENTRY_BYTES = sizeof(uint32_t) + sizeof(unsigned char) };

static void drop_tables(segment *s, size_t pages)
{
    if (s->run != NULL)
        munmap(s->run, pages * ENTRY_BYTES);
    s->run = NULL;
    s->state = NULL;
}

/* Appends a segment with room for `bytes`. Called with the lock held. */
static oar_status append_segment(size_t bytes)
{
    unsigned at = atomic_load(&segment_total);
    segment *s = &segments[at];
    size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, pages;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    oar_status status;
    void *tables;

    pthread_once(&once, install_fork_handlers);
    if (at == MAX_SEGMENTS)
        return oari_fail(OAR_E_NOMEM, "more than %d shared segments",
                         MAX_SEGMENTS);
    if (size < MIN_SEGMENT)
        size = MIN_SEGMENT;
    pages = size / page_size();
    /* of the process this one was forked from */
    drop_tables(s, s->bytes / page_size());
    if (!oari_alloc_allowed(pages * ENTRY_BYTES))
        return OAR_E_NOMEM;
    tables = mmap(NULL, pages * ENTRY_BYTES, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tables == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "map the tables of %zu pages", pages);
    s->run = tables;
    s->state = (unsigned char *)(s->run + pages);
    status = oari_segment_make("oarsong", size, &s->fd, (void **)&s->base);
    if (status != OAR_OK) {
        drop_tables(s, pages);
        return status;
    }
    s->bytes = size;
    s->spent = 0;
    atomic_store(&s->dead, 0);
    atomic_store_explicit(&segment_total, at + 1, memory_order_release);
    return OAR_OK;
}

/* Takes the first `pages` free pages in a row; NULL: no segment has them. */
static void *take_run(size_t pages)
{
    unsigned total = atomic_load(&segment_total);

    for (unsigned i = 0; i < total; i++) {
        segment *s = &segments[i];
        size_t end = s->spent ? 0 : s->bytes / page_size(), at = 0, run = 0;

        while (at < end && run < pages)
            run = s->state[at++] == FREE ? run + 1 : 0;
        if (run < pages)
            continue;
        memset(s->state + at - pages, USED, pages);
        s->run[at - pages] = (uint32_t)pages;
        return s->base + (at - pages) * page_size();
    }
    return NULL;
}

oar_status oari_segment_alloc(size_t bytes, void **memory)
{
    size_t pages = bytes == 0 ? 1 : (bytes + page_size() - 1) / page_size();
    oar_status status = OAR_OK;
    void *taken;

    if (bytes > SIZE_MAX / 4 || pages > UINT32_MAX)
        return oari_fail(OAR_E_NOMEM, "%zu bytes of shared memory", bytes);
    if (!oari_alloc_allowed(bytes))
        return OAR_E_NOMEM;
    pthread_mutex_lock(&lock);
    taken = take_run(pages);
    if (taken == NULL &&
        (status = append_segment(pages * page_size())) == OAR_OK)
        taken = take_run(pages);
    pthread_mutex_unlock(&lock);
    if (status == OAR_OK)
        *memory = taken;
    return status;
}

/* Returns the segment that contains a byte, or NULL. */
static segment *segment_of(const void *memory)
{
    const unsigned char *byte = memory;
    unsigned total = atomic_load_explicit(&segment_total, memory_order_acquire);

    for (unsigned i = 0; i < total; i++)
        if (byte >= segments[i].base &&
            byte < segments[i].base + segments[i].bytes)
            return &segments[i];
    return NULL;
}

/* Frees pages first .. end-1, which then read as zero. Dead pages lose their
 * private copy and their content in the memfd, but stay dead: a peer that wakes
 * up late may write to the memfd again. An inaccessible mapping replaces them;
 * neighbouring ones become one. */
static void clear_pages(segment *s, size_t first, size_t end)
{
    size_t page = page_size(), stop;

    for (size_t i = first; i < end; i = stop) {
        int dead = s->state[i] == DEAD;
        unsigned char *at = s->base + i * page;
        size_t bytes;

        for (stop = i + 1; stop < end && (s->state[stop] == DEAD) == dead;)
            stop++;
        bytes = (stop - i) * page;
        if (!dead) {
            madvise(at, bytes, MADV_REMOVE);
            memset(s->state + i, FREE, stop - i);
            continue;
        }
        if (mmap(at, bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                 0) == MAP_FAILED)
            madvise(at, bytes, MADV_DONTNEED);
        fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)(i * page), (off_t)bytes);
    }
}

/* Closes a segment whose pages are all dead and freed, and drops its tables and
 * the memory that only peers may still map. Its number and its addresses stay
 * taken. */
static void retire_if_spent(segment *s)
{
    size_t pages = s->bytes / page_size();

    if (s->spent || atomic_load(&s->dead) != pages)
        return;
    for (size_t i = 0; i < pages; i++)
        if (s->run[i] != 0)
            return;
    if (empty_fd < 0 && make_memfd("oarsong", page_size(), &empty_fd) != OAR_OK)
        return;
    close(s->fd);
    s->fd = empty_fd;
    s->spent = 1;
    drop_tables(s, pages);
}

void oari_segment_free(void *memory)
{
    segment *s = memory != NULL ? segment_of(memory) : NULL;
    size_t first;

    if (s == NULL)
        return;
    first = (size_t)((unsigned char *)memory - s->base) / page_size();
    pthread_mutex_lock(&lock);
    if (!s->spent) {
        clear_pages(s, first, first + s->run[first]);
        s->run[first] = 0;
    }
    retire_if_spent(s);
    pthread_mutex_unlock(&lock);
}

uint32_t oari_segment_count(void)
{
    return atomic_load_explicit(&segment_total, memory_order_acquire);
}

oar_status oari_segment_export(uint32_t number, int *fd, size_t *bytes)
{
    int copy;

    if (number >= oari_segment_count())
        return oari_fail(OAR_E_INTERNAL, "segment %u does not exist", number);
    pthread_mutex_lock(&lock);
    copy = fcntl(segments[number].fd, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0)
        *bytes = segments[number].spent ? page_size() : segments[number].bytes;
    pthread_mutex_unlock(&lock);
    if (copy < 0)
        return oari_fail(OAR_E_SYSTEM, "a descriptor of segment %u", number);
    *fd = copy;
    return OAR_OK;
}

int oari_segment_find(const void *memory, size_t bytes,
                      oari_segment_location *place)
{
    segment *s = segment_of(memory);
    size_t page = page_size(), offset;
    int dead;

    if (s == NULL || bytes == 0)
        return 0;
    offset = (size_t)((const unsigned char *)memory - s->base);
    if (bytes > s->bytes - offset)
        return 0;
    if (atomic_load_explicit(&s->dead, memory_order_relaxed) != 0) {
        pthread_mutex_lock(&lock);
        dead = s->spent;
        for (size_t i = offset / page;
             i <= (offset + bytes - 1) / page && !dead; i++)
            dead = s->state[i] == DEAD;
        pthread_mutex_unlock(&lock);
        if (dead)
            return 0;
    }
    place->segment = (uint32_t)(s - segments);
    place->offset = offset;
    return 1;
}

/* ---- taking pages away from peers ---------------------------------------- */

/* Replaces pages with private ones of the same content, in one step: other
 * threads of this process see the old or the new pages, never a hole. */
static oar_status swap_pages(unsigned char *at, size_t bytes)
{
    void *copy;

    if (!oari_alloc_allowed(bytes))
        return OAR_E_NOMEM;
    copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "copy %zu bytes to private pages",
                         bytes);
    madvise(copy, bytes, MADV_DONTFORK); /* like all of the segment */
    memcpy(copy, at, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) ==
        MAP_FAILED) {
        oar_status status = oari_fail(
            OAR_E_SYSTEM, "replace %zu bytes by private pages", bytes);
        munmap(copy, bytes);
        return status;
    }
    return OAR_OK;
}

oar_status oari_segment_detach(void *memory, size_t bytes)
{
    segment *s = segment_of(memory);
    size_t page = page_size(), offset, last, end;
    oar_status status = OAR_OK;

    if (s == NULL || bytes == 0)
        return OAR_OK;
    offset = (size_t)((unsigned char *)memory - s->base);
    if (bytes > s->bytes - offset)
        bytes = s->bytes - offset;
    last = (offset + bytes - 1) / page;
    pthread_mutex_lock(&lock);
    for (size_t i = offset / page; !s->spent && i <= last; i = end) {
        end = i + 1;
        if (s->state[i] == DEAD)
            continue;
        while (end <= last && s->state[end] != DEAD)
            end++;
        status = swap_pages(s->base + i * page, (end - i) * page);
        if (status != OAR_OK)
            break;
        memset(s->state + i, DEAD, end - i);
        atomic_fetch_add(&s->dead, end - i);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- public functions ---------------------------------------------------- */

oar_status oar_shared_alloc(size_t bytes, void **memory)
{
    if (memory == NULL)
        return oari_fail(OAR_E_ARG, "shared_alloc with nowhere to put it");
    return oari_segment_alloc(bytes, memory);
}

void oar_shared_free(void *memory)
{
    oari_segment_free(memory);
}

int oar_shared_reachable(const void *memory, size_t bytes)
{
    oari_segment_location place;

    return oari_segment_find(memory, bytes, &place);
}
