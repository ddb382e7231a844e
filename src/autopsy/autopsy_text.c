/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_text: the verdict and the tables, for people. Lines of at most 120
 * columns; in large groups ranks that are alike share a line. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "autopsy/autopsy.h"

enum {
    ONE_EACH = 8, /* groups of up to this size have a line for each rank */
    MAX_WAITS = 16,
    WIDTH = 120,
    RANKS = 11,
    STATE = 8,
    LAST = 45,
    AGE = 11,
    LIFE = 20
};

/* ---- rows ---------------------------------------------------------------- */

typedef struct row {
    char last[288];
    char age[32], life[192], host[160];
} row;

/* Adds a text in its column, cut with ".." if it is too long. */
static void say_cell(oari_words *w, const char *text, int width)
{
    int n = (int)strlen(text);

    if (n <= width)
        oari_say(w, "%-*s  ", width, text);
    else
        oari_say(w, "%.*s..  ", width - 2, text);
}

static row fill_row(const oari_group_view *g, const oari_member *m)
{
    row r = { "-", "-", "-", "-" };
    const oari_dump *d = m->dump;

    if (d == NULL)
        return r;
    if (m->ring != NULL && m->ops > 0) {
        const oari_op_view *op = oari_member_newest(m);
        oari_text_line last = { r.last, sizeof r.last, 0 };

        oari_text_add_op(&last, g, m, op);
        if (op->state == OAR_RECORD_DONE)
            oari_text_add(&last, ", done");
        oari_age_text(oari_op_age(m, op), r.age);
    }
    snprintf(r.life, sizeof r.life, "%s",
             d->note[0] != 0                  ? d->note
             : d->life == OARI_PROCESS_ABSENT ? "no call yet"
             : d->life == OARI_PROCESS_UNKNOWN
                 ? "not seen from here"
                 : oari_process_state_name(d->life));
    snprintf(r.host, sizeof r.host, "%s:%" PRId64, d->image.box->head.host,
             atomic_load(&d->image.box->head.owner));
    return r;
}

/* Returns whether two members can share a line: all but age and pid is equal.
 */
static int are_alike(const oari_group_view *g, const oari_member *a,
                     const oari_member *b)
{
    row x, y;

    if (a->arrival != b->arrival || (a->dump == NULL) != (b->dump == NULL))
        return 0;
    if (a->dump == NULL)
        return 1;
    if (a->last != b->last || a->dump->life != b->dump->life)
        return 0; /* the most frequent difference, and quick to find */
    x = fill_row(g, a);
    y = fill_row(g, b);
    return strcmp(x.last, y.last) == 0 && strcmp(x.life, y.life) == 0 &&
           strcmp(a->dump->image.box->head.host,
                  b->dump->image.box->head.host) == 0;
}

static void say_row(oari_words *w, const oari_group_view *g,
                    const oari_member *m, const int *rank, int count)
{
    row r = fill_row(g, m);
    char ranks[RANKS + 2];

    oari_rank_list(rank, count, ", ", ranks, sizeof ranks);
    if (count > 1 && m->dump != NULL)
        snprintf(r.host, sizeof r.host, "%s, %d pids",
                 m->dump->image.box->head.host, count);
    oari_say(w, "  ");
    say_cell(w, ranks, RANKS);
    say_cell(w, oari_arrival_name(m->arrival), STATE);
    say_cell(w, r.last, LAST);
    say_cell(w, r.age, AGE);
    say_cell(w, r.life, LIFE);
    oari_say(w, "%.*s\n", WIDTH - (RANKS + STATE + LAST + AGE + LIFE + 12),
             r.host);
}

static void say_rows(oari_words *w, const oari_group_view *g)
{
    unsigned char said[OARI_MEMBERS] = { 0 };
    int rank[OARI_MEMBERS];

    for (int i = 0; i < g->ranks; i++) {
        int count = 0;

        for (int j = i; j < g->ranks && !said[i]; j++)
            if (!said[j] &&
                (j == i || (g->ranks > ONE_EACH &&
                            are_alike(g, &g->member[i], &g->member[j])))) {
                const oari_member *m = &g->member[j];

                rank[count++] = m->world >= 0 ? m->world : m->rank;
                said[j] = j != i;
            }
        if (count > 0)
            say_row(w, g, &g->member[i], rank, count);
    }
}

/* ---- groups -------------------------------------------------------------- */

/* Adds the operation that the group is at. */
static void say_operation(oari_words *w, const oari_group_view *g)
{
    const oari_member *m = &g->member[g->teller];
    const oari_op_view *op = m->at;
    oar_record r = oari_op_record(m, op);

    oari_say(w, ": %s #%" PRIu64, oar_coll_name(op->kind), g->number);
    if (op->kind != OAR_COLL_BARRIER) {
        double bytes = (double)op->count * (double)oar_dtype_size(op->dtype);

        oari_say(w, ", %" PRIu64 " %s (", op->count, oar_dtype_name(op->dtype));
        if (bytes < 1024)
            oari_say(w, "%.0f B)", bytes);
        else if (bytes < 1024 * 1024)
            oari_say(w, "%.1f KiB)", bytes / 1024);
        else if (bytes < 1024.0 * 1024 * 1024)
            oari_say(w, "%.1f MiB)", bytes / 1048576);
        else
            oari_say(w, "%.1f GiB)", bytes / 1073741824);
    }
    if (oari_kind_reduces(op->kind))
        oari_say(w, ", %s", oar_reduce_op_name(op->op));
    if (op->root >= 0)
        oari_say(w, ", root %d", op->root);
    oari_say(w, ", at %s", r.site);
    if (r.label[0] != 0)
        oari_say(w, " \"%s\"", r.label);
}

static void say_messages(oari_words *w, const oari_analysis *a,
                         const oari_group_view *g)
{
    int said = 0, left = 0;

    for (int i = 0; i < a->waits; i++) {
        const oari_wait *wait = &a->wait[i];
        char what[91], age[32];

        if (wait->in != g || wait->op == NULL || wait->op->kind < OAR_COLL_SEND)
            continue;
        if (said == MAX_WAITS) {
            left++;
            continue;
        }
        oari_text_add_op(&(oari_text_line){ what, sizeof what, 0 }, g,
                         wait->member, wait->op);
        oari_age_text(wait->age_ns, age);
        oari_say(w, "  rank %d has waited %s in %s\n", wait->member->world, age,
                 what);
        said++;
    }
    if (left > 0)
        oari_say(w, "  %d more message%s waiting\n", left,
                 left == 1 ? " is" : "s are");
}

static void say_group(oari_words *w, const oari_analysis *a,
                      const oari_group_view *g)
{
    const oari_ring_fault *f = g->fault;

    oari_say(w, "\ngroup \"%s\", %d rank%s%s%s", g->ring->group, g->ranks,
             g->ranks == 1 ? "" : "s", g->ring->backend[0] != 0 ? ", " : "",
             g->ring->backend);
    if (g->ring->epoch != 0)
        oari_say(w, ", epoch %" PRId64, g->ring->epoch);
    if (g->number != 0 && g->teller >= 0)
        say_operation(w, g);
    else if (g->joining)
        oari_say(w, ": being created");
    oari_say(w, "\n  ");
    say_cell(w, "ranks", RANKS);
    say_cell(w, "state", STATE);
    say_cell(w, "last operation", LAST);
    say_cell(w, "age", AGE);
    say_cell(w, "process", LIFE);
    oari_say(w, "host:pid\n");
    say_rows(w, g);
    say_messages(w, a, g);
    if (f == NULL)
        return;
    oari_say(w, "  fault: %s", oar_status_name((oar_status)f->status));
    if (f->rank >= 0 && f->rank < g->ranks)
        oari_say(w, ", seen by rank %d (%s:%" PRId64 ")",
                 g->member[f->rank].world, f->host, f->pid);
    if (f->site[0] != 0)
        oari_say(w, " in %s at %s", f->operation, f->site);
    oari_say(w, "\n    %s\n", f->text);
}

/* ---- remarks ------------------------------------------------------------- */

/* Names the ranks that are in no table. */
static void say_unread(oari_words *w, const oar_autopsy *a)
{
    int rank[OARI_MEMBERS], n = 0;
    char list[96];

    for (int r = 0; r < a->ranks && r < OARI_MEMBERS; r++) {
        const oari_dump *d = oari_dump_of_rank(a, r);

        if (d == NULL)
            rank[n++] = r;
        else if (d->image.box == NULL)
            oari_say(w, "rank %d is unknown%s%s: %s\n", r,
                     d->note[0] != 0 ? ", " : "", d->note, d->why);
        else if (d->life == OARI_PROCESS_ABSENT)
            oari_say(w, "rank %d has not created a group yet%s%s\n", r,
                     d->note[0] != 0 ? ": " : "", d->note);
    }
    if (n > 0) {
        oari_rank_list(rank, n, " and ", list, sizeof list);
        oari_say(w, "rank%s %s %s unknown: no recorder file was found\n",
                 n == 1 ? "" : "s", list, n == 1 ? "is" : "are");
    }
    for (int i = 0; i < a->dumps; i++)
        if (a->dump[i].rank < 0 && a->dump[i].image.box == NULL)
            oari_say(w, "a recorder file was left out: %s\n", a->dump[i].why);
}

/* Names the ranks of which not all groups are in a table. */
static void say_lost_groups(oari_words *w, const oar_autopsy *a)
{
    for (int i = 0; i < a->dumps; i++) {
        const oari_recorder_copy *image = &a->dump[i].image;
        uint32_t crowded;

        if (image->box == NULL)
            continue;
        crowded = atomic_load(&image->box->head.crowded);
        if (crowded > 0)
            oari_say(w,
                     "rank %d had more than %d groups: %u of them %s not "
                     "recorded\n",
                     a->dump[i].rank, OARI_FILE_RINGS, crowded,
                     crowded == 1 ? "is" : "are");
        if (image->damaged > 0)
            oari_say(w, "rank %d: %d group%s in its recorder file %s damaged\n",
                     a->dump[i].rank, image->damaged,
                     image->damaged == 1 ? "" : "s",
                     image->damaged == 1 ? "is" : "are");
    }
}

/* Returns whether no process was seen alive, or seen to end. Ages then say less
 * than they seem to. */
static int none_seen(const oar_autopsy *a)
{
    for (int i = 0; i < a->dumps; i++) {
        const oari_dump *d = &a->dump[i];

        if (d->image.box != NULL &&
            (d->image.box->head.seen_ns != 0 ||
             d->image.box->head.fell_ns != 0 || !oari_dump_gone(d)))
            return 0;
    }
    return 1;
}

oar_status oar_autopsy_text(const oar_autopsy *autopsy, char **text)
{
    oari_analysis a = { 0 };
    oari_words w = { 0 };
    int idle = 0;

    if (autopsy == NULL || text == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_text without %s",
                         autopsy == NULL ? "an autopsy"
                                         : "a place for the result");
    OARI_TRY(oari_analysis_make(autopsy, &a));
    oari_say(&w, "%s\n", a.verdict);
    for (int i = 0; i < a.groups; i++)
        if (a.group[i].idle)
            idle++;
        else
            say_group(&w, &a, &a.group[i]);
    if (idle > 0)
        oari_say(&w, "\n%d group%s idle\n", idle, idle == 1 ? " is" : "s are");
    if (a.wrong && none_seen(autopsy))
        oari_say(&w, "\nno process is alive any more: ages are counted from "
                     "the last thing that any rank did\n");
    say_unread(&w, autopsy);
    say_lost_groups(&w, autopsy);
    oari_analysis_clear(&a);
    if (w.failed) {
        oari_free(w.text);
        return oari_fail(OAR_E_NOMEM, "the text of an autopsy");
    }
    *text = w.text;
    return OAR_OK;
}
