/* SPDX-License-Identifier: Apache-2.0 */
/* scope_far: slow parts, as ranks tell those that do not see their control
 * block (on other hosts, or where all is TCP): by a message when it changes,
 * with a tag of its own. Whoever waits reads what has come. Times travel as how
 * long ago and how long still: clocks differ. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/drive.h"
#include "comm/presence.h"

enum { LETTERS_OF_ONE = 4 /* under way to one rank */ };

static const uint64_t scope_tag = UINT64_C(3) << 61 | 1;

typedef struct word {
    int64_t age_ns, left_ns; /* left: OARI_NEVER: as long as it lasts */
    char label[sizeof((oari_scope *)0)->label];
} word;

typedef struct letter {
    struct letter *next;
    oar_transfer transfer;
    word word;
} letter;

struct oari_far_scopes {
    _Atomic int changed; /* mine, and not told */
    letter *letters;     /* under way */
    int *under_way;      /* by rank: how many of them */
    oari_scope *scope;   /* by rank: what it has told */
    oar_transfer taking;
    int takes;
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
    size_t n = (size_t)g->ranks;
    oari_far_scopes *f;
    int any = 0;

    for (int r = 0; r < g->ranks; r++)
        any |= is_far(g, r);
    if (!any || oari_carrier(g)->peek == NULL || !(g->can & OAR_CAN_PROBE))
        return OAR_OK;
    f = g->far_scopes = oari_alloc(1, sizeof *f);
    if (f == NULL || (f->under_way = oari_alloc(n, sizeof(int))) == NULL ||
        (f->scope = oari_alloc(n, sizeof *f->scope)) == NULL)
        return OAR_E_NOMEM;
    return OAR_OK;
}

/* When the backend has been closed. */
void oari_far_scopes_destroy(oari_far_scopes *f)
{
    if (f == NULL)
        return;
    while (f->letters != NULL) {
        letter *l = f->letters;

        f->letters = l->next;
        oari_free(l);
    }
    oari_free(f->under_way);
    oari_free(f->scope);
    oari_free(f);
}

/* ---- telling ------------------------------------------------------------- */

static void drop_letters(oari_far_scopes *f)
{
    letter **at = &f->letters, *l;

    while ((l = *at) != NULL) {
        if (!l->transfer.done) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        f->under_way[l->transfer.peer]--;
        oari_free(l);
    }
}

/* Who does not read gets no more; what it knows ends by itself. */
static void tell(oar_group *g, int to, const word *w)
{
    oari_far_scopes *f = g->far_scopes;
    letter *l;

    if (!is_far(g, to) || f->under_way[to] >= LETTERS_OF_ONE ||
        oari_group_gone(g, to) || (l = oari_alloc(1, sizeof *l)) == NULL)
        return;
    l->word = *w;
    l->transfer = (oar_transfer){ .size = sizeof l->transfer,
                                  .peer = to,
                                  .tag = scope_tag,
                                  .data = &l->word,
                                  .bytes = sizeof l->word };
    if (oari_carrier(g)->send(oari_carrier_self(g), &l->transfer) != OAR_OK) {
        oari_free(l);
        return;
    }
    l->next = f->letters;
    f->letters = l;
    f->under_way[to]++;
}

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
        tell(g, r, &w);
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

/* One after the other, as they come. 0: there is none. */
static int hear_next(oar_group *g)
{
    oari_far_scopes *f = g->far_scopes;
    const oar_backend_ops *by = oari_carrier(g);
    oar_envelope e = { .size = sizeof e };
    oar_transfer *t = &f->taking;

    if (!f->takes) {
        if (!by->peek(oari_carrier_self(g), -1, scope_tag, 0, &e))
            return 0;
        *t = (oar_transfer){ .size = sizeof *t,
                             .peer = e.source,
                             .tag = scope_tag,
                             .data = &f->heard,
                             .bytes = sizeof f->heard };
        if (by->recv(oari_carrier_self(g), t) != OAR_OK)
            return 0;
        f->takes = 1;
    }
    if (!t->done)
        return 0;
    f->takes = 0;
    if (t->status == OAR_OK)
        hear(f, t->peer);
    return 1;
}

void oari_far_scopes_look(oar_group *g)
{
    oari_far_scopes *f = g->far_scopes;

    if (f == NULL || oari_group_broken(g))
        return;
    drop_letters(f);
    if (atomic_exchange(&f->changed, 0))
        tell_all(g);
    while (!oari_group_broken(g) && hear_next(g))
        ;
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
