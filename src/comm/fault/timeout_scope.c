/* SPDX-License-Identifier: Apache-2.0 */
/* timeout_scope: timeout scopes, parts of a program that may be slow. A rank
 * shows its peers the one of its open scopes that lasts longest; their
 * deadlines wait for its end (look.c), and their texts name it.
 *
 * Ranks that can see this rank's control block find it there. To far ranks (on
 * other hosts, or where all is TCP) it goes by a control message whenever it
 * changes. Times travel as how long ago and how much longer, because clocks
 * differ. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/fault/fault.h"
#include "comm/fault/presence.h"
#include "link/control_message.h"

struct oar_timeout_scope {
    oar_timeout_scope *next;
    oar_group *group;
    oari_timeout_scope what;
};

/* Finds the open scope that lasts longest. Under the engine's lock. */
static void find_longest(const oar_group *g, oari_timeout_scope *found)
{
    const oar_timeout_scope *best = g->scopes;

    for (const oar_timeout_scope *s = best; s != NULL; s = s->next)
        if (s->what.until_ns > best->what.until_ns)
            best = s;
    *found = best != NULL ? best->what : (oari_timeout_scope){ 0 };
}

/* Shows this rank's scope on the board. Under the engine's lock. */
static void show_scope(oar_group *g)
{
    oari_timeout_scope mine;

    find_longest(g, &mine);
    if (g->board != NULL)
        oari_bulletin_write(oari_board_bulletin(g->board, g->board->rank),
                            OARI_FACT_TIMEOUT_SCOPE, &mine);
}

void oari_timeout_scope_mine(const oar_group *g, oari_timeout_scope *scope)
{
    pthread_mutex_t *lock = &((oar_group *)(uintptr_t)g)->engine.lock;

    pthread_mutex_lock(lock);
    find_longest(g, scope);
    pthread_mutex_unlock(lock);
}

oar_status oar_timeout_scope_begin(oar_group *group, const char *label,
                                   int64_t timeout_ms,
                                   oar_timeout_scope **scope)
{
    oar_timeout_scope *s;

    if (group == NULL || scope == NULL || timeout_ms == 0)
        return oari_fail(OAR_E_ARG, "timeout_scope_begin without a %s",
                         group == NULL   ? "group"
                         : scope == NULL ? "place for the scope"
                                         : "time");
    OARI_TRY(oari_group_owned(group));
    if ((s = oari_alloc(1, sizeof *s)) == NULL)
        return OAR_E_NOMEM;
    s->group = group;
    s->what.since_ns = oari_now_ns();
    s->what.until_ns = oari_deadline(timeout_ms);
    snprintf(s->what.label, sizeof s->what.label, "%s",
             label != NULL ? label : "");
    pthread_mutex_lock(&group->engine.lock);
    s->next = group->scopes;
    group->scopes = s;
    show_scope(group);
    pthread_mutex_unlock(&group->engine.lock);
    oari_far_scopes_changed(group);
    *scope = s;
    return OAR_OK;
}

void oar_timeout_scope_end(oar_timeout_scope *scope)
{
    oar_timeout_scope **at;
    oar_group *g;

    if (scope == NULL)
        return;
    g = scope->group;
    if (oari_group_owned(g) != OAR_OK)
        return; /* a child process owns none of it */
    pthread_mutex_lock(&g->engine.lock);
    for (at = &g->scopes; *at != scope;)
        at = &(*at)->next;
    *at = scope->next;
    show_scope(g);
    pthread_mutex_unlock(&g->engine.lock);
    oari_far_scopes_changed(g);
    oari_free(scope);
}

void oari_timeout_scope_drop(oar_group *g)
{
    while (g->scopes != NULL) {
        oar_timeout_scope *s = g->scopes;

        g->scopes = s->next;
        oari_free(s);
    }
}

/* ---- far ranks ----------------------------------------------------------- */

static const uint64_t scope_tag = UINT64_C(3) << 61 | 1;

/* What travels of a scope. */
typedef struct far_scope {
    int64_t age_ns, left_ns; /* left: OARI_NEVER: without a limit */
    char label[sizeof((oari_timeout_scope *)0)->label];
} far_scope;

struct oari_far_scopes {
    _Atomic int changed; /* this rank's, and not sent */
    oari_letters letters;
    oari_timeout_scope *scope; /* by rank: what it has sent */
    far_scope heard;
};

static int is_far(const oar_group *g, int rank)
{
    return rank != g->rank &&
           (g->board == NULL || oari_board_rank(g->board, rank) < 0);
}

oar_status oari_far_scopes_create(oar_group *g)
{
    oari_far_scopes *f;
    int any = 0;

    for (int r = 0; r < g->ranks; r++)
        any |= is_far(g, r);
    if (!any || oari_carrier(g)->peek == NULL || !(g->can & OAR_CAN_PROBE))
        return OAR_OK;
    f = g->far_scopes = oari_alloc(1, sizeof *f);
    if (f == NULL)
        return OAR_E_NOMEM;
    f->letters = (oari_letters){ .by = oari_carrier(g),
                                 .self = oari_carrier_self(g),
                                 .tag = scope_tag,
                                 .bytes = sizeof(far_scope) };
    OARI_TRY(oari_letters_init(&f->letters, g->ranks));
    f->scope = oari_alloc((size_t)g->ranks, sizeof *f->scope);
    return f->scope != NULL ? OAR_OK : OAR_E_NOMEM;
}

void oari_far_scopes_destroy(oari_far_scopes *f)
{
    if (f == NULL)
        return;
    oari_letters_clear(&f->letters);
    oari_free(f->scope);
    oari_free(f);
}

static void send_to_far(oar_group *g, int64_t now)
{
    oari_timeout_scope mine;
    far_scope w = { 0 };

    oari_timeout_scope_mine(g, &mine);
    if (mine.until_ns > now) {
        w.age_ns = now - mine.since_ns;
        w.left_ns =
            mine.until_ns == OARI_NEVER ? OARI_NEVER : mine.until_ns - now;
        memcpy(w.label, mine.label, sizeof w.label);
    }
    for (int r = 0; r < g->ranks; r++)
        if (is_far(g, r) && !oari_group_gone(g, r))
            oari_letters_send(&g->far_scopes->letters, r, &w);
}

void oari_far_scopes_look(oar_group *g)
{
    oari_far_scopes *f = g->far_scopes;
    int64_t now;
    int from;

    if (f == NULL || oari_group_broken(g))
        return;
    now = oari_now_ns();
    if (atomic_exchange(&f->changed, 0))
        send_to_far(g, now);
    while ((from = oari_letters_next(&f->letters, &f->heard)) >= 0) {
        int64_t left = f->heard.left_ns;
        oari_timeout_scope *s = &f->scope[from];

        *s = (oari_timeout_scope){ .since_ns = now - f->heard.age_ns };
        if (left > 0)
            s->until_ns = left > OARI_NEVER - now ? OARI_NEVER : now + left;
        memcpy(s->label, f->heard.label, sizeof s->label - 1);
    }
}

void oari_far_scopes_changed(oar_group *g)
{
    if (g->far_scopes == NULL)
        return;
    atomic_store(&g->far_scopes->changed, 1);
    if (oari_engine_try_hold(g)) {
        oari_far_scopes_look(g);
        oari_engine_let_go(g);
    } else
        oari_engine_wake(g); /* the thread that drives sends it */
}

int oari_far_scope(const oar_group *g, int rank, oari_timeout_scope *scope)
{
    if (g->far_scopes == NULL || !is_far(g, rank))
        return 0;
    *scope = g->far_scopes->scope[rank];
    return scope->until_ns > oari_now_ns();
}
