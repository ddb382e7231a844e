/* SPDX-License-Identifier: Apache-2.0 */
/* respawn: a rank that failed is started again by itself, in the same epoch:
 * it meets the others at the same store. The report about its death comes
 * first, since it gets an empty recorder; and so does what it wrote. */
#include "base/clock.h"
#include "base/status.h"
#include "launch/launch.h"

enum { LINGER_MS = 1000 };

int launch_respawn_may(const launch *l, int local)
{
    const launch_rank *r = &l->rank[local];

    return r->code > 0 && r->respawns < l->opts.max_respawns &&
           l->kill_ns == OARI_NEVER;
}

/* The first failure is the first that stays one. */
static void forget_failures(launch *l)
{
    l->culprit = -1;
    if (l->first_failed >= 0 && l->rank[l->first_failed].due_ns == 0)
        return;
    l->first_failed = -1;
    for (int i = l->ranks - 1; i >= 0; i--)
        if (l->rank[i].code > 0 && l->rank[i].due_ns == 0)
            l->first_failed = i;
}

void launch_respawn_plan(launch *l)
{
    int planned = 0;

    for (int i = 0; i < l->ranks; i++) {
        launch_rank *r = &l->rank[i];

        if (r->due_ns != 0 || !launch_respawn_may(l, i))
            continue;
        r->due_ns = oari_deadline(LINGER_MS);
        planned++;
    }
    if (planned == 0)
        return;
    l->due += planned;
    l->respawned++;
    forget_failures(l);
}

static oar_status respawn_rank(launch *l, int local)
{
    launch_rank *r = &l->rank[local];

    launch_output_end_rank(l, local);
    launch_recorders_renew(l, local);
    if (l->reason != NULL)
        l->reason[local][0] = 0;
    r->respawns++;
    launch_say(l, "rank %d is started again, %d of %d", l->epoch.first + local,
               r->respawns, l->opts.max_respawns);
    OARI_TRY(launch_rank_start(l, local));
    r->code = -1;
    return OAR_OK;
}

void launch_respawn_start(launch *l)
{
    for (int i = 0; i < l->ranks && l->due > 0; i++) {
        launch_rank *r = &l->rank[i];
        int ending = l->kill_ns != OARI_NEVER;

        if (r->due_ns == 0 ||
            (!ending && !launch_output_has_ended(l, i, r->due_ns)))
            continue;
        r->due_ns = 0;
        l->due--;
        if (!ending && respawn_rank(l, i) == OAR_OK)
            continue;
        if (!ending)
            launch_say(l, "rank %d is not started again: %s",
                       l->epoch.first + i, oar_last_error_text());
        if (l->first_failed < 0)
            l->first_failed = i;
    }
}
