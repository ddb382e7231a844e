/* SPDX-License-Identifier: Apache-2.0 */
/* membership: the agreement. See membership.h.
 *
 * Why all ranks agree: a rank decides when it has seen that every rank on its
 * list is ready for that very list, and says so before it returns. A rank that
 * is ready and then counts another out keeps the group that it has formed until
 * all others have voted for the longer list; if one of them had decided, it
 * says so instead of voting, and the first list holds. A rank that has decided
 * and cannot be heard is itself counted out: its group never runs, since the
 * others have left it.
 */
#include "comm/group/membership.h"

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

/* ---- ballots ------------------------------------------------------------- */

void oari_membership_show(oari_membership *c, oari_phase phase)
{
    oar_group *g = c->group;

    c->mine.phase = phase;
    c->said = c->mine;
    c->since_ns = oari_now_ns();
    oari_engine_hold(g);
    if (g->in_tree->show != NULL)
        g->in_tree->show(g->self, OARI_FACT_BALLOT, &c->mine);
    else
        oari_bulletin_write(oari_shm_bulletin(g->shm, g->shm->rank),
                            OARI_FACT_BALLOT, &c->mine);
    oari_engine_let_go(g);
}

static int is_out(const oari_membership *c, int rank)
{
    return oari_ranks_has(&c->mine.out, rank);
}

static int same_list(const oari_ballot *a, const oari_ballot *b)
{
    return a->call == b->call && a->round == b->round &&
           memcmp(&a->out, &b->out, sizeof a->out) == 0;
}

uint32_t oari_ballot_hash(const oari_ballot *note)
{
    uint64_t hash = note->round + 1;

    for (size_t i = 0; i < sizeof note->out.bits / sizeof *note->out.bits; i++)
        hash = (hash ^ note->out.bits[i]) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash >> 32) | 1;
}

/* Returns whether a rank has the same list as this one, and is that far. */
static int agrees(const oari_membership *c, int rank, oari_phase phase)
{
    const oari_ballot *n = &c->heard[rank];

    return same_list(n, &c->mine) && n->phase >= (uint32_t)phase;
}

static int all_agree(const oari_membership *c, oari_phase phase)
{
    for (int r = 0; r < c->group->ranks; r++)
        if (r != c->group->rank && !is_out(c, r) && !agrees(c, r, phase))
            return 0;
    return 1;
}

int oari_membership_lowest(const oari_membership *c)
{
    int rank = 0;

    while (is_out(c, rank))
        rank++;
    return rank;
}

/* ---- what a ballot means ------------------------------------------------- */

/* Returns what the ballot of a rank that has finished this call means: it has
 * decided on the list that this rank is ready for, or left this rank out. */
static outcome read_decision(const oari_membership *c, const oari_ballot *n)
{
    int mine = n->call > c->mine.call
                   ? n->before == oari_ballot_hash(&c->formed)
                   : same_list(n, &c->formed);

    return c->child != NULL && mine ? DECIDED : LEFT_OUT;
}

/* Adopts what another rank's ballot says. */
static outcome adopt_ballot(oari_membership *c, int rank, const oari_ballot *n)
{
    if (n->call < c->mine.call)
        return GO_ON; /* that rank has not called yet */
    if (n->call > c->mine.call) {
        if (n->before)
            return read_decision(c, n);
        oari_ranks_add(&c->mine.out, rank); /* it has given up on this call */
        return GO_ON;
    }
    c->heard[rank] = *n;
    if (oari_ranks_has(&n->out, c->group->rank))
        return LEFT_OUT;
    if (n->phase == OARI_PHASE_DONE)
        return read_decision(c, n);
    for (size_t i = 0; i < sizeof n->out.bits / sizeof *n->out.bits; i++)
        c->mine.out.bits[i] |= n->out.bits[i];
    if (n->round > c->mine.round)
        c->mine.round = n->round;
    return GO_ON;
}

/* Returns whether a rank has not followed this one's ballot in time. */
static int is_late(const oari_membership *c, int rank)
{
    const oari_ballot *n = &c->heard[rank];
    uint32_t wanted =
        c->said.phase >= OARI_PHASE_READY ? OARI_PHASE_READY : OARI_PHASE_VOTE;

    return !(same_list(n, &c->said) && n->phase >= wanted) &&
           c->timeout_ms >= 0 &&
           oari_now_ns() - c->since_ns > c->timeout_ms * 1000000;
}

/* Reads the ballots of the ranks that are in, and counts out ranks that are
 * gone or late. One that said that it was ready and then died is part of what
 * was agreed. Late ranks are counted out only when nothing else has changed: no
 * other rank can have agreed to that yet. */
static outcome look_at_ranks(oari_membership *c)
{
    oar_group *g = c->group;
    int me = g->rank, ranks = g->ranks;
    outcome o = GO_ON;

    oari_engine_hold(g);
    for (int r = 0; o == GO_ON && r < ranks; r++) {
        oari_ballot ballot;

        if (r == me || is_out(c, r))
            continue;
        if (g->in_tree->read != NULL
                ? g->in_tree->read(g->self, r, OARI_FACT_BALLOT, &ballot)
                : oari_bulletin_read(oari_shm_bulletin(g->shm, r),
                                     OARI_FACT_BALLOT, &ballot))
            o = adopt_ballot(c, r, &ballot);
        if (o == GO_ON && oari_group_gone(c->group, r) &&
            !(c->mine.phase >= OARI_PHASE_READY &&
              agrees(c, r, OARI_PHASE_READY)))
            oari_ranks_add(&c->mine.out, r);
    }
    oari_engine_let_go(c->group);
    if (o == GO_ON && same_list(&c->mine, &c->said))
        for (int r = 0; r < ranks; r++)
            if (r != me && !is_out(c, r) && is_late(c, r))
                oari_ranks_add(&c->mine.out, r);
    return o;
}

/* ---- deciding ------------------------------------------------------------ */

static oar_status check_majority(const oari_membership *c)
{
    int left = 0, all = c->group->ranks;

    for (int r = 0; r < all; r++)
        left += !is_out(c, r);
    if (c->any || 2 * left > all || (2 * left == all && !is_out(c, 0)))
        return OAR_OK;
    return oari_fail(OAR_E_WORLD,
                     "%d of the %d ranks of group \"%s\" are left: not a "
                     "majority, so the others may be going on without them "
                     "(OARSONG_SHRINK=any lets any number go on)",
                     left, all, c->group->name);
}

static void drop_child(oari_membership *c)
{
    oar_group_destroy(c->child);
    c->child = NULL;
}

/* Takes the next step that the ballots allow. The other ranks need the store of
 * the lowest one before they can form anything. */
static outcome take_step(oari_membership *c)
{
    int lowest = oari_membership_lowest(c);

    if (c->mine.phase < OARI_PHASE_READY && all_agree(c, OARI_PHASE_VOTE) &&
        (lowest == c->group->rank || agrees(c, lowest, OARI_PHASE_FORM))) {
        drop_child(c);
        if (oari_membership_form(c) == OAR_OK) {
            c->formed = c->mine;
            oari_membership_show(c, OARI_PHASE_READY);
        } else {
            /* One more round: the rank that is to blame is counted out in it.
             */
            drop_child(c);
            c->mine.round++;
            oari_membership_show(c, OARI_PHASE_VOTE);
        }
    }
    return c->mine.phase == OARI_PHASE_READY && all_agree(c, OARI_PHASE_READY)
               ? DECIDED
               : GO_ON;
}

static oar_status vote(oari_membership *c)
{
    outcome o = GO_ON;

    OARI_TRY(check_majority(c));
    oari_membership_show(c, OARI_PHASE_VOTE);
    while (o == GO_ON) {
        oari_ballot before = c->mine;

        if ((o = look_at_ranks(c)) != GO_ON)
            break;
        if (!same_list(&before, &c->mine)) {
            OARI_TRY(check_majority(c));
            oari_membership_show(c, OARI_PHASE_VOTE);
        }
        if ((o = take_step(c)) == GO_ON)
            nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
    }
    if (o == DECIDED)
        return OAR_OK;
    return oari_fail(OAR_E_PEER,
                     "rank %d was left out when the others of group \"%s\" "
                     "formed a new one: it had not answered them in time",
                     c->group->rank, c->group->name);
}

oar_status oari_membership_agree(oari_membership *c)
{
    oar_status status = vote(c);

    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        drop_child(c);
        return oari_fail_with(&why);
    }
    c->mine = c->formed;
    oari_membership_show(c, OARI_PHASE_DONE);
    return OAR_OK;
}
