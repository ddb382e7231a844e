/* SPDX-License-Identifier: Apache-2.0 */
/* limits_tcp: what bench/limits measures, over bare TCP sockets of the loopback
 * device: every two processes have a connection, and each sends and receives by
 * system calls that do not block, with nothing of the library between.
 *
 *   allreduce                up to 64 KiB everything to everybody; else parts
 *                            to those that sum them, and the sums to all
 *   broadcast, reduce        to and from the root; above 64 KiB and with more
 *                            than two ranks by way of parts
 *   the others               one exchange
 *
 *   limits_tcp [--ranks N] [--sizes 8,1024,...] [--budget-ms 200]
 */
#include "limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { AT_ONCE = 64 << 10 };

struct floor_memory {
    int fd[MAX_RANKS][MAX_RANKS]; /* of the first, to the second */
    char *mine, *in;              /* private */
    float *came;                  /* what is summed */
};

/* What goes to and comes from one rank. */
typedef struct both_ways {
    char *out, *in;
    size_t out_bytes, in_bytes;
} both_ways;

/* ---- an exchange --------------------------------------------------------- */

/* Returns how many bytes moved. */
static size_t advance(int fd, both_ways *w)
{
    size_t moved = 0;
    ssize_t n;

    if (w->out_bytes != 0) {
        n = send(fd, w->out, w->out_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            w->out += n;
            w->out_bytes -= (size_t)n;
            moved += (size_t)n;
        }
    }
    if (w->in_bytes != 0) {
        n = recv(fd, w->in, w->in_bytes, MSG_DONTWAIT);
        if (n > 0) {
            w->in += n;
            w->in_bytes -= (size_t)n;
            moved += (size_t)n;
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            exit(1); /* a rank has ended */
    }
    return moved;
}

static void exchange(bare *b, both_ways *with)
{
    size_t left, moved;

    do {
        left = moved = 0;
        for (int i = 1; i < b->ranks; i++) {
            int r = (b->rank + i) % b->ranks;

            moved += advance(b->memory->fd[b->rank][r], &with[r]);
            left += with[r].out_bytes + with[r].in_bytes;
        }
        if (moved == 0 && left != 0 && b->yields)
            sched_yield();
    } while (left != 0);
}

/* The bytes of a rank's part, and where it begins. */
static size_t part_bytes(const bare *b)
{
    return b->part * sizeof(float);
}

static size_t part_at(const bare *b, int rank)
{
    return (size_t)rank * part_bytes(b);
}

/* Sums what came from all others into `to`. */
static void sum_came(bare *b, float *to, size_t count)
{
    for (int i = 0; i < b->ranks - 1; i++)
        add_to(to, b->memory->came + (size_t)i * count, count);
}

static char *came_from(const bare *b, int rank, size_t bytes)
{
    return (char *)b->memory->came + (size_t)(rank - (rank > b->rank)) * bytes;
}

/* ---- the floors ---------------------------------------------------------- */

static void scatter_sums(bare *b)
{
    both_ways with[MAX_RANKS] = { { .out = NULL } };
    struct floor_memory *m = b->memory;
    size_t bytes = part_bytes(b);

    for (int r = 0; r < b->ranks; r++)
        with[r] = (both_ways){ m->in + part_at(b, r), came_from(b, r, bytes),
                               bytes, bytes };
    exchange(b, with);
    sum_came(b, (float *)(m->in + part_at(b, b->rank)), b->part);
}

static void all_gather(bare *b)
{
    both_ways with[MAX_RANKS];
    struct floor_memory *m = b->memory;
    size_t bytes = part_bytes(b);

    for (int r = 0; r < b->ranks; r++)
        with[r] = (both_ways){ m->in + part_at(b, b->rank),
                               m->mine + part_at(b, r), bytes, bytes };
    exchange(b, with);
}

static void all_to_all(bare *b)
{
    both_ways with[MAX_RANKS];
    struct floor_memory *m = b->memory;
    size_t bytes = part_bytes(b);

    for (int r = 0; r < b->ranks; r++)
        with[r] = (both_ways){ m->in + part_at(b, r), m->mine + part_at(b, r),
                               bytes, bytes };
    exchange(b, with);
}

static void all_reduce(bare *b)
{
    both_ways with[MAX_RANKS];
    struct floor_memory *m = b->memory;

    if (b->bytes > AT_ONCE) {
        scatter_sums(b);
        all_gather(b);
        return;
    }
    for (int r = 0; r < b->ranks; r++)
        with[r] =
            (both_ways){ m->in, came_from(b, r, b->bytes), b->bytes, b->bytes };
    exchange(b, with);
    sum_came(b, (float *)m->in, b->count);
}

/* `bytes` to the root, or from it. */
static void with_root(bare *b, int root, size_t bytes, int to_root, int parts)
{
    both_ways with[MAX_RANKS] = { { .out = NULL } };
    struct floor_memory *m = b->memory;

    for (int r = 0; r < b->ranks; r++) {
        int sends = to_root ? r == root : b->rank == root;
        int takes = to_root ? b->rank == root : r == root;

        with[r].out = m->in + (parts && !to_root ? part_at(b, r) : 0);
        with[r].in = m->mine + (parts && to_root ? part_at(b, r) : 0);
        if (to_root && !parts)
            with[r].in = came_from(b, r, bytes);
        else if (!parts)
            with[r].in = m->in; /* in place */
        with[r].out_bytes = sends ? bytes : 0;
        with[r].in_bytes = takes ? bytes : 0;
    }
    exchange(b, with);
}

static int is_cut(const bare *b)
{
    return b->bytes > AT_ONCE && b->ranks > 2;
}

static void broadcast(bare *b)
{
    for (int root = 0; root < b->ranks; root++) {
        with_root(b, root, is_cut(b) ? part_bytes(b) : b->bytes, 0, is_cut(b));
        if (is_cut(b))
            all_gather(b);
    }
}

static void reduce(bare *b)
{
    for (int root = 0; root < b->ranks; root++) {
        if (is_cut(b)) {
            scatter_sums(b);
            with_root(b, root, part_bytes(b), 1, 1);
            continue;
        }
        with_root(b, root, b->bytes, 1, 0);
        if (b->rank == root)
            sum_came(b, (float *)b->memory->in, b->count);
    }
}

static void gather(bare *b)
{
    for (int root = 0; root < b->ranks; root++)
        with_root(b, root, part_bytes(b), 1, 1);
}

static void scatter(bare *b)
{
    for (int root = 0; root < b->ranks; root++)
        with_root(b, root, part_bytes(b), 0, 1);
}

static void barrier(bare *b)
{
    both_ways with[MAX_RANKS];
    struct floor_memory *m = b->memory;

    for (int r = 0; r < b->ranks; r++)
        with[r] = (both_ways){ m->in, m->mine + r, 1, 1 };
    exchange(b, with);
}

static void ping_pong(bare *b)
{
    both_ways with[MAX_RANKS] = { { .out = NULL } };
    both_ways *w = &with[!b->rank];

    if (b->rank == 0) {
        *w = (both_ways){ .out = b->memory->in, .out_bytes = b->bytes };
        exchange(b, with);
    }
    *w = (both_ways){ .in = b->memory->mine, .in_bytes = b->bytes };
    exchange(b, with);
    if (b->rank == 1) { /* what has come */
        *w = (both_ways){ .out = b->memory->mine, .out_bytes = b->bytes };
        exchange(b, with);
    }
}

static const floor_op barrier_op = { "barrier-tcp", barrier, 0, 1 };
static const floor_op floors[] = {
    { "allreduce-tcp", all_reduce, 0, 1 },
    { "reduce-tcp", reduce, 0, 0 },
    { "reduce_scatter-tcp", scatter_sums, 1, 1 },
    { "allgather-tcp", all_gather, 1, 1 },
    { "alltoall-tcp", all_to_all, 1, 1 },
    { "broadcast-tcp", broadcast, 0, 0 },
    { "gather-tcp", gather, 1, 0 },
    { "scatter-tcp", scatter, 1, 0 },
    { "p2p-tcp", ping_pong, 0, 2 }, /* the last */
};

/* ---- ranks --------------------------------------------------------------- */

static int listen_here(struct sockaddr_in *at)
{
    socklen_t length = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    *at = (struct sockaddr_in){ .sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    if (fd < 0 || bind(fd, (struct sockaddr *)at, length) != 0 ||
        listen(fd, 4) != 0 ||
        getsockname(fd, (struct sockaddr *)at, &length) != 0)
        return -1;
    return fd;
}

/* Whether all processes to come have a connection with each other. */
static int connect_all(struct floor_memory *m, int ranks)
{
    struct rlimit files;
    struct sockaddr_in at;
    int listener = listen_here(&at), one = 1;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (int r = 0; r < ranks && listener >= 0; r++)
        for (int to = r + 1; to < ranks; to++) {
            int *fd = &m->fd[r][to], *back = &m->fd[to][r];

            *fd = socket(AF_INET, SOCK_STREAM, 0);
            if (*fd < 0 ||
                connect(*fd, (struct sockaddr *)&at, sizeof at) != 0 ||
                (*back = accept(listener, NULL, NULL)) < 0)
                return 0;
            setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            setsockopt(*back, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        }
    return listener >= 0 && close(listener) == 0;
}

static oar_status run_rank(oar_group *group, void *arg)
{
    const settings *s = arg;
    struct floor_memory *m = s->memory;
    size_t ops = sizeof floors / sizeof *floors - (s->ranks != 2);
    size_t summed = s->largest > AT_ONCE && s->ranks > 2
                        ? s->largest + (size_t)s->ranks * AT_ONCE
                        : s->largest * (size_t)s->ranks;
    bare b = { .a = s->area,
               .rank = oar_group_rank(group),
               .ranks = s->ranks,
               .memory = m };

    m->in = take_private(s->largest + 4096);
    m->mine = take_private(s->largest + 4096);
    m->came = take_private(summed + 4096);
    pin(&b);
    meet(&b);
    time_one(&b, &barrier_op, s->budget_ms);
    for (int i = 0; i < s->sizes; i++)
        time_size(&b, s->size[i], floors, ops, s->budget_ms);
    free(m->in);
    free(m->mine);
    free(m->came);
    return OAR_OK;
}

int main(int argc, char **argv)
{
    static struct floor_memory memory;
    settings s;

    read_settings(&s, argc, argv);
    if (!connect_all(&memory, s.ranks)) {
        perror("limits_tcp: connecting all ranks");
        return 1;
    }
    s.memory = &memory;
    return run_ranks(&s, run_rank);
}
