/* SPDX-License-Identifier: Apache-2.0 */
/* job: launchers number their jobs, but some do not, and numbers come again
 * after a crash. The launching process and the moment it started do not. */
#include "comm/job.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"

enum { ANCESTORS = 64, ENVIRON_MAX = 1 << 20, WORD = 64 };

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

/* The parent of a process, and when it was started, in ticks since boot. */
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

/* From the parent up: wrappers between launcher and rank have the variable. */
static oar_status find_launching(const char *rank, long *pid,
                                 unsigned long long *start)
{
    char *scratch = oari_alloc(ENVIRON_MAX, 1);
    long at = getppid(), parent = 0;
    int known = 0;

    if (scratch == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < ANCESTORS; i++) {
        known = read_stat(at, &parent, start);
        if (!known || parent <= 0 || !has_variable(at, rank, scratch))
            break;
        at = parent;
    }
    oari_free(scratch);
    if (!known)
        *start = 0;
    *pid = at;
    return OAR_OK;
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

/* A base that is no folder, or too long, is as good as none. */
static const char *base_folder(void)
{
    const char *base = oari_env_text("XDG_RUNTIME_DIR");
    struct stat info;

    if (base == NULL || strlen(base) > 64 || stat(base, &info) != 0 ||
        !S_ISDIR(info.st_mode) || info.st_uid != geteuid())
        return "/tmp";
    return base;
}

oar_status oari_job_folder(const char *rank, const char *const job[2],
                           int number, char path[OARI_JOB_FOLDER])
{
    char first[WORD], second[WORD];
    unsigned long long start = 0;
    long pid = 0;

    append_value(job[0], first);
    append_value(job[1], second);
    OARI_TRY(find_launching(rank, &pid, &start));
    snprintf(path, OARI_JOB_FOLDER, "%s/oarsong-%ld%.40s%.40s-%ld-%llu-%d",
             base_folder(), (long)geteuid(), first, second, pid, start, number);
    return OAR_OK;
}
