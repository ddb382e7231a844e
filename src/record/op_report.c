/* SPDX-License-Identifier: Apache-2.0 */
/* op_report: what the operation reports of ranks say, compared. The sentences
 * about ranks that disagree are made here and nowhere else:
 *
 *   all_reduce #12: rank 0 passes count 17 at a.c:31, rank 1 passes count 18 at
 *       b.c:40 ("loss"); 3 of 4 ranks agree with rank 0, 1 with rank 1
 *   operation #3 (#4 on rank 2): rank 0 calls barrier at a.c:20, rank 2 calls
 *       all_reduce of 5 f32 sum at b.c:20
 *   gather_v #2: CLAIM; rank 0 calls it at a.c:20, rank 2 at b.c:20
 */
#include "record/op_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

/* ---- texts --------------------------------------------------------------- */

void oari_text_add(oari_text_line *to, const char *format, ...)
{
    va_list args;
    int n;

    if (to->used + 1 >= to->room)
        return;
    va_start(args, format);
    n = vsnprintf(to->text + to->used, to->room - to->used, format, args);
    va_end(args);
    to->used += n > 0 ? (size_t)n : 0;
    if (to->used >= to->room)
        to->used = to->room - 1;
}

static const char *suffix(uint32_t form)
{
    return form & OARI_FORM_OBJECT  ? "_bytes"
           : form & OARI_FORM_PARTS ? "_v"
                                    : "";
}

static void add_name(oari_text_line *to, const oari_report_entry *t)
{
    oari_text_add(to, "%s%s%s",
                  t->form & OARI_FORM_MONITORED ? "monitored_" : "",
                  oar_coll_name((oar_coll)t->kind), suffix(t->form));
}

static void add_site(oari_text_line *to, const oari_report_entry *t)
{
    if (t->site[0] != 0)
        oari_text_add(to, " at %s", t->site);
    if (t->label[0] != 0)
        oari_text_add(to, " (\"%s\")", t->label);
}

/* Returns the dtype of the input: the output's, or narrower. */
static const char *input_name(const oari_report_entry *t)
{
    return oar_dtype_name(t->form & OARI_FORM_FROM_F16 ? OAR_F16
                          : t->form & OARI_FORM_FROM_BF16
                              ? OAR_BF16
                              : (oar_dtype)t->dtype);
}

/* Adds a call: `reduce of 5 f32 sum to 0 at a.c:31 ("loss")`. A root is "from"
 * or "to", as the data goes. */
static void add_call(oari_text_line *to, const oari_report_entry *t)
{
    static const char *const way[OAR_COLL_COUNT] = {
        [OAR_COLL_BROADCAST] = "from", [OAR_COLL_SCATTER] = "from",
        [OAR_COLL_REDUCE] = "to",      [OAR_COLL_GATHER] = "to",
        [OAR_COLL_SEND] = "to",        [OAR_COLL_RECV] = "from",
        [OAR_COLL_PROBE] = "from",
    };
    const char *word = way[t->kind];

    add_name(to, t);
    if (t->kind != OAR_COLL_BARRIER && (t->form & OARI_FORM_OBJECT) == 0)
        oari_text_add(to, " of %llu %s", (unsigned long long)t->count,
                      oar_dtype_name((oar_dtype)t->dtype));
    if (oari_kind_reduces((oar_coll)t->kind))
        oari_text_add(to, " %s%s",
                      oar_reduce_op_name((oar_reduce_op_kind)t->op),
                      t->form & OARI_FORM_CANONICAL ? " (canonical)" : "");
    if (t->form & OARI_FORM_DEVICE)
        oari_text_add(to, " on a GPU");
    if (word != NULL && t->root >= 0)
        oari_text_add(to, " %s %d", word, t->root);
    else if (word != NULL)
        oari_text_add(to, " %s any", word);
    add_site(to, t);
}

/* ---- making -------------------------------------------------------------- */

static void fill_entry(const oar_record *r, uint32_t form, oari_report_entry *t)
{
    t->sequence = r->sequence;
    t->count = r->count;
    t->kind = (int32_t)r->kind;
    t->op = (int32_t)r->op;
    t->dtype = (int32_t)r->dtype;
    t->root = r->root;
    t->form = form;
    snprintf(t->site, sizeof t->site, "%s", r->site);
    snprintf(t->label, sizeof t->label, "%s", r->label);
}

void oari_record_text(const oar_record *record, char *text, size_t bytes)
{
    oari_text_line to = { text, bytes, 0 };
    oari_report_entry t = { 0 };

    fill_entry(record, 0, &t);
    if (t.kind < 0 || t.kind >= OAR_COLL_COUNT)
        t.kind = OAR_COLL_BARRIER;
    oari_text_add(&to, "#%llu ", (unsigned long long)record->sequence);
    add_call(&to, &t);
}

void oari_op_report_make(const oari_history *history, const void *recorder,
                         int rank, uint64_t number, oari_op_report *account)
{
    memset(account, 0, sizeof *account);
    account->number = number;
    account->newest = history->number;
    account->monitored_count = history->monitored_count;
    account->monitored_number = history->monitored_number;
    account->rank = rank;
    account->about = -1;
    account->pid = getpid();
    if (gethostname(account->host, sizeof account->host - 1) != 0)
        account->host[0] = 0;
    for (uint64_t i = 0; i < OARI_REPORT_ENTRIES; i++) {
        uint64_t at = number + i - (OARI_REPORT_ENTRIES - 1);
        const oari_history_entry *past = number + i >= OARI_REPORT_ENTRIES
                                             ? oari_history_find(history, at)
                                             : NULL;
        oari_report_entry *t = &account->told[i];
        oar_record r;

        if (past == NULL)
            continue;
        t->number = at;
        t->link = past->link;
        t->sequence = past->what >> 8;
        t->root = -1;
        if (oari_recorder_by_sequence(recorder, t->sequence, &r) == OAR_OK)
            fill_entry(&r, past->what & 0xff, t);
        if ((past->what & OARI_FORM_KEY) != 0)
            t->key = oari_history_key(history, at);
    }
}

void oari_report_parts_keep(oari_report_parts *parts, uint64_t number,
                            const size_t *counts, int ranks)
{
    if (counts == NULL || ranks > OARI_REPORT_PARTS)
        return;
    parts->number = number;
    parts->count = (uint64_t)ranks;
    for (int i = 0; i < ranks; i++)
        parts->part[i] = counts[i];
}

int oari_op_report_check(oari_op_report *account, int rank, int ranks)
{
    int good = account->rank == rank && account->about >= -1 &&
               account->about < ranks && account->number != 0 &&
               account->parts.count <= OARI_REPORT_PARTS &&
               account->kind >= OARI_REPORT_ASKS &&
               account->kind <= OARI_REPORT_MISMATCH;

    account->host[sizeof account->host - 1] = 0;
    account->claim[sizeof account->claim - 1] = 0;
    account->sent[sizeof account->sent - 1] = 0;
    account->last[sizeof account->last - 1] = 0;
    for (uint64_t i = 0; i < OARI_REPORT_ENTRIES; i++) {
        oari_report_entry *t = &account->told[i];

        t->site[sizeof t->site - 1] = 0;
        t->label[sizeof t->label - 1] = 0;
        good &= t->kind >= 0 && t->kind < OAR_COLL_COUNT && t->root >= -1 &&
                (t->number == 0 ||
                 t->number == account->number + i - (OARI_REPORT_ENTRIES - 1));
    }
    return good;
}

/* ---- comparing ----------------------------------------------------------- */

static const oari_report_entry *find_entry(const oari_op_report *a,
                                           uint64_t number)
{
    uint64_t back = a->number - number;

    if (number > a->number || back >= OARI_REPORT_ENTRIES)
        return NULL;
    return a->told[OARI_REPORT_ENTRIES - 1 - back].number != 0
               ? &a->told[OARI_REPORT_ENTRIES - 1 - back]
               : NULL;
}

static int is_waiting(const oari_op_report *a, const oari_report_entry *t)
{
    return t->number == a->monitored_number;
}

/* Returns whether two ranks called different collectives. A rank that waits in
 * a monitored barrier and one that has left that barrier did not: not all ranks
 * leave it at once. */
static int entries_differ(const oari_op_report *a, const oari_report_entry *x,
                          const oari_op_report *b, const oari_report_entry *y)
{
    if (x->link == y->link)
        return 0;
    if (is_waiting(a, x) && !is_waiting(b, y))
        return b->monitored_count < a->monitored_count;
    if (is_waiting(b, y) && !is_waiting(a, x))
        return a->monitored_count < b->monitored_count;
    return 1;
}

uint64_t oari_op_report_differs(const oari_op_report *a,
                                const oari_op_report *b)
{
    uint64_t last = a->number < b->number ? a->number : b->number;
    uint64_t first =
        last >= OARI_REPORT_ENTRIES ? last - (OARI_REPORT_ENTRIES - 1) : 1;

    for (uint64_t n = first; n <= last; n++) {
        const oari_report_entry *x = find_entry(a, n), *y = find_entry(b, n);
        if (x != NULL && y != NULL && entries_differ(a, x, b, y))
            return n;
    }
    return 0;
}

/* Two ranks that differ, and what each did. */
typedef struct pair {
    int rank[2];
    const oari_op_report *by[2];
    const oari_report_entry *told[2];
} pair;

/* Finds the lowest rank with an entry for a collective from which another rank
 * differs, and the lowest such rank. */
static int find_pair(const oari_op_report *const *account, int ranks,
                     uint64_t number, pair *p)
{
    for (int first = 0; first < ranks; first++) {
        const oari_op_report *a = account[first];
        const oari_report_entry *x = a != NULL ? find_entry(a, number) : NULL;

        for (int r = first + 1; r < ranks && x != NULL; r++) {
            const oari_op_report *b = account[r];
            const oari_report_entry *y =
                b != NULL ? find_entry(b, number) : NULL;

            if (y == NULL || !entries_differ(a, x, b, y))
                continue;
            *p = (pair){ { first, r }, { a, b }, { x, y } };
            return 1;
        }
        if (x != NULL && !is_waiting(a, x))
            return 0; /* no other pair differs either */
    }
    return 0;
}

static int same_name(const oari_report_entry *a, const oari_report_entry *b)
{
    return a->kind == b->kind &&
           ((a->form ^ b->form) & OARI_FORM_MONITORED) == 0 &&
           strcmp(suffix(a->form), suffix(b->form)) == 0;
}

/* Adds the fields in which t differs from the other; returns how many. */
static int add_fields(oari_text_line *to, const oari_report_entry *t,
                      const oari_report_entry *other)
{
    int n = 0;
    int parts = (t->form & OARI_FORM_PARTS) != 0;

    if (t->count != other->count && !parts)
        oari_text_add(to, "%scount %llu", n++ ? ", " : "",
                      (unsigned long long)t->count);
    if (t->dtype != other->dtype)
        oari_text_add(to, "%sdtype %s", n++ ? ", " : "",
                      oar_dtype_name((oar_dtype)t->dtype));
    if (t->op != other->op)
        oari_text_add(to, "%sop %s", n++ ? ", " : "",
                      oar_reduce_op_name((oar_reduce_op_kind)t->op));
    if ((t->form ^ other->form) & (OARI_FORM_FROM_F16 | OARI_FORM_FROM_BF16))
        oari_text_add(to, "%sinput %s", n++ ? ", " : "", input_name(t));
    if (t->key != other->key)
        oari_text_add(to, "%skey %llu", n++ ? ", " : "",
                      (unsigned long long)t->key);
    if (t->root != other->root)
        oari_text_add(to, "%sroot %d", n++ ? ", " : "", t->root);
    if ((t->form ^ other->form) & OARI_FORM_CANONICAL)
        oari_text_add(to, "%s%s", n++ ? ", " : "",
                      t->form & OARI_FORM_CANONICAL ? "canonical"
                                                    : "not canonical");
    if ((t->form ^ other->form) & OARI_FORM_DEVICE)
        oari_text_add(to, "%smemory of %s", n++ ? ", " : "",
                      t->form & OARI_FORM_DEVICE ? "a GPU" : "the host");
    return n;
}

/* Adds the first part whose counts differ, where both ranks have reported them.
 */
static void add_parts(oari_text_line *to, const pair *p, int side)
{
    const oari_report_parts *a = &p->by[0]->parts, *b = &p->by[1]->parts;

    if (a->number == p->told[0]->number && b->number == p->told[1]->number &&
        a->count == b->count)
        for (uint64_t i = 0; i < a->count; i++)
            if (a->part[i] != b->part[i]) {
                oari_text_add(to, "count %llu for rank %d",
                              (unsigned long long)p->by[side]->parts.part[i],
                              (int)i);
                return;
            }
    oari_text_add(to, "%s", side == 0 ? "counts of the parts" : "other counts");
}

static void add_side(oari_text_line *to, const pair *p, int side)
{
    const oari_report_entry *t = p->told[side], *other = p->told[!side];

    oari_text_add(to, " rank %d ", p->rank[side]);
    if (t->site[0] == 0) {
        oari_text_add(to, "calls something else");
        return;
    }
    if (other->site[0] == 0 || !same_name(t, other)) {
        oari_text_add(to, "calls ");
        add_call(to, t);
        return;
    }
    oari_text_add(to, "passes ");
    if (add_fields(to, t, other) == 0) {
        if ((t->form & OARI_FORM_PARTS) != 0)
            add_parts(to, p, side);
        else
            oari_text_add(to, "the same");
    }
    add_site(to, t);
}

/* Adds how many ranks agree with each of the two, if more than two ranks have
 * reported. */
static void add_counts(oari_text_line *to, const oari_op_report *const *account,
                       int ranks, uint64_t number, const pair *p)
{
    int with[2] = { 0, 0 }, all = 0;

    for (int r = 0; r < ranks; r++) {
        const oari_report_entry *t =
            account[r] != NULL ? find_entry(account[r], number) : NULL;
        if (t == NULL)
            continue;
        all++;
        for (int s = 0; s < 2; s++)
            with[s] += t->link == p->told[s]->link;
    }
    if (all > 2)
        oari_text_add(to,
                      "; %d of %d ranks agree%s with rank %d, %d with rank %d",
                      with[0], all, with[0] == 1 ? "s" : "", p->rank[0],
                      with[1], p->rank[1]);
}

static void sign_error(oar_error *record, const oari_op_report *by, int peer,
                       const oari_report_entry *t)
{
    record->rank = by->rank;
    record->peer = peer;
    record->pid = by->pid;
    snprintf(record->host, sizeof record->host, "%s", by->host);
    record->sequence = t->sequence;
    snprintf(record->operation, sizeof record->operation, "%s",
             oar_coll_name((oar_coll)t->kind));
    snprintf(record->site, sizeof record->site, "%s", t->site);
    snprintf(record->label, sizeof record->label, "%s", t->label);
}

static void judge_pair(const oari_op_report *const *account, int ranks,
                       uint64_t number, const pair *p, oar_error *record)
{
    const oari_report_entry *a = p->told[0], *b = p->told[1];
    oari_text_line to = { record->text, sizeof record->text, 0 },
                   nowhere = { 0 };
    int alike = same_name(a, b) && a->site[0] != 0 && b->site[0] != 0;

    oari_error_set(record, OAR_E_MISMATCH, "%s", "");
    if (alike)
        add_name(&to, a);
    else
        oari_text_add(&to, "operation");
    oari_text_add(&to, " #%llu", (unsigned long long)a->sequence);
    if (a->sequence != b->sequence)
        oari_text_add(&to, " (#%llu on rank %d)",
                      (unsigned long long)b->sequence, p->rank[1]);
    oari_text_add(&to, ":");
    add_side(&to, p, 0);
    oari_text_add(&to, ",");
    add_side(&to, p, 1);
    if (alike && (a->form & OARI_FORM_PARTS) == 0 &&
        add_fields(&nowhere, a, b) == 0)
        oari_text_add(&to, ", but an earlier call, which is not recorded any "
                           "more, was not the same");
    add_counts(&to, account, ranks, number, p);
    sign_error(record, account[p->rank[0]], p->rank[1], a);
}

static void judge_claim(const oari_op_report *const *account,
                        const oari_op_report *by, oar_error *record)
{
    static const oari_report_entry nothing = { .root = -1 };
    const oari_op_report *other = account[by->about];
    const oari_report_entry *mine = find_entry(by, by->number);
    const oari_report_entry *theirs =
        other != NULL ? find_entry(other, by->number) : NULL;
    oari_text_line to = { record->text, sizeof record->text, 0 };

    mine = mine != NULL ? mine : &nothing;
    theirs = theirs != NULL ? theirs : &nothing;
    oari_error_set(record, OAR_E_MISMATCH, "%s", "");
    add_name(&to, mine);
    oari_text_add(&to, " #%llu: %s; rank %d calls it",
                  (unsigned long long)mine->sequence, by->claim, by->rank);
    add_site(&to, mine);
    if (other != by) {
        oari_text_add(&to, ", rank %d", by->about);
        add_site(&to, theirs);
    }
    sign_error(record, by, by->about, mine);
}

int oari_op_reports_compare(const oari_op_report *const *account, int ranks,
                            oar_error *record)
{
    const oari_op_report *by = NULL;
    uint64_t last = 0;
    pair p = { 0 };

    for (int r = 0; r < ranks; r++)
        if (account[r] != NULL)
            last = account[r]->number;
    for (uint64_t n =
             last >= OARI_REPORT_ENTRIES ? last - (OARI_REPORT_ENTRIES - 1) : 1;
         n <= last; n++)
        if (find_pair(account, ranks, n, &p)) {
            judge_pair(account, ranks, n, &p, record);
            return 1;
        }
    for (int r = 0; r < ranks && by == NULL; r++)
        if (account[r] != NULL && account[r]->about >= 0)
            by = account[r];
    if (by != NULL)
        judge_claim(account, by, record);
    return by != NULL;
}
