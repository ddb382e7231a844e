/* SPDX-License-Identifier: Apache-2.0 */
/* conform_record: a rank's row of the ledger. A trial that was begun counts as
 * right until something wrong is found. */
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

const char *kind_name(conform_kind k)
{
    return kinds[k].name;
}

int kind_typed(conform_kind k)
{
    return kinds[k].typed;
}

static int is_wanted(const conform_context *d, const conform_trial *t)
{
    if (d->s->only_kind >= 0 && (int)t->kind != d->s->only_kind)
        return 0;
    return d->s->only_dtype < 0 || !kind_typed(t->kind) ||
           (int)t->dtype == d->s->only_dtype;
}

int record_begin(conform_context *d, const conform_trial *t)
{
    conform_record *n;

    if (d->broken || !is_wanted(d, t) ||
        d->cell + 1 >= CONFORM_CELLS / 2 * (1 + (size_t)d->s->tight))
        return 0;
    n = &d->row->note[++d->cell];
    n->t = *t;
    snprintf(n->of, sizeof n->of, "%s", t->of);
    n->result = RIGHT;
    d->row->last[d->s->tight] = d->cell;
    return 1;
}

static void add_text(conform_context *d, const char *why)
{
    char what[200];
    conform_row *r = d->row;

    if (r->texts >= CONFORM_TEXTS)
        return;
    record_describe(&r->note[d->cell].t, what, sizeof what);
    snprintf(r->text[r->texts++], CONFORM_TEXT, "rank %d: %s: %s", d->rank,
             what, why);
}

void record_wrong(conform_context *d, const char *format, ...)
{
    conform_record *n = &d->row->note[d->cell];
    char why[CONFORM_TEXT / 2]; /* the cell is said before it */
    va_list args;

    if (n->result == WRONG)
        return; /* the first thing that is wrong is enough */
    n->result = WRONG;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    add_text(d, why);
}

void record_error(conform_context *d, double ulp)
{
    conform_record *n = &d->row->note[d->cell];

    if (ulp > (double)n->ulp)
        n->ulp = (float)ulp;
}

void record_cannot(conform_context *d)
{
    d->row->note[d->cell].result = CANNOT;
}

int record_status(conform_context *d, oar_status status, const char *what)
{
    if (status == OAR_OK)
        return 1;
    d->broken = oar_group_fault(d->world, NULL) != OAR_OK;
    if (status == OAR_E_UNSUPPORTED && !d->broken)
        record_cannot(d);
    else
        record_wrong(d, "%s: %s: %s", what, oar_status_name(status),
                     oar_last_error_text());
    return 0;
}

void record_wanted(conform_context *d, oar_status status, oar_status wanted,
                   const char *what)
{
    if (status == wanted)
        return;
    record_wrong(d, "%s gives %s, not %s%s%s", what, oar_status_name(status),
                 oar_status_name(wanted), status != OAR_OK ? ": " : "",
                 status != OAR_OK ? oar_last_error_text() : "");
    if (oar_group_fault(d->world, NULL) != OAR_OK)
        d->broken = 1;
}

void record_describe(const conform_trial *t, char *text, size_t bytes)
{
    static const char *const wheres[] = { "shared", "private", "mixed",
                                          "crossed" };
    static const char *const hows[] = { "blocking", "asynchronous", "prepared",
                                        "batched", "synchronous" };
    char op[24] = "", root[40] = "";

    if (kind_reduces(t->kind))
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
