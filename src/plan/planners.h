/* SPDX-License-Identifier: Apache-2.0 */
/* plan/planners.h: every planner, for the table in choose.c. docs/algorithms.md
 * tells what each does and what it costs. */
#ifndef OARI_PLAN_PLANNERS_H
#define OARI_PLAN_PLANNERS_H

#include "plan/plan.h"

/* ---- over shared memory -------------------------------------------------- */

/* plan_line.c: the data fits into the slots. Plans one sync point. */
void oari_plan_line(const oari_plan_request *req, oari_plan *plan);
/* Returns the elements in the slot of the rank that publishes most. */
size_t oari_slot_count(const oari_plan_request *req);

/* plan_direct.c: on the peers' buffers in place; staged if one of them cannot
 * be reached. */
void oari_plan_direct(const oari_plan_request *req, oari_plan *plan);
/* Plans the rest of it, after a sync point that has shown the buffers. */
void oari_plan_direct_after_sync(const oari_plan_request *req, oari_plan *plan);

/* plan_staged.c: through bounce buffers, for private memory. */
void oari_plan_staged(const oari_plan_request *req, oari_plan *plan);
/* Plans the rest of it, after a first sync point. */
void oari_plan_staged_after_sync(const oari_plan_request *req, oari_plan *plan);

/* plan_sizes.c: not every rank knows all sizes, so ranks exchange them first.
 */
void oari_plan_sizes(const oari_plan_request *req, oari_plan *plan);
void oari_plan_size_messages(const oari_plan_request *req, oari_plan *plan);
/* Returns the words that a rank publishes besides its counts; 0: none. */
size_t oari_table_words(const oari_plan_request *req);

/* ---- over messages ------------------------------------------------------- */

/* A reduction over a ring of ranks: where the contributions are and where the
 * result goes. */
typedef struct oari_plan_reduction {
    const oari_plan_request *req;
    oari_rank_ring ring;
    oari_partition partition; /* which slice or part is whose */
    oari_location in;         /* IN, or WORK with partial results */
    oari_location out;        /* the finished result */
    size_t work;              /* where scratch in WORK begins */
} oari_plan_reduction;

/* Returns the reduction from IN to OUT over all ranks. */
oari_plan_reduction oari_plan_reduction_all(const oari_plan_request *req,
                                            oari_partition partition);

/* plan_exchange.c: every rank to every rank, combined in the order of ranks. */
void oari_plan_exchange(const oari_plan_request *req, oari_plan *plan);

/* plan_ring.c */
void oari_plan_ring_all_reduce(const oari_plan_request *req, oari_plan *plan);
void oari_plan_ring_reduce_scatter(const oari_plan_request *req,
                                   oari_plan *plan);
void oari_plan_ring_all_gather(const oari_plan_request *req, oari_plan *plan);
/* gather: the finished slices go to all ranks of the ring. */
void oari_ring_reduce(const oari_plan_reduction *reduction, oari_plan *plan,
                      int gather);

/* plan_doubling.c */
void oari_plan_doubling(const oari_plan_request *req, oari_plan *plan);
void oari_plan_halving(const oari_plan_request *req, oari_plan *plan);
void oari_doubling(const oari_plan_reduction *reduction, oari_plan *plan,
                   size_t count);

/* plan_tree.c, plan_chain.c, plan_pairwise.c */
void oari_plan_binomial(const oari_plan_request *req, oari_plan *plan);
void oari_plan_chain(const oari_plan_request *req, oari_plan *plan);
void oari_plan_linear(const oari_plan_request *req, oari_plan *plan);
/* Sends a buffer down a tree of the ring, from its member 0. */
void oari_tree_broadcast(const oari_rank_ring *ring, oari_plan *plan,
                         oari_location buffer, size_t count);
/* Leaves the result at member 0 of the ring. */
void oari_tree_reduce(const oari_plan_reduction *reduction, oari_plan *plan,
                      size_t count);

/* plan_bruck.c, plan_pairwise.c */
void oari_plan_bruck(const oari_plan_request *req, oari_plan *plan);
void oari_plan_pairwise(const oari_plan_request *req, oari_plan *plan);
void oari_plan_dissemination(const oari_plan_request *req, oari_plan *plan);
/* A barrier of the ring. */
void oari_signal_all(const oari_rank_ring *ring, oari_plan *plan);
/* Sends one word of every rank to all ranks: factors, or sizes. */
void oari_bruck_words(const oari_plan_request *req, oari_plan *plan,
                      oari_buffer words);

/* plan_levels.c: inside hosts, then across. */
void oari_plan_two_level(const oari_plan_request *req, oari_plan *plan);
int oari_has_levels(const oari_plan_request *req);

#endif
