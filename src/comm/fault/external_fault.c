/* SPDX-License-Identifier: Apache-2.0 */
/* external_fault: why an external engine has failed, and when a rank counts as
 * gone beside one. */
#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/drive.h"
#include "comm/fault/fault.h"
#include "comm/fault/look.h"

enum {
    CAUSE_NS = 2000000000, /* within which the links may find the cause */
    CHECK_NS = 10000000,   /* between two looks for ranks that are gone */
    BEHIND_NS = 500000000, /* a rank that is gone may still be heard */
};

/* Ends the group if the engine has failed and the cause is known, or is not
 * found in time. The cause is a rank that is gone, whether or not an operation
 * waits for that rank; one that has left only if there is no other. */
static void look_at_engine(oar_group *g, oari_external *f)
{
    int64_t now = oari_now_ns();
    int cause = -1, left = -1, late;

    if (f->ops == NULL || oari_group_broken(g))
        return;
    /* No thread sleeps in shared memory while the engine is polled, or has
     * failed: so none is woken by the death of a rank. */
    if (g->shm != NULL && now >= f->check_ns) {
        f->check_ns = now + CHECK_NS;
        g->shm->ops->check(g->shm->self);
    }
    if (f->engine_failed_ns == 0)
        return;
    late = oari_now_ns() - f->engine_failed_ns >= CAUSE_NS;
    for (int r = 0; r < g->ranks && cause < 0; r++) {
        int gone = r != g->rank ? oari_group_gone(g, r) : 0;

        if (gone == OARI_PEER_LEFT)
            left = r;
        else if (gone != 0)
            cause = r;
    }
    if (cause < 0 && late)
        cause = left;
    if (cause >= 0)
        oari_peer_gone(g, oari_drive_any(g), cause);
    else if (late) {
        oari_fail_with(&f->engine_error);
        oari_group_break(g, oari_drive_any(g), -1);
    }
}

void oari_external_look(oar_group *group)
{
    look_at_engine(group, &group->external);
    if (group->engine.on_gpu != 0) {
        look_at_engine(group, &group->gpu);
        look_at_engine(group, &group->hosted);
    }
}

/* The engine may still need a rank that has finished, and a message may come
 * after its sender has gone: so a rank counts as gone only after a while, or
 * when the engine has failed, because then the rank is the cause. */
int oari_external_gone(const oar_group *group, int rank, int gone)
{
    const oari_external *f = group->external.opened ? &group->external
                             : group->gpu.opened    ? &group->gpu
                                                    : &group->hosted;
    int64_t now = oari_now_ns(), since;

    if (f->gone_ns == NULL || f->engine_failed_ns != 0)
        return gone;
    since = atomic_load_explicit(&f->gone_ns[rank], memory_order_relaxed);
    if (since == 0) {
        since = now;
        atomic_store_explicit(&f->gone_ns[rank], now, memory_order_relaxed);
    }
    return now - since > BEHIND_NS ? gone : 0;
}
