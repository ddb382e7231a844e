/* SPDX-License-Identifier: Apache-2.0 */
/* recorder: a ring of one-line records in a mapping that outlives its writer.
 *
 * A record is eight words, written and read as relaxed atomics; word 0 is its
 * sequence number, 0 while it is being written, so a reader that finds the same
 * number before and after has read one whole record. A call site is entered
 * once, under a lock, and found again by file, line and label. recorder_read.c
 * reads.
 */
#include "record/recorder.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/trace.h"

typedef struct site_key {
    const char *file; /* one pointer for each name (base/call_site.h) */
    int line;
    uint32_t index;
    _Atomic uint32_t trace_name;               /* 0: none yet */
    char label[sizeof((oari_site *)0)->label]; /* cut as it is there */
} site_key;

struct oari_recorder {
    oari_record_slot *slot;    /* of the ring */
    _Atomic uint64_t messages; /* posted so far */
    oari_ring_place place;
    oari_ring_view view;
    _Atomic int holders;
    _Atomic uint32_t trace_group;        /* in the trace; 0: not entered yet */
    pthread_mutex_t lock;                /* of entering a site, and faults */
    _Atomic(site_key *) key[OARI_SITES]; /* by hash; entered once, then const */
    site_key keys[OARI_SITES];
};

void oari_site_text(const char *file, int line, char *text, size_t bytes)
{
    const char *name = strrchr(file, '/');

    snprintf(text, bytes, "%s:%d", name != NULL ? name + 1 : file, line);
}

/* ---- making -------------------------------------------------------------- */

oar_status oari_recorder_make(const oari_ring_owner *owner,
                              oari_recorder **recorder)
{
    oari_recorder *r = oari_alloc(1, sizeof *r);
    oar_status status;

    if (r == NULL)
        return OAR_E_NOMEM;
    status = oari_ring_take(owner, &r->place);
    if (status != OAR_OK) {
        oari_free(r);
        return status;
    }
    atomic_store(&r->holders, 1);
    pthread_mutex_init(&r->lock, NULL);
    r->slot = r->place.ring->slot;
    r->view.ring = r->place.ring;
    r->view.serial = atomic_load(&r->place.ring->serial);
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
    oari_ring_give(&recorder->place);
    pthread_mutex_destroy(&recorder->lock);
    oari_free(recorder);
}

const void *oari_recorder_base(const oari_recorder *recorder)
{
    return &recorder->view;
}

int oari_recorder_fd(const oari_recorder *recorder)
{
    return recorder->place.fd;
}

uint64_t oari_recorder_at(const oari_recorder *recorder)
{
    return recorder->place.at;
}

/* ---- facts about the group ----------------------------------------------- */

void oari_recorder_opened(oari_recorder *recorder)
{
    atomic_store(&recorder->place.ring->state, OARI_RING_OPEN);
}

void oari_recorder_place(oari_recorder *recorder, const int *member, int count)
{
    oari_ring *ring = recorder->place.ring;

    if (count > OARI_MEMBERS)
        return;
    for (int i = 0; i < count; i++)
        ring->member[i] = (uint16_t)member[i];
    atomic_store(&ring->members, (uint32_t)count);
}

void oari_recorder_fault(oari_recorder *recorder, const oar_error *e)
{
    oari_ring_fault *f;

    if (recorder == NULL)
        return;
    f = &recorder->place.ring->fault;
    pthread_mutex_lock(&recorder->lock);
    if (!atomic_load(&f->ready)) {
        f->status = (int32_t)e->status;
        f->rank = e->rank;
        f->peer = e->peer;
        f->sys_errno = e->sys_errno;
        f->pid = e->pid;
        f->sequence = e->sequence;
        oari_text_copy(f->operation, sizeof f->operation, e->operation,
                       sizeof e->operation);
        oari_text_copy(f->site, sizeof f->site, e->site, sizeof e->site);
        oari_text_copy(f->label, sizeof f->label, e->label, sizeof e->label);
        oari_text_copy(f->host, sizeof f->host, e->host, sizeof e->host);
        oari_text_copy(f->text, sizeof f->text, e->text, sizeof e->text);
        atomic_store_explicit(&f->ready, 1, memory_order_release);
    }
    pthread_mutex_unlock(&recorder->lock);
}

/* ---- call sites ---------------------------------------------------------- */

static int same_site(const site_key *key, const oari_operation *op)
{
    if (key->line != op->line || key->file != op->file)
        return 0;
    if (op->label == NULL)
        return key->label[0] == 0;
    return strncmp(key->label, op->label, sizeof key->label - 1) == 0;
}

static unsigned site_hash(const oari_operation *op)
{
    uintptr_t word = (uintptr_t)op->file * 31 + (unsigned)op->line;

    for (size_t i = 0; op->label != NULL && op->label[i] != 0 &&
                       i < sizeof((site_key *)0)->label - 1;
         i++)
        word = word * 31 + (unsigned char)op->label[i];
    return (unsigned)(word * 0x9e37u >> 12) % OARI_SITES;
}

/* Returns the key of a site, or NULL. *at is where it is, or belongs. */
static site_key *find_site(oari_recorder *r, const oari_operation *op,
                           unsigned *at)
{
    unsigned i = site_hash(op);

    for (unsigned n = 0; n < OARI_SITES; n++, i = (i + 1) % OARI_SITES) {
        site_key *key = atomic_load_explicit(&r->key[i], memory_order_acquire);
        *at = i;
        if (key == NULL || same_site(key, op))
            return key;
    }
    return NULL;
}

/* Enters a new site. Returns its index, or 0 when the table is full. */
__attribute__((noinline, cold)) static uint32_t
enter_site(oari_recorder *r, const oari_operation *op)
{
    unsigned at = 0;
    site_key *key;
    uint32_t index = 0;

    pthread_mutex_lock(&r->lock);
    key = find_site(r, op, &at);
    if (key != NULL)
        index = key->index;
    else if ((index = atomic_load(&r->place.ring->sites)) < OARI_SITES) {
        oari_site *s = &r->place.ring->site[index];
        oari_site_text(op->file, op->line, s->text, sizeof s->text);
        snprintf(s->label, sizeof s->label, "%s",
                 op->label != NULL ? op->label : "");
        key = &r->keys[index];
        *key = (site_key){ .file = op->file, .line = op->line, .index = index };
        memcpy(key->label, s->label, sizeof key->label);
        atomic_store(&r->place.ring->sites, index + 1);
        atomic_store_explicit(&r->key[at], key, memory_order_release);
    } else
        index = 0;
    pthread_mutex_unlock(&r->lock);
    return index;
}

/* Finds or enters a site. Labels that change ("step 1", "step 2", ...) may fill
 * half of the table; later sites are entered without their label, so that the
 * lines of the program have room. */
__attribute__((noinline)) static uint32_t search_site(oari_recorder *r,
                                                      const oari_operation *op)
{
    unsigned at;
    site_key *key = find_site(r, op, &at);
    oari_operation bare;

    if (key != NULL)
        return key->index;
    if (op->label == NULL ||
        atomic_load(&r->place.ring->sites) < OARI_SITES / 2)
        return enter_site(r, op);
    bare = *op;
    bare.label = NULL;
    return search_site(r, &bare);
}

/* Returns the index of a site. Most are where their hash says, and cost no
 * call. */
static inline uint32_t site_index(oari_recorder *r, const oari_operation *op)
{
    site_key *key =
        atomic_load_explicit(&r->key[site_hash(op)], memory_order_acquire);

    return key != NULL && same_site(key, op) ? key->index : search_site(r, op);
}

/* ---- writing ------------------------------------------------------------- */

static void store_word(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static uint64_t load_word(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* Orders the zero in `sequence` before the words that follow. Ordering stores
 * is enough, and cheaper than a release fence. */
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

__attribute__((noinline)) static uint64_t
count_message(oari_recorder *r, const oari_operation *op)
{
    atomic_fetch_add_explicit(&r->messages, 1, memory_order_relaxed);
    return op->tag;
}

/* Leaves `done` as it was: no reader looks at it before the state says so. The
 * extra word is the tag of a message; of a collective, how many messages came
 * before it, from which a reader computes its number among the collectives. */
void oari_recorder_post(oari_recorder *recorder, uint64_t sequence,
                        const oari_operation *op, uint64_t state)
{
    oari_record_slot *s = &recorder->slot[sequence % OAR_RECORDS];

    store_word(&s->sequence, 0);
    order_stores();
    store_word(&s->posted, oari_ticks());
    store_word(&s->count, op->count);
    store_word(&s->what, (uint64_t)op->kind | (uint64_t)op->op << 8 |
                             (uint64_t)op->dtype << 16 |
                             (uint64_t)op->ragged << 24 |
                             (uint64_t)op->is_object << 25 |
                             (uint64_t)(state == OARI_AWAITED) << 26 |
                             (uint64_t)(uint32_t)(op->root + 1) << 32);
    store_word(&s->extra, op->kind < OAR_COLL_SEND
                              ? load_word(&recorder->messages)
                              : count_message(recorder, op));
    store_word(&s->site, site_index(recorder, op));
    store_word(&s->state, state);
    atomic_store_explicit(&s->sequence, sequence, memory_order_release);
}

void oari_recorder_wait(oari_recorder *recorder, uint64_t sequence, int waits)
{
    oari_record_slot *s = &recorder->slot[sequence % OAR_RECORDS];
    uint64_t before = waits ? OARI_POSTED : OARI_AWAITED;

    if (sequence != 0 && load_word(&s->sequence) == sequence)
        atomic_compare_exchange_strong_explicit(
            &s->state, &before, waits ? OARI_AWAITED : OARI_POSTED,
            memory_order_relaxed, memory_order_relaxed);
}

uint64_t oari_recorder_wait_begin(oari_recorder *recorder)
{
    uint64_t now = oari_ticks();

    store_word(&recorder->place.ring->waits_since, now);
    return now;
}

/* Waits of several threads may be counted wrongly, but never slow each other
 * down. */
void oari_recorder_wait_end(oari_recorder *recorder, uint64_t since)
{
    oari_ring *ring = recorder->place.ring;

    store_word(&ring->waits_since, 0);
    store_word(&ring->waited, load_word(&ring->waited) + oari_ticks() - since);
}

/* ---- the trace ----------------------------------------------------------- */

__attribute__((noinline, cold)) static unsigned
enter_trace_group(oari_recorder *r)
{
    const oari_ring *ring = r->place.ring;
    unsigned n;

    pthread_mutex_lock(&r->lock);
    n = atomic_load(&r->trace_group);
    if (n == 0) {
        n = oari_trace_group_enter(
            &(oari_trace_group_of){ .name = ring->group,
                                    .rank = ring->rank,
                                    .ranks = ring->ranks,
                                    .instance = ring->instance,
                                    .epoch = ring->epoch,
                                    .member = ring->member,
                                    .members = atomic_load(&ring->members) });
        atomic_store(&r->trace_group, n);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

__attribute__((noinline, cold)) static unsigned
enter_trace_name(oari_recorder *r, uint64_t index)
{
    const oari_site *site = &r->place.ring->site[index];
    char text[sizeof site->text + sizeof site->label + 2];
    unsigned n;

    snprintf(text, sizeof text, "%s%s%s", site->text,
             site->label[0] != 0 ? " " : "", site->label);
    n = oari_trace_name(text);
    atomic_store_explicit(&r->keys[index].trace_name, n, memory_order_relaxed);
    return n;
}

/* As oar_dtype_size, without a call. */
static inline uint64_t element_bytes(uint64_t what)
{
    static const unsigned char bytes[256] = {
#define X(name, value, size, text) [name] = size,
        OAR_DTYPE_LIST(X) OAR_MOVED_DTYPE_LIST(X)
#undef X
    };

    return bytes[what >> 16 & 255];
}

static inline void write_operation(uint64_t sequence, const oari_record_slot *s,
                                   oar_record_state state, unsigned group,
                                   unsigned name)
{
    uint64_t what = load_word(&s->what), extra = load_word(&s->extra);
    oari_trace_entry e = { .start = load_word(&s->posted),
                           .end = load_word(&s->done),
                           .kind = OARI_TRACE_OPERATION,
                           .sub = what & 255,
                           .group = group,
                           .peer = (unsigned)(what >> 32) & 0xffff,
                           .name = name,
                           .number = (uint32_t)(sequence - extra),
                           .value =
                               load_word(&s->count) * element_bytes(what) };

    if (__builtin_expect(e.sub >= OAR_COLL_SEND, 0)) {
        e.number = (uint32_t)sequence;
        if (extra == OARI_CALL_TAG)
            e.kind = OARI_TRACE_CALL;
    }
    e.sub |= (what >> 20) & OARI_TRACE_BLOCKING; /* bit 26: it was awaited */
    if (__builtin_expect(state == OAR_RECORD_FAILED, 0))
        e.sub |= OARI_TRACE_FAILED;
    oari_trace_write(&e);
}

/* The first operation of a group, or from a place of the program. */
__attribute__((noinline, cold)) static void
trace_first(oari_recorder *r, uint64_t sequence, const oari_record_slot *s,
            oar_record_state state)
{
    uint64_t site = load_word(&s->site) % OARI_SITES;
    unsigned group = enter_trace_group(r);

    write_operation(sequence, s, state, group,
                    site != 0 ? enter_trace_name(r, site) : 0);
}

/* Writes an operation that has ended into the trace. */
__attribute__((noinline)) static void trace_operation(oari_recorder *r,
                                                      uint64_t sequence,
                                                      const oari_record_slot *s,
                                                      oar_record_state state)
{
    uint64_t site = load_word(&s->site) % OARI_SITES;
    unsigned group =
        atomic_load_explicit(&r->trace_group, memory_order_relaxed);
    unsigned name =
        atomic_load_explicit(&r->keys[site].trace_name, memory_order_relaxed);

    if (__builtin_expect(group == 0 || name == 0, 0))
        trace_first(r, sequence, s, state);
    else
        write_operation(sequence, s, state, group, name);
}

void oari_recorder_done(oari_recorder *recorder, uint64_t sequence,
                        oar_record_state state)
{
    oari_record_slot *s = &recorder->slot[sequence % OAR_RECORDS];

    if (load_word(&s->sequence) != sequence)
        return; /* a later operation has taken its slot */
    store_word(&s->done, oari_ticks());
    if (oari_tracing())
        trace_operation(recorder, sequence, s, state);
    atomic_store_explicit(&s->state, state, memory_order_release);
}
