/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/mismatch.h: how ranks that run different operations find out.
 *
 * A rank that finds another in a different operation does not end the group at
 * once. It sends all ranks a report of its collectives, and every rank that
 * receives such a report sends its own. When all have reported, or after a
 * second, each rank makes the error record from the reports: it is the same on
 * all ranks, with both sides and their call sites, on every kind of link. Then
 * the group ends.
 *
 * A rank that waits for long asks the others what they do. So ranks that all
 * wait for each other, in different operations, find out; and a timeout can say
 * what a rank on another host did last.
 *
 * The reports are messages of the backend with a tag of their own, which needs
 * a backend that can probe (OAR_CAN_PROBE). Only the driver touches all this.
 */
#ifndef OARI_COMM_FAULT_MISMATCH_H
#define OARI_COMM_FAULT_MISMATCH_H

#include "comm/comm.h"

typedef struct oari_mismatch oari_mismatch;

/* How long a collective waits before it asks. Tests make it shorter. */
extern int64_t oari_mismatch_ask_ms;

oar_status oari_mismatch_create(const oar_group *group,
                                oari_mismatch **mismatch);
/* Frees it, once the backend has been closed. NULL is fine. */
void oari_mismatch_destroy(oari_mismatch *mismatch);

/* Opens a mismatch: a collective suspects another rank (exec->doubt). Returns 0
 * if it cannot be explained here; the last error says what is known. */
int oari_mismatch_open(oar_group *group, const oari_exec *exec);

/* Reads the reports of other ranks, answers questions, and ends the group when
 * a mismatch is explained. Sets the engine's `halted`, `restless` and
 * `quiet`. */
void oari_mismatch_look(oar_group *group);

/* Asks the sender of a message that did not fit for its call. The answer goes
 * into the work. */
void oari_mismatch_inquire(oar_group *group, const oar_transfer *misfit);

/* Asks all ranks. That connects to ranks without a link, and so finds out
 * whether they are still there. */
void oari_mismatch_ask_all(oar_group *group);

/* Returns the last operation that a rank has reported; "": none. */
const char *oari_mismatch_last(const oari_mismatch *mismatch, int rank);
/* Returns whether that operation was on another group. */
int oari_mismatch_is_elsewhere(const oari_mismatch *mismatch, int rank);
/* Returns whether a rank has reported that it has reached this collective. */
int oari_mismatch_has_reached(const oari_mismatch *mismatch, int rank,
                              uint64_t number);

#endif
