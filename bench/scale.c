/* SPDX-License-Identifier: Apache-2.0 */
/* scale: what many ranks and many groups cost.
 *
 *   scale ranks [MOST]                ranks as threads (sim): 2, 4 ... 1024
 *   scale groups [MOST [BACKEND]]     groups of two processes at once (native,
 *                                     shm, tcp): 1, 10 ... 1000
 *
 * One line of csv for each number, measured in a process of its own:
 *   create_ms    until the last rank is in its function, or all groups are made
 *   each_us      the same for one rank, or for one group
 *   cpu_us       processor time of that, in this process
 *   destroy_ms   until all is gone
 *   kib          by which the memory of the process grew, for one rank or group
 *   used_kib     the same after the first all_reduce on each
 *   threads, fds of the process, more than before
 *   first_us     the first all_reduce of 8 bytes: of all ranks; in a group
 *   p50_us       an all_reduce of 8 bytes; in the last group that was made
 *   alone_us     the same in the world, before there was any other group
 */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "pss.h"

enum { MOST_TIMES = 5000, BUDGET_US = 300000, LEAST_TIMES = 5, RANKS = 2 };

typedef struct usage {
    double us, cpu_us;
    long kib, threads, fds;
} usage;

typedef struct scale_run {
    int count; /* ranks, or groups */
    const char *backend;
    pthread_barrier_t all; /* of ranks as threads */
    usage before, made, used;
    double entered_us, left_us, first_us, p50_us;
} scale_run;

static double clock_us(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double now_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}

/* ---- what a process has -------------------------------------------------- */

static long entries(const char *folder)
{
    DIR *dir = opendir(folder);
    long count = 0;

    if (dir == NULL)
        return -1;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static usage use_now(void)
{
    return (usage){ .us = now_us(),
                    .cpu_us = clock_us(CLOCK_PROCESS_CPUTIME_ID),
                    .kib = pss_kib(),
                    .threads = entries("/proc/self/task"),
                    .fds = entries("/proc/self/fd") };
}

/* ---- an all_reduce of 8 bytes -------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static oar_status reduce(oar_group *group)
{
    float two[2] = { 1, 1 };

    return oar_all_reduce(group, oar_span_of(two, 2, OAR_F32), OAR_SUM, NULL,
                          NULL);
}

/* All ranks do as many, as many as fit into the time of the slowest first one.
 */
static oar_status time_reduces(oar_group *group, double *first, double *p50)
{
    static _Thread_local double took[MOST_TIMES];
    double start = now_us(), most;
    int64_t times;
    oar_status status = reduce(group);

    *first = now_us() - start;
    most = BUDGET_US / (*first > 1 ? *first : 1);
    times = most > MOST_TIMES ? MOST_TIMES : (int64_t)most + LEAST_TIMES;
    if (status == OAR_OK)
        status = oar_all_reduce(group, oar_span_of(&times, 1, OAR_I64), OAR_MIN,
                                NULL, NULL);
    for (int64_t i = 0; i < times && status == OAR_OK; i++) {
        start = now_us();
        status = reduce(group);
        took[i] = now_us() - start;
    }
    qsort(took, (size_t)times, sizeof *took, by_size);
    *p50 = took[times / 2];
    return status;
}

/* ---- ranks as threads ---------------------------------------------------- */

/* The last rank to come measures: then all have been made. */
static oar_status simulated_rank(oar_group *group, void *arg)
{
    scale_run *run = arg;
    double first, p50;
    oar_status status;
    int last = pthread_barrier_wait(&run->all) != 0;

    if (last) {
        run->entered_us = now_us();
        run->made = use_now();
    }
    pthread_barrier_wait(&run->all);
    status = time_reduces(group, &first, &p50);
    if (status != OAR_OK)
        return status;
    if (oar_group_rank(group) == 0) {
        run->first_us = first;
        run->p50_us = p50;
    }
    pthread_barrier_wait(&run->all);
    if (last) {
        run->used = use_now();
        run->left_us = now_us();
    }
    return OAR_OK;
}

static oar_status simulate(scale_run *run)
{
    int n = run->count;
    double end;
    oar_status status;

    pthread_barrier_init(&run->all, NULL, (unsigned)n);
    run->before = use_now();
    status = oar_sim_run(n, simulated_rank, run);
    end = now_us();
    if (status != OAR_OK)
        return status;
    printf("ranks,%d,%.2f,%.1f,%.1f,%.2f,%.1f,%.1f,%ld,%ld,%.1f,%.2f,\n", n,
           (run->entered_us - run->before.us) / 1000,
           (run->entered_us - run->before.us) / n,
           (run->made.cpu_us - run->before.cpu_us) / n,
           (end - run->left_us) / 1000,
           (double)(run->made.kib - run->before.kib) / n,
           (double)(run->used.kib - run->before.kib) / n,
           run->made.threads - run->before.threads,
           run->made.fds - run->before.fds, run->first_us, run->p50_us);
    return OAR_OK;
}

/* ---- groups at once ------------------------------------------------------ */

static oar_status make_groups(oar_group *world, int count, oar_group **group)
{
    oar_status status = OAR_OK;

    for (int i = 0; i < count && status == OAR_OK; i++)
        status = oar_group_dup(world, &group[i]);
    return status;
}

static oar_status use_groups(int count, oar_group **group)
{
    oar_status status = OAR_OK;

    for (int i = 0; i < count && status == OAR_OK; i++)
        status = reduce(group[i]);
    return status;
}

static void print_groups(const scale_run *run, double alone_us)
{
    int n = run->count;

    printf(
        "groups-%s,%d,%.2f,%.1f,%.1f,%.2f,%.1f,%.1f,%ld,%ld,%.1f,%.2f,%.2f\n",
        run->backend, n, (run->made.us - run->before.us) / 1000,
        (run->made.us - run->before.us) / n,
        (run->made.cpu_us - run->before.cpu_us) / n,
        (now_us() - run->left_us) / 1000,
        (double)(run->made.kib - run->before.kib) / n,
        (double)(run->used.kib - run->before.kib) / n,
        run->made.threads - run->before.threads,
        run->made.fds - run->before.fds, run->first_us, run->p50_us, alone_us);
    fflush(stdout);
}

static oar_status grouped_rank(oar_group *world, void *arg)
{
    scale_run run = *(scale_run *)arg;
    oar_group **group = calloc((size_t)run.count, sizeof *group);
    double first, alone, start;
    oar_status status;

    if (group == NULL)
        return OAR_E_NOMEM;
    if ((status = time_reduces(world, &first, &alone)) == OAR_OK) {
        run.before = use_now();
        status = make_groups(world, run.count, group);
        run.made = use_now();
    }
    if (status == OAR_OK &&
        (status = oar_barrier(world, NULL, NULL)) == OAR_OK) {
        start = now_us();
        status = use_groups(run.count, group);
        run.first_us = (now_us() - start) / run.count;
        run.used = use_now();
    }
    if (status == OAR_OK)
        status = time_reduces(group[run.count - 1], &first, &run.p50_us);
    run.left_us = now_us();
    for (int i = 0; i < run.count; i++)
        oar_group_destroy(group[i]);
    if (status == OAR_OK && oar_group_rank(world) == 0)
        print_groups(&run, alone);
    free(group);
    return status;
}

static oar_status group_up(scale_run *run)
{
    return oar_launch_fn(RANKS, grouped_rank, run,
                         OAR_OPTS(oar_group_opts, .backend = run->backend),
                         NULL, NULL);
}

/* ---- all numbers --------------------------------------------------------- */

/* In a process of its own: no point inherits another's memory. */
static int run_apart(oar_status (*fn)(scale_run *), scale_run run)
{
    pid_t child = fork();
    int how = 1;

    if (child == 0) {
        oar_status status = fn(&run);

        if (status != OAR_OK)
            fprintf(stderr, "scale: %d: %s\n", run.count,
                    oar_last_error_text());
        fflush(stdout);
        _exit(status != OAR_OK);
    }
    return child > 0 && waitpid(child, &how, 0) == child && how == 0;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 && strcmp(argv[1], "ranks") == 0, good = 1;
    int most = argc > 2 ? atoi(argv[2]) : ranks ? 1024 : 1000;
    scale_run run = { .backend = argc > 3 ? argv[3] : "native" };

    if (argc < 2 || (!ranks && strcmp(argv[1], "groups") != 0) || most < 1) {
        fprintf(stderr, "scale ranks [MOST] | groups [MOST [BACKEND]]\n");
        return 2;
    }
    printf("what,count,create_ms,each_us,cpu_us,destroy_ms,kib,used_kib,"
           "threads,fds,"
           "first_us,p50_us,alone_us\n");
    fflush(stdout);
    for (run.count = ranks ? 2 : 1; run.count <= most;
         run.count *= ranks ? 2 : 10)
        good &= run_apart(ranks ? simulate : group_up, run);
    return !good;
}
