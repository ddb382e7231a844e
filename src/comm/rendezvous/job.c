/* SPDX-License-Identifier: Apache-2.0 */
/* job: launchers number their jobs, but some do not, and numbers come again
 * after a crash. The launching process and the moment it started do not. */
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

/* Whose name is to be found: the process that launched the ranks. */
typedef struct launching {
    long pid;
    unsigned long long start;     /* in ticks since boot */
    unsigned long long pid_space; /* that its number is of */
} launching;

/* Reads a file of /proc/PID; the bytes read, or -1. */
static ssize_t read_of(long pid, const char *name, char *into, size_t room)
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

/* The parent of a process, and when it was started. */
static int read_stat(long pid, long *parent, unsigned long long *start)
{
    char text[1024], *at;
    ssize_t bytes = read_of(pid, "stat", text, sizeof text - 1);

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

static int holds(const char *text, ssize_t bytes, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = text; at < text + bytes; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return 1;
    return 0;
}

/* Whether the process was started with the variable set. One that may not be
 * looked into is another user's: a launcher. */
static int has_variable(long pid, const char *name, char *scratch)
{
    ssize_t bytes = read_of(pid, "environ", scratch, ENVIRON_MAX - 1);

    if (bytes <= 0)
        return 0;
    scratch[bytes] = 0;
    return holds(scratch, bytes, name);
}

/* Numbers of processes are of a name space, which containers have for
 * themselves. 0: not known. */
static unsigned long long pid_space(void)
{
    struct stat info;

    return stat("/proc/self/ns/pid", &info) == 0
               ? (unsigned long long)info.st_ino
               : 0;
}

/* From the parent up: wrappers between launcher and rank have the variable. */
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

/* Where a process and its libraries lie in memory is random, and told only to
 * its own user: a word of it, in hex. Empty: this user cannot read it. */
static void find_place(long pid, char word[PLACE_HEX])
{
    static const char purpose[] = "oarsong job folder";
    unsigned char auxv[AUXV_MAX], mac[OARI_PROOF_BYTES];
    ssize_t bytes = read_of(pid, "auxv", (char *)auxv, sizeof auxv);
    oari_secret_part key = { purpose, sizeof purpose };
    oari_secret_part part = { auxv, bytes > 0 ? (size_t)bytes : 0 };

    word[0] = 0;
    if (bytes <= 0 || oari_secret_hmac(key, &part, 1, mac) != OAR_OK)
        return;
    for (int i = 0; i < (PLACE_HEX - 1) / 2; i++)
        snprintf(word + 2 * i, 3, "%02x", mac[i]);
}

/* "-" and the value with nothing odd in it, cut; or nothing. */
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

/* A base that is no folder, or too long, is as good as none. */
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

/* ---- what jobs leave that were killed ------------------------------------ */

/* The process in a name of oari_job_folder: in the five words at its end. */
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

static int is_gone(const launching *by)
{
    unsigned long long start;
    long parent;

    return by->pid > 0 && by->pid_space != 0 && by->pid_space == pid_space() &&
           (!read_stat(by->pid, &parent, &start) || start != by->start);
}

static int is_left(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
           info.st_uid == geteuid() && (info.st_mode & 077) == 0 &&
           time(NULL) - info.st_mtime > LEFT_S;
}

static void remove_folder(const char *path)
{
    oar_store *store;

    if (oar_store_create_file(path, &store) != OAR_OK)
        return;
    oar_store_clear(store);
    oar_store_destroy(store);
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
        snprintf(other, sizeof other, "%.*s/%s", base, path, item->d_name);
        if (parse_name(item->d_name, &by) && is_gone(&by) && is_left(other))
            remove_folder(other);
    }
    closedir(folder);
}
