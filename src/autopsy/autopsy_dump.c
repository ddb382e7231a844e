/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_dump: reads recorder files, from descriptors or from a folder, and
 * the state of the processes that wrote them; adds notes to them and saves
 * them. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "autopsy/autopsy.h"
#include "record/recorder.h"
#include "record/watchdog.h"

enum { MAX_DUMPS = OARI_MEMBERS };

const oari_dump *oari_dump_of_rank(const oar_autopsy *a, int rank)
{
    const oari_dump *found = NULL;

    for (int i = 0; i < a->dumps; i++) {
        const oari_dump *d = &a->dump[i];

        if (d->rank == rank && (found == NULL || d->image.box != NULL))
            found = d;
        if (d->image.box != NULL && d->image.box->head.threads &&
            rank < d->image.box->head.world)
            return d;
    }
    return found;
}

int oari_dump_gone(const oari_dump *d)
{
    return d != NULL && (d->note[0] != 0 || d->life == OARI_PROCESS_DEAD ||
                         d->life == OARI_PROCESS_EXITED);
}

int oari_dump_died(const oari_dump *d)
{
    if (d->note[0] != 0)
        return strcmp(d->note, "exit code 0") != 0;
    return d->life == OARI_PROCESS_DEAD;
}

int oari_all_died(const oar_autopsy *a)
{
    for (int r = 0; r < a->ranks; r++) {
        const oari_dump *d = oari_dump_of_rank(a, r);

        if (d != NULL && !oari_dump_died(d))
            return 0;
    }
    return 1;
}

/* ---- time ---------------------------------------------------------------- */

/* Returns the latest moment that a recorder file knows of. */
static int64_t last_event(const oari_recorder_copy *image)
{
    const oari_recorder_head *head = &image->box->head;
    int64_t latest =
        head->fell_ns > head->base_ns ? head->fell_ns : head->base_ns;

    for (int i = 0; i < image->rings; i++) {
        const oari_ring *r = oari_recorder_copy_ring(image, i);
        oar_record newest;

        if (r == NULL)
            continue;
        if (r->ended_ns > latest)
            latest = r->ended_ns;
        if (!oari_ring_find(r, 0, oari_ring_newest(r), &newest))
            continue;
        if (newest.posted_ns > latest)
            latest = newest.posted_ns;
        if (newest.done_ns > latest)
            latest = newest.done_ns;
    }
    return latest;
}

/* Returns the moment from which ages on the host of a dump are counted: when it
 * was looked at, if a process lived there then; otherwise the last event that
 * any process there recorded, or the end of the last process, if that was seen.
 */
static int64_t now_on_host(const oar_autopsy *a, const oari_dump *d)
{
    const oari_recorder_head *mine = &d->image.box->head;
    int64_t now = 0;

    if (mine->seen_ns != 0)
        return mine->seen_ns;
    for (int i = 0; i < a->dumps; i++) {
        const oari_dump *other = &a->dump[i];
        int lives = !oari_dump_gone(other) &&
                    other->life != OARI_PROCESS_ABSENT &&
                    other->life != OARI_PROCESS_UNKNOWN;
        int64_t latest;

        if (other->image.box == NULL ||
            !oari_host_same(mine, &other->image.box->head))
            continue;
        latest = lives ? other->look_ns : last_event(&other->image);
        if (latest > now)
            now = latest;
    }
    return now != 0 ? now : last_event(&d->image);
}

/* ---- loading ------------------------------------------------------------- */

/* Returns whether the process has ended all of its groups, none by a fault. */
static int left_in_order(const oari_recorder_copy *image)
{
    int rings = 0;

    for (int i = 0; i < image->rings; i++) {
        const oari_ring *r = oari_recorder_copy_ring(image, i);

        if (r == NULL || r->pid != atomic_load(&image->box->head.owner))
            continue;
        rings++;
        if (atomic_load(&r->state) != OARI_RING_ENDED ||
            atomic_load(&r->fault.ready))
            return 0;
    }
    return rings != 0;
}

/* Loads the recorder file behind a descriptor. One that makes no sense becomes
 * a dump of which nothing is known. */
static oar_status load_dump(int fd, const oari_recorder_head *here, int rank,
                            oari_dump *d)
{
    const oari_recorder_head *head;
    oar_status status;

    d->rank = rank;
    d->life = OARI_PROCESS_UNKNOWN;
    if (fd < 0) {
        snprintf(d->why, sizeof d->why, "it has no recorder file here");
        return OAR_OK;
    }
    status = oari_recorder_file_load(fd, &d->image);
    if (status == OAR_E_NOMEM)
        return status;
    if (status != OAR_OK) {
        snprintf(d->why, sizeof d->why, "%s", oar_last_error_text());
        return OAR_OK;
    }
    head = &d->image.box->head;
    if (head->rank >= 0)
        d->rank = head->rank;
    d->life = oari_host_process_state(head, here);
    if (d->life == OARI_PROCESS_DEAD && left_in_order(&d->image))
        d->life = OARI_PROCESS_EXITED;
    oari_text_copy(d->note, sizeof d->note, head->note, sizeof head->note);
    if (head->seen_ns != 0) {
        d->look_ns = head->look_ns;
        d->look_ticks = head->look_ticks;
    } else if (oari_host_same(head, here)) {
        oari_moment now = oari_moment_now();

        d->look_ns = now.ns;
        d->look_ticks = now.ticks;
    }
    return OAR_OK;
}

/* Drops the recorder files of earlier epochs: those ranks are not there any
 * more, or have not started yet. */
static void drop_earlier_epochs(oar_autopsy *a)
{
    int64_t newest = INT64_MIN;

    for (int i = 0; i < a->dumps; i++)
        if (a->dump[i].image.box != NULL &&
            a->dump[i].life != OARI_PROCESS_ABSENT &&
            a->dump[i].image.box->head.epoch > newest)
            newest = a->dump[i].image.box->head.epoch;
    for (int i = 0; i < a->dumps; i++) {
        oari_dump *d = &a->dump[i];

        if (d->image.box == NULL || d->life == OARI_PROCESS_ABSENT ||
            d->image.box->head.epoch == newest)
            continue;
        snprintf(d->why, sizeof d->why,
                 "its recorder file is of epoch %lld, not %lld",
                 (long long)d->image.box->head.epoch, (long long)newest);
        oari_recorder_copy_clear(&d->image);
        d->life = OARI_PROCESS_UNKNOWN;
    }
}

/* Fills in what follows from all dumps together. */
static void complete_autopsy(oar_autopsy *a)
{
    drop_earlier_epochs(a);
    for (int i = 0; i < a->dumps; i++) {
        oari_dump *d = &a->dump[i];

        if (d->rank >= a->ranks)
            a->ranks = d->rank + 1;
        if (d->image.box == NULL)
            continue;
        if (d->image.box->head.world > a->ranks)
            a->ranks = d->image.box->head.world;
        d->now_ns = now_on_host(a, d);
    }
}

static oar_autopsy *make_autopsy(int dumps)
{
    oar_autopsy *a = oari_alloc(1, sizeof *a);

    if (a == NULL)
        return NULL;
    a->dump = oari_alloc((size_t)dumps, sizeof *a->dump);
    if (a->dump == NULL) {
        oari_free(a);
        return NULL;
    }
    return a;
}

void oar_autopsy_destroy(oar_autopsy *autopsy)
{
    if (autopsy == NULL)
        return;
    for (int i = 0; i < autopsy->dumps; i++)
        oari_recorder_copy_clear(&autopsy->dump[i].image);
    oari_free(autopsy->dump);
    oari_free(autopsy);
}

oar_status oar_autopsy_from_fds(const int *fds, int count,
                                oar_autopsy **autopsy)
{
    oari_recorder_head here = { 0 };
    oar_autopsy *a;
    oar_status status;

    if (autopsy == NULL || fds == NULL || count < 1 || count > MAX_DUMPS)
        return oari_fail(OAR_E_ARG, "autopsy of %d recorder files", count);
    if ((a = make_autopsy(count)) == NULL)
        return OAR_E_NOMEM;
    oari_host_sign(&here);
    for (int i = 0; i < count; i++) {
        status = load_dump(fds[i], &here, i, &a->dump[a->dumps++]);
        if (status != OAR_OK) {
            oar_autopsy_destroy(a);
            return status;
        }
    }
    complete_autopsy(a);
    *autopsy = a;
    return OAR_OK;
}

/* ---- a folder ------------------------------------------------------------ */

static oar_status load_folder(oar_autopsy *a, const char *folder, DIR *dir)
{
    const size_t suffix = strlen(OARI_FILE_SUFFIX);
    oari_recorder_head here = { 0 };
    struct dirent *entry;

    oari_host_sign(&here);
    while ((entry = readdir(dir)) != NULL && a->dumps < MAX_DUMPS) {
        const char *name = entry->d_name;
        oari_dump *d = &a->dump[a->dumps];
        oar_status status;
        int fd;

        if (strlen(name) <= suffix ||
            strcmp(name + strlen(name) - suffix, OARI_FILE_SUFFIX) != 0)
            continue;
        fd = openat(dirfd(dir), name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        status =
            load_dump(fd, &here, oari_rank_in_name(name, OARI_FILE_SUFFIX), d);
        if (fd >= 0)
            close(fd);
        else
            snprintf(d->why, sizeof d->why, "%.100s cannot be opened", name);
        if (status != OAR_OK)
            return status;
        a->dumps++;
    }
    if (a->dumps == 0)
        return oari_fail(OAR_E_NOT_FOUND, "no *" OARI_FILE_SUFFIX " file in %s",
                         folder);
    return OAR_OK;
}

static int compare_ranks(const void *a, const void *b)
{
    const oari_dump *x = a, *y = b;

    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

oar_status oar_autopsy_open(const char *folder, oar_autopsy **autopsy)
{
    oar_autopsy *a;
    oar_status status;
    DIR *dir;

    if (folder == NULL || autopsy == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_open without a %s",
                         folder == NULL ? "folder" : "place for the result");
    if ((dir = opendir(folder)) == NULL)
        return oari_fail(OAR_E_SYSTEM, "open folder %s", folder);
    oari_watchdog_ask(dirfd(dir));
    a = make_autopsy(MAX_DUMPS);
    status = a == NULL ? OAR_E_NOMEM : load_folder(a, folder, dir);
    closedir(dir);
    if (status != OAR_OK) {
        oar_autopsy_destroy(a);
        return status;
    }
    qsort(a->dump, (size_t)a->dumps, sizeof *a->dump, compare_ranks);
    complete_autopsy(a);
    *autopsy = a;
    return OAR_OK;
}

/* ---- notes and copies ---------------------------------------------------- */

oar_status oar_autopsy_note(oar_autopsy *autopsy, int rank, const char *text)
{
    int found = 0;

    if (autopsy == NULL || text == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_note without %s",
                         autopsy == NULL ? "an autopsy" : "a text");
    for (int i = 0; i < autopsy->dumps; i++) {
        oari_dump *d = &autopsy->dump[i];

        if (d->rank != rank)
            continue;
        snprintf(d->note, sizeof d->note, "%s", text);
        oari_text_mend(d->note, sizeof d->note);
        found = 1;
    }
    if (!found)
        return oari_fail(OAR_E_RANK, "an autopsy without rank %d", rank);
    return OAR_OK;
}

void oari_autopsy_note_first(oar_autopsy *a, int rank)
{
    for (int i = 0; i < a->dumps; i++)
        if (a->dump[i].rank == rank && a->dump[i].image.box != NULL)
            atomic_store(&a->dump[i].image.box->head.fell, 1);
}

/* Saves a copy of a recorder file, and in its head what was seen of the
 * process. */
static oar_status save_dump(const oari_dump *d, const char *folder)
{
    size_t bytes = (size_t)(1 + d->image.rings) * OARI_FILE_UNIT, put = 0;
    char path[PATH_MAX], aside[PATH_MAX + 32];
    oari_recorder_head head = d->image.box->head;
    oar_status status = OAR_OK;
    struct timespec wall;
    ssize_t n = 1;
    int fd;

    if (head.seen_ns == 0) {
        clock_gettime(CLOCK_REALTIME, &wall);
        head.seen_wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
        head.seen_ns = d->now_ns > 0 ? d->now_ns : 1;
        head.look_ns = d->look_ns;
        head.look_ticks = d->look_ticks;
    }
    head.seen_state = (char)d->life;
    memcpy(head.note, d->note, sizeof head.note);
    snprintf(path, sizeof path, "%s/rank-%d" OARI_FILE_SUFFIX, folder, d->rank);
    snprintf(aside, sizeof aside, "%s.%lld", path, (long long)getpid());
    fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
              0600);
    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make %s", path);
    for (; put < bytes && n > 0; put += n > 0 ? (size_t)n : 0)
        n = write(fd, (const char *)d->image.box + put, bytes - put);
    if (put < bytes ||
        pwrite(fd, &head, sizeof head, 0) != (ssize_t)sizeof head)
        status = oari_fail(OAR_E_SYSTEM, "write %s", path);
    if (close(fd) != 0 && status == OAR_OK)
        status = oari_fail(OAR_E_SYSTEM, "write %s", path);
    if (status == OAR_OK && rename(aside, path) != 0)
        status = oari_fail(OAR_E_SYSTEM, "make %s", path);
    if (status != OAR_OK)
        unlink(aside);
    return status;
}

oar_status oar_autopsy_save(const oar_autopsy *autopsy, const char *folder)
{
    if (autopsy == NULL || folder == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_save without %s",
                         folder == NULL ? "a folder" : "an autopsy");
    for (int i = 0; i < autopsy->dumps; i++)
        if (autopsy->dump[i].image.box != NULL && autopsy->dump[i].rank >= 0)
            OARI_TRY(save_dump(&autopsy->dump[i], folder));
    return OAR_OK;
}
