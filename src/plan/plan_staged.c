/* SPDX-License-Identifier: Apache-2.0 */
/* plan_staged: large operations over private memory. Chunks that fit the second
 * cache level go through each rank's bounce buffer, which the others can read.
 * No rank writes to another rank's memory.
 *
 * all_reduce of chunk c: every rank has copied what the others need of it, all
 * but slice r, into its bounce buffer; rank r combines its slice r with that of
 * all other bounce buffers into its own bounce buffer and output; one sync
 * point later the others fetch it from there. Copying in chunk c+1 shares the
 * sync point of chunk c. A bounce buffer holds three chunks: while I fill chunk
 * c+1 a slow peer may still fetch c-1 from me, but no longer c-2. The sync
 * point at the start keeps the first chunk from overwriting what a slow peer
 * still fetches of the operation before.
 *
 * reduce: the same, but only root fetches. Between two ranks root combines
 * whole chunks, and the other only copies in.
 *
 * reduce_scatter, all_to_all: a chunk has a piece of every rank's part, so that
 * all ranks have work in every chunk; unless there are more ranks than elements
 * in a chunk: then it is a piece of the row.
 */
#include "plan/planners.h"

enum {
    PAIR_CHUNKS = 8,      /* of a reduce of two ranks, about, ... */
    PAIR_BYTES = 32 << 10 /* ... of at least this */
};

/* Returns where chunk `index` lies in a bounce buffer. */
static size_t bounce_at(const oari_plan_request *req, size_t index)
{
    return index % 3 * oari_stage_room(req);
}

static size_t chunks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* Copies chunk `index` of the first `of` elements of my input. */
static void copy_in(const oari_plan_request *req, oari_plan *plan, size_t of,
                    size_t size, size_t index)
{
    size_t count, at = oari_chunk_first(of, size, index, &count);

    oari_plan_copy(plan, OARI_BOUNCE, bounce_at(req, index), OARI_IN, -1, at,
                   count);
}

/* Copies chunk `index` of my input without my slice, which only I read. */
static void copy_in_for_others(const oari_plan_request *req, oari_plan *plan,
                               size_t index)
{
    size_t count,
        at = oari_chunk_first(req->count, oari_stage_room(req), index, &count);
    size_t mine = oari_slice_first(count, req->ranks, req->rank);
    size_t after = mine + oari_slice_count(count, req->ranks, req->rank);
    size_t bounce = bounce_at(req, index);

    oari_plan_copy(plan, OARI_BOUNCE, bounce, OARI_IN, -1, at, mine);
    oari_plan_copy(plan, OARI_BOUNCE, bounce + after, OARI_IN, -1, at + after,
                   count - after);
}

/* ---- a vector ------------------------------------------------------------ */

static void combine_slice(const oari_plan_request *req, oari_plan *plan,
                          size_t index)
{
    size_t count, first = oari_chunk_first(req->count, oari_stage_room(req),
                                           index, &count);
    size_t at = oari_slice_first(count, req->ranks, req->rank);
    size_t bounce = bounce_at(req, index) + at;
    oari_step step = { .kind = OARI_REDUCE,
                       .to = req->root < 0 ? OARI_BOUNCE_AND_OUT : OARI_BOUNCE,
                       .from = OARI_OTHER_BOUNCES,
                       .peer = -1,
                       .to_peer = -1,
                       .to_at = bounce,
                       .from_at = bounce,
                       .with_at = first + at,
                       .count =
                           oari_slice_count(count, req->ranks, req->rank) };

    if (req->rank == req->root) {
        step.to = OARI_OUT;
        step.to_at = first + at;
    }
    if (step.count != 0)
        oari_plan_step(plan, step);
}

static void reduce_vector(const oari_plan_request *req, oari_plan *plan)
{
    size_t room = oari_stage_room(req), first, count;
    size_t total = chunks_of(req->count, room);

    copy_in_for_others(req, plan, 0);
    oari_plan_sync(plan, 0, 0);
    for (size_t c = 0; c < total; c++) {
        combine_slice(req, plan, c);
        copy_in_for_others(req, plan, c + 1);
        oari_plan_sync(plan, 0, 0);
        if (req->root >= 0 && req->rank != req->root)
            continue;
        first = oari_chunk_first(req->count, room, c, &count);
        for (int step = 1; step < req->ranks; step++) {
            int peer = (req->rank + step) % req->ranks;
            size_t at = oari_slice_first(count, req->ranks, peer);

            oari_plan_copy(plan, OARI_OUT, first + at, OARI_BOUNCE, peer,
                           bounce_at(req, c) + at,
                           oari_slice_count(count, req->ranks, peer));
        }
    }
}

/* ---- a reduce of two ranks ----------------------------------------------- */

static size_t pair_chunk(const oari_plan_request *req)
{
    size_t room = oari_stage_room(req), least = PAIR_BYTES / req->element;
    size_t size = (req->count / PAIR_CHUNKS + 63) / 64 * 64;

    size = size > least ? size : least;
    return size < room ? size : room;
}

/* The other rank fills chunk c+1 while root combines chunk c, and waits for
 * nothing after the last. */
static void reduce_pair(const oari_plan_request *req, oari_plan *plan)
{
    size_t size = pair_chunk(req), total = chunks_of(req->count, size), count;
    int root = req->rank == req->root;

    if (!root)
        copy_in(req, plan, req->count, size, 0);
    for (size_t c = 0; c < total; c++) {
        size_t at = oari_chunk_first(req->count, size, c, &count);

        oari_plan_sync(plan, 0, 0);
        if (root)
            oari_plan_step(plan, (oari_step){ .kind = OARI_REDUCE,
                                              .to = OARI_OUT,
                                              .from = OARI_OTHER_BOUNCES,
                                              .peer = -1,
                                              .to_peer = -1,
                                              .to_at = at,
                                              .from_at = bounce_at(req, c),
                                              .with_at = at,
                                              .count = count });
        else
            copy_in(req, plan, req->count, size, c + 1);
    }
}

/* ---- what root has, or what goes to root --------------------------------- */

/* Fetches elements [first, first + count) of a rank's row into my output, as
 * far as they are in chunk `index` of that row. */
static void fetch_of_row(const oari_plan_request *req, oari_plan *plan,
                         int from, size_t index, size_t first, size_t count,
                         size_t to)
{
    size_t begin = index * oari_stage_room(req),
           end = begin + oari_stage_room(req);
    size_t low = first > begin ? first : begin;
    size_t high = first + count < end ? first + count : end;

    if (low < high)
        oari_plan_copy(plan, OARI_OUT, to + low - first, OARI_BOUNCE, from,
                       bounce_at(req, index) + low - begin, high - low);
}

/* Root fills its bounce buffer with its row; every rank takes its own part. */
static void share_row(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    int root = req->rank == req->root, scatter = req->kind == OAR_COLL_SCATTER;
    size_t first = scatter ? oari_partition_first(&row, req->rank) : 0;
    size_t count = scatter ? oari_partition_count(&row, req->rank) : req->count;
    size_t whole =
        scatter ? oari_partition_first(&row, req->ranks) : req->count;
    size_t total = chunks_of(whole, oari_stage_room(req));

    if (root && scatter)
        oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, -1, first, count);
    for (size_t i = 0; i < total; i++) {
        if (root)
            copy_in(req, plan, whole, oari_stage_room(req), i);
        oari_plan_sync(plan, 0, 0);
        if (!root)
            fetch_of_row(req, plan, req->root, i, first, count, 0);
    }
}

/* Every rank's part goes through its bounce buffer. */
static void gather_parts(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    size_t mine = oari_partition_count(&row, req->rank);
    size_t total =
        chunks_of(oari_partition_longest(&row), oari_stage_room(req));
    int takes = req->kind == OAR_COLL_ALL_GATHER || req->rank == req->root;

    if (takes)
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&row, req->rank),
                       OARI_IN, -1, 0, mine);
    for (size_t i = 0; i < total; i++) {
        copy_in(req, plan, mine, oari_stage_room(req), i);
        oari_plan_sync(plan, 0, 0);
        for (int step = 1; takes && step < req->ranks; step++) {
            int peer = (req->rank + step) % req->ranks;
            size_t count,
                at = oari_chunk_first(oari_partition_count(&row, peer),
                                      oari_stage_room(req), i, &count);
            oari_plan_copy(plan, OARI_OUT,
                           oari_partition_first(&row, peer) + at, OARI_BOUNCE,
                           peer, bounce_at(req, i), count);
        }
    }
}

/* ---- rows of every rank, a part for every rank --------------------------- */

/* Copies piece `index` of `room` elements of every part but mine, which only I
 * read. */
static void copy_in_pieces(const oari_plan_request *req, oari_plan *plan,
                           size_t room, size_t index)
{
    oari_partition row = oari_partition_parts(req);

    for (int r = 0; r < req->ranks; r++) {
        size_t count, at = oari_chunk_first(oari_partition_count(&row, r), room,
                                            index, &count);
        if (r != req->rank)
            oari_plan_copy(plan, OARI_BOUNCE,
                           bounce_at(req, index) + (size_t)r * room, OARI_IN,
                           -1, oari_partition_first(&row, r) + at, count);
    }
}

static void take_pieces(const oari_plan_request *req, oari_plan *plan,
                        size_t room, size_t index)
{
    oari_partition out = { req->ranks, req->count, 0, req->out_at };
    size_t bounce = bounce_at(req, index) + (size_t)req->rank * room;

    for (int step = 1; step < req->ranks; step++) {
        int peer = (req->rank + step) % req->ranks;
        size_t count, at = oari_chunk_first(oari_partition_count(&out, peer),
                                            room, index, &count);
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&out, peer) + at,
                       OARI_BOUNCE, peer, bounce, count);
    }
}

static void reduce_piece(const oari_plan_request *req, oari_plan *plan,
                         size_t room, size_t index)
{
    oari_partition row = oari_partition_parts(req);
    size_t count, at = oari_chunk_first(oari_partition_count(&row, req->rank),
                                        room, index, &count);
    size_t bounce = bounce_at(req, index) + (size_t)req->rank * room;

    if (count != 0)
        oari_plan_step(
            plan,
            (oari_step){ .kind = OARI_REDUCE,
                         .to = OARI_OUT,
                         .from = OARI_OTHER_BOUNCES,
                         .peer = -1,
                         .to_peer = -1,
                         .to_at = at,
                         .from_at = bounce,
                         .with_at = oari_partition_first(&row, req->rank) + at,
                         .count = count });
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
    size_t begin = index * oari_stage_room(req),
           end = begin + oari_stage_room(req);
    size_t first = oari_partition_first(&row, req->rank);
    size_t last = oari_partition_first(&row, req->rank + 1);
    size_t low = first > begin ? first : begin, high = last < end ? last : end;

    if (low < high)
        oari_plan_reduce(plan, OARI_OUT, low - first, OARI_BOUNCE,
                         bounce_at(req, index) + low - begin, high - low);
}

static void trade_parts(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    oari_partition out = { req->ranks, req->count, 0, req->out_at };
    int all_to_all = req->kind == OAR_COLL_ALL_TO_ALL;
    size_t longest = all_to_all && req->ragged ? req->longest_part
                                               : oari_partition_longest(&row);
    size_t each = oari_stage_room(req) / (size_t)req->ranks; /* of every part */
    size_t room = each >= 16 ? each / 16 * 16 : each, total;

    if (all_to_all)
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&out, req->rank),
                       OARI_IN, -1, oari_partition_first(&row, req->rank),
                       oari_partition_count(&row, req->rank));
    total = room != 0
                ? chunks_of(longest, room)
                : chunks_of(longest * (size_t)req->ranks, oari_stage_room(req));
    for (size_t i = 0; i < total; i++) {
        if (room != 0)
            copy_in_pieces(req, plan, room, i);
        else
            copy_in(req, plan, oari_partition_first(&row, req->ranks),
                    oari_stage_room(req), i);
        oari_plan_sync(plan, 0, 0);
        if (room != 0 && all_to_all)
            take_pieces(req, plan, room, i);
        else if (room != 0)
            reduce_piece(req, plan, room, i);
        else if (all_to_all)
            take_of_rows(req, plan, i);
        else
            reduce_of_rows(req, plan, i);
    }
}

void oari_plan_staged_after_sync(const oari_plan_request *req, oari_plan *plan)
{
    switch (req->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_SCATTER: share_row(req, plan); break;
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: gather_parts(req, plan); break;
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL: trade_parts(req, plan); break;
    default:
        if (req->root >= 0 && req->ranks == 2)
            reduce_pair(req, plan);
        else
            reduce_vector(req, plan);
        break;
    }
}

void oari_plan_staged(const oari_plan_request *req, oari_plan *plan)
{
    oari_plan_sync(plan, 0, 0);
    oari_plan_staged_after_sync(req, plan);
}
