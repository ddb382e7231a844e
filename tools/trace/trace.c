/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong trace: the trace of a job as one file for a viewer. */
#include "trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "tool.h"

enum { DURATIONS = 64 }; /* powers of two of a ns */

typedef struct trace_options {
    const char *folder, *file;
    const trace_writer *writer;
    double from_s, to_s;
    size_t bytes;
} trace_options;

static int usage(FILE *to)
{
    fprintf(to,
            "oarsong trace DIR [-o FILE] [--format chrome|perfetto] "
            "[--from S] [--to S] [--bytes N]\n\n"
            "Reads the *.oartrace files in DIR (`oarsong run --trace DIR`), "
            "puts all ranks on one\ntime line and writes it for a viewer: "
            "ui.perfetto.dev opens both formats.\n\n"
            "  -o FILE     write there (trace.json, trace.perfetto)\n"
            "  --format    chrome: JSON (the default); perfetto: smaller\n"
            "  --from, --to  seconds of the time line\n"
            "  --bytes N   about as large at most (100M): the shortest "
            "intervals are left out\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

static int read_seconds(const char *text, double *value)
{
    char *end;

    *value = strtod(text, &end);
    return end != text && *end == 0;
}

/* Reads the option at *i; returns 0 if it is not understood. */
static int read_option(int argc, char **argv, int *i, trace_options *o)
{
    const char *name = argv[*i], *value;

    if (name[0] != '-') {
        if (o->folder != NULL)
            return tool_refuse("trace", "%s: one folder only", name);
        o->folder = name;
        return 1;
    }
    if (*i + 1 == argc)
        return tool_bad_option("trace", name, NULL, -1);
    value = argv[++*i];
    if (strcmp(name, "-o") == 0) {
        o->file = value;
        return 1;
    }
    if (strcmp(name, "--format") == 0) {
        o->writer = strcmp(value, "chrome") == 0     ? &trace_chrome
                    : strcmp(value, "perfetto") == 0 ? &trace_perfetto
                                                     : NULL;
        return o->writer != NULL || tool_bad_option("trace", name, value, 1);
    }
    if (strcmp(name, "--from") == 0)
        return read_seconds(value, &o->from_s) ||
               tool_bad_option("trace", name, value, 1);
    if (strcmp(name, "--to") == 0)
        return read_seconds(value, &o->to_s) ||
               tool_bad_option("trace", name, value, 1);
    if (strcmp(name, "--bytes") == 0)
        return tool_number(value, 1 << 16, (size_t)1 << 40, &o->bytes) ||
               tool_bad_option("trace", name, value, 1);
    return tool_bad_option("trace", name, value, -1);
}

static int is_shown(const trace_options *o, const oar_trace_event *e)
{
    return (double)e->end_ns >= o->from_s * 1e9 &&
           (double)e->start_ns <= o->to_s * 1e9;
}

static int power_of(int64_t ns)
{
    int p = 0;

    while (p < DURATIONS - 1 && ns >> p > 1)
        p++;
    return p;
}

/* Steps and numbers are always kept. */
static int may_go(const oar_trace_event *e)
{
    return e->kind != OAR_TRACE_STEP && e->kind != OAR_TRACE_METRIC;
}

/* Returns the length in ns below which intervals are left out, so that the file
 * is about as large as it may be; *dropped is how many those are. */
static int64_t shortest(const oar_trace *t, const trace_options *o,
                        uint64_t *dropped)
{
    uint64_t of[DURATIONS] = { 0 }, all = 0;
    uint64_t most = o->bytes / (size_t)o->writer->bytes;
    oar_trace_event e = oar_trace_event_init();
    int p = 0;

    for (uint64_t i = 0; oar_trace_event_at(t, i, &e) == OAR_OK; i++)
        if (is_shown(o, &e)) {
            all++;
            if (may_go(&e))
                of[power_of(e.end_ns - e.start_ns)]++;
        }
    *dropped = 0;
    while (p < DURATIONS && all - *dropped > most)
        *dropped += of[p++];
    return p == 0 ? 0 : (int64_t)1 << (p < 63 ? p : 62);
}

static int write_events(const oar_trace *t, const trace_options *o, FILE *to)
{
    trace_rows rows = { 0 };
    oar_trace_event e = oar_trace_event_init();
    uint64_t dropped;
    int64_t least = shortest(t, o, &dropped);

    o->writer->begin(to);
    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        int before = rows.count, row;

        if (oar_trace_event_at(t, i, &e) != OAR_OK || !is_shown(o, &e) ||
            (may_go(&e) && e.end_ns - e.start_ns < least))
            continue;
        row = trace_row_of(&rows, &e);
        if (row < 0)
            return 0;
        if (rows.count > before)
            o->writer->row(to, row, &rows.row[row]);
        o->writer->event(to, row, &e);
    }
    o->writer->end(to);
    free(rows.row);
    if (dropped > 0)
        printf("%llu intervals shorter than %.3g us are left out (--bytes)\n",
               (unsigned long long)dropped, (double)least / 1e3);
    return 1;
}

/* Says what was read, and how exact the clocks are. */
static void say(const oar_trace *t, const char *file)
{
    oar_trace_process p = oar_trace_process_init();

    printf("%s: %llu events of %d processes\n", file,
           (unsigned long long)oar_trace_events(t), oar_trace_processes(t));
    for (int i = 0; oar_trace_process_at(t, i, &p) == OAR_OK; i++) {
        if (p.error_ns > 0)
            printf("rank %d on %s: its clock is aligned to +- %.3g us\n",
                   p.rank, p.host, (double)p.error_ns / 1e3);
        else if (p.error_ns < 0)
            printf("rank %d on %s: its clock is the calendar's; no collective "
                   "joins it with the first rank\n",
                   p.rank, p.host);
        if (p.one_in > 1)
            printf("rank %d: one %s in %u was kept\n", p.rank,
                   p.by_seconds ? "second" : "step", p.one_in);
        if (p.stopped)
            printf("rank %d: its trace stops early: there was no room on the "
                   "disk\n",
                   p.rank);
        if (p.gpu_error_ns > 0)
            printf("rank %d: times of its GPU are aligned to +- %.3g us\n",
                   p.rank, (double)p.gpu_error_ns / 1e3);
        if (p.gpu_lost > 0)
            printf("rank %d: %llu intervals of its GPU are missing\n", p.rank,
                   (unsigned long long)p.gpu_lost);
        if (i + 1 == oar_trace_processes(t))
            break;
    }
}

int tool_trace(int argc, char **argv)
{
    trace_options o = { .writer = &trace_chrome,
                        .to_s = 1e12,
                        .bytes = (size_t)100 << 20 };
    oar_trace *t;
    FILE *to;
    int ok;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout);
        if (!read_option(argc, argv, &i, &o))
            return TOOL_USAGE;
    }
    if (o.folder == NULL)
        return usage(stderr);
    if (o.file == NULL)
        o.file = o.writer == &trace_chrome ? "trace.json" : "trace.perfetto";
    if (oar_trace_open(o.folder, &t) != OAR_OK)
        return tool_failed("trace");
    to = fopen(o.file, "w");
    ok = to != NULL && write_events(t, &o, to);
    if (to != NULL && (fclose(to) != 0 || !ok))
        ok = 0;
    if (!ok)
        fprintf(stderr, "oarsong trace: cannot write %s: %s\n", o.file,
                strerror(errno));
    else
        say(t, o.file);
    oar_trace_close(t);
    return ok ? TOOL_OK : TOOL_FAILED;
}
