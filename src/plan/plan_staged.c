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
static size_t chunk_room(const oari_plan_request *req)
{
    size_t room = req->stage_bytes / req->element / BLOCK * BLOCK;

    return room != 0 ? room : BLOCK;
}

/* Where chunk `index` lies in a stage. */
static size_t stage_at(const oari_plan_request *req, size_t index)
{
    return index % 3 * chunk_room(req);
}

static size_t pieces_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

static void copy_in(const oari_plan_request *req, oari_plan *plan, size_t of,
                    size_t index)
{
    size_t count, at = oari_chunk_first(of, chunk_room(req), index, &count);

    oari_plan_copy(plan, OARI_BOUNCE, stage_at(req, index), OARI_IN, -1, at,
                   count);
}

/* The same without what only I read. */
static void copy_in_for_others(const oari_plan_request *req, oari_plan *plan,
                               size_t index)
{
    size_t count,
        at = oari_chunk_first(req->count, chunk_room(req), index, &count);
    size_t mine = oari_slice_first(count, req->ranks, req->rank);
    size_t after = mine + oari_slice_count(count, req->ranks, req->rank);
    size_t stage = stage_at(req, index);

    oari_plan_copy(plan, OARI_BOUNCE, stage, OARI_IN, -1, at, mine);
    oari_plan_copy(plan, OARI_BOUNCE, stage + after, OARI_IN, -1, at + after,
                   count - after);
}

/* ---- a vector ------------------------------------------------------------ */

static int is_root(const oari_plan_request *req)
{
    return req->rank == req->root;
}

static void combine_slice(const oari_plan_request *req, oari_plan *plan,
                          size_t index)
{
    size_t count,
        first = oari_chunk_first(req->count, chunk_room(req), index, &count);
    size_t at = oari_slice_first(count, req->ranks, req->rank);
    size_t stage = stage_at(req, index) + at;
    oari_step step = { .kind = OARI_REDUCE,
                       .to = req->root < 0 ? OARI_BOUNCE_AND_OUT : OARI_BOUNCE,
                       .from = OARI_OTHER_BOUNCES,
                       .peer = -1,
                       .to_peer = -1,
                       .to_at = stage,
                       .from_at = stage,
                       .with_at = first + at,
                       .count =
                           oari_slice_count(count, req->ranks, req->rank) };

    if (is_root(req)) {
        step.to = OARI_OUT;
        step.to_at = first + at;
    }
    if (step.count != 0)
        oari_plan_step(plan, step);
}

static void fetch_slices(const oari_plan_request *req, oari_plan *plan,
                         size_t index)
{
    size_t count,
        first = oari_chunk_first(req->count, chunk_room(req), index, &count);

    for (int step = 1; step < req->ranks; step++) {
        int peer = (req->rank + step) % req->ranks;
        size_t at = oari_slice_first(count, req->ranks, peer);
        oari_plan_copy(plan, OARI_OUT, first + at, OARI_BOUNCE, peer,
                       stage_at(req, index) + at,
                       oari_slice_count(count, req->ranks, peer));
    }
}

static void reduce_vector(const oari_plan_request *req, oari_plan *plan)
{
    size_t total = pieces_of(req->count, chunk_room(req));

    copy_in_for_others(req, plan, 0);
    oari_plan_sync(plan, 0, 0);
    for (size_t c = 0; c < total; c++) {
        combine_slice(req, plan, c);
        copy_in_for_others(req, plan, c + 1);
        oari_plan_sync(plan, 0, 0);
        if (req->root < 0 || is_root(req))
            fetch_slices(req, plan, c);
    }
}

/* ---- what root has, or what goes to root --------------------------------- */

/* Elements [first, first + count) of root's row to my output, as far as they
 * are in a chunk of it. */
static void fetch_of_row(const oari_plan_request *req, oari_plan *plan,
                         int from, size_t index, size_t first, size_t count,
                         size_t to)
{
    size_t begin = index * chunk_room(req), end = begin + chunk_room(req);
    size_t low = first > begin ? first : begin;
    size_t high = first + count < end ? first + count : end;

    if (low < high)
        oari_plan_copy(plan, OARI_OUT, to + low - first, OARI_BOUNCE, from,
                       stage_at(req, index) + low - begin, high - low);
}

/* Root fills its stage with its row; everyone takes what is its own. */
static void share_row(const oari_plan_request *req, oari_plan *plan, size_t row,
                      size_t first, size_t count)
{
    size_t total = pieces_of(row, chunk_room(req));

    if (is_root(req) && req->kind == OAR_COLL_SCATTER)
        oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, -1, first, count);
    for (size_t i = 0; i < total; i++) {
        if (is_root(req))
            copy_in(req, plan, row, i);
        oari_plan_sync(plan, 0, 0);
        if (!is_root(req))
            fetch_of_row(req, plan, req->root, i, first, count, 0);
    }
}

static void scatter_row(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);

    share_row(req, plan, oari_partition_first(&row, req->ranks),
              oari_partition_first(&row, req->rank),
              oari_partition_count(&row, req->rank));
}

static void fetch_pieces(const oari_plan_request *req, oari_plan *plan,
                         size_t index)
{
    oari_partition row = oari_partition_parts(req);

    for (int step = 1; step < req->ranks; step++) {
        int peer = (req->rank + step) % req->ranks;
        size_t count, at = oari_chunk_first(oari_partition_count(&row, peer),
                                            chunk_room(req), index, &count);
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&row, peer) + at,
                       OARI_BOUNCE, peer, stage_at(req, index), count);
    }
}

/* Every rank's part through its stage. */
static void gather_parts(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    size_t mine = oari_partition_count(&row, req->rank);
    size_t total = pieces_of(oari_partition_longest(&row), chunk_room(req));
    int takes = req->kind == OAR_COLL_ALL_GATHER || is_root(req);

    if (takes)
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&row, req->rank),
                       OARI_IN, -1, 0, mine);
    for (size_t i = 0; i < total; i++) {
        copy_in(req, plan, mine, i);
        oari_plan_sync(plan, 0, 0);
        if (takes)
            fetch_pieces(req, plan, i);
    }
}

/* ---- rows of every rank, a part for every rank --------------------------- */

/* Elements of each part in a chunk; 0: not one for each. */
static size_t piece_room(const oari_plan_request *req)
{
    size_t each = chunk_room(req) / (size_t)req->ranks;

    return each >= 16 ? each / 16 * 16 : each;
}

static void copy_in_pieces(const oari_plan_request *req, oari_plan *plan,
                           size_t index)
{
    oari_partition row = oari_partition_parts(req);
    size_t room = piece_room(req);

    for (int r = 0; r < req->ranks; r++) {
        size_t count, at = oari_chunk_first(oari_partition_count(&row, r), room,
                                            index, &count);
        if (r == req->rank)
            continue; /* only I read it */
        oari_plan_copy(plan, OARI_BOUNCE,
                       stage_at(req, index) + (size_t)r * room, OARI_IN, -1,
                       oari_partition_first(&row, r) + at, count);
    }
}

static void take_pieces(const oari_plan_request *req, oari_plan *plan,
                        size_t index)
{
    oari_partition out = { req->ranks, req->count, 0, req->out_at };
    size_t room = piece_room(req);
    size_t stage = stage_at(req, index) + (size_t)req->rank * room;

    for (int step = 1; step < req->ranks; step++) {
        int peer = (req->rank + step) % req->ranks;
        size_t count, at = oari_chunk_first(oari_partition_count(&out, peer),
                                            room, index, &count);
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&out, peer) + at,
                       OARI_BOUNCE, peer, stage, count);
    }
}

static void reduce_piece(const oari_plan_request *req, oari_plan *plan,
                         size_t index)
{
    oari_partition row = oari_partition_parts(req);
    size_t room = piece_room(req), count;
    size_t at = oari_chunk_first(oari_partition_count(&row, req->rank), room,
                                 index, &count);

    if (count != 0)
        oari_plan_step(
            plan,
            (oari_step){ .kind = OARI_REDUCE,
                         .to = OARI_OUT,
                         .from = OARI_OTHER_BOUNCES,
                         .peer = -1,
                         .to_peer = -1,
                         .to_at = at,
                         .from_at =
                             stage_at(req, index) + (size_t)req->rank * room,
                         .with_at = oari_partition_first(&row, req->rank) + at,
                         .count = count });
}

static void by_pieces(const oari_plan_request *req, oari_plan *plan,
                      size_t most)
{
    size_t total = pieces_of(most, piece_room(req));

    for (size_t i = 0; i < total; i++) {
        copy_in_pieces(req, plan, i);
        oari_plan_sync(plan, 0, 0);
        if (req->kind == OAR_COLL_ALL_TO_ALL)
            take_pieces(req, plan, i);
        else
            reduce_piece(req, plan, i);
    }
}

static void take_of_rows(const oari_plan_request *req, oari_plan *plan,
                         size_t index)
{
    oari_partition out = { req->ranks, req->count, 0, req->out_at };

    for (int step = 1; step < req->ranks; step++) {
        int peer = (req->rank + step) % req->ranks;
        size_t at = req->their_at != NULL ? req->their_at[peer]
                                          : (size_t)req->rank * req->count;
        fetch_of_row(req, plan, peer, index, at,
                     oari_partition_count(&out, peer),
                     oari_partition_first(&out, peer));
    }
}

static void reduce_of_rows(const oari_plan_request *req, oari_plan *plan,
                           size_t index)
{
    oari_partition row = oari_partition_parts(req);
    size_t begin = index * chunk_room(req), end = begin + chunk_room(req);
    size_t first = oari_partition_first(&row, req->rank);
    size_t last = oari_partition_first(&row, req->rank + 1);
    size_t low = first > begin ? first : begin, high = last < end ? last : end;

    if (low < high)
        oari_plan_reduce(plan, OARI_OUT, low - first, OARI_BOUNCE,
                         stage_at(req, index) + low - begin, high - low);
}

static void by_rows(const oari_plan_request *req, oari_plan *plan,
                    size_t longest)
{
    oari_partition row = oari_partition_parts(req);
    size_t total = pieces_of(longest, chunk_room(req));

    for (size_t i = 0; i < total; i++) {
        copy_in(req, plan, oari_partition_first(&row, req->ranks), i);
        oari_plan_sync(plan, 0, 0);
        if (req->kind == OAR_COLL_ALL_TO_ALL)
            take_of_rows(req, plan, i);
        else
            reduce_of_rows(req, plan, i);
    }
}

static void trade_parts(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    oari_partition out = { req->ranks, req->count, 0, req->out_at };
    int all_to_all = req->kind == OAR_COLL_ALL_TO_ALL;
    size_t most = all_to_all && req->ragged ? req->longest_part
                                            : oari_partition_longest(&row);

    if (all_to_all)
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&out, req->rank),
                       OARI_IN, -1, oari_partition_first(&row, req->rank),
                       oari_partition_count(&row, req->rank));
    if (piece_room(req) != 0)
        by_pieces(req, plan, most);
    else
        by_rows(req, plan, most * (size_t)req->ranks);
}

void oari_plan_staged_after_sync(const oari_plan_request *req, oari_plan *plan)
{
    switch (req->kind) {
    case OAR_COLL_BROADCAST:
        share_row(req, plan, req->count, 0, req->count);
        break;
    case OAR_COLL_SCATTER: scatter_row(req, plan); break;
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: gather_parts(req, plan); break;
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL: trade_parts(req, plan); break;
    default: reduce_vector(req, plan); break;
    }
}

void oari_plan_staged(const oari_plan_request *req, oari_plan *plan)
{
    oari_plan_sync(plan, 0, 0);
    oari_plan_staged_after_sync(req, plan);
}
