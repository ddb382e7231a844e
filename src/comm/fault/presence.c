/* SPDX-License-Identifier: Apache-2.0 */
/* presence: the state of another rank. The links know whether it is gone. On
 * this host /proc says whether its process is stopped; of another host it is
 * known only when its system last answered. */
#include "comm/fault/presence.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "record/op_report.h"
#include "comm/fault/mismatch.h"
#include "comm/fault/fault.h"

/* ---- state --------------------------------------------------------------- */

static int64_t pid_of(const oar_group *g, int rank)
{
    int here = g->board != NULL ? oari_board_rank(g->board, rank) : -1;

    if (here >= 0)
        return g->board->control[here]->pid;
    return g->in_tree->pid != NULL ? g->in_tree->pid(g->self, rank) : 0;
}

/* Returns the state letter of /proc/PID/stat, which stands behind the name in
 * brackets; 0: there is no such process. */
static char process_state(int64_t pid)
{
    char path[48], line[512];
    const char *end;
    FILE *file;
    size_t got;

    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    if ((file = fopen(path, "re")) == NULL)
        return 0;
    got = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[got] = 0;
    end = strrchr(line, ')');
    return end != NULL && end[1] == ' ' ? end[2] : 0;
}

const char *oari_presence_end(int gone)
{
    switch (gone) {
    case OARI_PEER_LEFT: return "has left the group";
    case OARI_PEER_UNREACHABLE: return "cannot be reached any more";
    default: return "has died";
    }
}

oari_presence oari_presence_of(const oar_group *g, int rank)
{
    int gone = oari_group_gone(g, rank);
    int64_t pid;

    if (gone != 0)
        return gone == OARI_PEER_LEFT          ? OARI_PRESENCE_LEFT
               : gone == OARI_PEER_UNREACHABLE ? OARI_PRESENCE_UNREACHABLE
                                               : OARI_PRESENCE_DEAD;
    if ((pid = pid_of(g, rank)) == 0)
        return OARI_PRESENCE_ELSEWHERE;
    switch (process_state(pid)) {
    case 'T':
    case 't': return OARI_PRESENCE_STOPPED;
    case 'Z':
    case 'X':
    case 0: return OARI_PRESENCE_DEAD;
    default: return OARI_PRESENCE_RUNNING;
    }
}

const char *oari_presence_word(oari_presence presence)
{
    static const char *const word[] = {
#define X(name, words) [name] = words,
        OARI_PRESENCE_LIST(X)
#undef X
    };

    return word[presence];
}

/* ---- scopes -------------------------------------------------------------- */

int oari_presence_scope(const oar_group *g, int rank, oari_timeout_scope *scope)
{
    int here = g->board != NULL ? oari_board_rank(g->board, rank) : -1;

    if (here >= 0) {
        if (!oari_bulletin_read(oari_board_bulletin(g->board, here),
                                OARI_FACT_TIMEOUT_SCOPE, scope))
            return 0;
    } else if (rank == g->rank)
        oari_timeout_scope_mine(g, scope);
    else
        return oari_far_scope(g, rank, scope);
    return scope->until_ns > oari_now_ns();
}

/* ---- texts --------------------------------------------------------------- */

/* Adds to a text as far as there is room. */
static void add_text(char *text, size_t bytes, const char *more)
{
    size_t used = strlen(text);

    snprintf(text + used, bytes - used, "%s", more);
}

static void add_last(const oar_group *g, int rank, char *text, size_t bytes)
{
    int here = g->board != NULL ? oari_board_rank(g->board, rank) : -1;
    const void *recorder = here >= 0 ? g->board->recorder[here] : NULL;
    char what[256], age[32];
    const char *said = oari_mismatch_last(g->engine.mismatch, rank);
    oar_record r;

    if (said[0] != 0 && (recorder == NULL || oari_mismatch_is_elsewhere(
                                                 g->engine.mismatch, rank))) {
        add_text(text, bytes, "; its last operation was ");
        add_text(text, bytes, said);
        return;
    }
    if (recorder == NULL)
        return;
    if (oari_recorder_newest(recorder, 0, &r) != OAR_OK) {
        add_text(text, bytes, "; it has not called anything yet");
        return;
    }
    add_text(text, bytes, "; its last operation was ");
    oari_record_text(&r, what, sizeof what);
    add_text(text, bytes, what);
    oari_duration_text(oari_now_ns() -
                           (r.done_ns != 0 ? r.done_ns : r.posted_ns),
                       age, sizeof age);
    add_text(text, bytes, r.done_ns != 0 ? ", done " : ", for ");
    add_text(text, bytes, age);
    add_text(text, bytes, r.done_ns != 0 ? " ago" : "");
}

static void add_scope(const oar_group *g, int rank, char *text, size_t bytes)
{
    char age[32], limit[48] = "any time", line[160];
    oari_timeout_scope s;

    if (!oari_presence_scope(g, rank, &s))
        return;
    oari_duration_text(oari_now_ns() - s.since_ns, age, sizeof age);
    if (s.until_ns != OARI_NEVER)
        oari_duration_text(s.until_ns - s.since_ns, limit, sizeof limit);
    snprintf(line, sizeof line, "; in scope \"%s\" for %s (up to %s)", s.label,
             age, limit);
    add_text(text, bytes, line);
}

static void add_answer(const oar_group *g, int rank, char *text, size_t bytes)
{
    int64_t ms =
        g->in_tree->answered != NULL ? g->in_tree->answered(g->self, rank) : -1;
    char age[32], line[64];

    if (ms < 0)
        return;
    oari_duration_text(ms * 1000000, age, sizeof age);
    snprintf(line, sizeof line, ", whose system answered %s ago", age);
    add_text(text, bytes, line);
}

void oari_presence_text(const oar_group *g, int rank, char *text, size_t bytes)
{
    int threads = g->board != NULL && g->board->world != NULL;
    int64_t pid = pid_of(g, rank);
    char process[32];
    size_t used;

    if (g->in_world != NULL)
        snprintf(text, bytes, "rank %d (world rank %d, ", rank,
                 g->in_world[rank]);
    else
        snprintf(text, bytes, "rank %d (", rank);
    snprintf(process, sizeof process, "pid %" PRId64, pid);
    add_text(text, bytes,
             pid != 0 ? process : oari_presence_word(OARI_PRESENCE_ELSEWHERE));
    if (pid == 0)
        add_answer(g, rank, text, bytes);
    else if (!threads && !oari_group_gone(g, rank)) {
        add_text(text, bytes, ", ");
        add_text(text, bytes, oari_presence_word(oari_presence_of(g, rank)));
    }
    add_scope(g, rank, text, bytes);
    add_last(g, rank, text, bytes);
    used = strlen(text);
    if (used + 1 < bytes)
        add_text(text, bytes, ")");
}
