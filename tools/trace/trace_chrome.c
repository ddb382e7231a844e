/* SPDX-License-Identifier: Apache-2.0 */
/* trace_chrome: the JSON that chrome://tracing and ui.perfetto.dev open. */
#include "trace.h"

static void put_text(FILE *to, const char *text)
{
    putc('"', to);
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            fprintf(to, "\\%c", c);
        else if (c < 0x20)
            fprintf(to, "\\u%04x", c);
        else
            putc(c, to);
    }
    putc('"', to);
}

static void begin(FILE *to)
{
    fprintf(to, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                "{\"ph\":\"M\",\"pid\":0,\"name\":\"trace\",\"args\":{}}");
}

static void name_row(FILE *to, int number, const trace_row *row)
{
    char text[160];

    trace_row_name(row, text, sizeof text);
    fprintf(to,
            ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
            "\"name\":\"thread_name\",\"args\":{\"name\":",
            row->rank, number);
    put_text(to, text);
    fprintf(to,
            "}},\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\","
            "\"args\":{\"name\":\"rank %d\"}}",
            row->rank, row->rank);
}

static void metric(FILE *to, int row, const oar_trace_event *e)
{
    fprintf(to, ",\n{\"ph\":\"C\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":",
            e->rank, row, (double)e->start_ns / 1e3);
    put_text(to, e->name);
    fprintf(to, ",\"args\":{\"value\":%.17g}}", e->value);
}

static void event(FILE *to, int row, const oar_trace_event *e)
{
    char name[160];

    if (e->kind == OAR_TRACE_METRIC) {
        metric(to, row, e);
        return;
    }
    trace_event_name(e, name, sizeof name);
    fprintf(to,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
            "\"dur\":%.3f,\"cat\":\"%s\",\"name\":",
            e->rank, row, (double)e->start_ns / 1e3,
            (double)(e->end_ns - e->start_ns) / 1e3, trace_kind_word(e->kind));
    put_text(to, name);
    if (e->id != 0)
        fprintf(to,
                ",\"bind_id\":\"0x%llx\",\"flow_in\":true,"
                "\"flow_out\":true",
                (unsigned long long)e->id);
    if (e->kind == OAR_TRACE_OPERATION || e->kind == OAR_TRACE_CALL) {
        fprintf(to, ",\"args\":{\"group\":");
        put_text(to, e->group);
        fprintf(to, ",\"at\":");
        put_text(to, e->name);
        fprintf(to, ",\"number\":%llu,\"bytes\":%llu%s}",
                (unsigned long long)e->number, (unsigned long long)e->bytes,
                e->failed ? ",\"failed\":true" : "");
    }
    putc('}', to);
}

static void end(FILE *to)
{
    fprintf(to, "\n]}\n");
}

const trace_writer trace_chrome = { begin, name_row, event, end, 220 };
