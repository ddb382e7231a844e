/* SPDX-License-Identifier: Apache-2.0 */
/* group_fault: how a group breaks. The first fault wins: `broken` goes from
 * none to writing to ready once, and the record never changes after that. */
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
    SETTLE_MS = 400, /* for all to say which fault they have */
    FOLLOW_MS = 550, /* for the rank that saw it to say that they have */
    SETTLE_NAP_NS = 200000,
    HELD_UP_NS = 100000000 /* between two naps, and more */
};

static int claim_fault(oar_group *g)
{
    int none = OARI_FAULT_NONE;

    return atomic_compare_exchange_strong(&g->broken, &none,
                                          OARI_FAULT_WRITING);
}

const oari_fault *oari_group_published(const oar_group *g)
{
    if (g->in_tree->published != NULL)
        return g->opened ? g->in_tree->published(g->self) : NULL;
    return g->board != NULL ? oari_board_published(g->board) : NULL;
}

static int gone_from_links(const oar_group *g, int rank)
{
    if (g->in_tree->gone != NULL)
        return g->in_tree->gone(g->self, rank);
    if (g->board == NULL || !g->board->gone[rank])
        return 0;
    return atomic_load(&g->board->control[rank]->closed) ? OARI_PEER_LEFT
                                                         : OARI_PEER_DIED;
}

int oari_group_gone(const oar_group *g, int rank)
{
    int gone = rank >= 0 ? gone_from_links(g, rank) : 0;

    return gone != 0 && (g->foreign.ops != NULL || g->engine.on_gpu != 0)
               ? oari_foreign_gone(g, rank, gone)
               : gone;
}

/* Whether faults travel: then two ranks may fail before either can know. */
static int is_flooded(const oar_group *g)
{
    return g->in_tree->conclude != NULL &&
           (g->board == NULL || g->board->member != NULL);
}

/* How long for those to answer that compute, or cannot. */
static int64_t patience_ns(const oar_group *g)
{
    const oari_fault *best = oari_group_published(g);
    int mine = best != NULL && best->error.rank == g->rank;

    return (mine ? SETTLE_MS : FOLLOW_MS) * INT64_C(1000000);
}

/* Others may have failed before they could hear of it: until all have the same
 * record, or have had their time. If this rank is held up itself, that is not
 * their time: what they have said meanwhile is heard first. */
static void hear_out(oar_group *g, int driver)
{
    int64_t waited = 0, last = oari_now_ns();

    while (!g->in_tree->agreed(g->self) && waited < patience_ns(g)) {
        int64_t now;

        if (driver)
            g->backend->progress(g->self);
        nanosleep(&(struct timespec){ 0, SETTLE_NAP_NS }, NULL);
        now = oari_now_ns();
        waited += now - last < HELD_UP_NS ? now - last : HELD_UP_NS;
        last = now;
    }
}

/* The one that counts, of those published at the same instant. */
static const oari_fault *choose(oar_group *g, int driver)
{
    if (!is_flooded(g))
        return oari_group_published(g);
    hear_out(g, driver);
    return g->in_tree->conclude(g->self);
}

/* As it is read by those to whom it travels. */
static void clean(oari_fault *fault)
{
    unsigned char raw[OARI_FAULT_BYTES];

    oari_fault_write(fault, raw);
    oari_fault_read(raw, fault);
}

/* Told to the peers first: once this rank's calls return, its buffers are the
 * user's again, and a peer that still reads them must be able to know. */
static void settle_fault(oar_group *g, int driver)
{
    const oari_fault *first;

    clean(&g->fault);
    if (g->in_tree->publish != NULL)
        g->in_tree->publish(g->self, &g->fault);
    else if (g->board != NULL)
        oari_board_publish(g->board, &g->fault);
    if ((first = choose(g, driver)) != NULL)
        g->fault = *first;
    oari_recorder_fault(g->recorder, &g->fault.error);
    atomic_store_explicit(&g->broken, OARI_FAULT_READY, memory_order_release);
    /* The caller is told, too. */
    oari_log(OAR_LOG_INFO, "group \"%s\", rank %d: %s: %s", g->name, g->rank,
             oar_status_name(g->fault.error.status), g->fault.error.text);
}

/* What happened to this rank's own process is told to all: so it says where. */
static void name_rank(oar_error *f, int rank)
{
    char text[sizeof f->text];

    if (f->status != OAR_E_SYSTEM && f->status != OAR_E_NOMEM)
        return;
    snprintf(text, sizeof text, "rank %d: %.480s", rank, f->text);
    memcpy(f->text, text, sizeof text);
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

static void sign(oar_group *g, const oar_work *work, int peer)
{
    oar_error *f = &g->fault.error;

    oari_fault_place(g, g->rank, -1, f); /* a peer has its in the text */
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

static void adopt(oar_group *group, const oari_fault *fault, int driver)
{
    if (!claim_fault(group))
        return;
    group->fault = *fault;
    settle_fault(group, driver);
}

/* A fault that a peer has published came before mine, and stays the one that is
 * reported; unless mine (may be NULL) names the cause and that one does not. */
static int heard_of_one(oar_group *g, const oari_fault *mine, int driver)
{
    const oari_fault *published;

    if (driver && is_flooded(g) && !oari_group_broken(g))
        g->backend->progress(g->self); /* it may have come already */
    published = oari_group_published(g);
    if (published == NULL ||
        (mine != NULL && oari_fault_sure(mine) && !oari_fault_sure(published)))
        return 0;
    adopt(g, published, driver);
    return 1;
}

/* Whoever claimed the fault writes it down without waiting for anybody. */
static void await_fault(const oar_group *g)
{
    while (!oari_group_broken(g))
        sched_yield();
}

/* A rank that gave up waiting for a peer that is stopped knows the cause; any
 * other peer may itself wait for another rank. */
static oari_evidence evidence_of(const oar_group *g, oar_status status,
                                 int peer)
{
    if (status != OAR_E_TIMEOUT)
        return OARI_EVIDENCE_SEEN;
    return peer >= 0 && oari_presence_of(g, peer) == OARI_PRESENCE_STOPPED
               ? OARI_EVIDENCE_STOPPED
               : OARI_EVIDENCE_TIMEOUT;
}

void oari_group_break(oar_group *group, const oar_work *work, int peer)
{
    oari_fault why = { .error = *oar_last_error() };

    why.evidence = evidence_of(group, why.error.status, peer);

    if (heard_of_one(group, &why, 1) || !claim_fault(group)) {
        await_fault(group);
        return;
    }
    group->fault = why;
    name_rank(&group->fault.error, group->rank);
    sign(group, work, peer);
    settle_fault(group, 1);
}

void oari_group_adopt(oar_group *group, const oari_fault *fault)
{
    adopt(group, fault, 1);
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
    if (!heard_of_one(group, NULL, driver) && claim_fault(group)) {
        oari_error_set(&group->fault.error, OAR_E_ABORTED,
                       "rank %d aborted: %s", group->rank,
                       reason != NULL ? reason : "no reason given");
        group->fault.evidence = OARI_EVIDENCE_SEEN;
        sign(group, NULL, -1);
        settle_fault(group, driver);
    }
    if (driver)
        oari_engine_let_go(group);
    oari_engine_wake(group);
    oari_engine_nudge(group); /* if nobody drives: to tell the peers */
    return OAR_OK;
}
