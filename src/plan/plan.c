/* SPDX-License-Identifier: Apache-2.0 */
/* plan: the list of steps, and how rows and messages are divided. */
#include "plan/plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/vec.h"

enum {
    BLOCK = 64,            /* elements */
    CHUNK_LEAST = 32 << 10 /* bytes: cutting a shorter message does not pay */
};

oar_status oari_plan_make(const char *name, oari_planner planner,
                          const oari_plan_request *req, oari_plan *plan)
{
    *plan = (oari_plan){ .algorithm = name,
                         .step = plan->step,
                         .room = plan->room };
    planner(req, plan);
    oari_plan_end(plan);
    if (plan->failed) {
        oari_plan_clear(plan);
        return OAR_E_NOMEM;
    }
    return OAR_OK;
}

void oari_plan_clear(oari_plan *plan)
{
    oari_free(plan->step);
    memset(plan, 0, sizeof *plan);
}

/* ---- appending ----------------------------------------------------------- */

void oari_plan_step(oari_plan *plan, oari_step step)
{
    if (plan->failed)
        return;
    if (oari_array_reserve(plan->step, plan->steps, plan->room, 1) != OAR_OK) {
        plan->failed = 1;
        return;
    }
    plan->step[plan->steps++] = step;
}

void oari_plan_sync(oari_plan *plan, size_t from_at, size_t count)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_SYNC,
                                      .peer = -1,
                                      .from = OARI_IN,
                                      .from_at = from_at,
                                      .count = count });
}

void oari_plan_sync_with(oari_plan *plan, int peer, size_t count)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_SYNC,
                                      .peer = peer,
                                      .from = OARI_IN,
                                      .count = count });
}

void oari_plan_sync_table(oari_plan *plan)
{
    oari_plan_step(
        plan, (oari_step){ .kind = OARI_SYNC, .peer = -1, .from = OARI_TABLE });
}

int oari_plan_unless_reachable(oari_plan *plan, oari_buffer what, int peer)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_UNLESS_REACHABLE,
                                      .from = what,
                                      .peer = peer });
    return plan->steps - 1;
}

int oari_plan_unless_readable(oari_plan *plan, int peer)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_UNLESS_READABLE,
                                      .from = OARI_IN,
                                      .peer = peer });
    return plan->steps - 1;
}

int oari_plan_unless_copied(oari_plan *plan)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_UNLESS_COPIED, .peer = -1 });
    return plan->steps - 1;
}

void oari_plan_jump_here(oari_plan *plan, int jump)
{
    if (!plan->failed)
        plan->step[jump].jump = plan->steps;
}

void oari_plan_end(oari_plan *plan)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_END, .peer = -1 });
}

void oari_plan_replan(oari_plan *plan)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_REPLAN, .peer = -1 });
}

void oari_plan_copy(oari_plan *plan, oari_buffer to, size_t to_at,
                    oari_buffer from, int peer, size_t from_at, size_t count)
{
    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_COPY,
                                          .to = to,
                                          .from = from,
                                          .peer = peer,
                                          .to_peer = -1,
                                          .to_at = to_at,
                                          .from_at = from_at,
                                          .count = count });
}

void oari_plan_copy_out(oari_plan *plan, int to_peer, size_t to_at,
                        oari_buffer from, size_t from_at, size_t count)
{
    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_COPY,
                                          .to = OARI_OUT,
                                          .from = from,
                                          .peer = -1,
                                          .to_peer = to_peer,
                                          .to_at = to_at,
                                          .from_at = from_at,
                                          .count = count });
}

void oari_plan_reduce(oari_plan *plan, oari_buffer to, size_t to_at,
                      oari_buffer from, size_t from_at, size_t count)
{
    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_REDUCE,
                                          .to = to,
                                          .from = from,
                                          .peer = -1,
                                          .to_peer = -1,
                                          .to_at = to_at,
                                          .from_at = from_at,
                                          .count = count });
}

void oari_plan_combine(oari_plan *plan, oari_location to, oari_location left,
                       oari_location right, int finish, size_t count)
{
    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_COMBINE,
                                          .to = to.buffer,
                                          .from = left.buffer,
                                          .with = right.buffer,
                                          .peer = -1,
                                          .to_peer = -1,
                                          .finish = finish,
                                          .to_at = to.at,
                                          .from_at = left.at,
                                          .with_at = right.at,
                                          .count = count });
}

/* ---- messages ------------------------------------------------------------ */

static void append_message(oari_plan *plan, oari_step step)
{
    plan->posted++;
    if (plan->posted - plan->waited > plan->max_in_flight)
        plan->max_in_flight = plan->posted - plan->waited;
    oari_plan_step(plan, step);
}

void oari_plan_send(oari_plan *plan, int peer, oari_buffer from, size_t from_at,
                    size_t count)
{
    if (count != 0)
        append_message(plan, (oari_step){ .kind = OARI_SEND,
                                          .from = from,
                                          .peer = peer,
                                          .to_peer = -1,
                                          .from_at = from_at,
                                          .count = count });
}

void oari_plan_recv(oari_plan *plan, int peer, oari_buffer to, size_t to_at,
                    size_t count)
{
    if (count != 0)
        append_message(plan, (oari_step){ .kind = OARI_RECV,
                                          .to = to,
                                          .peer = peer,
                                          .to_peer = -1,
                                          .to_at = to_at,
                                          .count = count });
}

void oari_plan_signal(oari_plan *plan, int to, int from)
{
    append_message(plan, (oari_step){ .kind = OARI_RECV,
                                      .to = OARI_NOWHERE,
                                      .peer = from,
                                      .to_peer = -1 });
    append_message(plan, (oari_step){ .kind = OARI_SEND,
                                      .from = OARI_NOWHERE,
                                      .peer = to,
                                      .to_peer = -1 });
}

void oari_plan_wait_until(oari_plan *plan, int posted)
{
    if (posted <= plan->waited)
        return;
    oari_plan_step(plan,
                   (oari_step){ .kind = OARI_WAIT,
                                .peer = -1,
                                .count = (size_t)(posted - plan->waited) });
    plan->waited = posted;
}

void oari_plan_wait(oari_plan *plan)
{
    oari_plan_wait_until(plan, plan->posted);
}

/* ---- partitions ---------------------------------------------------------- */

size_t oari_slice_first(size_t count, int ranks, int r)
{
    size_t blocks = (count + BLOCK - 1) / BLOCK;
    size_t n = (size_t)ranks, k = (size_t)r;
    size_t first = blocks / n * k + (k < blocks % n ? k : blocks % n);

    return first * BLOCK < count ? first * BLOCK : count;
}

size_t oari_slice_count(size_t count, int ranks, int r)
{
    return oari_slice_first(count, ranks, r + 1) -
           oari_slice_first(count, ranks, r);
}

oari_partition oari_partition_slices(size_t count, int n)
{
    return (oari_partition){ .n = n, .count = count, .slices = 1 };
}

oari_partition oari_partition_parts(const oari_plan_request *req)
{
    return (
        oari_partition){ .n = req->ranks, .count = req->count, .at = req->at };
}

size_t oari_partition_first(const oari_partition *p, int r)
{
    if (p->at != NULL)
        return p->at[r];
    if (p->slices)
        return oari_slice_first(p->count, p->n, r);
    return (size_t)r * p->count;
}

size_t oari_partition_count(const oari_partition *p, int r)
{
    if (p->at != NULL)
        return p->at[r + 1] - p->at[r];
    return p->slices ? oari_slice_count(p->count, p->n, r) : p->count;
}

size_t oari_partition_longest(const oari_partition *p)
{
    size_t longest = 0;

    if (p->at == NULL)
        return oari_partition_count(p, 0);
    for (int r = 0; r < p->n; r++)
        if (oari_partition_count(p, r) > longest)
            longest = oari_partition_count(p, r);
    return longest;
}

size_t oari_chunk_first(size_t count, size_t size, size_t index, size_t *got)
{
    size_t first = index * size < count ? index * size : count;
    size_t left = count - first;

    *got = left < size ? left : size;
    return first;
}

size_t oari_chunk_size(const oari_plan_request *req, size_t count,
                       size_t element)
{
    size_t chunk = req->chunk_bytes / element / BLOCK * BLOCK;
    size_t quarter = (count / OARI_WINDOW + BLOCK - 1) / BLOCK * BLOCK;
    size_t least = CHUNK_LEAST / element;

    if (quarter < chunk)
        chunk = quarter > least ? quarter : least < chunk ? least : chunk;
    return chunk != 0 ? chunk : BLOCK;
}

size_t oari_stage_room(const oari_plan_request *req)
{
    size_t room = req->stage_bytes / req->element / BLOCK * BLOCK;

    return room != 0 ? room : BLOCK;
}

/* ---- rings of ranks ------------------------------------------------------ */

oari_rank_ring oari_ring_all(const oari_plan_request *req)
{
    return (oari_rank_ring){ .n = req->ranks, .me = req->rank };
}

oari_rank_ring oari_ring_from(const oari_plan_request *req, int first)
{
    int n = req->ranks;

    return (oari_rank_ring){ .n = n,
                             .me = (req->rank - first + n) % n,
                             .first = first };
}

int oari_ring_wrap(const oari_rank_ring *ring, int member)
{
    return (member % ring->n + ring->n) % ring->n;
}

int oari_ring_rank(const oari_rank_ring *ring, int member)
{
    int index = oari_ring_wrap(ring, member);

    return ring->rank != NULL ? ring->rank[index]
                              : (index + ring->first) % ring->n;
}
