/* SPDX-License-Identifier: Apache-2.0 */
/* plan: the list of steps and the table of planners. */
#include "comm/plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "comm/planners.h"

const oari_algorithm oari_algorithms[] = {
    { "line", OAR_COLL_BARRIER, 1, oari_plan_line_barrier },
    { "line", OAR_COLL_BROADCAST, 1, oari_plan_line_broadcast },
    { "line", OAR_COLL_ALL_REDUCE, 1, oari_plan_line_all_reduce },
    { "direct", OAR_COLL_BROADCAST, 1, oari_plan_direct_broadcast },
    { "direct", OAR_COLL_ALL_REDUCE, 1, oari_plan_direct_all_reduce },
    { "staged", OAR_COLL_BROADCAST, 1, oari_plan_staged_broadcast },
    { "staged", OAR_COLL_ALL_REDUCE, 1, oari_plan_staged_all_reduce },
    { "dissemination", OAR_COLL_BARRIER, 0, oari_plan_dissemination },
    { "binomial", OAR_COLL_BROADCAST, 0, oari_plan_binomial },
    { "exchange", OAR_COLL_ALL_REDUCE, 0, oari_plan_exchange },
    { NULL, OAR_COLL_COUNT, 0, NULL },
};

/* A line has room only for so much; nothing may force more into it. */
static int fits(const oari_algorithm *a, const oari_ask *ask)
{
    return a->kind == ask->kind &&
           (strcmp(a->name, "line") != 0 ||
            ask->count <= ask->small_bytes / ask->element);
}

const oari_algorithm *oari_choose(const oari_ask *ask, int over_memory,
                                  const char *name)
{
    const oari_algorithm *best = NULL;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        if (!fits(a, ask) || a->over_memory != over_memory)
            continue;
        if (name != NULL && strcmp(a->name, name) == 0)
            return a;
        if (best == NULL)
            best = a;
    }
    if (best == NULL)
        oari_fail(OAR_E_UNSUPPORTED, "%s of %zu elements has no algorithm",
                  oar_coll_name(ask->kind), ask->count);
    return best;
}

int oari_algorithm_kind(const char *name)
{
    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        if (strcmp(a->name, name) == 0)
            return a->over_memory ? OARI_OVER_MEMORY : OARI_OVER_MESSAGES;
    return OARI_NO_ALGORITHM;
}

oar_status oari_plan_make(const oari_algorithm *algorithm, const oari_ask *ask,
                          oari_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->algorithm = algorithm->name;
    algorithm->plan(ask, plan);
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

static int grow(oari_plan *plan)
{
    int room = plan->room != 0 ? 2 * plan->room : 16;
    oari_step *step = oari_alloc((size_t)room, sizeof *step);

    if (step == NULL) {
        plan->failed = 1;
        return 0;
    }
    if (plan->steps != 0)
        memcpy(step, plan->step, (size_t)plan->steps * sizeof *step);
    oari_free(plan->step);
    plan->step = step;
    plan->room = room;
    return 1;
}

static void append(oari_plan *plan, oari_step step)
{
    if (plan->failed || (plan->steps == plan->room && !grow(plan)))
        return;
    plan->step[plan->steps++] = step;
}

void oari_plan_meet(oari_plan *plan, size_t from_at, size_t count)
{
    append(plan, (oari_step){ .kind = OARI_MEET,
                              .peer = -1,
                              .from = OARI_IN,
                              .from_at = from_at,
                              .count = count });
}

int oari_plan_unless_reachable(oari_plan *plan, int peer)
{
    append(plan, (oari_step){ .kind = OARI_UNLESS_REACHABLE, .peer = peer });
    return plan->steps - 1;
}

void oari_plan_land(oari_plan *plan, int jump)
{
    if (!plan->failed)
        plan->step[jump].jump = plan->steps;
}

void oari_plan_end(oari_plan *plan)
{
    append(plan, (oari_step){ .kind = OARI_END, .peer = -1 });
}

void oari_plan_copy(oari_plan *plan, oari_where to, size_t to_at,
                    oari_where from, int peer, size_t from_at, size_t count)
{
    if (count == 0)
        return;
    append(plan, (oari_step){ .kind = OARI_COPY,
                              .to = to,
                              .from = from,
                              .peer = peer,
                              .to_at = to_at,
                              .from_at = from_at,
                              .count = count });
}

void oari_plan_reduce(oari_plan *plan, oari_where to, size_t to_at,
                      oari_where from, size_t from_at, size_t out_at,
                      size_t count)
{
    if (count == 0)
        return;
    append(plan, (oari_step){ .kind = OARI_REDUCE,
                              .to = to,
                              .from = from,
                              .peer = -1,
                              .to_at = to_at,
                              .from_at = from_at,
                              .out_at = out_at,
                              .count = count });
}

void oari_plan_send(oari_plan *plan, int peer, oari_where from, size_t from_at,
                    size_t count)
{
    append(plan, (oari_step){ .kind = OARI_SEND,
                              .from = from,
                              .peer = peer,
                              .from_at = from_at,
                              .count = count });
}

void oari_plan_recv(oari_plan *plan, int peer, oari_where to, size_t to_at,
                    size_t count)
{
    append(plan, (oari_step){ .kind = OARI_RECV,
                              .to = to,
                              .peer = peer,
                              .to_at = to_at,
                              .count = count });
}

void oari_plan_wait(oari_plan *plan)
{
    append(plan, (oari_step){ .kind = OARI_WAIT, .peer = -1 });
}

/* ---- slices -------------------------------------------------------------- */

size_t oari_slice_first(size_t count, int ranks, int r)
{
    size_t blocks = (count + 63) / 64, n = (size_t)ranks, k = (size_t)r;
    size_t first = blocks / n * k + (k < blocks % n ? k : blocks % n);

    return first * 64 < count ? first * 64 : count;
}

size_t oari_slice_count(size_t count, int ranks, int r)
{
    return oari_slice_first(count, ranks, r + 1) -
           oari_slice_first(count, ranks, r);
}
