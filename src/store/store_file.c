/* SPDX-License-Identifier: Apache-2.0 */
/* store_file: a folder with one file per key, for ranks that share a disk.
 *
 * A value is written aside and renamed into place, so a reader sees the old one
 * or the new, never half of one. Changes that depend on the old value hold a
 * lock on the file ".lock" of the folder. A key's file is named by its bytes,
 * with all but letters, digits, '-' and '_' as %XX. Waiting looks again at
 * growing intervals, which works on network disks too. */
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
#include "store/store_local.h"

typedef struct file_store {
    oari_local_store local;
    int folder; /* descriptor */
    char *path;
} file_store;

enum {
    NAME_MAX_BYTES = 3 * OAR_STORE_KEY_MAX + 1,
    LOCK_MS = 30000,   /* for other processes to finish their changes */
    PATIENCE_MS = 500, /* even past a deadline: a change takes less, and the
                          caller can then say whom it has waited for */
    LOCK_TRIES = 5     /* after which the pauses stay at 1.6 ms */
};

static _Thread_local int64_t lock_deadline_ns; /* 0: LOCK_MS from now */

/* Writes the name of the key's file. */
static oar_status name_file(const char *key, char name[NAME_MAX_BYTES])
{
    char *out = name;

    for (const unsigned char *c = (const unsigned char *)key; *c != 0; c++)
        if (isalnum(*c) || *c == '-' || *c == '_')
            *out++ = (char)*c;
        else
            out += sprintf(out, "%%%02X", *c);
    *out = 0;
    if (out - name > 250) /* the limit of most file systems */
        return oari_fail(OAR_E_ARG,
                         "store key \"%s\" is too long for a file name", key);
    return OAR_OK;
}

static oar_status look_up(void *self, const char *key, oari_value *value)
{
    file_store *s = self;
    oar_status status = OAR_OK;
    char name[NAME_MAX_BYTES];
    oari_value found = { 0 };
    struct stat info;
    size_t have = 0;
    int fd;

    OARI_TRY(name_file(key, name));
    fd = openat(s->folder, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT
                   ? OAR_OK
                   : oari_fail(OAR_E_SYSTEM, "open %s/%s", s->path, name);
    if (fstat(fd, &info) != 0)
        status = oari_fail(OAR_E_SYSTEM, "stat %s/%s", s->path, name);
    else if (info.st_size > OAR_STORE_VALUE_MAX)
        status = oari_fail(OAR_E_DATA, "a value of %lld bytes in %s",
                           (long long)info.st_size, s->path);
    else {
        found.bytes = (size_t)info.st_size;
        if ((found.data = oari_alloc(found.bytes + 1, 1)) == NULL)
            status = OAR_E_NOMEM;
    }
    while (status == OAR_OK && have < found.bytes) {
        ssize_t got = read(fd, (char *)found.data + have, found.bytes - have);
        if (got > 0)
            have += (size_t)got;
        else if (got == 0 || errno != EINTR)
            status = oari_fail(OAR_E_SYSTEM, "read %s/%s", s->path, name);
    }
    close(fd);
    if (status == OAR_OK)
        *value = found;
    else
        oari_free(found.data);
    return status;
}

/* Writes the value aside and renames it into place. The caller holds the
 * folder's lock, so that one name for it is enough. */
static oar_status write_value(file_store *s, const char *name,
                              const oari_value *value)
{
    const char *aside = ".new";
    int fd = openat(s->folder, aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                    0600);
    int failed = 0;
    size_t done = 0;

    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "create %s/%s", s->path, aside);
    while (done < value->bytes && !failed) {
        ssize_t put = oari_file_write(fd, (const char *)value->data + done,
                                      value->bytes - done);
        if (put >= 0)
            done += (size_t)put;
        else
            failed = errno != EINTR;
    }
    if (close(fd) != 0 || failed ||
        renameat(s->folder, aside, s->folder, name) != 0) {
        oari_fail(OAR_E_SYSTEM, "write %s/%s%s", s->path, name,
                  oari_file_limit());
        unlinkat(s->folder, aside, 0);
        return OAR_E_SYSTEM;
    }
    return OAR_OK;
}

/* ---- changes, under a lock ----------------------------------------------- */

int64_t oari_store_set_lock_deadline(int64_t deadline_ns)
{
    int64_t before = lock_deadline_ns;

    lock_deadline_ns = deadline_ns;
    return before;
}

/* Sleeps for 50 us at the first try, doubling to 20 ms. */
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

/* Returns the process that holds the lock; 0: the system does not say. */
static long find_lock_holder(int lock)
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

static oar_status take_lock(file_store *s, int lock)
{
    int64_t since = oari_now_ns();
    int64_t deadline =
        lock_deadline_ns != 0 ? lock_deadline_ns : oari_deadline(LOCK_MS);
    int64_t patience = oari_deadline(PATIENCE_MS);
    char holder[32] = "another process";
    long pid;

    if (deadline < patience)
        deadline = patience;
    for (int tries = 0; flock(lock, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return oari_fail(OAR_E_SYSTEM, "lock %s", s->path);
        if (oari_now_ns() < deadline) {
            pause_longer(s, tries < LOCK_TRIES ? tries : LOCK_TRIES, deadline);
            continue;
        }
        if ((pid = find_lock_holder(lock)) > 0)
            snprintf(holder, sizeof holder, "process %ld", pid);
        return oari_fail(
            OAR_E_TIMEOUT, "the store in %s: %s has had it locked for %lld ms",
            s->path, holder, (long long)((oari_now_ns() - since) / 1000000));
    }
    return OAR_OK;
}

static oar_status update_value(void *self, const char *key,
                               oari_change_fn change, void *arg)
{
    file_store *s = self;
    int fd = openat(s->folder, ".lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char name[NAME_MAX_BYTES];
    oari_value value = { 0 };
    oar_status status;
    int existed;

    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "lock %s", s->path);
    status = take_lock(s, fd);
    if (status == OAR_OK)
        status = name_file(key, name);
    if (status == OAR_OK)
        status = look_up(s, key, &value);
    existed = value.data != NULL;
    if (status == OAR_OK)
        status = change(arg, &value);
    if (status == OAR_OK && value.data != NULL)
        status = write_value(s, name, &value);
    else if (status == OAR_OK && existed && unlinkat(s->folder, name, 0) != 0)
        status = oari_fail(OAR_E_SYSTEM, "remove %s/%s", s->path, name);
    oari_free(value.data);
    close(fd);
    return status;
}

/* ---- all keys ------------------------------------------------------------ */

/* Reads the key out of a file's name; 0: the file is not a key's. */
static int parse_name(const char *name, char key[OAR_STORE_KEY_MAX + 1])
{
    unsigned byte;
    size_t n = 0;

    if (*name == '.')
        return 0;
    for (; *name != 0 && n < OAR_STORE_KEY_MAX; n++)
        if (*name != '%')
            key[n] = *name++;
        else if (strspn(name + 1, "0123456789ABCDEF") >= 2 &&
                 sscanf(name + 1, "%2X", &byte) == 1) {
            key[n] = (char)byte;
            name += 3;
        } else
            return 0;
    key[n] = 0;
    return *name == 0;
}

/* Adds each key that begins with prefix to the list, or, with keys == NULL,
 * removes it. */
static oar_status list_or_remove(void *self, const char *prefix,
                                 oari_key_list *keys)
{
    file_store *s = self;
    char key[OAR_STORE_KEY_MAX + 1];
    DIR *folder = opendir(s->path);
    oar_status status = OAR_OK;
    struct dirent *item;

    if (folder == NULL)
        return errno == ENOENT ? OAR_OK
                               : oari_fail(OAR_E_SYSTEM, "open %s", s->path);
    while (status == OAR_OK && (item = readdir(folder)) != NULL) {
        if (!parse_name(item->d_name, key) || !oari_begins_with(key, prefix))
            continue;
        if (keys != NULL)
            status = oari_key_list_add(keys, key);
        else if (unlinkat(s->folder, item->d_name, 0) != 0 && errno != ENOENT)
            status =
                oari_fail(OAR_E_SYSTEM, "remove %s/%s", s->path, item->d_name);
    }
    closedir(folder);
    return status;
}

/* Removes the keys, and without a prefix the folder with all its files too. */
static oar_status clear_keys(void *self, const char *prefix)
{
    file_store *s = self;
    DIR *folder;
    struct dirent *item;

    if (*prefix != 0)
        return list_or_remove(s, prefix, NULL);
    if ((folder = opendir(s->path)) == NULL)
        return errno == ENOENT ? OAR_OK
                               : oari_fail(OAR_E_SYSTEM, "open %s", s->path);
    while ((item = readdir(folder)) != NULL)
        unlinkat(s->folder, item->d_name, 0);
    closedir(folder);
    if (rmdir(s->path) != 0 && errno != ENOENT)
        return oari_fail(OAR_E_SYSTEM, "remove %s", s->path);
    return OAR_OK;
}

static void destroy_store(void *self)
{
    file_store *s = self;

    if (s->folder >= 0)
        close(s->folder);
    oari_free(s->path);
    oari_free(s);
}

static const oari_local_store_ops file_local_ops = {
    .look = look_up,
    .update = update_value,
    .pause = pause_longer,
};

static const oari_store_ops file_ops = {
    .change = oari_local_store_change,
    .get = oari_local_store_get,
    .wait = oari_local_store_wait,
    .list = list_or_remove,
    .clear = clear_keys,
    .destroy = destroy_store,
};

oar_status oar_store_create_file(const char *folder, oar_store **store)
{
    oar_status status = OAR_OK;
    file_store *s;

    if (folder == NULL || store == NULL)
        return oari_fail(OAR_E_ARG, "store_create_file without %s",
                         folder == NULL ? "a folder" : "a place for the store");
    if ((s = oari_alloc(1, sizeof *s)) == NULL)
        return OAR_E_NOMEM;
    s->local.ops = &file_local_ops;
    s->folder = -1;
    if ((s->path = oari_strdup(folder)) == NULL)
        status = OAR_E_NOMEM;
    else if (mkdir(s->path, 0700) != 0 && errno != EEXIST)
        status = oari_fail(OAR_E_SYSTEM, "make folder %s", s->path);
    else if ((s->folder = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) <
             0)
        status = oari_fail(OAR_E_SYSTEM, "open folder %s", s->path);
    if (status != OAR_OK) {
        destroy_store(s);
        return status;
    }
    return oari_store_wrap(&file_ops, s, store);
}
