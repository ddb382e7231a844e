/* SPDX-License-Identifier: Apache-2.0 */
/* recorder_host: the host, boot and process of a recorder file, from /proc. */
#include "record/recorder_host.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* Reads the beginning of a small file, as text; "" if there is none. */
static void read_text(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;

    if (fd >= 0) {
        n = read(fd, text, room - 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
}

/* Reads the state and start of a process; 0: there is none. The name may hold
 * anything, so fields are counted behind its last bracket. */
static int read_stat(int64_t pid, char *state, uint64_t *started)
{
    char path[64], text[1024], *at;

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    read_text(path, text, sizeof text);
    if ((at = strrchr(text, ')')) == NULL || at[1] == 0)
        return 0;
    *state = at[2];
    for (int field = 2; field < 22 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    *started = at != NULL ? strtoull(at, NULL, 10) : 0;
    return 1;
}

void oari_host_sign(oari_recorder_head *head)
{
    struct timespec wall;
    struct stat space;
    uint64_t started = 0;
    char state;

    if (gethostname(head->host, sizeof head->host - 1) != 0)
        head->host[0] = 0;
    head->host[sizeof head->host - 1] = 0;
    read_text("/proc/sys/kernel/random/boot_id", head->boot, sizeof head->boot);
    head->boot[strcspn(head->boot, "\n")] = 0;
    head->pid_space =
        stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
    read_stat(getpid(), &state, &started);
    head->started = started;
    clock_gettime(CLOCK_REALTIME, &wall);
    head->wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
    head->base_ns = oari_now_ns();
}

int oari_host_same(const oari_recorder_head *a, const oari_recorder_head *b)
{
    return a->boot[0] != 0 && strncmp(a->boot, b->boot, sizeof a->boot) == 0;
}

oari_process_state oari_host_process_state(const oari_recorder_head *head,
                                           const oari_recorder_head *here)
{
    int64_t owner = atomic_load(&head->owner);
    oari_process_state ended =
        atomic_load(&head->exited) ? OARI_PROCESS_EXITED : OARI_PROCESS_DEAD;
    uint64_t started;
    char letter;

    if (head->seen_ns != 0)
        return (oari_process_state)head->seen_state;
    if (owner == 0)
        return OARI_PROCESS_ABSENT;
    if (!oari_host_same(head, here) || head->pid_space != here->pid_space)
        return atomic_load(&head->exited) ? OARI_PROCESS_EXITED
                                          : OARI_PROCESS_UNKNOWN;
    if (!read_stat(owner, &letter, &started) ||
        (head->started != 0 && head->started != started))
        return ended;
    switch (letter) {
    case 'R': return OARI_PROCESS_RUNS;
    case 'T':
    case 't': return OARI_PROCESS_STOPPED;
    case 'Z':
    case 'X':
    case 'x': return ended;
    }
    return OARI_PROCESS_SLEEPS;
}

int oari_rank_in_name(const char *name, const char *suffix)
{
    int rank = 0, digits = 0;

    if (strncmp(name, "rank-", 5) != 0)
        return -1;
    for (name += 5; *name >= '0' && *name <= '9'; name++)
        if (++digits < 5)
            rank = 10 * rank + *name - '0';
    return digits > 0 && digits < 5 && rank < OARI_MEMBERS &&
                   strcmp(name, suffix) == 0
               ? rank
               : -1;
}
