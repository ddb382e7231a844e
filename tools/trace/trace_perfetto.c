/* SPDX-License-Identifier: Apache-2.0 */
/* trace_perfetto: Perfetto's own format, a protobuf: a row of packets, each a
 * track's description, or the begin or end of an interval. The numbers of
 * fields are Perfetto's public ones (docs/formats.md). */
#include <string.h>

#include "trace.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2 };
enum { SLICE_BEGIN = 1, SLICE_END = 2, COUNTER = 4 };

/* A message while it is made. Longer ones than this are not written. */
typedef struct message {
    unsigned char data[1024];
    size_t used;
} message;

static void put_varint(message *m, uint64_t value)
{
    do {
        unsigned char low = value & 127;

        value >>= 7;
        if (m->used < sizeof m->data)
            m->data[m->used++] = low | (value != 0 ? 128 : 0);
    } while (value != 0);
}

static void put_number(message *m, int field, uint64_t value)
{
    put_varint(m, (uint64_t)field << 3 | VARINT);
    put_varint(m, value);
}

static void put_fixed(message *m, int field, uint64_t value)
{
    put_varint(m, (uint64_t)field << 3 | FIXED64);
    for (int i = 0; i < 8 && m->used < sizeof m->data; i++)
        m->data[m->used++] = (unsigned char)(value >> 8 * i);
}

static void put_bytes(message *m, int field, const void *data, size_t bytes)
{
    put_varint(m, (uint64_t)field << 3 | BYTES);
    put_varint(m, bytes);
    if (bytes <= sizeof m->data - m->used) {
        memcpy(&m->data[m->used], data, bytes);
        m->used += bytes;
    }
}

static void put_string(message *m, int field, const char *text)
{
    put_bytes(m, field, text, strlen(text));
}

/* Writes a packet as field 1 of the trace. */
static void put_packet(FILE *to, const message *packet)
{
    message head = { .used = 0 };

    put_varint(&head, 1 << 3 | BYTES);
    put_varint(&head, packet->used);
    fwrite(head.data, 1, head.used, to);
    fwrite(packet->data, 1, packet->used, to);
}

static uint64_t process_track(int rank)
{
    return ((uint64_t)rank + 2) << 32;
}

static uint64_t row_track(int rank, int row)
{
    return process_track(rank) | ((uint64_t)row + 1);
}

static void begin(FILE *to)
{
    (void)to;
}

static void describe(FILE *to, const message *track)
{
    message packet = { .used = 0 };

    put_bytes(&packet, 60, track->data, track->used);
    put_packet(to, &packet);
}

static void name_row(FILE *to, int number, const trace_row *row)
{
    message process = { .used = 0 }, track = { .used = 0 };
    char text[160];

    put_number(&process, 1, (uint64_t)row->rank + 1);
    snprintf(text, sizeof text, "rank %d", row->rank);
    put_string(&process, 6, text);
    put_number(&track, 1, process_track(row->rank));
    put_bytes(&track, 3, process.data, process.used);
    describe(to, &track);

    track.used = 0;
    trace_row_name(row, text, sizeof text);
    put_number(&track, 1, row_track(row->rank, number));
    put_string(&track, 2, text);
    put_number(&track, 5, process_track(row->rank));
    if (row->name != NULL)
        put_bytes(&track, 8, "", 0);
    describe(to, &track);
}

static void put_event(FILE *to, int64_t ns, const message *event)
{
    message packet = { .used = 0 };

    put_number(&packet, 8, (uint64_t)ns);
    put_number(&packet, 10, 1);
    put_bytes(&packet, 11, event->data, event->used);
    put_packet(to, &packet);
}

static void annotate(message *event, const char *name, const char *text,
                     uint64_t number)
{
    message note = { .used = 0 };

    put_string(&note, 10, name);
    if (text != NULL)
        put_string(&note, 6, text);
    else
        put_number(&note, 3, number);
    put_bytes(event, 4, note.data, note.used);
}

static void metric(FILE *to, int row, const oar_trace_event *e)
{
    message m = { .used = 0 };
    uint64_t bits;

    memcpy(&bits, &e->value, sizeof bits);
    put_number(&m, 9, COUNTER);
    put_number(&m, 11, row_track(e->rank, row));
    put_fixed(&m, 44, bits);
    put_event(to, e->start_ns, &m);
}

static void event(FILE *to, int row, const oar_trace_event *e)
{
    message m = { .used = 0 };
    char name[160];

    if (e->kind == OAR_TRACE_METRIC) {
        metric(to, row, e);
        return;
    }
    trace_event_name(e, name, sizeof name);
    put_number(&m, 9, SLICE_BEGIN);
    put_number(&m, 11, row_track(e->rank, row));
    put_string(&m, 22, trace_kind_word(e->kind));
    put_string(&m, 23, name);
    if (e->kind == OAR_TRACE_OPERATION || e->kind == OAR_TRACE_CALL) {
        annotate(&m, "group", e->group, 0);
        annotate(&m, "at", e->name, 0);
        annotate(&m, "number", NULL, e->number);
        annotate(&m, "bytes", NULL, e->bytes);
        if (e->failed)
            annotate(&m, "failed", NULL, 1);
    }
    if (e->id != 0)
        put_fixed(&m, 47, e->id);
    put_event(to, e->start_ns, &m);
    m.used = 0;
    put_number(&m, 9, SLICE_END);
    put_number(&m, 11, row_track(e->rank, row));
    put_event(to, e->end_ns, &m);
}

static void end(FILE *to)
{
    (void)to;
}

const trace_writer trace_perfetto = { begin, name_row, event, end, 110 };
