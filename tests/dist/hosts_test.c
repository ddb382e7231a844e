/* SPDX-License-Identifier: Apache-2.0 */
/* Two hosts on one machine: network namespaces joined by a pair of virtual
 * interfaces. Ranks of one see each other's memory, those of different ones
 * only the wire. Needs root and ip(8); else it is skipped. */
#include "support/wire.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "comm/board.h"
#include "comm/group.h"

enum { RANKS = 5, HERE = 3 }; /* on the first host; the others on the second */

typedef struct town {
    char name[32];
} town;

/* A command of ip(8); 1 when it worked. */
static int ip(const char *format, ...) OAR_PRINTF(1, 2);
static int ip(const char *format, ...)
{
    char line[256] = "ip ";
    size_t used = 3;
    va_list args;

    va_start(args, format);
    used += (size_t)vsnprintf(line + used, sizeof line - used, format, args);
    va_end(args);
    snprintf(line + used, sizeof line - used, " >/dev/null 2>&1");
    return system(line) == 0;
}

static int raise_host(const town *t, int h)
{
    return ip("-n %s%d addr add 10.77.7.%d/24 dev oarv%d", t->name, h, h + 1,
              h) &&
           ip("-n %s%d link set oarv%d up", t->name, h, h) &&
           ip("-n %s%d link set lo up", t->name, h);
}

/* The two namespaces are NAME0 and NAME1. */
static int build_town(town *t)
{
    snprintf(t->name, sizeof t->name, "oar%dx", (int)getpid());
    return geteuid() == 0 && ip("netns add %s0", t->name) &&
           ip("netns add %s1", t->name) &&
           ip("-n %s0 link add oarv0 type veth peer name oarv1 netns %s1",
              t->name, t->name) &&
           raise_host(t, 0) && raise_host(t, 1);
}

static void raze_town(town *t)
{
    for (int h = 0; h < 2; h++)
        ip("netns del %s%d", t->name, h);
}

/* Only this process, and what it starts. */
static int move_to(const town *t, int host)
{
    char path[96];
    int fd, moved;

    snprintf(path, sizeof path, "/var/run/netns/%s%d", t->name, host);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    moved = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    close(fd);
    return moved;
}

/* ---- what runs there ----------------------------------------------------- */

static int look_around(const crew *c, wire *w)
{
    const int *host = w->ops->hosts(w->self);
    const oari_board *b = w->ops->board(w->self);
    int here = w->rank < HERE;

    CREW_CHECK(c, w->rank, host != NULL && b->member != NULL);
    for (int r = 0; r < RANKS; r++)
        CREW_CHECK(c, w->rank, host[r] == (r >= HERE));
    CREW_CHECK(c, w->rank, b->ranks == (here ? HERE : RANKS - HERE));
    for (int r = 0; r < b->ranks; r++)
        CREW_CHECK(c, w->rank, b->member[r] == r + (here ? 0 : HERE));
    return 0;
}

static int see_the_hosts(crew *c, int rank, void *arg)
{
    wire w;

    CREW_CHECK(c, rank, move_to(arg, rank >= HERE));
    CREW_CHECK(c, rank,
               wire_open(&w, c, rank, &(wire_setup){ "native", 0, 0 }) == 0);
    CREW_CHECK(c, rank, look_around(c, &w) == 0);
    CREW_CHECK(c, rank, wire_meet(&w) == 0);
    wire_close(&w);
    return 0;
}

/* Everybody to everybody, below and above the limit of eager messages. */
static int talk(crew *c, int rank, oar_group *g, size_t bytes)
{
    unsigned char *out = malloc(bytes), *in = malloc(bytes * RANKS);
    oar_work *work[2 * RANKS];

    memset(out, rank + 1, bytes);
    for (int r = 0; r < RANKS; r++) {
        CREW_CHECK(c, rank,
                   oar_recv(g,
                            oar_span_of(in + (size_t)r * bytes, bytes, OAR_U8),
                            r, 5, NULL, &work[r]) == OAR_OK);
        CREW_CHECK(c, rank,
                   oar_send(g, oar_span_of(out, bytes, OAR_U8), r, 5, NULL,
                            &work[RANKS + r]) == OAR_OK);
    }
    CREW_CHECK(c, rank, oar_work_wait_all(2 * RANKS, work) == OAR_OK);
    for (int r = 0; r < RANKS; r++)
        CREW_CHECK(c, rank,
                   in[(size_t)r * bytes] == r + 1 &&
                       in[(size_t)(r + 1) * bytes - 1] == r + 1);
    for (int i = 0; i < 2 * RANKS; i++)
        oar_work_release(work[i]);
    free(in);
    free(out);
    return 0;
}

static int sum(crew *c, int rank, oar_group *g, size_t count)
{
    float *x = malloc(count * sizeof *x);

    for (size_t i = 0; i < count; i++)
        x[i] = (float)(rank + 1);
    CREW_CHECK(c, rank,
               oar_all_reduce(g, oar_span_of(x, count, OAR_F32), OAR_SUM, NULL,
                              NULL) == OAR_OK);
    for (size_t i = 0; i < count; i++)
        CREW_CHECK(c, rank, x[i] == RANKS * (RANKS + 1) / 2);
    free(x);
    return 0;
}

static int work_together(crew *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    o.timeout_ms = 15000;
    CREW_CHECK(c, rank, move_to(arg, rank >= HERE));
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    for (int i = 0; i < 3; i++) {
        CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
        CREW_CHECK(c, rank, talk(c, rank, g, 17) == 0);
        CREW_CHECK(c, rank, talk(c, rank, g, 300000) == 0);
        CREW_CHECK(c, rank, sum(c, rank, g, 3) == 0);
        CREW_CHECK(c, rank, sum(c, rank, g, 100003) == 0);
    }
    oar_group_destroy(g);
    return 0;
}

static void play(crew_fn fn, const char *what)
{
    town t;
    crew c;

    if (!build_town(&t)) {
        raze_town(&t);
        skip();
    }
    crew_start(&c, RANKS, fn, &t, "%s", what);
    for (int r = 0; r < RANKS; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    raze_town(&t);
}

static void ranks_see_which_of_them_share_a_host(void **state)
{
    play(see_the_hosts, "hosts");
}

static void messages_and_sums_work_across_hosts(void **state)
{
    play(work_together, "work across hosts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_see_which_of_them_share_a_host),
        cmocka_unit_test(messages_and_sums_work_across_hosts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
