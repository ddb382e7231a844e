/* SPDX-License-Identifier: Apache-2.0 */
/* report_more: parts of a report that not every job has: memory, the actions of
 * a pipeline, and the autopsy. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "report.h"

enum { WIDTH = 900, HEIGHT = 140, POINTS = 300, ROW = 26, MOST_BOXES = 4000 };

/* ---- memory -------------------------------------------------------------- */

static double most_of(const report_metric *m)
{
    double most = 0;

    for (int i = 0; i < m->points; i++)
        most = fmax(most, m->value[i]);
    return most;
}

static void draw_memory(const report *r, const report_metric *m, double most,
                        FILE *to)
{
    int each = (m->points + POINTS - 1) / POINTS;
    double end = (double)r->end_ns / 1e9;

    fprintf(to,
            "<polyline fill=none stroke=\"hsl(%d,50%%,45%%)\" data-rank=%d "
            "data-most=%.0f points=\"",
            m->rank * 47 % 360, m->rank, most_of(m));
    for (int i = 0; i < m->points; i += each)
        fprintf(to, "%.1f,%.1f ",
                end > 0 ? m->time_s[i] / end * (WIDTH - 10) : 0,
                HEIGHT - 5 - m->value[i] / most * (HEIGHT - 15));
    fprintf(to, "\"><title>rank %d</title></polyline>\n", m->rank);
}

void report_write_memory(const report *r, FILE *to)
{
    double most = 0;
    int which = -1;

    for (int i = 0; i < r->metrics; i++)
        if (strcmp(r->metric[i].name, REPORT_MEMORY) == 0 &&
            most_of(&r->metric[i]) > most) {
            most = most_of(&r->metric[i]);
            which = r->metric[i].rank;
        }
    if (which < 0)
        return;
    fprintf(to,
            "<h2>Memory</h2><p class=note>Resident memory of each rank. Rank "
            "%d had the most, <b id=memory>%.1f</b> MB.</p>\n<svg id=memories "
            "width=%d height=%d role=img>\n",
            which, most / 1e6, WIDTH, HEIGHT);
    for (int i = 0; i < r->metrics; i++)
        if (strcmp(r->metric[i].name, REPORT_MEMORY) == 0)
            draw_memory(r, &r->metric[i], most, to);
    fprintf(to, "</svg>\n");
}

/* ---- pipelines ----------------------------------------------------------- */

static const char *colour_of(const char *action)
{
    static const struct {
        const char *action, *colour;
    } colours[] = { { "F", "#7fa8d1" },
                    { "B", "#4f7fb5" },
                    { "I", "#6aa56a" },
                    { "W", "#a7c9a7" } };

    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        if (strcmp(colours[i].action, action) == 0)
            return colours[i].colour;
    return "#e8d8c8";
}

static void draw_action(const oar_trace_event *e, double unit, int64_t from,
                        FILE *to)
{
    double x = 60 + (double)(e->start_ns - from) * unit;
    double width = (double)(e->end_ns - e->start_ns) * unit;

    fprintf(to,
            "<rect x=%.2f y=%d width=%.2f height=%d fill=%s stroke=#fff "
            "stroke-width=.5><title>",
            x, e->rank * ROW, width, ROW - 4, colour_of(e->name));
    report_text(to, e->name);
    fprintf(to, " of micro-batch %llu, stage %d, %s</title></rect>\n",
            (unsigned long long)e->number, e->peer,
            report_time((double)(e->end_ns - e->start_ns)));
    if (width > 14 && e->name[0] != 0 && e->name[1] == 0)
        fprintf(to, "<text x=%.1f y=%d>%llu</text>\n", x + 3,
                e->rank * ROW + 15, (unsigned long long)e->number);
}

/* Finds the stretch of time to draw: the middle step of rank 0, or all. */
static void choose_stretch(const report *r, int64_t *from, int64_t *to)
{
    const report_rank *one = &r->rank[0];

    *from = one->step[one->steps / 2].start_ns;
    *to = one->step[one->steps / 2].end_ns;
}

void report_write_pipeline(const report *r, FILE *to)
{
    oar_trace_event e = oar_trace_event_init();
    int64_t from, until;
    double unit;
    int boxes = 0;

    if (r->ranks == 0 || r->stages == 0)
        return;
    choose_stretch(r, &from, &until);
    unit = until > from ? (WIDTH - 60) / (double)(until - from) : 0;
    fprintf(to,
            "<h2>Pipeline</h2><p class=note>The actions of each rank in one "
            "step, %s, with their micro-batches. Light blue: forward; dark "
            "blue: backward; green: gradients of inputs and weights apart; "
            "pale: messages. White is time in which the rank had nothing to "
            "do.</p>\n<svg id=pipeline width=%d height=%d role=img>\n",
            report_time((double)(until - from)), WIDTH, r->ranks * ROW);
    for (int i = 0; i < r->ranks; i++)
        fprintf(to, "<text x=0 y=%d>rank %d</text>\n", i * ROW + 15, i);
    for (uint64_t i = 0; i < oar_trace_events(r->trace); i++) {
        if (oar_trace_event_at(r->trace, i, &e) != OAR_OK ||
            e.start_ns >= until)
            break;
        if (e.kind == OAR_TRACE_STAGE && e.rank >= 0 && e.start_ns >= from &&
            boxes++ < MOST_BOXES)
            draw_action(&e, unit, from, to);
    }
    fprintf(to, "</svg>\n");
}

/* ---- autopsy ------------------------------------------------------------- */

void report_write_autopsy(const char *folder, FILE *to)
{
    oar_autopsy *a = NULL;
    char *text = NULL;

    if (oar_autopsy_open(folder, &a) != OAR_OK)
        return; /* nothing went wrong: the launcher has saved none */
    if (oar_autopsy_text(a, &text) == OAR_OK) {
        fprintf(to, "<h2>Autopsy</h2><pre id=autopsy>");
        report_text(to, text);
        fprintf(to, "</pre>\n");
    }
    oar_free(text);
    oar_autopsy_destroy(a);
}
