/* SPDX-License-Identifier: Apache-2.0 */
/* report_page: the page as a whole, its numbers and tables. One file of HTML
 * and SVG, without scripts, that needs nothing else. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { TOP_SITES = 20, CHART_WIDTH = 900, CHART_HEIGHT = 160, POINTS = 450 };

static const char style[] =
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;"
    "padding:0 1em;color:#222}h1{font-size:1.5em}h2{font-size:1.15em;margin:"
    "2em 0 .4em}table{border-collapse:collapse}td,th{padding:.15em .8em;"
    "text-align:right;border-bottom:1px solid #ddd}td:first-child,"
    "th:first-child{text-align:left}.said{font-size:1.1em;background:#f3f5f8;"
    "padding:.8em 1em;border-radius:6px}svg{display:block;background:#fafbfc}"
    "text{font:11px system-ui,sans-serif;fill:#555}.note{color:#666}";

void report_text(FILE *to, const char *text)
{
    for (; *text != 0; text++)
        switch (*text) {
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '&': fputs("&amp;", to); break;
        case '"': fputs("&quot;", to); break;
        default: putc(*text, to);
        }
}

const char *report_time(double ns)
{
    static char text[8][32];
    static int next;
    char *t = text[next++ % 8];

    if (ns < 1e3)
        snprintf(t, sizeof text[0], "%.0f ns", ns);
    else if (ns < 1e6)
        snprintf(t, sizeof text[0], "%.3g us", ns / 1e3);
    else if (ns < 1e9)
        snprintf(t, sizeof text[0], "%.3g ms", ns / 1e6);
    else
        snprintf(t, sizeof text[0], "%.4g s", ns / 1e9);
    return t;
}

static const char *bytes_text(double bytes)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    static char text[32];
    int u = 0;

    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    snprintf(text, sizeof text, "%.*f %s", u > 0 && bytes < 100, bytes,
             unit[u]);
    return text;
}

/* ---- the sentence -------------------------------------------------------- */

typedef struct totals {
    double step, comm, exposed;
    int64_t steps;
} totals;

static totals sum_steps(const report *r)
{
    totals t = { 0 };

    for (int i = 0; i < r->ranks; i++)
        for (int s = 0; s < r->rank[i].steps; s++) {
            const report_step *x = &r->rank[i].step[s];

            t.step += (double)(x->end_ns - x->start_ns);
            t.comm += (double)x->comm_ns;
            t.exposed += (double)x->exposed_ns;
            t.steps++;
        }
    return t;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void write_sentence(const report *r, FILE *to)
{
    const report_rank *late = report_straggler(r);
    totals t = sum_steps(r);

    fprintf(to,
            "<p class=said id=summary data-comm-s=%.9f data-exposed-s=%.9f>"
            "%d rank%s ran for %s, %lld step%s of %s "
            "on average. Communication took <b id=comm>%.1f</b> %% of that "
            "time; <b id=hidden>%.1f</b> %% of it was hidden behind "
            "computation, and the program waited <b id=exposed>%.1f</b> %% of "
            "its time for it.",
            t.comm / 1e9, t.exposed / 1e9, r->ranks, r->ranks == 1 ? "" : "s",
            report_time((double)r->end_ns),
            (long long)(r->ranks > 0 ? t.steps / r->ranks : 0),
            r->ranks > 0 && t.steps / r->ranks == 1 ? "" : "s",
            report_time(t.steps > 0 ? t.step / (double)t.steps : 0),
            percent(t.comm, t.step), percent(t.comm - t.exposed, t.comm),
            percent(t.exposed, t.step));
    if (late != NULL)
        fprintf(to,
                " <b id=straggler>Rank %d</b> was the last in %.0f %% of %lld "
                "collectives, %s behind the first on average.",
                late->rank, percent((double)late->last, (double)r->collectives),
                (long long)r->collectives,
                report_time(late->late_ns / (double)r->collectives));
    else if (r->collectives > 0)
        fprintf(to, " No rank was late more than the others.");
    fprintf(to, "</p>\n");
}

static void write_processes(const report *r, FILE *to)
{
    fprintf(to, "<h2>Processes</h2><table><tr><th>rank<th>host<th>pid<th>"
                "events<th>operations<th>clock<th>kept</tr>\n");
    for (int i = 0; i < oar_trace_processes(r->trace); i++) {
        oar_trace_process p = oar_trace_process_init();

        if (oar_trace_process_at(r->trace, i, &p) != OAR_OK)
            continue;
        fprintf(to, "<tr><td>%d<td>", p.rank);
        report_text(to, p.host);
        fprintf(to, "<td>%lld<td>%llu<td>%lld<td>", (long long)p.pid,
                (unsigned long long)p.events,
                (long long)(p.rank >= 0 && p.rank < r->ranks
                                ? r->rank[p.rank].operations
                                : 0));
        if (p.error_ns > 0)
            fprintf(to, "&plusmn; %s", report_time((double)p.error_ns));
        else
            fprintf(to, p.error_ns == 0 ? "the same" : "the calendar's");
        if (p.one_in > 1)
            fprintf(to, "<td>one %s in %u", p.by_seconds ? "second" : "step",
                    p.one_in);
        else
            fprintf(to, "<td>all");
        fprintf(to, "%s", p.stopped ? ", then there was no room" : "");
        if (p.gpu_lost > 0)
            fprintf(to, ", but %llu intervals of its GPU",
                    (unsigned long long)p.gpu_lost);
        if (p.gpu_error_ns > 0)
            fprintf(to, "; times of its GPU &plusmn; %s",
                    report_time((double)p.gpu_error_ns));
        fprintf(to, "</tr>\n");
    }
    fprintf(to, "</table>\n");
}

/* ---- numbers over time --------------------------------------------------- */

/* Returns the value of a row of points: the mean where several share a place.
 */
static double mean_of(const report_metric *m, int from, int to)
{
    double sum = 0;

    for (int i = from; i < to; i++)
        sum += m->value[i];
    return sum / (to - from);
}

static void write_metric(const report *r, const report_metric *m, FILE *to)
{
    double low = INFINITY, high = -INFINITY;
    double end = (double)r->end_ns / 1e9;
    int each = (m->points + POINTS - 1) / POINTS;

    for (int i = 0; i < m->points; i++) {
        if (!isfinite(m->value[i]))
            continue;
        low = fmin(low, m->value[i]);
        high = fmax(high, m->value[i]);
    }
    if (!(high >= low))
        return;
    fprintf(to, "<p>");
    report_text(to, m->name);
    fprintf(to,
            " <span class=note>rank %d: from %.6g to %.6g, last "
            "<span class=last>%.6g</span></span></p>\n<svg width=%d height=%d "
            "role=img>\n<polyline fill=none stroke=#2463a8 stroke-width=1.5 "
            "points=\"",
            m->rank, low, high, m->value[m->points - 1], CHART_WIDTH,
            CHART_HEIGHT);
    for (int i = 0; i < m->points; i += each) {
        int last = i + each < m->points ? i + each : m->points;
        double y = mean_of(m, i, last);

        if (isfinite(y))
            fprintf(to, "%.1f,%.1f ", m->time_s[i] / end * (CHART_WIDTH - 10),
                    CHART_HEIGHT - 10 -
                        (high > low ? (y - low) / (high - low) : 0.5) *
                            (CHART_HEIGHT - 20));
    }
    fprintf(to, "\"/></svg>\n");
}

void report_write_metrics(const report *r, FILE *to)
{
    int shown = 0;

    for (int i = 0; i < r->metrics; i++) {
        int first = i;

        for (int j = 0; j < i; j++)
            if (strcmp(r->metric[j].name, r->metric[i].name) == 0)
                first = j;
        if (first == i && /* the first rank that has it */
            strcmp(r->metric[i].name, REPORT_MEMORY) != 0) {
            fprintf(to, "%s", shown++ == 0 ? "<h2>Numbers</h2>\n" : "");
            write_metric(r, &r->metric[i], to);
        }
    }
}

/* ---- call sites ---------------------------------------------------------- */

/* Writes what a call site reaches of the machine's own speed. */
static void write_share(const report *r, const report_site *s, FILE *to)
{
    double best = report_machine_speed(r, s->op, s->bytes / (double)s->count);

    if (r->speeds > 0 && best > 0 && s->total_ns > 0)
        fprintf(to, "<td>%.1f %%", percent(s->bytes / s->total_ns, best));
    else if (r->speeds > 0)
        fprintf(to, "<td>");
}

void report_write_sites(const report *r, FILE *to)
{
    if (r->sites == 0)
        return;
    fprintf(to,
            "<h2>Where operations are called</h2><table id=sites><tr><th>"
            "place<th>operation<th>count<th>mean<th>longest<th>in all<th>"
            "size<th>GB/s%s</tr>\n",
            r->speeds > 0 ? "<th>of the machine's" : "");
    for (int i = 0; i < r->sites && i < TOP_SITES; i++) {
        const report_site *s = &r->site[i];

        fprintf(to, "<tr><td>");
        report_text(to, s->name[0] != 0 ? s->name : "?");
        fprintf(to, "<td>%s<td>%lld<td>%s<td>%s<td>%s<td>%s<td>%.3f",
                oar_coll_name(s->op), (long long)s->count,
                report_time(s->total_ns / (double)s->count),
                report_time(s->most_ns), report_time(s->total_ns),
                bytes_text(s->bytes / (double)s->count),
                s->total_ns > 0 ? s->bytes / s->total_ns : 0);
        write_share(r, s, to);
        fprintf(to, "</tr>\n");
    }
    fprintf(to, "</table>\n");
}

void report_write(const report *r, const char *folder, FILE *to)
{
    fprintf(to, "<!doctype html>\n<html lang=en><meta charset=utf-8>\n"
                "<title>");
    report_text(to, folder);
    fprintf(to, "</title>\n<style>%s</style>\n<h1>", style);
    report_text(to, folder);
    fprintf(to, "</h1>\n");
    write_sentence(r, to);
    report_write_autopsy(folder, to);
    report_write_metrics(r, to);
    report_write_steps(r, to);
    report_write_heat(r, to);
    report_write_sites(r, to);
    report_write_memory(r, to);
    report_write_pipeline(r, to);
    report_write_lines(r, to);
    write_processes(r, to);
    fprintf(to, "</html>\n");
}
