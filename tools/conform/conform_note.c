/* SPDX-License-Identifier: Apache-2.0 */
/* conform_note: a rank's row of the ledger. A cell that was begun is right
 * until something is found to be wrong. */
#include "conform.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int typed;
} kinds[] = {
#define X(name, text, typed) { text, typed },
    CONFORM_KIND_LIST(X)
#undef X
};

const char *kind_name(kind k)
{
    return kinds[k].name;
}

int kind_typed(kind k)
{
    return kinds[k].typed;
}

static int is_wanted(const desk *d, const trial *t)
{
    if (d->s->only_kind >= 0 && (int)t->kind != d->s->only_kind)
        return 0;
    return d->s->only_dtype < 0 || !kind_typed(t->kind) ||
           (int)t->dtype == d->s->only_dtype;
}

int note_begin(desk *d, const trial *t)
{
    note *n;

    if (d->broken || !is_wanted(d, t) ||
        d->cell + 1 >= CONFORM_CELLS / 2 * (1 + (size_t)d->s->tight))
        return 0;
    n = &d->row->note[++d->cell];
    n->t = *t;
    snprintf(n->of, sizeof n->of, "%s", t->of);
    n->verdict = RIGHT;
    d->row->last[d->s->tight] = d->cell;
    return 1;
}

static void add_text(desk *d, const char *why)
{
    char what[200];
    row *r = d->row;

    if (r->texts >= CONFORM_TEXTS)
        return;
    note_describe(&r->note[d->cell].t, what, sizeof what);
    snprintf(r->text[r->texts++], CONFORM_TEXT, "rank %d: %s: %s", d->rank,
             what, why);
}

void note_wrong(desk *d, const char *format, ...)
{
    note *n = &d->row->note[d->cell];
    char why[CONFORM_TEXT / 2]; /* the cell is said before it */
    va_list args;

    if (n->verdict == WRONG)
        return; /* the first thing that is wrong is enough */
    n->verdict = WRONG;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    add_text(d, why);
}

void note_error(desk *d, double ulp)
{
    note *n = &d->row->note[d->cell];

    if (ulp > (double)n->ulp)
        n->ulp = (float)ulp;
}

void note_cannot(desk *d)
{
    d->row->note[d->cell].verdict = CANNOT;
}

int note_status(desk *d, oar_status status, const char *what)
{
    if (status == OAR_OK)
        return 1;
    d->broken = oar_group_fault(d->world, NULL) != OAR_OK;
    if (status == OAR_E_UNSUPPORTED && !d->broken)
        note_cannot(d);
    else
        note_wrong(d, "%s: %s: %s", what, oar_status_name(status),
                   oar_last_error_text());
    return 0;
}

void note_wanted(desk *d, oar_status status, oar_status wanted,
                 const char *what)
{
    if (status == wanted)
        return;
    note_wrong(d, "%s gives %s, not %s%s%s", what, oar_status_name(status),
               oar_status_name(wanted), status != OAR_OK ? ": " : "",
               status != OAR_OK ? oar_last_error_text() : "");
    if (oar_group_fault(d->world, NULL) != OAR_OK)
        d->broken = 1;
}

void note_describe(const trial *t, char *text, size_t bytes)
{
    static const char *const wheres[] = { "shared", "private", "mixed",
                                          "crossed" };
    static const char *const hows[] = { "blocking", "asynchronous", "prepared",
                                        "batched", "synchronous" };
    char op[24] = "", root[40] = "";

    if (kind_folds(t->kind))
        snprintf(op, sizeof op, " %s", oar_reduce_op_name(t->op));
    if (kind_rooted(t->kind))
        snprintf(root, sizeof root, ", root %d", t->root);
    if (t->kind >= K_SEND_RECV && t->kind <= K_WRONG_SIZE)
        snprintf(root, sizeof root, ", %d to %d", t->root, t->to);
    snprintf(text, bytes, "%s%s%s%s on %s, %zu elements%s, %s memory, %s%s%s",
             kind_name(t->kind), kind_typed(t->kind) ? " " : "",
             kind_typed(t->kind) ? oar_dtype_name(t->dtype) : "", op, t->of,
             t->count, root, wheres[t->where], hows[t->how],
             t->in_place ? ", in place" : "",
             t->canonical ? ", canonical" : "");
}
