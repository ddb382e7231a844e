/* SPDX-License-Identifier: Apache-2.0 */
/* plan: the list of steps, and how rows and messages are cut. */
#include "plan/plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/vec.h"

enum {
    BLOCK = 64,            /* elements */
    CHUNK_LEAST = 32 << 10 /* bytes: what is shorter is not worth cutting */
};

oar_status oari_plan_make(const char *name, oari_planner planner,
                          const oari_ask *ask, oari_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->algorithm = name;
    planner(ask, plan);
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

void oari_plan_meet(oari_plan *plan, size_t from_at, size_t count)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_MEET,
                                      .peer = -1,
                                      .from = OARI_IN,
                                      .from_at = from_at,
                                      .count = count });
}

void oari_plan_meet_table(oari_plan *plan)
{
    oari_plan_step(
        plan, (oari_step){ .kind = OARI_MEET, .peer = -1, .from = OARI_TABLE });
}

int oari_plan_unless_reachable(oari_plan *plan, oari_where what, int peer)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_UNLESS_REACHABLE,
                                      .from = what,
                                      .peer = peer });
    return plan->steps - 1;
}

void oari_plan_land(oari_plan *plan, int jump)
{
    if (!plan->failed)
        plan->step[jump].jump = plan->steps;
}

void oari_plan_end(oari_plan *plan)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_END, .peer = -1 });
}

void oari_plan_settle(oari_plan *plan)
{
    oari_plan_step(plan, (oari_step){ .kind = OARI_SETTLE, .peer = -1 });
}

void oari_plan_copy(oari_plan *plan, oari_where to, size_t to_at,
                    oari_where from, int peer, size_t from_at, size_t count)
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
                        oari_where from, size_t from_at, size_t count)
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

void oari_plan_reduce(oari_plan *plan, oari_where to, size_t to_at,
                      oari_where from, size_t from_at, size_t count)
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

void oari_plan_combine(oari_plan *plan, oari_spot to, oari_spot left,
                       oari_spot right, int finish, size_t count)
{
    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_COMBINE,
                                          .to = to.where,
                                          .from = left.where,
                                          .with = right.where,
                                          .peer = -1,
                                          .to_peer = -1,
                                          .finish = finish,
                                          .to_at = to.at,
                                          .from_at = left.at,
                                          .with_at = right.at,
                                          .count = count });
}

/* ---- messages ------------------------------------------------------------ */

static void post(oari_plan *plan, oari_step step)
{
    plan->posted++;
    if (plan->posted - plan->waited > plan->most)
        plan->most = plan->posted - plan->waited;
    oari_plan_step(plan, step);
}

void oari_plan_send(oari_plan *plan, int peer, oari_where from, size_t from_at,
                    size_t count)
{
    if (count != 0)
        post(plan, (oari_step){ .kind = OARI_SEND,
                                .from = from,
                                .peer = peer,
                                .to_peer = -1,
                                .from_at = from_at,
                                .count = count });
}

void oari_plan_recv(oari_plan *plan, int peer, oari_where to, size_t to_at,
                    size_t count)
{
    if (count != 0)
        post(plan, (oari_step){ .kind = OARI_RECV,
                                .to = to,
                                .peer = peer,
                                .to_peer = -1,
                                .to_at = to_at,
                                .count = count });
}

void oari_plan_signal(oari_plan *plan, int to, int from)
{
    post(plan, (oari_step){ .kind = OARI_RECV,
                            .to = OARI_NOWHERE,
                            .peer = from,
                            .to_peer = -1 });
    post(plan, (oari_step){ .kind = OARI_SEND,
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

/* ---- cutting ------------------------------------------------------------- */

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

oari_cut oari_cut_slices(size_t count, int n)
{
    return (oari_cut){ .n = n, .count = count, .slices = 1 };
}

oari_cut oari_cut_parts(const oari_ask *ask)
{
    return (oari_cut){ .n = ask->ranks, .count = ask->count, .at = ask->at };
}

size_t oari_cut_first(const oari_cut *cut, int r)
{
    if (cut->at != NULL)
        return cut->at[r];
    if (cut->slices)
        return oari_slice_first(cut->count, cut->n, r);
    return (size_t)r * cut->count;
}

size_t oari_cut_count(const oari_cut *cut, int r)
{
    if (cut->at != NULL)
        return cut->at[r + 1] - cut->at[r];
    return cut->slices ? oari_slice_count(cut->count, cut->n, r) : cut->count;
}

size_t oari_cut_most(const oari_cut *cut)
{
    size_t most = 0;

    if (cut->at == NULL)
        return oari_cut_count(cut, 0);
    for (int r = 0; r < cut->n; r++)
        if (oari_cut_count(cut, r) > most)
            most = oari_cut_count(cut, r);
    return most;
}

size_t oari_piece(size_t count, size_t size, size_t index, size_t *got)
{
    size_t first = index * size < count ? index * size : count;
    size_t left = count - first;

    *got = left < size ? left : size;
    return first;
}

size_t oari_chunk(const oari_ask *ask, size_t count, size_t element)
{
    size_t chunk = ask->chunk_bytes / element / BLOCK * BLOCK;
    size_t quarter = (count / OARI_WINDOW + BLOCK - 1) / BLOCK * BLOCK;
    size_t least = CHUNK_LEAST / element;

    if (quarter < chunk)
        chunk = quarter > least ? quarter : least < chunk ? least : chunk;
    return chunk != 0 ? chunk : BLOCK;
}

/* ---- circles ------------------------------------------------------------- */

oari_circle oari_circle_all(const oari_ask *ask)
{
    return (oari_circle){ .n = ask->ranks, .me = ask->rank };
}

oari_circle oari_circle_from(const oari_ask *ask, int first)
{
    int n = ask->ranks;

    return (oari_circle){ .n = n,
                          .me = (ask->rank - first + n) % n,
                          .first = first };
}

int oari_circle_wrap(const oari_circle *c, int member)
{
    return (member % c->n + c->n) % c->n;
}

int oari_circle_rank(const oari_circle *c, int member)
{
    int index = oari_circle_wrap(c, member);

    return c->rank != NULL ? c->rank[index] : (index + c->first) % c->n;
}
