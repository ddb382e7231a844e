/* SPDX-License-Identifier: Apache-2.0 */
/* trace_head: makes the file of a trace and fills in which process it is of. */
#include "base/trace_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/env.h"

enum { MOST_FILES = 1000 }; /* of one rank in one folder */

const char oari_trace_magic[8] = "OARTRACE";

/* What launchers call the rank and the number of ranks. */
static const char *const rank_names[] = { "OARSONG_RANK", "RANK",
                                          "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                          "SLURM_PROCID" };
static const char *const size_names[] = { "OARSONG_SIZE", "WORLD_SIZE",
                                          "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                          "SLURM_NTASKS" };
enum { LAUNCHERS = sizeof rank_names / sizeof rank_names[0] };

/* Returns the number in the first of these variables that has one; else -1. */
static int read_number(const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        const char *text = getenv(names[i]);

        if (text != NULL && text[0] >= '0' && text[0] <= '9')
            return atoi(text);
    }
    return -1;
}

static void read_line(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, room - 1) : -1;

    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    if (fd >= 0)
        close(fd);
}

void oari_trace_head_fill(oari_trace_head *h, unsigned chunks)
{
    static const char *const epoch = "OARSONG_EPOCH";
    struct timespec wall;
    oari_moment base;

    memcpy(h->magic, oari_trace_magic, sizeof h->magic);
    h->version = OARI_TRACE_VERSION;
    h->chunks = chunks;
    h->rank = read_number(rank_names, LAUNCHERS);
    h->world = read_number(size_names, LAUNCHERS);
    h->epoch = read_number(&epoch, 1);
    if (h->world < 0)
        h->world = 0;
    if (h->epoch < 0)
        h->epoch = 0;
    h->pid = getpid();
    h->ticks_per_second = oari_ticks_per_second();
    if (oari_env_text("OARSONG_RUN_ID") != NULL)
        snprintf(h->run, sizeof h->run, "%s", oari_env_text("OARSONG_RUN_ID"));
    gethostname(h->host, sizeof h->host - 1);
    read_line("/proc/sys/kernel/random/boot_id", h->boot, sizeof h->boot);
    clock_gettime(CLOCK_REALTIME, &wall);
    base = oari_moment_now();
    h->base_ns = base.ns;
    h->base_ticks = base.ticks;
    h->wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
    atomic_store(&h->names, 1);
    atomic_store(&h->groups, 1);
    atomic_store(&h->one_in, 1);
}

int oari_trace_file_make(const char *folder)
{
    int rank = read_number(rank_names, LAUNCHERS);
    char path[640], number[32] = "";

    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return -1;
    for (int i = 2; i < MOST_FILES; i++) {
        int fd;

        snprintf(path, sizeof path, "%s/%s-%d%s" OARI_TRACE_SUFFIX, folder,
                 rank >= 0 ? "rank" : "pid", rank >= 0 ? rank : (int)getpid(),
                 number);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
        snprintf(number, sizeof number, ".%d", i);
    }
    return -1;
}

void oari_trace_file_inherit(oari_trace_file *to, const oari_trace_file *from)
{
    uint32_t names = atomic_load(&from->head.names);
    uint32_t groups = atomic_load(&from->head.groups);

    memcpy(to->name, from->name, names);
    memcpy(to->group, from->group, groups * sizeof to->group[0]);
    atomic_store(&to->head.names, names);
    atomic_store(&to->head.groups, groups);
}
