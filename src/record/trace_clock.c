/* SPDX-License-Identifier: Apache-2.0 */
/* trace_clock: one clock for all processes of a host.
 *
 * They read the same counter, so their times compare exactly if all are
 * converted in the same way. A process measures the counter's rate when it
 * begins, within 1 ms, and after ten minutes such a rate would be wrong by
 * milliseconds. So the rate is that between the first and the latest moment at
 * which any of them read CLOCK_MONOTONIC, too.
 */
#include <string.h>

#include "record/trace_file.h"

enum { LEAST_NS = 10000000 }; /* from which on two moments tell the rate */

/* Numbers the hosts by the identity of their boots. */
static void number_hosts(oar_trace *t)
{
    for (int i = 0; i < t->sources; i++) {
        oari_trace_source *s = &t->source[i];

        for (int j = 0; j < i && s->host < 0; j++)
            if (strcmp(t->source[j].file->head.boot, s->file->head.boot) == 0)
                s->host = t->source[j].host;
        if (s->host < 0)
            s->host = t->hosts++;
    }
}

/* Returns the rate between two moments; `measured` if they are too close or
 * say what is impossible. */
static double rate_between(oari_moment from, oari_moment to, double measured)
{
    double rate;

    if (to.ns < from.ns + LEAST_NS || to.ticks <= from.ticks)
        return measured;
    rate = (double)(to.ticks - from.ticks) * 1e9 / (double)(to.ns - from.ns);
    return rate > measured * 0.99 && rate < measured * 1.01 ? rate : measured;
}

static void set_clock(oar_trace *t, int host)
{
    const oari_trace_head *first = NULL;
    oari_moment base, latest = { 0 };
    double rate;

    for (int i = 0; i < t->sources; i++) {
        const oari_trace_source *s = &t->source[i];

        if (s->host != host)
            continue;
        if (first == NULL || s->file->head.base_ticks < first->base_ticks)
            first = &s->file->head;
        if (s->latest.ticks > latest.ticks)
            latest = s->latest;
    }
    base = (oari_moment){ first->base_ns, first->base_ticks };
    rate = rate_between(base, latest, first->ticks_per_second);
    for (int i = 0; i < t->sources; i++)
        if (t->source[i].host == host) {
            t->source[i].base = base;
            t->source[i].ticks_per_second = rate;
        }
}

void oari_trace_set_clocks(oar_trace *t)
{
    number_hosts(t);
    for (int host = 0; host < t->hosts; host++)
        set_clock(t, host);
}
