/* SPDX-License-Identifier: Apache-2.0 */
/* trace: what tracing costs, and traces of any length. bench/trace-costs runs
 * it with and without OARSONG_TRACE.
 *
 *   trace cost [N]      ns for an interval, a number, a step, and an all_reduce
 *                       of 8 bytes on a group of one rank, as CSV
 *   trace fill EVENTS   writes that many events: an all_reduce, 18 intervals
 *                       and a number for each step
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { BATCHES = 21, INTERVALS = 18, EVENTS_A_STEP = INTERVALS + 3 };

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static oar_group *group;
static double numbers[1];

static void one_interval(int i)
{
    oar_trace_end(oar_trace_begin("interval"));
}

static void one_number(int i)
{
    oar_metric("number", i);
}

static void one_step(int i)
{
    oar_step(i);
}

static void one_operation(int i)
{
    oar_all_reduce(group, oar_span_of(numbers, 1, OAR_F64), OAR_SUM, NULL,
                   NULL);
}

/* Prints the median over batches of what one call costs. */
static void measure(const char *name, void (*fn)(int i), int calls)
{
    double ns[BATCHES];

    for (int b = 0; b < BATCHES; b++) {
        double begin = now_ns();

        for (int i = 0; i < calls; i++)
            fn(i);
        ns[b] = (now_ns() - begin) / calls;
    }
    qsort(ns, BATCHES, sizeof *ns, by_value);
    printf("%s,%.2f\n", name, ns[BATCHES / 2]);
}

static void fill(int64_t events)
{
    int64_t steps = events / EVENTS_A_STEP + 1;

    for (int64_t s = 0; s < steps; s++) {
        one_operation(0);
        for (int i = 0; i < INTERVALS; i++)
            oar_trace_end(oar_trace_begin(i % 2 == 0 ? "forward" : "backward"));
        oar_metric("loss", 1.0 / (double)(s + 1));
        oar_step(s);
    }
}

static oar_status make_group(void)
{
    oar_store *store = NULL;

    if (getenv("OARSONG_RANK") != NULL)
        return oar_group_from_env(NULL, &group);
    if (oar_store_create_memory(&store) != OAR_OK)
        return oar_last_error()->status;
    return oar_group_create(store, 0, 1, NULL, &group);
}

int main(int argc, char **argv)
{
    if (argc < 2 || (strcmp(argv[1], "cost") != 0 &&
                     (strcmp(argv[1], "fill") != 0 || argc != 3))) {
        fprintf(stderr, "trace cost [N] | trace fill EVENTS\n");
        return 2;
    }
    if (make_group() != OAR_OK) {
        fprintf(stderr, "trace: %s\n", oar_last_error_text());
        return 1;
    }
    if (argv[1][0] == 'f')
        fill(atoll(argv[2]));
    else {
        int calls = argc > 2 ? atoi(argv[2]) : 2000;

        measure("interval", one_interval, calls);
        measure("number", one_number, calls);
        measure("all_reduce", one_operation, calls);
        measure("step", one_step, calls / 100 + 1);
    }
    oar_group_destroy(group);
    return 0;
}
