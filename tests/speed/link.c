/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what a link carries between two ranks, and what the machine does
 * without the library: one way, 8 B ping-pong and a stream of 64 MiB messages.
 *
 *     speed/link [BACKEND [shared|private|huge]]     (tcp, private)
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/launch.h>
#include <oarsong/p2p.h>
#include <oarsong/shared.h>

#include "base/clock.h"

enum { ROUNDS = 20000, STREAM = 64 << 20, STREAMS = 24, CHUNK = 512 << 10 };

static void report(const char *what, double us, size_t bytes)
{
    if (bytes <= 8)
        printf("%-24s %8.2f us\n", what, us);
    else
        printf("%-24s %8.2f GB/s\n", what, (double)bytes / us / 1e3);
    fflush(stdout);
}

/* ---- ours ---------------------------------------------------------------- */

static oar_status bounce(oar_group *g, oar_span s, int times)
{
    int me = oar_group_rank(g);

    for (int i = 0; i < times; i++) {
        if (me == 0)
            oar_send(g, s, 1, 1, NULL, NULL);
        oar_status status = oar_recv(g, s, 1 - me, 1, NULL, NULL);
        if (status != OAR_OK)
            return status;
        if (me == 1)
            oar_send(g, s, 0, 1, NULL, NULL);
    }
    return OAR_OK;
}

static oar_status stream(oar_group *g, oar_span s, int times)
{
    char ack = 0;

    for (int i = 0; i < times; i++) {
        oar_status status = oar_group_rank(g) == 0
                                ? oar_send(g, s, 1, 2, NULL, NULL)
                                : oar_recv(g, s, 0, 2, NULL, NULL);
        if (status != OAR_OK)
            return status;
    }
    return oar_group_rank(g) == 0
               ? oar_recv(g, oar_span_of(&ack, 1, OAR_U8), 1, 3, NULL, NULL)
               : oar_send(g, oar_span_of(&ack, 1, OAR_U8), 0, 3, NULL, NULL);
}

typedef struct link_memory {
    int shared, huge;
} link_memory;

static oar_status measure(oar_group *g, void *arg)
{
    const link_memory *kind = arg;
    void *data;
    oar_span s;
    int64_t since;

    if (kind->shared)
        oar_shared_alloc(STREAM, &data);
    else
        data = aligned_alloc(2 << 20, STREAM);
    if (kind->huge)
        madvise(data, STREAM, MADV_HUGEPAGE);
    memset(data, oar_group_rank(g) + 1, STREAM);
    s = oar_span_of(data, 8, OAR_U8);
    bounce(g, s, 100);
    since = oari_now_ns();
    bounce(g, s, ROUNDS);
    if (oar_group_rank(g) == 0)
        report("  8 B, one way", (double)(oari_now_ns() - since) / 2e3 / ROUNDS,
               8);
    s.count = STREAM;
    stream(g, s, 2);
    since = oari_now_ns();
    stream(g, s, STREAMS);
    if (oar_group_rank(g) == 0)
        report("  stream of 64 MiB",
               (double)(oari_now_ns() - since) / 1e3 / STREAMS, STREAM);
    return OAR_OK;
}

/* ---- the machine --------------------------------------------------------- */

static int connect_pair(int fd[2])
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t bytes = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, bytes) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&a, &bytes) != 0 ||
        connect(fd[0], (struct sockaddr *)&a, bytes) != 0)
        return 0;
    fd[1] = accept(listener, NULL, NULL);
    close(listener);
    for (int i = 0; i < 2; i++)
        setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd[1] >= 0;
}

static void read_all(int fd, char *data, size_t bytes)
{
    while (bytes != 0) {
        ssize_t got =
            recv(fd, data, bytes < CHUNK ? bytes : CHUNK, MSG_DONTWAIT);
        if (got > 0) {
            data += got;
            bytes -= (size_t)got;
        }
    }
}

static void write_all(int fd, const char *data, size_t bytes)
{
    while (bytes != 0) {
        ssize_t put = send(fd, data, bytes < CHUNK ? bytes : CHUNK, 0);
        if (put > 0) {
            data += put;
            bytes -= (size_t)put;
        }
    }
}

static void bare_tcp(int fd, int first, char *data)
{
    int64_t since = oari_now_ns();
    char byte[8];

    for (int i = 0; i < ROUNDS; i++) {
        if (first)
            write_all(fd, byte, 8);
        read_all(fd, byte, 8);
        if (!first)
            write_all(fd, byte, 8);
    }
    if (first)
        report("  bare TCP, 8 B, polled",
               (double)(oari_now_ns() - since) / 2e3 / ROUNDS, 8);
    since = oari_now_ns();
    for (int i = 0; i < STREAMS; i++)
        if (first)
            write_all(fd, data, STREAM);
        else
            read_all(fd, data, STREAM);
    if (first)
        read_all(fd, byte, 1);
    else
        write_all(fd, byte, 1);
    if (first)
        report("  bare TCP, stream",
               (double)(oari_now_ns() - since) / 1e3 / STREAMS, STREAM);
}

static void measure_machine(int tcp)
{
    char *from = malloc(STREAM), *to = malloc(STREAM);
    int64_t since;
    int fd[2];

    memset(from, 1, STREAM);
    memset(to, 2, STREAM);
    since = oari_now_ns();
    for (int i = 0; i < STREAMS; i++) {
        memcpy(to, from, STREAM);
        __asm__ volatile("" ::"r"(to) : "memory");
    }
    report("  memcpy of 64 MiB",
           (double)(oari_now_ns() - since) / 1e3 / STREAMS, STREAM);
    if (tcp && connect_pair(fd)) {
        pid_t pid = fork();
        bare_tcp(fd[pid == 0], pid != 0, from);
        if (pid == 0)
            _exit(0);
        waitpid(pid, NULL, 0);
        close(fd[0]);
        close(fd[1]);
    }
    free(from);
    free(to);
}

int main(int argc, char **argv)
{
    oar_group_opts o = oar_group_opts_init();
    const char *what = argc > 2 ? argv[2] : "private";
    link_memory kind = { strcmp(what, "shared") == 0,
                         strcmp(what, "huge") == 0 };

    o.backend = argc > 1 ? argv[1] : "tcp";
    measure_machine(strcmp(o.backend, "tcp") == 0);
    printf("%s, %s memory\n", o.backend, what);
    if (oar_launch_fn(2, measure, &kind, &o, NULL, NULL) == OAR_OK)
        return 0;
    fprintf(stderr, "%s\n", oar_last_error_text());
    return 1;
}
