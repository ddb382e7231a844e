/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_words: the words that sentences and tables are made of. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/vec.h"
#include "autopsy/autopsy.h"

void oari_say(oari_words *w, const char *format, ...)
{
    va_list args;
    int bytes;

    va_start(args, format);
    bytes = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (w->failed || bytes < 0 ||
        oari_array_reserve(w->text, w->used, w->room, bytes + 1) != OAR_OK) {
        w->failed = 1;
        return;
    }
    va_start(args, format);
    vsnprintf(w->text + w->used, (size_t)bytes + 1, format, args);
    va_end(args);
    w->used += (size_t)bytes;
}

void oari_rank_list(const int *rank, int count, const char *last, char *text,
                    size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int i = 0, n; i < count; i += n) {
        char one[40];

        n = 1; /* ranks from here on that follow each other */
        while (i + n < count && rank[i + n] == rank[i] + n)
            n++;
        if (n < 3)
            n = 1;
        snprintf(one, sizeof one, n > 1 ? "%s%d-%d" : "%s%d",
                 i == 0           ? ""
                 : i + n == count ? last
                                  : ", ",
                 rank[i], rank[i] + n - 1);
        if (used + strlen(one) + 5 > bytes) {
            snprintf(text + used, bytes - used, "..");
            return;
        }
        used += (size_t)snprintf(text + used, bytes - used, "%s", one);
    }
}

void oari_age_text(int64_t ns, char text[32])
{
    int64_t s = ns / 1000000000;

    if (s < 1)
        snprintf(text, 32, "%" PRId64 " ms", ns / 1000000);
    else if (s < 120)
        snprintf(text, 32, "%" PRId64 ".%d s", s,
                 (int)(ns % 1000000000 / 100000000));
    else if (s < 7200)
        snprintf(text, 32, "%" PRId64 " min %d s", s / 60, (int)(s % 60));
    else
        snprintf(text, 32, "%" PRId64 " h %d min", s / 3600,
                 (int)(s / 60 % 60));
}

const char *oari_process_state_name(oari_process_state life)
{
    switch (life) {
    case OARI_PROCESS_ABSENT: return "absent";
    case OARI_PROCESS_RUNS: return "running";
    case OARI_PROCESS_SLEEPS: return "sleeping";
    case OARI_PROCESS_STOPPED: return "stopped";
    case OARI_PROCESS_EXITED: return "exited";
    case OARI_PROCESS_DEAD: return "dead";
    case OARI_PROCESS_UNKNOWN: break;
    }
    return "unknown";
}

const char *oari_arrival_name(oari_arrival arrival)
{
    static const char *const name[] = {
        [OARI_UNKNOWN] = "unknown", [OARI_ABSENT] = "not yet",
        [OARI_JOINING] = "joining", [OARI_IDLE] = "-",
        [OARI_MISSING] = "missing", [OARI_LEFT] = "left",
        [OARI_WAITS] = "waits",     [OARI_FAILED_IN] = "failed",
        [OARI_DONE_WITH] = "done",
    };

    return name[arrival];
}

int oari_op_is_call(const oari_op_view *op)
{
    return op->kind == OAR_COLL_RECV && op->tag == (int64_t)OARI_CALL_TAG;
}

/* Adds `call #7 of "pull" on rank 2, made by "step", at x.c:3`. */
static void add_call(oari_text_line *to, const oari_group_view *g,
                     const oari_op_view *op, const oar_record *r)
{
    const char *by = strstr(r->label, OARI_CALL_BY);
    int bytes = by != NULL ? (int)(by - r->label) : (int)strlen(r->label);
    int world =
        op->root >= 0 && op->root < g->ranks ? g->member[op->root].world : -1;

    oari_text_add(to, "call #%" PRIu64 " of \"%.*s\" on rank %d", op->sequence,
                  bytes, r->label, world >= 0 ? world : op->root);
    if (by != NULL)
        oari_text_add(to, ", made by \"%s\"", by + strlen(OARI_CALL_BY));
    oari_text_add(to, ", at %s", r->site);
    if (r->count > 0) {
        char age[32];

        oari_age_text((int64_t)r->count * 1000000, age);
        oari_text_add(to, " (%s at most)", age);
    }
}

/* A peer is named by its rank in the world, where that is known. */
void oari_text_add_op(oari_text_line *to, const oari_group_view *g,
                      const oari_member *m, const oari_op_view *op)
{
    oar_record r = oari_op_record(m, op);

    if (oari_op_is_call(op)) {
        add_call(to, g, op, &r);
        return;
    }
    oari_text_add(to, "%s #%" PRIu64, oar_coll_name(op->kind),
                  op->number != 0 ? op->number : op->sequence);
    if (op->kind >= OAR_COLL_SEND) {
        const char *way = op->kind == OAR_COLL_SEND ? "to" : "from";

        if (op->root >= 0 && op->root < g->ranks) {
            int world = g->member[op->root].world;

            oari_text_add(to, " %s rank %d", way,
                          world >= 0 ? world : op->root);
        } else
            oari_text_add(to, " %s any rank", way);
        if (op->tag >= 0)
            oari_text_add(to, ", tag %" PRId64 ",", op->tag);
    }
    oari_text_add(to, " at %s", r.site);
    if (r.label[0] != 0)
        oari_text_add(to, " \"%s\"", r.label);
}
