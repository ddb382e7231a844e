/* SPDX-License-Identifier: Apache-2.0 */
/* plan_staged: large operations over private memory. Chunks that fit the second
 * cache level go through each rank's stage, which the others can read. Nobody
 * writes to another rank's memory.
 *
 * all_reduce of chunk c: everyone has copied its part into its stage; rank r
 * combines slice r of all stages into its own stage and output; one meeting
 * later the others fetch it from there. The copying in of chunk c+1 shares the
 * meeting of chunk c. A stage holds three chunks: while I fill chunk c+1 a slow
 * peer may still fetch c-1 from me, but no longer c-2. The meeting at the start
 * keeps the first chunk from overwriting what a slow peer still fetches of the
 * operation before.
 */
#include "comm/planners.h"

typedef struct chunk {
    size_t first, count; /* in the whole */
    size_t stage;        /* where in the stage */
} chunk;

/* Elements of a chunk: whole blocks of 64, at least one. */
static size_t chunk_room(const oari_ask *ask)
{
    size_t room = ask->stage_bytes / ask->element / 64 * 64;

    return room != 0 ? room : 64;
}

static size_t chunk_total(const oari_ask *ask)
{
    size_t room = chunk_room(ask);

    return (ask->count + room - 1) / room;
}

static chunk chunk_at(const oari_ask *ask, size_t index)
{
    size_t room = chunk_room(ask), first = index * room;
    size_t left = ask->count - first;

    return (chunk){ first, left < room ? left : room, index % 3 * room };
}

static void copy_in(const oari_ask *ask, oari_plan *plan, size_t index)
{
    chunk c = chunk_at(ask, index);

    oari_plan_copy(plan, OARI_STAGE, c.stage, OARI_IN, -1, c.first, c.count);
}

static void combine_slice(const oari_ask *ask, oari_plan *plan, size_t index)
{
    chunk c = chunk_at(ask, index);
    size_t at = oari_slice_first(c.count, ask->ranks, ask->rank);

    oari_plan_reduce(plan, OARI_STAGE, c.stage + at, OARI_STAGE, c.stage + at,
                     c.first + at,
                     oari_slice_count(c.count, ask->ranks, ask->rank));
}

static void fetch_slices(const oari_ask *ask, oari_plan *plan, size_t index)
{
    chunk c = chunk_at(ask, index);

    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        size_t at = oari_slice_first(c.count, ask->ranks, peer);
        oari_plan_copy(plan, OARI_OUT, c.first + at, OARI_STAGE, peer,
                       c.stage + at,
                       oari_slice_count(c.count, ask->ranks, peer));
    }
}

void oari_plan_staged_all_reduce_rest(const oari_ask *ask, oari_plan *plan)
{
    size_t total = chunk_total(ask);

    if (total != 0)
        copy_in(ask, plan, 0);
    oari_plan_meet(plan, 0, 0);
    for (size_t c = 0; c < total; c++) {
        combine_slice(ask, plan, c);
        if (c + 1 < total)
            copy_in(ask, plan, c + 1);
        oari_plan_meet(plan, 0, 0);
        fetch_slices(ask, plan, c);
    }
}

void oari_plan_staged_all_reduce(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, 0);
    oari_plan_staged_all_reduce_rest(ask, plan);
}

/* The root fills its stage a chunk ahead of the meeting that shows it. */
void oari_plan_staged_broadcast_rest(const oari_ask *ask, oari_plan *plan)
{
    size_t total = chunk_total(ask);
    int root = ask->rank == ask->root;

    for (size_t i = 0; i < total; i++) {
        chunk c = chunk_at(ask, i);
        if (root)
            copy_in(ask, plan, i);
        oari_plan_meet(plan, 0, 0);
        if (!root)
            oari_plan_copy(plan, OARI_OUT, c.first, OARI_STAGE, ask->root,
                           c.stage, c.count);
    }
}

void oari_plan_staged_broadcast(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, 0);
    oari_plan_staged_broadcast_rest(ask, plan);
}
