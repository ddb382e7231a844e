/* SPDX-License-Identifier: Apache-2.0 */
/* plan_host: the parts of a two-level plan that stay inside a host: in place
 * where its ranks' buffers can be reached, else through the bounce buffers,
 * whose chunks are used in turn (plan_staged.c says why three are enough). In a
 * chunk every rail has room of its own. */
#include "plan/plan_levels.h"

/* ---- through the bounce buffer ------------------------------------------- */

static size_t rail_room(const oari_levels *l)
{
    return oari_stage_room(l->req) / (size_t)l->rails;
}

/* Returns where a rail's part of the current chunk lies. */
static size_t rail_bounce(const oari_levels *l, int rail)
{
    return l->chunks % 3 * oari_stage_room(l->req) +
           (size_t)rail * rail_room(l);
}

/* Returns how many of [at, at + count) are in piece `index` of a share. */
static size_t overlap(const oari_levels *l, size_t at, size_t count,
                      size_t index, size_t *skip)
{
    size_t begin = index * rail_room(l), end = begin + rail_room(l);
    size_t low = at > begin ? at : begin;
    size_t high = at + count < end ? at + count : end;

    *skip = low - at;
    return low < high ? high - low : 0;
}

/* ---- collect ------------------------------------------------------------- */

static void collect_staged(oari_levels *l)
{
    size_t room = rail_room(l), longest = 0, count;

    for (int rail = 0; rail < l->rails; rail++)
        if (oari_rail_share(l, rail) > longest)
            longest = oari_rail_share(l, rail);
    for (size_t i = 0; i < (longest + room - 1) / room; i++, l->chunks++) {
        for (int rail = 0; rail < l->rails; rail++) {
            oari_rail_walk w = oari_rail_begin();

            while (oari_rail_next(l, rail, &w)) {
                size_t skip, n = overlap(l, w.now.at, w.now.count, i, &skip);
                size_t in = w.now.at + skip - i * room;

                if (n != 0)
                    oari_plan_copy(l->plan, OARI_BOUNCE,
                                   rail_bounce(l, rail) + in, OARI_IN, -1,
                                   w.now.first + skip, n);
            }
        }
        oari_plan_sync(l->plan, 0, 0);
        if (!oari_is_on_rail(l))
            continue;
        oari_chunk_first(oari_rail_share(l, l->local), room, i, &count);
        oari_plan_reduce(l->plan, OARI_WORK, i * room, OARI_BOUNCE,
                         rail_bounce(l, l->local), count);
    }
}

void oari_host_collect(oari_levels *l)
{
    oari_rail_walk w = oari_rail_begin();

    if (oari_is_on_rail(l) &&
        l->plan->work_count < oari_rail_share(l, l->local))
        l->plan->work_count = oari_rail_share(l, l->local);
    if (l->staged) {
        collect_staged(l);
        return;
    }
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

/* ---- deliver ------------------------------------------------------------- */

/* A run that a rail delivers: from where, and to where in whose output. */
typedef struct delivery {
    oari_location from;
    size_t at, to_at, count; /* at: among the rail's deliveries */
    int to;                  /* a shm rank; -1: all */
} delivery;

/* Whether a run of a walk is delivered; *at is where the next one begins. */
static int is_delivered(const oari_levels *l, const oari_rail_walk *w,
                        size_t *at, delivery *d)
{
    const oari_plan_request *req = l->req;
    int here = w->host == l->host;

    *d = (delivery){
        { OARI_OUT, w->now.first }, *at, w->now.first, w->now.count, -1
    };
    if (req->kind == OAR_COLL_REDUCE) {
        d->from = (oari_location){ OARI_GATHER, 0 };
        d->to = oari_local_of(req, req->root);
    }
    if (req->kind == OAR_COLL_REDUCE_SCATTER) {
        d->from = (oari_location){ OARI_GATHER, *at };
        d->to_at = 0;
        d->to = w->local;
    }
    if ((req->kind == OAR_COLL_REDUCE_SCATTER && !here) ||
        (req->kind == OAR_COLL_ALL_GATHER && here))
        return 0;
    *at += w->now.count;
    return 1;
}

/* Copies one rail's deliveries in a piece: into its bounce buffer if it is
 * mine, else out of it. */
static void deliver_piece(const oari_levels *l, int rail, size_t index)
{
    oari_rail_walk w = oari_rail_begin();
    size_t at = 0;
    delivery d;

    while (oari_rail_next(l, rail, &w)) {
        size_t skip, count, bounce;
        if (!is_delivered(l, &w, &at, &d) ||
            (count = overlap(l, d.at, d.count, index, &skip)) == 0)
            continue;
        bounce = rail_bounce(l, rail) + d.at + skip - index * rail_room(l);
        if (rail == l->local)
            oari_plan_copy(l->plan, OARI_BOUNCE, bounce, d.from.buffer, -1,
                           d.from.at + skip, count);
        else if (d.to < 0 || d.to == l->local)
            oari_plan_copy(l->plan, OARI_OUT, d.to_at + skip, OARI_BOUNCE, rail,
                           bounce, count);
    }
}

static void deliver_staged(oari_levels *l)
{
    size_t room = rail_room(l), most = 0;
    delivery d;

    for (int rail = 0; rail < l->rails; rail++) {
        oari_rail_walk w = oari_rail_begin();
        size_t at = 0;
        while (oari_rail_next(l, rail, &w))
            is_delivered(l, &w, &at, &d);
        most = at > most ? at : most;
    }
    for (size_t i = 0; i < (most + room - 1) / room; i++, l->chunks++) {
        if (oari_is_on_rail(l))
            deliver_piece(l, l->local, i);
        oari_plan_sync(l->plan, 0, 0);
        for (int rail = 0; rail < l->rails; rail++)
            if (rail != l->local)
                deliver_piece(l, rail, i);
    }
}

static void deliver_direct(const oari_levels *l)
{
    oari_rail_walk w = oari_rail_begin();
    size_t at = 0;
    delivery d;

    while (oari_is_on_rail(l) && oari_rail_next(l, l->local, &w)) {
        int some = is_delivered(l, &w, &at, &d);
        for (int i = 1; some && i < l->locals; i++) {
            int to = (l->local + i) % l->locals;
            if (d.to < 0 || d.to == to)
                oari_plan_copy_out(l->plan, to, d.to_at, d.from.buffer,
                                   d.from.at, d.count);
        }
    }
    if (l->locals > 1)
        oari_plan_sync(l->plan, 0, 0);
}

void oari_host_deliver(oari_levels *l)
{
    oari_rail_walk w = oari_rail_begin();
    size_t at = 0;
    delivery d;

    while (oari_is_on_rail(l) && oari_rail_next(l, l->local, &w))
        if (is_delivered(l, &w, &at, &d) && d.from.buffer != OARI_OUT &&
            d.to == l->local)
            oari_plan_copy(l->plan, OARI_OUT, d.to_at, d.from.buffer, -1,
                           d.from.at, d.count);
    if (l->staged)
        deliver_staged(l);
    else
        deliver_direct(l);
}

/* ---- inside a host, before anything crosses ------------------------------ */

static void gather_staged(oari_levels *l)
{
    oari_partition row = oari_partition_parts(l->req);
    size_t longest = 0, room = oari_stage_room(l->req), count, at;

    for (int i = 0; i < l->locals; i++) {
        count = oari_partition_count(&row, oari_rank_at(l->req, l->host, i));
        longest = count > longest ? count : longest;
    }
    for (size_t c = 0; c < (longest + room - 1) / room; c++, l->chunks++) {
        size_t bounce = l->chunks % 3 * room;
        at = oari_chunk_first(oari_partition_count(&row, l->req->rank), room, c,
                              &count);
        oari_plan_copy(l->plan, OARI_BOUNCE, bounce, OARI_IN, -1, at, count);
        oari_plan_sync(l->plan, 0, 0);
        for (int i = 0; i < l->locals; i++) {
            int r = oari_rank_at(l->req, l->host, i);
            at = oari_chunk_first(oari_partition_count(&row, r), room, c,
                                  &count);
            if (i != l->local)
                oari_plan_copy(l->plan, OARI_OUT,
                               oari_partition_first(&row, r) + at, OARI_BOUNCE,
                               i, bounce, count);
        }
    }
}

void oari_host_gather(oari_levels *l)
{
    oari_partition row = oari_partition_parts(l->req);

    for (int i = 0; i < l->locals; i++) {
        int r = oari_rank_at(l->req, l->host, i), mine = i == l->local;
        if (mine || !l->staged)
            oari_plan_copy(l->plan, OARI_OUT, oari_partition_first(&row, r),
                           OARI_IN, mine ? -1 : i, 0,
                           oari_partition_count(&row, r));
    }
    if (l->staged)
        gather_staged(l);
}

void oari_host_broadcast(oari_levels *l)
{
    oari_plan_request here = *l->req; /* of this host alone */

    here.rank = l->local;
    here.ranks = l->locals;
    here.root = oari_local_of(l->req, l->req->root);
    here.at = NULL;
    if (l->staged)
        oari_plan_staged_after_sync(&here, l->plan);
    else if (l->locals > 1) {
        if (l->local != here.root)
            oari_plan_copy(l->plan, OARI_OUT, 0, OARI_IN, here.root, 0,
                           here.count);
        oari_plan_sync(l->plan, 0, 0);
    }
}
