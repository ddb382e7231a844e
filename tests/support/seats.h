/* SPDX-License-Identifier: Apache-2.0 */
/* support/seats.h: a crew whose ranks somebody else's launcher starts (mpirun):
 * this program again, at whose beginning main asks seats_mine. They share with
 * the test one page, in which pointers mean nothing.
 *
 * A rank that has ended stays until all have, because a launcher may end the
 * others with the first one that goes.
 */
#ifndef TESTS_SUPPORT_SEATS_H
#define TESTS_SUPPORT_SEATS_H

#include "support/crew.h"

/* Whether this process is a rank of such a crew; then *code is what its
 * function returned, and main returns it. */
int seats_mine(int *code);

/* As crew_start; page: of crew_page. fn is a function of this program. What the
 * launcher and the ranks print is kept for seats_show. */
void seats_start(crew *c, const char *launcher, int ranks, crew_fn fn,
                 void *page, const char *format, ...) OAR_PRINTF(6, 7);

/* Prints what the last of them have printed. */
void seats_show(void);

/* Whether the launcher ends by itself, and so all ranks. */
int seats_await_end(crew *c, int timeout_ms);

/* Lets the ranks go that have ended, and waits for the launcher: whether it
 * ended by itself. */
int seats_leave(crew *c, int timeout_ms);

/* More ranks than cores are meant; and root, who is asked twice, means it. */
void seats_calm_open_mpi(void);

/* ---- for crew.c ---------------------------------------------------------- */

/* How the rank ended; CREW_LATE if it has not. */
int seats_look(crew *c, int rank);
int seats_is_stopped(crew *c, int rank);
/* Ends whoever is left, and the launcher; how many ranks that were. */
int seats_end(crew *c);

#endif
