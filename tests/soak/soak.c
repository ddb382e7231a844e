/* SPDX-License-Identifier: Apache-2.0 */
/* soak: mixed operations on several groups from a seed, values checked, memory
 * and descriptors flat at the end. `make soak` runs a million on each backend;
 * docs/testing.md says more.
 *
 *   soak [--ranks 8] [--ops 1000000] [--seed 1] [--backend shm] [--hosts 1]
 *        [--tight] [--timeout-ms 120000] [--quiet] [--most BYTES]
 *        [--spoil N]
 *
 * --most bounds the buffers; --hosts H deals the ranks to H pretended hosts;
 * --tight sets the thresholds so low that small operations cross all of them;
 * --spoil makes one output wrong, at operation N or soon after, which must be
 * found. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "soak.h"

static int usage(const char *what)
{
    fprintf(stderr,
            "soak: %s\nsoak [--ranks N] [--ops N] [--seed S] [--backend "
            "shm|tcp|native|sim] [--hosts H] [--tight] [--timeout-ms T] "
            "[--quiet] [--most BYTES] [--spoil N]\n",
            what);
    return 2;
}

static int read_number(const char *text, uint64_t most, uint64_t *number)
{
    char *end;

    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && *end == 0 &&
           *number <= most;
}

static int read_option(soak_settings *s, const char *name, const char *value)
{
    uint64_t n = 0;

    if (strcmp(name, "--backend") == 0) {
        s->backend = value;
        return 1;
    }
    if (!read_number(value, UINT64_MAX, &n))
        return 0;
    if (strcmp(name, "--ranks") == 0 && n >= 1 && n <= SOAK_RANKS)
        s->ranks = (int)n;
    else if (strcmp(name, "--hosts") == 0 && n >= 1 && n <= SOAK_RANKS)
        s->hosts = (int)n;
    else if (strcmp(name, "--ops") == 0 && n >= SOAK_PARTS)
        s->ops = n;
    else if (strcmp(name, "--seed") == 0)
        s->seed = n;
    else if (strcmp(name, "--most") == 0 && n >= 1 && n <= SOAK_MOST)
        s->most = (size_t)n;
    else if (strcmp(name, "--spoil") == 0)
        s->spoil = n;
    else if (strcmp(name, "--timeout-ms") == 0 && n <= INT32_MAX)
        s->timeout_ms = (int64_t)n;
    else
        return 0;
    return 1;
}

static int read_options(soak_settings *s, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--tight") == 0)
            s->tight = 1;
        else if (strcmp(argv[i], "--quiet") == 0)
            s->quiet = 1;
        else if (i + 1 == argc || !read_option(s, argv[i], argv[i + 1]))
            return 0;
        else
            i++;
    return 1;
}

static oar_status run(soak_settings *s)
{
    oar_group_opts group = oar_group_opts_init();
    oar_launch_opts launch = oar_launch_opts_init();
    int host[SOAK_RANKS];

    group.backend = s->backend;
    group.timeout_ms = s->timeout_ms;
    if (s->tight) {
        group.small_bytes = 64;
        group.stage_bytes = 512;
        group.eager_bytes = 256;
        group.chunk_bytes = 128;
    }
    for (int r = 0; r < s->ranks; r++)
        host[r] = r % s->hosts;
    if (s->hosts > 1)
        launch.hosts = host;
    if (strcmp(s->backend, "sim") == 0)
        return oar_sim_run_with(s->ranks, &group, soak_rank, s);
    return oar_launch_fn(s->ranks, soak_rank, s, &group, &launch, NULL);
}

/* ---- the summary --------------------------------------------------------- */

/* The rank whose memory grew most. */
static int worst(const soak_settings *s)
{
    const soak_page *l = s->ledger;
    int found = 0;

    for (int r = 1; r < s->ranks && strcmp(s->backend, "sim") != 0; r++)
        if (l->end[r].rss - l->warm[r].rss >
            l->end[found].rss - l->warm[found].rss)
            found = r;
    return found;
}

static void print_kinds(const soak_settings *s)
{
    printf("soak: groups made: %llu; operations made by kind:",
           (unsigned long long)atomic_load(&s->ledger->groups));
    for (int i = 0; i < KINDS; i++)
        printf(" %s %llu", kind_name((soak_kind)i),
               (unsigned long long)atomic_load(&s->ledger->by_kind[i]));
    printf("\n");
}

static void print_summary(const soak_settings *s, double seconds)
{
    int r = worst(s);
    const soak_resources *a = &s->ledger->warm[r], *b = &s->ledger->end[r];

    if (!s->quiet)
        print_kinds(s);
    printf("soak: %s, %d ranks, %d hosts, seed %llu: %llu operations in %.1f "
           "s, %.0f ops/s; after warm-up -> at the end, rank %d: rss %.1f -> "
           "%.1f MiB (may grow %d), descriptors %lld -> %lld (0), mappings "
           "%lld -> %lld (%d), allocations %lld -> %lld (%d)\n",
           s->backend, s->ranks, s->hosts, (unsigned long long)s->seed,
           (unsigned long long)s->ops, seconds, (double)s->ops / seconds, r,
           (double)a->rss / 1048576, (double)b->rss / 1048576,
           SOAK_MORE_RSS >> 20, (long long)a->descriptors,
           (long long)b->descriptors, (long long)a->mappings,
           (long long)b->mappings, SOAK_MORE_MAPPINGS,
           (long long)a->allocations, (long long)b->allocations,
           SOAK_MORE_ALLOCATIONS);
}

int main(int argc, char **argv)
{
    soak_settings s = { .backend = "shm",
                        .ranks = 8,
                        .hosts = 1,
                        .ops = 1000000,
                        .most = SOAK_MOST,
                        .seed = 1,
                        .timeout_ms = 120000 };
    struct timespec from, to;
    oar_status status;

    if (!read_options(&s, argc, argv))
        return usage("bad arguments");
    s.ledger = mmap(NULL, sizeof *s.ledger, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s.ledger == MAP_FAILED)
        return usage("no memory");
    clock_gettime(CLOCK_MONOTONIC, &from);
    status = run(&s);
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (status != OAR_OK) {
        fprintf(stderr, "soak: FAILED: %s, %d ranks, seed %llu: %s\n",
                s.backend, s.ranks, (unsigned long long)s.seed,
                oar_last_error_text());
        return 1;
    }
    print_summary(&s, (double)(to.tv_sec - from.tv_sec) +
                          (double)(to.tv_nsec - from.tv_nsec) * 1e-9);
    return 0;
}
