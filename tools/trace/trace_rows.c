/* SPDX-License-Identifier: Apache-2.0 */
/* trace_rows: which row of a time line an event is on, and what it is called.
 */
#include <stdlib.h>
#include <string.h>

#include "trace.h"

static int is_operation(const oar_trace_event *e)
{
    return e->kind == OAR_TRACE_OPERATION || e->kind == OAR_TRACE_CALL;
}

/* A row that this event can go on: operations beside each other need one each,
 * everything else of a thread nests. */
static int fits(const trace_row *row, const oar_trace_event *e)
{
    if (row->process != e->process || row->rank != e->rank)
        return 0;
    if (is_operation(e))
        return row->thread < 0 && row->name == NULL &&
               row->busy_until_ns <= e->start_ns;
    if (e->kind == OAR_TRACE_METRIC)
        return row->name != NULL && strcmp(row->name, e->name) == 0;
    if (e->kind == OAR_TRACE_GPU || row->gpu != NULL)
        return e->kind == OAR_TRACE_GPU && row->gpu != NULL &&
               strcmp(row->gpu, e->group) == 0;
    return row->thread == e->thread;
}

static int lanes(const trace_rows *rows, const oar_trace_event *e)
{
    int count = 0;

    for (int i = 0; i < rows->count; i++)
        count += rows->row[i].process == e->process &&
                 rows->row[i].rank == e->rank && rows->row[i].thread < 0 &&
                 rows->row[i].name == NULL;
    return count;
}

int trace_row_of(trace_rows *rows, const oar_trace_event *e)
{
    trace_row *row;
    int i = 0;

    while (i < rows->count && !fits(&rows->row[i], e))
        i++;
    if (i == rows->room) {
        int room = rows->room == 0 ? 64 : 2 * rows->room;

        row = realloc(rows->row, (size_t)room * sizeof *row);
        if (row == NULL)
            return -1;
        rows->row = row;
        rows->room = room;
    }
    row = &rows->row[i];
    if (i == rows->count) {
        *row = (trace_row){ .process = e->process,
                            .rank = e->rank,
                            .thread = is_operation(e) ? -1 : e->thread };
        if (e->kind == OAR_TRACE_METRIC) {
            row->name = e->name;
            row->thread = -1;
        } else if (e->kind == OAR_TRACE_GPU)
            row->gpu = e->group;
        else if (is_operation(e))
            row->lane = lanes(rows, e);
        rows->count++;
    }
    row->busy_until_ns = e->end_ns;
    return i;
}

void trace_row_name(const trace_row *row, char *text, size_t room)
{
    if (row->name != NULL)
        snprintf(text, room, "%s", row->name);
    else if (row->gpu != NULL)
        snprintf(text, room, "%s", row->gpu);
    else if (row->thread >= 0)
        snprintf(text, room, "thread %lld", (long long)row->thread);
    else if (row->lane == 0)
        snprintf(text, room, "operations");
    else
        snprintf(text, room, "operations %d", row->lane + 1);
}

const char *trace_kind_word(oar_trace_kind kind)
{
    switch (kind) {
    case OAR_TRACE_OPERATION: return "operation";
    case OAR_TRACE_CALL: return "call";
    case OAR_TRACE_WAIT: return "wait";
    case OAR_TRACE_FORWARD: return "forward";
    case OAR_TRACE_BACKWARD: return "backward";
    case OAR_TRACE_OPTIMIZER: return "optimizer";
    case OAR_TRACE_LOADER: return "loader";
    case OAR_TRACE_CHECKPOINT: return "checkpoint";
    case OAR_TRACE_STAGE: return "stage";
    case OAR_TRACE_GPU: return "gpu";
    case OAR_TRACE_USER: return "user";
    case OAR_TRACE_METRIC: return "metric";
    case OAR_TRACE_STEP: return "step";
    }
    return "?";
}

void trace_event_name(const oar_trace_event *e, char *text, size_t room)
{
    switch (e->kind) {
    case OAR_TRACE_OPERATION:
        snprintf(text, room, "%s", oar_coll_name(e->op));
        break;
    case OAR_TRACE_BACKWARD:
        snprintf(text, room, "%s backward", e->name);
        break;
    case OAR_TRACE_STAGE:
        snprintf(text, room, "%d%s%llu", e->peer, e->name,
                 (unsigned long long)e->number);
        break;
    case OAR_TRACE_STEP: snprintf(text, room, "step %.0f", e->value); break;
    default: snprintf(text, room, "%s", e->name);
    }
}
