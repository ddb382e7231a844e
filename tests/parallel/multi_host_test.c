/* SPDX-License-Identifier: Apache-2.0 */
/* Two hosts on one machine: network namespaces joined by a pair of virtual
 * interfaces. Ranks of one host share memory, ranks of different hosts have
 * only the network. Needs root and ip(8); else it is skipped. */
#include "support/raw_backend.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "link/shm/board.h"
#include "comm/group/group.h"
#include "support/netns.h"

enum { RANKS = 5, HERE = 3 }; /* on the first host; the others on the second */

typedef struct namespace_pair {
    char name[32];
    int two_level; /* what OARSONG_TWO_LEVEL is */
} namespace_pair;

static int raise_host(const namespace_pair *t, int h)
{
    return netns_ip("-n %s%d addr add 10.77.7.%d/24 dev oarv%d", t->name, h,
                    h + 1, h) &&
           netns_ip("-n %s%d link set oarv%d up", t->name, h, h) &&
           netns_ip("-n %s%d link set lo up", t->name, h);
}

/* The two namespaces are NAME0 and NAME1. */
static int create_hosts(namespace_pair *t)
{
    snprintf(t->name, sizeof t->name, "oar%dx", (int)getpid());
    return geteuid() == 0 && netns_ip("netns add %s0", t->name) &&
           netns_ip("netns add %s1", t->name) &&
           netns_ip("-n %s0 link add oarv0 type veth peer name oarv1 netns %s1",
                    t->name, t->name) &&
           raise_host(t, 0) && raise_host(t, 1);
}

static void destroy_hosts(namespace_pair *t)
{
    for (int h = 0; h < 2; h++)
        netns_ip("netns del %s%d", t->name, h);
}

/* Only this process, and what it starts. */
static int move_to(const namespace_pair *t, int host)
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

static int look_around(const test_job *c, raw_backend *w)
{
    const int *host = w->in_tree->hosts(w->self);
    const oari_board *b = w->in_tree->board(w->self);
    int here = w->rank < HERE;

    JOB_CHECK(c, w->rank, host != NULL && b->member != NULL);
    for (int r = 0; r < RANKS; r++)
        JOB_CHECK(c, w->rank, host[r] == (r >= HERE));
    JOB_CHECK(c, w->rank, b->ranks == (here ? HERE : RANKS - HERE));
    for (int r = 0; r < b->ranks; r++)
        JOB_CHECK(c, w->rank, b->member[r] == r + (here ? 0 : HERE));
    return 0;
}

static int see_the_hosts(test_job *c, int rank, void *arg)
{
    raw_backend w;

    RANK_CHECK(move_to(arg, rank >= HERE));
    RANK_CHECK(raw_backend_open(&w, c, rank,
                                &(raw_backend_setup){ .backend = "native" }) ==
               0);
    RANK_CHECK(look_around(c, &w) == 0);
    RANK_CHECK(raw_backend_barrier(&w) == 0);
    raw_backend_close(&w);
    return 0;
}

/* All ranks send to all ranks, below and above the limit of eager messages. */
static int exchange_messages(test_job *c, int rank, oar_group *g, size_t bytes)
{
    unsigned char *out = malloc(bytes), *in = malloc(bytes * RANKS);
    oar_work *work[2 * RANKS];

    memset(out, rank + 1, bytes);
    for (int r = 0; r < RANKS; r++) {
        RANK_CHECK(oar_recv(g,
                            oar_span_of(in + (size_t)r * bytes, bytes, OAR_U8),
                            r, 5, NULL, &work[r]) == OAR_OK);
        RANK_CHECK(oar_send(g, oar_span_of(out, bytes, OAR_U8), r, 5, NULL,
                            &work[RANKS + r]) == OAR_OK);
    }
    RANK_CHECK(oar_work_wait_all(2 * RANKS, work) == OAR_OK);
    for (int r = 0; r < RANKS; r++)
        RANK_CHECK(in[(size_t)r * bytes] == r + 1 &&
                   in[(size_t)(r + 1) * bytes - 1] == r + 1);
    for (int i = 0; i < 2 * RANKS; i++)
        oar_work_release(work[i]);
    free(in);
    free(out);
    return 0;
}

static int sum(test_job *c, int rank, oar_group *g, size_t count)
{
    float *x = malloc(count * sizeof *x);

    for (size_t i = 0; i < count; i++)
        x[i] = (float)(rank + 1);
    RANK_CHECK(oar_all_reduce(g, oar_span_of(x, count, OAR_F32), OAR_SUM, NULL,
                              NULL) == OAR_OK);
    for (size_t i = 0; i < count; i++)
        RANK_CHECK(x[i] == RANKS * (RANKS + 1) / 2);
    free(x);
    return 0;
}

static int work_together(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    o.timeout_ms = 15000;
    RANK_CHECK(move_to(arg, rank >= HERE));
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    for (int i = 0; i < 3; i++) {
        RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
        RANK_CHECK(exchange_messages(c, rank, g, 17) == 0);
        RANK_CHECK(exchange_messages(c, rank, g, 300000) == 0);
        RANK_CHECK(sum(c, rank, g, 3) == 0);
        RANK_CHECK(sum(c, rank, g, 100003) == 0);
    }
    oar_group_destroy(g);
    return 0;
}

/* ---- the order of ranks across hosts ------------------------------------- */

/* A sum in which rank r's ones count r+1 times, in the order of ranks, which is
 * not that of hosts: a flat plan, on ranks that also share a board. */
static int sum_with_factors(test_job *c, int rank, oar_group *g, size_t count)
{
    oar_call_opts o = oar_call_opts_init();
    float *x = malloc(count * sizeof *x);

    o.canonical = 1;
    for (size_t i = 0; i < count; i++)
        x[i] = 1;
    RANK_CHECK(oar_all_reduce(g, oar_span_of(x, count, OAR_F32),
                              OAR_PREMUL_SUM((double)(rank + 1)), &o,
                              NULL) == OAR_OK);
    for (size_t i = 0; i < count; i++)
        RANK_CHECK(x[i] == RANKS * (RANKS + 1) / 2);
    free(x);
    return 0;
}

static int sum_with_factors_in_order(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.backend = "native";
    o.timeout_ms = 15000;
    setenv("OARSONG_HOST_ID", rank >= HERE ? "b" : "a", 1);
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    RANK_CHECK(sum_with_factors(c, rank, g, 3) == 0);
    RANK_CHECK(sum_with_factors(c, rank, g, 100003) == 0);
    oar_group_destroy(g);
    return 0;
}

/* ---- what crosses -------------------------------------------------------- */

enum { COUNT = 300000 }; /* of f32, of the whole row */

typedef oar_status (*host_operation)(oar_group *g, float *x, float *y);

static oar_status all_reduce(oar_group *g, float *x, float *y)
{
    return oar_all_reduce_into(g, oar_span_of(x, COUNT, OAR_F32),
                               oar_span_of(y, COUNT, OAR_F32), OAR_SUM, NULL,
                               NULL);
}

static oar_status broadcast(oar_group *g, float *x, float *y)
{
    return oar_broadcast(g, oar_span_of(x, COUNT, OAR_F32), 1, NULL, NULL);
}

static oar_status all_gather(oar_group *g, float *x, float *y)
{
    return oar_all_gather(g, oar_span_of(x, COUNT / RANKS, OAR_F32),
                          oar_span_of(y, COUNT, OAR_F32), NULL, NULL);
}

static oar_status reduce_scatter(oar_group *g, float *x, float *y)
{
    return oar_reduce_scatter(g, oar_span_of(x, COUNT, OAR_F32),
                              oar_span_of(y, COUNT / RANKS, OAR_F32), OAR_SUM,
                              NULL, NULL);
}

static const struct {
    const char *name;
    host_operation fn;
    double most; /* that a two-level plan sends, both ways: times the row */
    int less;    /* than a flat one */
} deals[] = {
    { "all_reduce", all_reduce, 2, 1 },
    { "broadcast", broadcast, 1, 0 },
    { "all_gather", all_gather, 1, 1 },
    { "reduce_scatter", reduce_scatter, 1, 1 },
};
enum { DEALS = sizeof deals / sizeof *deals };

typedef struct bytes_between_hosts {
    namespace_pair pair;
    uint64_t crossed[DEALS]; /* bytes, both ways */
} bytes_between_hosts;

/* Bytes that have left the interface of the host this process is on. */
static uint64_t sent_from(int host)
{
    char line[512], name[32];
    FILE *f = fopen("/proc/thread-self/net/dev", "r");
    unsigned long long bytes = 0;

    snprintf(name, sizeof name, "oarv%d:", host);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, name);
        if (at != NULL)
            sscanf(at + strlen(name), "%*u %*u %*u %*u %*u %*u %*u %*u %llu",
                   &bytes);
    }
    if (f != NULL)
        fclose(f);
    return bytes;
}

/* Ranks 0 and HERE add up what leaves their hosts. */
static int count_one(test_job *c, int rank, oar_group *g,
                     bytes_between_hosts *t, int d, float *const x[2])
{
    int host = rank >= HERE, counts = rank == 0 || rank == HERE;
    uint64_t sent[2] = { 0, 0 };

    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (counts)
        sent[host] = sent_from(host);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    RANK_CHECK(deals[d].fn(g, x[0], x[1]) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (counts)
        sent[host] = sent_from(host) - sent[host];
    RANK_CHECK(oar_all_reduce(g, oar_span_of(sent, 2, OAR_U64), OAR_SUM, NULL,
                              NULL) == OAR_OK);
    if (rank == 0)
        t->crossed[d] = sent[0] + sent[1];
    return 0;
}

static int count_all(test_job *c, int rank, void *arg)
{
    bytes_between_hosts *t = arg;
    oar_group_opts o = oar_group_opts_init();
    float *x[2] = { calloc(COUNT, 4), calloc(COUNT, 4) };
    oar_group *g;

    o.backend = "native";
    o.timeout_ms = 15000;
    setenv("OARSONG_TWO_LEVEL", t->pair.two_level ? "1" : "0", 1);
    RANK_CHECK(move_to(&t->pair, rank >= HERE));
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    for (int d = 0; d < DEALS; d++)
        RANK_CHECK(count_one(c, rank, g, t, d, x) == 0);
    oar_group_destroy(g);
    free(x[0]);
    free(x[1]);
    return 0;
}

/* ---- the tests ----------------------------------------------------------- */

static void found(namespace_pair *t)
{
    if (create_hosts(t))
        return;
    destroy_hosts(t);
    print_message("skipped: two hosts need root and ip(8)\n");
    skip();
}

static void run_everywhere(test_job_fn fn, void *arg, const char *what)
{
    test_job c;

    test_job_start(&c, RANKS, fn, arg, "%s", what);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void run_on_hosts(test_job_fn fn, const char *what)
{
    namespace_pair t;

    found(&t);
    run_everywhere(fn, &t, what);
    destroy_hosts(&t);
}

static void ranks_see_which_of_them_share_a_host(void **state)
{
    run_on_hosts(see_the_hosts, "hosts");
}

static void messages_and_sums_work_across_hosts(void **state)
{
    run_on_hosts(work_together, "work across hosts");
}

static void factors_are_those_of_the_groups_ranks(void **state)
{
    run_everywhere(sum_with_factors_in_order, NULL,
                   "the order of ranks across hosts");
}

/* A tenth for heads and acknowledgements. */
static void two_levels_send_less_between_hosts_than_flat_plans(void **state)
{
    bytes_between_hosts *both = shared_page(2 * sizeof *both);

    for (int two_level = 0; two_level < 2; two_level++) {
        bytes_between_hosts *t = &both[two_level];
        found(&t->pair);
        t->pair.two_level = two_level;
        run_everywhere(count_all, t, two_level ? "two levels" : "flat");
        destroy_hosts(&t->pair);
    }
    for (int d = 0; d < DEALS; d++) {
        double row = COUNT * 4.0;
        double flat = (double)both[0].crossed[d] / row;
        double levels = (double)both[1].crossed[d] / row;
        print_message("%-14s flat %.2f, two levels %.2f times the row\n",
                      deals[d].name, flat, levels);
        assert_true(levels >= deals[d].most && levels < 1.1 * deals[d].most);
        assert_true(deals[d].less ? flat > 1.2 * levels : flat > 0.9 * levels);
    }
    shared_page_free(both, 2 * sizeof *both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_see_which_of_them_share_a_host),
        cmocka_unit_test(messages_and_sums_work_across_hosts),
        cmocka_unit_test(factors_are_those_of_the_groups_ranks),
        cmocka_unit_test(two_levels_send_less_between_hosts_than_flat_plans),
    };

    /* Without a secret they would refuse each other. */
    setenv("OARSONG_SECRET",
           "5a112233445566778899aabbccddeeff"
           "00112233445566778899aabbccddeeff",
           1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
