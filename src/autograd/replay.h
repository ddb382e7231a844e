/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/replay.h: running a part of a computation on a tape inside another,
 * once to see its result and, in backward, a second time to record it. What
 * was random the first time is the same the second. */
#ifndef OARI_AUTOGRAD_REPLAY_H
#define OARI_AUTOGRAD_REPLAY_H

#include "autograd/tape.h"

/* The tape inside `tape`, empty; made on first asking. NULL: no memory. It is
 * kept, with its pool, as long as the outer one. */
oar_tape *oari_replay_tape(oar_tape *tape);

/* Whether an operation on this tape runs for the second time, so that what it
 * changes besides its result has been changed already. */
int oari_replaying(const oar_tape *tape);

/* What every operation with a seed does first: on an inner tape the first time
 * the seed is written down, the second time read back. */
oar_status oari_replay_seed(oar_tape *tape, uint64_t *seed);

#endif
