/* SPDX-License-Identifier: Apache-2.0 */
/* delay: a wire between two network namespaces on which every packet takes its
 * time, for kernels without netem.
 *
 *   delay NAMESPACE0 NAMESPACE1 MICROSECONDS
 *
 * Makes a tun interface "oarv" in each, and passes the packets of one on to the
 * other that much later, in order, until it is killed; the interfaces go with
 * it. It needs root. Prints "ready" when both are there: addresses are up to
 * the caller. What does not fit the queue is lost, as on any wire. */
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PACKET = 65536, ROOM = 1024 }; /* packets under way, each way */

typedef struct packet {
    int64_t due_ns;
    size_t bytes;
    unsigned char data[PACKET];
} packet;

/* Packets first .. first + count - 1, modulo ROOM, in the order of `due_ns`. */
typedef struct way {
    int from, to;
    size_t first, count;
    packet *queue;
} way;

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int open_end(const char *name)
{
    struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    char path[256];
    int space, fd;

    snprintf(path, sizeof path, "/var/run/netns/%s", name);
    space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0)
        return perror(path), -1;
    close(space);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memcpy(request.ifr_name, "oarv", sizeof "oarv");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0)
        return perror("/dev/net/tun"), -1;
    return fd;
}

static void take_in(way *w, int64_t delay_ns)
{
    while (w->count < ROOM) {
        packet *p = &w->queue[(w->first + w->count) % ROOM];
        ssize_t got = read(w->from, p->data, PACKET);
        if (got <= 0)
            return;
        p->bytes = (size_t)got;
        p->due_ns = now_ns() + delay_ns;
        w->count++;
    }
}

static void hand_out(way *w)
{
    while (w->count > 0 && w->queue[w->first].due_ns <= now_ns()) {
        packet *p = &w->queue[w->first];
        if (write(w->to, p->data, p->bytes) < 0)
            p->bytes = 0; /* lost */
        w->first = (w->first + 1) % ROOM;
        w->count--;
    }
}

/* Until a packet comes for which there is room, or one is due. */
static void rest(const way both[2])
{
    struct pollfd fd[2];
    int64_t until = INT64_MAX, left;
    struct timespec t;

    for (int i = 0; i < 2; i++) {
        fd[i] = (struct pollfd){ both[i].from,
                                 both[i].count < ROOM ? POLLIN : 0, 0 };
        if (both[i].count > 0 && both[i].queue[both[i].first].due_ns < until)
            until = both[i].queue[both[i].first].due_ns;
    }
    left = until != INT64_MAX ? until - now_ns() : 0;
    left = left > 0 ? left : 0;
    t = (struct timespec){ left / 1000000000, left % 1000000000 };
    ppoll(fd, 2, until != INT64_MAX ? &t : NULL, NULL);
}

int main(int argc, char **argv)
{
    int64_t delay_ns = argc == 4 ? atol(argv[3]) * 1000 : 0;
    way both[2] = { { .from = -1 }, { .from = -1 } };

    if (argc != 4) {
        fprintf(stderr, "delay NAMESPACE0 NAMESPACE1 MICROSECONDS\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        both[i].from = both[1 - i].to = open_end(argv[1 + i]);
        both[i].queue = malloc(ROOM * sizeof(packet));
        if (both[i].from < 0 || both[i].queue == NULL)
            return 1;
    }
    prctl(PR_SET_TIMERSLACK, 1); /* ns */
    puts("ready");
    fflush(stdout);
    for (;; rest(both))
        for (int i = 0; i < 2; i++) {
            take_in(&both[i], delay_ns);
            hand_out(&both[i]);
        }
}
