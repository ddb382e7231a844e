/* SPDX-License-Identifier: Apache-2.0 */
/* watch: the barrier that says who is missing.
 *
 * Every rank sends an empty message to every other and looks which have come;
 * when all have, it takes them. Nothing is waited for, so a timeout leaves the
 * group as it was: what a late rank sends stays in its mailbox, and the late
 * rank itself finds everybody's messages and passes.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/check.h"

static oar_status tell_all(oar_group *g, uint64_t tag, const oari_call *base)
{
    for (int r = 0; r < g->ranks; r++) {
        oari_call call = *base;

        if (r == g->rank)
            continue;
        call.kind = OAR_COLL_SEND;
        call.root = r;
        call.wire_tag = tag;
        OARI_TRY(oari_post(g, &call, NULL));
    }
    return OAR_OK;
}

/* Marks who has come; how many have not. */
static int look(oar_group *g, uint64_t tag, unsigned char *here)
{
    int missing = 0;

    for (int r = 0; r < g->ranks; r++) {
        oar_envelope e = { .size = sizeof e };

        if (r != g->rank && !here[r])
            here[r] = oari_engine_peek(g, r, tag, 0, &e) != 0;
        missing += r != g->rank && !here[r];
    }
    return missing;
}

static oar_status take_all(oar_group *g, uint64_t tag, const oari_call *base,
                           const unsigned char *here)
{
    for (int r = 0; r < g->ranks; r++) {
        oari_call call = *base;

        if (r == g->rank || !here[r])
            continue;
        call.kind = OAR_COLL_RECV;
        call.root = r;
        call.wire_tag = tag;
        OARI_TRY(oari_post(g, &call, NULL));
    }
    return OAR_OK;
}

static oar_status name_missing(const oar_group *g, const unsigned char *here,
                               int missing, int64_t limit)
{
    char list[256] = "";
    size_t used = 0;

    for (int r = 0; r < g->ranks; r++) {
        int n;

        if (r == g->rank || here[r])
            continue;
        n = snprintf(list + used, sizeof list - used, "%s%d",
                     used != 0 ? ", " : "", r);
        if (n < 0 || (size_t)n >= sizeof list - used - 4) {
            memcpy(list + used, " ...", 5);
            break;
        }
        used += (size_t)n;
    }
    return oari_fail(OAR_E_TIMEOUT,
                     "monitored barrier timed out after %" PRId64
                     " ms: %d of %d ranks missing: %s",
                     limit, missing, g->ranks, list);
}

static oar_status watch(oar_group *g, const oari_call *base,
                        unsigned char *here)
{
    int64_t limit = base->timeout_ms != 0 ? base->timeout_ms : g->timeout_ms;
    int64_t deadline = oari_deadline(limit);
    uint64_t tag = UINT64_C(1) << 62 | ++g->watched;
    int missing;

    OARI_TRY(tell_all(g, tag, base));
    while ((missing = look(g, tag, here)) != 0 && oari_now_ns() < deadline) {
        OARI_TRY(oari_group_check(g));
        sched_yield();
    }
    OARI_TRY(oari_group_check(g));
    OARI_TRY(take_all(g, tag, base, here));
    return missing == 0 ? OAR_OK : name_missing(g, here, missing, limit);
}

oar_status oar_monitored_barrier_at(const char *file, int line,
                                    oar_group *group, const oar_call_opts *opts)
{
    unsigned char *here;
    oari_call base;
    oar_status status;

    OARI_TRY(oari_call_begin(&base, OAR_COLL_SEND, file, line, group, opts));
    OARI_TRY(oari_group_check(group));
    base.in.dtype = base.out.dtype = OAR_U8;
    if (oari_batching(group) || base.prepared)
        return oari_fail(OAR_E_STATE, "a monitored barrier cannot be put off");
    if ((group->can & OAR_CAN_PROBE) == 0)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "backend \"%s\" cannot look at messages, which a "
                         "monitored barrier needs",
                         group->backend->name);
    if ((here = oari_alloc((size_t)group->ranks, 1)) == NULL)
        return OAR_E_NOMEM;
    status = watch(group, &base, here);
    oari_free(here);
    return status;
}
