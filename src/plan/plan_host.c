/* SPDX-License-Identifier: Apache-2.0 */
/* plan_host: the parts of a two-level plan that stay inside a host: in place
 * where its ranks' buffers can be reached, else through the stages, whose
 * chunks are used in turn (plan_staged.c says why three are enough). In a chunk
 * every lane has room of its own. */
#include "plan/plan_levels.h"

enum { BLOCK = 64 };

/* ---- through the stage --------------------------------------------------- */

static size_t stage_room(const oari_levels *l)
{
    size_t room = l->req->stage_bytes / l->req->element / BLOCK * BLOCK;

    return room != 0 ? room : BLOCK;
}

static size_t lane_room(const oari_levels *l)
{
    return stage_room(l) / (size_t)l->lanes;
}

/* Where a lane's part of the chunk in use lies. */
static size_t lane_stage(const oari_levels *l, int lane)
{
    return l->chunks % 3 * stage_room(l) + (size_t)lane * lane_room(l);
}

/* What of [at, at + count) is in piece `index` of a share. */
static size_t overlap(const oari_levels *l, size_t at, size_t count,
                      size_t index, size_t *skip)
{
    size_t begin = index * lane_room(l), end = begin + lane_room(l);
    size_t low = at > begin ? at : begin;
    size_t high = at + count < end ? at + count : end;

    *skip = low - at;
    return low < high ? high - low : 0;
}

static size_t pieces(const oari_levels *l, size_t most)
{
    return (most + lane_room(l) - 1) / lane_room(l);
}

/* ---- collect ------------------------------------------------------------- */

static size_t longest_share(const oari_levels *l)
{
    size_t most = 0;

    for (int i = 0; i < l->lanes; i++)
        if (oari_rail_share(l, i) > most)
            most = oari_rail_share(l, i);
    return most;
}

static void stage_inputs(const oari_levels *l, int lane, size_t index)
{
    oari_rail_walk w = oari_rail_begin();

    while (oari_rail_next(l, lane, &w)) {
        size_t skip, count = overlap(l, w.now.at, w.now.count, index, &skip);
        size_t in = w.now.at + skip - index * lane_room(l);
        if (count != 0)
            oari_plan_copy(l->plan, OARI_BOUNCE, lane_stage(l, lane) + in,
                           OARI_IN, -1, w.now.first + skip, count);
    }
}

static void collect_staged(oari_levels *l)
{
    size_t total = pieces(l, longest_share(l)), count;

    for (size_t i = 0; i < total; i++, l->chunks++) {
        for (int lane = 0; lane < l->lanes; lane++)
            stage_inputs(l, lane, i);
        oari_plan_sync(l->plan, 0, 0);
        if (!oari_is_on_rail(l))
            continue;
        oari_chunk_first(oari_rail_share(l, l->local), lane_room(l), i, &count);
        oari_plan_reduce(l->plan, OARI_WORK, i * lane_room(l), OARI_BOUNCE,
                         lane_stage(l, l->local), count);
    }
}

static void collect_direct(const oari_levels *l)
{
    oari_rail_walk w = oari_rail_begin();

    while (oari_is_on_rail(l) && oari_rail_next(l, l->local, &w))
        if (l->locals > 1)
            oari_plan_reduce(l->plan, OARI_WORK, w.now.at, OARI_IN, w.now.first,
                             w.now.count);
        else
            oari_plan_combine(l->plan, (oari_location){ OARI_WORK, w.now.at },
                              (oari_location){ OARI_IN, w.now.first },
                              (oari_location){ OARI_NOWHERE, 0 }, 0,
                              w.now.count);
}

void oari_host_collect(oari_levels *l)
{
    if (oari_is_on_rail(l) &&
        l->plan->work_count < oari_rail_share(l, l->local))
        l->plan->work_count = oari_rail_share(l, l->local);
    if (l->staged)
        collect_staged(l);
    else
        collect_direct(l);
}

/* ---- share --------------------------------------------------------------- */

/* The runs a lane has to hand out: from where, to where in whose output. */
typedef struct gift {
    oari_location from;
    size_t at, to_at, count; /* at: among the gifts of the lane */
    int to;                  /* a rank of the board; -1: all */
} gift;

/* Whether a run of a walk is one; *at is where the next one begins. */
static int is_gift(const oari_levels *l, const oari_rail_walk *w, size_t *at,
                   gift *g)
{
    const oari_plan_request *a = l->req;
    int here = w->host == l->host;

    *g = (gift){
        { OARI_OUT, w->now.first }, *at, w->now.first, w->now.count, -1
    };
    if (a->kind == OAR_COLL_REDUCE) {
        g->from = (oari_location){ OARI_GATHER, 0 };
        g->to = oari_local_of(a, a->root);
    }
    if (a->kind == OAR_COLL_REDUCE_SCATTER) {
        g->from = (oari_location){ OARI_GATHER, *at };
        g->to_at = 0;
        g->to = w->local;
    }
    if ((a->kind == OAR_COLL_REDUCE_SCATTER && !here) ||
        (a->kind == OAR_COLL_ALL_GATHER && here))
        return 0;
    *at += w->now.count;
    return 1;
}

static void keep_mine(const oari_levels *l)
{
    oari_rail_walk w = oari_rail_begin();
    size_t at = 0;
    gift g;

    while (oari_is_on_rail(l) && oari_rail_next(l, l->local, &w))
        if (is_gift(l, &w, &at, &g) && g.from.buffer != OARI_OUT &&
            g.to == l->local)
            oari_plan_copy(l->plan, OARI_OUT, g.to_at, g.from.buffer, -1,
                           g.from.at, g.count);
}

static void share_direct(const oari_levels *l)
{
    oari_rail_walk w = oari_rail_begin();
    size_t at = 0;
    gift g;

    while (oari_is_on_rail(l) && oari_rail_next(l, l->local, &w))
        if (is_gift(l, &w, &at, &g))
            for (int i = 1; i < l->locals; i++) {
                int to = (l->local + i) % l->locals;
                if (g.to < 0 || g.to == to)
                    oari_plan_copy_out(l->plan, to, g.to_at, g.from.buffer,
                                       g.from.at, g.count);
            }
    if (l->locals > 1)
        oari_plan_sync(l->plan, 0, 0);
}

/* One lane's gifts in a piece: into its stage, or out of it. */
static void share_piece(const oari_levels *l, int lane, size_t index)
{
    oari_rail_walk w = oari_rail_begin();
    size_t at = 0;
    gift g;

    while (oari_rail_next(l, lane, &w))
        if (is_gift(l, &w, &at, &g)) {
            size_t skip, count = overlap(l, g.at, g.count, index, &skip);
            size_t stage =
                lane_stage(l, lane) + g.at + skip - index * lane_room(l);
            if (count == 0)
                continue;
            if (lane == l->local)
                oari_plan_copy(l->plan, OARI_BOUNCE, stage, g.from.buffer, -1,
                               g.from.at + skip, count);
            else if (g.to < 0 || g.to == l->local)
                oari_plan_copy(l->plan, OARI_OUT, g.to_at + skip, OARI_BOUNCE,
                               lane, stage, count);
        }
}

static size_t most_gifts(const oari_levels *l)
{
    size_t most = 0;

    for (int lane = 0; lane < l->lanes; lane++) {
        oari_rail_walk w = oari_rail_begin();
        size_t at = 0;
        gift g;
        while (oari_rail_next(l, lane, &w))
            is_gift(l, &w, &at, &g);
        most = at > most ? at : most;
    }
    return most;
}

static void share_staged(oari_levels *l)
{
    size_t total = pieces(l, most_gifts(l));

    for (size_t i = 0; i < total; i++, l->chunks++) {
        if (oari_is_on_rail(l))
            share_piece(l, l->local, i);
        oari_plan_sync(l->plan, 0, 0);
        for (int lane = 0; lane < l->lanes; lane++)
            if (lane != l->local)
                share_piece(l, lane, i);
    }
}

void oari_host_deliver(oari_levels *l)
{
    keep_mine(l);
    if (l->staged)
        share_staged(l);
    else
        share_direct(l);
}

/* ---- inside a host, before anything crosses ------------------------------ */

/* An ask of this host alone, for what plan_direct and plan_staged do there. */
static oari_plan_request ask_here(const oari_levels *l, size_t *at)
{
    oari_plan_request here = *l->req;
    oari_partition row = oari_partition_parts(l->req);

    here.rank = l->local;
    here.ranks = l->locals;
    here.root = l->req->root >= 0 ? oari_local_of(l->req, l->req->root) : -1;
    at[0] = 0;
    for (int i = 0; i < l->locals && oari_rail_has_parts(l->req); i++)
        at[i + 1] = at[i] + oari_partition_count(
                                &row, oari_rank_at(l->req, l->host, i));
    here.at = oari_rail_has_parts(l->req) ? at : NULL;
    return here;
}

/* Everyone's part to everyone here. */
void oari_host_gather(oari_levels *l)
{
    const oari_plan_request *a = l->req;
    oari_partition row = oari_partition_parts(a);
    size_t total = 0, room = stage_room(l);

    for (int i = 0; i < l->locals; i++) {
        int r = oari_rank_at(a, l->host, i);
        size_t count = oari_partition_count(&row, r);
        total = count > total ? count : total;
        if (i == l->local || !l->staged)
            oari_plan_copy(l->plan, OARI_OUT, oari_partition_first(&row, r),
                           OARI_IN, i == l->local ? -1 : i, 0, count);
    }
    total = l->staged ? (total + room - 1) / room : 0;
    for (size_t c = 0; c < total; c++, l->chunks++) {
        size_t stage = l->chunks % 3 * room, count, at;
        at = oari_chunk_first(oari_partition_count(&row, a->rank), room, c,
                              &count);
        oari_plan_copy(l->plan, OARI_BOUNCE, stage, OARI_IN, -1, at, count);
        oari_plan_sync(l->plan, 0, 0);
        for (int i = 0; i < l->locals; i++) {
            int r = oari_rank_at(a, l->host, i);
            at = oari_chunk_first(oari_partition_count(&row, r), room, c,
                                  &count);
            if (i != l->local)
                oari_plan_copy(l->plan, OARI_OUT,
                               oari_partition_first(&row, r) + at, OARI_BOUNCE,
                               i, stage, count);
        }
    }
}

/* Root's buffer to everyone here. */
void oari_host_broadcast(oari_levels *l)
{
    size_t at[2];
    oari_plan_request here = ask_here(l, at);

    if (l->staged)
        oari_plan_staged_after_sync(&here, l->plan);
    else if (l->locals > 1) {
        if (l->local != here.root)
            oari_plan_copy(l->plan, OARI_OUT, 0, OARI_IN, here.root, 0,
                           here.count);
        oari_plan_sync(l->plan, 0, 0);
    }
}
