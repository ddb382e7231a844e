/* SPDX-License-Identifier: Apache-2.0 */
/* council: the agreement. See council.h.
 *
 * Why all agree: a rank decides when it has seen that everyone on its list is
 * ready for that very list, and says so before it returns. Whoever is ready and
 * then counts somebody out keeps the group it has formed until all others have
 * voted for the longer list; one of them that had decided says so instead of
 * voting, and then the first list holds. A rank that has decided and cannot be
 * heard is itself counted out: its group never runs, since the others have left
 * it.
 */
#include "comm/group/council.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/engine.h"
#include "comm/fault/fault.h"
#include "comm/group/group.h"

enum { NAP_NS = 1000000 };

typedef enum outcome { GO_ON, DECIDED, LEFT_OUT } outcome;

/* ---- saying and hearing -------------------------------------------------- */

static void tell(oar_group *g, const oari_note *note)
{
    if (g->in_tree->tell != NULL)
        g->in_tree->tell(g->self, note);
    else
        oari_board_tell(g->board, note);
}

static int told(const oar_group *g, int rank, oari_note *note)
{
    return g->in_tree->told != NULL ? g->in_tree->told(g->self, rank, note)
                                    : oari_board_told(g->board, rank, note);
}

void oari_council_say(oari_council *c, oari_phase phase)
{
    c->mine.phase = phase;
    c->said = c->mine;
    c->since_ns = oari_now_ns();
    oari_engine_hold(c->group);
    tell(c->group, &c->mine);
    oari_engine_let_go(c->group);
}

static int is_out(const oari_council *c, int rank)
{
    return oari_ranks_has(&c->mine.out, rank);
}

static int same_list(const oari_note *a, const oari_note *b)
{
    return a->call == b->call && a->round == b->round &&
           memcmp(&a->out, &b->out, sizeof a->out) == 0;
}

uint32_t oari_note_hash(const oari_note *note)
{
    uint64_t hash = note->round + 1;

    for (size_t i = 0; i < sizeof note->out.bits / sizeof *note->out.bits; i++)
        hash = (hash ^ note->out.bits[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash >> 32) | 1;
}

/* Whether a rank agrees with me, and is that far. */
static int agrees(const oari_council *c, int rank, oari_phase phase)
{
    const oari_note *n = &c->heard[rank];

    return same_list(n, &c->mine) && n->phase >= (uint32_t)phase;
}

static int all_agree(const oari_council *c, oari_phase phase)
{
    for (int r = 0; r < c->group->ranks; r++)
        if (r != c->group->rank && !is_out(c, r) && !agrees(c, r, phase))
            return 0;
    return 1;
}

int oari_council_lowest(const oari_council *c)
{
    int rank = 0;

    while (is_out(c, rank))
        rank++;
    return rank;
}

/* ---- what a note means --------------------------------------------------- */

/* A rank that has finished this call: with the list that I am ready for, or
 * without me. */
static outcome hear_decision(const oari_council *c, const oari_note *n)
{
    int mine = n->call > c->mine.call ? n->before == oari_note_hash(&c->formed)
                                      : same_list(n, &c->formed);

    return c->child != NULL && mine ? DECIDED : LEFT_OUT;
}

static outcome hear(oari_council *c, int rank, const oari_note *n)
{
    if (n->call < c->mine.call)
        return GO_ON; /* it has not come yet */
    if (n->call > c->mine.call) {
        if (n->before)
            return hear_decision(c, n);
        oari_ranks_add(&c->mine.out, rank); /* it has given up on this one */
        return GO_ON;
    }
    c->heard[rank] = *n;
    if (oari_ranks_has(&n->out, c->group->rank))
        return LEFT_OUT;
    if (n->phase == OARI_PHASE_DONE)
        return hear_decision(c, n);
    for (size_t i = 0; i < sizeof n->out.bits / sizeof *n->out.bits; i++)
        c->mine.out.bits[i] |= n->out.bits[i];
    if (n->round > c->mine.round)
        c->mine.round = n->round;
    return GO_ON;
}

/* One that said that it was ready and then died is part of what was agreed. */
static int counts_as_gone(const oari_council *c, int rank)
{
    int ready =
        c->mine.phase >= OARI_PHASE_READY && agrees(c, rank, OARI_PHASE_READY);

    return oari_group_gone(c->group, rank) && !ready;
}

static int is_late(const oari_council *c, int rank)
{
    const oari_note *n = &c->heard[rank];
    uint32_t wanted =
        c->said.phase >= OARI_PHASE_READY ? OARI_PHASE_READY : OARI_PHASE_VOTE;

    return !(same_list(n, &c->said) && n->phase >= wanted) &&
           c->timeout_ms >= 0 &&
           oari_now_ns() - c->since_ns > c->timeout_ms * 1000000;
}

static outcome look_at(oari_council *c, int rank)
{
    oari_note note;
    outcome o = GO_ON;

    if (told(c->group, rank, &note))
        o = hear(c, rank, &note);
    if (o == GO_ON && counts_as_gone(c, rank))
        oari_ranks_add(&c->mine.out, rank);
    return o;
}

/* Only where nothing is new: nobody can have agreed to that yet. */
static void count_out_late(oari_council *c)
{
    for (int r = 0; r < c->group->ranks; r++)
        if (r != c->group->rank && !is_out(c, r) && is_late(c, r))
            oari_ranks_add(&c->mine.out, r);
}

static outcome look_around(oari_council *c)
{
    outcome o = GO_ON;

    oari_engine_hold(c->group);
    for (int r = 0; o == GO_ON && r < c->group->ranks; r++)
        if (r != c->group->rank && !is_out(c, r))
            o = look_at(c, r);
    oari_engine_let_go(c->group);
    if (o == GO_ON && same_list(&c->mine, &c->said))
        count_out_late(c);
    return o;
}

/* ---- getting on ---------------------------------------------------------- */

static int members(const oari_council *c)
{
    int count = 0;

    for (int r = 0; r < c->group->ranks; r++)
        count += !is_out(c, r);
    return count;
}

static oar_status check_majority(const oari_council *c)
{
    int left = members(c), all = c->group->ranks;

    if (c->any || 2 * left > all || (2 * left == all && !is_out(c, 0)))
        return OAR_OK;
    return oari_fail(OAR_E_WORLD,
                     "%d of the %d ranks of group \"%s\" are left: not a "
                     "majority, so the others may be going on without them "
                     "(OARSONG_SHRINK=any lets any number go on)",
                     left, all, c->group->name);
}

static oar_status left_out(const oari_council *c)
{
    return oari_fail(OAR_E_PEER,
                     "rank %d was left out when the others of group \"%s\" "
                     "formed a new one: it had not answered them in time",
                     c->group->rank, c->group->name);
}

static void drop_child(oari_council *c)
{
    oar_group_destroy(c->child);
    c->child = NULL;
}

/* All have voted alike. A failure to form the group is one more round: whoever
 * is to blame for it will not be there. */
static void form(oari_council *c)
{
    drop_child(c);
    if (oari_council_form(c) == OAR_OK) {
        c->formed = c->mine;
        oari_council_say(c, OARI_PHASE_READY);
        return;
    }
    drop_child(c);
    c->mine.round++;
    oari_council_say(c, OARI_PHASE_VOTE);
}

/* The others need the lowest's store before they can form anything. */
static int may_form(const oari_council *c)
{
    int lowest = oari_council_lowest(c);

    return c->mine.phase < OARI_PHASE_READY && all_agree(c, OARI_PHASE_VOTE) &&
           (lowest == c->group->rank || agrees(c, lowest, OARI_PHASE_FORM));
}

static outcome get_on(oari_council *c)
{
    if (may_form(c))
        form(c);
    return c->mine.phase == OARI_PHASE_READY && all_agree(c, OARI_PHASE_READY)
               ? DECIDED
               : GO_ON;
}

static oar_status deliberate(oari_council *c)
{
    outcome o = GO_ON;

    OARI_TRY(check_majority(c));
    oari_council_say(c, OARI_PHASE_VOTE);
    while (o == GO_ON) {
        oari_note before = c->mine;

        if ((o = look_around(c)) != GO_ON)
            break;
        if (!same_list(&before, &c->mine)) {
            OARI_TRY(check_majority(c));
            oari_council_say(c, OARI_PHASE_VOTE);
        }
        if ((o = get_on(c)) == GO_ON)
            nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
    }
    return o == DECIDED ? OAR_OK : left_out(c);
}

oar_status oari_council_hold(oari_council *c)
{
    oar_status status = deliberate(c);

    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        drop_child(c);
        return oari_fail_with(&why);
    }
    c->mine = c->formed;
    oari_council_say(c, OARI_PHASE_DONE);
    return OAR_OK;
}
