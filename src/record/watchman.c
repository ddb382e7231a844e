/* SPDX-License-Identifier: Apache-2.0 */
/* watchman: which rank of a job ended first, where its launcher does not say.
 *
 * mpirun ends all ranks when one has died, before any of them could write down
 * who that was. But when a process ends, its files are closed before its parent
 * hears of it, and inotify tells of that in order, however late one looks. So
 * every rank has a file open that nobody else opens, its token, and a small
 * process watches the folder of the boxes, and writes into each its number in
 * that order (oari_head.fell). A token has no name any more, but is told of by
 * the one it had. There is one for a folder and a host, in a session of its
 * own; it holds nothing of the rank that started it, and ends with the last
 * rank.
 *
 * It is made by clone, without the handlers of fork, which take locks that the
 * caller has; a child of a process with threads may do little more than make
 * system calls, and it does not.
 */
#include "record/watchman.h"

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
#include "record/box.h"
#include "record/box_host.h"

enum {
    EXITING = 4, /* of the flags there */
    BACKLOG = 16,
    PLACE_MS = 1000, /* to find out who watches */
    PAUSE_NS = 5000000,
    LOOK_MS = 100,
    NAME = 48,
    EVENTS = 4096,
    KEY_BYTES = 16
};

static const char before[] = "rank-", key_name[] = ".watchman";

static int boxes[OARI_MEMBERS]; /* by rank: a descriptor; 0: none */

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

/* Of a box, or of a token; -1: it is something else. */
static int rank_of(const char *name, const char *suffix)
{
    int rank = 0, digits = 0;

    if (strncmp(name, before, sizeof before - 1) != 0)
        return -1;
    for (name += sizeof before - 1; *name >= '0' && *name <= '9'; name++)
        if (++digits < 5)
            rank = 10 * rank + *name - '0';
    return digits > 0 && digits < 5 && rank < OARI_MEMBERS &&
                   strcmp(name, suffix) == 0
               ? rank
               : -1;
}

/* ---- where it is asked ----------------------------------------------------
 *
 * Names of sockets without a file are the host's, and go with their process.
 * Anybody may take one: so it is made of random bytes, the key, which lie in
 * the folder where only its user can read them; and both ends ask the system
 * whose the other is.
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

/* The first to make it makes it for all: a key is linked into place whole. */
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
        oari_log(OAR_LOG_DEBUG, "the watchman's key: %s", strerror(errno));
    unlinkat(folder, aside, 0);
}

/* 0: there is no key, or others may have had their hands on it. */
static int find_address(int folder, address *found)
{
    static const char prefix[] = "oarsong-watchman-";
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
    memcpy(at, prefix, sizeof prefix - 1);
    at = put_key(at + sizeof prefix - 1, key);
    found->bytes = (socklen_t)(at - (char *)&found->name);
    return 1;
}

/* Whether the process at the other end is the user's, or root's. */
static int is_of(int fd, uid_t owner)
{
    struct ucred who;
    socklen_t bytes = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
           (who.uid == owner || who.uid == 0);
}

/* The first to take the name is the one who watches: where it is asked; -1:
 * this is not the first. */
static int take_name(const address *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 &&
        bind(fd, (const struct sockaddr *)&at->name, at->bytes) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

typedef enum answer { NONE, ANSWERED, STRANGER } answer;

/* Whether somebody watches the folder, and has written down all that has
 * happened there. */
static answer ask(const address *at)
{
    struct timeval limit = { 1, 0 };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    answer got = NONE;
    char byte;

    if (fd < 0)
        return NONE;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (const struct sockaddr *)&at->name, at->bytes) == 0)
        got = !is_of(fd, at->owner)        ? STRANGER
              : recv(fd, &byte, 1, 0) == 1 ? ANSWERED
                                           : NONE;
    close(fd);
    return got;
}

/* Where it is asked; -1: another watches, or nobody can. One that is on its way
 * out has the name a little longer. */
static int take_place(const address *at)
{
    int64_t deadline = oari_deadline(PLACE_MS);
    int door;

    while ((door = take_name(at)) < 0) {
        if (ask(at) != NONE || oari_now_ns() >= deadline)
            return -1;
        nanosleep(&(struct timespec){ 0, PAUSE_NS }, NULL);
    }
    return door;
}

/* ---- boxes --------------------------------------------------------------- */

static int open_box(int folder, int rank)
{
    char name[NAME], *at;

    memcpy(name, before, sizeof before - 1);
    at = put_number(name + sizeof before - 1, (uint64_t)rank);
    memcpy(at, OARI_BOX_SUFFIX, sizeof OARI_BOX_SUFFIX);
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

static int read_head(int box, oari_head *head)
{
    return pread(box, head, sizeof *head, 0) == (ssize_t)sizeof *head;
}

/* The ninth word of /proc/PID/stat, the seventh behind the name. */
static int is_ending(int64_t pid)
{
    char path[NAME] = "/proc/", text[512], *at;
    uint64_t flags = 0;
    ssize_t got = 0;
    int fd;

    memcpy(put_number(path + 6, (uint64_t)pid), "/stat", 6);
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

/* Whether its process is gone, or on its way. */
static int has_ended(oari_head *head)
{
    return atomic_load(&head->exited) || is_ending(atomic_load(&head->owner));
}

static int owner_lives(int box)
{
    oari_head head;

    return read_head(box, &head) && atomic_load(&head.owner) > 0 &&
           kill((pid_t)atomic_load(&head.owner), 0) == 0;
}

/* A process that lives may let it go. It has two, which go one by one. */
static void note_close(int box)
{
    static int32_t told;
    struct timespec at;
    int64_t now;
    oari_head head;

    if (!read_head(box, &head) || atomic_load(&head.fell) != 0 ||
        !has_ended(&head))
        return;
    clock_gettime(CLOCK_MONOTONIC, &at);
    now = (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
    told++;
    if (pwrite(box, &now, sizeof now, offsetof(oari_head, fell_ns)) < 0 ||
        pwrite(box, &told, sizeof told, offsetof(oari_head, fell)) < 0)
        told--;
}

/* How long to sleep; 0: nobody is left. A process may live on without its box,
 * and does not tell of its end then. */
static int patience(void)
{
    for (int r = 0; r < OARI_MEMBERS; r++)
        if (boxes[r] != 0 && owner_lives(boxes[r]))
            return LOOK_MS;
    return 0;
}

/* ---- watching ------------------------------------------------------------ */

/* 0: the folder is gone. */
static int take_event(int folder, const struct inotify_event *event)
{
    int moved = (event->mask & IN_MOVED_TO) != 0;
    int rank =
        event->len == 0
            ? -1
            : rank_of(event->name, moved ? OARI_BOX_SUFFIX : OARI_TOKEN_SUFFIX);

    if (event->mask & (IN_DELETE_SELF | IN_IGNORED))
        return 0;
    if (rank >= 0 && moved)
        keep_box(folder, rank);
    else if (rank >= 0 && boxes[rank] != 0)
        note_close(boxes[rank]);
    return 1;
}

static int take_events(int folder, int fd)
{
    static _Alignas(struct inotify_event) char room[EVENTS];
    ssize_t got;

    while ((got = read(fd, room, sizeof room)) > 0)
        for (ssize_t at = 0; at < got;) {
            const struct inotify_event *event = (const void *)(room + at);

            if (!take_event(folder, event))
                return 0;
            at += (ssize_t)(sizeof *event + event->len);
        }
    return 1;
}

static int is_removed(int folder)
{
    struct stat info;

    return fstat(folder, &info) != 0 || info.st_nlink == 0;
}

/* One that cannot be let in waits: there is no descriptor for it. */
static int let_in(int door)
{
    int asked = accept(door, NULL, NULL);

    if (asked < 0)
        nanosleep(&(struct timespec){ 0, PAUSE_NS }, NULL);
    return asked;
}

/* Whoever asks is answered when all is written that has happened before. */
static void watch(int folder, int fd, int door)
{
    int sleep_ms;

    do {
        struct pollfd wait[] = { { fd, POLLIN, 0 }, { door, POLLIN, 0 } };
        int asked;

        sleep_ms = patience();
        poll(wait, 2, sleep_ms);
        asked = wait[1].revents != 0 ? let_in(door) : -1;
        if (!take_events(folder, fd) || is_removed(folder))
            return;
        if (asked >= 0 && is_of(asked, geteuid()))
            send(asked, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (asked >= 0)
            close(asked);
    } while (sleep_ms != 0);
}

/* ready: closed when it is. */
static _Noreturn void be_watchman(const char *path, int ready)
{
    int folder, fd, door;
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
        (door = take_place(&at)) < 0)
        _exit(1);
    for (int r = 0; r < OARI_MEMBERS; r++)
        keep_box(folder, r);
    dup2(folder, 0); /* which stays taken: it stands for no box */
    watch(folder, fd, door);
    _exit(0);
}

/* ---- starting ------------------------------------------------------------ */

static pid_t clone_self(void)
{
    return (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
}

/* A child of a child, so that nobody has to wait for it. */
static _Noreturn void start_it(const char *path, const int ready[2])
{
    if (clone_self() == 0)
        be_watchman(path, ready[1]);
    _exit(0);
}

void oari_watchman_start(const char *folder)
{
    int ready[2];
    pid_t child;
    char byte;

    if (pipe2(ready, O_CLOEXEC) != 0)
        return;
    if ((child = clone_self()) == 0)
        start_it(folder, ready);
    close(ready[1]);
    if (child > 0)
        waitpid(child, NULL, __WALL);
    if (child > 0 && read(ready[0], &byte, 1) < 0)
        byte = 0; /* it is ready, or has ended */
    close(ready[0]);
}

void oari_watchman_ask(int folder)
{
    address at;

    if (find_address(folder, &at))
        ask(&at);
}

/* ---- whoever aborts ------------------------------------------------------ */

static int is_peer_gone(int folder, int rank, const oari_head *mine)
{
    oari_head head;
    int fd = open_box(folder, rank), gone;

    if (fd < 0)
        return 0;
    gone = read_head(fd, &head) && oari_host_same(&head, mine) &&
           atomic_load(&head.owner) > 0 && !atomic_load(&head.follows) &&
           has_ended(&head);
    close(fd);
    return gone;
}

int oari_watchman_gone(const char *path, const oari_head *mine)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), found = -1;

    for (int r = 0; folder >= 0 && r < mine->world && found < 0; r++)
        if (r != mine->rank && is_peer_gone(folder, r, mine))
            found = r;
    if (folder >= 0)
        close(folder);
    return found;
}
