/* SPDX-License-Identifier: Apache-2.0 */
/* top_print: a job as lines of text. */
#include <math.h>
#include <string.h>

#include "rank_words.h"
#include "top.h"

enum { LINE = 512 };

/* ---- numbers ------------------------------------------------------------- */

static void write_age(int64_t ns, char text[16])
{
    double s = (double)ns / 1e9;

    if (s < 1)
        snprintf(text, 16, "%.0f ms", s * 1e3);
    else if (s < 100)
        snprintf(text, 16, "%.1f s", s);
    else
        snprintf(text, 16, "%.0f min", s / 60);
}

static void write_rate(double value, char text[16])
{
    static const char unit[] = " kMGT";
    int u = 0;

    while (value >= 1000 && u < 4) {
        value /= 1000;
        u++;
    }
    snprintf(text, 16, u == 0 ? "%.0f" : "%.1f%c", value, unit[u]);
}

/* ---- lines --------------------------------------------------------------- */

/* Prints a line, cut to the screen. */
static void put_line(const top_screen *s, FILE *to, const char *colour,
                     const char *line)
{
    int plain = !s->ansi || colour == NULL;

    fprintf(to, "%s%.*s%s\n", plain ? "" : colour, s->columns, line,
            plain ? "" : "\033[0m");
}

static const char *colour_of(const oar_live_rank *r)
{
    if (r->state == OAR_LIVE_DEAD || r->state == OAR_LIVE_STOPPED)
        return "\033[31m";
    if (r->missing > 0)
        return "\033[33m";
    return NULL;
}

static void print_rank(const oar_live *live, int rank, const top_screen *s,
                       FILE *to)
{
    oar_live_rank r = oar_live_rank_init();
    char line[LINE], doing[200], whom[80], age[16] = "", ops[16], bytes[16];
    char memory[16], step[32] = "-";

    if (oar_live_rank_at(live, rank, &r) != OAR_OK)
        return;
    rank_doing(&r, doing, sizeof doing);
    rank_waits_for(&r, whom, sizeof whom);
    if (r.kind < OAR_COLL_COUNT || r.busy)
        write_age(r.age_ns, age);
    write_rate(r.operations_s, ops);
    write_rate(r.bytes_s, bytes);
    write_rate((double)r.memory_bytes, memory);
    if (r.steps > 0)
        snprintf(step, sizeof step, "%lld", (long long)r.step);
    snprintf(line, sizeof line,
             "%4d %8lld %-8s %8s %7s %7s %5.0f %7s  %-10s %8s  %s", rank,
             (long long)r.pid, rank_state(r.state), step, ops, bytes,
             100 * r.waiting, memory, whom[0] != 0 ? whom : "-", age, doing);
    put_line(s, to, colour_of(&r), line);
}

/* Prints the numbers that rank 0 gives. */
static void print_metrics(const oar_live *live, const top_screen *s, FILE *to)
{
    char line[LINE] = "";
    size_t used = 0;

    for (int i = 0; i < oar_live_metrics(live, 0); i++) {
        oar_live_metric m = oar_live_metric_init();

        if (oar_live_metric_at(live, 0, i, &m) != OAR_OK)
            continue;
        if (used < sizeof line)
            used +=
                (size_t)snprintf(line + used, sizeof line - used, "%s%s %.6g",
                                 used > 0 ? ", " : "", m.name, m.value);
    }
    if (used > 0)
        put_line(s, to, NULL, line);
}

void top_print(const oar_live *live, const top_screen *s, FILE *to)
{
    oar_live_rank first = oar_live_rank_init();
    int ranks = oar_live_ranks(live), room = s->rows - 6;
    char line[LINE];

    if (oar_live_rank_at(live, 0, &first) != OAR_OK)
        return;
    snprintf(line, sizeof line, "%s%s%d ranks%s", oar_live_run(live),
             oar_live_run(live)[0] != 0 ? ": " : "", ranks,
             first.steps > 0 ? "" : ", no step told");
    if (first.step_s > 0)
        snprintf(line + strlen(line), sizeof line - strlen(line),
                 ", a step takes %.3g s", first.step_s);
    put_line(s, to, NULL, line);
    put_line(s, to, NULL, oar_live_verdict(live));
    print_metrics(live, s, to);
    put_line(s, to, s->ansi ? "\033[7m" : NULL,
             "rank      pid state        step   ops/s     B/s wait%  memory  "
             "waits for       for  does");
    for (int i = 0; i < ranks && i < room; i++)
        print_rank(live, i, s, to);
    if (ranks > room) {
        snprintf(line, sizeof line, "and %d more", ranks - room);
        put_line(s, to, NULL, line);
    }
}
