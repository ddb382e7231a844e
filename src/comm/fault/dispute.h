/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/dispute.h: ranks that disagree tell each other what they did.
 *
 * A rank that finds another in a different operation does not end the group
 * yet: it tells all ranks what its collectives were, and whoever hears of it
 * does the same. When all have spoken, or after a second, each makes the record
 * out of what was said; it is the same everywhere, with both sides and their
 * call sites, on every kind of link. Then the group ends.
 *
 * A rank that waits for long asks the others what they do. So ranks that all
 * wait for each other, in different operations, find out; and a timeout can
 * say what a rank on another host did last.
 *
 * All of it goes through the backend's messages, with a tag of its own, and
 * needs one that can look at them (OAR_CAN_PROBE). Only the driver touches it.
 */
#ifndef OARI_COMM_FAULT_DISPUTE_H
#define OARI_COMM_FAULT_DISPUTE_H

#include "comm/comm.h"

typedef struct oari_dispute oari_dispute;

/* How long a collective waits before it asks; tests make it shorter. */
extern int64_t oari_dispute_ask_ms;

oar_status oari_dispute_create(const oar_group *group, oari_dispute **dispute);
/* When the backend has been closed. NULL is fine. */
void oari_dispute_destroy(oari_dispute *dispute);

/* A collective has come to doubt what another rank does (exec->doubt). 0: that
 * cannot be found out here; the thread's last error says what is known. */
int oari_dispute_open(oar_group *group, const oari_exec *exec);

/* Hears what others say, answers, and ends the group when all is said. Sets
 * what the engine must know of it: halted and restless. */
void oari_dispute_look(oar_group *group);

/* Asks the sender of a message that did not fit where it sent it; the answer
 * comes into the work. */
void oari_dispute_inquire(oar_group *group, const oar_transfer *misfit);

/* Asks all: so that links are made to those to whom there was none, which finds
 * out whether they are still there. */
void oari_dispute_ask_all(oar_group *group);

/* What a rank said it did last: "": nothing; whether that was on another group;
 * and whether it said that it is in this collective. */
const char *oari_dispute_last(const oari_dispute *dispute, int rank);
int oari_dispute_is_elsewhere(const oari_dispute *dispute, int rank);
int oari_dispute_is_in(const oari_dispute *dispute, int rank, uint64_t number);

#endif
