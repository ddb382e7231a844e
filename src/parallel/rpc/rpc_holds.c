/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the states of rpc_holds.h. */
#include "parallel/rpc/rpc_holds.h"

/* ---- the owner ----------------------------------------------------------- */

void oari_owned_grant(oari_owned *owned, int rank)
{
    owned->count[rank]++;
}

int oari_owned_drop(oari_owned *owned, int rank, uint32_t n)
{
    if (n == 0 || n > owned->count[rank])
        return 0;
    owned->count[rank] -= n;
    return 1;
}

void oari_owned_rank_gone(oari_owned *owned, int rank)
{
    owned->count[rank] = 0;
}

int oari_owned_is_free(const oari_owned *owned)
{
    for (int r = 0; r < owned->ranks; r++)
        if (owned->count[r] > 0)
            return 0;
    return 1;
}

/* ---- the others ---------------------------------------------------------- */

void oari_held_granted(oari_held *held)
{
    held->handles++;
    held->granted++;
}

oari_held_reply oari_held_passed(oari_held *held, int from)
{
    held->handles++;
    if (held->granted > 0 || held->broken)
        return OARI_HELD_CONFIRM;
    held->owed[from]++;
    if (held->asked)
        return OARI_HELD_NOTHING;
    held->asked = 1;
    return OARI_HELD_ASK;
}

void oari_held_noted(oari_held *held, int found)
{
    held->asked = 0;
    if (found)
        held->granted++;
    else
        held->broken = 1;
}

void oari_held_pass(oari_held *held, int to)
{
    held->waiting[to]++;
}

int oari_held_confirmed(oari_held *held, int from)
{
    if (held->waiting[from] == 0)
        return 0;
    held->waiting[from]--;
    return 1;
}

void oari_held_rank_gone(oari_held *held, int rank)
{
    held->waiting[rank] = held->owed[rank] = 0;
    if (rank != held->owner)
        return;
    held->broken = 1;
    held->asked = 0;
    held->granted = 0;
}

int oari_held_lapsed(oari_held *held, int rank)
{
    int had = rank == held->owner && held->granted > 0;

    held->owed[rank] = 0;
    if (rank == held->owner)
        held->granted = 0;
    return had;
}

int oari_held_is_over(const oari_held *held)
{
    if (held->handles > 0 || held->asked)
        return 0;
    for (int r = 0; r < held->ranks; r++)
        if (held->waiting[r] > 0)
            return 0;
    return 1;
}
