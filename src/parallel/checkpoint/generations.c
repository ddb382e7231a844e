/* SPDX-License-Identifier: Apache-2.0 */
/* generations: finding, checking and removing the generations of a folder.
 *
 *     step-000000000100            a generation, if its index is right and all
 *                                  its files have their sizes
 *     step-000000000200.part-ID    being written, being removed, or left behind
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "parallel/checkpoint/checkpoint.h"

enum {
    STEP_DIGITS = 12,
    STEP_PREFIX = 5, /* "step-" */
    MOST_INDEX_BYTES = 1 << 30
};

void oari_ckpt_step_name(int64_t step, char name[OARI_CKPT_STEP_NAME])
{
    snprintf(name, OARI_CKPT_STEP_NAME, "step-%012" PRId64,
             step % 1000000000000);
}

/* Returns the step of a generation's name, -1 if it is none; *rest is what
 * follows the digits. */
static int64_t step_of_name(const char *name, const char **rest)
{
    int64_t step = 0;

    if (strncmp(name, "step-", STEP_PREFIX) != 0)
        return -1;
    for (int i = 0; i < STEP_DIGITS; i++) {
        if (!isdigit((unsigned char)name[STEP_PREFIX + i]))
            return -1;
        step = 10 * step + (name[STEP_PREFIX + i] - '0');
    }
    *rest = name + STEP_PREFIX + STEP_DIGITS;
    return step;
}

/* ---- listing ------------------------------------------------------------- */

typedef struct listing {
    oari_ckpt_steps *steps;
    oar_status status;
} listing;

static int take_name(void *arg, const char *name)
{
    listing *l = arg;
    const char *rest;
    int64_t step = step_of_name(name, &rest);
    char *copy;

    if (step < 0)
        return 0;
    if (*rest == '\0') {
        l->status = oari_vec_push(&l->steps->step, step);
    } else if (strncmp(rest, ".part-", 6) == 0) {
        copy = oari_strdup(name);
        l->status =
            copy == NULL ? OAR_E_NOMEM : oari_vec_push(&l->steps->part, copy);
        if (l->status != OAR_OK)
            oari_free(copy);
    }
    return l->status != OAR_OK;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

oar_status oari_ckpt_steps_list(const oari_disk *disk, int folder,
                                const char *path, oari_ckpt_steps *steps)
{
    listing l = { steps, OAR_OK };

    if (disk->list(disk, folder, take_name, &l) != 0)
        return oari_fail(OAR_E_SYSTEM, "list the folder %s", path);
    if (l.status == OAR_OK && steps->step.count > 0)
        qsort(steps->step.data, (size_t)steps->step.count,
              sizeof *steps->step.data, by_number);
    return l.status;
}

void oari_ckpt_steps_free(oari_ckpt_steps *steps)
{
    for (int64_t i = 0; i < steps->part.count; i++)
        oari_free(steps->part.data[i]);
    oari_vec_free(&steps->part);
    oari_vec_free(&steps->step);
}

/* ---- one generation ------------------------------------------------------ */

/* Returns whether what could not be opened is damaged, or the disk failed, by
 * errno. A link is never followed. */
static oar_status damage_or_system(void)
{
    return errno == ENOENT || errno == ELOOP || errno == ENOTDIR ||
                   errno == EISDIR || errno == EINVAL /* a pipe */
               ? OAR_E_DATA
               : OAR_E_SYSTEM;
}

static const char *why_not_opened(void)
{
    switch (errno) {
    case ENOENT: return ": it is missing";
    case ELOOP: return ": it is a symbolic link";
    case ENOTDIR: return ": it is no folder, but a file or a symbolic link";
    case EISDIR:
    case EINVAL: return ": it is no file";
    default: return "";
    }
}

static oar_status open_generation(const oari_disk *disk, int folder,
                                  const char *path, int64_t step, int *fd)
{
    char name[OARI_CKPT_STEP_NAME];

    oari_ckpt_step_name(step, name);
    *fd = disk->open_folder(disk, folder, name);
    if (*fd < 0)
        return oari_fail(
            errno == ENOENT                      ? OAR_E_NOT_FOUND
            : errno == ELOOP || errno == ENOTDIR ? OAR_E_DATA
                                                 : OAR_E_SYSTEM,
            "%s has no generation %s%s", path, name,
            errno == ELOOP || errno == ENOTDIR ? ": it is not a folder" : "");
    return OAR_OK;
}

oar_status oari_ckpt_open_file(const oari_disk *disk, int generation,
                               const char *what, const char *path, int how,
                               int *fd)
{
    const char *slash = strchr(path, '/');
    char section[OARI_CKPT_LONGEST_SECTION + 1];
    int folder, failed;

    if (slash == NULL) {
        *fd = disk->open_file(disk, generation, path, how);
    } else {
        if (slash - path > OARI_CKPT_LONGEST_SECTION)
            return oari_fail(OAR_E_DATA, "%s: \"%.100s\" is not a file of it",
                             what, path);
        memcpy(section, path, (size_t)(slash - path));
        section[slash - path] = '\0';
        folder = disk->open_folder(disk, generation, section);
        if (folder < 0)
            return oari_fail(damage_or_system(), "%s: open the folder \"%s\"%s",
                             what, section, why_not_opened());
        *fd = disk->open_file(disk, folder, slash + 1, how);
        failed = errno;
        (void)disk->close(disk, folder);
        errno = failed;
    }
    if (*fd < 0)
        return oari_fail(damage_or_system(), "%s: open \"%s\"%s", what, path,
                         why_not_opened());
    return OAR_OK;
}

static oar_status read_whole(const oari_disk *disk, int fd, const char *what,
                             char **text, size_t *bytes)
{
    off_t size;
    char *read;

    if (disk->size(disk, fd, &size) != 0)
        return oari_fail(damage_or_system(), "look at %s%s", what,
                         why_not_opened());
    if (size > MOST_INDEX_BYTES)
        return oari_fail(OAR_E_DATA, "%s has %lld bytes: too many", what,
                         (long long)size);
    read = oari_alloc((size_t)size + 1, 1);
    if (read == NULL)
        return OAR_E_NOMEM;
    if (oari_disk_read(disk, fd, read, (size_t)size, 0, what) != OAR_OK) {
        oari_free(read);
        return oar_last_error()->status;
    }
    *text = read;
    *bytes = (size_t)size;
    return OAR_OK;
}

oar_status oari_ckpt_read_index_in(const oari_disk *disk, int generation,
                                   const char *path, char **text, size_t *bytes)
{
    char what[300];
    oar_status status;
    int fd;

    snprintf(what, sizeof what, "%.280s/" OARI_CKPT_INDEX, path);
    fd = disk->open_file(disk, generation, OARI_CKPT_INDEX, OARI_DISK_READ);
    if (fd < 0)
        return oari_fail(damage_or_system(), "open %s%s", what,
                         why_not_opened());
    status = read_whole(disk, fd, what, text, bytes);
    (void)disk->close(disk, fd);
    return status;
}

oar_status oari_ckpt_read_index(const oari_disk *disk, int folder,
                                const char *path, int64_t step, char **text,
                                size_t *bytes)
{
    char what[300], name[OARI_CKPT_STEP_NAME];
    oar_status status;
    int generation;

    oari_ckpt_step_name(step, name);
    snprintf(what, sizeof what, "%.200s/%s", path, name);
    OARI_TRY(open_generation(disk, folder, path, step, &generation));
    status = oari_ckpt_read_index_in(disk, generation, what, text, bytes);
    (void)disk->close(disk, generation);
    return status;
}

oar_status oari_ckpt_check_file(const oari_disk *disk, int generation,
                                const char *what, const oari_ckpt_index_file *f)
{
    oar_status status = OAR_OK;
    off_t bytes;
    int fd = -1;

    OARI_TRY(oari_ckpt_open_file(disk, generation, what, f->path,
                                 OARI_DISK_READ, &fd));
    if (disk->size(disk, fd, &bytes) != 0)
        status = oari_fail(damage_or_system(), "%s: look at \"%s\"%s", what,
                           f->path, why_not_opened());
    else if ((uint64_t)bytes != f->bytes)
        status =
            oari_fail(OAR_E_DATA,
                      "%s/%s has %lld bytes, not the %" PRIu64 " of its index",
                      what, f->path, (long long)bytes, f->bytes);
    (void)disk->close(disk, fd);
    return status;
}

void oari_ckpt_age_text(const oari_disk *disk, int folder, int64_t step,
                        char *text, size_t bytes)
{
    oari_ckpt_index index;
    char *read, age[32];
    size_t size;
    int64_t seconds;

    text[0] = '\0';
    if (oari_ckpt_read_index(disk, folder, "", step, &read, &size) != OAR_OK ||
        oari_ckpt_index_read(OARI_CKPT_INDEX, read, size, &index) != OAR_OK)
        return;
    seconds = (int64_t)time(NULL) - index.saved_unix_s;
    oari_duration_text(seconds > 0 ? seconds * 1000000000 : 0, age, sizeof age);
    snprintf(text, bytes, ", saved %s ago", age);
    oari_ckpt_index_free(&index);
}

oar_status oari_ckpt_check_files(const oari_disk *disk, int folder,
                                 const char *path, int64_t step,
                                 const oari_ckpt_index *index)
{
    char what[300], name[OARI_CKPT_STEP_NAME];
    oar_status status = OAR_OK;
    int generation;

    oari_ckpt_step_name(step, name);
    snprintf(what, sizeof what, "%.200s/%s", path, name);
    if (index->step != step)
        return oari_fail(OAR_E_DATA, "%s is of step %" PRId64 " by its index",
                         what, index->step);
    OARI_TRY(open_generation(disk, folder, path, step, &generation));
    for (int64_t i = 0; i < index->files && status == OAR_OK; i++)
        status = oari_ckpt_check_file(disk, generation, what, &index->file[i]);
    (void)disk->close(disk, generation);
    return status;
}

/* Reads the index of a generation and checks that it is complete. The text is
 * given as it was read, for the other ranks. */
static oar_status read_complete(const oari_disk *disk, int folder,
                                const char *path, int64_t step, char **text,
                                size_t *bytes)
{
    char what[300], name[OARI_CKPT_STEP_NAME];
    oari_ckpt_index index;
    oar_status status;
    char *copy;

    oari_ckpt_step_name(step, name);
    snprintf(what, sizeof what, "%.200s/%s/" OARI_CKPT_INDEX, path, name);
    OARI_TRY(oari_ckpt_read_index(disk, folder, path, step, text, bytes));
    copy = oari_alloc(*bytes + 1, 1);
    status = copy == NULL ? OAR_E_NOMEM : OAR_OK;
    if (status == OAR_OK) {
        memcpy(copy, *text, *bytes);
        status = oari_ckpt_index_read(what, copy, *bytes, &index);
    }
    if (status == OAR_OK) {
        status = oari_ckpt_check_files(disk, folder, path, step, &index);
        oari_ckpt_index_free(&index);
    }
    if (status != OAR_OK)
        oari_free(*text);
    return status;
}

oar_status oari_ckpt_find_newest(const oari_disk *disk, int folder,
                                 const char *path, int64_t *step, char **text,
                                 size_t *bytes)
{
    oari_ckpt_steps steps = { { 0 }, { 0 } };
    oar_status status = oari_ckpt_steps_list(disk, folder, path, &steps);
    char why[300] = "";
    int64_t incomplete = 0;

    for (int64_t i = steps.step.count - 1; status == OAR_OK && i >= 0; i--) {
        status =
            read_complete(disk, folder, path, steps.step.data[i], text, bytes);
        if (status == OAR_OK) {
            *step = steps.step.data[i];
            oari_ckpt_steps_free(&steps);
            return OAR_OK;
        }
        /* Damage is passed over; a disk that does not work is not. */
        if (status != OAR_E_DATA && status != OAR_E_NOT_FOUND)
            break;
        if (incomplete++ == 0)
            snprintf(why, sizeof why, "%.290s", oar_last_error_text());
        status = OAR_OK;
    }
    oari_ckpt_steps_free(&steps);
    if (status != OAR_OK)
        return status;
    if (incomplete == 0)
        return oari_fail(OAR_E_NOT_FOUND, "%s has no generation", path);
    return oari_fail(OAR_E_NOT_FOUND,
                     "%s has no complete generation; of %" PRId64
                     " incomplete ones the newest: %s",
                     path, incomplete, why);
}

/* ---- removing ------------------------------------------------------------ */

typedef struct names {
    OARI_VEC(char *) name;
    oar_status status;
} names;

static int keep_name(void *arg, const char *name)
{
    names *n = arg;
    char *copy = oari_strdup(name);

    n->status = copy == NULL ? OAR_E_NOMEM : oari_vec_push(&n->name, copy);
    if (n->status != OAR_OK)
        oari_free(copy);
    return n->status != OAR_OK;
}

/* Removes all in a folder: files and, one level down, folders of files. */
static oar_status empty_folder(const oari_disk *disk, int folder,
                               const char *name, int depth)
{
    names n = { { 0 }, OAR_OK };
    int fd = disk->open_folder(disk, folder, name);

    if (fd < 0)
        return errno == ENOENT ? OAR_OK
                               : oari_fail(OAR_E_SYSTEM, "open %s", name);
    if (depth == 0)
        (void)disk->remove(disk, fd, OARI_CKPT_INDEX, 0);
    if (disk->list(disk, fd, keep_name, &n) != 0)
        n.status = oari_fail(OAR_E_SYSTEM, "list %s", name);
    for (int64_t i = 0; i < n.name.count; i++) {
        const char *child = n.name.data[i];

        if (n.status == OAR_OK && disk->remove(disk, fd, child, 0) != 0) {
            if (depth < 1 && (errno == EISDIR || errno == EPERM))
                n.status = empty_folder(disk, fd, child, depth + 1);
            else if (errno != ENOENT)
                n.status = oari_fail(OAR_E_SYSTEM, "remove %s", child);
        }
        oari_free(n.name.data[i]);
    }
    oari_vec_free(&n.name);
    (void)disk->close(disk, fd);
    if (n.status == OAR_OK && disk->remove(disk, folder, name, 1) != 0 &&
        errno != ENOENT)
        return oari_fail(OAR_E_SYSTEM, "remove the folder %s", name);
    return n.status;
}

oar_status oari_ckpt_remove_tree(const oari_disk *disk, int folder,
                                 const char *name)
{
    return empty_folder(disk, folder, name, 0);
}

oar_status oari_ckpt_remove_parts(const oari_disk *disk, int folder,
                                  const char *path)
{
    oari_ckpt_steps steps = { { 0 }, { 0 } };
    oar_status status = oari_ckpt_steps_list(disk, folder, path, &steps);

    for (int64_t i = 0; i < steps.part.count && status == OAR_OK; i++)
        status = oari_ckpt_remove_tree(disk, folder, steps.part.data[i]);
    oari_ckpt_steps_free(&steps);
    return status;
}

/* ---- looking ------------------------------------------------------------- */

void oari_ckpt_describe(const oari_ckpt_index *index, oar_generation *g)
{
    g->step = index->step;
    g->saved_unix_s = index->saved_unix_s;
    g->ranks = index->ranks;
    g->keep = index->keep;
    snprintf(g->note, sizeof g->note, "%s", index->note);
    g->bytes = 0;
    for (int64_t i = 0; i < index->files; i++)
        g->bytes += index->file[i].bytes;
}

static void describe_generation(const oari_disk *disk, int folder,
                                const char *path, int64_t step,
                                oar_generation *g)
{
    oari_ckpt_index index;
    size_t bytes;
    char *text;
    oar_status status =
        oari_ckpt_read_index(disk, folder, path, step, &text, &bytes);

    g->step = step;
    oari_ckpt_step_name(step, g->name);
    if (status == OAR_OK)
        status = oari_ckpt_index_read(OARI_CKPT_INDEX, text, bytes, &index);
    if (status == OAR_OK) {
        oari_ckpt_describe(&index, g);
        g->step = step;
        status = oari_ckpt_check_files(disk, folder, path, step, &index);
        oari_ckpt_index_free(&index);
    }
    g->complete = status == OAR_OK;
    if (status != OAR_OK)
        snprintf(g->why, sizeof g->why, "%.159s", oar_last_error_text());
}

oar_status oar_generations(const char *folder, int *count,
                           oar_generation **list)
{
    const oari_disk *disk = oari_disk_in_use();
    oari_ckpt_steps steps = { { 0 }, { 0 } };
    oar_generation *made = NULL;
    oar_status status;
    int64_t all;
    int fd;

    if (folder == NULL || count == NULL || list == NULL)
        return oari_fail(OAR_E_ARG, "generations: %s is NULL",
                         folder == NULL  ? "the folder"
                         : count == NULL ? "count"
                                         : "list");
    fd = disk->open_folder(disk, AT_FDCWD, folder);
    if (fd < 0)
        return oari_fail(errno == ENOENT ? OAR_E_NOT_FOUND : OAR_E_SYSTEM,
                         "open the folder %s", folder);
    status = oari_ckpt_steps_list(disk, fd, folder, &steps);
    all = steps.step.count + steps.part.count;
    if (status == OAR_OK &&
        (made = oari_alloc((size_t)all, sizeof *made)) == NULL)
        status = OAR_E_NOMEM;
    for (int64_t i = 0; i < steps.part.count && status == OAR_OK; i++) {
        const char *rest;

        made[i].step = step_of_name(steps.part.data[i], &rest);
        snprintf(made[i].name, sizeof made[i].name, "%.63s",
                 steps.part.data[i]);
        snprintf(made[i].why, sizeof made[i].why,
                 "it is being written or removed, or was left behind");
    }
    for (int64_t i = 0; i < steps.step.count && status == OAR_OK; i++)
        describe_generation(disk, fd, folder, steps.step.data[i],
                            &made[steps.part.count + i]);
    oari_ckpt_steps_free(&steps);
    (void)disk->close(disk, fd);
    if (status != OAR_OK)
        return status;
    *count = (int)all;
    *list = made;
    return OAR_OK;
}
