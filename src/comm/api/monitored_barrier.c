/* SPDX-License-Identifier: Apache-2.0 */
/* monitored_barrier: the barrier that says which ranks are missing.
 *
 * Every rank sends an empty message to every other rank and looks which have
 * come; when all have, it receives them. No message is waited for, so a timeout
 * leaves the group as it was: what a late rank sends stays unreceived, and the
 * late rank itself finds the messages of all others and passes.
 *
 * While a rank waits here the barrier is in its history, so that a rank that
 * waits in another operation in its place is found (mismatch.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/api/check.h"
#include "comm/fault/presence.h"
#include "comm/api/post.h"
#include "comm/engine/engine.h"
#include "comm/fault/fault.h"

/* Shows the barrier to the others: as a record, and in the history; as waiting
 * only if no collectives are queued before it. Returns its number on this rank.
 */
static uint64_t record_barrier(oar_group *g, const oari_call *base)
{
    uint64_t sequence = atomic_fetch_add(&g->sequence, 1) + 1;
    oari_call call = *base;
    oari_operation op;

    call.kind = OAR_COLL_BARRIER;
    call.monitored = 1;
    op = oari_call_operation(&call);
    oari_recorder_post(g->recorder, sequence, &op, OARI_AWAITED);
    oari_engine_hold(g);
    g->engine.history.monitored_count++;
    g->engine.history.monitored_key = call.key;
    if (atomic_load(&g->engine.queued) == 0)
        oari_history_add_monitored(&g->engine.history, sequence,
                                   oari_call_form(&call),
                                   oari_call_fingerprint(&call));
    oari_engine_let_go(g);
    return sequence;
}

/* Sends to every other rank without waiting: a peer that is gone never receives
 * it, and that is no fault of the group (drive.c). */
static oar_status send_to_all(oar_group *g, uint64_t tag, const oari_call *base)
{
    for (int r = 0; r < g->ranks; r++) {
        oari_call call = *base;
        oar_work *sent;

        if (r == g->rank)
            continue;
        call.kind = OAR_COLL_SEND;
        call.root = r;
        call.wire_tag = tag;
        call.timeout_ms = -1;
        OARI_TRY(oari_post(g, &call, &sent));
        oar_work_release(sent);
    }
    return OAR_OK;
}

/* Marks the ranks whose message has come. Returns how many are missing. */
static int look_for_ranks(oar_group *g, uint64_t tag, unsigned char *here)
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

/* Fails with a text that names the missing ranks: "1 (dead), 4 (stopped)". */
static oar_status fail_for_missing(const oar_group *g,
                                   const unsigned char *here, int missing,
                                   int64_t waited_ms, int lost)
{
    char list[320] = "", text[200] = "";
    size_t used = 0;
    int first = -1;

    for (int r = 0; r < g->ranks; r++) {
        if (r == g->rank || here[r])
            continue;
        if (first < 0)
            first = r;
        if (used < sizeof list)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%d (%s)",
                                 used != 0 ? ", " : "", r,
                                 oari_presence_word(oari_presence_of(g, r)));
    }
    if (!oari_group_gone(g, first))
        oari_presence_text(g, first, text, sizeof text);
    return oari_fail(lost ? OAR_E_PEER : OAR_E_TIMEOUT,
                     "monitored barrier %s after %" PRId64
                     " ms: %d of %d ranks missing: %s%s%s",
                     lost ? "given up" : "timed out", waited_ms, missing,
                     g->ranks, list, text[0] != 0 ? ": " : "", text);
}

/* Returns whether no missing rank can come any more. */
static int all_lost(const oar_group *g, const unsigned char *here)
{
    for (int r = 0; r < g->ranks; r++)
        if (r != g->rank && !here[r] && !oari_group_gone(g, r))
            return 0;
    return 1;
}

/* Returns whether this rank or a missing one is in a timeout scope. */
static int is_in_scope(const oar_group *g, const unsigned char *here)
{
    oari_timeout_scope scope;

    for (int r = 0; r < g->ranks; r++)
        if ((r == g->rank || !here[r]) && oari_presence_scope(g, r, &scope))
            return 1;
    return 0;
}

/* Waits until all ranks are here, or no other can come, or the time is up. */
static oar_status await_all(oar_group *g, uint64_t tag, unsigned char *here,
                            int64_t limit, int *missing)
{
    int64_t deadline = oari_deadline(limit), idle = 0;

    while ((*missing = look_for_ranks(g, tag, here)) != 0) {
        OARI_TRY(oari_group_check(g));
        oari_engine_hold(g); /* to see which ranks are gone */
        oari_engine_let_go(g);
        if (all_lost(g, here))
            break;
        if (is_in_scope(g, here))
            deadline = oari_deadline(limit);
        if (oari_now_ns() >= deadline)
            break;
        oari_backoff(&idle);
    }
    return oari_group_check(g);
}

static oar_status wait_at_barrier(oar_group *g, const oari_call *base,
                                  unsigned char *here)
{
    int64_t limit = base->timeout_ms != 0 ? base->timeout_ms : g->timeout_ms;
    int64_t start = oari_now_ns();
    uint64_t tag = UINT64_C(1) << 62 | g->engine.history.monitored_count;
    int missing, lost;

    OARI_TRY(send_to_all(g, tag, base));
    OARI_TRY(await_all(g, tag, here, limit, &missing));
    lost = missing != 0 && all_lost(g, here);
    for (int r = 0; r < g->ranks; r++) {
        oari_call call = *base;

        if (r == g->rank || !here[r])
            continue;
        call.kind = OAR_COLL_RECV;
        call.root = r;
        call.wire_tag = tag;
        OARI_TRY(oari_post(g, &call, NULL));
    }
    if (missing == 0)
        return OAR_OK;
    return fail_for_missing(g, here, missing, (oari_now_ns() - start) / 1000000,
                            lost);
}

oar_status oar_monitored_barrier_at(const char *file, int line,
                                    oar_group *group, const oar_call_opts *opts)
{
    unsigned char *here;
    oari_call base;
    oar_status status;
    uint64_t sequence;

    OARI_TRY(oari_call_begin(&base, OAR_COLL_SEND, file, line, group, opts));
    OARI_TRY(oari_group_check(group));
    if (group->loose)
        return oari_fail_loose(group, "monitored_barrier");
    base.in.dtype = base.out.dtype = OAR_U8;
    if (oari_batching(group) || base.prepared)
        return oari_fail(OAR_E_STATE, "a monitored barrier cannot be put off");
    if ((group->can & OAR_CAN_PROBE) == 0)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "backend \"%s\" cannot look at messages, which a "
                         "monitored barrier needs",
                         oari_group_backend_name(group));
    if ((here = oari_alloc((size_t)group->ranks, 1)) == NULL)
        return OAR_E_NOMEM;
    sequence = record_barrier(group, &base);
    status = wait_at_barrier(group, &base, here);
    oari_engine_hold(group);
    group->engine.history.monitored_number = 0;
    oari_engine_let_go(group);
    oari_recorder_done(group->recorder, sequence,
                       status == OAR_OK ? OAR_RECORD_DONE : OAR_RECORD_FAILED);
    oari_free(here);
    return status;
}
