/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/council.h: how the ranks that are left of a group agree on who
 * they are, and form a new one (oar_group_shrink; decision 15).
 *
 * Every rank has a note that all others can see: on the board, or sent over the
 * mesh whenever it changes. It says whom the rank counts out and how far it is.
 * What is counted out only grows, and everybody counts out whom a rank that is
 * in counts out; so all come to the same list. Then the lowest of them serves a
 * store, they make the new group through it, and when everyone has said that it
 * is ready the group counts. A rank that fails on the way, or dies, is counted
 * out and it begins again.
 *
 * No rank and no store has to be alive for this, only links between those that
 * are left.
 */
#ifndef OARI_COMM_GROUP_COUNCIL_H
#define OARI_COMM_GROUP_COUNCIL_H

#include "comm/comm.h"

typedef struct oari_ranks {
    uint64_t bits[OARI_MAX_RANKS / 64];
} oari_ranks;

typedef enum oari_phase {
    OARI_PHASE_VOTE = 1, /* these are counted out */
    OARI_PHASE_FORM,  /* the lowest: all agree; the store is at that address */
    OARI_PHASE_READY, /* my side of the new group is there */
    OARI_PHASE_DONE   /* everyone's is */
} oari_phase;

/* As it is shown and as it travels: ranks of one group have one byte order. */
typedef struct oari_note {
    uint32_t call;   /* how often this group has been shrunk, from 1 */
    uint32_t round;  /* attempts to form the group */
    uint32_t phase;  /* oari_phase */
    uint32_t before; /* what the call before this one came to; 0: nothing */
    oari_ranks out;
    char address[80];
    char zero[32];
} oari_note;

_Static_assert(sizeof(oari_note) == OARI_NOTE_BYTES, "a note's size");

/* One rank's side of it. */
typedef struct oari_council {
    oar_group *group;
    int64_t timeout_ms; /* for a rank to come, or to get on */
    int any;            /* a minority may go on */
    oari_note mine;
    oari_note said;   /* what the others know of it */
    oari_note *heard; /* by rank; call 0: nothing, or of another call */
    int64_t since_ns; /* my note last changed */
    oar_group *child; /* formed, but not all are known to be ready */
    oari_note formed; /* my note when it was */
} oari_council;

/* Comes to an agreement, up to and with the new group, in council->child. */
oar_status oari_council_hold(oari_council *council);

/* Makes the new group (shrink.c), when all have voted alike. */
oar_status oari_council_form(oari_council *council);
/* The lowest rank that is not counted out. */
int oari_council_lowest(const oari_council *council);
/* A list in one word that is not 0. */
uint32_t oari_note_hash(const oari_note *note);
void oari_council_say(oari_council *council, oari_phase phase);

static inline int oari_ranks_has(const oari_ranks *set, int rank)
{
    return (int)(set->bits[rank / 64] >> rank % 64 & 1);
}

static inline void oari_ranks_add(oari_ranks *set, int rank)
{
    set->bits[rank / 64] |= UINT64_C(1) << rank % 64;
}

#endif
