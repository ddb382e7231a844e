/* SPDX-License-Identifier: Apache-2.0 */
/* recorder: a ring of one-line records in a mapping that outlives its writer.
 *
 * The mapping holds a head, a table of call sites (texts, because pointers mean
 * nothing to another process), and the ring. A record is eight words, written
 * and read as relaxed atomics; word 0 is its sequence number, 0 while it is
 * being written, so a reader that finds the same number before and after has
 * read one whole record. A call site is entered once, under a lock, and found
 * again by its pointers.
 */
#include "comm/recorder.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/status.h"
#include "device/segment.h"

enum { SITES = 256, VERSION = 1 };
static const char magic[8] = "oarsong";

typedef struct site {
    char text[80];
    char label[48];
} site;

typedef struct slot {
    _Alignas(64) _Atomic uint64_t sequence;
    _Atomic uint64_t posted; /* ticks */
    _Atomic uint64_t done;   /* ticks, or 0 */
    _Atomic uint64_t count;
    _Atomic uint64_t what; /* kind, op, dtype, root + 1 */
    _Atomic uint64_t site;
    _Atomic uint64_t state;
} slot;

typedef struct mapping {
    char magic[8];
    uint32_t version;
    uint32_t records;
    int32_t rank, ranks;
    int64_t pid;
    char group[64];
    int64_t base_ns; /* the clock when the counter was base_ticks */
    uint64_t base_ticks;
    double ticks_per_second;
    _Atomic uint32_t sites; /* entered; 0 is "unknown" */
    _Alignas(64) _Atomic uint64_t newest;
    _Alignas(64) site site[SITES];
    slot ring[OAR_RECORDS];
} mapping;

typedef struct site_key {
    const char *file;
    const char *label;
    int line;
    uint32_t index;
} site_key;

struct oari_recorder {
    _Atomic int holders;
    mapping *map;
    int fd;
    pthread_mutex_t lock;           /* of entering a site */
    _Atomic(site_key *) key[SITES]; /* by hash; entered once, then const */
    site_key keys[SITES];
};

void oari_site_text(const char *file, int line, char *text, size_t bytes)
{
    const char *name = strrchr(file, '/');

    snprintf(text, bytes, "%s:%d", name != NULL ? name + 1 : file, line);
}

size_t oari_recorder_bytes(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (sizeof(mapping) + page - 1) / page * page;
}

int oari_recorder_fd(const oari_recorder *recorder)
{
    return recorder->fd;
}

const void *oari_recorder_base(const oari_recorder *recorder)
{
    return recorder->map;
}

/* ---- making -------------------------------------------------------------- */

static oar_status map_file(const char *folder, const char *group, int rank,
                           oari_recorder *r)
{
    char path[512], name[200];
    size_t bytes = oari_recorder_bytes();
    void *base;

    snprintf(name, sizeof name, "%s.%d.oarrec", group, rank);
    for (char *c = name; (c = strchr(c, '/')) != NULL;)
        *c = '-';
    snprintf(path, sizeof path, "%s/%s", folder, name);
    r->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (r->fd < 0 || ftruncate(r->fd, (off_t)bytes) != 0)
        return oari_fail(OAR_E_SYSTEM, "make recorder file %s", path);
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (base == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "map recorder file %s", path);
    madvise(base, bytes, MADV_DONTFORK);
    r->map = base;
    return OAR_OK;
}

static oar_status map_memory(const char *group, int rank, oari_recorder *r)
{
    const char *folder = oari_env_text("OARSONG_RECORDER_DIR");
    void *base;

    if (folder != NULL)
        return map_file(folder, group, rank, r);
    OARI_TRY(oari_segment_make("oarsong-recorder", oari_recorder_bytes(),
                               &r->fd, &base));
    r->map = base;
    return OAR_OK;
}

static void fill_head(mapping *m, const char *group, int rank, int ranks)
{
    m->version = VERSION;
    m->records = OAR_RECORDS;
    m->rank = rank;
    m->ranks = ranks;
    m->pid = getpid();
    snprintf(m->group, sizeof m->group, "%s", group);
    m->ticks_per_second = oari_ticks_per_second();
    m->base_ns = oari_now_ns();
    m->base_ticks = oari_ticks();
    snprintf(m->site[0].text, sizeof m->site[0].text, "?");
    atomic_store(&m->sites, 1);
    memcpy(m->magic, magic, sizeof magic);
}

oar_status oari_recorder_create(const char *group, int rank, int ranks,
                                oari_recorder **recorder)
{
    oari_recorder *r = oari_alloc(1, sizeof *r);

    if (r == NULL)
        return OAR_E_NOMEM;
    atomic_store(&r->holders, 1);
    r->fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    if (map_memory(group, rank, r) != OAR_OK) {
        oari_recorder_destroy(r);
        return oar_last_error()->status;
    }
    oari_fork_guard(r->fd);
    fill_head(r->map, group, rank, ranks);
    *recorder = r;
    return OAR_OK;
}

oari_recorder *oari_recorder_retain(oari_recorder *recorder)
{
    atomic_fetch_add(&recorder->holders, 1);
    return recorder;
}

void oari_recorder_destroy(oari_recorder *recorder)
{
    if (recorder == NULL || atomic_fetch_sub(&recorder->holders, 1) != 1)
        return;
    if (recorder->map != NULL)
        munmap(recorder->map, oari_recorder_bytes());
    oari_fork_close(recorder->fd);
    pthread_mutex_destroy(&recorder->lock);
    oari_free(recorder);
}

/* ---- call sites ---------------------------------------------------------- */

static int same_site(const site_key *key, const oari_call *call)
{
    return key->line == call->line && key->file == call->file &&
           key->label == call->label;
}

static unsigned site_hash(const oari_call *call)
{
    uintptr_t word = (uintptr_t)call->file * 31 + (uintptr_t)call->label * 7 +
                     (unsigned)call->line;

    return (unsigned)(word * 0x9e3779b97f4a7c15u >> 56) % SITES;
}

/* The key of a site, or NULL. *at is where it is, or belongs. */
static site_key *find_site(oari_recorder *r, const oari_call *call,
                           unsigned *at)
{
    unsigned i = site_hash(call);

    for (unsigned n = 0; n < SITES; n++, i = (i + 1) % SITES) {
        site_key *key = atomic_load_explicit(&r->key[i], memory_order_acquire);
        *at = i;
        if (key == NULL || same_site(key, call))
            return key;
    }
    return NULL;
}

/* Enters a new site; 0 when the table is full. */
static uint32_t enter_site(oari_recorder *r, const oari_call *call)
{
    unsigned at = 0;
    site_key *key;
    uint32_t index = 0;

    pthread_mutex_lock(&r->lock);
    key = find_site(r, call, &at);
    if (key != NULL)
        index = key->index;
    else if ((index = atomic_load(&r->map->sites)) < SITES) {
        site *s = &r->map->site[index];
        oari_site_text(call->file, call->line, s->text, sizeof s->text);
        snprintf(s->label, sizeof s->label, "%s",
                 call->label != NULL ? call->label : "");
        r->keys[index] =
            (site_key){ call->file, call->label, call->line, index };
        atomic_store(&r->map->sites, index + 1);
        atomic_store_explicit(&r->key[at], &r->keys[index],
                              memory_order_release);
    } else
        index = 0;
    pthread_mutex_unlock(&r->lock);
    return index;
}

static uint32_t site_of(oari_recorder *r, const oari_call *call)
{
    unsigned at;
    site_key *key = find_site(r, call, &at);

    return key != NULL ? key->index : enter_site(r, call);
}

/* ---- writing ------------------------------------------------------------- */

static void put(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static uint64_t take(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* Orders the zero in `sequence` before the words that follow: store before
 * store is all that is needed, which is cheaper than a release fence. */
static void order_stores(void)
{
#if defined(__aarch64__)
    __asm__ volatile("dmb ishst" ::: "memory");
#elif defined(__x86_64__)
    __asm__ volatile("" ::: "memory");
#else
    atomic_thread_fence(memory_order_release);
#endif
}

void oari_recorder_post(oari_recorder *recorder, uint64_t sequence,
                        const oari_call *call)
{
    slot *s = &recorder->map->ring[sequence % OAR_RECORDS];

    put(&s->sequence, 0);
    order_stores();
    put(&s->posted, oari_ticks());
    put(&s->done, 0);
    put(&s->count, oari_call_count(call));
    put(&s->what, (uint64_t)call->kind | (uint64_t)call->op.kind << 8 |
                      (uint64_t)call->out.dtype << 16 |
                      (uint64_t)(uint32_t)(call->root + 1) << 32);
    put(&s->site, site_of(recorder, call));
    put(&s->state, OAR_RECORD_POSTED);
    atomic_store_explicit(&s->sequence, sequence, memory_order_release);
    put(&recorder->map->newest, sequence);
}

void oari_recorder_done(oari_recorder *recorder, uint64_t sequence,
                        oar_record_state state)
{
    slot *s = &recorder->map->ring[sequence % OAR_RECORDS];

    if (take(&s->sequence) != sequence)
        return; /* so long under way that its place was taken */
    put(&s->done, oari_ticks());
    atomic_store_explicit(&s->state, state, memory_order_release);
}

/* ---- reading ------------------------------------------------------------- */

/* An acquiring load: what is read next is not older than this. */
static uint64_t look(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

/* 0 for a time that cannot be. */
static int64_t ticks_to_ns(const mapping *m, uint64_t ticks)
{
    double since = (double)(int64_t)(ticks - m->base_ticks);
    double ns = since / m->ticks_per_second * 1e9;
    int64_t sum;

    if (ticks == 0 || !(ns > -4e18 && ns < 4e18) ||
        __builtin_add_overflow(m->base_ns, (int64_t)ns, &sum))
        return 0;
    return sum;
}

static void copy_text(char *to, size_t room, const char *from, size_t bytes)
{
    size_t n = strnlen(from, bytes);

    if (n >= room)
        n = room - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

/* The state is read before the time of the end, which was written before it. */
static void decode(const mapping *m, const slot *s, oar_record *out)
{
    uint64_t what = look(&s->what), index = look(&s->site);
    const site *where = &m->site[index < SITES ? index : 0];

    out->state = (oar_record_state)look(&s->state);
    out->posted_ns = ticks_to_ns(m, look(&s->posted));
    if (out->state != OAR_RECORD_POSTED)
        out->done_ns = ticks_to_ns(m, look(&s->done));
    out->count = look(&s->count);
    out->kind = (oar_coll)(what & 0xff);
    out->op = (oar_op_kind)(what >> 8 & 0xff);
    out->dtype = (oar_dtype)(what >> 16 & 0xff);
    out->root = (int)((uint32_t)(what >> 32) - 1);
    copy_text(out->site, sizeof out->site, where->text, sizeof where->text);
    copy_text(out->label, sizeof out->label, where->label, sizeof where->label);
}

oar_status oari_recorder_by_sequence(const void *base, uint64_t sequence,
                                     oar_record *record)
{
    const mapping *m = base;
    const slot *s = &m->ring[sequence % OAR_RECORDS];
    oar_record found = { .size = sizeof found, .sequence = sequence };

    if (memcmp(m->magic, magic, sizeof magic) != 0 || m->version != VERSION)
        return oari_fail(OAR_E_DATA, "not a recorder of this version");
    if (sequence == 0 ||
        atomic_load_explicit(&s->sequence, memory_order_acquire) != sequence)
        return oari_fail(OAR_E_NOT_FOUND, "no record of operation %llu",
                         (unsigned long long)sequence);
    decode(m, s, &found);
    if (atomic_load_explicit(&s->sequence, memory_order_acquire) != sequence)
        return oari_fail(OAR_E_NOT_FOUND, "operation %llu was overwritten",
                         (unsigned long long)sequence);
    *record = found;
    return OAR_OK;
}

/* Of several threads that post, one with a lower number may write last. */
static uint64_t find_newest(const mapping *m)
{
    uint64_t newest = look(&m->newest);

    for (int i = 0; i < OAR_RECORDS; i++) {
        if (look(&m->ring[(newest + 1) % OAR_RECORDS].sequence) != newest + 1)
            break;
        newest++;
    }
    return newest;
}

oar_status oari_recorder_newest(const void *base, int index, oar_record *record)
{
    const mapping *m = base;
    uint64_t newest = find_newest(m);

    if (index < 0 || (uint64_t)index >= newest || index >= OAR_RECORDS)
        return oari_fail(OAR_E_NOT_FOUND, "no record %d", index);
    return oari_recorder_by_sequence(base, newest - (uint64_t)index, record);
}

oar_status oar_recorder_read_file(const char *path, int index,
                                  oar_record *record)
{
    size_t bytes = oari_recorder_bytes();
    oar_record found;
    struct stat info;
    oar_status status;
    void *base;
    int fd;

    if (path == NULL)
        return oari_fail(OAR_E_ARG, "recorder_read_file without a path");
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return oari_fail(OAR_E_SYSTEM, "open %s", path);
    if (fstat(fd, &info) != 0 || info.st_size != (off_t)bytes) {
        close(fd);
        return oari_fail(OAR_E_DATA, "%s is not a recorder", path);
    }
    base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return oari_fail(OAR_E_SYSTEM, "map %s", path);
    status = oari_recorder_newest(base, index, &found);
    munmap(base, bytes);
    if (status != OAR_OK)
        return status;
    return oari_struct_give(record, &found, sizeof found, "record");
}
