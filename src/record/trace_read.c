/* SPDX-License-Identifier: Apache-2.0 */
/* trace_read: the files of a trace, and their events in order of time. */
#include <oarsong/trace_read.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "record/trace_file.h"

/* Since a host was started: 9 years. The calendar's time may be 73. Sums of
 * them fit in 64 bits. */
#define MOST_NS ((int64_t)1 << 58)

enum {
    MOST_SOURCES = 65535,
    MOST_THREADS = 65535,
    MOST_CHUNKS = 1 << 18,
    RELEASE_EVENTS = 1 << 20, /* after reading so many, memory is given back */
    RELEASE_CHUNKS = RELEASE_EVENTS / OARI_TRACE_EVENTS
};

/* ---- one file ------------------------------------------------------------ */

static oar_status broken(const char *path, const char *what)
{
    return oari_fail(OAR_E_DATA, "%s is not a trace: %s", path, what);
}

static int is_text(const char *text, size_t room)
{
    return memchr(text, 0, room) != NULL;
}

/* Copies bytes that may be several texts. What is not UTF-8 becomes '?'. */
static void copy_clean(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
    for (size_t i = 0, n; i < bytes; i += n) {
        uint32_t point;

        n = oari_utf8_read(&to[i], bytes - i, &point);
        if (n == 0) {
            to[i] = '?';
            n = 1;
        }
    }
}

static oar_status check_head(const char *path, const oari_trace_source *s)
{
    const oari_trace_head *h = &s->file->head;
    size_t chunks_at = offsetof(oari_trace_file, chunk);

    if (memcmp(h->magic, oari_trace_magic, sizeof h->magic) != 0)
        return broken(path, "it begins otherwise");
    if (h->version != OARI_TRACE_VERSION)
        return oari_fail(OAR_E_DATA,
                         "%s is a trace of version %u; this "
                         "library reads version %d",
                         path, h->version, OARI_TRACE_VERSION);
    if (h->chunks > MOST_CHUNKS ||
        (s->bytes - chunks_at) / OARI_TRACE_CHUNK_BYTES < s->chunks)
        return broken(path, "it is shorter than it says");
    if (!(h->ticks_per_second >= 1e3 && h->ticks_per_second <= 1e12))
        return broken(path, "its clock has an impossible rate");
    if (h->base_ns < 0 || h->base_ns > MOST_NS || h->wall_ns < 0 ||
        h->wall_ns > 8 * MOST_NS)
        return broken(path, "its clock says an impossible time");
    if (!is_text(h->run, sizeof h->run) || !is_text(h->host, sizeof h->host) ||
        !is_text(h->boot, sizeof h->boot))
        return broken(path, "its host has no name");
    if (atomic_load(&h->names) > OARI_TRACE_NAME_BYTES ||
        atomic_load(&h->names) == 0 ||
        s->file->name[atomic_load(&h->names) - 1] != 0)
        return broken(path, "its names do not end");
    if (s->groups > OARI_TRACE_GROUPS)
        return broken(path, "it has too many groups");
    return OAR_OK;
}

static oar_status check_groups(const char *path, const oari_trace_source *s)
{
    for (unsigned i = 1; i < s->groups; i++) {
        const oari_trace_group *g = &s->file->group[i];

        if (!is_text(g->name, sizeof g->name) ||
            atomic_load(&g->members) > OARI_TRACE_MEMBERS || g->ranks < 0 ||
            g->rank < 0 || g->rank >= g->ranks)
            return broken(path, "one of its groups is impossible");
    }
    return OAR_OK;
}

static oar_status read_names(oari_trace_source *s)
{
    unsigned used = atomic_load(&s->file->head.names), n = 0;
    size_t room = sizeof s->file->group[0].name;

    s->text = oari_alloc(used + (size_t)s->groups * room, 1);
    if (s->text == NULL)
        return OAR_E_NOMEM;
    copy_clean(s->text, s->file->name, used);
    s->group_name = s->text + used;
    for (unsigned i = 1; i < s->groups; i++)
        copy_clean(s->group_name + i * room, s->file->group[i].name, room);
    for (unsigned i = 0; i < used; i++)
        s->names += s->text[i] == 0;
    s->name = oari_alloc(s->names, sizeof *s->name);
    if (s->name == NULL)
        return OAR_E_NOMEM;
    for (unsigned i = 0; n < s->names; n++) {
        s->name[n] = &s->text[i];
        i += (unsigned)strlen(&s->text[i]) + 1;
    }
    return OAR_OK;
}

oar_status oari_trace_source_open(const char *path, oari_trace_source *s)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *at;

    *s = (oari_trace_source){ .host = -1 };
    if (fd < 0 || fstat(fd, &st) != 0) {
        if (fd >= 0)
            close(fd);
        return oari_fail(OAR_E_SYSTEM, "cannot read %s", path);
    }
    if (st.st_size < (off_t)offsetof(oari_trace_file, chunk)) {
        close(fd);
        return broken(path, "it is too short");
    }
    at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "cannot map %s", path);
    s->map = at;
    s->file = at;
    s->bytes = (size_t)st.st_size;
    s->chunks = atomic_load(&s->file->head.taken);
    s->groups = atomic_load(&s->file->head.groups);
    OARI_TRY(check_head(path, s));
    OARI_TRY(check_groups(path, s));
    return read_names(s);
}

void oari_trace_source_close(oari_trace_source *s)
{
    if (s->map != NULL)
        munmap(s->map, s->bytes);
    oari_free(s->text);
    oari_free(s->name);
    oari_free(s->thread);
}

/* Returns ticks of a counter in ns; what no file can mean is cut to 10 years.
 */
static int64_t ns_of(double ticks, double ticks_per_second)
{
    const double most = 10 * 366 * 86400e9;
    double ns = ticks * 1e9 / ticks_per_second;

    return (int64_t)(ns > most ? most : ns < -most ? -most : ns);
}

int64_t oari_trace_ns(const oari_trace_source *s, uint64_t ticks)
{
    double passed = (double)(int64_t)(ticks - s->base.ticks);

    return s->base.ns + ns_of(passed, s->ticks_per_second);
}

uint64_t oari_trace_group_hash(const oari_trace_group *g)
{
    uint64_t h = 14695981039346656037u;

    for (const char *c = g->name; *c != 0; c++)
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    h = (h ^ g->instance) * 1099511628211u;
    return (h ^ (uint64_t)g->epoch) * 1099511628211u;
}

/* ---- events -------------------------------------------------------------- */

/* Returns the number of a thread by its id, which is entered; -1 without
 * memory. */
static int thread_number(oari_trace_source *s, int64_t id)
{
    for (unsigned i = 0; i < s->threads; i++)
        if (s->thread[i] == id)
            return (int)i;
    if (s->threads == MOST_THREADS)
        return 0;
    if (oari_array_reserve(s->thread, s->threads, s->thread_room, 1) != OAR_OK)
        return -1;
    s->thread[s->threads] = id;
    return (int)s->threads++;
}

static int is_known(const oari_trace_source *s, const oari_trace_event *e)
{
    return e->kind > OARI_TRACE_THREAD && e->kind < OARI_TRACE_KINDS &&
           e->name < s->names && e->group < s->groups &&
           (e->kind != OARI_TRACE_GPU || e->number < s->names);
}

/* Counts the events, and looks for the latest moment among them. */
static uint64_t count_events(oari_trace_source *s)
{
    uint64_t count = 0;

    for (unsigned c = 0; c < s->chunks; c++)
        for (int i = 0; i < OARI_TRACE_EVENTS; i++) {
            const oari_trace_event *e = &s->file->chunk[c].event[i];
            uint64_t start =
                atomic_load_explicit(&e->start, memory_order_acquire);

            count += start != 0;
            if (start > s->latest.ticks && e->kind == OARI_TRACE_THREAD)
                s->latest = (oari_moment){ oari_trace_thread_ns(e), start };
        }
    return count;
}

/* Enters the places of one chunk's events. An event that makes no sense is left
 * out: the process may still write, or have been killed while it did. */
static oar_status read_chunk(oar_trace *t, int source, unsigned chunk,
                             uint64_t most)
{
    oari_trace_source *s = &t->source[source];
    int thread = thread_number(s, 0);

    for (int i = 0; thread >= 0 && i < OARI_TRACE_EVENTS; i++) {
        const oari_trace_event *e = &s->file->chunk[chunk].event[i];
        uint64_t start = atomic_load_explicit(&e->start, memory_order_acquire);

        if (start == 0)
            break;
        if (e->kind == OARI_TRACE_THREAD)
            thread = thread_number(s, (int64_t)e->value);
        else if (is_known(s, e) && t->events < most) {
            t->place[t->events++] =
                (oari_trace_place){ .start_ns = oari_trace_ns(s, start),
                                    .source = (uint16_t)source,
                                    .thread = (uint16_t)thread,
                                    .event = chunk * OARI_TRACE_EVENTS +
                                             (uint32_t)i };
            s->events++;
        }
    }
    return thread < 0 ? OAR_E_NOMEM : OAR_OK;
}

static int by_start(const void *a, const void *b)
{
    const oari_trace_place *x = a, *y = b;

    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->event < y->event ? -1 : x->event > y->event;
}

/* Gives back the memory of what was read from the files. What is read again
 * comes from the system's cache. */
static void release_pages(const oar_trace *t)
{
    for (int i = 0; i < t->sources; i++)
        madvise(t->source[i].map, t->source[i].bytes, MADV_DONTNEED);
}

static oar_status read_events(oar_trace *t)
{
    uint64_t most = 0;

    for (int i = 0; i < t->sources; i++)
        most += count_events(&t->source[i]);
    oari_trace_set_clocks(t);
    t->place = oari_alloc(most + 1, sizeof *t->place);
    if (t->place == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < t->sources; i++)
        for (unsigned c = 0; c < t->source[i].chunks; c++) {
            OARI_TRY(read_chunk(t, i, c, most));
            if (c % RELEASE_CHUNKS == 0)
                release_pages(t);
        }
    OARI_TRY(oari_trace_align(t));
    for (uint64_t i = 0; i < t->events; i++)
        t->place[i].start_ns += t->source[t->place[i].source].offset_ns;
    release_pages(t);
    qsort(t->place, t->events, sizeof *t->place, by_start);
    t->zero_ns = t->events > 0 ? t->place[0].start_ns : 0;
    return OAR_OK;
}

/* ---- the folder ---------------------------------------------------------- */

static int is_trace_file(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name), suffix = strlen(OARI_TRACE_SUFFIX);

    return n > suffix &&
           strcmp(entry->d_name + n - suffix, OARI_TRACE_SUFFIX) == 0;
}

/* Refuses the traces of several jobs in one folder. */
static oar_status check_run(const char *folder, const oar_trace *t)
{
    const char *first = "";

    for (int i = 0; i < t->sources; i++) {
        const char *run = t->source[i].file->head.run;

        if (first[0] == 0)
            first = run;
        if (run[0] != 0 && strcmp(run, first) != 0)
            return oari_fail(OAR_E_DATA,
                             "%s holds traces of several jobs, \"%s\" and "
                             "\"%s\": give each a folder of its own",
                             folder, first, run);
    }
    return OAR_OK;
}

static oar_status open_files(const char *folder, oar_trace *t)
{
    struct dirent **entry;
    int count = scandir(folder, &entry, is_trace_file, versionsort);
    oar_status status = OAR_OK;

    if (count < 0)
        return oari_fail(OAR_E_NOT_FOUND, "cannot read the folder %s: %s",
                         folder, strerror(errno));
    if (count == 0)
        status = oari_fail(OAR_E_NOT_FOUND, "there is no trace in %s", folder);
    else if (count > MOST_SOURCES)
        status = oari_fail(OAR_E_DATA, "%s has %d traces; %d can be read",
                           folder, count, MOST_SOURCES);
    else if ((t->source = oari_alloc((size_t)count, sizeof *t->source)) == NULL)
        status = OAR_E_NOMEM;
    for (int i = 0; i < count; i++) {
        char path[4096];

        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        if (status == OAR_OK)
            status = oari_trace_source_open(path, &t->source[t->sources++]);
        free(entry[i]);
    }
    free(entry);
    return status;
}

oar_status oar_trace_open(const char *folder, oar_trace **trace)
{
    oar_status status;
    oar_trace *t;

    if (folder == NULL || trace == NULL)
        return oari_fail(OAR_E_ARG, "trace_open with NULL");
    t = oari_alloc(1, sizeof *t);
    if (t == NULL)
        return OAR_E_NOMEM;
    status = open_files(folder, t);
    if (status == OAR_OK)
        status = check_run(folder, t);
    if (status == OAR_OK)
        status = read_events(t);
    if (status != OAR_OK) {
        oar_trace_close(t);
        return status;
    }
    *trace = t;
    return OAR_OK;
}

void oar_trace_close(oar_trace *trace)
{
    if (trace == NULL)
        return;
    for (int i = 0; i < trace->sources; i++)
        oari_trace_source_close(&trace->source[i]);
    oari_free(trace->source);
    oari_free(trace->place);
    oari_free(trace);
}

/* ---- what was read ------------------------------------------------------- */

int oar_trace_processes(const oar_trace *trace)
{
    return trace != NULL ? trace->sources : 0;
}

oar_status oar_trace_process_at(const oar_trace *trace, int index,
                                oar_trace_process *process)
{
    const oari_trace_source *s;
    const oari_trace_head *h;
    oar_trace_process p = { .size = sizeof p };

    if (trace == NULL || process == NULL)
        return oari_fail(OAR_E_ARG, "trace_process_at with NULL");
    if (index < 0 || index >= trace->sources)
        return oari_fail(OAR_E_ARG, "trace_process_at %d of %d", index,
                         trace->sources);
    s = &trace->source[index];
    h = &s->file->head;
    p.rank = h->rank;
    p.world = h->world;
    p.pid = h->pid;
    p.epoch = h->epoch;
    copy_clean(p.host, h->host, sizeof p.host);
    p.events = s->events;
    p.one_in = atomic_load(&h->one_in);
    p.by_seconds = atomic_load(&h->by_time) != 0;
    p.stopped = atomic_load(&h->full) != 0;
    p.wall_ns = h->wall_ns + (trace->zero_ns - s->offset_ns - h->base_ns);
    p.error_ns = s->error_ns;
    p.gpu_lost = atomic_load(&h->gpu_lost);
    p.gpu_error_ns = (int64_t)(atomic_load(&h->gpu_error_ns) & INT64_MAX);
    return oari_struct_give(process, &p, sizeof p, "trace_process_at");
}

uint64_t oar_trace_events(const oar_trace *trace)
{
    return trace != NULL ? trace->events : 0;
}

static int rank_of(const oari_trace_source *s, const oari_trace_group *g)
{
    if (g == NULL)
        return s->file->head.rank;
    if ((unsigned)g->rank < atomic_load(&g->members))
        return g->member[g->rank];
    return s->file->head.rank >= 0 ? s->file->head.rank : g->rank;
}

static void fill_event(const oar_trace *t, const oari_trace_place *p,
                       oar_trace_event *to)
{
    const oari_trace_source *s = &t->source[p->source];
    const oari_trace_event *e = oari_trace_event_of(t, p);
    const oari_trace_group *g =
        e->group != 0 ? &s->file->group[e->group] : NULL;
    double ticks = (double)oari_trace_lengthen(e->duration);

    to->kind = (oar_trace_kind)e->kind;
    to->process = p->source;
    to->rank = rank_of(s, g);
    to->thread = s->thread[p->thread];
    to->start_ns = p->start_ns - t->zero_ns;
    to->end_ns = to->start_ns + ns_of(ticks, s->ticks_per_second);
    to->name = s->name[e->name];
    to->group = g != NULL ? s->group_name + e->group * sizeof g->name : "";
    to->op = (oar_coll)(e->sub & (OARI_TRACE_BLOCKING - 1));
    to->failed = (e->sub & OARI_TRACE_FAILED) != 0;
    to->blocking = (e->sub & OARI_TRACE_BLOCKING) != 0;
    if (e->kind == OARI_TRACE_OPERATION && to->op < OAR_COLL_SEND && g != NULL)
        to->id = (oari_trace_group_hash(g) ^ e->number) * 1099511628211u | 1;
    if (e->kind == OARI_TRACE_GPU) {
        to->thread = 0;
        to->group = s->name[e->number];
    }
    to->peer = (int)e->peer - 1;
    to->number = e->number;
    if (e->kind == OARI_TRACE_METRIC)
        memcpy(&to->value, &e->value, sizeof to->value);
    else if (e->kind == OARI_TRACE_STEP)
        to->value = (double)(int64_t)e->value;
    else
        to->bytes = e->value;
}

oar_status oar_trace_event_at(const oar_trace *trace, uint64_t index,
                              oar_trace_event *event)
{
    oar_trace_event e = { .size = sizeof e };

    if (trace == NULL || event == NULL)
        return oari_fail(OAR_E_ARG, "trace_event_at with NULL");
    if (index >= trace->events)
        return oari_fail(OAR_E_ARG, "trace_event_at %llu of %llu",
                         (unsigned long long)index,
                         (unsigned long long)trace->events);
    if (index % RELEASE_EVENTS == RELEASE_EVENTS - 1)
        release_pages(trace);
    fill_event(trace, &trace->place[index], &e);
    return oari_struct_give(event, &e, sizeof e, "trace_event_at");
}
