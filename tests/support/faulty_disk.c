/* SPDX-License-Identifier: Apache-2.0 */
/* faulty_disk: every call asks strike() first. */
#include "support/faulty_disk.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "file/disk.h"

static disk_fault chosen;
static long chosen_call;
static int chosen_error;
static atomic_long calls;
static _Atomic(const char *) struck;

enum { NAMES = 400 };
static _Atomic(const char *) names[NAMES];

/* Counts a call. Returns the fault that is to strike at it. */
static disk_fault strike(const char *call)
{
    long number = atomic_fetch_add(&calls, 1) + 1;

    if (number <= NAMES)
        atomic_store(&names[number - 1], call);
    if (chosen == DISK_FAULT_SLOW && number >= chosen_call &&
        number < chosen_call + 6)
        usleep((useconds_t)chosen_error * 1000);
    if (number != chosen_call)
        return DISK_FAULT_NONE;
    atomic_store(&struck, call);
    if (chosen == DISK_FAULT_KILL)
        kill(getpid(), SIGKILL);
    if (chosen == DISK_FAULT_STOP)
        raise(SIGSTOP);
    /* An open that fails has opened nothing. */
    if (chosen == DISK_FAULT_ERROR_AFTER && strncmp(call, "open", 4) == 0)
        return DISK_FAULT_ERROR;
    return chosen;
}

/* Ends a call whose own result is given. */
static long finish(disk_fault fault, long result)
{
    if (fault == DISK_FAULT_KILL_AFTER)
        kill(getpid(), SIGKILL);
    if (fault != DISK_FAULT_ERROR_AFTER)
        return result;
    errno = chosen_error;
    return -1;
}

/* Calls the system's function unless the call is to fail at once. */
#define WITH_FAULT(name, call)                   \
    do {                                         \
        disk_fault fault = strike(name);         \
        (void)disk;                              \
        if (fault == DISK_FAULT_ERROR) {         \
            errno = chosen_error;                \
            return -1;                           \
        }                                        \
        return (int)finish(fault, (long)(call)); \
    } while (0)

#define SYSTEM (&oari_disk_system)

static int open_folder(const oari_disk *disk, int at, const char *name)
{
    WITH_FAULT("open_folder", SYSTEM->open_folder(SYSTEM, at, name));
}

static int make_folder(const oari_disk *disk, int at, const char *name)
{
    WITH_FAULT("make_folder", SYSTEM->make_folder(SYSTEM, at, name));
}

static int open_file(const oari_disk *disk, int at, const char *name, int how)
{
    WITH_FAULT("open_file", SYSTEM->open_file(SYSTEM, at, name, how));
}

static size_t shorter(disk_fault fault, size_t bytes)
{
    return fault == DISK_FAULT_SHORT && bytes > 1 ? bytes / 2 : bytes;
}

static ssize_t write_at(const oari_disk *disk, int fd, const void *data,
                        size_t bytes, off_t at)
{
    disk_fault fault = strike("write_at");

    (void)disk;
    if (fault == DISK_FAULT_ERROR) {
        errno = chosen_error;
        return -1;
    }
    return finish(
        fault, SYSTEM->write_at(SYSTEM, fd, data, shorter(fault, bytes), at));
}

static ssize_t read_at(const oari_disk *disk, int fd, void *data, size_t bytes,
                       off_t at)
{
    disk_fault fault = strike("read_at");

    (void)disk;
    if (fault == DISK_FAULT_ERROR) {
        errno = chosen_error;
        return -1;
    }
    return finish(fault,
                  SYSTEM->read_at(SYSTEM, fd, data, shorter(fault, bytes), at));
}

static int set_direct(const oari_disk *disk, int fd, int on)
{
    WITH_FAULT("set_direct", SYSTEM->set_direct(SYSTEM, fd, on));
}

static void flush(const oari_disk *disk, int fd, off_t at, off_t bytes,
                  int drop)
{
    (void)disk; /* it cannot fail, so it is not counted */
    SYSTEM->flush(SYSTEM, fd, at, bytes, drop);
}

/* Processes end here, not the machine: what was written needs no disk, and the
 * tests need not wait for one. */
static int sync_fd(const oari_disk *disk, int fd)
{
    WITH_FAULT("sync", fcntl(fd, F_GETFD) < 0 ? -1 : 0);
}

static int rename_name(const oari_disk *disk, int at, const char *from,
                       const char *to)
{
    WITH_FAULT("rename", SYSTEM->rename(SYSTEM, at, from, to));
}

static int remove_name(const oari_disk *disk, int at, const char *name,
                       int folder)
{
    WITH_FAULT("remove", SYSTEM->remove(SYSTEM, at, name, folder));
}

static int list_names(const oari_disk *disk, int fd, oari_disk_name_fn *fn,
                      void *arg)
{
    WITH_FAULT("list", SYSTEM->list(SYSTEM, fd, fn, arg));
}

static int size_of(const oari_disk *disk, int fd, off_t *bytes)
{
    WITH_FAULT("size", SYSTEM->size(SYSTEM, fd, bytes));
}

static int free_bytes(const oari_disk *disk, int fd, uint64_t *bytes)
{
    WITH_FAULT("free_bytes", SYSTEM->free_bytes(SYSTEM, fd, bytes));
}

static int lock_file(const oari_disk *disk, int fd)
{
    WITH_FAULT("lock", SYSTEM->lock(SYSTEM, fd));
}

/* As on Linux, the descriptor is closed even if that fails. */
static int close_fd(const oari_disk *disk, int fd)
{
    disk_fault fault = strike("close");
    int result = SYSTEM->close(SYSTEM, fd);

    (void)disk;
    if (fault == DISK_FAULT_ERROR)
        fault = DISK_FAULT_ERROR_AFTER;
    return (int)finish(fault, result);
}

static const oari_disk faulty = { .open_folder = open_folder,
                                  .make_folder = make_folder,
                                  .open_file = open_file,
                                  .write_at = write_at,
                                  .read_at = read_at,
                                  .set_direct = set_direct,
                                  .flush = flush,
                                  .sync = sync_fd,
                                  .rename = rename_name,
                                  .remove = remove_name,
                                  .list = list_names,
                                  .size = size_of,
                                  .free_bytes = free_bytes,
                                  .lock = lock_file,
                                  .close = close_fd };

void faulty_disk_use(disk_fault fault, long at, int error)
{
    chosen = fault;
    chosen_call = at;
    chosen_error = error;
    atomic_store(&calls, 0);
    atomic_store(&struck, NULL);
    for (int i = 0; i < NAMES; i++)
        atomic_store(&names[i], NULL);
    oari_disk_replace(&faulty);
}

void faulty_disk_stop(void)
{
    oari_disk_replace(NULL);
}

long faulty_disk_calls(void)
{
    return atomic_load(&calls);
}

const char *faulty_disk_struck(void)
{
    return atomic_load(&struck);
}

const char *faulty_disk_call(long number)
{
    return number >= 1 && number <= NAMES ? atomic_load(&names[number - 1])
                                          : NULL;
}
