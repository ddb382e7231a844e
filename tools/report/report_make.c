/* SPDX-License-Identifier: Apache-2.0 */
/* report_make: computes a report from the events of a trace.
 *
 * Events come in the order in which they began, so a union of intervals is kept
 * by its last one. What a step has of a union is cut out when that is complete.
 */
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* The union of intervals of one rank, as far as it has been seen. */
typedef struct run_on {
    int64_t start, end;
    int step; /* the first that may still get some of it */
} run_on;

/* A collective as one rank posted it. */
typedef struct arrival {
    uint64_t which; /* oar_trace_event.id */
    int64_t posted_ns;
    int rank;
} arrival;

typedef struct arrivals {
    arrival *data;
    size_t count, room;
} arrivals;

/* Makes room for one more; returns 0 without memory. */
static int grow(void *array, size_t count, size_t *room, size_t size)
{
    size_t more = *room == 0 ? 64 : 2 * *room;
    void *larger;

    if (count < *room)
        return 1;
    larger = realloc(*(void **)array, more * size);
    if (larger == NULL)
        return 0;
    *(void **)array = larger;
    *room = more;
    return 1;
}

/* ---- ranks and steps ----------------------------------------------------- */

static int count_ranks(const oar_trace *t)
{
    oar_trace_event e = oar_trace_event_init();
    int most = -1;

    for (uint64_t i = 0; i < oar_trace_events(t); i++)
        if (oar_trace_event_at(t, i, &e) == OAR_OK && e.rank > most)
            most = e.rank;
    return most + 1;
}

static int add_step(report_rank *r, size_t *room, const oar_trace_event *e)
{
    if (!grow(&r->step, (size_t)r->steps, room, sizeof *r->step))
        return 0;
    r->step[r->steps++] = (report_step){ .number = (int64_t)e->value,
                                         .start_ns = e->start_ns,
                                         .end_ns = e->end_ns };
    return 1;
}

static int by_start(const void *a, const void *b)
{
    const report_step *x = a, *y = b;

    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* Finds the steps of all ranks; a rank without any has one, the whole run. */
static int find_steps(report *r)
{
    size_t *room = calloc((size_t)r->ranks + 1, sizeof *room);
    oar_trace_event e = oar_trace_event_init();
    int ok = room != NULL;

    for (uint64_t i = 0; ok && i < oar_trace_events(r->trace); i++) {
        ok = oar_trace_event_at(r->trace, i, &e) == OAR_OK;
        if (!ok || e.rank < 0)
            continue;
        if (e.end_ns > r->end_ns)
            r->end_ns = e.end_ns;
        if (e.kind == OAR_TRACE_STEP && e.end_ns > e.start_ns)
            ok = add_step(&r->rank[e.rank], &room[e.rank], &e);
    }
    for (int i = 0; ok && i < r->ranks; i++) {
        report_rank *one = &r->rank[i];
        oar_trace_event all = { .end_ns = r->end_ns };

        one->rank = i;
        if (one->steps == 0)
            ok = add_step(one, &room[i], &all);
        qsort(one->step, (size_t)one->steps, sizeof *one->step, by_start);
    }
    free(room);
    return ok;
}

/* ---- communication ------------------------------------------------------- */

/* Shares a part of a union out among the steps that it lies in. */
static void share(report_rank *r, run_on *u, size_t member)
{
    while (u->step < r->steps && r->step[u->step].end_ns <= u->start)
        u->step++;
    for (int s = u->step; s < r->steps && r->step[s].start_ns < u->end; s++) {
        int64_t from = u->start, to = u->end;

        if (from < r->step[s].start_ns)
            from = r->step[s].start_ns;
        if (to > r->step[s].end_ns)
            to = r->step[s].end_ns;
        if (to > from)
            *(int64_t *)((char *)&r->step[s] + member) += to - from;
    }
}

static void extend(report_rank *r, run_on *u, const oar_trace_event *e,
                   size_t member)
{
    if (e->start_ns > u->end) {
        share(r, u, member);
        u->start = e->start_ns;
        u->end = e->end_ns;
    } else if (e->end_ns > u->end)
        u->end = e->end_ns;
}

static int is_exposed(const oar_trace_event *e)
{
    return e->kind == OAR_TRACE_WAIT ||
           (e->kind == OAR_TRACE_OPERATION && e->blocking);
}

static int measure_steps(report *r)
{
    run_on *comm = calloc((size_t)r->ranks + 1, sizeof *comm);
    run_on *exposed = calloc((size_t)r->ranks + 1, sizeof *exposed);
    oar_trace_event e = oar_trace_event_init();
    int ok = comm != NULL && exposed != NULL;

    for (uint64_t i = 0; ok && i < oar_trace_events(r->trace); i++) {
        ok = oar_trace_event_at(r->trace, i, &e) == OAR_OK;
        if (!ok || e.rank < 0)
            continue;
        if (e.kind == OAR_TRACE_OPERATION || e.kind == OAR_TRACE_WAIT)
            extend(&r->rank[e.rank], &comm[e.rank], &e,
                   offsetof(report_step, comm_ns));
        if (is_exposed(&e))
            extend(&r->rank[e.rank], &exposed[e.rank], &e,
                   offsetof(report_step, exposed_ns));
        r->rank[e.rank].operations += e.kind == OAR_TRACE_OPERATION;
        r->stages += e.kind == OAR_TRACE_STAGE;
        r->gpu_intervals += e.kind == OAR_TRACE_GPU;
    }
    for (int i = 0; ok && i < r->ranks; i++) {
        share(&r->rank[i], &comm[i], offsetof(report_step, comm_ns));
        share(&r->rank[i], &exposed[i], offsetof(report_step, exposed_ns));
    }
    free(comm);
    free(exposed);
    return ok;
}

/* ---- lateness ------------------------------------------------------------ */

static int by_collective(const void *a, const void *b)
{
    const arrival *x = a, *y = b;

    if (x->which != y->which)
        return x->which < y->which ? -1 : 1;
    return x->posted_ns < y->posted_ns ? -1 : x->posted_ns > y->posted_ns;
}

/* Counts one collective: its arrivals in the order of time. */
static void count_lateness(report *r, const arrival *a, size_t count)
{
    if (count < 2)
        return;
    r->collectives++;
    r->rank[a[count - 1].rank].last++;
    for (size_t i = 0; i < count; i++) {
        report_rank *one = &r->rank[a[i].rank];
        double late = (double)(a[i].posted_ns - a[0].posted_ns);
        int64_t column = r->end_ns > 0
                             ? a[i].posted_ns * REPORT_COLUMNS / (r->end_ns + 1)
                             : 0;

        one->late_ns += late;
        if (column >= 0 && column < REPORT_COLUMNS) {
            one->column[column] += late;
            one->column_count[column]++;
        }
    }
}

static int measure_lateness(report *r)
{
    oar_trace_event e = oar_trace_event_init();
    arrivals all = { 0 };
    size_t first = 0;
    int ok = 1;

    for (uint64_t i = 0; ok && i < oar_trace_events(r->trace); i++) {
        ok = oar_trace_event_at(r->trace, i, &e) == OAR_OK;
        if (!ok || e.id == 0 || e.rank < 0)
            continue;
        ok = grow(&all.data, all.count, &all.room, sizeof *all.data);
        if (ok)
            all.data[all.count++] = (arrival){ e.id, e.start_ns, e.rank };
    }
    if (ok && all.count > 0) {
        qsort(all.data, all.count, sizeof *all.data, by_collective);
        for (size_t i = 1; i <= all.count; i++)
            if (i == all.count || all.data[i].which != all.data[first].which) {
                count_lateness(r, &all.data[first], i - first);
                first = i;
            }
    }
    for (int k = 0; ok && k < r->ranks; k++)
        for (int c = 0; c < REPORT_COLUMNS; c++)
            if (r->rank[k].column_count[c] > 0)
                r->rank[k].column[c] /= (double)r->rank[k].column_count[c];
    free(all.data);
    return ok;
}

const report_rank *report_straggler(const report *r)
{
    const report_rank *most = NULL;
    double others = 0;

    for (int i = 0; i < r->ranks; i++)
        if (most == NULL || r->rank[i].late_ns > most->late_ns)
            most = &r->rank[i];
    for (int i = 0; i < r->ranks; i++)
        others += &r->rank[i] != most ? r->rank[i].late_ns : 0;
    if (r->ranks < 2 || r->collectives == 0 ||
        3 * most->last < 2 * r->collectives ||
        most->late_ns < 3 * others / (r->ranks - 1))
        return NULL;
    return most;
}

/* ---- call sites and numbers ---------------------------------------------- */

static int add_site(report *r, const oar_trace_event *e)
{
    double ns = (double)(e->end_ns - e->start_ns);
    report_site *s;
    int i = 0;

    while (i < r->sites &&
           (r->site[i].op != e->op || strcmp(r->site[i].name, e->name) != 0))
        i++;
    if (i == r->site_room) {
        r->site_room = i == 0 ? 64 : 2 * i;
        s = realloc(r->site, (size_t)r->site_room * sizeof *s);
        if (s == NULL)
            return 0;
        r->site = s;
    }
    s = &r->site[i];
    if (i == r->sites) {
        *s = (report_site){ .name = e->name, .op = e->op };
        r->sites++;
    }
    s->count++;
    s->bytes += (double)e->bytes;
    s->total_ns += ns;
    if (ns > s->most_ns)
        s->most_ns = ns;
    return 1;
}

static int by_total(const void *a, const void *b)
{
    const report_site *x = a, *y = b;

    return x->total_ns > y->total_ns ? -1 : x->total_ns < y->total_ns;
}

static report_metric *metric_of(report *r, const oar_trace_event *e)
{
    report_metric *more;

    for (int i = 0; i < r->metrics; i++)
        if (r->metric[i].rank == e->rank &&
            strcmp(r->metric[i].name, e->name) == 0)
            return &r->metric[i];
    more = realloc(r->metric, ((size_t)r->metrics + 1) * sizeof *more);
    if (more == NULL)
        return NULL;
    r->metric = more;
    more[r->metrics] = (report_metric){ .name = e->name, .rank = e->rank };
    return &more[r->metrics++];
}

static int add_point(report_metric *m, const oar_trace_event *e)
{
    if (m->points == m->room) {
        int room = m->room == 0 ? 256 : 2 * m->room;
        double *time = realloc(m->time_s, (size_t)room * sizeof *time);
        double *value;

        if (time == NULL)
            return 0;
        m->time_s = time;
        value = realloc(m->value, (size_t)room * sizeof *value);
        if (value == NULL)
            return 0;
        m->value = value;
        m->room = room;
    }
    m->time_s[m->points] = (double)e->start_ns / 1e9;
    m->value[m->points++] = e->value;
    return 1;
}

static int collect_sites_and_metrics(report *r)
{
    oar_trace_event e = oar_trace_event_init();
    int ok = 1;

    for (uint64_t i = 0; ok && i < oar_trace_events(r->trace); i++) {
        ok = oar_trace_event_at(r->trace, i, &e) == OAR_OK;
        if (ok && e.kind == OAR_TRACE_OPERATION)
            ok = add_site(r, &e);
        else if (ok && e.kind == OAR_TRACE_METRIC) {
            report_metric *m = metric_of(r, &e);

            ok = m != NULL && add_point(m, &e);
        }
    }
    if (r->sites > 0)
        qsort(r->site, (size_t)r->sites, sizeof *r->site, by_total);
    return ok;
}

int report_make(const oar_trace *trace, report *r)
{
    *r = (report){ .trace = trace, .ranks = count_ranks(trace) };
    r->rank = calloc((size_t)r->ranks + 1, sizeof *r->rank);
    return r->rank != NULL && find_steps(r) && measure_steps(r) &&
           measure_lateness(r) && collect_sites_and_metrics(r);
}

void report_free(report *r)
{
    for (int i = 0; r->rank != NULL && i < r->ranks; i++)
        free(r->rank[i].step);
    for (int i = 0; i < r->metrics; i++) {
        free(r->metric[i].time_s);
        free(r->metric[i].value);
    }
    free(r->rank);
    free(r->site);
    free(r->metric);
    free(r->speed);
}
