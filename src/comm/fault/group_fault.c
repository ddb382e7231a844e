/* SPDX-License-Identifier: Apache-2.0 */
/* group_fault: how a group breaks. The first fault wins: `broken` goes once
 * from none to writing to ready, and the record never changes after that. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/fault/presence.h"
#include "comm/fault/fault.h"
#include "net/frame.h"
#include "comm/engine/engine.h"

enum {
    SETTLE_MS = 400, /* within which all ranks say which fault they have */
    FOLLOW_MS = 550, /* within which the rank that saw it says that they have */
    SETTLE_NAP_NS = 200000,
    HELD_UP_NS = 100000000 /* at most so much of a nap counts as waiting */
};

static int claim_fault(oar_group *g)
{
    int none = OARI_FAULT_NONE;

    return atomic_compare_exchange_strong(&g->broken, &none,
                                          OARI_FAULT_WRITING);
}

int oari_group_published(const oar_group *g, oari_fault *fault)
{
    if (g->in_tree->published != NULL)
        return g->opened && g->in_tree->published(g->self, fault);
    return g->shm != NULL && oari_shm_published(g->shm, OARI_FACT_FAULT, fault);
}

/* Returns whether a rank of a loose group has ended it for itself. */
static int has_ended(const oar_group *g, int rank)
{
    int here = g->shm != NULL ? oari_shm_rank(g->shm, rank) : -1;
    unsigned char raw[OARI_FAULT_BYTES];

    if (rank == g->rank)
        return 0;
    if (here >= 0)
        return oari_bulletin_has(oari_shm_bulletin(g->shm, here),
                                 OARI_FACT_FAULT);
    return g->in_tree->read != NULL &&
           g->in_tree->read(g->self, rank, OARI_FACT_FAULT, raw);
}

int oari_group_gone(const oar_group *g, int rank)
{
    int gone = 0;

    if (rank >= 0 && g->in_tree->gone != NULL)
        gone = g->in_tree->gone(g->self, rank);
    else if (rank >= 0 && g->shm != NULL && g->shm->gone[rank])
        gone = atomic_load(&g->shm->control[rank]->closed) ? OARI_PEER_LEFT
                                                           : OARI_PEER_DIED;
    if (gone == 0 && g->loose && rank >= 0 && has_ended(g, rank))
        gone = OARI_PEER_LEFT;
    return gone != 0 && (g->external.ops != NULL || g->engine.on_gpu != 0)
               ? oari_external_gone(g, rank, gone)
               : gone;
}

/* Returns whether faults travel by messages: then two ranks may fail before
 * either hears of the other. */
static int is_flooded(const oar_group *g)
{
    return !g->loose && g->in_tree->conclude != NULL &&
           (g->shm == NULL || g->shm->member != NULL);
}

/* Waits until all ranks have the same record, or their time is up: others may
 * have failed before they could hear of this fault. Time in which this rank was
 * held up itself does not count, so that their answers are read first. */
static void settle_with_peers(oar_group *g, int driver)
{
    int64_t waited = 0, last = oari_now_ns();

    while (!g->in_tree->agreed(g->self)) {
        oari_fault best;
        int mine = oari_group_published(g, &best) && best.error.rank == g->rank;
        int64_t now;

        /* ranks that compute, or cannot answer, are not waited for longer */
        if (waited >= (mine ? SETTLE_MS : FOLLOW_MS) * INT64_C(1000000))
            return;
        if (driver)
            g->backend->progress(g->self);
        nanosleep(&(struct timespec){ 0, SETTLE_NAP_NS }, NULL);
        now = oari_now_ns();
        waited += now - last < HELD_UP_NS ? now - last : HELD_UP_NS;
        last = now;
    }
}

/* Publishes the fault first, and makes it ready then: once this rank's calls
 * return, its buffers are the user's again, and a peer that still reads them
 * must be able to know. */
static void settle_fault(oar_group *g, int driver)
{
    unsigned char raw[OARI_FAULT_BYTES];

    oari_fault_write(&g->fault, raw); /* cut to what peers read of it */
    oari_fault_read(raw, &g->fault);
    if (g->in_tree->publish != NULL)
        g->in_tree->publish(g->self, &g->fault);
    else if (g->shm != NULL)
        oari_shm_publish(g->shm, OARI_FACT_FAULT, &g->fault);
    /* of those published at the same time, one counts */
    if (is_flooded(g)) {
        settle_with_peers(g, driver);
        g->in_tree->conclude(g->self, &g->fault);
    } else if (!g->loose) {
        oari_group_published(g, &g->fault);
    }
    /* to the others, a rank that aborts a loose group has only left it */
    if (!g->loose || g->fault.error.status != OAR_E_ABORTED)
        oari_recorder_fault(g->recorder, &g->fault.error);
    atomic_store_explicit(&g->broken, OARI_FAULT_READY, memory_order_release);
    /* at INFO, because the caller gets it as the last error */
    oari_log(OAR_LOG_INFO, "group \"%s\", rank %d: %s: %s", g->name, g->rank,
             oar_status_name(g->fault.error.status), g->fault.error.text);
}

static void add_world_rank(const oar_group *g, int rank, const char *between,
                           char *text, size_t bytes)
{
    size_t used = strlen(text);

    if (rank >= 0 && rank < g->ranks)
        snprintf(text + used, bytes - used, "%srank %d is world rank %d",
                 between, rank, g->in_world[rank]);
}

void oari_fault_place(const oar_group *group, int rank, int peer,
                      oar_error *fault)
{
    char where[OARI_NAME_MAX + 120];
    size_t room = sizeof fault->text - 1, used = strlen(fault->text), add;

    if (group->in_world == NULL)
        return;
    snprintf(where, sizeof where, " [group \"%.*s\"", OARI_NAME_MAX,
             group->name);
    add_world_rank(group, rank, ": ", where, sizeof where);
    add_world_rank(group, peer, ", ", where, sizeof where);
    add = strlen(where) + 1;
    if (used + add > room)
        used = room - add;
    snprintf(fault->text + used, sizeof fault->text - used, "%s]", where);
}

void oari_fault_fill(const oar_group *g, const oar_work *work, int peer,
                     oar_error *f)
{
    oari_fault_place(g, g->rank, -1, f); /* the text names the peer itself */
    f->rank = g->rank;
    f->peer = peer;
    f->pid = getpid();
    if (gethostname(f->host, sizeof f->host - 1) != 0)
        f->host[0] = 0;
    if (work == NULL)
        return;
    f->sequence = work->sequence;
    snprintf(f->operation, sizeof f->operation, "%s",
             oar_coll_name(work->call.kind));
    oari_site_text(work->call.file, work->call.line, f->site, sizeof f->site);
    snprintf(f->label, sizeof f->label, "%s",
             work->call.label != NULL ? work->call.label : "");
}

static void adopt_fault(oar_group *group, const oari_fault *fault, int driver)
{
    if (!claim_fault(group))
        return;
    group->fault = *fault;
    settle_fault(group, driver);
}

/* Adopts a fault that a peer has published: 1. It came before this rank's fault
 * (mine; may be NULL), unless that one names the cause and the peer's does not.
 */
static int adopt_published(oar_group *g, const oari_fault *mine, int driver)
{
    oari_fault published;

    if (g->loose)
        return 0;
    if (driver && is_flooded(g) && !oari_group_broken(g))
        g->backend->progress(g->self); /* it may have come already */
    if (!oari_group_published(g, &published) ||
        (mine != NULL && oari_fault_sure(mine) && !oari_fault_sure(&published)))
        return 0;
    adopt_fault(g, &published, driver);
    return 1;
}

/* A rank that gave up waiting for a peer that is stopped knows the cause; any
 * other peer may itself wait for another rank. */
void oari_group_break(oar_group *group, const oar_work *work, int peer)
{
    oari_fault why = { .error = *oar_last_error(),
                       .evidence = OARI_EVIDENCE_SEEN };
    oar_status status = why.error.status;

    if (status == OAR_E_TIMEOUT)
        why.evidence =
            peer >= 0 && oari_presence_of(group, peer) == OARI_PRESENCE_STOPPED
                ? OARI_EVIDENCE_STOPPED
                : OARI_EVIDENCE_TIMEOUT;
    if (adopt_published(group, &why, 1) || !claim_fault(group)) {
        /* the thread that claimed the fault writes it without waiting */
        while (!oari_group_broken(group))
            sched_yield();
        return;
    }
    group->fault = why;
    /* all ranks get this text: say in whose process it happened */
    if (status == OAR_E_SYSTEM || status == OAR_E_NOMEM)
        snprintf(group->fault.error.text, sizeof why.error.text,
                 "rank %d: %.480s", group->rank, why.error.text);
    oari_fault_fill(group, work, peer, &group->fault.error);
    settle_fault(group, 1);
}

void oari_group_adopt(oar_group *group, const oari_fault *fault)
{
    adopt_fault(group, fault, 1);
}

oar_status oari_group_owned(const oar_group *group)
{
    if (group->generation != oari_fork_generation())
        return oari_fail(OAR_E_STATE,
                         "group \"%s\" belongs to the process that this one "
                         "was forked from",
                         group->name);
    return OAR_OK;
}

oar_status oari_group_check(const oar_group *group)
{
    OARI_TRY(oari_group_owned(group));
    if (oari_group_broken(group))
        return oari_fail_with(&group->fault.error);
    return OAR_OK;
}

oar_status oar_group_fault(const oar_group *group, oar_error *record)
{
    if (group == NULL)
        return oari_fail(OAR_E_ARG, "group_fault of NULL");
    OARI_TRY(oari_group_owned(group));
    if (!oari_group_broken(group))
        return OAR_OK;
    if (record != NULL)
        *record = group->fault.error;
    return oari_fail_with(&group->fault.error);
}

oar_status oar_group_abort(oar_group *group, const char *reason)
{
    int driver;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "group_abort of NULL");
    OARI_TRY(oari_group_owned(group));
    driver = oari_engine_try_hold(group);
    if (!adopt_published(group, NULL, driver) && claim_fault(group)) {
        oari_error_set(&group->fault.error, OAR_E_ABORTED,
                       "rank %d aborted: %s", group->rank,
                       reason != NULL ? reason : "no reason given");
        group->fault.evidence = OARI_EVIDENCE_SEEN;
        oari_fault_fill(group, NULL, -1, &group->fault.error);
        settle_fault(group, driver);
    }
    if (driver)
        oari_engine_let_go(group);
    oari_engine_wake(group);
    oari_engine_nudge(group); /* tells the peers if no thread drives */
    return OAR_OK;
}
