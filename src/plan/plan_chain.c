/* SPDX-License-Identifier: Apache-2.0 */
/* plan_chain: large broadcasts and reductions as a pipeline: root, the rank
 * after it, the rank after that, ... Every rank sends the buffer at most once,
 * in chunks, and passes each chunk on while the next one comes; so, once the
 * pipeline is full, all links are busy in one direction. It takes n-2 chunks
 * longer than one message of the whole would.
 *
 * reduce runs the other way: the last rank begins, and each adds its own to the
 * left of what comes. Every chunk is summed in the same order, root first.
 */
#include "plan/planners.h"

typedef struct chain {
    const oari_ask *ask;
    oari_circle circle;
    size_t size, chunks;
    int near, far; /* the rank towards root, and the one away from it */
} chain;

static chain make_chain(const oari_ask *ask, size_t element)
{
    chain h = { .ask = ask, .circle = oari_circle_from(ask, ask->root) };

    h.size = oari_chunk(ask, ask->count, element);
    if (h.size > ask->count && ask->count != 0)
        h.size = ask->count;
    h.chunks = (ask->count + h.size - 1) / h.size;
    h.near = oari_circle_rank(&h.circle, h.circle.me - 1);
    h.far = oari_circle_rank(&h.circle, h.circle.me + 1);
    return h;
}

static int is_first(const chain *h)
{
    return h->circle.me == 0;
}

static int is_last(const chain *h)
{
    return h->circle.me == h->circle.n - 1;
}

static size_t chunk_of(const chain *h, size_t index, size_t *count)
{
    return oari_piece(h->ask->count, h->size, index, count);
}

/* ---- broadcast ----------------------------------------------------------- */

static void pass_on(const chain *h, oari_plan *plan, size_t index)
{
    size_t count, at = chunk_of(h, index, &count);

    if (!is_last(h))
        oari_plan_send(plan, h->far, is_first(h) ? OARI_IN : OARI_OUT, at,
                       count);
}

static void take_in(const chain *h, oari_plan *plan, size_t index)
{
    size_t count, at = chunk_of(h, index, &count);

    if (!is_first(h))
        oari_plan_recv(plan, h->near, OARI_OUT, at, count);
}

static void broadcast(const oari_ask *ask, oari_plan *plan)
{
    chain h = make_chain(ask, ask->element);
    int posted[OARI_WINDOW] = { 0 };

    for (size_t i = 0; i < h.chunks + OARI_WINDOW; i++) {
        if (i >= OARI_WINDOW) {
            oari_plan_wait_until(plan, posted[i % OARI_WINDOW]);
            if (!is_first(&h))
                pass_on(&h, plan, i - OARI_WINDOW);
        }
        if (i < h.chunks) {
            take_in(&h, plan, i);
            if (is_first(&h))
                pass_on(&h, plan, i);
        }
        posted[i % OARI_WINDOW] = plan->posted;
    }
    oari_plan_wait(plan);
}

/* ---- reduce -------------------------------------------------------------- */

/* A place is used again only when what was sent from it has left: the window of
 * what comes, and as much again of what goes. */
enum { PLACES = 2 * OARI_WINDOW + 2 };

static oari_spot place_of(const chain *h, size_t index)
{
    return (oari_spot){ OARI_WORK, index % PLACES * h->size };
}

static void await_sum(const chain *h, oari_plan *plan, size_t index)
{
    size_t count;

    chunk_of(h, index, &count);
    if (!is_last(h))
        oari_plan_recv(plan, h->far, OARI_WORK, place_of(h, index).at, count);
}

static void add_mine(const chain *h, oari_plan *plan, size_t index)
{
    size_t count, at = chunk_of(h, index, &count);
    oari_spot mine = { OARI_IN, at }, nothing = { OARI_NOWHERE, 0 };
    oari_spot sum = is_last(h) ? nothing : place_of(h, index);
    oari_spot to =
        is_first(h) ? (oari_spot){ OARI_OUT, at } : place_of(h, index);

    if (is_last(h) && !is_first(h) && !h->ask->lift)
        to = mine; /* sent as it is */
    else
        oari_plan_combine(plan, to, mine, sum, is_first(h), count);
    if (!is_first(h))
        oari_plan_send(plan, h->near, to.where, to.at, count);
}

static void reduce(const oari_ask *ask, oari_plan *plan)
{
    chain h = make_chain(ask, ask->wide);
    int posted[OARI_WINDOW] = { 0 };

    if (ask->mean)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    plan->work_count = PLACES * h.size;
    for (size_t i = 0; i < h.chunks + OARI_WINDOW; i++) {
        if (i >= OARI_WINDOW) {
            oari_plan_wait_until(plan, posted[i % OARI_WINDOW]);
            add_mine(&h, plan, i - OARI_WINDOW);
        }
        if (i < h.chunks)
            await_sum(&h, plan, i);
        posted[i % OARI_WINDOW] = plan->posted;
    }
    oari_plan_wait(plan);
}

void oari_plan_chain(const oari_ask *ask, oari_plan *plan)
{
    if (ask->kind == OAR_COLL_REDUCE)
        reduce(ask, plan);
    else
        broadcast(ask, plan);
}
