/* SPDX-License-Identifier: Apache-2.0 */
/* store_file: a folder with one file per key, for ranks that share a disk.
 *
 * A value is written aside and renamed into place, so a reader sees the old one
 * or the new, never half. Changes that depend on the old value hold a lock on
 * the file ".lock" of the folder. A key's file is named by its bytes, with all
 * but letters, digits, '-' and '_' as %XX. Waiting is looking again, at growing
 * intervals: that works on network disks too.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "store/store_shelf.h"

typedef struct file_store {
    oari_shelf shelf;
    int folder; /* descriptor */
    char *path;
} file_store;

enum {
    NAME_MAX_BYTES = 3 * OAR_STORE_KEY_MAX + 1,
    LOCK_MS = 30000, /* for others to be done with their changes */
    LOCK_TRIES = 5   /* that make the pauses longer, up to 1.6 ms */
};

static _Thread_local int64_t until_ns; /* 0: not set */

static oar_status name_of(const char *key, char name[NAME_MAX_BYTES])
{
    char *out = name;

    for (const unsigned char *c = (const unsigned char *)key; *c != 0; c++)
        if (isalnum(*c) || *c == '-' || *c == '_')
            *out++ = (char)*c;
        else
            out += sprintf(out, "%%%02X", *c);
    *out = 0;
    if (out - name > 250) /* what file systems take */
        return oari_fail(OAR_E_ARG,
                         "store key \"%s\" is too long for a file name", key);
    return OAR_OK;
}

/* Reads all of an open file. */
static oar_status read_value(file_store *s, int fd, oari_value *value)
{
    struct stat info;
    size_t have = 0;
    ssize_t got;

    if (fstat(fd, &info) != 0)
        return oari_fail(OAR_E_SYSTEM, "look at a key in %s", s->path);
    if (info.st_size > OAR_STORE_VALUE_MAX)
        return oari_fail(OAR_E_DATA, "a value of %lld bytes in %s",
                         (long long)info.st_size, s->path);
    value->bytes = (size_t)info.st_size;
    if ((value->data = oari_alloc(value->bytes + 1, 1)) == NULL)
        return OAR_E_NOMEM;
    while (have < value->bytes) {
        got = read(fd, (char *)value->data + have, value->bytes - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            oari_free(value->data);
            value->data = NULL;
            return oari_fail(OAR_E_SYSTEM, "read a key in %s", s->path);
        }
        have += (size_t)got;
    }
    return OAR_OK;
}

static oar_status look(void *self, const char *key, oari_value *value)
{
    file_store *s = self;
    char name[NAME_MAX_BYTES];
    oar_status status;
    int fd;

    OARI_TRY(name_of(key, name));
    fd = openat(s->folder, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return OAR_OK;
    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "open %s/%s", s->path, name);
    status = read_value(s, fd, value);
    close(fd);
    return status;
}

static oar_status write_all(int fd, const oari_value *value)
{
    size_t done = 0;
    ssize_t put;

    while (done < value->bytes) {
        put = oari_file_write(fd, (const char *)value->data + done,
                              value->bytes - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return OAR_E_SYSTEM;
        done += (size_t)put;
    }
    return OAR_OK;
}

/* Writes the value aside, under a name of this process and thread, and renames
 * it into place. The caller holds the folder's lock. */
static oar_status put_value(file_store *s, const char *name,
                            const oari_value *value)
{
    const char *aside = ".new";
    int fd = openat(s->folder, aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                    0600);
    oar_status status;

    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "create %s/%s", s->path, aside);
    status = write_all(fd, value);
    if (close(fd) != 0 || status != OAR_OK ||
        renameat(s->folder, aside, s->folder, name) != 0) {
        oari_fail(OAR_E_SYSTEM, "write %s/%s%s", s->path, name,
                  oari_file_limit());
        unlinkat(s->folder, aside, 0);
        return OAR_E_SYSTEM;
    }
    return OAR_OK;
}

static oar_status update_locked(file_store *s, const char *key,
                                oari_change_fn change, void *arg)
{
    char name[NAME_MAX_BYTES];
    oari_value value = { 0 };
    int had;
    oar_status status;

    OARI_TRY(name_of(key, name));
    OARI_TRY(look(s, key, &value));
    had = value.data != NULL;
    status = change(arg, &value);
    if (status == OAR_OK && value.data != NULL)
        status = put_value(s, name, &value);
    else if (status == OAR_OK && had && unlinkat(s->folder, name, 0) != 0)
        status = oari_fail(OAR_E_SYSTEM, "remove %s/%s", s->path, name);
    oari_free(value.data);
    return status;
}

/* 50 us at first, doubling to 20 ms. */
static void pause_longer(void *self, int tries, int64_t deadline_ns)
{
    int64_t nap = 50000LL << (tries < 9 ? tries : 9);
    int64_t left = deadline_ns - oari_now_ns();
    struct timespec time;

    if (nap > 20000000)
        nap = 20000000;
    if (nap > left)
        nap = left > 0 ? left : 0;
    time.tv_sec = 0;
    time.tv_nsec = nap;
    nanosleep(&time, NULL);
}

int64_t oari_store_until(int64_t deadline_ns)
{
    int64_t before = until_ns;

    until_ns = deadline_ns;
    return before;
}

/* Which process has the lock, as far as the system says; 0: it does not. */
static long find_holder(int lock)
{
    FILE *locks = fopen("/proc/locks", "re");
    unsigned long long inode;
    struct stat info;
    char line[256];
    long pid, found = 0;

    if (locks == NULL || fstat(lock, &info) != 0)
        info.st_ino = 0;
    while (info.st_ino != 0 && found == 0 &&
           fgets(line, sizeof line, locks) != NULL)
        if (sscanf(line, "%*s FLOCK %*s WRITE %ld %*x:%*x:%llu", &pid,
                   &inode) == 2 &&
            inode == info.st_ino)
            found = pid;
    if (locks != NULL)
        fclose(locks);
    return found;
}

static oar_status locked_out(const file_store *s, int lock, int64_t since)
{
    char holder[32] = "another process";
    long pid = find_holder(lock);

    if (pid > 0)
        snprintf(holder, sizeof holder, "process %ld", pid);
    return oari_fail(
        OAR_E_TIMEOUT, "the store in %s: %s has had it locked for %lld ms",
        s->path, holder, (long long)((oari_now_ns() - since) / 1000000));
}

static oar_status take_lock(file_store *s, int lock)
{
    int64_t since = oari_now_ns();
    int64_t deadline = until_ns != 0 ? until_ns : oari_deadline(LOCK_MS);

    for (int tries = 0; flock(lock, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return oari_fail(OAR_E_SYSTEM, "lock %s", s->path);
        if (oari_now_ns() >= deadline)
            return locked_out(s, lock, since);
        pause_longer(s, tries < LOCK_TRIES ? tries : LOCK_TRIES, deadline);
    }
    return OAR_OK;
}

static oar_status update(void *self, const char *key, oari_change_fn change,
                         void *arg)
{
    file_store *s = self;
    oar_status status;
    int fd = openat(s->folder, ".lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "lock %s", s->path);
    status = take_lock(s, fd);
    if (status == OAR_OK)
        status = update_locked(s, key, change, arg);
    close(fd);
    return status;
}

/* ---- all keys ------------------------------------------------------------ */

static int hex(char c)
{
    return c <= '9' ? c - '0' : c - 'A' + 10;
}

/* The key that a file is named by; 0 for other files. */
static int key_of(const char *name, char key[OAR_STORE_KEY_MAX + 1])
{
    size_t n = 0;

    if (*name == '.')
        return 0;
    for (; *name != 0 && n < OAR_STORE_KEY_MAX; n++)
        if (*name != '%')
            key[n] = *name++;
        else if (strspn(name + 1, "0123456789ABCDEF") >= 2) {
            key[n] = (char)(hex(name[1]) * 16 + hex(name[2]));
            name += 3;
        } else
            return 0;
    key[n] = 0;
    return *name == 0;
}

/* Calls fn for each key that begins so. */
static oar_status each_key(file_store *s, const char *prefix,
                           oar_status (*fn)(file_store *s, const char *key,
                                            const char *name, void *arg),
                           void *arg)
{
    char key[OAR_STORE_KEY_MAX + 1];
    DIR *folder = opendir(s->path);
    oar_status status = OAR_OK;
    struct dirent *item;

    if (folder == NULL)
        return errno == ENOENT ? OAR_OK
                               : oari_fail(OAR_E_SYSTEM, "open %s", s->path);
    while (status == OAR_OK && (item = readdir(folder)) != NULL)
        if (key_of(item->d_name, key) && oari_begins_with(key, prefix))
            status = fn(s, key, item->d_name, arg);
    closedir(folder);
    return status;
}

static oar_status note_key(file_store *s, const char *key, const char *name,
                           void *names)
{
    return oari_names_add(names, key);
}

static oar_status list(void *self, const char *prefix, oari_names *names)
{
    return each_key(self, prefix, note_key, names);
}

static oar_status remove_file(file_store *s, const char *key, const char *name,
                              void *arg)
{
    if (unlinkat(s->folder, name, 0) != 0 && errno != ENOENT)
        return oari_fail(OAR_E_SYSTEM, "remove %s/%s", s->path, name);
    return OAR_OK;
}

/* Everything, the folder too. */
static oar_status remove_folder(file_store *s)
{
    DIR *folder = opendir(s->path);
    struct dirent *item;

    if (folder == NULL)
        return errno == ENOENT ? OAR_OK
                               : oari_fail(OAR_E_SYSTEM, "open %s", s->path);
    while ((item = readdir(folder)) != NULL)
        unlinkat(s->folder, item->d_name, 0);
    closedir(folder);
    if (rmdir(s->path) != 0 && errno != ENOENT)
        return oari_fail(OAR_E_SYSTEM, "remove %s", s->path);
    return OAR_OK;
}

static oar_status clear(void *self, const char *prefix)
{
    return *prefix == 0 ? remove_folder(self)
                        : each_key(self, prefix, remove_file, NULL);
}

static void destroy(void *self)
{
    file_store *s = self;

    if (s->folder >= 0)
        close(s->folder);
    oari_free(s->path);
    oari_free(s);
}

static const oari_shelf_ops file_ops = {
    .look = look,
    .update = update,
    .pause = pause_longer,
    .list = list,
    .clear = clear,
    .destroy = destroy,
};

static oar_status open_folder(file_store *s)
{
    if (mkdir(s->path, 0700) != 0 && errno != EEXIST)
        return oari_fail(OAR_E_SYSTEM, "make folder %s", s->path);
    s->folder = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder < 0)
        return oari_fail(OAR_E_SYSTEM, "open folder %s", s->path);
    return OAR_OK;
}

oar_status oar_store_create_file(const char *folder, oar_store **store)
{
    file_store *s;

    if (folder == NULL || store == NULL)
        return oari_fail(OAR_E_ARG, "store_create_file without %s",
                         folder == NULL ? "a folder" : "a place for it");
    if ((s = oari_alloc(1, sizeof *s)) == NULL)
        return OAR_E_NOMEM;
    s->shelf.ops = &file_ops;
    s->folder = -1;
    if ((s->path = oari_strdup(folder)) == NULL || open_folder(s) != OAR_OK) {
        destroy(s);
        return oar_last_error()->status;
    }
    return oari_store_wrap(&oari_shelf_store, s, store);
}
