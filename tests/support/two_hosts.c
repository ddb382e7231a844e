/* SPDX-License-Identifier: Apache-2.0 */
#include "support/two_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/netns.h"

static int enter(const char *name, int host)
{
    char path[96];
    int fd, moved;

    snprintf(path, sizeof path, "/var/run/netns/%s%d", name, host);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    moved = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    close(fd);
    return moved;
}

int two_hosts_enter(const two_hosts *t, int host)
{
    return enter(t->name, host);
}

int two_hosts_set_link(const two_hosts *t, int host, int up)
{
    return netns_ip("-n %s%d link set oarv %s", t->name, host,
                    up ? "up" : "down");
}

int two_hosts_drop_route(const two_hosts *t, int host)
{
    return netns_ip("-n %s%d route flush table main", t->name, host) &&
           netns_ip("-n %s%d route add blackhole 10.77.8.0/24", t->name, host);
}

/* ---- the relay ----------------------------------------------------------- */

enum { PACKET = 65536, ROOM = 512, MILLION = 1000000 };

typedef struct packet {
    int64_t due_ns;
    size_t bytes;
    unsigned char data[PACKET];
} packet;

/* Packets first .. first + count - 1, modulo ROOM, in the order of `due_ns`. */
typedef struct relay_direction {
    int from, to;
    size_t first, count;
    packet *queue;
} relay_direction;

static int open_end(const char *name, int host)
{
    struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    int fd;

    if (!enter(name, host))
        return -1;
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memcpy(request.ifr_name, "oarv", sizeof "oarv");
    return fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0 ? fd : -1;
}

static int is_lost(packet_relay *w, int host)
{
    int lost =
        (atomic_load(&w->swallows) >> host & 1) != 0 ||
        next_random(&w->seed) % MILLION < (uint64_t)atomic_load(&w->lost_ppm);

    atomic_fetch_add(lost ? &w->lost : &w->passed, 1);
    return lost;
}

static void take_in(packet_relay *w, relay_direction *ways, int host)
{
    relay_direction *from = &ways[host];

    while (from->count < ROOM) {
        packet *p = &from->queue[(from->first + from->count) % ROOM];
        ssize_t got = read(from->from, p->data, PACKET);
        if (got <= 0)
            return;
        if (is_lost(w, host))
            continue;
        p->bytes = (size_t)got;
        p->due_ns = oari_now_ns() + (int64_t)atomic_load(&w->delay_us) * 1000;
        from->count++;
    }
}

static void hand_out(relay_direction *w)
{
    while (w->count > 0 && w->queue[w->first].due_ns <= oari_now_ns()) {
        packet *p = &w->queue[w->first];
        if (write(w->to, p->data, p->bytes) < 0)
            p->bytes = 0; /* the end is down: lost */
        w->first = (w->first + 1) % ROOM;
        w->count--;
    }
}

/* Until a packet comes for which there is room, or one is due. */
static void rest(const relay_direction ways[2])
{
    struct pollfd fd[2];
    int64_t left = 100000000, due;
    struct timespec t;

    for (int i = 0; i < 2; i++) {
        fd[i] = (struct pollfd){ ways[i].from,
                                 ways[i].count < ROOM ? POLLIN : 0, 0 };
        if (ways[i].count == 0)
            continue;
        due = ways[i].queue[ways[i].first].due_ns - oari_now_ns();
        left = due < left ? due : left;
    }
    left = left > 0 ? left : 0;
    t = (struct timespec){ 0, left };
    ppoll(fd, 2, &t, NULL);
}

static _Noreturn void be_relay(const two_hosts *t, pid_t parent)
{
    static relay_direction ways[2];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    for (int i = 0; i < 2; i++) {
        ways[i].from = ways[1 - i].to = open_end(t->name, i);
        ways[i].queue = malloc(ROOM * sizeof(packet));
        if (ways[i].from < 0 || ways[i].queue == NULL)
            _exit(1);
    }
    shared_flag_raise(&t->wire->ready);
    for (;; rest(ways))
        for (int i = 0; i < 2; i++) {
            take_in(t->wire, ways, i);
            hand_out(&ways[i]);
        }
}

static int start_relay(two_hosts *t)
{
    pid_t self = getpid(), pid;

    t->wire = shared_page(sizeof *t->wire);
    t->wire->seed = 1;
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        be_relay(t, self);
    t->relay = pid; /* the hosts may be on a page that the relay shares */
    return pid > 0 && shared_flag_await(&t->wire->ready, 1, 3000);
}

void two_hosts_stop_relay(two_hosts *t)
{
    if (t->relay <= 0)
        return;
    kill(t->relay, SIGKILL);
    waitpid(t->relay, NULL, 0);
    t->relay = 0;
}

/* ---- the hosts ----------------------------------------------------------- */

static int raise_host(const two_hosts *t, int host)
{
    return netns_ip("-n %s%d addr add 10.77.8.%d/24 dev oarv", t->name, host,
                    host + 1) &&
           two_hosts_set_link(t, host, 1) &&
           netns_ip("-n %s%d link set lo up", t->name, host);
}

static int run_wire(two_hosts *t, int with_relay)
{
    return with_relay
               ? start_relay(t)
               : netns_ip(
                     "-n %s0 link add oarv type veth peer name oarv netns %s1",
                     t->name, t->name);
}

static const char *try_to_build(two_hosts *t, int with_relay)
{
    if (geteuid() != 0)
        return "two hosts need root";
    if (!netns_ip("netns add %s0", t->name) ||
        !netns_ip("netns add %s1", t->name))
        return "there are no network namespaces here, or no ip(8)";
    if (!run_wire(t, with_relay))
        return with_relay ? "there is no /dev/net/tun here"
                          : "there are no virtual interfaces here";
    if (!raise_host(t, 0) || !raise_host(t, 1))
        return "the interfaces do not work";
    return NULL;
}

const char *two_hosts_create(two_hosts *t, int with_relay)
{
    const char *why;

    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "oarl%dx", (int)getpid());
    why = try_to_build(t, with_relay);
    if (why != NULL)
        two_hosts_destroy(t);
    return why;
}

void two_hosts_destroy(two_hosts *t)
{
    two_hosts_stop_relay(t);
    for (int h = 0; h < 2; h++)
        netns_ip("netns del %s%d", t->name, h);
    if (t->wire != NULL)
        shared_page_free(t->wire, sizeof *t->wire);
    t->wire = NULL;
}
