/* SPDX-License-Identifier: Apache-2.0 */
/* replay: inner tapes, and the seeds drawn on them. The outer tape keeps the
 * seeds of all its parts in one row, until it is reset. */
#include "autograd/replay.h"

#include "base/status.h"

oar_tape *oari_replay_tape(oar_tape *tape)
{
    if (tape->inner == NULL && oar_tape_create(&tape->inner) != OAR_OK)
        return NULL;
    tape->inner->outer = tape;
    tape->inner->pool.share_from = tape->pool.share_from;
    return tape->inner;
}

int oari_replaying(const oar_tape *tape)
{
    for (; tape != NULL; tape = tape->outer)
        if (tape->replaying)
            return 1;
    return 0;
}

oar_status oari_replay_seed(oar_tape *tape, uint64_t *seed)
{
    if (tape == NULL || tape->outer == NULL)
        return OAR_OK;
    if (tape->replaying) {
        if (tape->seed_at < tape->seeds_end)
            *seed = tape->outer->seeds.data[tape->seed_at++];
        return OAR_OK;
    }
    OARI_TRY(oari_replay_seed(tape->outer, seed));
    return oari_vec_push(&tape->outer->seeds, *seed);
}
