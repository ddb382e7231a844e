/* SPDX-License-Identifier: Apache-2.0 */
/* disk: the system's file calls as a table, and the loops around them. */
#include "file/disk.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"

/* ---- the system's table -------------------------------------------------- */

static int follow(int at)
{
    return at == AT_FDCWD ? 0 : O_NOFOLLOW;
}

static int system_open_folder(const oari_disk *disk, int at, const char *name)
{
    (void)disk;
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow(at));
}

static int system_make_folder(const oari_disk *disk, int at, const char *name)
{
    (void)disk;
    return mkdirat(at, name, 0777);
}

static int system_open_file(const oari_disk *disk, int at, const char *name,
                            int how)
{
    int flags = O_CLOEXEC | follow(at);

    (void)disk;
    if (how & OARI_DISK_CREATE)
        flags |= O_WRONLY | O_CREAT | O_EXCL;
    else if (how & OARI_DISK_SHARED)
        flags |= O_RDWR | O_CREAT;
    else
        flags |= O_RDONLY | O_NONBLOCK; /* a pipe is not waited for */
    if (how & OARI_DISK_DIRECT)
        flags |= O_DIRECT;
    return openat(at, name, flags, 0666);
}

static ssize_t system_write_at(const oari_disk *disk, int fd, const void *data,
                               size_t bytes, off_t at)
{
    (void)disk;
    return oari_file_write_at(fd, data, bytes, at);
}

static ssize_t system_read_at(const oari_disk *disk, int fd, void *data,
                              size_t bytes, off_t at)
{
    (void)disk;
    return pread(fd, data, bytes, at);
}

static int system_set_direct(const oari_disk *disk, int fd, int on)
{
    int flags = fcntl(fd, F_GETFL);

    (void)disk;
    if (flags < 0)
        return -1;
    return fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

static void system_reserve(const oari_disk *disk, int fd, off_t bytes)
{
    (void)disk;
    if (bytes > 0)
        oari_file_preallocate(fd, bytes);
}

static void system_flush(const oari_disk *disk, int fd, off_t at, off_t bytes,
                         int drop)
{
    (void)disk;
    if (drop)
        (void)posix_fadvise(fd, at, bytes, POSIX_FADV_DONTNEED);
    else
        (void)sync_file_range(fd, at, bytes, SYNC_FILE_RANGE_WRITE);
}

static int system_sync(const oari_disk *disk, int fd)
{
    (void)disk;
    return fsync(fd); /* not fdatasync: the size counts */
}

static int system_rename(const oari_disk *disk, int at, const char *from,
                         const char *to)
{
    (void)disk;
    return renameat(at, from, at, to);
}

static int system_remove(const oari_disk *disk, int at, const char *name,
                         int folder)
{
    (void)disk;
    return unlinkat(at, name, folder ? AT_REMOVEDIR : 0);
}

static int system_list(const oari_disk *disk, int fd, oari_disk_name_fn *fn,
                       void *arg)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = own < 0 ? NULL : fdopendir(own);
    struct dirent *entry;
    int stopped = 0, failed;

    (void)disk;
    if (folder == NULL) {
        if (own >= 0)
            close(own);
        return -1;
    }
    errno = 0;
    while (!stopped && (entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            stopped = fn(arg, entry->d_name);
        errno = 0;
    }
    failed = stopped ? 0 : errno;
    closedir(folder);
    errno = failed;
    return failed != 0 ? -1 : 0;
}

static int system_size(const oari_disk *disk, int fd, off_t *bytes)
{
    struct stat st;

    (void)disk;
    if (fstat(fd, &st) != 0)
        return -1;
    if (!S_ISREG(st.st_mode)) {
        errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
        return -1;
    }
    *bytes = st.st_size;
    return 0;
}

static int system_free_bytes(const oari_disk *disk, int fd, uint64_t *bytes)
{
    struct statvfs st;

    (void)disk;
    if (fstatvfs(fd, &st) != 0)
        return -1;
    *bytes = (uint64_t)st.f_bavail * st.f_frsize;
    return 0;
}

static int system_lock(const oari_disk *disk, int fd)
{
    (void)disk;
    return flock(fd, LOCK_EX | LOCK_NB);
}

static int system_close(const oari_disk *disk, int fd)
{
    (void)disk;
    return close(fd);
}

const oari_disk oari_disk_system = {
    .open_folder = system_open_folder,
    .make_folder = system_make_folder,
    .open_file = system_open_file,
    .write_at = system_write_at,
    .read_at = system_read_at,
    .set_direct = system_set_direct,
    .reserve = system_reserve,
    .flush = system_flush,
    .sync = system_sync,
    .rename = system_rename,
    .remove = system_remove,
    .list = system_list,
    .size = system_size,
    .free_bytes = system_free_bytes,
    .lock = system_lock,
    .close = system_close,
};

static _Atomic(const oari_disk *) in_use = &oari_disk_system;

const oari_disk *oari_disk_in_use(void)
{
    return atomic_load_explicit(&in_use, memory_order_acquire);
}

void oari_disk_replace(const oari_disk *disk)
{
    atomic_store_explicit(&in_use, disk != NULL ? disk : &oari_disk_system,
                          memory_order_release);
}

/* ---- whole transfers ----------------------------------------------------- */

oar_status oari_disk_write_failed(const oari_disk *disk, int fd, size_t bytes,
                                  const char *path)
{
    int why = errno;
    uint64_t left;
    char room[48] = "";

    if ((why == ENOSPC || why == EDQUOT) &&
        disk->free_bytes(disk, fd, &left) == 0)
        snprintf(room, sizeof room, ", where %" PRIu64 " are free", left);
    errno = why;
    return oari_fail(OAR_E_SYSTEM, "write %zu bytes to %s%s%s", bytes, path,
                     room, oari_file_limit());
}

oar_status oari_disk_write(const oari_disk *disk, int fd, const void *data,
                           size_t bytes, off_t at, const char *path)
{
    const char *from = data;

    for (size_t done = 0; done < bytes;) {
        ssize_t n = disk->write_at(disk, fd, from + done, bytes - done,
                                   at + (off_t)done);

        if (n == 0) { /* no system does that, but it must not loop for ever */
            errno = EIO;
            n = -1;
        }
        if (n < 0 && errno != EINTR)
            return oari_disk_write_failed(disk, fd, bytes - done, path);
        if (n > 0)
            done += (size_t)n;
    }
    return OAR_OK;
}

oar_status oari_disk_read(const oari_disk *disk, int fd, void *data,
                          size_t bytes, off_t at, const char *path)
{
    char *to = data;

    for (size_t done = 0; done < bytes;) {
        ssize_t n =
            disk->read_at(disk, fd, to + done, bytes - done, at + (off_t)done);

        if (n == 0)
            return oari_fail(
                OAR_E_DATA, "%s ends at byte %lld; %zu more were expected",
                path, (long long)at + (long long)done, bytes - done);
        if (n < 0 && errno != EINTR)
            return oari_fail(OAR_E_SYSTEM, "read %s", path);
        if (n > 0)
            done += (size_t)n;
    }
    return OAR_OK;
}

oar_status oari_disk_finish(const oari_disk *disk, int fd, const char *path)
{
    if (disk->sync(disk, fd) != 0) {
        oar_status status = oari_fail(OAR_E_SYSTEM, "sync %s", path);

        (void)disk->close(disk, fd);
        return status;
    }
    /* Linux closes the descriptor whatever close returns. */
    if (disk->close(disk, fd) != 0 && errno != EINTR)
        return oari_fail(OAR_E_SYSTEM, "close %s", path);
    return OAR_OK;
}

oar_status oari_disk_open_parent(const oari_disk *disk, const char *path,
                                 int *fd, const char **name)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    size_t length = slash != NULL ? (size_t)(slash - path) : 0;
    int opened;

    if (length >= sizeof folder)
        return oari_fail(OAR_E_ARG, "the path %.40s... is too long", path);
    if (slash != NULL) {
        memcpy(folder, path, length);
        folder[length] = '\0';
        if (length == 0)
            memcpy(folder, "/", 2);
    }
    *name = slash != NULL ? slash + 1 : path;
    if ((*name)[0] == '\0')
        return oari_fail(OAR_E_ARG, "the path \"%s\" names no file", path);
    opened = disk->open_folder(disk, AT_FDCWD, folder);
    if (opened < 0)
        return oari_fail(OAR_E_SYSTEM, "open the folder %s", folder);
    *fd = opened;
    return OAR_OK;
}
