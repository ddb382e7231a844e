/* SPDX-License-Identifier: Apache-2.0 */
/* plan_staged: large operations over private memory. Chunks that fit the second
 * cache level go through each rank's stage, which the others can read. Nobody
 * writes to another rank's memory.
 *
 * all_reduce of chunk c: everyone has copied what the others need of it, all
 * but slice r, into its stage; rank r combines its slice r with that of all
 * other stages into its own stage and output; one meeting later the others
 * fetch it from there. The copying in of chunk c+1 shares the
 * meeting of chunk c. A stage holds three chunks: while I fill chunk c+1 a slow
 * peer may still fetch c-1 from me, but no longer c-2. The meeting at the start
 * keeps the first chunk from overwriting what a slow peer still fetches of the
 * operation before.
 *
 * reduce_scatter, all_to_all: a chunk has a piece of every rank's part, so that
 * all ranks have work in every chunk; unless there are more ranks than elements
 * in a chunk: then it is a piece of the row.
 */
#include "plan/planners.h"

enum { BLOCK = 64 };

/* Elements of a chunk: whole blocks of 64, at least one. */
static size_t chunk_room(const oari_ask *ask)
{
    size_t room = ask->stage_bytes / ask->element / BLOCK * BLOCK;

    return room != 0 ? room : BLOCK;
}

/* Where chunk `index` lies in a stage. */
static size_t stage_at(const oari_ask *ask, size_t index)
{
    return index % 3 * chunk_room(ask);
}

static size_t pieces_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

static void copy_in(const oari_ask *ask, oari_plan *plan, size_t of,
                    size_t index)
{
    size_t count, at = oari_piece(of, chunk_room(ask), index, &count);

    oari_plan_copy(plan, OARI_STAGE, stage_at(ask, index), OARI_IN, -1, at,
                   count);
}

/* The same without what only I read. */
static void copy_in_for_others(const oari_ask *ask, oari_plan *plan,
                               size_t index)
{
    size_t count, at = oari_piece(ask->count, chunk_room(ask), index, &count);
    size_t mine = oari_slice_first(count, ask->ranks, ask->rank);
    size_t after = mine + oari_slice_count(count, ask->ranks, ask->rank);
    size_t stage = stage_at(ask, index);

    oari_plan_copy(plan, OARI_STAGE, stage, OARI_IN, -1, at, mine);
    oari_plan_copy(plan, OARI_STAGE, stage + after, OARI_IN, -1, at + after,
                   count - after);
}

/* ---- a vector ------------------------------------------------------------ */

static int is_root(const oari_ask *ask)
{
    return ask->rank == ask->root;
}

static void combine_slice(const oari_ask *ask, oari_plan *plan, size_t index)
{
    size_t count,
        first = oari_piece(ask->count, chunk_room(ask), index, &count);
    size_t at = oari_slice_first(count, ask->ranks, ask->rank);
    size_t stage = stage_at(ask, index) + at;
    oari_step step = { .kind = OARI_REDUCE,
                       .to = ask->root < 0 ? OARI_STAGE_AND_OUT : OARI_STAGE,
                       .from = OARI_OTHER_STAGES,
                       .peer = -1,
                       .to_peer = -1,
                       .to_at = stage,
                       .from_at = stage,
                       .with_at = first + at,
                       .count =
                           oari_slice_count(count, ask->ranks, ask->rank) };

    if (is_root(ask)) {
        step.to = OARI_OUT;
        step.to_at = first + at;
    }
    if (step.count != 0)
        oari_plan_step(plan, step);
}

static void fetch_slices(const oari_ask *ask, oari_plan *plan, size_t index)
{
    size_t count,
        first = oari_piece(ask->count, chunk_room(ask), index, &count);

    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        size_t at = oari_slice_first(count, ask->ranks, peer);
        oari_plan_copy(plan, OARI_OUT, first + at, OARI_STAGE, peer,
                       stage_at(ask, index) + at,
                       oari_slice_count(count, ask->ranks, peer));
    }
}

static void reduce_vector(const oari_ask *ask, oari_plan *plan)
{
    size_t total = pieces_of(ask->count, chunk_room(ask));

    copy_in_for_others(ask, plan, 0);
    oari_plan_meet(plan, 0, 0);
    for (size_t c = 0; c < total; c++) {
        combine_slice(ask, plan, c);
        copy_in_for_others(ask, plan, c + 1);
        oari_plan_meet(plan, 0, 0);
        if (ask->root < 0 || is_root(ask))
            fetch_slices(ask, plan, c);
    }
}

/* ---- what root has, or what goes to root --------------------------------- */

/* Elements [first, first + count) of root's row to my output, as far as they
 * are in a chunk of it. */
static void fetch_of_row(const oari_ask *ask, oari_plan *plan, int from,
                         size_t index, size_t first, size_t count, size_t to)
{
    size_t begin = index * chunk_room(ask), end = begin + chunk_room(ask);
    size_t low = first > begin ? first : begin;
    size_t high = first + count < end ? first + count : end;

    if (low < high)
        oari_plan_copy(plan, OARI_OUT, to + low - first, OARI_STAGE, from,
                       stage_at(ask, index) + low - begin, high - low);
}

/* Root fills its stage with its row; everyone takes what is its own. */
static void share_row(const oari_ask *ask, oari_plan *plan, size_t row,
                      size_t first, size_t count)
{
    size_t total = pieces_of(row, chunk_room(ask));

    if (is_root(ask) && ask->kind == OAR_COLL_SCATTER)
        oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, -1, first, count);
    for (size_t i = 0; i < total; i++) {
        if (is_root(ask))
            copy_in(ask, plan, row, i);
        oari_plan_meet(plan, 0, 0);
        if (!is_root(ask))
            fetch_of_row(ask, plan, ask->root, i, first, count, 0);
    }
}

static void scatter_row(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    share_row(ask, plan, oari_cut_first(&row, ask->ranks),
              oari_cut_first(&row, ask->rank), oari_cut_count(&row, ask->rank));
}

static void fetch_pieces(const oari_ask *ask, oari_plan *plan, size_t index)
{
    oari_cut row = oari_cut_parts(ask);

    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        size_t count, at = oari_piece(oari_cut_count(&row, peer),
                                      chunk_room(ask), index, &count);
        oari_plan_copy(plan, OARI_OUT, oari_cut_first(&row, peer) + at,
                       OARI_STAGE, peer, stage_at(ask, index), count);
    }
}

/* Every rank's part through its stage. */
static void gather_parts(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);
    size_t mine = oari_cut_count(&row, ask->rank);
    size_t total = pieces_of(oari_cut_most(&row), chunk_room(ask));
    int takes = ask->kind == OAR_COLL_ALL_GATHER || is_root(ask);

    if (takes)
        oari_plan_copy(plan, OARI_OUT, oari_cut_first(&row, ask->rank), OARI_IN,
                       -1, 0, mine);
    for (size_t i = 0; i < total; i++) {
        copy_in(ask, plan, mine, i);
        oari_plan_meet(plan, 0, 0);
        if (takes)
            fetch_pieces(ask, plan, i);
    }
}

/* ---- rows of every rank, a part for every rank --------------------------- */

/* Elements of each part in a chunk; 0: not one for each. */
static size_t piece_room(const oari_ask *ask)
{
    size_t each = chunk_room(ask) / (size_t)ask->ranks;

    return each >= 16 ? each / 16 * 16 : each;
}

static void copy_in_pieces(const oari_ask *ask, oari_plan *plan, size_t index)
{
    oari_cut row = oari_cut_parts(ask);
    size_t room = piece_room(ask);

    for (int r = 0; r < ask->ranks; r++) {
        size_t count,
            at = oari_piece(oari_cut_count(&row, r), room, index, &count);
        if (r == ask->rank)
            continue; /* only I read it */
        oari_plan_copy(plan, OARI_STAGE,
                       stage_at(ask, index) + (size_t)r * room, OARI_IN, -1,
                       oari_cut_first(&row, r) + at, count);
    }
}

static void take_pieces(const oari_ask *ask, oari_plan *plan, size_t index)
{
    oari_cut out = { ask->ranks, ask->count, 0, ask->out_at };
    size_t room = piece_room(ask);
    size_t stage = stage_at(ask, index) + (size_t)ask->rank * room;

    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        size_t count,
            at = oari_piece(oari_cut_count(&out, peer), room, index, &count);
        oari_plan_copy(plan, OARI_OUT, oari_cut_first(&out, peer) + at,
                       OARI_STAGE, peer, stage, count);
    }
}

static void reduce_piece(const oari_ask *ask, oari_plan *plan, size_t index)
{
    oari_cut row = oari_cut_parts(ask);
    size_t room = piece_room(ask), count;
    size_t at =
        oari_piece(oari_cut_count(&row, ask->rank), room, index, &count);

    if (count != 0)
        oari_plan_step(
            plan, (oari_step){ .kind = OARI_REDUCE,
                               .to = OARI_OUT,
                               .from = OARI_OTHER_STAGES,
                               .peer = -1,
                               .to_peer = -1,
                               .to_at = at,
                               .from_at = stage_at(ask, index) +
                                          (size_t)ask->rank * room,
                               .with_at = oari_cut_first(&row, ask->rank) + at,
                               .count = count });
}

static void by_pieces(const oari_ask *ask, oari_plan *plan, size_t most)
{
    size_t total = pieces_of(most, piece_room(ask));

    for (size_t i = 0; i < total; i++) {
        copy_in_pieces(ask, plan, i);
        oari_plan_meet(plan, 0, 0);
        if (ask->kind == OAR_COLL_ALL_TO_ALL)
            take_pieces(ask, plan, i);
        else
            reduce_piece(ask, plan, i);
    }
}

static void take_of_rows(const oari_ask *ask, oari_plan *plan, size_t index)
{
    oari_cut out = { ask->ranks, ask->count, 0, ask->out_at };

    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        size_t at = ask->their_at != NULL ? ask->their_at[peer]
                                          : (size_t)ask->rank * ask->count;
        fetch_of_row(ask, plan, peer, index, at, oari_cut_count(&out, peer),
                     oari_cut_first(&out, peer));
    }
}

static void reduce_of_rows(const oari_ask *ask, oari_plan *plan, size_t index)
{
    oari_cut row = oari_cut_parts(ask);
    size_t begin = index * chunk_room(ask), end = begin + chunk_room(ask);
    size_t first = oari_cut_first(&row, ask->rank);
    size_t last = oari_cut_first(&row, ask->rank + 1);
    size_t low = first > begin ? first : begin, high = last < end ? last : end;

    if (low < high)
        oari_plan_reduce(plan, OARI_OUT, low - first, OARI_STAGE,
                         stage_at(ask, index) + low - begin, high - low);
}

static void by_rows(const oari_ask *ask, oari_plan *plan, size_t longest)
{
    oari_cut row = oari_cut_parts(ask);
    size_t total = pieces_of(longest, chunk_room(ask));

    for (size_t i = 0; i < total; i++) {
        copy_in(ask, plan, oari_cut_first(&row, ask->ranks), i);
        oari_plan_meet(plan, 0, 0);
        if (ask->kind == OAR_COLL_ALL_TO_ALL)
            take_of_rows(ask, plan, i);
        else
            reduce_of_rows(ask, plan, i);
    }
}

static void trade_parts(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);
    oari_cut out = { ask->ranks, ask->count, 0, ask->out_at };
    int all_to_all = ask->kind == OAR_COLL_ALL_TO_ALL;
    size_t most = all_to_all && ask->ragged ? ask->most : oari_cut_most(&row);

    if (all_to_all)
        oari_plan_copy(plan, OARI_OUT, oari_cut_first(&out, ask->rank), OARI_IN,
                       -1, oari_cut_first(&row, ask->rank),
                       oari_cut_count(&row, ask->rank));
    if (piece_room(ask) != 0)
        by_pieces(ask, plan, most);
    else
        by_rows(ask, plan, most * (size_t)ask->ranks);
}

void oari_plan_staged_rest(const oari_ask *ask, oari_plan *plan)
{
    switch (ask->kind) {
    case OAR_COLL_BROADCAST:
        share_row(ask, plan, ask->count, 0, ask->count);
        break;
    case OAR_COLL_SCATTER: scatter_row(ask, plan); break;
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: gather_parts(ask, plan); break;
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL: trade_parts(ask, plan); break;
    default: reduce_vector(ask, plan); break;
    }
}

void oari_plan_staged(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, 0);
    oari_plan_staged_rest(ask, plan);
}
