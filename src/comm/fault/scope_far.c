/* SPDX-License-Identifier: Apache-2.0 */
/* scope_far: slow parts, as ranks tell those that do not see their control
 * block (on other hosts, or where all is TCP): by a message when it changes,
 * with a tag of its own. Whoever waits reads what has come. Times travel as how
 * long ago and how long still: clocks differ. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "link/letters.h"
#include "comm/fault/presence.h"
#include "comm/fault/fault.h"

static const uint64_t scope_tag = UINT64_C(3) << 61 | 1;

typedef struct word {
    int64_t age_ns, left_ns; /* left: OARI_NEVER: as long as it lasts */
    char label[sizeof((oari_scope *)0)->label];
} word;

struct oari_far_scopes {
    _Atomic int changed; /* mine, and not told */
    oari_letters letters;
    oari_scope *scope; /* by rank: what it has told */
    word heard;
};

static int is_far(const oar_group *g, int rank)
{
    return rank != g->rank &&
           (g->board == NULL || oari_board_rank(g->board, rank) < 0);
}

/* ---- making -------------------------------------------------------------- */

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
                                 .bytes = sizeof(word) };
    OARI_TRY(oari_letters_init(&f->letters, g->ranks));
    f->scope = oari_alloc((size_t)g->ranks, sizeof *f->scope);
    return f->scope != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* When the backend has been closed. */
void oari_far_scopes_destroy(oari_far_scopes *f)
{
    if (f == NULL)
        return;
    oari_letters_clear(&f->letters);
    oari_free(f->scope);
    oari_free(f);
}

/* ---- telling ------------------------------------------------------------- */

static void tell_all(oar_group *g)
{
    int64_t now = oari_now_ns();
    oari_scope mine;
    word w = { 0 };

    oari_scope_mine(g, &mine);
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

/* ---- hearing ------------------------------------------------------------- */

static void hear(oari_far_scopes *f, int from)
{
    int64_t now = oari_now_ns(), left = f->heard.left_ns;
    oari_scope *s = &f->scope[from];

    *s = (oari_scope){ .since_ns = now - f->heard.age_ns };
    if (left > 0)
        s->until_ns = left > OARI_NEVER - now ? OARI_NEVER : now + left;
    memcpy(s->label, f->heard.label, sizeof s->label - 1);
}

void oari_far_scopes_look(oar_group *g)
{
    oari_far_scopes *f = g->far_scopes;
    int from;

    if (f == NULL || oari_group_broken(g))
        return;
    if (atomic_exchange(&f->changed, 0))
        tell_all(g);
    while ((from = oari_letters_next(&f->letters, &f->heard)) >= 0)
        hear(f, from);
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
        oari_engine_wake(g); /* whoever drives tells them */
}

int oari_far_scope(const oar_group *g, int rank, oari_scope *scope)
{
    if (g->far_scopes == NULL || !is_far(g, rank))
        return 0;
    *scope = g->far_scopes->scope[rank];
    return scope->until_ns > oari_now_ns();
}
