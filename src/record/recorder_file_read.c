/* SPDX-License-Identifier: Apache-2.0 */
/* recorder_file_read: the parser of recorder files. It works on a copy and puts
 * that right, so that later readers need not check anything. */
#include "record/recorder_file_read.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "record/recorder.h"

/* ---- texts --------------------------------------------------------------- */

/* Returns whether `count` continuation bytes of UTF-8 follow. */
static int continues(const unsigned char *at, size_t left, size_t count)
{
    if (left <= count)
        return 0;
    for (size_t i = 1; i <= count; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return 1;
}

/* Returns the bytes of the printable character that begins here, or 0. UTF-8 in
 * its shortest form, without surrogates. */
static size_t character_bytes(const unsigned char *at, size_t left)
{
    unsigned char c = at[0];

    if (c >= 0x20 && c < 0x7f)
        return 1;
    if (c >= 0xc2 && c <= 0xdf && continues(at, left, 1))
        return c == 0xc2 && at[1] < 0xa0 ? 0 : 2;
    if (c >= 0xe0 && c <= 0xef && continues(at, left, 2))
        return (c == 0xe0 && at[1] < 0xa0) || (c == 0xed && at[1] > 0x9f) ? 0
                                                                          : 3;
    if (c >= 0xf0 && c <= 0xf4 && continues(at, left, 3))
        return (c == 0xf0 && at[1] < 0x90) || (c == 0xf4 && at[1] > 0x8f) ? 0
                                                                          : 4;
    return 0;
}

void oari_text_mend(char *text, size_t room)
{
    unsigned char *at = (unsigned char *)text;
    size_t left, n;

    text[room - 1] = 0;
    for (left = strlen(text); left > 0; at += n, left -= n)
        if ((n = character_bytes(at, left)) == 0) {
            *at = '?';
            n = 1;
        }
}

#define MEND(field) oari_text_mend(field, sizeof field)

/* Sets a moment to 0 that cannot be added and subtracted without overflow. */
static void mend_time(int64_t *ns)
{
    if (*ns < 0 || *ns > INT64_MAX / 4)
        *ns = 0;
}

/* ---- rings --------------------------------------------------------------- */

static int makes_sense(const oari_ring *r)
{
    uint32_t state = atomic_load(&r->state);
    uint32_t members = atomic_load(&r->members);

    return memcmp(r->magic, oari_ring_magic, sizeof r->magic) == 0 &&
           r->version == OARI_FILE_VERSION && state >= OARI_RING_JOINING &&
           state <= OARI_RING_ENDED && r->ranks >= 1 &&
           r->ranks <= OARI_MEMBERS && r->rank >= 0 && r->rank < r->ranks &&
           (members == 0 || members == (uint32_t)r->ranks) && r->base_ns >= 0 &&
           r->ended_ns >= 0;
}

static void mend_ring(oari_ring *r)
{
    oari_ring_fault *f = &r->fault;

    mend_time(&r->base_ns);
    mend_time(&r->ended_ns);
    MEND(r->backend);
    MEND(r->group);
    MEND(f->operation);
    MEND(f->site);
    MEND(f->label);
    MEND(f->host);
    MEND(f->text);
    if (f->rank < -1 || f->rank >= OARI_MEMBERS)
        f->rank = -1;
    if (f->peer < -1 || f->peer >= OARI_MEMBERS)
        f->peer = -1;
    if (f->status <= OAR_OK)
        f->status = OAR_E_INTERNAL;
    for (int i = 0; i < OARI_MEMBERS; i++)
        if (r->member[i] >= OARI_MEMBERS)
            r->member[i] = OARI_MEMBERS - 1;
    for (int i = 0; i < OARI_SITES; i++) {
        MEND(r->site[i].text);
        MEND(r->site[i].label);
    }
    for (uint64_t i = 0; i < OAR_RECORDS; i++) {
        oari_record_slot *s = &r->slot[i];
        uint64_t sequence = atomic_load(&s->sequence);
        uint64_t state = atomic_load(&s->state) & 0xff;
        uint64_t kind = atomic_load(&s->what) & 0xff;

        if (sequence % OAR_RECORDS != i || kind >= OAR_COLL_COUNT ||
            state < OAR_RECORD_POSTED || state > OAR_RECORD_FAILED ||
            (kind < OAR_COLL_SEND && atomic_load(&s->extra) >= sequence))
            atomic_store(&s->sequence, 0);
    }
}

/* ---- the whole ----------------------------------------------------------- */

static void mend_box(oari_recorder_copy *image)
{
    oari_recorder_file *box = image->box;

    MEND(box->head.host);
    MEND(box->head.boot);
    MEND(box->head.note);
    MEND(box->head.run);
    for (int i = 0; i < OARI_METRICS; i++)
        MEND(box->metrics.slot[i].name);
    if (box->head.rank < -1 || box->head.rank >= OARI_MEMBERS)
        box->head.rank = -1;
    if (box->head.world < 0 || box->head.world > OARI_MEMBERS)
        box->head.world = 0;
    if (atomic_load(&box->head.follows) < 0 ||
        atomic_load(&box->head.follows) > OARI_MEMBERS)
        atomic_store(&box->head.follows, 0);
    mend_time(&box->head.fell_ns);
    mend_time(&box->head.base_ns);
    mend_time(&box->head.wall_ns);
    mend_time(&box->head.seen_ns);
    mend_time(&box->head.seen_wall_ns);
    mend_time(&box->head.look_ns);
    for (int i = 0; i < image->rings; i++) {
        oari_ring *r = &box->ring[i];

        if (atomic_load(&r->state) == OARI_RING_FREE)
            continue;
        if (makes_sense(r))
            mend_ring(r);
        else {
            atomic_store(&r->state, OARI_RING_FREE);
            image->damaged++;
        }
    }
}

static oar_status check_head(const oari_recorder_head *head)
{
    if (memcmp(head->magic, oari_recorder_file_magic, sizeof head->magic) != 0)
        return oari_fail(OAR_E_DATA, "not a recorder file");
    if (head->version != OARI_FILE_VERSION || head->rings != OARI_FILE_RINGS)
        return oari_fail(OAR_E_DATA,
                         "a recorder file of version %u with room for %u "
                         "rings; this library reads version %d with %d",
                         head->version, head->rings, OARI_FILE_VERSION,
                         OARI_FILE_RINGS);
    return OAR_OK;
}

/* Makes a copy for the rings that are in use in a file of that size. */
static oar_status make_image(const oari_recorder_head *head, size_t file_bytes,
                             oari_recorder_copy *image)
{
    size_t there = file_bytes / OARI_FILE_UNIT - 1;
    size_t rings = atomic_load(&head->used);

    if (rings > OARI_FILE_RINGS)
        rings = OARI_FILE_RINGS;
    if (rings > there)
        rings = there;
    image->box = oari_alloc_aligned(_Alignof(oari_recorder_file),
                                    (1 + rings) * OARI_FILE_UNIT);
    if (image->box == NULL)
        return OAR_E_NOMEM;
    image->rings = (int)rings;
    image->damaged = 0;
    return OAR_OK;
}

oar_status oari_recorder_file_read(const void *data, size_t bytes,
                                   oari_recorder_copy *image)
{
    oari_recorder_copy made = { 0 };
    oari_recorder_head head;

    if (bytes < OARI_FILE_UNIT)
        return oari_fail(OAR_E_DATA, "not a recorder file: %zu bytes", bytes);
    memcpy(&head, data, sizeof head);
    OARI_TRY(check_head(&head));
    OARI_TRY(make_image(&head, bytes, &made));
    memcpy(made.box, data, (size_t)(1 + made.rings) * OARI_FILE_UNIT);
    mend_box(&made);
    *image = made;
    return OAR_OK;
}

const oari_ring *oari_recorder_copy_ring(const oari_recorder_copy *image,
                                         int index)
{
    const oari_ring *r = &image->box->ring[index];

    return atomic_load(&r->state) != OARI_RING_FREE ? r : NULL;
}

void oari_recorder_copy_clear(oari_recorder_copy *image)
{
    oari_free(image->box);
    *image = (oari_recorder_copy){ 0 };
}

/* ---- from a file --------------------------------------------------------- */

static oar_status read_at(int fd, void *into, size_t bytes, uint64_t at)
{
    ssize_t n;

    for (size_t got = 0; got < bytes; got += (size_t)n) {
        n = pread(fd, (char *)into + got, bytes - got, (off_t)(at + got));
        if (n < 0)
            return oari_fail(OAR_E_SYSTEM, "read a recorder file");
        if (n == 0)
            return oari_fail(OAR_E_DATA,
                             "not a recorder file: it ends at "
                             "%llu bytes",
                             (unsigned long long)(at + got));
    }
    return OAR_OK;
}

/* Reads the call sites of a ring a second time, since a site is entered before
 * the first record that names it; and the records, to drop those whose number
 * has changed: they may be half of one record and half of the next. */
static oar_status read_again(int fd, oari_ring *ring, uint64_t at)
{
    oari_record_slot again[OAR_RECORDS];

    OARI_TRY(read_at(fd, ring->site, sizeof ring->site,
                     at + offsetof(oari_ring, site)));
    OARI_TRY(read_at(fd, again, sizeof again, at + offsetof(oari_ring, slot)));
    for (int i = 0; i < OAR_RECORDS; i++)
        if (atomic_load(&again[i].sequence) !=
            atomic_load(&ring->slot[i].sequence))
            atomic_store(&ring->slot[i].sequence, 0);
    return OAR_OK;
}

oar_status oari_recorder_file_load(int fd, oari_recorder_copy *image)
{
    oari_recorder_copy made = { 0 };
    struct stat info;
    oar_status status;
    oari_recorder_head head;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size < OARI_FILE_UNIT)
        return oari_fail(OAR_E_DATA, "not a recorder file");
    OARI_TRY(read_at(fd, &head, sizeof head, 0));
    OARI_TRY(check_head(&head));
    OARI_TRY(make_image(&head, (size_t)info.st_size, &made));
    status =
        read_at(fd, made.box, (size_t)(1 + made.rings) * OARI_FILE_UNIT, 0);
    for (int i = 0; i < made.rings && status == OAR_OK; i++)
        status = read_again(fd, &made.box->ring[i],
                            (uint64_t)(i + 1) * OARI_FILE_UNIT);
    if (status == OAR_OK)
        status = check_head(&made.box->head);
    if (status != OAR_OK) {
        oari_recorder_copy_clear(&made);
        return status;
    }
    mend_box(&made);
    *image = made;
    return OAR_OK;
}

/* ---- one record of a file ------------------------------------------------ */

/* Returns the ring with the operation posted last, or NULL. */
static const oari_ring *latest_ring(const oari_recorder_copy *image)
{
    const oari_ring *best = NULL;
    int64_t latest = INT64_MIN;

    for (int i = 0; i < image->rings; i++) {
        const oari_ring *r = oari_recorder_copy_ring(image, i);
        oar_record newest;

        if (r != NULL && oari_ring_find(r, 0, oari_ring_newest(r), &newest) &&
            newest.posted_ns > latest) {
            best = r;
            latest = newest.posted_ns;
        }
    }
    return best;
}

oar_status oar_recorder_read_file(const char *path, int index,
                                  oar_record *record)
{
    oari_recorder_copy image = { 0 };
    const oari_ring *ring;
    oar_record found;
    oar_status status;
    int fd, there = 0;

    if (path == NULL)
        return oari_fail(OAR_E_ARG, "recorder_read_file without a path");
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return oari_fail(OAR_E_SYSTEM, "open %s", path);
    status = oari_recorder_file_load(fd, &image);
    close(fd);
    if (status != OAR_OK)
        return status;
    ring = latest_ring(&image);
    if (ring != NULL && index >= 0) {
        uint64_t newest = oari_ring_newest(ring);
        there = (uint64_t)index < newest &&
                oari_ring_find(ring, 0, newest - (uint64_t)index, &found);
    }
    oari_recorder_copy_clear(&image);
    if (!there)
        return oari_fail(OAR_E_NOT_FOUND, "no record %d", index);
    return oari_struct_give(record, &found, sizeof found, "record");
}
