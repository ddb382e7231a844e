/* SPDX-License-Identifier: Apache-2.0 */
/* rank_words: what a rank of a running job does, in words. */
#include "rank_words.h"

#include <stdio.h>

const char *rank_state(oar_live_state state)
{
    switch (state) {
    case OAR_LIVE_STARTS: return "starts";
    case OAR_LIVE_RUNS: return "running";
    case OAR_LIVE_STOPPED: return "stopped";
    case OAR_LIVE_EXITED: return "exited";
    case OAR_LIVE_DEAD: return "dead";
    case OAR_LIVE_UNKNOWN: break;
    }
    return "unknown";
}

void rank_doing(const oar_live_rank *r, char *text, size_t room)
{
    const char *name =
        r->kind < OAR_COLL_COUNT ? oar_coll_name(r->kind) : "joins a group";
    char number[32] = "";

    if (r->number > 0)
        snprintf(number, sizeof number, " #%llu",
                 (unsigned long long)r->number);
    if (r->kind == OAR_COLL_COUNT && !r->busy)
        snprintf(text, room, "%s", rank_state(r->state));
    else if (!r->busy && r->state == OAR_LIVE_RUNS)
        snprintf(text, room, "computes since %s%s at %s", name, number,
                 r->site);
    else
        snprintf(text, room, "%s%s%s%s%s%s%s", name, number,
                 r->site[0] != 0 ? " at " : "", r->site,
                 r->label[0] != 0 ? " \"" : "", r->label,
                 r->label[0] != 0 ? "\"" : "");
}

void rank_waits_for(const oar_live_rank *r, char *text, size_t room)
{
    size_t used = 0;
    int shown = r->missing < OAR_LIVE_TARGETS ? r->missing : OAR_LIVE_TARGETS;

    text[0] = 0;
    for (int i = 0; i < shown && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%d",
                                 i == 0 ? "" : ", ", r->waits_for[i]);
    if (r->missing > shown && used < room)
        snprintf(text + used, room - used, " and %d more", r->missing - shown);
}
