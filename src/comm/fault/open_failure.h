/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/open_failure.h: which rank is to blame when a group cannot be
 * opened.
 *
 * A rank that gives up may have waited for one that was itself waiting, or may
 * only have seen another leave, which had its own reason. So a rank that gives
 * up writes into the store which ranks it missed, before it closes anything,
 * and then follows such reports to a rank that has left none. If all ranks have
 * left one, they missed each other: then the cause is a rank that did not come
 * in time, not one that was seen to leave.
 */
#ifndef OARI_COMM_FAULT_OPEN_FAILURE_H
#define OARI_COMM_FAULT_OPEN_FAILURE_H

#include <oarsong/store.h>

/* Replaces the last error, which says why this rank gives up on the group, if
 * it is about a peer: by what was reported about the rank that is really
 * missing. missing: by rank, whether it had not been met when the time was up;
 * or NULL. Takes at most half a second where the store answers. */
void oari_open_failure_report(oar_store *store, const char *name, int rank,
                              int ranks, const unsigned char *missing);

/* Gives what was reported about the rank that is really missing, for a rank
 * that has opened the group, or still does, and sees rank `of` leave (below 0:
 * any rank that gave up). Returns 0 if there is no report. */
int oari_open_failure_find(oar_store *store, const char *name, int rank,
                           int ranks, int of, oar_error *said);

/* Reports that this rank has returned from opening an engine, well or not. */
void oari_engine_opening_done(oar_store *store, const char *name, int rank);
/* Marks in `missing` the ranks that have not returned from opening an engine,
 * for a rank that failed to. Returns how many. Takes at most half a second. */
int oari_engine_opening_missing(oar_store *store, const char *name, int rank,
                                int ranks, unsigned char *missing);

#endif
