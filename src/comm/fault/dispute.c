/* SPDX-License-Identifier: Apache-2.0 */
/* dispute: see dispute.h. Every account that is sent is a letter of its own,
 * kept until the backend is done with it. A rank that has not answered a
 * question is not asked another one: who computes for long is not filled up
 * with them. */
#include "comm/fault/dispute.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "record/account.h"
#include "comm/fault/fault.h"
#include "comm/fault/kin.h"
#include "link/letters.h"
#include "comm/engine/message.h"

enum {
    SPEAK_MS = 1000, /* for all to say what they did */
    HEAR_MS = 1500,  /* who is only told leaves the verdict to others */
    COME_MS = 500,   /* for who is told to come to that collective, too */
    ASK_ALL = 64     /* ranks; in larger groups only who is waited for */
};

static const uint64_t account_tag = UINT64_C(3) << 61;

int64_t oari_dispute_ask_ms = 1000;

struct oari_dispute {
    int ranks;
    oari_letters letters;
    unsigned char *unanswered; /* by rank: a question of mine */
    oari_account heard;        /* being read */

    uint64_t waits_for; /* the collective that waits, and since when */
    int64_t since_ns;
    int asked;
    int restless; /* and has other groups to look after meanwhile */
    char (*last)[sizeof(((oari_account *)0)->last)]; /* by rank */
    uint64_t *is_in; /* by rank: the newest collective it has spoken of */
    unsigned char
        *elsewhere; /* by rank: what it did last was in another group */

    int open, mine;    /* mine: I have found it myself */
    int silent;        /* I have not come to that collective yet */
    int64_t silent_ns; /* until then */
    int against;       /* whom I doubt */
    uint64_t number;
    int64_t deadline_ns;
    oari_account own;
    oari_account **said; /* by rank; NULL: nothing yet */
};

/* ---- making -------------------------------------------------------------- */

oar_status oari_dispute_create(const oar_group *group, oari_dispute **dispute)
{
    size_t n = (size_t)group->ranks;
    oari_dispute *d = oari_alloc(1, sizeof *d);

    if (d == NULL)
        return OAR_E_NOMEM;
    d->ranks = group->ranks;
    d->letters = (oari_letters){ .by = group->backend,
                                 .self = group->self,
                                 .tag = account_tag,
                                 .bytes = sizeof(oari_account) };
    d->is_in = oari_alloc(n, sizeof *d->is_in);
    d->said = oari_alloc(n, sizeof *d->said);
    d->elsewhere = oari_alloc(n, 1);
    d->unanswered = oari_alloc(n, 1);
    if (d->elsewhere == NULL || d->unanswered == NULL || d->is_in == NULL ||
        d->said == NULL || oari_letters_init(&d->letters, d->ranks) != OAR_OK) {
        oari_dispute_destroy(d);
        return OAR_E_NOMEM;
    }
    *dispute = d;
    return OAR_OK;
}

void oari_dispute_destroy(oari_dispute *dispute)
{
    if (dispute == NULL)
        return;
    oari_letters_clear(&dispute->letters);
    for (int r = 0; dispute->said != NULL && r < dispute->ranks; r++)
        if (dispute->said[r] != &dispute->own)
            oari_free(dispute->said[r]);
    oari_free(dispute->said);
    oari_free(dispute->last);
    oari_free(dispute->is_in);
    oari_free(dispute->elsewhere);
    oari_free(dispute->unanswered);
    oari_free(dispute);
}

/* The engine asks often, so it has the answers at hand. */
static void tell_engine(oar_group *g)
{
    const oari_dispute *d = g->engine.dispute;

    g->engine.halted = d->open && !d->silent;
    g->engine.restless = d->restless || d->open;
}

const char *oari_dispute_last(const oari_dispute *dispute, int rank)
{
    return dispute != NULL && dispute->last != NULL && rank >= 0
               ? dispute->last[rank]
               : "";
}

int oari_dispute_is_in(const oari_dispute *dispute, int rank, uint64_t number)
{
    return dispute != NULL && dispute->is_in[rank] >= number;
}

int oari_dispute_is_elsewhere(const oari_dispute *dispute, int rank)
{
    return dispute != NULL && rank >= 0 && dispute->elsewhere[rank];
}

/* ---- saying -------------------------------------------------------------- */

static void account_of(const oar_group *g, uint64_t number, oari_account *a)
{
    oari_account_make(&g->engine.history, oari_recorder_base(g->recorder),
                      g->rank, number, a);
    a->elsewhere = (uint32_t)oari_kin_last(g, a->last, sizeof a->last);
    a->parts = g->engine.parts;
}

/* What cannot be sent is not said: the others have their deadlines. */
static void say(oar_group *g, int to, const oari_account *account)
{
    oari_dispute *d = g->engine.dispute;
    int asks = account->kind == OARI_ASKS && account->wants == 0;

    if (to == g->rank || (asks && d->unanswered[to]) || oari_group_gone(g, to))
        return;
    if (oari_letters_send(&d->letters, to, account))
        d->unanswered[to] |= asks;
}

static void say_to_all(oar_group *g, const oari_account *account)
{
    for (int r = 0; r < g->ranks; r++)
        say(g, r, account);
}

/* ---- a dispute ----------------------------------------------------------- */

static void forget_said(oari_dispute *d)
{
    for (int r = 0; r < d->ranks; r++) {
        if (d->said[r] != &d->own)
            oari_free(d->said[r]);
        d->said[r] = NULL;
    }
}

static void be_about(oari_dispute *d, uint64_t number)
{
    if (d->number != number)
        forget_said(d);
    d->number = number;
}

/* Speaks up about a collective, to all. A claim stays with the collective it
 * is about. */
static void speak(oar_group *g, uint64_t number, int about, const char *claim)
{
    oari_dispute *d = g->engine.dispute;

    be_about(d, number);
    d->silent = 0;
    account_of(g, number, &d->own);
    d->own.kind = OARI_DISPUTES;
    d->own.about = about;
    snprintf(d->own.claim, sizeof d->own.claim, "%s", claim);
    d->said[g->rank] = &d->own;
    say_to_all(g, &d->own);
}

/* I have found it myself. */
static void begin(oar_group *g, uint64_t number, int against, const char *claim)
{
    oari_dispute *d = g->engine.dispute;

    d->open = d->mine = 1;
    d->against = against;
    d->deadline_ns = oari_deadline(SPEAK_MS);
    speak(g, number, claim[0] != 0 ? against : -1, claim);
}

int oari_dispute_open(oar_group *group, const oari_exec *exec)
{
    oari_dispute *d = group->engine.dispute;

    if (d == NULL)
        return 0;
    if (!group->engine.halted)
        begin(group,
              d->silent && d->number < exec->number ? d->number : exec->number,
              exec->doubt.peer, exec->doubt.claim);
    tell_engine(group);
    return 1;
}

/* I have been told, and say what I did as soon as I have come that far. */
static void join(oar_group *g, uint64_t number)
{
    oari_dispute *d = g->engine.dispute;

    if (!d->open) {
        d->mine = 0;
        d->against = -1;
        d->deadline_ns = oari_deadline(HEAR_MS);
        d->silent_ns = oari_deadline(COME_MS);
    }
    d->open = 1;
    be_about(d, number);
    if (oari_history_newest(&g->engine.history) >= number || d->mine)
        speak(g, number, -1, "");
    else
        d->silent = 1;
}

static void end_silence(oar_group *g)
{
    oari_dispute *d = g->engine.dispute;

    if (d->silent && (g->engine.history.number >= d->number ||
                      oari_now_ns() >= d->silent_ns))
        speak(g, d->number, -1, "");
}

/* The first collective in which I did something else; 0: none. */
static uint64_t differs_from_mine(const oar_group *g, const oari_account *a)
{
    oari_account mine;

    account_of(g, a->number, &mine);
    return oari_account_differs(a, &mine);
}

static void note_said(oar_group *g, const oari_account *a)
{
    oari_dispute *d = g->engine.dispute;
    int halted = d->open && !d->silent;
    uint64_t number = halted ? 0 : differs_from_mine(g, a);

    if (number != 0)
        begin(g, number, a->rank, "");
    else if (!d->open || a->number < d->number)
        join(g, a->number);
    if (a->number != d->number || d->said[a->rank] != NULL)
        return;
    d->said[a->rank] = oari_alloc(1, sizeof *a);
    if (d->said[a->rank] != NULL)
        *d->said[a->rank] = *a;
}

static int all_have_spoken(const oar_group *g)
{
    const oari_dispute *d = g->engine.dispute;

    for (int r = 0; r < g->ranks; r++)
        if (d->said[r] == NULL && !oari_group_gone(g, r))
            return 0;
    return 1;
}

/* Nobody has said what would explain it. */
static void end_unexplained(oar_group *g)
{
    const oari_dispute *d = g->engine.dispute;
    oari_account alone = d->own;
    const oari_account *said[2] = { &alone, NULL };
    oari_told *mine = &alone.told[OARI_TOLD - 1];
    oari_fault fault = { .evidence = OARI_EVIDENCE_SEEN };

    alone.about = 0;
    said[0] = &alone;
    snprintf(alone.claim, sizeof alone.claim,
             "rank %d is in another operation than rank %d, and has not said "
             "in which within %d ms",
             d->against, g->rank, SPEAK_MS);
    mine->number = alone.number;
    if (!oari_accounts_judge(said, 1, &fault.error))
        return;
    fault.error.peer = d->against;
    oari_fault_place(g, fault.error.rank, fault.error.peer, &fault.error);
    oari_group_adopt(g, &fault);
}

static void judge(oar_group *g)
{
    oari_dispute *d = g->engine.dispute;
    int late = oari_now_ns() >= d->deadline_ns;
    oari_fault fault = { .evidence = OARI_EVIDENCE_SEEN };

    if (d->silent || (!late && !all_have_spoken(g)))
        return;
    if (oari_accounts_judge((const oari_account *const *)d->said, g->ranks,
                            &fault.error)) {
        oari_fault_place(g, fault.error.rank, fault.error.peer, &fault.error);
        oari_group_adopt(g, &fault);
    } else if (late && d->mine)
        end_unexplained(g);
    else if (late) {
        d->open = 0; /* somebody else's, who has not come to an end */
        forget_said(d);
    }
}

/* ---- hearing ------------------------------------------------------------- */

static void remember_last(oari_dispute *d, const oari_account *a)
{
    if (d->last == NULL)
        d->last = oari_alloc((size_t)d->ranks, sizeof *d->last);
    if (d->last != NULL)
        memcpy(d->last[a->rank], a->last, sizeof a->last);
    d->is_in[a->rank] = a->newest;
    d->elsewhere[a->rank] = a->elsewhere != 0;
    if (a->kind == OARI_ANSWERS)
        d->unanswered[a->rank] = 0;
}

/* Whether we have gone different ways is seen by whoever hears of the other
 * first. */
static void compare(oar_group *g, const oari_account *a)
{
    oari_dispute *d = g->engine.dispute;
    uint64_t number = differs_from_mine(g, a);
    oari_account mine;

    if (number != 0 && !d->open)
        begin(g, number, a->rank, "");
    else if (a->kind == OARI_ASKS) {
        account_of(g, a->number, &mine);
        mine.kind = OARI_ANSWERS;
        mine.wants = a->wants;
        if (a->wants != 0)
            oari_message_recall(oari_recorder_base(g->recorder), a->wants,
                                mine.sent, sizeof mine.sent);
        say(g, a->rank, &mine);
    }
}

/* The sender of a message that did not fit has said where it was sent. */
static void note_sent(oar_group *g, const oari_account *a)
{
    for (oar_work *w = g->engine.message; w != NULL; w = w->next)
        if (w->inquired_ns != 0 && w->transfer.source == a->rank &&
            w->transfer.got_tag == a->wants)
            memcpy(w->sent, a->sent, sizeof w->sent);
}

static void hear(oar_group *g, oari_account *a, int from)
{
    if (!oari_account_check(a, from, g->ranks))
        return;
    remember_last(g->engine.dispute, a);
    if (a->kind == OARI_ANSWERS && a->wants != 0)
        note_sent(g, a);
    if (a->kind == OARI_DISPUTES)
        note_said(g, a);
    else
        compare(g, a);
}

/* One account after the other, as they come. 0: there is none. */
static int hear_next(oar_group *g)
{
    oari_dispute *d = g->engine.dispute;
    int from = oari_letters_next(&d->letters, &d->heard);

    if (from >= 0)
        hear(g, &d->heard, from);
    return from >= 0;
}

/* ---- asking -------------------------------------------------------------- */

/* The oldest collective under way, or NULL. */
static const oari_exec *oldest(const oari_engine *e)
{
    const oari_exec *found = NULL;

    for (int i = 0; i < e->lanes; i++)
        if (e->lane[i].work != NULL &&
            (found == NULL || e->lane[i].exec.number < found->number))
            found = &e->lane[i].exec;
    return found;
}

/* The newest collective to speak of; from 1. */
static uint64_t newest(const oar_group *g)
{
    uint64_t number = oari_history_newest(&g->engine.history);

    return number != 0 ? number : 1;
}

/* Asks those that it waits for, or all. */
static void ask(oar_group *g, const oari_exec *x)
{
    oari_account a;

    account_of(g, x != NULL ? x->number : newest(g), &a);
    a.kind = OARI_ASKS;
    for (int r = 0; r < g->ranks; r++) {
        int wanted = x != NULL
                         ? g->ranks <= ASK_ALL || oari_exec_owes_message(x, r)
                         : g->engine.history.monitored_number != 0;
        for (const oar_work *w = g->engine.message; w != NULL; w = w->next)
            wanted |= w->call.root == r;
        if (wanted)
            say(g, r, &a);
    }
}

void oari_dispute_ask_all(oar_group *group)
{
    oari_account a;

    if (group->engine.dispute == NULL)
        return;
    account_of(group, newest(group), &a);
    a.kind = OARI_ASKS;
    say_to_all(group, &a);
}

void oari_dispute_inquire(oar_group *group, const oar_transfer *misfit)
{
    oari_account a;

    account_of(group, newest(group), &a);
    a.kind = OARI_ASKS;
    a.wants = misfit->got_tag;
    say(group, misfit->source, &a);
}

/* What waits: a collective, or the oldest message. 0: nothing. */
static uint64_t what_waits(const oari_engine *e, const oari_exec *x)
{
    if (x != NULL)
        return x->number;
    if (e->history.monitored_number != 0)
        return e->history.monitored_number;
    return e->message != NULL ? OARI_USER_TAG | e->message->sequence : 0;
}

static void look_at_stall(oar_group *g)
{
    oari_dispute *d = g->engine.dispute;
    const oari_exec *x = oldest(&g->engine);
    uint64_t waits = what_waits(&g->engine, x);
    int64_t now = oari_now_ns();

    if (waits != d->waits_for) {
        d->waits_for = waits;
        d->since_ns = now;
        d->asked = d->restless = 0;
    }
    if (waits == 0 || now - d->since_ns < oari_dispute_ask_ms * 1000000)
        return;
    if (!d->asked)
        ask(g, x);
    d->asked = 1;
    d->restless = oari_kin_look(g) != 0;
}

/* Where all is done by meetings, nobody else looks for mail. (Elsewhere the
 * driver does; to do it here would take rings that are meant for him.) */
static int bring_mail(oar_group *g)
{
    const oari_board *b = g->engine.lane->exec.board;

    if (((b == NULL || b->member != NULL) && g->foreign.ops == NULL) ||
        g->backend->progress == NULL || g->backend->progress(g->self) == OAR_OK)
        return 1;
    oari_group_break(g, NULL, -1);
    return 0;
}

void oari_dispute_look(oar_group *group)
{
    oari_dispute *d = group->engine.dispute;

    if (d == NULL || oari_group_broken(group))
        return;
    if (!bring_mail(group))
        return;
    while (!oari_group_broken(group) && hear_next(group))
        ;
    if (!d->open)
        look_at_stall(group);
    else if (!oari_group_broken(group)) {
        end_silence(group);
        judge(group);
    }
    tell_engine(group);
}
