/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong bench rpc: calls from rank 0 to functions of rank 1, and messages
 * between the two for comparison, on two ranks that it starts itself.
 *
 * Times are medians of round trips. "From sleep": both ranks have been idle for
 * three milliseconds before each call. "Wake-up": a thread that sleeps is woken
 * by the system after such a pause, without the library. "Mapped": an array in
 * a window, of which the function reads the first and the last byte. Idle: how
 * often the process of rank 1 has woken up while nobody called it, a second. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <oarsong/oarsong.h>

#include "bench_wake.h"
#include "tool.h"

enum {
    MOST_OUTSTANDING = 512,
    MOST_CALLS = 1000000,
    LARGE = 64 << 20,
    SMALLER = 1 << 20,
    PAUSE_MS = 3,
    TAG = 7
};

typedef struct rpc_plan {
    const char *backend, *only;
    size_t calls, large_bytes, idle_ms;
    oar_tensor *large; /* what rank 1 replies with */
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

/* Replies with the first so many bytes of an array that lies ready. */
static oar_status give_array(void *arg, oar_rpc_call *call)
{
    const rpc_plan *p = arg;
    oar_span span;
    int64_t bytes;
    oar_status status = oar_rpc_get_i64(oar_rpc_args(call), &bytes);

    if (status == OAR_OK)
        status = oar_tensor_span(p->large, &span);
    if (status != OAR_OK)
        return status;
    span.count = (size_t)bytes;
    return oar_rpc_put_span(oar_rpc_reply(call), span, NULL, NULL);
}

static oar_status take_array(void *arg, oar_rpc_call *call)
{
    oar_span span;

    (void)arg;
    return oar_rpc_get_span(oar_rpc_args(call), &span);
}

/* Reads the first and the last byte of an array that is mapped here. */
static oar_status look_at_array(void *arg, oar_rpc_call *call)
{
    oar_span span;
    oar_status status = oar_rpc_get_span(oar_rpc_args(call), &span);
    const unsigned char *byte = span.data;

    (void)arg;
    if (status != OAR_OK)
        return status;
    return oar_rpc_put_i64(oar_rpc_reply(call), byte[0] + byte[span.count - 1]);
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

/* ---- timing -------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One round trip. */
typedef oar_status (*trip_fn)(void *arg);

/* The median in microseconds, after one that does not count. */
static oar_status time_trips(trip_fn trip, void *arg, size_t count,
                             size_t pause_ms, double *median)
{
    double *us = calloc(count + 1, sizeof *us);
    oar_status status = us != NULL ? OAR_OK : OAR_E_NOMEM;

    for (size_t i = 0; i <= count && status == OAR_OK; i++) {
        double began;

        if (pause_ms > 0)
            sleep_ms(pause_ms);
        began = now_us();
        status = trip(arg);
        us[i] = now_us() - began;
    }
    if (status == OAR_OK) {
        qsort(us + 1, count, sizeof *us, by_time);
        *median = us[1 + count / 2];
    }
    free(us);
    return status;
}

typedef struct calling {
    oar_rpc *rpc;
    const char *name;
    int64_t number;
    oar_span array;     /* of no bytes: the number is the argument */
    oar_window *window; /* in which it lies; NULL: it is sent */
} calling;

static oar_status make_args(const calling *c, oar_rpc_message **args)
{
    oar_status status = oar_rpc_message_create(args);

    if (status == OAR_OK && c->window != NULL)
        status = oar_rpc_message_map(*args, c->window);
    if (status != OAR_OK)
        return status;
    return c->array.count > 0 ? oar_rpc_put_span(*args, c->array, NULL, NULL)
                              : oar_rpc_put_i64(*args, c->number);
}

static oar_status call_once(void *arg)
{
    const calling *c = arg;
    oar_rpc_message *args = NULL, *reply = NULL;
    oar_status status = make_args(c, &args);

    if (status == OAR_OK)
        status = oar_rpc_sync(c->rpc, 1, c->name, args, NULL, &reply);
    oar_rpc_message_destroy(reply);
    return status;
}

/* Calls a second, with so many of them under way. */
static oar_status time_many(oar_rpc *rpc, int outstanding, size_t calls,
                            double *a_second)
{
    calling c = { .rpc = rpc, .name = "echo_inline", .number = 1 };
    oar_future *future[MOST_OUTSTANDING] = { NULL };
    double began = now_us();
    oar_status status = OAR_OK;

    for (size_t i = 0; i < calls + (size_t)outstanding && status == OAR_OK;
         i++) {
        oar_future **f = &future[i % (size_t)outstanding];
        oar_rpc_message *args;

        if (*f != NULL)
            status = oar_future_wait(*f, NULL);
        oar_future_release(*f);
        *f = NULL;
        if (status == OAR_OK && i < calls)
            status = make_args(&c, &args);
        if (status == OAR_OK && i < calls)
            status = oar_rpc_async(rpc, 1, c.name, args, NULL, f);
    }
    for (int i = 0; i < outstanding; i++)
        oar_future_release(future[i]);
    *a_second = (double)calls * 1e6 / (now_us() - began);
    return status;
}

/* ---- messages, for comparison -------------------------------------------- */

typedef struct pinging {
    oar_group *group;
    oar_span out, in;
} pinging;

static oar_status ping(void *arg)
{
    const pinging *p = arg;
    int first = oar_group_rank(p->group) == 0, peer = first;
    oar_status status = OAR_OK;

    if (first)
        status = oar_send(p->group, p->out, peer, TAG, NULL, NULL);
    if (status == OAR_OK)
        status = oar_recv(p->group, p->in, peer, TAG, NULL, NULL);
    if (status == OAR_OK && !first)
        status = oar_send(p->group, p->out, peer, TAG, NULL, NULL);
    return status;
}

static int is_wanted(const rpc_plan *p, const char *row)
{
    return p->only == NULL || strstr(row, p->only) != NULL;
}

/* Both ranks: a round trip of a few bytes, and arrays one way, with an answer
 * of one byte, as they are received into memory that was used before. */
static oar_status compare_messages(oar_group *group, const rpc_plan *p)
{
    size_t size[] = { SMALLER, p->large_bytes };
    int first = oar_group_rank(group) == 0;
    unsigned char word[2][8] = { { 0 } };
    pinging small = { group, oar_span_of(word[0], 8, OAR_U8),
                      oar_span_of(word[1], 8, OAR_U8) };
    oar_status status = OAR_OK;
    double us = 0;

    if (is_wanted(p, "messages, 8 B"))
        status = time_trips(ping, &small, p->calls, 0, &us);
    if (first && status == OAR_OK && us > 0)
        printf("%-36s %12.2f us\n", "messages, 8 B there and back", us);
    for (int i = 0; i < 2 && status == OAR_OK; i++) {
        pinging one_way = small;
        oar_span array;

        if (!is_wanted(p, "messages, array"))
            continue;
        status = oar_tensor_span(p->large, &array);
        array.count = size[i];
        if (first)
            one_way.out = array;
        else
            one_way.in = array;
        if (status == OAR_OK)
            status = time_trips(ping, &one_way, 9, 0, &us);
        if (first && status == OAR_OK)
            printf("%-26s %4zu KiB %12.2f GB/s\n", "messages, array",
                   size[i] >> 10, (double)size[i] * 1e-3 / us);
    }
    return status;
}

/* ---- rank 0 -------------------------------------------------------------- */

static oar_status measure_trips(oar_rpc *rpc, const rpc_plan *p)
{
    static const struct {
        const char *text, *name;
        int asleep;
    } row[] = {
        { "8 B, inline", "echo_inline", 0 },
        { "8 B, serial", "echo_serial", 0 },
        { "8 B, pool", "echo_pool", 0 },
        { "8 B, inline, from sleep", "echo_inline", 1 },
        { "8 B, pool, from sleep", "echo_pool", 1 },
    };
    oar_status status = OAR_OK;

    for (size_t i = 0; i < sizeof row / sizeof *row && status == OAR_OK; i++) {
        calling c = { .rpc = rpc, .name = row[i].name, .number = 1 };
        double us;

        if (!is_wanted(p, row[i].text))
            continue;
        status = time_trips(call_once, &c,
                            row[i].asleep ? p->calls / 50 + 1 : p->calls,
                            row[i].asleep ? PAUSE_MS : 0, &us);
        if (status == OAR_OK)
            printf("%-36s %12.2f us\n", row[i].text, us);
    }
    return status;
}

static oar_status measure_rate(oar_rpc *rpc, const rpc_plan *p)
{
    static const int outstanding[] = { 1, 8, 64, MOST_OUTSTANDING };
    oar_status status = OAR_OK;

    for (int i = 0; i < 4 && status == OAR_OK; i++) {
        char text[40];
        double a_second;

        snprintf(text, sizeof text, "8 B, %d outstanding", outstanding[i]);
        if (!is_wanted(p, text))
            continue;
        status = time_many(rpc, outstanding[i], p->calls, &a_second);
        if (status == OAR_OK)
            printf("%-36s %12.0f calls/s\n", text, a_second);
    }
    return status;
}

static oar_status measure_arrays(oar_rpc *rpc, const rpc_plan *p)
{
    static const char *const text[] = { "array as argument", "array as reply" };
    size_t size[] = { SMALLER, p->large_bytes };
    oar_status status = OAR_OK;

    for (int i = 0; i < 4 && status == OAR_OK; i++) {
        size_t bytes = size[i / 2];
        calling c = { .rpc = rpc,
                      .name = i % 2 ? "give_array" : "take_array",
                      .number = (int64_t)bytes };
        double us;

        if (!is_wanted(p, text[i % 2]))
            continue;
        if (i % 2 == 0)
            status = oar_tensor_span(p->large, &c.array);
        if (i % 2 == 0)
            c.array.count = bytes;
        if (status == OAR_OK)
            status = time_trips(call_once, &c, 9, 0, &us);
        if (status == OAR_OK)
            printf("%-26s %4zu KiB %12.2f GB/s\n", text[i % 2], bytes >> 10,
                   (double)bytes * 1e-3 / us);
    }
    return status;
}

/* An array that is mapped, at first and from then on. */
static oar_status measure_mapped(oar_rpc *rpc, const rpc_plan *p)
{
    calling c = { .rpc = rpc, .name = "look_at_array" };
    double began, us = 0;
    oar_status status;

    if (!is_wanted(p, "mapped array"))
        return OAR_OK;
    status = oar_window_alloc(p->large_bytes, &c.window);
    if (status != OAR_OK)
        return status;
    c.array = oar_span_of(oar_window_data(c.window), p->large_bytes, OAR_U8);
    memset(c.array.data, 1, p->large_bytes);
    began = now_us();
    status = call_once(&c);
    if (status == OAR_OK)
        printf("%-26s %4zu KiB %12.2f us\n", "mapped array, first call",
               p->large_bytes >> 10, now_us() - began);
    if (status == OAR_OK)
        status = time_trips(call_once, &c, p->calls / 20 + 1, 0, &us);
    if (status == OAR_OK)
        printf("%-26s %4zu KiB %12.2f us\n", "mapped array",
               p->large_bytes >> 10, us);
    oar_window_release(c.window);
    return status;
}

/* What a call from sleep is compared with. */
static void measure_wakes(const rpc_plan *p)
{
    static const char *const text[] = { "wake-up by an eventfd",
                                        "wake-up by a futex" };

    for (int i = 0; i < 2; i++)
        if (is_wanted(p, text[i]))
            printf("%-36s %12.2f us\n", text[i],
                   bench_wake_us(i, (unsigned)p->calls / 50 + 1, PAUSE_MS));
}

static oar_status measure_idle(oar_rpc *rpc, const rpc_plan *p)
{
    oar_rpc_message *reply;
    double wakes;
    oar_status status = OAR_OK;

    if (!is_wanted(p, "idle"))
        return OAR_OK;
    status = oar_rpc_sync(rpc, 1, "count_wakes", NULL, NULL, &reply);
    if (status != OAR_OK)
        return status;
    status = oar_rpc_get_f64(reply, &wakes);
    oar_rpc_message_destroy(reply);
    if (status == OAR_OK)
        printf("%-36s %12.1f wake-ups/s\n", "idle", wakes);
    return status;
}

/* All calls of all rows, as the agent has counted them. */
static oar_status show_times(const oar_rpc *rpc)
{
    static const char *const name[] = { "echo_inline", "echo_serial",
                                        "echo_pool", "take_array",
                                        "give_array" };
    oar_rpc_times t = oar_rpc_times_init();

    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        if (oar_rpc_read_times(rpc, OAR_RPC_MADE, name[i], &t) != OAR_OK)
            continue; /* no row has called it */
        printf("all of %-29s %12.1f us p50 %12.1f us p99 %12.1f us longest, "
               "%" PRIu64 " calls, %" PRIu64 " failed\n",
               name[i], (double)t.p50_ns * 1e-3, (double)t.p99_ns * 1e-3,
               (double)t.max_ns * 1e-3, t.count, t.errors);
    }
    return OAR_OK;
}

static oar_status measure(oar_rpc *rpc, const rpc_plan *p)
{
    oar_status status = measure_trips(rpc, p);

    if (status == OAR_OK)
        status = measure_rate(rpc, p);
    measure_wakes(p);
    if (status == OAR_OK)
        status = measure_arrays(rpc, p);
    if (status == OAR_OK)
        status = measure_idle(rpc, p); /* while no window is kept */
    if (status == OAR_OK)
        status = measure_mapped(rpc, p);
    return status == OAR_OK ? show_times(rpc) : status;
}

/* ---- both ranks ---------------------------------------------------------- */

static oar_status register_all(oar_rpc *rpc, void *arg)
{
    static const oar_rpc_function functions[] = {
        { .name = "echo_inline", .fn = echo_number, .manner = OAR_RPC_INLINE },
        { .name = "echo_serial", .fn = echo_number, .manner = OAR_RPC_SERIAL },
        { .name = "echo_pool", .fn = echo_number },
        { .name = "give_array", .fn = give_array },
        { .name = "take_array", .fn = take_array },
        { .name = "look_at_array",
          .fn = look_at_array,
          .manner = OAR_RPC_INLINE },
        { .name = "count_wakes", .fn = count_wakes },
    };
    oar_status status = OAR_OK;

    for (size_t i = 0;
         i < sizeof functions / sizeof *functions && status == OAR_OK; i++) {
        oar_rpc_function f = functions[i];

        f.size = sizeof f;
        f.arg = arg;
        status = oar_rpc_register(rpc, &f);
    }
    return status;
}

static oar_status run_rank(oar_group *group, void *arg)
{
    rpc_plan *p = arg;
    size_t bytes = p->large_bytes > SMALLER ? p->large_bytes : SMALLER;
    oar_rpc *rpc = NULL;
    oar_status status, ended;

    p->large = oar_zeros(NULL, OAR_U8, OAR_SHAPE((int64_t)bytes));
    status = p->large != NULL ? oar_rpc_create(group, NULL, &rpc)
                              : oar_last_error()->status;
    if (status == OAR_OK)
        status = register_all(rpc, arg);
    if (status == OAR_OK)
        status = oar_barrier(group, NULL, NULL);
    if (status == OAR_OK)
        status = compare_messages(group, p);
    if (status == OAR_OK && oar_group_rank(group) == 0)
        status = measure(rpc, p);
    ended = rpc != NULL ? oar_rpc_shutdown(rpc, 600000) : status;
    if (status == OAR_OK)
        status = ended;
    if (status != OAR_OK)
        fprintf(stderr, "oarsong bench rpc: rank %d: %s\n",
                oar_group_rank(group), oar_last_error_text());
    oar_rpc_destroy(rpc);
    oar_tensor_release(p->large);
    return status;
}

static int show_usage(void)
{
    printf("oarsong bench rpc [options]\n\n"
           "Times calls between two ranks of this host, and messages beside "
           "them.\n\n"
           "  --backend NAME   native (default), shm, tcp\n"
           "  --calls N        of 8 bytes, for each row (default 20000)\n"
           "  --bytes N        of the large array (default 64M)\n"
           "  --idle-ms N      how long rank 1 is idle (default 3000)\n"
           "  --only TEXT      only rows whose name has this in it\n");
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
        else if (strcmp(argv[i], "--only") == 0)
            good = (p.only = value)[0] != '\0';
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
