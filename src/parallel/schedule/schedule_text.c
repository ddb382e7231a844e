/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_text: schedules and their actions in PyTorch's notation, written. */
#include <stdarg.h>
#include <stdio.h>

#include "parallel/schedule/schedule.h"

void oari_write(oari_schedule_writer *w, const char *format, ...)
{
    size_t left = w->used < w->room ? w->room - w->used : 0;
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(left > 0 ? w->text + w->used : NULL, left, format, args);
    va_end(args);
    w->used += length > 0 ? (size_t)length : 0;
}

const char *oari_act_notation(oar_act act)
{
    static const char *const notation[] = {
#define X(name, value, text) [name] = text,
        OAR_ACT_LIST(X)
#undef X
    };

    return notation[act];
}

void oari_write_action(oari_schedule_writer *w, const oar_action *a)
{
    oari_write(w, "%d%s", a->stage, oari_act_notation(a->act));
    if (a->micro >= 0)
        oari_write(w, "%d", a->micro);
}

/* Returns the place of an action in the text of the user, from 1. */
static int64_t place_in_text(const oar_schedule *s, int rank, int64_t index)
{
    int64_t place = 1;

    for (int64_t i = 0; i < index; i++)
        place += s->given || !oari_act_is_message(s->row[rank].data[i].act);
    return place;
}

void oari_write_place(oari_schedule_writer *w, const oar_schedule *s, int rank,
                      int64_t index)
{
    int64_t place = place_in_text(s, rank, index);
    int teen = place / 10 % 10 == 1, last = (int)(place % 10);

    oari_write(w, "rank %d at ", rank);
    oari_write_action(w, &s->row[rank].data[index]);
    oari_write(w, " (%lld%s)", (long long)place,
               teen || last > 3 ? "th"
               : last == 1      ? "st"
               : last == 2      ? "nd"
               : last == 3      ? "rd"
                                : "th");
}

/* Returns the next action of a row that is written, from `at` on. */
static int64_t next_written(const oari_action_row *row, int64_t at, int all)
{
    while (!all && at < row->count && oari_act_is_message(row->data[at].act))
        at++;
    return at;
}

static void write_row(oari_schedule_writer *w, const oari_action_row *row,
                      int all)
{
    int64_t at = next_written(row, 0, all);

    for (const char *comma = ""; at < row->count; comma = ",") {
        int64_t next = next_written(row, at + 1, all);
        int pair = row->data[at].joined && next < row->count &&
                   oari_act_computes(row->data[next].act);

        oari_write(w, "%s%s", comma, pair ? "(" : "");
        oari_write_action(w, &row->data[at]);
        if (pair) {
            oari_write(w, ";");
            oari_write_action(w, &row->data[next]);
            oari_write(w, ")OVERLAP_F_B");
            next = next_written(row, next + 1, all);
        }
        at = next;
    }
    oari_write(w, "\n");
}

size_t oar_schedule_text(const oar_schedule *schedule, int all, char *text,
                         size_t bytes)
{
    oari_schedule_writer w = { text, text != NULL ? bytes : 0, 0 };

    oari_write(&w, "%s", "");
    for (int r = 0; r < oar_schedule_ranks(schedule); r++)
        write_row(&w, &schedule->row[r], all);
    return w.used;
}
