/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong bench rpc: calls from rank 0 to a function of rank 1 that gives back
 * what it gets, on two ranks that it starts itself.
 *
 * Times are medians of round trips. "From sleep": both ranks have been idle for
 * two milliseconds before each call. Idle: how often the process of rank 1 has
 * woken up while nobody called it, a second. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <oarsong/oarsong.h>

#include "tool.h"

enum { OUTSTANDING = 64, MOST_CALLS = 1000000, LARGE = 64 << 20 };

typedef struct rpc_plan {
    const char *backend;
    size_t calls, large_bytes, idle_ms;
} rpc_plan;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void sleep_ms(size_t ms)
{
    struct timespec nap = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };

    nanosleep(&nap, NULL);
}

/* ---- what is called ------------------------------------------------------ */

static oar_status echo_number(void *arg, oar_rpc_call *call)
{
    int64_t n;
    oar_status status = oar_rpc_get_i64(oar_rpc_args(call), &n);

    (void)arg;
    return status == OAR_OK ? oar_rpc_put_i64(oar_rpc_reply(call), n) : status;
}

static oar_status echo_tensor(void *arg, oar_rpc_call *call)
{
    oar_tensor *tensor;
    oar_status status = oar_rpc_get_tensor(oar_rpc_args(call), &tensor);

    (void)arg;
    if (status != OAR_OK)
        return status;
    status = oar_rpc_put_tensor(oar_rpc_reply(call), tensor);
    oar_tensor_release(tensor);
    return status;
}

/* Wake-ups of this process in a second in which it does nothing. */
static oar_status count_wakes(void *arg, oar_rpc_call *call)
{
    const rpc_plan *p = arg;
    struct rusage before, after;

    getrusage(RUSAGE_SELF, &before);
    sleep_ms(p->idle_ms);
    getrusage(RUSAGE_SELF, &after);
    return oar_rpc_put_f64(oar_rpc_reply(call),
                           (double)(after.ru_nvcsw - before.ru_nvcsw - 1) *
                               1e3 / (double)p->idle_ms);
}

/* ---- rank 0 -------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static oar_status make_args(const oar_tensor *tensor, oar_rpc_message **args)
{
    oar_status status = oar_rpc_message_create(args);

    if (status != OAR_OK)
        return status;
    return tensor != NULL
               ? oar_rpc_put_tensor(*args, (oar_tensor *)(uintptr_t)tensor)
               : oar_rpc_put_i64(*args, 1);
}

/* The median round trip in microseconds, after one that does not count. */
static oar_status time_calls(oar_rpc *rpc, const char *name, size_t calls,
                             const oar_tensor *tensor, size_t pause_ms,
                             double *median)
{
    double *us = calloc(calls + 1, sizeof *us);
    oar_status status = us != NULL ? OAR_OK : OAR_E_NOMEM;

    for (size_t i = 0; i <= calls && status == OAR_OK; i++) {
        oar_rpc_message *args = NULL;
        double began;

        status = make_args(tensor, &args);
        if (pause_ms > 0)
            sleep_ms(pause_ms);
        began = now_us();
        if (status == OAR_OK)
            status = oar_rpc_sync(rpc, 1, name, args, NULL, NULL);
        us[i] = now_us() - began;
    }
    if (status == OAR_OK) {
        qsort(us + 1, calls, sizeof *us, by_time);
        *median = us[1 + calls / 2];
    }
    free(us);
    return status;
}

/* Calls a second, with OUTSTANDING of them under way. */
static oar_status time_many(oar_rpc *rpc, size_t calls, double *a_second)
{
    oar_future *future[OUTSTANDING] = { NULL };
    double began = now_us();
    oar_status status = OAR_OK;

    for (size_t i = 0; i < calls + OUTSTANDING && status == OAR_OK; i++) {
        oar_future **f = &future[i % OUTSTANDING];
        oar_rpc_message *args;

        if (*f != NULL)
            status = oar_future_wait(*f, NULL);
        oar_future_release(*f);
        *f = NULL;
        if (status == OAR_OK && i < calls)
            status = make_args(NULL, &args);
        if (status == OAR_OK && i < calls)
            status = oar_rpc_async(rpc, 1, "echo_number", args, NULL, f);
    }
    for (int i = 0; i < OUTSTANDING; i++)
        oar_future_release(future[i]);
    *a_second = (double)calls * 1e6 / (now_us() - began);
    return status;
}

static oar_status measure(oar_rpc *rpc, const rpc_plan *p)
{
    oar_tensor *large =
        oar_zeros(NULL, OAR_U8, OAR_SHAPE((int64_t)p->large_bytes));
    double spinning, sleeping, pool, many, us, wakes;
    oar_rpc_message *reply;
    oar_status status = large != NULL ? OAR_OK : oar_last_error()->status;

    if (status == OAR_OK)
        status = time_calls(rpc, "echo_number", p->calls, NULL, 0, &spinning);
    if (status == OAR_OK)
        status = time_calls(rpc, "echo_pool", p->calls, NULL, 0, &pool);
    if (status == OAR_OK)
        status = time_calls(rpc, "echo_number", p->calls / 20 + 1, NULL, 2,
                            &sleeping);
    if (status == OAR_OK)
        status = time_many(rpc, p->calls, &many);
    if (status == OAR_OK)
        status = time_calls(rpc, "echo_tensor", 5, large, 0, &us);
    oar_tensor_release(large);
    if (status == OAR_OK)
        status = oar_rpc_sync(rpc, 1, "count_wakes", NULL, NULL, &reply);
    if (status != OAR_OK)
        return status;
    status = oar_rpc_get_f64(reply, &wakes);
    oar_rpc_message_destroy(reply);
    printf("%-34s %12.2f us\n", "8 B there and back, inline", spinning);
    printf("%-34s %12.2f us\n", "8 B, by a thread of the pool", pool);
    printf("%-34s %12.2f us\n", "8 B, inline, from sleep", sleeping);
    printf("%-34s %12.0f calls/s\n", "8 B, 64 outstanding", many);
    printf("%-34s %12.2f GB/s each way\n", "a large array",
           (double)p->large_bytes * 1e-3 / us);
    printf("%-34s %12.1f wake-ups/s\n", "idle", wakes);
    return status;
}

static oar_status run_rank(oar_group *group, void *arg)
{
    static const oar_rpc_function functions[] = {
        { .name = "echo_number", .fn = echo_number, .manner = OAR_RPC_INLINE },
        { .name = "echo_pool", .fn = echo_number },
        { .name = "echo_tensor", .fn = echo_tensor },
        { .name = "count_wakes", .fn = count_wakes },
    };
    oar_rpc *rpc = NULL;
    oar_status status = oar_rpc_create(group, NULL, &rpc), ended;

    for (size_t i = 0; i < 4 && status == OAR_OK; i++) {
        oar_rpc_function f = functions[i];

        f.size = sizeof f;
        f.arg = arg;
        status = oar_rpc_register(rpc, &f);
    }
    if (status == OAR_OK)
        status = oar_barrier(group, NULL, NULL);
    if (status == OAR_OK && oar_group_rank(group) == 0)
        status = measure(rpc, arg);
    ended = rpc != NULL ? oar_rpc_shutdown(rpc, 0) : status;
    if (status == OAR_OK)
        status = ended;
    if (status != OAR_OK)
        fprintf(stderr, "oarsong bench rpc: rank %d: %s\n",
                oar_group_rank(group), oar_last_error_text());
    oar_rpc_destroy(rpc);
    return status;
}

static int show_usage(void)
{
    printf("oarsong bench rpc [options]\n\n"
           "Times calls between two ranks of this host.\n\n"
           "  --backend NAME   native (default), shm, tcp\n"
           "  --calls N        of 8 bytes, for each row (default 20000)\n"
           "  --bytes N        of the large array (default 64M)\n"
           "  --idle-ms N      how long rank 1 is idle (default 3000)\n");
    return 0;
}

int bench_rpc(int argc, char **argv)
{
    rpc_plan p = { .calls = 20000, .large_bytes = LARGE, .idle_ms = 3000 };
    oar_group_opts opts = oar_group_opts_init();

    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return show_usage();
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int good = 0;

        if (strcmp(argv[i], "--backend") == 0)
            good = (p.backend = value)[0] != '\0';
        else if (strcmp(argv[i], "--calls") == 0)
            good = tool_number(value, 1, MOST_CALLS, &p.calls);
        else if (strcmp(argv[i], "--bytes") == 0)
            good = tool_number(value, 1, (size_t)1 << 30, &p.large_bytes);
        else if (strcmp(argv[i], "--idle-ms") == 0)
            good = tool_number(value, 1, 100000, &p.idle_ms);
        if (!good) {
            fprintf(stderr, "oarsong bench rpc: %s %s\n", argv[i], value);
            return TOOL_USAGE;
        }
    }
    opts.backend = p.backend;
    return oar_launch_fn(2, run_rank, &p, &opts, NULL, NULL) == OAR_OK ? 0 : 1;
}
