/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/membership.h: how the ranks that are left of a group agree on the
 * membership of a new one, and form it (oar_group_shrink; decision 15).
 *
 * Every rank has a ballot that all others can see: in shared memory, or sent
 * over the mesh whenever it changes. It says which ranks are counted out and
 * how far this rank is. The list of ranks that are counted out only grows, and
 * a rank adopts the lists of all ranks that are in; so all ranks reach the same
 * list. Then the lowest of them serves a store, they make the new group through
 * it, and when every rank has said that it is ready, the group counts. A rank
 * that fails on the way, or dies, is counted out, and the next round begins.
 *
 * No particular rank and no store has to be alive for this, only links between
 * the ranks that are left.
 */
#ifndef OARI_COMM_GROUP_MEMBERSHIP_H
#define OARI_COMM_GROUP_MEMBERSHIP_H

#include "comm/comm.h"

typedef struct oari_ranks {
    uint64_t bits[OARI_MAX_RANKS / 64];
} oari_ranks;

typedef enum oari_phase {
    OARI_PHASE_VOTE = 1, /* these ranks are counted out */
    OARI_PHASE_FORM,  /* lowest rank: all agree; the store is at that address */
    OARI_PHASE_READY, /* this rank's side of the new group is there */
    OARI_PHASE_DONE   /* every rank's side is */
} oari_phase;

/* What is shown, and travels as it is: ranks of a group have one byte order. */
typedef struct oari_ballot {
    uint32_t call;  /* how often this group has been shrunk, from 1 */
    uint32_t round; /* attempts to form the group */
    uint32_t phase; /* oari_phase */
    uint32_t
        before; /* the hash that the call before ended with; 0: it failed */
    oari_ranks out;
    char address[80];
    char zero[32];
} oari_ballot;

_Static_assert(sizeof(oari_ballot) == OARI_BALLOT_BYTES, "a ballot's size");

/* One rank's side of the agreement. */
typedef struct oari_membership {
    oar_group *group;
    int64_t timeout_ms; /* within which a rank has to come, or to go on */
    int any;            /* a minority may go on */
    oari_ballot mine;
    oari_ballot said;   /* what the others have been shown of mine */
    oari_ballot *heard; /* by rank; call 0: nothing, or of another call */
    int64_t since_ns;   /* when mine last changed */
    oar_group *child;   /* formed, but not all are known to be ready */
    oari_ballot formed; /* mine when it was formed */
} oari_membership;

/* Agrees on the members and forms the new group, in council->child. */
oar_status oari_membership_agree(oari_membership *council);

/* Makes the new group, when all have voted alike (shrink.c). */
oar_status oari_membership_form(oari_membership *council);
/* Returns the lowest rank that is not counted out. */
int oari_membership_lowest(const oari_membership *council);
/* Returns a hash of a ballot's list that is not 0. */
uint32_t oari_ballot_hash(const oari_ballot *note);
/* Shows this rank's ballot to the others, in this phase. */
void oari_membership_show(oari_membership *council, oari_phase phase);

static inline int oari_ranks_has(const oari_ranks *set, int rank)
{
    return (int)(set->bits[rank / 64] >> rank % 64 & 1);
}

static inline void oari_ranks_add(oari_ranks *set, int rank)
{
    set->bits[rank / 64] |= UINT64_C(1) << rank % 64;
}

#endif
