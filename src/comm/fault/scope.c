/* SPDX-License-Identifier: Apache-2.0 */
/* scope: parts of a program that may be slow. A rank shows the one of its open
 * scopes that lasts longest to its peers, on the board or by a message
 * (scope_far.c), who are patient for as long (drive_look.c) and say so in their
 * texts. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/fault/presence.h"
#include "comm/fault/fault.h"

struct oar_timeout_scope {
    oar_timeout_scope *next;
    oar_group *group;
    oari_scope what;
};

/* Under the engine's lock. */
static void longest(const oar_group *g, oari_scope *found)
{
    const oar_timeout_scope *best = g->scopes;

    for (const oar_timeout_scope *s = best; s != NULL; s = s->next)
        if (s->what.until_ns > best->what.until_ns)
            best = s;
    *found = best != NULL ? best->what : (oari_scope){ 0 };
}

static void show(oar_group *g)
{
    oari_scope mine;

    longest(g, &mine);
    if (g->board != NULL)
        oari_board_show_scope(g->board, &mine);
}

void oari_scope_mine(const oar_group *g, oari_scope *scope)
{
    pthread_mutex_t *lock = &((oar_group *)(uintptr_t)g)->engine.lock;

    pthread_mutex_lock(lock);
    longest(g, scope);
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
    show(group);
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
        return; /* a child: none of it is ours */
    pthread_mutex_lock(&g->engine.lock);
    for (at = &g->scopes; *at != scope;)
        at = &(*at)->next;
    *at = scope->next;
    show(g);
    pthread_mutex_unlock(&g->engine.lock);
    oari_far_scopes_changed(g);
    oari_free(scope);
}

void oari_scope_drop(oar_group *g)
{
    while (g->scopes != NULL) {
        oar_timeout_scope *s = g->scopes;

        g->scopes = s->next;
        oari_free(s);
    }
}
