/* SPDX-License-Identifier: Apache-2.0 */
/* live_find: finds recorder files through /proc. A launcher of ours has those
 * of all its ranks open, and every rank has its own. The files belong to one
 * job if they have the same run id, or, without a launcher of ours, if their
 * processes have the same parent. */
#include "autopsy/live.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"

enum { MOST_FILES = 4096 };

/* ---- one file ------------------------------------------------------------ */

/* Reads the head; returns whether there is one of this version. */
static int read_head(int fd, oari_recorder_head *head)
{
    oari_recorder_head got;

    if (pread(fd, &got, sizeof got, 0) != (ssize_t)sizeof got ||
        memcmp(got.magic, oari_recorder_file_magic, sizeof got.magic) != 0 ||
        got.version != OARI_FILE_VERSION)
        return 0;
    got.run[sizeof got.run - 1] = 0;
    *head = got;
    return 1;
}

static int is_open(const oari_live_files *files, const struct stat *info)
{
    for (int64_t i = 0; i < files->count; i++)
        if (files->file[i].device == info->st_dev &&
            files->file[i].inode == info->st_ino)
            return 1;
    return 0;
}

/* Takes a file if it is a recorder file and not open yet. A file that cannot be
 * opened any more is no error: its process has ended. */
static oar_status take_file(oari_live_files *files, int folder,
                            const char *name, pid_t holder)
{
    oari_live_file f = { .holder = holder };
    struct stat info;

    if (fstatat(folder, name, &info, 0) != 0 || !S_ISREG(info.st_mode) ||
        info.st_size < OARI_FILE_UNIT || is_open(files, &info) ||
        files->count == MOST_FILES)
        return OAR_OK;
    f.fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f.fd < 0)
        return OAR_OK;
    f.device = info.st_dev;
    f.inode = info.st_ino;
    if (!read_head(f.fd, &f.head)) {
        close(f.fd);
        return OAR_OK;
    }
    if (oari_array_reserve(files->file, files->count, files->room, 1) !=
        OAR_OK) {
        close(f.fd);
        return OAR_E_NOMEM;
    }
    files->file[files->count++] = f;
    return OAR_OK;
}

void oari_live_reread(oari_live_files *files)
{
    for (int64_t i = 0; i < files->count; i++)
        read_head(files->file[i].fd, &files->file[i].head);
}

void oari_live_files_close(oari_live_files *files)
{
    for (int64_t i = 0; i < files->count; i++)
        close(files->file[i].fd);
    oari_free(files->file);
    *files = (oari_live_files){ 0 };
}

/* ---- where they are ------------------------------------------------------ */

static int has_suffix(const char *text, const char *suffix)
{
    size_t bytes = strlen(text), end = strlen(suffix);

    return bytes > end && strcmp(text + bytes - end, suffix) == 0;
}

/* Returns whether a link in /proc/PID/fd may lead to a recorder file. */
static int may_be_recorder(const char *target)
{
    return strncmp(target, "/memfd:oarsong-recorder", 23) == 0 ||
           has_suffix(target, OARI_FILE_SUFFIX);
}

static oar_status find_of_process(pid_t pid, oari_live_files *files)
{
    char path[64], target[PATH_MAX];
    struct dirent *entry;
    oar_status status = OAR_OK;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    if ((dir = opendir(path)) == NULL)
        return OAR_OK; /* of another user, or it has ended */
    while (status == OAR_OK && (entry = readdir(dir)) != NULL) {
        ssize_t n =
            readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);

        if (n <= 0)
            continue;
        target[n] = 0;
        if (may_be_recorder(target))
            status = take_file(files, dirfd(dir), entry->d_name, pid);
    }
    closedir(dir);
    return status;
}

oar_status oari_live_find(pid_t pid, oari_live_files *files)
{
    oar_status status = OAR_OK;
    struct dirent *entry;
    struct stat info;
    DIR *dir;

    if (pid > 0)
        return find_of_process(pid, files);
    if ((dir = opendir("/proc")) == NULL)
        return oari_fail(OAR_E_SYSTEM, "open folder /proc");
    while (status == OAR_OK && (entry = readdir(dir)) != NULL) {
        pid_t other = (pid_t)atoi(entry->d_name);

        if (other > 0 && other != getpid() &&
            fstatat(dirfd(dir), entry->d_name, &info, 0) == 0 &&
            info.st_uid == geteuid())
            status = find_of_process(other, files);
    }
    closedir(dir);
    return status;
}

oar_status oari_live_find_in(const char *folder, oari_live_files *files)
{
    oar_status status = OAR_OK;
    struct dirent *entry;
    DIR *dir = opendir(folder);

    if (dir == NULL)
        return oari_fail(OAR_E_SYSTEM, "open folder %s", folder);
    while (status == OAR_OK && (entry = readdir(dir)) != NULL)
        if (has_suffix(entry->d_name, OARI_FILE_SUFFIX))
            status = take_file(files, dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return status;
}

/* ---- jobs ---------------------------------------------------------------- */

/* Returns the parent of a process, or 0. */
static pid_t parent_of(pid_t pid)
{
    char path[64], text[512], *at;
    int parent = 0;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if ((file = fopen(path, "re")) == NULL)
        return 0;
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    if ((at = strrchr(text, ')')) == NULL ||
        sscanf(at + 1, " %*c %d", &parent) != 1)
        return 0;
    return parent;
}

/* Returns the process that all ranks of a file's job have in common: for one
 * that no rank has begun to use, the launcher that holds it. */
static pid_t root_of(const oari_live_file *f)
{
    int64_t owner = atomic_load(&f->head.owner);

    return owner == 0 ? f->holder : parent_of((pid_t)owner);
}

int oari_live_same_job(const oari_live_file *a, const oari_live_file *b)
{
    if (a->head.run[0] != 0 && b->head.run[0] != 0)
        return strcmp(a->head.run, b->head.run) == 0;
    return root_of(a) > 1 && root_of(a) == root_of(b);
}

void oari_live_keep_job(oari_live_files *files, int64_t index)
{
    oari_live_file one = files->file[index];
    int64_t kept = 0;

    for (int64_t i = 0; i < files->count; i++)
        if (i == index || oari_live_same_job(&files->file[i], &one))
            files->file[kept++] = files->file[i];
        else
            close(files->file[i].fd);
    files->count = kept;
}
