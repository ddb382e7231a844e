/* SPDX-License-Identifier: Apache-2.0 */
/* mismatch: see mismatch.h. Every report is a control message of its own, kept
 * until the backend has sent it. A rank that has not answered a question is not
 * asked another one, so that questions do not pile up at a rank that computes
 * for long. */
#include "comm/fault/mismatch.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "record/op_report.h"
#include "comm/fault/fault.h"
#include "comm/fault/siblings.h"
#include "link/control_message.h"
#include "comm/engine/message.h"

enum {
    REPORT_MS = 1000, /* within which all ranks report */
    JOINED_MS = 1500, /* the same on a rank that did not find it itself */
    REACH_MS = 500,   /* within which such a rank may reach that collective */
    ASK_ALL = 64      /* larger groups ask only the ranks that are waited for */
};

static const uint64_t account_tag = UINT64_C(3) << 61;

int64_t oari_mismatch_ask_ms = 1000;

struct oari_mismatch {
    int ranks;
    oari_control_messages messages;
    unsigned char *unanswered; /* by rank: a question of this rank */
    oari_op_report heard;      /* the report that is being read */

    uint64_t waits_for; /* the collective that waits, and since when */
    int64_t since_ns;
    int asked;
    int restless; /* this rank drives its other groups meanwhile */
    char (*last)[sizeof(((oari_op_report *)0)->last)]; /* by rank */
    uint64_t *is_in; /* by rank: the newest collective it has reported */
    unsigned char
        *elsewhere; /* by rank: what it did last was in another group */

    int open, mine;    /* mine: this rank has found it itself */
    int silent;        /* this rank has not reached that collective yet */
    int64_t silent_ns; /* until when it may wait to reach it */
    int against;       /* the rank that is suspected */
    uint64_t number;
    int64_t deadline_ns;
    oari_op_report own;
    oari_op_report **said; /* by rank; NULL: nothing yet */
};

/* ---- making -------------------------------------------------------------- */

oar_status oari_mismatch_create(const oar_group *group,
                                oari_mismatch **mismatch)
{
    size_t n = (size_t)group->ranks;
    oari_mismatch *d = oari_alloc(1, sizeof *d);

    if (d == NULL)
        return OAR_E_NOMEM;
    d->ranks = group->ranks;
    d->messages = (oari_control_messages){ .by = group->backend,
                                           .self = group->self,
                                           .tag = account_tag,
                                           .bytes = sizeof(oari_op_report) };
    d->is_in = oari_alloc(n, sizeof *d->is_in);
    d->said = oari_alloc(n, sizeof *d->said);
    d->elsewhere = oari_alloc(n, 1);
    d->unanswered = oari_alloc(n, 1);
    if (d->elsewhere == NULL || d->unanswered == NULL || d->is_in == NULL ||
        d->said == NULL ||
        oari_control_messages_init(&d->messages, d->ranks) != OAR_OK) {
        oari_mismatch_destroy(d);
        return OAR_E_NOMEM;
    }
    *mismatch = d;
    return OAR_OK;
}

void oari_mismatch_destroy(oari_mismatch *mismatch)
{
    if (mismatch == NULL)
        return;
    oari_control_messages_clear(&mismatch->messages);
    for (int r = 0; mismatch->said != NULL && r < mismatch->ranks; r++)
        if (mismatch->said[r] != &mismatch->own)
            oari_free(mismatch->said[r]);
    oari_free(mismatch->said);
    oari_free(mismatch->last);
    oari_free(mismatch->is_in);
    oari_free(mismatch->elsewhere);
    oari_free(mismatch->unanswered);
    oari_free(mismatch);
}

/* Keeps in the engine what it asks often. */
static void update_engine(oar_group *g)
{
    const oari_mismatch *d = g->engine.mismatch;

    g->engine.halted = d->open && !d->silent;
    g->engine.restless = d->restless || d->open;
    g->engine.quiet = d->asked && !d->open;
}

const char *oari_mismatch_last(const oari_mismatch *mismatch, int rank)
{
    return mismatch != NULL && mismatch->last != NULL && rank >= 0
               ? mismatch->last[rank]
               : "";
}

int oari_mismatch_has_reached(const oari_mismatch *mismatch, int rank,
                              uint64_t number)
{
    return mismatch != NULL && mismatch->is_in[rank] >= number;
}

int oari_mismatch_is_elsewhere(const oari_mismatch *mismatch, int rank)
{
    return mismatch != NULL && rank >= 0 && mismatch->elsewhere[rank];
}

/* ---- sending reports ----------------------------------------------------- */

static void make_report(const oar_group *g, uint64_t number, oari_op_report *a)
{
    oari_op_report_make(&g->engine.history, oari_recorder_base(g->recorder),
                        g->rank, number, a);
    a->elsewhere = (uint32_t)oari_siblings_last(g, a->last, sizeof a->last);
    a->parts = g->engine.parts;
}

/* A report that cannot be sent is dropped: the others have their deadlines. */
static void send_report(oar_group *g, int to, const oari_op_report *account)
{
    oari_mismatch *d = g->engine.mismatch;
    int asks = account->kind == OARI_REPORT_ASKS && account->wants == 0;

    if (to == g->rank || (asks && d->unanswered[to]) || oari_group_gone(g, to))
        return;
    if (oari_control_messages_send(&d->messages, to, account))
        d->unanswered[to] |= asks;
}

/* ---- an open mismatch ---------------------------------------------------- */

static void forget_reports(oari_mismatch *d)
{
    for (int r = 0; r < d->ranks; r++) {
        if (d->said[r] != &d->own)
            oari_free(d->said[r]);
        d->said[r] = NULL;
    }
}

/* Sends all ranks this rank's report about a collective. A claim stays with the
 * collective that it is about. */
static void report_to_all(oar_group *g, uint64_t number, int about,
                          const char *claim)
{
    oari_mismatch *d = g->engine.mismatch;

    if (d->number != number)
        forget_reports(d);
    d->number = number;
    d->silent = 0;
    make_report(g, number, &d->own);
    d->own.kind = OARI_REPORT_MISMATCH;
    d->own.about = about;
    snprintf(d->own.claim, sizeof d->own.claim, "%s", claim);
    d->said[g->rank] = &d->own;
    for (int r = 0; r < g->ranks; r++)
        send_report(g, r, &d->own);
}

/* Opens a mismatch that this rank has found itself. */
static void open_mismatch(oar_group *g, uint64_t number, int against,
                          const char *claim)
{
    oari_mismatch *d = g->engine.mismatch;

    d->open = d->mine = 1;
    d->against = against;
    d->deadline_ns = oari_deadline(REPORT_MS);
    report_to_all(g, number, claim[0] != 0 ? against : -1, claim);
}

int oari_mismatch_open(oar_group *group, const oari_exec *exec)
{
    oari_mismatch *d = group->engine.mismatch;

    if (d == NULL)
        return 0;
    if (!group->engine.halted)
        open_mismatch(group,
                      d->silent && d->number < exec->number ? d->number
                                                            : exec->number,
                      exec->doubt.peer, exec->doubt.claim);
    update_engine(group);
    return 1;
}

/* Returns the first collective in which this rank did something else than the
 * report says; 0: none. */
static uint64_t differs_from_mine(const oar_group *g, const oari_op_report *a)
{
    oari_op_report mine;

    make_report(g, a->number, &mine);
    return oari_op_report_differs(a, &mine);
}

/* Keeps the report of a rank that knows of a mismatch. If this rank does not,
 * it joins: it reports as soon as it has reached that collective. */
static void keep_report(oar_group *g, const oari_op_report *a)
{
    oari_mismatch *d = g->engine.mismatch;
    int halted = d->open && !d->silent;
    uint64_t number = halted ? 0 : differs_from_mine(g, a);

    if (number != 0)
        open_mismatch(g, number, a->rank, "");
    else if (!d->open || a->number < d->number) {
        if (!d->open) {
            d->mine = 0;
            d->against = -1;
            d->deadline_ns = oari_deadline(JOINED_MS);
            d->silent_ns = oari_deadline(REACH_MS);
        }
        d->open = 1;
        if (d->number != a->number)
            forget_reports(d);
        d->number = a->number;
        if (oari_history_newest(&g->engine.history) >= a->number || d->mine)
            report_to_all(g, a->number, -1, "");
        else
            d->silent = 1;
    }
    if (a->number != d->number || d->said[a->rank] != NULL)
        return;
    d->said[a->rank] = oari_alloc(1, sizeof *a);
    if (d->said[a->rank] != NULL)
        *d->said[a->rank] = *a;
}

/* Returns whether a record of another rank is plainly not the call that this
 * rank has made. Counts may differ between a root and the others. */
static int is_another_call(const oar_group *g, const oar_record *theirs)
{
    const oari_history_entry *past =
        oari_history_find(&g->engine.history, theirs->number);
    oar_record mine;

    return past != NULL &&
           oari_recorder_by_sequence(oari_recorder_base(g->recorder),
                                     past->what >> 8, &mine) == OAR_OK &&
           (mine.kind != theirs->kind || mine.op != theirs->op ||
            mine.dtype != theirs->dtype || mine.root != theirs->root);
}

/* Finds the call of a rank of this host that does not report, because it is not
 * in a call any more: its recorder can be read from here. That is the oldest
 * call up to `number` that is another than this rank's, or else number itself.
 * Returns 0 if it is not there. */
static int find_in_recorder(const oar_group *g, int rank, uint64_t number,
                            oar_record *call)
{
    int here = g->shm != NULL ? oari_shm_rank(g->shm, rank) : -1;
    const void *ring = here >= 0 ? g->shm->recorder[here] : NULL;
    int found = 0;
    oar_record r;

    if (ring == NULL)
        return 0;
    for (int i = 0; oari_recorder_newest(ring, i, &r) == OAR_OK; i++)
        if (r.number != 0 && r.number <= number &&
            number - r.number < OARI_REPORT_ENTRIES &&
            (r.number == number || is_another_call(g, &r))) {
            *call = r;
            found = 1;
        }
    return found;
}

/* Ends the group if no rank has reported what would explain the mismatch. */
static void end_unexplained(oar_group *g)
{
    const oari_mismatch *d = g->engine.mismatch;
    oari_op_report alone = d->own;
    const oari_op_report *said[2] = { &alone, NULL };
    oari_report_entry *mine = &alone.told[OARI_REPORT_ENTRIES - 1];
    oari_fault fault = { .evidence = OARI_EVIDENCE_SEEN };
    oar_record call;
    char text[144];

    alone.about = 0;
    said[0] = &alone;
    if (find_in_recorder(g, d->against, alone.number, &call)) {
        oari_record_text(&call, text, sizeof text);
        snprintf(alone.claim, sizeof alone.claim, "rank %d has called %s",
                 d->against, text);
    } else
        snprintf(alone.claim, sizeof alone.claim,
                 "rank %d is in another operation than rank %d, and has not "
                 "said in which within %d ms",
                 d->against, g->rank, REPORT_MS);
    mine->number = alone.number;
    if (!oari_op_reports_compare(said, 1, &fault.error))
        return;
    fault.error.peer = d->against;
    oari_fault_place(g, fault.error.rank, fault.error.peer, &fault.error);
    oari_group_adopt(g, &fault);
}

/* Ends the group once the reports explain the mismatch, or the time is up. */
static void judge_reports(oar_group *g)
{
    oari_mismatch *d = g->engine.mismatch;
    int late = oari_now_ns() >= d->deadline_ns, complete = 1;
    oari_fault fault = { .evidence = OARI_EVIDENCE_SEEN };

    if (d->silent)
        return;
    for (int r = 0; r < g->ranks && complete && !late; r++)
        complete = d->said[r] != NULL || oari_group_gone(g, r);
    if (!late && !complete)
        return;
    if (oari_op_reports_compare((const oari_op_report *const *)d->said,
                                g->ranks, &fault.error)) {
        oari_fault_place(g, fault.error.rank, fault.error.peer, &fault.error);
        oari_group_adopt(g, &fault);
    } else if (late && d->mine)
        end_unexplained(g);
    else if (late) {
        d->open = 0; /* the rank that opened it has not finished it */
        forget_reports(d);
    }
}

/* ---- reading reports ----------------------------------------------------- */

/* Compares a question or an answer with what this rank did: the rank that hears
 * first of the other finds the mismatch. */
static void compare_report(oar_group *g, const oari_op_report *a)
{
    oari_mismatch *d = g->engine.mismatch;
    uint64_t number = differs_from_mine(g, a);
    oari_op_report mine;

    if (number != 0 && !d->open)
        open_mismatch(g, number, a->rank, "");
    else if (a->kind == OARI_REPORT_ASKS) {
        make_report(g, a->number, &mine);
        mine.kind = OARI_REPORT_ANSWERS;
        mine.wants = a->wants;
        if (a->wants != 0)
            oari_message_recall(oari_recorder_base(g->recorder), a->wants,
                                mine.sent, sizeof mine.sent);
        send_report(g, a->rank, &mine);
    }
}

/* Reads the next report that has come. Returns 0 if there is none. */
static int read_report(oar_group *g)
{
    oari_mismatch *d = g->engine.mismatch;
    oari_op_report *a = &d->heard;
    int from = oari_control_messages_next(&d->messages, a);

    if (from < 0)
        return 0;
    if (!oari_op_report_check(a, from, g->ranks))
        return 1;
    if (d->last == NULL)
        d->last = oari_alloc((size_t)d->ranks, sizeof *d->last);
    if (d->last != NULL)
        memcpy(d->last[a->rank], a->last, sizeof a->last);
    d->is_in[a->rank] = a->newest;
    d->elsewhere[a->rank] = a->elsewhere != 0;
    if (a->kind == OARI_REPORT_ANSWERS)
        d->unanswered[a->rank] = 0;
    if (a->kind == OARI_REPORT_ANSWERS && a->wants != 0)
        for (oar_work *w = g->engine.message; w != NULL; w = w->next)
            if (w->inquired_ns != 0 && w->transfer.source == a->rank &&
                w->transfer.got_tag == a->wants)
                memcpy(w->sent, a->sent, sizeof w->sent);
    if (a->kind == OARI_REPORT_MISMATCH)
        keep_report(g, a);
    else
        compare_report(g, a);
    return 1;
}

/* ---- asking -------------------------------------------------------------- */

/* Returns the newest collective to report on, from 1. */
static uint64_t newest_collective(const oar_group *g)
{
    uint64_t number = oari_history_newest(&g->engine.history);

    return number != 0 ? number : 1;
}

/* Asks the ranks that the collective or messages wait for; in a small group all
 * ranks. x == NULL: no collective waits. */
static void ask_ranks(oar_group *g, const oari_exec *x)
{
    oari_op_report a;

    make_report(g, x != NULL ? x->number : newest_collective(g), &a);
    a.kind = OARI_REPORT_ASKS;
    for (int r = 0; r < g->ranks; r++) {
        int wanted = x != NULL
                         ? g->ranks <= ASK_ALL || oari_exec_awaits_message(x, r)
                         : g->engine.history.monitored_number != 0;
        for (const oar_work *w = g->engine.message; w != NULL; w = w->next)
            wanted |= w->call.root == r;
        if (wanted)
            send_report(g, r, &a);
    }
}

void oari_mismatch_ask_all(oar_group *group)
{
    oari_op_report a;

    if (group->engine.mismatch == NULL)
        return;
    make_report(group, newest_collective(group), &a);
    a.kind = OARI_REPORT_ASKS;
    for (int r = 0; r < group->ranks; r++)
        send_report(group, r, &a);
}

void oari_mismatch_inquire(oar_group *group, const oar_transfer *misfit)
{
    oari_op_report a;

    make_report(group, newest_collective(group), &a);
    a.kind = OARI_REPORT_ASKS;
    a.wants = misfit->got_tag;
    send_report(group, misfit->source, &a);
}

/* Asks once what the others do, if the oldest operation under way has waited
 * for long, and drives this rank's other groups meanwhile. */
static void look_at_stall(oar_group *g)
{
    oari_engine *e = &g->engine;
    oari_mismatch *d = e->mismatch;
    const oari_exec *x = NULL; /* the oldest collective */
    uint64_t waits = 0;
    int64_t now = oari_now_ns();

    for (int i = 0; i < e->lanes; i++)
        if (e->lane[i].work != NULL &&
            (x == NULL || e->lane[i].exec.number < x->number))
            x = &e->lane[i].exec;
    if (x != NULL)
        waits = x->number;
    else if (e->history.monitored_number != 0)
        waits = e->history.monitored_number;
    else if (e->message != NULL)
        waits = OARI_USER_TAG | e->message->sequence;
    if (waits != d->waits_for) {
        d->waits_for = waits;
        d->since_ns = now;
        d->asked = d->restless = 0;
    }
    if (waits == 0 || now - d->since_ns < oari_mismatch_ask_ms * 1000000)
        return;
    if (!d->asked)
        ask_ranks(g, x);
    d->asked = 1;
    d->restless = oari_siblings_drive(g) != 0;
}

void oari_mismatch_look(oar_group *group)
{
    oari_mismatch *d = group->engine.mismatch;
    const oari_shm *b;

    if (d == NULL || oari_group_broken(group))
        return;
    b = group->engine.lane->exec.shm;
    /* Where collectives only meet in shared memory, or an external engine does
     * them, nothing else moves the links on. Elsewhere the driver does; to do
     * it here as well would consume its wake-ups. */
    if (((b != NULL && b->member == NULL) || group->external.ops != NULL) &&
        group->backend->progress != NULL &&
        group->backend->progress(group->self) != OAR_OK) {
        oari_group_break(group, NULL, -1);
        return;
    }
    while (!oari_group_broken(group) && read_report(group))
        ;
    if (!d->open)
        look_at_stall(group);
    else if (!oari_group_broken(group)) {
        if (d->silent && (group->engine.history.number >= d->number ||
                          oari_now_ns() >= d->silent_ns))
            report_to_all(group, d->number, -1, "");
        judge_reports(group);
    }
    update_engine(group);
}
