/* SPDX-License-Identifier: Apache-2.0 */
/* recorder_read: reads records from a ring: this process's own, a peer's that
 * is being written, or a copy in memory. No word of a ring is trusted: numbers
 * are checked where they are used, texts are cut and ended. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/status.h"
#include "record/recorder.h"

/* Loads a word with acquire order: what is read next is not older. */
static uint64_t load_word(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

void oari_text_copy(char *to, size_t room, const char *from, size_t bytes)
{
    size_t n = strnlen(from, bytes);

    if (n >= room)
        n = room - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

/* ---- one record ---------------------------------------------------------- */

/* Returns 0 for a time that cannot be. */
static int64_t ticks_to_ns(const oari_ring *r, double rate, uint64_t ticks)
{
    double since = (double)(int64_t)(ticks - r->base_ticks);
    double ns = since / (rate > 0 ? rate : r->ticks_per_second) * 1e9;
    int64_t sum;

    if (ticks == 0 || !(ns > -4e18 && ns < 4e18) ||
        __builtin_add_overflow(r->base_ns, (int64_t)ns, &sum))
        return 0;
    return sum;
}

/* Reads the state before the time of the end, which was written before it; and
 * the sequence number first and last, so that the record is of one operation.
 */
int oari_ring_find(const oari_ring *ring, double rate, uint64_t sequence,
                   oar_record *record)
{
    const oari_record_slot *s = &ring->slot[sequence % OAR_RECORDS];
    oar_record out = { .size = sizeof out, .sequence = sequence };
    uint64_t index, state, what, extra;
    const oari_site *where;

    if (sequence == 0 || load_word(&s->sequence) != sequence)
        return 0;
    index = load_word(&s->site);
    state = load_word(&s->state);
    what = load_word(&s->what);
    extra = load_word(&s->extra);
    where = &ring->site[index < OARI_SITES ? index : 0];
    out.state = (oar_record_state)(state & 0xff);
    out.waited = (state & OARI_WAITED) != 0;
    out.posted_ns = ticks_to_ns(ring, rate, load_word(&s->posted));
    if (out.state != OAR_RECORD_POSTED)
        out.done_ns = ticks_to_ns(ring, rate, load_word(&s->done));
    out.count = load_word(&s->count);
    out.kind = (oar_coll)(what & 0xff);
    out.op = (oar_reduce_op_kind)(what >> 8 & 0xff);
    out.dtype = (oar_dtype)(what >> 16 & 0xff);
    out.root = (int)((uint32_t)(what >> 32) - 1);
    out.ragged = (int)(what >> 24 & 3);
    out.tag = out.kind >= OAR_COLL_SEND ? (int64_t)extra : -1;
    out.number = out.kind < OAR_COLL_SEND ? sequence - extra : 0;
    oari_text_copy(out.site, sizeof out.site, where->text, sizeof where->text);
    oari_text_copy(out.label, sizeof out.label, where->label,
                   sizeof where->label);
    if (load_word(&s->sequence) != sequence)
        return 0;
    *record = out;
    return 1;
}

uint64_t oari_ring_newest(const oari_ring *ring)
{
    uint64_t newest = 0, at;

    for (int i = 0; i < OAR_RECORDS; i++)
        if ((at = load_word(&ring->slot[i].sequence)) > newest &&
            at % OAR_RECORDS == (uint64_t)i)
            newest = at;
    return newest;
}

/* ---- through a view ------------------------------------------------------ */

/* Returns whether the ring is still the one that the view was made for. */
static int is_current(const oari_ring_view *v)
{
    return load_word(&v->ring->serial) == v->serial;
}

oar_status oari_recorder_by_sequence(const void *base, uint64_t sequence,
                                     oar_record *record)
{
    const oari_ring_view *v = base;
    oar_record found;

    if (!is_current(v) || !oari_ring_find(v->ring, 0, sequence, &found) ||
        !is_current(v))
        return oari_fail(OAR_E_NOT_FOUND, "no record of operation %llu",
                         (unsigned long long)sequence);
    *record = found;
    return OAR_OK;
}

oar_status oari_recorder_newest(const void *base, int index, oar_record *record)
{
    const oari_ring_view *v = base;
    uint64_t newest = is_current(v) ? oari_ring_newest(v->ring) : 0;

    if (index < 0 || (uint64_t)index >= newest || index >= OAR_RECORDS)
        return oari_fail(OAR_E_NOT_FOUND, "no record %d", index);
    return oari_recorder_by_sequence(base, newest - (uint64_t)index, record);
}

/* ---- the ring of a peer -------------------------------------------------- */

oar_status oari_recorder_map(int fd, uint64_t at, const void **base)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat info;
    oar_status status;
    oari_ring_view *view;
    oari_ring *ring;

    /* The ring must not go away: a memfd must be sealed against shrinking; a
     * named file of ours never shrinks, it is replaced. */
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
        at % OARI_FILE_UNIT != 0 || at >= OARI_FILE_BYTES ||
        info.st_size < (off_t)(at + OARI_FILE_UNIT) ||
        (seals >= 0 && (seals & F_SEAL_SHRINK) == 0))
        return oari_fail(OAR_E_DATA,
                         "a peer's descriptor has no recorder ring");
    if ((view = oari_alloc(1, sizeof *view)) == NULL)
        return OAR_E_NOMEM;
    ring = mmap(NULL, OARI_FILE_UNIT, PROT_READ, MAP_SHARED, fd, (off_t)at);
    if (ring == MAP_FAILED ||
        memcmp(ring->magic, oari_ring_magic, sizeof ring->magic) != 0 ||
        ring->version != OARI_FILE_VERSION) {
        status = oari_fail(ring == MAP_FAILED ? OAR_E_SYSTEM : OAR_E_DATA,
                           "a peer's recorder cannot be mapped");
        if (ring != MAP_FAILED)
            munmap(ring, OARI_FILE_UNIT);
        oari_free(view);
        return status;
    }
    madvise(ring, OARI_FILE_UNIT, MADV_DONTFORK);
    view->ring = ring;
    view->serial = load_word(&view->ring->serial);
    *base = view;
    return OAR_OK;
}

void oari_recorder_unmap(const void *base)
{
    oari_ring_view *view;
    void *ring;

    if (base == NULL)
        return;
    memcpy(&view, &base, sizeof view);
    memcpy(&ring, &view->ring, sizeof ring);
    munmap(ring, OARI_FILE_UNIT);
    oari_free(view);
}
