/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy: boxes in, questions answered. What follows from the boxes is worked
 * out in autopsy_case.c, autopsy_wait.c and autopsy_judge.c. */
#include "autopsy/autopsy.h"

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
#include "record/recorder.h"
#include "record/watchman.h"

enum { MAX_WITNESSES = OARI_MEMBERS };

const oari_witness *oari_autopsy_of(const oar_autopsy *a, int rank)
{
    const oari_witness *found = NULL;

    for (int i = 0; i < a->witnesses; i++) {
        const oari_witness *w = &a->witness[i];

        if (w->rank == rank && (found == NULL || w->image.box != NULL))
            found = w;
        if (w->image.box != NULL && w->image.box->head.threads &&
            rank < w->image.box->head.world)
            return w;
    }
    return found;
}

/* ---- when ---------------------------------------------------------------- */

/* The latest moment that a box knows of. */
static int64_t last_event(const oari_image *image)
{
    const oari_head *head = &image->box->head;
    int64_t latest =
        head->fell_ns > head->base_ns ? head->fell_ns : head->base_ns;

    for (int i = 0; i < image->rings; i++) {
        const oari_ring *r = oari_image_ring(image, i);
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

static int lives(const oari_witness *w)
{
    return w->image.box != NULL && !oari_witness_gone(w) &&
           w->life != OARI_LIFE_ABSENT && w->life != OARI_LIFE_UNKNOWN;
}

/* Ages on a host are counted from when it was looked at, if anybody lived there
 * then; else from the last thing that anybody there did, or from when the last
 * of them ended, if that was seen. */
static int64_t now_of(const oar_autopsy *a, const oari_witness *w)
{
    const oari_head *mine = &w->image.box->head;
    int64_t now = 0;

    if (mine->seen_ns != 0)
        return mine->seen_ns;
    for (int i = 0; i < a->witnesses; i++) {
        const oari_witness *other = &a->witness[i];
        int64_t latest;

        if (other->image.box == NULL ||
            !oari_host_same(mine, &other->image.box->head))
            continue;
        latest = lives(other) ? other->look_ns : last_event(&other->image);
        if (latest > now)
            now = latest;
    }
    return now != 0 ? now : last_event(&w->image);
}

/* ---- witnesses ----------------------------------------------------------- */

/* Whether it has ended every group it was in, and none of them by a fault. */
static int left_in_order(const oari_image *image)
{
    int rings = 0;

    for (int i = 0; i < image->rings; i++) {
        const oari_ring *r = oari_image_ring(image, i);

        if (r == NULL || r->pid != atomic_load(&image->box->head.owner))
            continue;
        rings++;
        if (atomic_load(&r->state) != OARI_RING_ENDED ||
            atomic_load(&r->fault.ready))
            return 0;
    }
    return rings != 0;
}

static void look_at(oari_witness *w, const oari_head *here)
{
    const oari_head *head = &w->image.box->head;

    w->life = oari_host_life(head, here);
    if (w->life == OARI_LIFE_DEAD && left_in_order(&w->image))
        w->life = OARI_LIFE_EXITED;
    oari_box_text(w->note, sizeof w->note, head->note, sizeof head->note);
    if (head->seen_ns != 0) {
        w->look_ns = head->look_ns;
        w->look_ticks = head->look_ticks;
    } else if (oari_host_same(head, here)) {
        w->look_ns = oari_now_ns();
        w->look_ticks = oari_ticks();
    }
}

/* Takes what a descriptor holds; what does not make sense is a witness that
 * knows nothing. */
static oar_status take_witness(int fd, const oari_head *here, int rank,
                               oari_witness *w)
{
    oar_status status;

    w->rank = rank;
    w->life = OARI_LIFE_UNKNOWN;
    if (fd < 0) {
        snprintf(w->why, sizeof w->why, "it has no box here");
        return OAR_OK;
    }
    status = oari_box_load(fd, &w->image);
    if (status == OAR_E_NOMEM)
        return status;
    if (status != OAR_OK) {
        snprintf(w->why, sizeof w->why, "%s", oar_last_error_text());
        return OAR_OK;
    }
    if (w->image.box->head.rank >= 0)
        w->rank = w->image.box->head.rank;
    look_at(w, here);
    return OAR_OK;
}

/* A box of an earlier epoch is of a rank that is not there any more, or has not
 * come yet. */
static void drop_earlier_epochs(oar_autopsy *a)
{
    int64_t newest = INT64_MIN;

    for (int i = 0; i < a->witnesses; i++)
        if (a->witness[i].image.box != NULL &&
            a->witness[i].life != OARI_LIFE_ABSENT &&
            a->witness[i].image.box->head.epoch > newest)
            newest = a->witness[i].image.box->head.epoch;
    for (int i = 0; i < a->witnesses; i++) {
        oari_witness *w = &a->witness[i];

        if (w->image.box == NULL || w->life == OARI_LIFE_ABSENT ||
            w->image.box->head.epoch == newest)
            continue;
        snprintf(w->why, sizeof w->why, "its box is of epoch %lld, not %lld",
                 (long long)w->image.box->head.epoch, (long long)newest);
        oari_image_clear(&w->image);
        w->life = OARI_LIFE_UNKNOWN;
    }
}

static void count_ranks(oar_autopsy *a)
{
    for (int i = 0; i < a->witnesses; i++) {
        const oari_witness *w = &a->witness[i];

        if (w->rank >= a->ranks)
            a->ranks = w->rank + 1;
        if (w->image.box != NULL && w->image.box->head.world > a->ranks)
            a->ranks = w->image.box->head.world;
    }
}

static void settle(oar_autopsy *a)
{
    drop_earlier_epochs(a);
    count_ranks(a);
    for (int i = 0; i < a->witnesses; i++)
        if (a->witness[i].image.box != NULL)
            a->witness[i].now_ns = now_of(a, &a->witness[i]);
}

static oar_autopsy *make_autopsy(int witnesses)
{
    oar_autopsy *a = oari_alloc(1, sizeof *a);

    if (a == NULL)
        return NULL;
    a->witness = oari_alloc((size_t)witnesses, sizeof *a->witness);
    if (a->witness == NULL) {
        oari_free(a);
        return NULL;
    }
    return a;
}

void oar_autopsy_destroy(oar_autopsy *autopsy)
{
    if (autopsy == NULL)
        return;
    for (int i = 0; i < autopsy->witnesses; i++)
        oari_image_clear(&autopsy->witness[i].image);
    oari_free(autopsy->witness);
    oari_free(autopsy);
}

oar_status oar_autopsy_from_fds(const int *fds, int count,
                                oar_autopsy **autopsy)
{
    oari_head here = { 0 };
    oar_autopsy *a;
    oar_status status;

    if (autopsy == NULL || fds == NULL || count < 1 || count > MAX_WITNESSES)
        return oari_fail(OAR_E_ARG, "autopsy of %d boxes", count);
    if ((a = make_autopsy(count)) == NULL)
        return OAR_E_NOMEM;
    oari_host_sign(&here);
    for (int i = 0; i < count; i++) {
        status = take_witness(fds[i], &here, i, &a->witness[a->witnesses++]);
        if (status != OAR_OK) {
            oar_autopsy_destroy(a);
            return status;
        }
    }
    settle(a);
    *autopsy = a;
    return OAR_OK;
}

/* ---- a folder ------------------------------------------------------------ */

static int is_box_name(const char *name)
{
    size_t n = strlen(name), suffix = strlen(OARI_BOX_SUFFIX);

    return n > suffix && strcmp(name + n - suffix, OARI_BOX_SUFFIX) == 0;
}

/* The rank that a file's name tells, for one that cannot be read; -1: none. */
static int rank_in_name(const char *name)
{
    char *tail;
    long rank;

    if (strncmp(name, "rank-", 5) != 0)
        return -1;
    rank = strtol(name + 5, &tail, 10);
    return rank >= 0 && rank < OARI_MEMBERS &&
                   strcmp(tail, OARI_BOX_SUFFIX) == 0
               ? (int)rank
               : -1;
}

static oar_status add_file(oar_autopsy *a, const char *folder,
                           const oari_head *here, const char *name)
{
    char path[PATH_MAX];
    oari_witness *w = &a->witness[a->witnesses];
    oar_status status;
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    status = take_witness(fd, here, rank_in_name(name), w);
    if (fd >= 0)
        close(fd);
    else
        snprintf(w->why, sizeof w->why, "%.100s cannot be opened", name);
    if (status == OAR_OK)
        a->witnesses++;
    return status;
}

static oar_status add_files(oar_autopsy *a, const char *folder, DIR *dir)
{
    oari_head here = { 0 };
    struct dirent *entry;

    oari_host_sign(&here);
    while ((entry = readdir(dir)) != NULL && a->witnesses < MAX_WITNESSES)
        if (is_box_name(entry->d_name))
            OARI_TRY(add_file(a, folder, &here, entry->d_name));
    if (a->witnesses == 0)
        return oari_fail(OAR_E_NOT_FOUND, "no *" OARI_BOX_SUFFIX " file in %s",
                         folder);
    return OAR_OK;
}

static int by_rank(const void *a, const void *b)
{
    const oari_witness *x = a, *y = b;

    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

oar_status oar_autopsy_open(const char *folder, oar_autopsy **autopsy)
{
    oar_autopsy *a;
    oar_status status;
    DIR *dir;

    if (folder == NULL || autopsy == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_open without a %s",
                         folder == NULL ? "folder" : "place for it");
    if ((dir = opendir(folder)) == NULL)
        return oari_fail(OAR_E_SYSTEM, "open folder %s", folder);
    oari_watchman_ask(dirfd(dir));
    a = make_autopsy(MAX_WITNESSES);
    status = a == NULL ? OAR_E_NOMEM : add_files(a, folder, dir);
    closedir(dir);
    if (status != OAR_OK) {
        oar_autopsy_destroy(a);
        return status;
    }
    qsort(a->witness, (size_t)a->witnesses, sizeof *a->witness, by_rank);
    settle(a);
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
    for (int i = 0; i < autopsy->witnesses; i++) {
        oari_witness *w = &autopsy->witness[i];

        if (w->rank != rank)
            continue;
        snprintf(w->note, sizeof w->note, "%s", text);
        oari_text_mend(w->note, sizeof w->note);
        found = 1;
    }
    if (!found)
        return oari_fail(OAR_E_RANK, "an autopsy without rank %d", rank);
    return OAR_OK;
}

/* A copy says what was seen; its own life is over. */
static void mark_seen(oari_head *head, const oari_witness *w)
{
    struct timespec wall;

    if (head->seen_ns == 0) {
        clock_gettime(CLOCK_REALTIME, &wall);
        head->seen_wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
        head->seen_ns = w->now_ns > 0 ? w->now_ns : 1;
        head->look_ns = w->look_ns;
        head->look_ticks = w->look_ticks;
    }
    head->seen_state = (char)w->life;
    memcpy(head->note, w->note, sizeof head->note);
}

static oar_status write_all(int fd, const void *data, size_t bytes)
{
    ssize_t n;

    for (size_t put = 0; put < bytes; put += (size_t)n)
        if ((n = write(fd, (const char *)data + put, bytes - put)) <= 0)
            return oari_fail(OAR_E_SYSTEM, "write a box");
    return OAR_OK;
}

static oar_status save_one(const oari_witness *w, const char *folder)
{
    size_t bytes = (size_t)(1 + w->image.rings) * OARI_BOX_UNIT;
    char path[PATH_MAX], aside[PATH_MAX + 32];
    oar_status status;
    oari_head head = w->image.box->head;
    int fd;

    snprintf(path, sizeof path, "%s/rank-%d" OARI_BOX_SUFFIX, folder, w->rank);
    snprintf(aside, sizeof aside, "%s.%lld", path, (long long)getpid());
    fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
              0600);
    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make %s", path);
    mark_seen(&head, w);
    status = write_all(fd, w->image.box, bytes);
    if (status == OAR_OK &&
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
    for (int i = 0; i < autopsy->witnesses; i++)
        if (autopsy->witness[i].image.box != NULL &&
            autopsy->witness[i].rank >= 0)
            OARI_TRY(save_one(&autopsy->witness[i], folder));
    return OAR_OK;
}

/* ---- questions ----------------------------------------------------------- */

int oar_autopsy_wrong(const oar_autopsy *autopsy)
{
    oari_inquest q = { 0 };
    int wrong;

    if (autopsy == NULL || oari_inquest_hold(autopsy, &q) != OAR_OK)
        return 1;
    wrong = q.wrong;
    oari_inquest_clear(&q);
    return wrong;
}

void oari_autopsy_note_first(oar_autopsy *a, int rank)
{
    for (int i = 0; i < a->witnesses; i++)
        if (a->witness[i].rank == rank && a->witness[i].image.box != NULL)
            atomic_store(&a->witness[i].image.box->head.fell, 1);
}

int oari_autopsy_culprit(const oar_autopsy *a)
{
    oari_inquest q = { 0 };
    int culprit;

    if (oari_inquest_hold(a, &q) != OAR_OK)
        return -1;
    culprit = q.culprit;
    oari_inquest_clear(&q);
    return culprit;
}

static int count_targets(const oari_wait *w)
{
    int count = 0;

    for (int i = 0; i < w->in->ranks; i++)
        count += oari_waits_for(w, &w->in->part[i]);
    return count;
}

static oar_stall describe_stall(const oari_inquest *q, const oari_wait *w)
{
    oar_stall s = { .size = sizeof s };
    const oari_part *target = oari_wait_target(w);
    oar_record r;

    oari_box_text(s.group, sizeof s.group, w->in->ring->group,
                  sizeof w->in->ring->group);
    s.kind = OAR_COLL_COUNT;
    s.waiting_ms = w->age_ns / 1000000;
    s.rank = w->part->world;
    s.missing = target != NULL ? target->world : -1;
    s.missing_count = count_targets(w);
    if (w->op != NULL) {
        r = oari_op_record(w->part, w->op);
        s.kind = w->op->kind;
        s.number = w->op->number != 0 ? w->op->number : w->op->sequence;
        oari_box_text(s.site, sizeof s.site, r.site, sizeof r.site);
        oari_box_text(s.label, sizeof s.label, r.label, sizeof r.label);
    }
    oari_judge_wait(q, w, s.text, sizeof s.text);
    return s;
}

int oar_autopsy_stall(const oar_autopsy *autopsy, int64_t older_than_ms,
                      oar_stall *stall)
{
    oari_inquest q = { 0 };
    const oari_wait *w;
    oar_stall found;
    int there;

    if (autopsy == NULL || oari_inquest_hold(autopsy, &q) != OAR_OK)
        return 0;
    w = oari_waits_longest(&q, older_than_ms * 1000000, 1);
    there = w != NULL;
    if (there && stall != NULL) {
        found = describe_stall(&q, w);
        there =
            oari_struct_give(stall, &found, sizeof found, "stall") == OAR_OK;
    }
    oari_inquest_clear(&q);
    return there;
}

oar_status oari_inquest_hold(const oar_autopsy *a, oari_inquest *q)
{
    oar_status status;

    *q = (oari_inquest){ .autopsy = a };
    status = oari_cases_join(q);
    if (status == OAR_OK)
        status = oari_waits_find(q);
    if (status != OAR_OK)
        oari_inquest_clear(q);
    else
        oari_judge(q);
    return status;
}

void oari_inquest_clear(oari_inquest *q)
{
    for (int i = 0; i < q->items; i++) {
        for (int r = 0; r < q->item[i].ranks; r++)
            oari_free(q->item[i].part[r].op);
        oari_free(q->item[i].part);
    }
    oari_free(q->item);
    oari_free(q->wait);
    oari_free(q->circle);
    *q = (oari_inquest){ 0 };
}
