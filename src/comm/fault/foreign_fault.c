/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_fault: why an engine of somebody else's has failed, and when a rank
 * counts as gone beside one. */
#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/drive.h"
#include "comm/fault/fault.h"
#include "comm/fault/look.h"

enum {
    ILL_NS = 2000000000,   /* for the links to know better why it failed */
    CHECK_NS = 10000000,   /* between two looks whether everybody is there */
    BEHIND_NS = 500000000, /* what comes of a rank when it is gone */
};

/* Nobody sleeps on the board while the engine is asked again and again, or has
 * failed: then nobody hears of deaths either. */
static void check_peers(oar_group *g, oari_foreign *f)
{
    int64_t now = oari_now_ns();

    if (g->board == NULL || now < f->check_ns)
        return;
    f->check_ns = now + CHECK_NS;
    g->board->ops->check(g->board->self);
}

/* Why it has failed: a rank that is gone, whether or not somebody waits for
 * that one. One that has left is the reason if there is no other. */
static int culprit(const oar_group *g, int late)
{
    int left = -1;

    for (int r = 0; r < g->ranks; r++) {
        int gone = r != g->rank ? oari_group_gone(g, r) : 0;

        if (gone == OARI_PEER_LEFT)
            left = r;
        else if (gone != 0)
            return r;
    }
    return late ? left : -1;
}

static void look_at(oar_group *group, oari_foreign *f)
{
    int rank, late;

    if (f->ops == NULL || oari_group_broken(group))
        return;
    check_peers(group, f);
    if (f->ill_ns == 0)
        return;
    late = oari_now_ns() - f->ill_ns >= ILL_NS;
    rank = culprit(group, late);
    if (rank >= 0)
        oari_peer_gone(group, oari_drive_any(group), rank);
    else if (late) {
        oari_fail_with(&f->illness);
        oari_group_break(group, oari_drive_any(group), -1);
    }
}

void oari_foreign_look(oar_group *group)
{
    look_at(group, &group->foreign);
    if (group->engine.on_gpu != 0) {
        look_at(group, &group->gpu);
        look_at(group, &group->hosted);
    }
}

/* The engine may need a rank longer than that needs it, and what it carries may
 * come when the sender is gone: a rank is missed only after a while; or when
 * the engine has failed, because that is then why. */
int oari_foreign_gone(const oar_group *group, int rank, int gone)
{
    const oari_foreign *f = group->foreign.opened ? &group->foreign
                            : group->gpu.opened   ? &group->gpu
                                                  : &group->hosted;
    int64_t now = oari_now_ns(), since;

    if (f->gone_ns == NULL || f->ill_ns != 0)
        return gone;
    since = atomic_load_explicit(&f->gone_ns[rank], memory_order_relaxed);
    if (since == 0) {
        since = now;
        atomic_store_explicit(&f->gone_ns[rank], now, memory_order_relaxed);
    }
    return now - since > BEHIND_NS ? gone : 0;
}
