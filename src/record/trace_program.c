/* SPDX-License-Identifier: Apache-2.0 */
/* trace_program: what a program itself writes into its trace (base/trace.h). */
#include <oarsong/trace.h>

#include <string.h>

#include "base/trace.h"

enum { DEPTH = 64 }; /* of intervals of a thread; deeper ones are left out */

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

void oar_metric(const char *name, double value)
{
    oari_trace_entry e = { .kind = OARI_TRACE_METRIC };

    e.start = e.end = oari_trace_begin();
    if (e.start == 0 || name == NULL)
        return;
    memcpy(&e.value, &value, sizeof e.value);
    e.name = oari_trace_name(name);
    oari_trace_write(&e);
}

void oar_step(int64_t step)
{
    oari_trace_step(step);
}
