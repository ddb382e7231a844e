/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/missed.h: who is to blame when a group cannot be made.
 *
 * A rank that gives up may have waited for one that was itself waiting, or have
 * heard only that another has left, which had its reason. So whoever gives up
 * leaves word in the store whom it missed, all of them, before it lets go of
 * anything, and then follows such words to a rank that has left none. Where all
 * have left one, they missed each other: then it was one that did not come in
 * time, not one that was seen to leave.
 */
#ifndef OARI_COMM_FAULT_MISSED_H
#define OARI_COMM_FAULT_MISSED_H

#include <oarsong/store.h>

/* The last error says why this rank gives up on the group. If it is about a
 * peer, puts what was said about the rank that is really missing in its place.
 * missing: by rank, whom it had not met when its time was up; or NULL. Takes at
 * most half a second where the store answers. */
void oari_missed(oar_store *store, const char *name, int rank, int ranks,
                 const unsigned char *missing);

/* The same for a rank that has made the group, and sees another leave that gave
 * it up, or still makes it (of below 0: any that gave up): 0 if nothing was
 * said. */
int oari_missed_word(oar_store *store, const char *name, int rank, int ranks,
                     int of, oar_error *said);

/* Ranks come through the opening of an engine one by one, well or not, and say
 * so; one that fails asks who has not, and marks them in `missing`: how many.
 * Takes at most half a second. */
void oari_missed_say_through(oar_store *store, const char *name, int rank);
int oari_missed_find(oar_store *store, const char *name, int rank, int ranks,
                     unsigned char *missing);

#endif
