/* SPDX-License-Identifier: Apache-2.0 */
/* link/match.h: which message goes to which receive.
 *
 * There is one for each group and rank, for all of its links. An arrival goes
 * to the earliest posted receive that matches it; a receive takes the message
 * that came earliest. So messages of one pair and tag are received in the order
 * they were sent, as long as each link brings them in that order.
 *
 * A message comes in one of two ways. Eager: its data comes with it, straight
 * into the receive's buffer, or, if there is no receive yet, into memory set
 * aside. Offered (rendezvous): only its envelope comes, and the link fetches
 * the data when there is a receive. Eager messages that are not received yet
 * may cost their sender only so much, its credit; beyond it, messages are
 * offered. So memory is bounded, and no link ever has to stop reading.
 *
 * Only the driver touches this.
 */
#ifndef OARI_LINK_MATCH_H
#define OARI_LINK_MATCH_H

#include <oarsong/backend.h>

/* What messages through a match can do. */
enum {
    OARI_MATCH_CAN =
        OAR_CAN_ANY | OAR_CAN_PROBE | OAR_CAN_SYNCHRONOUS | OAR_CAN_AT_MOST
};

typedef struct oari_match oari_match;
typedef struct oari_message oari_message;

/* eager_bytes: messages of this rank to itself up to here are eager. */
oar_status oari_match_create(int rank, int ranks, size_t eager_bytes,
                             oari_match **match);
void oari_match_destroy(oari_match *match); /* NULL is fine */

/* Posts a receive; if its message is there, takes that. */
oar_status oari_match_recv(oari_match *match, oar_transfer *receive);

/* Sends a message of this rank to itself. */
oar_status oari_match_send_self(oari_match *match, oar_transfer *send);

/* As oar_backend_ops.peek. */
int oari_match_peek(const oari_match *match, int source, uint64_t tag,
                    uint64_t any, oar_envelope *found);

/* Takes back a receive that waits for a message, or a send of this rank to
 * itself: 1. Returns 0 if it is not one of those. */
int oari_match_withdraw(oari_match *match, oar_transfer *transfer);

/* Returns how many receives wait for their message. */
int oari_match_posted(const oari_match *match);

/* Finishes every receive and send it knows of; links finish those that they
 * have been given. */
void oari_match_abort(oari_match *match, oar_status why);

/* Sets status and done; the transfer belongs to the core again. */
static inline void oari_transfer_finish(oar_transfer *t, oar_status status)
{
    t->status = status;
    t->done = 1;
}

/* ---- for links: eager messages ------------------------------------------- */

/* One whose data is coming in. */
typedef struct oari_inbound {
    oar_transfer *into; /* its receive; NULL: none yet */
    oari_message *kept;
    unsigned char *target; /* where the data goes; NULL: nowhere, drain it */
    size_t bytes;
} oari_inbound;

/* Finds the place of a message that comes. OAR_E_NOMEM if there is none,
 * OAR_E_DATA if the source has no credit for it. */
oar_status oari_match_begin(oari_match *match, int source, uint64_t tag,
                            size_t bytes, oari_inbound *in);
/* All of its data is in the target. */
void oari_match_end(oari_match *match, oari_inbound *in);
/* It will not come: finishes its receive, if it has one, with `why`. */
void oari_match_drop(oari_inbound *in, oar_status why);

/* Returns whether messages of a source wait for their receive. */
int oari_match_has_kept(const oari_match *match, int source);
/* Counts an eager message that the link has given to its receive by itself.
 * Returns what to give back to the source, as oari_match_received. */
uint64_t oari_match_count(oari_match *match, int source, size_t bytes);

/* ---- for links: messages offered ----------------------------------------- */

typedef struct oari_offer {
    int source;
    uint64_t tag;
    size_t bytes;
    uint64_t word[3]; /* the link's */
} oari_offer;

/* A link's: called once for every offer, when its receive is there. The receive
 * is as large as the message, and the link finishes it; NULL: there was one of
 * another size, which has failed, and the sender should be told. */
typedef struct oari_taker {
    void (*take)(void *self, const oari_offer *offer, oar_transfer *receive);
    void *self;
} oari_taker;

/* The taker must live as long as the match. May call it at once. */
oar_status oari_match_offer(oari_match *match, const oari_offer *offer,
                            const oari_taker *taker);

/* Forgets an offer that no receive has taken: 1. Returns 0 if there is none of
 * that source and taker whose first word is this number. */
int oari_match_revoke(oari_match *match, int source, const oari_taker *taker,
                      uint64_t number);
/* Posts a receive again whose message its sender has taken back, before all
 * others. */
void oari_match_repost(oari_match *match, oar_transfer *receive);

/* Tags of the user's messages have this bit, those of collectives do not. */
#define OARI_USER_TAG (UINT64_C(1) << 63)

/* ---- active messages ------------------------------------------------------
 * Eager messages with one tag of the library's own that no receive is posted
 * for: a function of the receiver's gets them (comm/active/active.h). */

/* Beside those of comm/fault/mismatch.c and timeout_scope.c. */
#define OARI_ACTIVE_TAG (UINT64_C(3) << 61 | 2)

typedef struct oari_active {
    int source;
    size_t bytes;
    const unsigned char *data;
    oari_message *message;
} oari_active;

/* Takes the earliest that is whole: 1. It stays until it is released. */
int oari_match_take_active(oari_match *match, oari_active *active);
void oari_match_release_active(oari_match *match, const oari_active *active);
/* Returns whether one has begun to come. */
int oari_match_has_active(const oari_match *match);

/* ---- credit -------------------------------------------------------------- */

/* What an eager message costs its sender until it is received. */
enum { OARI_CREDIT_UNIT = 64 };
static inline uint64_t oari_credit_cost(size_t bytes)
{
    return 1 + (bytes + OARI_CREDIT_UNIT - 1) / OARI_CREDIT_UNIT;
}

/* Returns whether the credit is enough for an eager message of `bytes`, with
 * that much spent on its receiver and given back by it since the beginning. The
 * same on all ranks of a group. */
int oari_match_has_credit(const oari_match *match, uint64_t spent,
                          uint64_t back, size_t bytes);

/* Returns how much a rank may have spent on another. */
uint64_t oari_match_credit(const oari_match *match);

/* Returns what to give back to a source: the cost of all eager messages that
 * were received from it. */
uint64_t oari_match_received(const oari_match *match, int source);

/* ---- lists of transfers, linked through scratch[0] ----------------------- */

typedef struct oari_transfer_list {
    oar_transfer *first, *last;
} oari_transfer_list;

static inline oar_transfer *oari_transfer_list_next(const oar_transfer *t)
{
    return t->scratch[0];
}
void oari_transfer_list_push(oari_transfer_list *list, oar_transfer *t);
/* Takes t out of the list; before: the transfer in front of it, or NULL. */
void oari_transfer_list_remove(oari_transfer_list *list, oar_transfer *before,
                               oar_transfer *t);
int oari_transfer_list_has(const oari_transfer_list *list,
                           const oar_transfer *t);
/* Puts another in the place of t, which is in the list. */
void oari_transfer_list_replace(oari_transfer_list *list, const oar_transfer *t,
                                oar_transfer *with);
/* Takes out this transfer: 1. Returns 0 if it is not in the list. */
int oari_transfer_list_drop(oari_transfer_list *list, const oar_transfer *t);
/* Takes out the transfer whose scratch[1] is this number; NULL: none. */
oar_transfer *oari_transfer_list_take(oari_transfer_list *list,
                                      uint64_t number);
void oari_transfer_list_finish(oari_transfer_list *list, oar_status status);

/* Numbers in scratch words. */
static inline void oari_scratch_set(oar_transfer *t, int i, uint64_t value)
{
    t->scratch[i] = (void *)(uintptr_t)value;
}
static inline uint64_t oari_scratch(const oar_transfer *t, int i)
{
    return (uint64_t)(uintptr_t)t->scratch[i];
}

#endif
