/* SPDX-License-Identifier: Apache-2.0 */
/* file/disk.h: every call on a file or folder that must survive a crash goes
 * through one table, so that tests can be the disk: count the calls, make one
 * fail, end the process at one, or model a power failure after it.
 *
 * The functions of the table return what the system's own do: -1 and errno on
 * failure. Names below a folder are single components and are never followed
 * if they are symbolic links. Any thread may call them. */
#ifndef OARI_FILE_DISK_H
#define OARI_FILE_DISK_H

#include <fcntl.h>
#include <sys/types.h>

#include <oarsong/status.h>

typedef struct oari_disk oari_disk;

/* How a file is opened: one of the first three, and perhaps DIRECT. */
enum {
    OARI_DISK_READ = 0,
    OARI_DISK_CREATE = 1,  /* to write; the name must be new */
    OARI_DISK_SHARED = 2,  /* to read and write; made if it is not there */
    OARI_DISK_DIRECT = 16, /* past the page cache: buffers, offsets and lengths
                              are multiples of 4096 */
};

/* Called with each name in a folder, without "." and "..". Returns 0 to go on;
 * anything else ends the listing. */
typedef int oari_disk_name_fn(void *arg, const char *name);

struct oari_disk {
    /* at: an open folder; AT_FDCWD: name is any path. */
    int (*open_folder)(const oari_disk *disk, int at, const char *name);
    int (*make_folder)(const oari_disk *disk, int at, const char *name);
    int (*open_file)(const oari_disk *disk, int at, const char *name, int how);
    ssize_t (*write_at)(const oari_disk *disk, int fd, const void *data,
                        size_t bytes, off_t at);
    ssize_t (*read_at)(const oari_disk *disk, int fd, void *data, size_t bytes,
                       off_t at);
    int (*set_direct)(const oari_disk *disk, int fd, int on);
    /* (optional) Extends a new file to `bytes` and allocates its space. Threads
     * can then write to it at the same time, which ext4 and XFS do not allow
     * at the end of a file. It is a hint that cannot fail. */
    void (*reserve)(const oari_disk *disk, int fd, off_t bytes);
    /* Starts to write pages [at, at + bytes) back; drops them if `drop`. It is
     * a hint that cannot fail. */
    void (*flush)(const oari_disk *disk, int fd, off_t at, off_t bytes,
                  int drop);
    /* Of a file or a folder. After a failure nothing that was written to fd can
     * be relied on, and a second sync proves nothing. */
    int (*sync)(const oari_disk *disk, int fd);
    int (*rename)(const oari_disk *disk, int at, const char *from,
                  const char *to);
    int (*remove)(const oari_disk *disk, int at, const char *name, int folder);
    int (*list)(const oari_disk *disk, int fd, oari_disk_name_fn *fn,
                void *arg);
    int (*size)(const oari_disk *disk, int fd, off_t *bytes);
    /* Bytes that an ordinary user can still write. */
    int (*free_bytes)(const oari_disk *disk, int fd, uint64_t *bytes);
    /* Takes the lock of a file, which the process's end gives back. EWOULDBLOCK
     * if another process has it. */
    int (*lock)(const oari_disk *disk, int fd);
    int (*close)(const oari_disk *disk, int fd); /* NFS may fail here */
};

/* The table in use: the system's own, unless a test has put another one in its
 * place (NULL: the system's again) before any thread used it. */
const oari_disk *oari_disk_in_use(void);
void oari_disk_replace(const oari_disk *disk);
extern const oari_disk oari_disk_system;

/* The functions below finish short transfers, start again after EINTR, and set
 * the last error: OAR_E_SYSTEM with `path`, which is only for the text. */

oar_status oari_disk_write(const oari_disk *disk, int fd, const void *data,
                           size_t bytes, off_t at, const char *path);
/* Fails for a write_at that failed, by errno: with how many bytes are free if
 * the disk is full. */
oar_status oari_disk_write_failed(const oari_disk *disk, int fd, size_t bytes,
                                  const char *path);
/* A file that ends too early is OAR_E_DATA. */
oar_status oari_disk_read(const oari_disk *disk, int fd, void *data,
                          size_t bytes, off_t at, const char *path);

/* Syncs and closes; closes in any case. */
oar_status oari_disk_finish(const oari_disk *disk, int fd, const char *path);

/* Opens the folder that holds `path`, and gives the last component of it. */
oar_status oari_disk_open_parent(const oari_disk *disk, const char *path,
                                 int *fd, const char **name);

#endif
