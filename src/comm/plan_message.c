/* SPDX-License-Identifier: Apache-2.0 */
/* plan_message: collectives over a backend that only sends and receives.
 *
 * exchange: all_reduce as reduce-scatter by slices and all-gather. Rank r gets
 * slice r of everyone, combines the slices in the order of ranks, and sends the
 * result to everyone: 2 (n-1)/n of the buffer sent by each rank, in 2 (n-1)
 * messages. The order makes it bitwise equal to the memory plans.
 * binomial: broadcast down a binomial tree: ceil(log2 n) rounds.
 * dissemination: barrier: in round k, tell rank + 2^k and hear rank - 2^k.
 */
#include "comm/planners.h"

static void trade_factors(const oari_ask *ask, oari_plan *plan)
{
    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        oari_plan_recv(plan, peer, OARI_FACTOR, (size_t)peer, 1);
        oari_plan_send(plan, peer, OARI_FACTOR, (size_t)ask->rank, 1);
    }
    oari_plan_wait(plan);
}

static void scatter_slices(const oari_ask *ask, oari_plan *plan)
{
    size_t mine = oari_slice_count(ask->count, ask->ranks, ask->rank);

    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        size_t theirs = oari_slice_count(ask->count, ask->ranks, peer);
        if (mine != 0)
            oari_plan_recv(plan, peer, OARI_GATHER,
                           (size_t)peer * plan->slot_count, mine);
        if (theirs != 0)
            oari_plan_send(plan, peer, OARI_IN,
                           oari_slice_first(ask->count, ask->ranks, peer),
                           theirs);
    }
    oari_plan_copy(plan, OARI_GATHER, (size_t)ask->rank * plan->slot_count,
                   OARI_IN, -1,
                   oari_slice_first(ask->count, ask->ranks, ask->rank), mine);
    oari_plan_wait(plan);
}

static void gather_slices(const oari_ask *ask, oari_plan *plan)
{
    size_t first = oari_slice_first(ask->count, ask->ranks, ask->rank);
    size_t mine = oari_slice_count(ask->count, ask->ranks, ask->rank);

    for (int step = 1; step < ask->ranks; step++) {
        int peer = (ask->rank + step) % ask->ranks;
        size_t theirs = oari_slice_count(ask->count, ask->ranks, peer);
        if (theirs != 0)
            oari_plan_recv(plan, peer, OARI_OUT,
                           oari_slice_first(ask->count, ask->ranks, peer),
                           theirs);
        if (mine != 0)
            oari_plan_send(plan, peer, OARI_OUT, first, mine);
    }
    oari_plan_wait(plan);
}

void oari_plan_exchange(const oari_ask *ask, oari_plan *plan)
{
    size_t first = oari_slice_first(ask->count, ask->ranks, ask->rank);
    size_t mine = oari_slice_count(ask->count, ask->ranks, ask->rank);

    plan->slot_count = oari_slice_count(ask->count, ask->ranks, 0);
    if (ask->weighted)
        trade_factors(ask, plan);
    scatter_slices(ask, plan);
    oari_plan_reduce(plan, OARI_OUT, first, OARI_GATHER, 0, 0, mine);
    gather_slices(ask, plan);
}

void oari_plan_binomial(const oari_ask *ask, oari_plan *plan)
{
    int n = ask->ranks, me = (ask->rank - ask->root + n) % n, bit = 1;

    while (bit < n && (me & bit) == 0)
        bit <<= 1;
    if (me != 0) {
        oari_plan_recv(plan, (me - bit + ask->root) % n, OARI_OUT, 0,
                       ask->count);
        oari_plan_wait(plan);
    }
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (me + bit < n)
            oari_plan_send(plan, (me + bit + ask->root) % n, OARI_OUT, 0,
                           ask->count);
    oari_plan_wait(plan);
}

void oari_plan_dissemination(const oari_ask *ask, oari_plan *plan)
{
    int n = ask->ranks;

    for (int bit = 1; bit < n; bit <<= 1) {
        oari_plan_recv(plan, (ask->rank - bit % n + n) % n, OARI_OUT, 0, 0);
        oari_plan_send(plan, (ask->rank + bit) % n, OARI_OUT, 0, 0);
        oari_plan_wait(plan);
    }
}
