/* SPDX-License-Identifier: Apache-2.0 */
/* probe: the public calls that look whether a message waits. */
#include <oarsong/p2p.h>

#include <inttypes.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/api/check.h"
#include "comm/engine/engine.h"
#include "comm/engine/message.h"
#include "comm/engine/work.h"
#include "comm/fault/fault.h"
#include "comm/fault/look.h"

/* Returns whether such a message waits. The caller holds the token. If the
 * message can only come from ranks that are gone, the group ends, or if it is
 * loose the probe fails with the last error (probe->alone); a second look
 * finds what a rank sent before it was known to be gone. */
static int look_for_message(oar_group *g, oar_work *probe, oar_envelope *found)
{
    const oari_call *call = &probe->call;
    uint64_t tag = oari_message_tag(call->tag);
    uint64_t any = oari_message_any(g, call->tag);
    int lost;

    if (oari_engine_peek_held(g, call->root, tag, any, found))
        return 1;
    if (oari_group_broken(g))
        return 0;
    if (g->shm != NULL)
        g->shm->ops->check(g->shm->self);
    lost = oari_fault_lost_rank(g, probe);
    if (lost < 0) {
        oari_fault_warn_stall(g, probe);
        return 0;
    }
    if (oari_engine_peek_held(g, call->root, tag, any, found))
        return 1;
    if (g->loose && !oari_group_broken(g)) {
        oari_fail_gone(g, lost);
        probe->alone = 1;
    } else if (!oari_group_broken(g))
        oari_peer_gone(g, probe, lost);
    return 0;
}

static oar_status give_message(const oar_envelope *e, oar_message *message)
{
    oar_message found = { .size = sizeof found,
                          .source = e->source,
                          .tag = (int64_t)(e->tag & UINT32_MAX),
                          .bytes = e->bytes };

    if (message == NULL)
        return OAR_OK;
    return oari_struct_give(message, &found, sizeof found, "message");
}

static oar_status make_probe(oari_call *call, const char *file, int line,
                             oar_group *group, int peer, int64_t tag)
{
    OARI_TRY(oari_call_begin(call, OAR_COLL_PROBE, file, line, group, NULL));
    OARI_TRY(oari_group_check(group));
    OARI_TRY(oari_check_source("probe", group, peer, tag));
    OARI_TRY(oari_check_can(group, OAR_CAN_PROBE, "probe"));
    call->root = peer;
    call->tag = tag;
    return OAR_OK;
}

/* A probe that does not wait is recorded together with those like it that came
 * just before. */
oar_status oar_probe_at(const char *file, int line, oar_group *group, int peer,
                        int64_t tag, int *found, oar_message *message)
{
    oar_envelope e = { .size = sizeof e };
    oari_engine *engine;
    oari_call call;
    oar_work work;
    int there;

    if (found == NULL)
        return oari_fail(OAR_E_ARG, "probe without a place for the answer");
    OARI_TRY(make_probe(&call, file, line, group, peer, tag));
    oari_work_init(&work, group, &call);
    work.warned = 1; /* it does not wait, so it does not stall */
    engine = &group->engine;
    oari_engine_take(group);
    if (engine->polled.sequence == 0 ||
        engine->polled.sequence != atomic_load(&group->sequence) ||
        engine->polled.peer != peer || engine->polled.tag != tag) {
        engine->polled.sequence = oari_work_record(group, &call, OARI_POSTED);
        engine->polled.peer = peer;
        engine->polled.tag = tag;
    }
    work.sequence = engine->polled.sequence;
    there = look_for_message(group, &work, &e);
    oari_recorder_done(group->recorder, work.sequence,
                       oari_group_broken(group) ? OAR_RECORD_FAILED
                                                : OAR_RECORD_DONE);
    oari_engine_let_go(group);
    if (work.alone)
        return OAR_E_PEER;
    OARI_TRY(oari_group_check(group));
    if (there)
        OARI_TRY(give_message(&e, message));
    *found = there;
    return OAR_OK;
}

/* Whether there is one; 0: not in time, or the group has ended. */
static int await_message(oar_group *group, oar_work *work, int64_t limit_ms,
                         oar_envelope *e)
{
    int64_t deadline = oari_deadline(limit_ms), idle = 0;
    int there;

    work->since_ns = oari_now_ns();
    for (;;) {
        oari_engine_take(group);
        there = look_for_message(group, work, e);
        oari_engine_let_go(group);
        if (there)
            return 1;
        if (work->alone || oari_group_broken(group) ||
            oari_now_ns() >= deadline)
            return 0;
        oari_backoff(&idle);
    }
}

oar_status oar_probe_wait_at(const char *file, int line, oar_group *group,
                             int peer, int64_t tag, int64_t timeout_ms,
                             oar_message *message)
{
    oar_envelope e = { .size = sizeof e };
    int64_t limit = timeout_ms;
    oari_call call;
    oar_work work;
    int there;

    OARI_TRY(make_probe(&call, file, line, group, peer, tag));
    oari_work_init(&work, group, &call);
    if (limit == 0)
        limit = group->timeout_ms;
    work.sequence = oari_work_record(group, &work.call, OARI_AWAITED);
    there = await_message(group, &work, limit, &e);
    oari_recorder_done(group->recorder, work.sequence,
                       there || !oari_group_broken(group) ? OAR_RECORD_DONE
                                                          : OAR_RECORD_FAILED);
    if (there)
        return give_message(&e, message);
    if (work.alone)
        return OAR_E_PEER;
    OARI_TRY(oari_group_check(group));
    return oari_fail(OAR_E_TIMEOUT,
                     "no message from rank %d with tag %" PRId64 " in %" PRId64
                     " ms",
                     peer, tag, limit);
}
