/* SPDX-License-Identifier: Apache-2.0 */
/* job: names a job by the process that launched it and the moment that process
 * was started. Some launchers do not number their jobs, and others use a number
 * again after a crash. */
#include "comm/rendezvous/job.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/store.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"
#include "net/secret.h"

enum {
    ANCESTORS = 64,
    ENVIRON_MAX = 1 << 20,
    WORD = 64,
    AUXV_MAX = 4096,
    PLACE_HEX = 16 + 1,
    LEFT_S = 600 /* a folder untouched for this long was left behind */
};

/* The process that launched the ranks. */
typedef struct launching {
    long pid;
    unsigned long long start;     /* in ticks since boot */
    unsigned long long pid_space; /* that its number is of */
} launching;

/* Reads a file of /proc/PID. Returns the number of bytes, or -1. */
static ssize_t read_proc(long pid, const char *name, char *into, size_t room)
{
    char path[64];
    size_t have = 0;
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return -1;
    while (have < room && (got = read(fd, into + have, room - have)) > 0)
        have += (size_t)got;
    close(fd);
    return (ssize_t)have;
}

/* Gives the parent of a process, and when it was started. Returns 0 if there is
 * no such process. */
static int read_stat(long pid, long *parent, unsigned long long *start)
{
    char text[1024], *at;
    ssize_t bytes = read_proc(pid, "stat", text, sizeof text - 1);

    if (bytes <= 0)
        return 0;
    text[bytes] = 0;
    at = strrchr(text, ')'); /* the name before it may have anything in it */
    return at != NULL &&
           sscanf(at + 1,
                  " %*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d "
                  "%*d %*d %*d %*d %*d %llu",
                  parent, start) == 2;
}

/* Returns whether the process was started with the variable set. One whose
 * environment cannot be read is another user's: a launcher. */
static int has_variable(long pid, const char *name, char *scratch)
{
    ssize_t bytes = read_proc(pid, "environ", scratch, ENVIRON_MAX - 1);
    size_t length = strlen(name);

    if (bytes <= 0)
        return 0;
    scratch[bytes] = 0;
    for (const char *at = scratch; at < scratch + bytes; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return 1;
    return 0;
}

/* Returns the name space that process numbers here belong to; 0: not known.
 * Containers have their own. */
static unsigned long long pid_space(void)
{
    struct stat info;

    return stat("/proc/self/ns/pid", &info) == 0
               ? (unsigned long long)info.st_ino
               : 0;
}

/* Goes from the parent up: wrappers between launcher and rank have the
 * variable. */
static oar_status find_launching(const char *rank, launching *found)
{
    char *scratch = oari_alloc(ENVIRON_MAX, 1);
    long at = getppid(), parent = 0;
    int known = 0;

    if (scratch == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < ANCESTORS; i++) {
        known = read_stat(at, &parent, &found->start);
        if (!known || parent <= 0 || !has_variable(at, rank, scratch))
            break;
        at = parent;
    }
    oari_free(scratch);
    if (!known)
        found->start = 0;
    found->pid = at;
    found->pid_space = at != 0 ? pid_space() : 0;
    return OAR_OK;
}

/* Writes a hash of the addresses of a process and its libraries, in hex: they
 * are random, and only its own user can read them. "": this user cannot. */
static void find_place(long pid, char word[PLACE_HEX])
{
    static const char purpose[] = "oarsong job folder";
    unsigned char auxv[AUXV_MAX], mac[OARI_MAC_BYTES];
    ssize_t bytes = read_proc(pid, "auxv", (char *)auxv, sizeof auxv);
    oari_secret_part key = { purpose, sizeof purpose };
    oari_secret_part part = { auxv, bytes > 0 ? (size_t)bytes : 0 };

    word[0] = 0;
    if (bytes <= 0 || oari_secret_hmac(key, &part, 1, mac) != OAR_OK)
        return;
    for (int i = 0; i < (PLACE_HEX - 1) / 2; i++)
        snprintf(word + 2 * i, 3, "%02x", mac[i]);
}

/* Writes "-" and the value, cut, with dots for odd characters; or nothing. */
static void append_value(const char *name, char word[WORD])
{
    const char *text = name != NULL ? oari_env_text(name) : NULL;
    size_t used = 0;

    if (text != NULL)
        word[used++] = '-';
    for (; text != NULL && *text != 0 && used < WORD - 1; text++)
        word[used++] = (char)(isalnum((unsigned char)*text) ? *text : '.');
    word[used] = 0;
}

static int is_own_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
           info.st_uid == geteuid();
}

/* Finds the folder for job folders. XDG_RUNTIME_DIR is ignored if it is no
 * folder of this user's, or too long. */
static void find_base(int can_be_guessed, char base[WORD])
{
    const char *named = oari_env_text("XDG_RUNTIME_DIR");

    if (named != NULL && strlen(named) < WORD && is_own_folder(named)) {
        snprintf(base, WORD, "%s", named);
        return;
    }
    snprintf(base, WORD, "/run/user/%ld", (long)geteuid());
    if (!can_be_guessed || !is_own_folder(base))
        snprintf(base, WORD, "/tmp");
}

oar_status oari_job_folder(const char *rank, const char *const job[2],
                           int number, char path[OARI_JOB_FOLDER])
{
    char first[WORD], second[WORD], base[WORD], place[PLACE_HEX];
    launching by = { 0 };

    append_value(job[0], first);
    append_value(job[1], second);
    OARI_TRY(find_launching(rank, &by));
    find_place(by.pid, place);
    find_base(place[0] == 0, base);
    snprintf(path, OARI_JOB_FOLDER,
             "%s/oarsong-%ld%.40s%.40s-%ld-%llu-%llu-%s-%d", base,
             (long)geteuid(), first, second, by.pid, by.start, by.pid_space,
             place[0] != 0 ? place : "0", number);
    return OAR_OK;
}

/* ---- folders of jobs that were killed ------------------------------------ */

/* Reads the launching process from a name of oari_job_folder: it is in the last
 * five words. */
static int parse_name(const char *name, launching *by)
{
    const char *at = name + strlen(name);
    char prefix[WORD];

    snprintf(prefix, sizeof prefix, "oarsong-%ld-", (long)geteuid());
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return 0;
    for (int words = 0; words < 5; words += *at == '-')
        if (--at <= name)
            return 0;
    return sscanf(at, "-%ld-%llu-%llu-", &by->pid, &by->start,
                  &by->pid_space) == 3;
}

/* Returns whether the launching process is gone and the folder old. */
static int is_abandoned(const launching *by, const char *path)
{
    unsigned long long start;
    struct stat info;
    long parent;

    if (by->pid <= 0 || by->pid_space == 0 || by->pid_space != pid_space() ||
        (read_stat(by->pid, &parent, &start) && start == by->start))
        return 0;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
           info.st_uid == geteuid() && (info.st_mode & 077) == 0 &&
           time(NULL) - info.st_mtime > LEFT_S;
}

void oari_job_sweep(const char *path)
{
    char other[OARI_JOB_FOLDER + NAME_MAX + 1];
    int base = (int)(strrchr(path, '/') - path);
    const struct dirent *item;
    launching by;
    DIR *folder;

    snprintf(other, sizeof other, "%.*s", base, path);
    if ((folder = opendir(other)) == NULL)
        return;
    while ((item = readdir(folder)) != NULL) {
        oar_store *store;

        snprintf(other, sizeof other, "%.*s/%s", base, path, item->d_name);
        if (!parse_name(item->d_name, &by) || !is_abandoned(&by, other) ||
            oar_store_create_file(other, &store) != OAR_OK)
            continue;
        oar_store_clear(store); /* removes the folder */
        oar_store_destroy(store);
    }
    closedir(folder);
}
