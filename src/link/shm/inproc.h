/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/inproc.h: a board whose ranks are threads of this process: every rank
 * can reach all memory, and none can die alone. */
#ifndef OARI_LINK_SHM_INPROC_H
#define OARI_LINK_SHM_INPROC_H

#include "link/shm/board.h"

/* The memory of all ranks. Counted: each board holds a reference. */
typedef struct oari_world oari_world;

/* Makes control pages for that many ranks. Gives one reference. */
oar_status oari_world_create(int ranks, size_t small_bytes, size_t stage_bytes,
                             oari_world **world);
void oari_world_release(oari_world *world); /* NULL is fine */

/* Finds a world of some ranks of this one: each of them asks for it once, by the
 * same name, and the first makes it. Gives one reference. */
oar_status oari_world_child(oari_world *world, const char *name, int ranks,
                            size_t small_bytes, size_t stage_bytes,
                            oari_world **found);

/* Waits until all ranks have joined. */
oar_status oari_world_wait(oari_world *world, int64_t deadline_ns);

/* Makes the board of one rank. The others read its recorder, even after it has
 * left: the world holds it. All ranks join before any of them communicates. */
oar_status oari_world_join(oari_world *world, int rank, int64_t spin_us,
                           oari_recorder *recorder, oari_board *board);

/* Shows the other ranks that this one has left. */
void oari_world_say_left(oari_board *board);

/* The same, and clears its board. */
void oari_world_leave(oari_board *board);

#endif
