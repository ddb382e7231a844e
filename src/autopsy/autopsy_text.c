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
    ONE_EACH = 8, /* up to so many ranks have a line each */
    MAX_WAITS = 16,
    WIDTH = 120,
    RANKS = 11,
    HERE = 8,
    LAST = 45,
    AGE = 11,
    LIFE = 20
};

static const char *const here_names[] = {
    [OARI_UNKNOWN] = "unknown", [OARI_ABSENT] = "not yet",
    [OARI_JOINING] = "joining", [OARI_IDLE] = "-",
    [OARI_MISSING] = "missing", [OARI_LEFT] = "left",
    [OARI_WAITS] = "waits",     [OARI_FAILED_IN] = "failed",
    [OARI_DONE_WITH] = "done",
};

const char *oari_here_name(oari_here here)
{
    return here_names[here];
}

/* ---- rows ---------------------------------------------------------------- */

typedef struct row {
    char last[288];
    char age[32], life[192], host[160];
} row;

/* A text in its column, cut with ".." if it is too long. */
static void say_cell(oari_words *w, const char *text, int width)
{
    int n = (int)strlen(text);

    if (n <= width)
        oari_say(w, "%-*s  ", width, text);
    else
        oari_say(w, "%.*s..  ", width - 2, text);
}

static void fill_last(const oari_case *c, const oari_part *p, char *text,
                      size_t bytes)
{
    const oari_op *op = oari_part_newest(p);
    size_t n;

    oari_op_text(c, p, op, text, bytes);
    n = strlen(text);
    if (op->state == OAR_RECORD_DONE && n < bytes)
        snprintf(text + n, bytes - n, ", done");
}

static row fill_row(const oari_case *c, const oari_part *p)
{
    row r = { "-", "-", "-", "-" };
    const oari_head *head;

    if (p->witness == NULL)
        return r;
    head = &p->witness->image.box->head;
    if (p->ring != NULL && p->ops > 0) {
        fill_last(c, p, r.last, sizeof r.last);
        oari_age_text(oari_op_age(p, oari_part_newest(p)), r.age);
    }
    oari_life_text(p->witness, r.life, sizeof r.life);
    snprintf(r.host, sizeof r.host, "%s:%" PRId64, head->host,
             atomic_load(&head->owner));
    return r;
}

/* Whether two parts can share a line: but for age and pid they are the same. */
static int alike(const oari_case *c, const oari_part *a, const oari_part *b)
{
    row x, y;

    if (a->here != b->here || (a->witness == NULL) != (b->witness == NULL))
        return 0;
    if (a->witness == NULL)
        return 1;
    if (a->last != b->last || a->witness->life != b->witness->life)
        return 0; /* as they most often differ, and quickly said */
    x = fill_row(c, a);
    y = fill_row(c, b);
    return strcmp(x.last, y.last) == 0 && strcmp(x.life, y.life) == 0 &&
           strcmp(a->witness->image.box->head.host,
                  b->witness->image.box->head.host) == 0;
}

static void say_row(oari_words *w, const oari_case *c, const oari_part *p,
                    const int *rank, int count)
{
    row r = fill_row(c, p);
    char ranks[RANKS + 2];

    if (count == 1)
        snprintf(ranks, sizeof ranks, "%d", rank[0]);
    else {
        oari_rank_list(rank, count, ranks, sizeof ranks);
        if (p->witness != NULL)
            snprintf(r.host, sizeof r.host, "%s, %d pids",
                     p->witness->image.box->head.host, count);
    }
    oari_say(w, "  ");
    say_cell(w, ranks, RANKS);
    say_cell(w, here_names[p->here], HERE);
    say_cell(w, r.last, LAST);
    say_cell(w, r.age, AGE);
    say_cell(w, r.life, LIFE);
    oari_say(w, "%.*s\n", WIDTH - (RANKS + HERE + LAST + AGE + LIFE + 12),
             r.host);
}

static void say_rows(oari_words *w, const oari_case *c)
{
    unsigned char said[OARI_MEMBERS] = { 0 };
    int rank[OARI_MEMBERS];

    for (int i = 0; i < c->ranks; i++) {
        int count = 0;

        for (int j = i; j < c->ranks && !said[i]; j++)
            if (!said[j] && (j == i || (c->ranks > ONE_EACH &&
                                        alike(c, &c->part[i], &c->part[j])))) {
                const oari_part *p = &c->part[j];

                rank[count++] = p->world >= 0 ? p->world : p->rank;
                said[j] = j != i;
            }
        if (count > 0)
            say_row(w, c, &c->part[i], rank, count);
    }
}

/* ---- groups -------------------------------------------------------------- */

static void bytes_text(uint64_t count, oar_dtype dtype, char text[32])
{
    double bytes = (double)count * (double)oar_dtype_size(dtype);

    if (bytes < 1024)
        snprintf(text, 32, "%.0f B", bytes);
    else if (bytes < 1024 * 1024)
        snprintf(text, 32, "%.1f KiB", bytes / 1024);
    else if (bytes < 1024.0 * 1024 * 1024)
        snprintf(text, 32, "%.1f MiB", bytes / 1048576);
    else
        snprintf(text, 32, "%.1f GiB", bytes / 1073741824);
}

static int reduces(oar_coll kind)
{
    return kind == OAR_COLL_ALL_REDUCE || kind == OAR_COLL_REDUCE ||
           kind == OAR_COLL_REDUCE_SCATTER;
}

/* What the group is at. */
static void say_operation(oari_words *w, const oari_case *c)
{
    const oari_part *p = &c->part[c->teller];
    const oari_op *op = p->at;
    oar_record r = oari_op_record(p, op);
    char bytes[32];

    oari_say(w, ": %s #%" PRIu64, oar_coll_name(op->kind), c->number);
    if (op->kind != OAR_COLL_BARRIER) {
        bytes_text(op->count, op->dtype, bytes);
        oari_say(w, ", %" PRIu64 " %s (%s)", op->count,
                 oar_dtype_name(op->dtype), bytes);
    }
    if (reduces(op->kind))
        oari_say(w, ", %s", oar_op_name(op->op));
    if (op->root >= 0)
        oari_say(w, ", root %d", op->root);
    oari_say(w, ", at %s", r.site);
    if (r.label[0] != 0)
        oari_say(w, " \"%s\"", r.label);
}

static void say_fault(oari_words *w, const oari_case *c)
{
    const oari_box_fault *f = &c->part[c->broken].ring->fault;
    int known = f->rank >= 0 && f->rank < c->ranks;

    oari_say(w, "  fault: %s", oar_status_name((oar_status)f->status));
    if (known)
        oari_say(w, ", as rank %d (%s:%" PRId64 ") saw it",
                 c->part[f->rank].world, f->host, f->pid);
    if (f->site[0] != 0)
        oari_say(w, ", in %s at %s", f->operation, f->site);
    oari_say(w, "\n    %s\n", f->text);
}

static void say_messages(oari_words *w, const oari_inquest *q,
                         const oari_case *c)
{
    int said = 0, left = 0;

    for (int i = 0; i < q->waits; i++) {
        const oari_wait *wait = &q->wait[i];
        char what[256], age[32];

        if (wait->in != c || wait->op == NULL || wait->op->kind < OAR_COLL_SEND)
            continue;
        if (said == MAX_WAITS) {
            left++;
            continue;
        }
        oari_op_text(c, wait->part, wait->op, what, sizeof what);
        oari_age_text(wait->age_ns, age);
        oari_say(w, "  rank %d waits in %.90s since %s\n", wait->part->world,
                 what, age);
        said++;
    }
    if (left > 0)
        oari_say(w, "  and %d more messages wait\n", left);
}

static void say_case(oari_words *w, const oari_inquest *q, const oari_case *c)
{
    oari_say(w, "\ngroup \"%s\", %d rank%s%s%s", c->ring->group, c->ranks,
             c->ranks == 1 ? "" : "s", c->ring->backend[0] != 0 ? ", " : "",
             c->ring->backend);
    if (c->ring->epoch != 0)
        oari_say(w, ", epoch %" PRId64, c->ring->epoch);
    if (c->number != 0 && c->teller >= 0)
        say_operation(w, c);
    else if (c->joining)
        oari_say(w, ": being made");
    oari_say(w, "\n  ");
    say_cell(w, "ranks", RANKS);
    say_cell(w, "here", HERE);
    say_cell(w, "last operation", LAST);
    say_cell(w, "age", AGE);
    say_cell(w, "process", LIFE);
    oari_say(w, "host:pid\n");
    say_rows(w, c);
    say_messages(w, q, c);
    if (c->broken >= 0)
        say_fault(w, c);
}

/* ---- ranks that are in no table ------------------------------------------ */

static void say_unread(oari_words *w, const oar_autopsy *a)
{
    int rank[OARI_MEMBERS], n = 0;
    char list[96];

    for (int r = 0; r < a->ranks && r < OARI_MEMBERS; r++) {
        const oari_witness *of = oari_autopsy_of(a, r);

        if (of == NULL)
            rank[n++] = r;
        else if (of->image.box == NULL)
            oari_say(w, "rank %d is unknown%s%s: %s\n", r,
                     of->note[0] != 0 ? ", " : "", of->note, of->why);
        else if (of->life == OARI_LIFE_ABSENT)
            oari_say(w, "rank %d has made no group yet%s%s\n", r,
                     of->note[0] != 0 ? ": " : "", of->note);
    }
    if (n > 0) {
        oari_rank_list(rank, n, list, sizeof list);
        oari_say(w, "rank%s %s: unknown, no box was found\n", n == 1 ? "" : "s",
                 list);
    }
    for (int i = 0; i < a->witnesses; i++)
        if (a->witness[i].rank < 0 && a->witness[i].image.box == NULL)
            oari_say(w, "a box was left out: %s\n", a->witness[i].why);
}

static void say_lost(oari_words *w, const oar_autopsy *a)
{
    for (int i = 0; i < a->witnesses; i++) {
        const oari_image *image = &a->witness[i].image;
        uint32_t crowded;

        if (image->box == NULL)
            continue;
        crowded = atomic_load(&image->box->head.crowded);
        if (crowded > 0)
            oari_say(w, "rank %d had more than %d groups: %u are not here\n",
                     a->witness[i].rank, OARI_BOX_RINGS, crowded);
        if (image->damaged > 0)
            oari_say(w, "rank %d: %d groups in its box make no sense\n",
                     a->witness[i].rank, image->damaged);
    }
}

/* Whether ages say less than they seem to: nobody was seen alive, or to end. */
static int nobody_seen(const oar_autopsy *a)
{
    for (int i = 0; i < a->witnesses; i++) {
        const oari_witness *w = &a->witness[i];

        if (w->image.box != NULL &&
            (w->image.box->head.seen_ns != 0 ||
             w->image.box->head.fell_ns != 0 || !oari_witness_gone(w)))
            return 0;
    }
    return 1;
}

static void say_idle(oari_words *w, const oari_inquest *q)
{
    int idle = 0;

    for (int i = 0; i < q->items; i++)
        idle += q->item[i].idle;
    if (idle > 0)
        oari_say(w, "\n%d group%s idle\n", idle, idle == 1 ? " is" : "s are");
}

oar_status oar_autopsy_text(const oar_autopsy *autopsy, char **text)
{
    oari_inquest q = { 0 };
    oari_words w = { 0 };

    if (autopsy == NULL || text == NULL)
        return oari_fail(OAR_E_ARG, "autopsy_text without %s",
                         autopsy == NULL ? "an autopsy" : "a place for it");
    OARI_TRY(oari_inquest_hold(autopsy, &q));
    oari_say(&w, "%s\n", q.verdict);
    for (int i = 0; i < q.items; i++)
        if (!q.item[i].idle)
            say_case(&w, &q, &q.item[i]);
    say_idle(&w, &q);
    if (q.wrong && nobody_seen(autopsy))
        oari_say(&w, "\nnobody lives any more: ages are counted from the last "
                     "thing that any of them did\n");
    say_unread(&w, autopsy);
    say_lost(&w, autopsy);
    oari_inquest_clear(&q);
    if (w.failed) {
        oari_free(w.text);
        return oari_fail(OAR_E_NOMEM, "the text of an autopsy");
    }
    *text = w.text;
    return OAR_OK;
}
