/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_holds.h: which ranks hold a value, as pure functions on
 * states. Nothing is sent or allocated here: functions say what to send, and
 * tests/planners/rpc_holds_model_test.c explores all orders.
 *
 * The owner counts, for each rank, the grants that the rank has not given back:
 * it granted by giving the reference itself, or by answering HOLD. A holder
 * counts the grants it received. Control messages of a pair arrive in order.
 *
 *     owner gives it to B           owner: count[B]++; B: granted++
 *     A gives it to B               A: waiting[B]++ until HELD; A cannot drop
 *     ... and B holds it already    B -> A HELD
 *     ... and B does not            B -> owner HOLD; owner: count[B]++;
 *                                   owner -> B NOTED; B -> A HELD
 *     B's last handle goes          B -> owner DROP(granted), as soon as B
 *                                   waits for no NOTED and no HELD
 *     a rank dies                   owner: its count is 0; who waits for it
 *                                   waits no longer
 *     a rank is silent for long     the same, and LAPSED to it: then it has no
 *                                   grants of the sender, and owes it no HELD
 *
 * So a rank with a handle is counted by the owner, or got it from a rank that
 * waits for its HELD and therefore still is (or from one that waits in turn).
 * The value goes when nobody is counted. A rank that dies before it has been
 * told HELD may take the value with it: then NOTED says that it is gone. */
#ifndef OARI_PARALLEL_RPC_RPC_HOLDS_H
#define OARI_PARALLEL_RPC_RPC_HOLDS_H

#include <stdint.h>

/* A value as its owner sees it. count has one place for each rank; the owner's
 * own is how many handles it has. */
typedef struct oari_owned {
    int ranks;
    uint32_t *count;
} oari_owned;

/* A value as a rank that does not own it sees it. */
typedef struct oari_held {
    int ranks, owner;
    uint32_t handles;  /* the program's */
    uint32_t granted;  /* by the owner, since the last DROP */
    int asked;         /* 1: HOLD was sent, NOTED has not come */
    int broken;        /* 1: the owner is gone, or the value is */
    uint32_t *waiting; /* for each rank: HELDs that have not come from it */
    uint32_t *owed;    /* for each rank: HELDs to send it once NOTED comes */
} oari_held;

/* ---- the owner ----------------------------------------------------------- */

/* A grant to a rank; to itself: one more handle. */
void oari_owned_grant(oari_owned *owned, int rank);

/* A rank gives back n grants. Returns 0 if it has not so many: a forged
 * message. */
int oari_owned_drop(oari_owned *owned, int rank, uint32_t n);

/* A rank is gone. */
void oari_owned_rank_gone(oari_owned *owned, int rank);

/* Returns whether nobody is counted: the value goes. */
int oari_owned_is_free(const oari_owned *owned);

/* ---- the others ---------------------------------------------------------- */

/* It came from its owner: one handle more. */
void oari_held_granted(oari_held *held);

typedef enum oari_held_reply {
    OARI_HELD_NOTHING, /* NOTED will say it */
    OARI_HELD_ASK,     /* send HOLD to the owner */
    OARI_HELD_CONFIRM  /* send HELD to the rank it came from */
} oari_held_reply;

/* It came from another rank that is not its owner: one handle more. Returns
 * what to send. */
oari_held_reply oari_held_passed(oari_held *held, int from);

/* NOTED came. found 0: the value is gone, and the reference broken. The caller
 * then sends owed[r] HELDs to each rank r and sets it to 0. */
void oari_held_noted(oari_held *held, int found);

/* It goes to another rank. Nothing is to be noted if that is the owner's. */
void oari_held_pass(oari_held *held, int to);

/* HELD came. Returns 0 if none was waited for: a forged message. */
int oari_held_confirmed(oari_held *held, int from);

/* A rank is gone; if it is the owner, the reference is broken. */
void oari_held_rank_gone(oari_held *held, int rank);

/* A rank has ended the lease of this one: it waits for no HELD, and if it is
 * the owner, it counts no grants. Returns whether there were some. */
int oari_held_lapsed(oari_held *held, int rank);

/* Returns whether the rank is through with it: it sends DROP(granted) to the
 * owner if granted is not 0 and the owner lives, and forgets it. */
int oari_held_is_over(const oari_held *held);

#endif
