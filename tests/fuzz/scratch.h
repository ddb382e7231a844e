/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.h: a file that targets write and read again. Nothing is synced, and
 * it is removed at the end of the process. */
#ifndef TESTS_FUZZ_SCRATCH_H
#define TESTS_FUZZ_SCRATCH_H

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#include "file/disk.h"

static char scratch_folder[] = "/tmp/oarsong-fuzz-XXXXXX", scratch_path[64];
static oari_disk scratch_disk; /* in use from scratch_open on */

static inline int scratch_no_sync(const oari_disk *disk, int fd)
{
    (void)disk;
    (void)fd;
    return 0;
}

static inline void scratch_remove(void)
{
    unlink(scratch_path);
    rmdir(scratch_folder);
}

/* Gives scratch_path its name, once. */
static inline void scratch_open(void)
{
    if (scratch_path[0] != 0)
        return;
    scratch_disk = oari_disk_system;
    scratch_disk.sync = scratch_no_sync;
    oari_disk_replace(&scratch_disk);
    FUZZ_CHECK(mkdtemp(scratch_folder) != NULL);
    snprintf(scratch_path, sizeof scratch_path, "%s/again", scratch_folder);
    atexit(scratch_remove);
}

/* Makes a file in memory and writes its path; returns its descriptor. */
static inline int scratch_memory(char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    FUZZ_CHECK(fd >= 0);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
