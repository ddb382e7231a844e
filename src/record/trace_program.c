/* SPDX-License-Identifier: Apache-2.0 */
/* trace_program: what a program itself writes into its trace (base/trace.h),
 * and into the page that others read while it runs. */
#include <oarsong/trace.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/trace.h"
#include "record/metrics_page.h"

enum {
    DEPTH = 64, /* of intervals of a thread; deeper ones are left out */
    MEMORY_NS = 100000000 /* between two looks at our memory */
};

typedef struct open_interval {
    const char *name;
    uint64_t start;
} open_interval;

static _Thread_local open_interval open_at[DEPTH];
static _Thread_local int depth;

uint64_t oar_trace_begin(const char *name)
{
    uint64_t start = oari_trace_begin();

    if (start == 0 || name == NULL || depth == DEPTH)
        return 0;
    open_at[depth] = (open_interval){ name, start };
    return (uint64_t)++depth;
}

void oar_trace_end(uint64_t interval)
{
    if (interval == 0 || interval > (uint64_t)depth)
        return;
    while (depth >= (int)interval) {
        depth--;
        oari_trace_end(open_at[depth].start, OARI_TRACE_USER,
                       open_at[depth].name);
    }
}

static void trace_number(const char *name, double value)
{
    oari_trace_entry e = { .kind = OARI_TRACE_METRIC };

    e.start = e.end = oari_trace_begin();
    if (e.start == 0)
        return;
    memcpy(&e.value, &value, sizeof e.value);
    e.name = oari_trace_name(name);
    oari_trace_write(&e);
}

void oar_metric(const char *name, double value)
{
    if (name == NULL)
        return;
    oari_metrics_set(name, value);
    trace_number(name, value);
}

/* Writes the resident memory of this process into the trace, now and then. */
static void trace_memory(void)
{
    static _Atomic int64_t due_ns;
    int64_t now = oari_now_ns();
    unsigned long long all, pages = 0;
    char text[96] = "";
    int fd;

    if (now < atomic_load_explicit(&due_ns, memory_order_relaxed))
        return;
    atomic_store_explicit(&due_ns, now + MEMORY_NS, memory_order_relaxed);
    fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) > 0 &&
        sscanf(text, "%llu %llu", &all, &pages) == 2)
        trace_number("resident bytes",
                     (double)pages * (double)sysconf(_SC_PAGESIZE));
    close(fd);
}

void oar_step(int64_t step)
{
    oari_metrics_step(step);
    if (oari_tracing())
        trace_memory();
    oari_trace_step(step);
}
