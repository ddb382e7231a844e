/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog: the watchdog process, which sees the order in which the ranks of a
 * job end, where the launcher does not say.
 *
 * mpirun ends all ranks when one has died, before any of them could write down
 * which that was. But when a process ends, its files are closed before its
 * parent hears of it, and inotify reports that in order, however late one
 * looks. So every rank has a file open that no other process opens, its token;
 * and a small process watches the folder of the recorder files, and writes into
 * each its place in that order (oari_recorder_head.fell). A token is unlinked
 * as soon as it is open, but inotify still reports it by its name. There is one
 * watchdog process for each folder and host, in a session of its own; it holds
 * nothing of the rank that started it, and ends with the last rank.
 *
 * It is made by clone, without the handlers of fork, which take locks that the
 * caller holds. A child of a process with threads may do little more than make
 * system calls, and this one does no more.
 */
#include "record/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "record/recorder_file.h"
#include "record/recorder_host.h"

enum {
    EXITING = 4, /* PF_EXITING, of the flags in /proc/PID/stat */
    BACKLOG = 16,
    PLACE_MS = 1000, /* to find out whether another watches */
    PAUSE_NS = 5000000,
    LOOK_MS = 100,
    NAME = 48,
    EVENTS = 4096,
    KEY_BYTES = 16
};

static const char prefix[] = "rank-", key_name[] = ".watchdog";

static int boxes[OARI_MEMBERS]; /* recorder files by rank: a descriptor, or 0 */

/* ---- names --------------------------------------------------------------- */

static char *put_number(char *at, uint64_t number)
{
    char digit[24];
    int n = 0;

    do
        digit[n++] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    while (n > 0)
        *at++ = digit[--n];
    return at;
}

/* ---- the address ----------------------------------------------------------
 *
 * The watchdog process answers on an abstract Unix socket, whose name belongs
 * to the host and goes with the process. Any user may take such a name: so it
 * is made of random bytes, the key, which lie in the folder where only its user
 * can read them; and both ends ask the system which user the other is.
 */

typedef struct address {
    struct sockaddr_un name;
    socklen_t bytes;
    uid_t owner; /* of the key */
} address;

static char *put_key(char *at, const unsigned char key[KEY_BYTES])
{
    static const char digit[] = "0123456789abcdef";

    for (int i = 0; i < KEY_BYTES; i++) {
        *at++ = digit[key[i] >> 4];
        *at++ = digit[key[i] & 15];
    }
    return at;
}

/* Makes the key. It is written aside and linked into place, so that the first
 * process makes it for all, and no process sees half of it. */
static void make_key(int folder)
{
    char aside[NAME];
    unsigned char key[KEY_BYTES];
    int fd, whole;

    if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key)
        return;
    memcpy(aside, key_name, sizeof key_name - 1);
    *put_key(aside + sizeof key_name - 1, key) = 0;
    if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key ||
        (fd = openat(folder, aside,
                     O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                     0600)) < 0)
        return;
    whole = write(fd, key, sizeof key) == (ssize_t)sizeof key;
    close(fd);
    if (whole && linkat(folder, aside, folder, key_name, 0) != 0)
        oari_log(OAR_LOG_DEBUG, "the key of the watchdog process: %s",
                 strerror(errno));
    unlinkat(folder, aside, 0);
}

/* Finds the address of a folder; returns 0 if there is no key, or one that
 * other users could have changed. */
static int find_address(int folder, address *found)
{
    static const char start[] = "oarsong-watchdog-";
    int fd = openat(folder, key_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    unsigned char key[KEY_BYTES];
    struct stat info;
    char *at;
    int good;

    if (fd < 0)
        return 0;
    good = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
           (info.st_mode & 077) == 0 &&
           (info.st_uid == geteuid() || geteuid() == 0) &&
           read(fd, key, sizeof key) == (ssize_t)sizeof key;
    close(fd);
    if (!good)
        return 0;
    memset(found, 0, sizeof *found);
    found->name.sun_family = AF_UNIX;
    found->owner = info.st_uid;
    at = found->name.sun_path + 1;
    memcpy(at, start, sizeof start - 1);
    at = put_key(at + sizeof start - 1, key);
    found->bytes = (socklen_t)(at - (char *)&found->name);
    return 1;
}

/* Returns whether the process at the other end is the user's, or root's. */
static int peer_is_of(int fd, uid_t owner)
{
    struct ucred who;
    socklen_t bytes = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
           (who.uid == owner || who.uid == 0);
}

typedef enum answer { NO_ANSWER, ANSWERED, OTHER_USER } answer;

/* Asks whether a process watches the folder, and waits until it has written
 * down all that has happened there. */
static answer ask_watchdog(const address *at)
{
    struct timeval limit = { 1, 0 };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    answer got = NO_ANSWER;
    char byte;

    if (fd < 0)
        return NO_ANSWER;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (const struct sockaddr *)&at->name, at->bytes) == 0)
        got = !peer_is_of(fd, at->owner)   ? OTHER_USER
              : recv(fd, &byte, 1, 0) == 1 ? ANSWERED
                                           : NO_ANSWER;
    close(fd);
    return got;
}

/* Binds the address; returns the listener, or -1: another process watches, or
 * none can. One that is about to end has the address a little longer. */
static int bind_address(const address *at)
{
    int64_t deadline = oari_deadline(PLACE_MS);

    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd >= 0 &&
            bind(fd, (const struct sockaddr *)&at->name, at->bytes) == 0 &&
            listen(fd, BACKLOG) == 0)
            return fd;
        if (fd >= 0)
            close(fd);
        if (ask_watchdog(at) != NO_ANSWER || oari_now_ns() >= deadline)
            return -1;
        nanosleep(&(struct timespec){ 0, PAUSE_NS }, NULL);
    }
}

/* ---- recorder files ------------------------------------------------------ */

static int open_box(int folder, int rank)
{
    char name[NAME], *at;

    memcpy(name, prefix, sizeof prefix - 1);
    at = put_number(name + sizeof prefix - 1, (uint64_t)rank);
    memcpy(at, OARI_FILE_SUFFIX, sizeof OARI_FILE_SUFFIX);
    return openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
}

static void keep_box(int folder, int rank)
{
    int fd = open_box(folder, rank);

    if (fd >= 0 && boxes[rank] != 0)
        close(boxes[rank]);
    if (fd >= 0)
        boxes[rank] = fd;
}

static int read_head(int box, oari_recorder_head *head)
{
    return pread(box, head, sizeof *head, 0) == (ssize_t)sizeof *head;
}

/* Returns whether the process is gone, or about to end. Its flags are the ninth
 * word of /proc/PID/stat, the seventh behind the name. */
static int has_ended(const oari_recorder_head *head)
{
    char path[NAME] = "/proc/", text[512], *at;
    uint64_t flags = 0;
    ssize_t got = 0;
    int fd;

    if (atomic_load(&head->exited))
        return 1;
    memcpy(put_number(path + 6, (uint64_t)atomic_load(&head->owner)), "/stat",
           6);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) >= 0) {
        got = read(fd, text, sizeof text - 1);
        close(fd);
    }
    text[got > 0 ? got : 0] = 0;
    if (got <= 0 || (at = strrchr(text, ')')) == NULL)
        return 1;
    for (int word = 0; word < 7 && at != NULL; word++)
        at = strchr(at + 1, ' ');
    for (at = at != NULL ? at + 1 : text; *at >= '0' && *at <= '9'; at++)
        flags = 10 * flags + (uint64_t)(*at - '0');
    return (flags & EXITING) != 0;
}

/* Notes that the token of a process was closed. A process that lives may close
 * it too; and a process has two tokens, which are closed one by one. */
static void note_close(int box)
{
    static int32_t noted;
    struct timespec at;
    int64_t now;
    oari_recorder_head head;

    if (!read_head(box, &head) || atomic_load(&head.fell) != 0 ||
        !has_ended(&head))
        return;
    clock_gettime(CLOCK_MONOTONIC, &at);
    now = (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
    noted++;
    if (pwrite(box, &now, sizeof now, offsetof(oari_recorder_head, fell_ns)) <
            0 ||
        pwrite(box, &noted, sizeof noted, offsetof(oari_recorder_head, fell)) <
            0)
        noted--;
}

/* ---- watching ------------------------------------------------------------ */

/* Takes the events of the folder; returns 0 if the folder is gone. */
static int take_events(int folder, int fd)
{
    static _Alignas(struct inotify_event) char room[EVENTS];
    const struct inotify_event *event;
    struct stat info;
    ssize_t got;

    while ((got = read(fd, room, sizeof room)) > 0)
        for (ssize_t at = 0; at < got;
             at += (ssize_t)(sizeof *event + event->len)) {
            int rank = -1, moved;

            event = (const void *)(room + at);
            moved = (event->mask & IN_MOVED_TO) != 0;
            if (event->mask & (IN_DELETE_SELF | IN_IGNORED))
                return 0;
            if (event->len != 0)
                rank = oari_rank_in_name(
                    event->name, moved ? OARI_FILE_SUFFIX : OARI_TOKEN_SUFFIX);
            if (rank >= 0 && moved)
                keep_box(folder, rank);
            else if (rank >= 0 && boxes[rank] != 0)
                note_close(boxes[rank]);
        }
    return fstat(folder, &info) == 0 && info.st_nlink != 0;
}

/* Watches until no rank is left, or the folder is gone. A process that asks is
 * answered when all is written that happened before. */
static void watch_folder(int folder, int fd, int listener)
{
    oari_recorder_head head;
    int left;

    do {
        struct pollfd wait[] = { { fd, POLLIN, 0 }, { listener, POLLIN, 0 } };
        int asked = -1;

        /* A process may live on after it has closed its recorder file, and is
         * not seen to end then, so whether a rank is left has to be asked. */
        left = 0;
        for (int r = 0; r < OARI_MEMBERS && !left; r++)
            left = boxes[r] != 0 && read_head(boxes[r], &head) &&
                   atomic_load(&head.owner) > 0 &&
                   kill((pid_t)atomic_load(&head.owner), 0) == 0;
        poll(wait, 2, left ? LOOK_MS : 0);
        if (wait[1].revents != 0 && (asked = accept(listener, NULL, NULL)) < 0)
            nanosleep(&(struct timespec){ 0, PAUSE_NS }, NULL); /* no fd free */
        if (!take_events(folder, fd))
            return;
        if (asked >= 0 && peer_is_of(asked, geteuid()))
            send(asked, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (asked >= 0)
            close(asked);
    } while (left);
}

/* Runs the watchdog process. ready: closed when it is. */
static _Noreturn void run_watchdog(const char *path, int ready)
{
    int folder, fd, listener;
    address at;

    if (dup2(ready, 0) != 0)
        _exit(1);
    close_range(1, ~0u, 0);
    setsid();
    prctl(PR_SET_NAME, "oarsong-watch");
    folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (folder >= 0 && !find_address(folder, &at))
        make_key(folder);
    if (folder < 0 || fd < 0 || !find_address(folder, &at) ||
        inotify_add_watch(fd, path,
                          IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE_SELF |
                              IN_ONLYDIR) < 0 ||
        (listener = bind_address(&at)) < 0)
        _exit(1);
    for (int r = 0; r < OARI_MEMBERS; r++)
        keep_box(folder, r);
    dup2(folder, 0); /* 0 stays in use: in `boxes` it means none */
    watch_folder(folder, fd, listener);
    _exit(0);
}

/* ---- starting ------------------------------------------------------------ */

static pid_t clone_self(void)
{
    return (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
}

void oari_watchdog_start(const char *folder)
{
    int ready[2];
    pid_t child;
    char byte;

    if (pipe2(ready, O_CLOEXEC) != 0)
        return;
    if ((child = clone_self()) == 0) {
        if (clone_self() == 0) /* so that no process has to wait for it */
            run_watchdog(folder, ready[1]);
        _exit(0);
    }
    close(ready[1]);
    if (child > 0)
        waitpid(child, NULL, __WALL);
    if (child > 0 && read(ready[0], &byte, 1) < 0)
        byte = 0; /* it is ready, or has ended */
    close(ready[0]);
}

void oari_watchdog_ask(int folder)
{
    address at;

    if (find_address(folder, &at))
        ask_watchdog(&at);
}

/* ---- peers of a process that aborts -------------------------------------- */

int oari_watchdog_peer_gone(const char *path, const oari_recorder_head *mine)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), found = -1;

    for (int r = 0; folder >= 0 && r < mine->world && found < 0; r++) {
        int fd = r != mine->rank ? open_box(folder, r) : -1;
        oari_recorder_head head;

        if (fd < 0)
            continue;
        if (read_head(fd, &head) && oari_host_same(&head, mine) &&
            atomic_load(&head.owner) > 0 && !atomic_load(&head.follows) &&
            has_ended(&head))
            found = r;
        close(fd);
    }
    if (folder >= 0)
        close(folder);
    return found;
}
