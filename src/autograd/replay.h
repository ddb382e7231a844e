/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/replay.h: running a part of a computation on a tape inside another,
 * once to see its result and, in backward, a second time to record it. What
 * was random the first time is the same the second. */
#ifndef OARI_AUTOGRAD_REPLAY_H
#define OARI_AUTOGRAD_REPLAY_H

#include "autograd/tape.h"

/* Returns the tape inside `tape`, empty; makes it at the first call. NULL: no
 * memory. The outer tape keeps it, with its pool, as long as it lives. */
oar_tape *oari_replay_tape(oar_tape *tape);

/* Returns whether operations on this tape run for the second time, so that what
 * they change besides their results has been changed already. */
int oari_replaying(const oar_tape *tape);

/* Records *seed on an inner tape the first time, and reads it back the second.
 * Every operation with a seed calls this first. */
oar_status oari_replay_seed(oar_tape *tape, uint64_t *seed);

#endif
