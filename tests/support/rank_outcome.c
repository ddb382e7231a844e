/* SPDX-License-Identifier: Apache-2.0 */
#include "support/rank_outcome.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int failure_write(failure_text why, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(failure_text), format, args);
    va_end(args);
    return 0;
}

static int same_record(const oar_error *a, const oar_error *b)
{
    return a->status == b->status && a->rank == b->rank && a->peer == b->peer &&
           a->pid == b->pid && a->sequence == b->sequence &&
           strcmp(a->operation, b->operation) == 0 &&
           strcmp(a->site, b->site) == 0 && strcmp(a->text, b->text) == 0;
}

/* "rank 1", but not the beginning of "rank 12". */
static int names(const char *text, int rank)
{
    char name[24];
    const char *at;

    snprintf(name, sizeof name, "rank %d", rank);
    at = strstr(text, name);
    return at != NULL && !isdigit((unsigned char)at[strlen(name)]);
}

/* A ring's calls are sends and receives. */
static int is_kind(oar_coll kind, const char *operation)
{
    return strcmp(operation, oar_coll_name(kind)) == 0 ||
           (kind == OAR_COLL_SEND &&
            strcmp(operation, oar_coll_name(OAR_COLL_RECV)) == 0);
}

/* The call that was under way on the rank that saw it first. */
static int check_call(const rank_outcome *of, const oar_error *e,
                      failure_text why)
{
    const rank_outcome *first = &of[e->rank];
    char site[32];

    snprintf(site, sizeof site, "rank%d.c:%d", e->rank, first->calls);
    if (!is_kind(first->kind, e->operation) || strcmp(e->site, site) != 0)
        return failure_write(why, "%s at %s is named, not %s at %s: %s",
                             e->operation, e->site, oar_coll_name(first->kind),
                             site, e->text);
    return 1;
}

static int check_record(const scenario *s, const rank_outcome *of,
                        const oar_error *e, failure_text why)
{
    int victim = s->victim;
    oar_status expected = s->how == BY_STOP ? OAR_E_TIMEOUT : OAR_E_PEER;
    int given_up = s->phase == IN_RENDEZVOUS && e->status == OAR_E_TIMEOUT;

    if (e->status != expected && !given_up)
        return failure_write(why, "it is %s: %s", oar_status_name(e->status),
                             e->text);
    if (e->peer != victim || !names(e->text, victim))
        return failure_write(why, "rank %d is named: %s", e->peer, e->text);
    if (e->rank < 0 || e->rank >= s->ranks || e->rank == victim)
        return failure_write(why, "rank %d is said to have seen it", e->rank);
    return check_call(of, e, why);
}

/* A survivor that has no group. */
static int check_alone(const scenario *s, const oar_error *e, failure_text why)
{
    if (e->status != OAR_E_TIMEOUT && e->status != OAR_E_PEER)
        return failure_write(why, "it is %s: %s", oar_status_name(e->status),
                             e->text);
    if (!names(e->text, s->victim))
        return failure_write(why, "another is named: %s", e->text);
    return 1;
}

int outcomes_check_partial(const scenario *s, const rank_outcome *of,
                           failure_text why)
{
    for (int r = 0; r < s->ranks; r++) {
        const rank_outcome *w = &of[r];

        if (r == s->victim || !w->failed)
            continue;
        if (!(w->joined ? check_record(s, of, &w->record, why)
                        : check_alone(s, &w->record, why)))
            return 0;
    }
    return 1;
}

int outcomes_check(const scenario *s, const rank_outcome *of, failure_text why)
{
    const oar_error *one = NULL;

    for (int r = 0; r < s->ranks; r++) {
        const rank_outcome *w = &of[r];
        if (r == s->victim || w->spared)
            continue;
        if (!w->joined && !check_alone(s, &w->record, why))
            return 0;
        if (w->joined && one != NULL && !same_record(one, &w->record))
            return failure_write(
                why,
                "rank %d has: rank %d saw at %s: %s; another: rank %d "
                "saw at %s: %s",
                r, w->record.rank, w->record.site, w->record.text, one->rank,
                one->site, one->text);
        if (w->joined)
            one = &w->record;
    }
    return one == NULL || check_record(s, of, one, why);
}
