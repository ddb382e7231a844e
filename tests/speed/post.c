/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what it costs to post an operation and wait for it, compared with
 * the call that does both: two ranks, an all_reduce of 8 and of 512 bytes
 * called, prepared and asynchronous, and a sendrecv.
 *
 *     speed/post [BACKEND [OPERATIONS]]     (native, 20000)
 *
 * Prints for each the 50th and 90th percentile in us, and how often threads of
 * the rank went to sleep for each operation: each time is a wake-up by another.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <oarsong/launch.h>
#include <oarsong/p2p.h>

#include "base/clock.h"

enum { WARM_UP = 200, MOST_BYTES = 512 };

typedef struct post_bench {
    oar_group *group;
    oar_span out, in;
    oar_work *prepared;
    int count;
} post_bench;

typedef oar_status post_fn(post_bench *b);

static oar_status call(post_bench *b)
{
    return oar_all_reduce(b->group, b->out, OAR_SUM, NULL, NULL);
}

static oar_status call_prepared(post_bench *b)
{
    oar_status status = oar_work_start(b->prepared);

    return status == OAR_OK ? oar_work_wait(b->prepared) : status;
}

static oar_status call_async(post_bench *b)
{
    oar_work *work = NULL;
    oar_status status = oar_all_reduce(b->group, b->out, OAR_SUM, NULL, &work);

    if (status == OAR_OK)
        status = oar_work_wait(work);
    oar_work_release(work);
    return status;
}

static oar_status exchange(post_bench *b)
{
    int peer = 1 - oar_group_rank(b->group);

    return oar_sendrecv(b->group, b->out, peer, 1, b->in, peer, 1, NULL, NULL);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static long sleeps(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw;
}

static oar_status measure(post_bench *b, const char *name, post_fn *go)
{
    int64_t *took = malloc((size_t)b->count * sizeof *took), before;
    oar_status status = OAR_OK;
    long slept;

    for (int i = 0; i < WARM_UP && status == OAR_OK; i++)
        status = go(b);
    slept = sleeps();
    for (int i = 0; i < b->count && status == OAR_OK; i++) {
        before = oari_now_ns();
        status = go(b);
        took[i] = oari_now_ns() - before;
    }
    slept = sleeps() - slept;
    qsort(took, (size_t)b->count, sizeof *took, by_size);
    if (oar_group_rank(b->group) == 0 && status == OAR_OK)
        printf("%-10s %4zu B  p50 %6.2f  p90 %6.2f us  sleeps %.3f\n", name,
               b->out.count * oar_dtype_size(b->out.dtype),
               (double)took[b->count / 2] * 1e-3,
               (double)took[b->count / 10 * 9] * 1e-3,
               (double)slept / b->count);
    fflush(stdout);
    free(took);
    return status;
}

static oar_status measure_size(post_bench *b, size_t bytes)
{
    static float out[MOST_BYTES / sizeof(float)],
        in[MOST_BYTES / sizeof(float)];
    oar_call_opts later = oar_call_opts_init();
    oar_status status;

    later.prepare = 1;
    b->out = oar_span_of(out, bytes / sizeof(float), OAR_F32);
    b->in = oar_span_of(in, bytes / sizeof(float), OAR_F32);
    if ((status = measure(b, "called", call)) == OAR_OK &&
        (status = oar_all_reduce(b->group, b->out, OAR_SUM, &later,
                                 &b->prepared)) == OAR_OK &&
        (status = measure(b, "prepared", call_prepared)) == OAR_OK &&
        (status = measure(b, "async", call_async)) == OAR_OK)
        status = measure(b, "sendrecv", exchange);
    oar_work_release(b->prepared);
    b->prepared = NULL;
    return status;
}

/* Each rank on a core of its own, if there are enough. */
static void bind_to_core(int rank)
{
    cpu_set_t all, one;
    int nth = 0;

    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2)
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && nth++ == rank)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static oar_status rank(oar_group *group, void *arg)
{
    post_bench b = { .group = group, .count = *(int *)arg };
    oar_status status;

    bind_to_core(oar_group_rank(group));
    status = measure_size(&b, 8);
    return status == OAR_OK ? measure_size(&b, MOST_BYTES) : status;
}

int main(int argc, char **argv)
{
    oar_group_opts opts = oar_group_opts_init();
    int count = argc > 2 ? atoi(argv[2]) : 20000;

    opts.backend = argc > 1 ? argv[1] : "native";
    if (count < 10 ||
        oar_launch_fn(2, rank, &count, &opts, NULL, NULL) != OAR_OK) {
        fprintf(stderr, "post: %s\n", oar_last_error_text());
        return 1;
    }
    return 0;
}
