/* SPDX-License-Identifier: Apache-2.0 */
/* plan_chain: large broadcasts and reductions as a pipeline: root, the rank
 * after it, the rank after that, ... Every rank sends the buffer at most once,
 * in chunks, and passes each chunk on while it receives the next; so, once the
 * pipeline is full, all links are busy in one direction. It takes n-2 chunks
 * longer than one message of the whole buffer would.
 *
 * reduce runs the other way: the last rank begins, and each rank adds its own
 * contribution to the left of what it receives. Every chunk is summed in the
 * same order, root first.
 */
#include "plan/planners.h"

typedef struct chain {
    size_t size, chunks;
    int first, last; /* whether I am root, or the end of the chain */
    int near, far;   /* the rank towards root, and the one away from it */
} chain;

static chain make_chain(const oari_plan_request *req, size_t element)
{
    oari_rank_ring ring = oari_ring_from(req, req->root);
    chain h = { .size = oari_chunk_size(req, req->count, element),
                .first = ring.me == 0,
                .last = ring.me == ring.n - 1,
                .near = oari_ring_rank(&ring, ring.me - 1),
                .far = oari_ring_rank(&ring, ring.me + 1) };

    if (h.size > req->count && req->count != 0)
        h.size = req->count;
    h.chunks = (req->count + h.size - 1) / h.size;
    return h;
}

/* Root sends chunk i while the others receive it; they send it on when it has
 * arrived. */
static void plan_broadcast(const oari_plan_request *req, oari_plan *plan)
{
    chain h = make_chain(req, req->element);
    size_t delay = h.first ? 0 : OARI_WINDOW, count, at;
    int posted[OARI_WINDOW] = { 0 };

    for (size_t i = 0; i < h.chunks + OARI_WINDOW; i++) {
        if (i >= OARI_WINDOW)
            oari_plan_wait_until(plan, posted[i % OARI_WINDOW]);
        if (!h.last && i >= delay && i < h.chunks + delay) {
            at = oari_chunk_first(req->count, h.size, i - delay, &count);
            oari_plan_send(plan, h.far, h.first ? OARI_IN : OARI_OUT, at,
                           count);
        }
        if (!h.first && i < h.chunks) {
            at = oari_chunk_first(req->count, h.size, i, &count);
            oari_plan_recv(plan, h.near, OARI_OUT, at, count);
        }
        posted[i % OARI_WINDOW] = plan->posted;
    }
    oari_plan_wait(plan);
}

/* ---- reduce -------------------------------------------------------------- */

/* A place is used again only when what was sent from it has left: there are
 * places for the window of what arrives, and as many for what is sent. */
enum { PLACES = 2 * OARI_WINDOW + 2 };

static void add_and_send(const oari_plan_request *req, const chain *h,
                         oari_plan *plan, size_t index)
{
    size_t count, at = oari_chunk_first(req->count, h->size, index, &count);
    oari_location mine = { OARI_IN, at }, nothing = { OARI_NOWHERE, 0 };
    oari_location sum = { OARI_WORK, index % PLACES * h->size };
    oari_location to = h->first ? (oari_location){ OARI_OUT, at } : sum;

    if (h->last && !h->first && !req->promote)
        to = mine; /* sent as it is */
    else
        oari_plan_combine(plan, to, mine, h->last ? nothing : sum, h->first,
                          count);
    if (!h->first)
        oari_plan_send(plan, h->near, to.buffer, to.at, count);
}

static void plan_reduce(const oari_plan_request *req, oari_plan *plan)
{
    chain h = make_chain(req, req->wide);
    int posted[OARI_WINDOW] = { 0 };

    if (req->mean)
        oari_bruck_words(req, plan, OARI_FACTOR);
    plan->work_count = PLACES * h.size;
    for (size_t i = 0; i < h.chunks + OARI_WINDOW; i++) {
        if (i >= OARI_WINDOW) {
            oari_plan_wait_until(plan, posted[i % OARI_WINDOW]);
            add_and_send(req, &h, plan, i - OARI_WINDOW);
        }
        if (i < h.chunks && !h.last) {
            size_t count;
            oari_chunk_first(req->count, h.size, i, &count);
            oari_plan_recv(plan, h.far, OARI_WORK, i % PLACES * h.size, count);
        }
        posted[i % OARI_WINDOW] = plan->posted;
    }
    oari_plan_wait(plan);
}

void oari_plan_chain(const oari_plan_request *req, oari_plan *plan)
{
    if (req->kind == OAR_COLL_REDUCE)
        plan_reduce(req, plan);
    else
        plan_broadcast(req, plan);
}
