/* SPDX-License-Identifier: Apache-2.0 */
/* conform_report: the rows of all ranks put together. */
#include "conform.h"

#include <stdio.h>
#include <string.h>

enum { LINES = KINDS * (OAR_DTYPE_COUNT + 1), SHOWN = 10 };

typedef struct report_line {
    size_t cells, cannot, wrong;
    double ulp;
} report_line;

typedef struct report_sum {
    report_line line[LINES], total;
    int texts;
    char text[SHOWN][CONFORM_TEXT];
} report_sum;

static int line_of(const conform_trial *t)
{
    return (int)t->kind * (OAR_DTYPE_COUNT + 1) +
           (kind_typed(t->kind) ? (int)t->dtype + 1 : 0);
}

static void add_text(report_sum *s, const char *text)
{
    if (s->texts < SHOWN)
        snprintf(s->text[s->texts++], CONFORM_TEXT, "%s", text);
}

/* What any rank has written. */
static void describe(const conform_record *n, char *text, size_t bytes)
{
    conform_trial t = n->t;

    t.of = n->of;
    record_describe(&t, text, bytes);
}

/* Ranks that should have the same bits and do not. */
static int bits_differ(const conform_settings *set, size_t cell, report_sum *s)
{
    const conform_ledger *l = set->ledger;
    int first = -1;
    char what[200], text[CONFORM_TEXT];

    for (int r = 0; r < set->ranks; r++) {
        const conform_record *n = &l->row[r].note[cell];
        if (n->hash == 0 || n->result != RIGHT)
            continue;
        if (first < 0)
            first = r;
        else if (n->hash != l->row[first].note[cell].hash) {
            describe(n, what, sizeof what);
            snprintf(text, sizeof text,
                     "%s: ranks %d and %d have different bits", what, first, r);
            add_text(s, text);
            return 1;
        }
    }
    return 0;
}

static void add_cell(const conform_settings *set, size_t cell, report_sum *s)
{
    const conform_record *any = NULL;
    conform_result worst = NOT_RUN;
    double ulp = 0;
    report_line *to;

    for (int r = 0; r < set->ranks; r++) {
        const conform_record *n = &set->ledger->row[r].note[cell];
        if (n->result != NOT_RUN)
            any = n;
        if (n->result > worst)
            worst = (conform_result)n->result;
        if ((double)n->ulp > ulp)
            ulp = (double)n->ulp;
    }
    if (any == NULL)
        return;
    if (worst == RIGHT && bits_differ(set, cell, s))
        worst = WRONG;
    to = &s->line[line_of(&any->t)];
    to->cells++;
    to->cannot += worst == CANNOT;
    to->wrong += worst == WRONG;
    if (ulp > to->ulp)
        to->ulp = ulp;
}

static void add_cells(const conform_settings *set, report_sum *s)
{
    for (int r = 0; r < set->ranks; r++)
        for (int i = 0; i < set->ledger->row[r].texts; i++)
            add_text(s, set->ledger->row[r].text[i]);
    for (int pass = 0; pass < 2; pass++) {
        size_t first = (size_t)pass * (CONFORM_CELLS / 2), last = 0;
        for (int r = 0; r < set->ranks; r++)
            if (set->ledger->row[r].last[pass] > last)
                last = set->ledger->row[r].last[pass];
        for (size_t cell = first + 1; cell <= last; cell++)
            add_cell(set, cell, s);
    }
    for (int i = 0; i < LINES; i++) {
        s->total.cells += s->line[i].cells;
        s->total.cannot += s->line[i].cannot;
        s->total.wrong += s->line[i].wrong;
        if (s->line[i].ulp > s->total.ulp)
            s->total.ulp = s->line[i].ulp;
    }
}

/* ---- printing ------------------------------------------------------------ */

static const char *dtype_of(int index)
{
    int dtype = index % (OAR_DTYPE_COUNT + 1) - 1;

    return dtype < 0 ? "-" : oar_dtype_name((oar_dtype)dtype);
}

static void print_text(const conform_settings *set, const report_sum *s)
{
    printf("# oarsong conform: backend %s, %d ranks%s%s, seed %llu%s\n"
           "# %-18s %-5s %8s %8s %8s %10s\n",
           set->backend, set->ranks, set->hosts != NULL ? ", hosts " : "",
           set->hosts != NULL ? set->hosts : "", (unsigned long long)set->seed,
           set->quick ? ", quick" : "", "collective", "dtype", "cells",
           "cannot", "wrong", "worst ULP");
    for (int i = 0; i < LINES; i++)
        if (s->line[i].cells > 0)
            printf("  %-18s %-5s %8zu %8zu %8zu %10.3f\n",
                   kind_name((conform_kind)(i / (OAR_DTYPE_COUNT + 1))),
                   dtype_of(i), s->line[i].cells, s->line[i].cannot,
                   s->line[i].wrong, s->line[i].ulp);
    for (int i = 0; i < s->texts; i++)
        printf("wrong: %s\n", s->text[i]);
    printf("total: %zu cells, %zu cannot, %zu wrong, worst %.3f ULP\n",
           s->total.cells, s->total.cannot, s->total.wrong, s->total.ulp);
}

static void print_quoted(const char *text)
{
    putchar('"');
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        if ((unsigned char)*text < ' ')
            printf("\\u%04x", (unsigned char)*text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void print_json_line(const report_line *l)
{
    printf("\"cells\":%zu,\"cannot\":%zu,\"wrong\":%zu,\"worst_ulp\":%.6g}",
           l->cells, l->cannot, l->wrong, l->ulp);
}

static void print_json(const conform_settings *set, const report_sum *s)
{
    const char *comma = "";

    printf("{\"backend\":");
    print_quoted(set->backend);
    printf(",\"ranks\":%d,\"seed\":%llu,\"quick\":%s,\"lines\":[", set->ranks,
           (unsigned long long)set->seed, set->quick ? "true" : "false");
    for (int i = 0; i < LINES; i++)
        if (s->line[i].cells > 0) {
            printf("%s\n{\"collective\":\"%s\",\"dtype\":\"%s\",", comma,
                   kind_name((conform_kind)(i / (OAR_DTYPE_COUNT + 1))),
                   dtype_of(i));
            print_json_line(&s->line[i]);
            comma = ",";
        }
    printf("],\n\"first_wrong\":[");
    for (int i = 0; i < s->texts; i++) {
        printf("%s\n", i > 0 ? "," : "");
        print_quoted(s->text[i]);
    }
    printf("],\n\"total\":{");
    print_json_line(&s->total);
    printf("}\n");
}

/* Where each rank was when the run ended before its time. */
static void print_ends(const conform_settings *set)
{
    char what[200];

    for (int r = 0; r < set->ranks; r++) {
        const conform_row *at = &set->ledger->row[r];
        size_t cell = at->last[set->tight];
        if (cell == 0)
            continue;
        describe(&at->note[cell], what, sizeof what);
        fprintf(stderr, "rank %d was at cell %zu: %s\n", r, cell, what);
    }
}

int conform_report(const conform_settings *set, const char *failure)
{
    static report_sum s;

    add_cells(set, &s);
    if (set->json)
        print_json(set, &s);
    else
        print_text(set, &s);
    fflush(stdout);
    if (failure != NULL) {
        fprintf(stderr, "oarsong conform: the ranks did not get through: %s\n",
                failure);
        print_ends(set);
    }
    return failure != NULL || s.total.wrong > 0 || s.total.cells == 0;
}
