/* SPDX-License-Identifier: Apache-2.0 */
/* look: finds out whether anything has gone wrong with the operations under
 * way: a rank is gone that still owes something, a peer has published a fault,
 * or the time is up. Before that, it logs once which ranks are waited for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/engine/drive.h"
#include "comm/engine/message.h"
#include "comm/fault/alone.h"
#include "comm/fault/mismatch.h"
#include "comm/fault/fault.h"
#include "comm/fault/look.h"
#include "comm/fault/open_failure.h"
#include "comm/fault/presence.h"

enum {
    LOOK_AGAIN_NS = 100000000, /* at a deadline that is put off */
    PUT_OFF_NS = 200000000,    /* so that the others run out of time first */
    FIRST_OPERATIONS = 3       /* before which a peer may have failed to open */
};

/* Ends the group with the last error; in a loose group only the message, as
 * soon as it can be taken back. */
static void end_operation(oar_group *g, oar_work *work, int peer)
{
    if (!g->loose)
        oari_group_break(g, work, peer);
    else if (!oari_fail_alone(g, work, peer, 0))
        work->deadline_ns = oari_now_ns() + LOOK_AGAIN_NS;
}

/* Ends the operation because it has waited too long. If a message waits
 * here while a receive does, the text says so: its tag is perhaps wrong. */
static void time_out(oar_group *g, oar_work *work, int missing)
{
    const oari_call *call = &work->call;
    int64_t limit = call->timeout_ms != 0 ? call->timeout_ms : g->timeout_ms;
    oar_envelope e = { .size = sizeof e };
    char who[400] = "the others", other[120] = "";

    if (missing >= 0)
        oari_presence_text(g, missing, who, sizeof who);
    if (call->kind == OAR_COLL_RECV && call->wire_tag == 0 &&
        call->gpu == NULL && (g->can & OAR_CAN_PROBE) != 0 &&
        (g->can & OAR_CAN_ANY) != 0 &&
        oari_carrier(g)->peek(oari_carrier_self(g), call->root,
                              oari_message_tag(OAR_ANY_TAG),
                              oari_message_any(g, OAR_ANY_TAG), &e))
        snprintf(other, sizeof other,
                 "; from rank %d there is a message of %zu bytes with tag "
                 "%lld, but this receive wants tag %lld",
                 e.source, e.bytes, (long long)(e.tag & UINT32_MAX),
                 (long long)call->tag);
    oari_fail(OAR_E_TIMEOUT, "%s waited %" PRId64 " ms for %.340s%s",
              oar_coll_name(call->kind), limit, who, other);
    end_operation(g, work, missing);
}

oar_status oari_fail_gone(oar_group *g, int rank)
{
    char who[400];

    oari_presence_text(g, rank, who, sizeof who);
    return oari_fail(OAR_E_PEER, "%s %s", who,
                     oari_presence_end(oari_group_gone(g, rank)));
}

/* A rank that has gone before it called anything may have given up while the
 * group was made, because of another rank: then that one is named. */
void oari_peer_gone(oar_group *g, oar_work *work, int rank)
{
    oar_error said;

    if (!g->loose && work != NULL && work->sequence <= FIRST_OPERATIONS &&
        oari_open_failure_find(g->store, g->name, g->rank, g->ranks, rank,
                               &said)) {
        oari_fail_with(&said);
        oari_group_break(g, work, said.peer);
        return;
    }
    oari_fail_gone(g, rank);
    end_operation(g, work, rank);
}

/* Returns whether a rank still owes the collective something. */
static int owes(const oari_exec *x, int rank)
{
    return oari_exec_awaits_slot(x, rank) ||
           oari_exec_awaits_message(x, rank) || oari_exec_awaits_post(x, rank);
}

/* Returns the rank whose end loses a message from `peer`, or -1. A message from
 * any rank is lost when no rank is left to send it. */
static int lost_peer(const oar_group *g, int peer)
{
    int last = -1;

    if (peer >= 0)
        return oari_group_gone(g, peer) ? peer : -1;
    for (int r = 0; r < g->ranks; r++) {
        if (r == g->rank)
            continue;
        if (!oari_group_gone(g, r))
            return -1;
        last = r;
    }
    return last;
}

/* Returns whether it is a message of the library's own that may never be
 * received. */
static int is_notice(const oar_work *work)
{
    return work->call.wire_tag != 0 && work->call.kind == OAR_COLL_SEND;
}

/* An external engine may need every rank to the end of a collective; but not
 * one that has left in good order, after the collective was over for it. */
int oari_fault_lost_rank(const oar_group *g, const oar_work *work)
{
    const oari_exec *x;

    if (work->lane == NULL || work->call.kind >= OAR_COLL_SEND)
        return is_notice(work) ? -1 : lost_peer(g, work->call.root);
    x = &work->lane->exec;
    for (int r = 0; r < g->ranks; r++) {
        int gone = oari_group_gone(g, r);

        if (gone != 0 &&
            (owes(x, r) || (x->posted && !(gone == OARI_PEER_LEFT &&
                                           oari_exec_has_completed(x, r)))))
            return r;
    }
    return -1;
}

/* Returns whether the operation waits for this rank, as far as can be told. */
static int is_missing(const oar_group *g, const oar_work *work, int rank)
{
    if (rank == g->rank)
        return 0;
    if (work->lane == NULL || work->call.kind >= OAR_COLL_SEND)
        return work->call.root < 0 || work->call.root == rank;
    return owes(&work->lane->exec, rank);
}

/* Returns a rank that is stopped, or -1. A rank may wait for one that itself
 * waits for another; in the end all of them wait for the one that is stopped.
 */
static int find_stopped(const oar_group *g)
{
    for (int r = 0; r < g->ranks; r++)
        if (r != g->rank && oari_presence_of(g, r) == OARI_PRESENCE_STOPPED)
            return r;
    return -1;
}

/* Returns the rank that the operation waits for, if one can be named, or -1.
 * Over messages that is a rank that has not reported to be in the collective:
 * one that owes it something, rather than one that others wait for. */
static int missing_rank(const oar_group *g, const oar_work *work)
{
    int found = -1, owing = -1, stopped = find_stopped(g);
    const oari_exec *x;

    if (stopped >= 0)
        return stopped;
    if (work->lane == NULL || work->call.kind >= OAR_COLL_SEND)
        return work->call.root;
    x = &work->lane->exec;
    if (oari_exec_is_at_sync(x) && g->shm->member == NULL)
        return oari_sync_missing(g->shm);
    for (int r = g->ranks - 1; r >= 0; r--) {
        int owes_it = owes(x, r);

        if (owes_it)
            owing = r;
        if (r == g->rank ||
            oari_mismatch_has_reached(g->engine.mismatch, r, x->number))
            continue;
        if (owes_it || found < 0 || !owes(x, found))
            found = r;
    }
    return found >= 0 ? found : owing;
}

/* Returns whether this rank, or one that the operation waits for, is in a
 * timeout scope. */
static int is_in_scope(const oar_group *g, const oar_work *work)
{
    oari_timeout_scope scope;

    for (int r = 0; r < g->ranks; r++)
        if ((r == g->rank || is_missing(g, work, r)) &&
            oari_presence_scope(g, r, &scope))
            return 1;
    return 0;
}

/* Returns whether a rank is itself in an operation, as far as can be seen: then
 * it waits, too, and may know better which rank to name. */
static int waits_too(const oar_group *g, int rank)
{
    int here = g->shm != NULL && rank >= 0 ? oari_shm_rank(g->shm, rank) : -1;
    const void *recorder = here >= 0 ? g->shm->recorder[here] : NULL;
    oar_record last;

    return recorder != NULL &&
           oari_recorder_newest(recorder, 0, &last) == OAR_OK &&
           last.state == OAR_RECORD_POSTED;
}

/* Where `oarsong run` monitors the job, it prints one report for all ranks: so
 * here it is not a warning. */
void oari_fault_warn_stall(const oar_group *g, oar_work *work)
{
    int64_t stall = g->settings.stall_ms, now = oari_now_ns();
    char text[700] = "", who[300], site[96], age[32];
    size_t used = 0;
    int missing = 0;

    if (work->warned || is_notice(work) || stall <= 0 ||
        now - work->since_ns <= stall * 1000000)
        return;
    for (int r = 0; r < g->ranks; r++) {
        if (!is_missing(g, work, r))
            continue;
        missing++;
        oari_presence_text(g, r, who, sizeof who);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                 missing > 1 ? ", " : "", who);
        if (used >= sizeof text)
            used = sizeof text - 1;
    }
    work->warned = 1;
    oari_site_text(work->call.file, work->call.line, site, sizeof site);
    oari_duration_text(oari_now_ns() - work->since_ns, age, sizeof age);
    oari_log(oari_env_text("OARSONG_RECORDER_FD") != NULL ? OAR_LOG_INFO
                                                          : OAR_LOG_WARN,
             "group \"%s\", rank %d: #%" PRIu64
             " %s at %s has waited %s for %d of %d ranks: %s",
             g->name, g->rank, work->sequence, oar_coll_name(work->call.kind),
             site, age, missing, g->ranks, text);
}

/* Looks for lost ranks and at the deadline of one operation. The clock of the
 * operation starts with the first look. */
static void look_at_work(oar_group *g, oar_work *work)
{
    int64_t limit =
        work->call.timeout_ms != 0 ? work->call.timeout_ms : g->timeout_ms;
    int64_t now;
    int lost = oari_fault_lost_rank(g, work);

    if (lost >= 0) {
        oari_peer_gone(g, work, lost);
        return;
    }
    now = oari_now_ns();
    if (work->deadline_ns == 0) {
        work->since_ns = now;
        work->deadline_ns = oari_deadline(limit);
        return;
    }
    oari_fault_warn_stall(g, work);
    if (now < work->deadline_ns)
        return;
    if (is_in_scope(g, work)) {
        work->slow = 1;
        work->deadline_ns = now + LOOK_AGAIN_NS;
    } else if (work->slow) {
        work->slow = 0;
        work->deadline_ns = oari_deadline(limit);
    } else if (g->loose)
        time_out(g, work, work->call.root);
    else if (!work->put_off && find_stopped(g) < 0 &&
             waits_too(g, missing_rank(g, work))) {
        work->put_off = 1;
        work->deadline_ns = now + PUT_OFF_NS;
    } else
        time_out(g, work, missing_rank(g, work));
}

/* A peer that gave up waiting may have waited for a rank that waits itself. If
 * this rank sees one that is stopped, it names that one instead, and this fault
 * counts on all ranks. */
int oari_fault_hear(oar_group *g)
{
    oar_work *work;
    oari_fault published;
    int stopped = -1;

    if (g->loose)
        return 0;
    if (!oari_group_published(g, &published))
        return 0;
    if (oari_group_broken(g))
        return 1;
    work = oari_drive_any(g);
    if (!oari_fault_sure(&published) && work != NULL)
        stopped = find_stopped(g);
    if (stopped >= 0)
        time_out(g, work, stopped);
    else
        oari_group_adopt(g, &published);
    return 1;
}

/* Before it published its fault, a peer may have done its part in an operation
 * that is under way here. So operations are moved on once more: one that waited
 * for nothing else is complete. */
void oari_fault_look(oar_group *g)
{
    oari_engine *e = &g->engine;
    oari_fault published;

    if (!g->loose && !oari_group_broken(g) &&
        oari_group_published(g, &published))
        oari_drive_last(g);
    oari_fault_hear(g);
    oari_mismatch_look(g);
    if (e->halted)
        return; /* a mismatch has a deadline of its own */
    oari_far_scopes_look(g);
    oari_external_look(g);
    for (int i = 0; i < e->lanes; i++)
        if (!oari_group_broken(g) && e->lane[i].work != NULL)
            look_at_work(g, e->lane[i].work);
    for (oar_work *w = e->message; w != NULL; w = w->next)
        if (!oari_group_broken(g) && !w->transfer.done)
            look_at_work(g, w);
    if (g->watch != NULL && !oari_group_broken(g))
        oari_gone_look(g);
}

const oari_engine_events oari_fault_events = {
    .broke = oari_group_break,
    .look = oari_fault_look,
    .hear = oari_fault_hear,
    .mismatch = oari_mismatch_open,
    .engine_failed = oari_mismatch_ask_all,
    .inquire = oari_mismatch_inquire,
};
