/* SPDX-License-Identifier: Apache-2.0 */
/* plan_direct: large operations over memory that every rank can reach. The
 * first sync point tells all ranks where all buffers are; then every rank works
 * on them in place; the last sync point says that every rank has finished.
 *
 * If some buffer cannot be reached, the data goes through the slots if it fits,
 * else through the bounce buffers. Large inputs that are only copied may be
 * private: then the system copies them from process to process, once. What it
 * refuses to copy shows at the last sync point, and all is done once more,
 * through the bounce buffers.
 *
 * all_reduce, reduce: rank r combines slice r of all inputs and stores it
 * straight into all outputs, or root's: not one copy.
 * reduce_scatter: rank r combines its part of all inputs.
 * gather: every rank stores its part into root's output; if that is private,
 * root fetches the parts. In all other collectives each rank fetches what it
 * needs: one copy.
 */
#include "plan/planners.h"

static void reduce_slice(const oari_plan_request *req, oari_plan *plan)
{
    size_t first = oari_slice_first(req->count, req->ranks, req->rank);
    oari_step step = { .kind = OARI_REDUCE,
                       .to = req->root < 0 ? OARI_ALL_OUT : OARI_OUT,
                       .from = OARI_IN,
                       .peer = -1,
                       .to_peer = req->root,
                       .to_at = first,
                       .from_at = first,
                       .count = oari_slice_count(req->count, req->ranks,
                                                 req->rank) };

    if (step.count != 0)
        oari_plan_step(plan, step);
}

/* Fetches every rank's part; mine first, so that not all ranks read from the
 * same one at once. */
static void fetch_parts(const oari_plan_request *req, oari_plan *plan)
{
    int all_to_all = req->kind == OAR_COLL_ALL_TO_ALL;
    oari_partition out = { req->ranks, req->count, 0,
                           all_to_all ? req->out_at : req->at };

    for (int i = 0; i < req->ranks; i++) {
        int r = (req->rank + i) % req->ranks;
        size_t at = !all_to_all             ? 0
                    : req->their_at != NULL ? req->their_at[r]
                                            : (size_t)req->rank * req->count;
        oari_plan_copy(plan, OARI_OUT, oari_partition_first(&out, r), OARI_IN,
                       r, at, oari_partition_count(&out, r));
    }
}

static void work_in_place(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    size_t first = oari_partition_first(&row, req->rank);
    size_t count = oari_partition_count(&row, req->rank);

    switch (req->kind) {
    case OAR_COLL_BROADCAST:
        if (req->rank != req->root)
            oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, req->root, 0,
                           req->count);
        break;
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE: reduce_slice(req, plan); break;
    case OAR_COLL_REDUCE_SCATTER:
        oari_plan_reduce(plan, OARI_OUT, 0, OARI_IN, first, count);
        break;
    case OAR_COLL_GATHER:
        oari_plan_copy_out(plan, req->root, first, OARI_IN, 0, count);
        break;
    case OAR_COLL_SCATTER:
        oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, req->root, first, count);
        break;
    default: fetch_parts(req, plan); break;
    }
}

static int writes_to_peers(const oari_plan_request *req)
{
    return req->kind == OAR_COLL_ALL_REDUCE || req->kind == OAR_COLL_REDUCE ||
           req->kind == OAR_COLL_GATHER;
}

/* Returns the bytes of the longest part that a rank copies from another: all
 * ranks know it. */
static size_t longest_copy(const oari_plan_request *req)
{
    oari_partition row = oari_partition_parts(req);

    if (req->kind == OAR_COLL_ALL_TO_ALL && req->ragged)
        return req->longest_part * req->element;
    return oari_partition_longest(&row) * req->element;
}

/* Whether ranks copy parts of their own from others. A broadcast is as fast
 * through a bounce buffer, which one rank fills while the others read it. */
static int copies_parts(oar_coll kind)
{
    return kind == OAR_COLL_GATHER || kind == OAR_COLL_SCATTER ||
           kind == OAR_COLL_ALL_GATHER || kind == OAR_COLL_ALL_TO_ALL;
}

static int may_fetch(const oari_plan_request *req)
{
    return copies_parts(req->kind) && longest_copy(req) >= req->fetch_bytes;
}

/* Appends a step that jumps unless the inputs can be used. */
static int unless_inputs(const oari_plan_request *req, oari_plan *plan,
                         int peer)
{
    return may_fetch(req) ? oari_plan_unless_readable(plan, peer)
                          : oari_plan_unless_reachable(plan, OARI_IN, peer);
}

/* Appends the last sync point, and the end if nothing is missing. Returns the
 * step that jumps if something is, or -1. */
static int finish(oari_plan *plan, int fetches)
{
    int missing = -1;

    oari_plan_sync(plan, 0, 0);
    if (fetches)
        missing = oari_plan_unless_copied(plan);
    oari_plan_end(plan);
    return missing;
}

void oari_plan_direct_after_sync(const oari_plan_request *req, oari_plan *plan)
{
    int gather = req->kind == OAR_COLL_GATHER, fetches = may_fetch(req);
    int in = -1, out = -1, missing;
    int root_sends =
        req->kind == OAR_COLL_BROADCAST || req->kind == OAR_COLL_SCATTER;
    int ragged = req->ragged && req->kind == OAR_COLL_ALL_TO_ALL;

    if (!gather)
        in = unless_inputs(req, plan, root_sends ? req->root : -1);
    if (writes_to_peers(req))
        out = oari_plan_unless_reachable(plan, OARI_OUT, req->root);
    work_in_place(req, plan);
    missing = finish(plan, fetches && !gather);
    if (out >= 0)
        oari_plan_jump_here(plan, out);
    if (gather) { /* root's output is private: root fetches the parts */
        in = unless_inputs(req, plan, -1);
        if (req->rank == req->root)
            fetch_parts(req, plan);
        missing = finish(plan, fetches);
    }
    oari_plan_jump_here(plan, in);
    if (missing >= 0)
        oari_plan_jump_here(plan, missing);
    if (!ragged && oari_slot_count(req) <= req->slot_bytes / req->element)
        oari_plan_line(req, plan);
    else
        oari_plan_staged_after_sync(req, plan);
}

void oari_plan_direct(const oari_plan_request *req, oari_plan *plan)
{
    plan->shows = OARI_SHOWS_IN;
    if (writes_to_peers(req) && (req->root < 0 || req->root == req->rank))
        plan->shows |= OARI_SHOWS_OUT;
    if (may_fetch(req))
        plan->shows |= OARI_SHOWS_PRIVATE;
    oari_plan_sync(plan, 0, 0);
    oari_plan_direct_after_sync(req, plan);
}
