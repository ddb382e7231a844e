/* SPDX-License-Identifier: Apache-2.0 */
/* report_charts: the pictures of a report: how long steps took and what of it
 * was communication, who was late, and three steps as time lines. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum {
    WIDTH = 900,
    BARS = 150, /* at most; more steps are shown by their means */
    BAR_HEIGHT = 140,
    CELL = 14,
    LANE = 12,
    LANES = 4,     /* of nested intervals of a rank */
    GPU_LANES = 4, /* below them, where there are some of GPUs */
    MOST_RECTS = 4000
};

/* ---- steps --------------------------------------------------------------- */

static void write_bar(FILE *to, double x, double width, double from,
                      double to_y, const char *colour)
{
    if (to_y > from)
        fprintf(to, "<rect x=%.1f y=%.1f width=%.1f height=%.1f fill=%s />\n",
                x, BAR_HEIGHT - to_y, width, to_y - from, colour);
}

/* Shows the steps of the first rank that has some. */
void report_write_steps(const report *r, FILE *to)
{
    const report_rank *one = r->ranks > 0 ? &r->rank[0] : NULL;
    int each, bars;
    double most = 0, width;

    if (one == NULL || one->steps < 2)
        return;
    each = (one->steps + BARS - 1) / BARS;
    bars = (one->steps + each - 1) / each;
    width = (double)WIDTH / bars;
    for (int s = 0; s < one->steps; s++)
        most =
            fmax(most, (double)(one->step[s].end_ns - one->step[s].start_ns));
    fprintf(to,
            "<h2>Steps</h2><p class=note>Rank %d, %d steps. Dark: the program "
            "waits for communication; light: communication behind computation; "
            "grey: all else. The longest took %s.</p>\n<svg width=%d "
            "height=%d role=img>\n",
            one->rank, one->steps, report_time(most), WIDTH, BAR_HEIGHT);
    for (int b = 0; b < bars; b++) {
        double all = 0, comm = 0, exposed = 0, unit;
        int count = 0;

        for (int s = b * each; s < (b + 1) * each && s < one->steps; s++) {
            all += (double)(one->step[s].end_ns - one->step[s].start_ns);
            comm += (double)one->step[s].comm_ns;
            exposed += (double)one->step[s].exposed_ns;
            count++;
        }
        unit = most > 0 ? (BAR_HEIGHT - 10) / most / count : 0;
        write_bar(to, b * width, width * 0.9, 0, exposed * unit, "#b5382f");
        write_bar(to, b * width, width * 0.9, exposed * unit, comm * unit,
                  "#f0b8a8");
        write_bar(to, b * width, width * 0.9, comm * unit, all * unit,
                  "#cfd6dd");
    }
    fprintf(to, "</svg>\n");
}

/* ---- lateness ------------------------------------------------------------ */

void report_write_heat(const report *r, FILE *to)
{
    double most = 0;
    double cell = (double)(WIDTH - 60) / REPORT_COLUMNS;

    if (r->collectives == 0)
        return;
    for (int i = 0; i < r->ranks; i++)
        for (int c = 0; c < REPORT_COLUMNS; c++)
            most = fmax(most, r->rank[i].column[c]);
    fprintf(to,
            "<h2>Who is late</h2><p class=note>How long after the first rank "
            "each rank came to its collectives, over time. The darkest is %s."
            "</p>\n<svg id=heat width=%d height=%d role=img>\n",
            report_time(most), WIDTH, r->ranks * CELL + 4);
    for (int i = 0; i < r->ranks; i++) {
        fprintf(to,
                "<g data-rank=%d data-late-us=%.3f><text x=0 y=%d>rank %d"
                "</text>\n",
                i,
                r->collectives > 0
                    ? r->rank[i].late_ns / (double)r->collectives / 1e3
                    : 0,
                i * CELL + CELL - 3, i);
        for (int c = 0; c < REPORT_COLUMNS; c++) {
            double share = most > 0 ? r->rank[i].column[c] / most : 0;

            if (r->rank[i].column_count[c] > 0)
                fprintf(to,
                        "<rect x=%.1f y=%d width=%.1f height=%d fill=\"rgb(%d,"
                        "%d,%d)\"/>\n",
                        60 + c * cell, i * CELL, cell, CELL - 1,
                        (int)(245 - 65 * share), (int)(240 - 190 * share),
                        (int)(230 - 190 * share));
        }
        fprintf(to, "</g>\n");
    }
    fprintf(to, "</svg>\n");
}

/* ---- time lines ---------------------------------------------------------- */

static const char *colour_of(oar_trace_kind kind)
{
    switch (kind) {
    case OAR_TRACE_OPERATION: return "#d9774f";
    case OAR_TRACE_WAIT: return "#b5382f";
    case OAR_TRACE_FORWARD: return "#7fa8d1";
    case OAR_TRACE_BACKWARD: return "#4f7fb5";
    case OAR_TRACE_OPTIMIZER: return "#6aa56a";
    case OAR_TRACE_LOADER: return "#c9b458";
    case OAR_TRACE_CHECKPOINT: return "#8d6bb0";
    case OAR_TRACE_STAGE: return "#5b9ea0";
    case OAR_TRACE_GPU: return "#76a83a";
    case OAR_TRACE_USER: return "#a0a0a0";
    default: return "#c0c0c0";
    }
}

/* The lanes of one rank while a step is drawn. */
typedef struct lanes {
    int64_t busy_until[LANES + GPU_LANES];
} lanes;

/* Returns the lane of an interval: operations have the first; the others nest
 * below, and those of GPUs below these. Those too deep are left out: -1. */
static int lane_of(lanes *l, const oar_trace_event *e)
{
    int on_gpu = e->kind == OAR_TRACE_GPU;
    int lane = on_gpu ? LANES : 1, end = on_gpu ? LANES + GPU_LANES : LANES;

    if (e->kind == OAR_TRACE_OPERATION)
        return 0;
    while (lane < end && l->busy_until[lane] > e->start_ns)
        lane++;
    if (lane == end)
        return -1;
    l->busy_until[lane] = e->end_ns;
    return lane;
}

static int is_drawn(const oar_trace_event *e, int64_t from, int64_t to)
{
    return e->rank >= 0 && e->kind != OAR_TRACE_STEP &&
           e->kind != OAR_TRACE_METRIC && e->end_ns > from && e->start_ns < to;
}

/* Returns the height of a rank in pixels. */
static int height_of(const report *r)
{
    return (LANES + (r->gpu_intervals > 0 ? GPU_LANES : 0)) * LANE + 6;
}

static void draw_event(const oar_trace_event *e, int y, int64_t from,
                       int64_t to_ns, FILE *to)
{
    double unit = (double)(WIDTH - 60) / (double)(to_ns - from);
    double x = 60 + (double)(e->start_ns - from) * unit;
    double width = (double)(e->end_ns - e->start_ns) * unit;

    if (x < 60) {
        width -= 60 - x;
        x = 60;
    }
    if (x + width > WIDTH)
        width = WIDTH - x;
    fprintf(to, "<rect x=%.2f y=%d width=%.2f height=%d fill=%s><title>", x, y,
            width, LANE - 1, colour_of(e->kind));
    if (e->kind == OAR_TRACE_GPU) {
        report_text(to, e->group);
        fprintf(to, ": ");
    }
    report_text(to, e->kind == OAR_TRACE_OPERATION ? oar_coll_name(e->op)
                                                   : e->name);
    fprintf(to, " %s</title></rect>\n",
            report_time((double)(e->end_ns - e->start_ns)));
}

/* Draws what all ranks did in a stretch of time. */
static void write_line(const report *r, const char *title, int64_t from,
                       int64_t to_ns, FILE *to)
{
    lanes *of = calloc((size_t)r->ranks + 1, sizeof *of);
    double least = (double)(to_ns - from) / WIDTH / 2; /* half a pixel */
    oar_trace_event e = oar_trace_event_init();
    int rects = 0;

    if (of == NULL)
        return;
    fprintf(to, "<h3>%s, %s</h3><svg width=%d height=%d role=img>\n", title,
            report_time((double)(to_ns - from)), WIDTH,
            r->ranks * height_of(r));
    for (int i = 0; i < r->ranks; i++) {
        fprintf(to, "<text x=0 y=%d>rank %d</text>\n", i * height_of(r) + LANE,
                i);
        if (r->gpu_intervals > 0)
            fprintf(to, "<text x=0 y=%d>GPU</text>\n",
                    i * height_of(r) + (LANES + 1) * LANE);
    }
    for (uint64_t i = 0; i < oar_trace_events(r->trace); i++) {
        int lane;

        if (oar_trace_event_at(r->trace, i, &e) != OAR_OK ||
            e.start_ns >= to_ns)
            break;
        if (!is_drawn(&e, from, to_ns))
            continue;
        lane = lane_of(&of[e.rank], &e);
        if (lane < 0 || (double)(e.end_ns - e.start_ns) < least ||
            rects++ >= MOST_RECTS)
            continue;
        draw_event(&e, e.rank * height_of(r) + lane * LANE, from, to_ns, to);
    }
    fprintf(to, "</svg>\n");
    free(of);
}

static int by_length(const void *a, const void *b)
{
    const report_step *x = a, *y = b;
    int64_t p = x->end_ns - x->start_ns, q = y->end_ns - y->start_ns;

    return p < q ? -1 : p > q;
}

void report_write_lines(const report *r, FILE *to)
{
    const report_rank *one = r->ranks > 0 ? &r->rank[0] : NULL;
    report_step *sorted, chosen[3];
    static const char *const name[] = { "The first step", "A usual step",
                                        "The longest step" };
    char title[80];

    if (one == NULL || one->steps < 3)
        return;
    sorted = malloc((size_t)one->steps * sizeof *sorted);
    if (sorted == NULL)
        return;
    memcpy(sorted, one->step, (size_t)one->steps * sizeof *sorted);
    qsort(sorted, (size_t)one->steps, sizeof *sorted, by_length);
    chosen[0] = one->step[0];
    chosen[1] = sorted[one->steps / 2];
    chosen[2] = sorted[one->steps - 1];
    free(sorted);
    fprintf(to,
            "<h2>Three steps</h2><p class=note>Of each rank the operations "
            "(orange), and below them what its threads did: forward and "
            "backward blue, waits red, optimizer green%s.</p>\n",
            r->gpu_intervals > 0
                ? "; below that what its GPU did, on all streams"
                : "");
    for (int i = 0; i < 3; i++) {
        snprintf(title, sizeof title, "%s, %lld", name[i],
                 (long long)chosen[i].number);
        write_line(r, title, chosen[i].start_ns, chosen[i].end_ns, to);
    }
}
