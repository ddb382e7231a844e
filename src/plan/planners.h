/* SPDX-License-Identifier: Apache-2.0 */
/* plan/planners.h: every planner, for the table in choose.c. docs/algorithms.md
 * tells what each does and what it costs. */
#ifndef OARI_PLAN_PLANNERS_H
#define OARI_PLAN_PLANNERS_H

#include "plan/plan.h"

/* ---- over memory --------------------------------------------------------- */

/* plan_line.c: the data fits into the exchange line. One meeting. */
void oari_plan_line(const oari_ask *ask, oari_plan *plan);
/* Elements that the rank which shows most puts into its line. */
size_t oari_line_count(const oari_ask *ask);

/* plan_direct.c: on the peers' buffers in place; staged where they cannot be
 * reached. */
void oari_plan_direct(const oari_ask *ask, oari_plan *plan);
/* The same after a meeting that has shown the buffers. */
void oari_plan_direct_rest(const oari_ask *ask, oari_plan *plan);

/* plan_staged.c: through shared chunks, for private memory. The rest: after a
 * first meeting. */
void oari_plan_staged(const oari_ask *ask, oari_plan *plan);
void oari_plan_staged_rest(const oari_ask *ask, oari_plan *plan);

/* plan_sizes.c: where not every rank knows all sizes: they are told first. */
void oari_plan_sizes(const oari_ask *ask, oari_plan *plan);
void oari_plan_size_messages(const oari_ask *ask, oari_plan *plan);
/* Words that a rank shows in such a meeting besides its counts; 0: none. */
size_t oari_table_words(const oari_ask *ask);

/* ---- over messages ------------------------------------------------------- */

/* A reduction over a circle of ranks: where the contributions are and where the
 * result goes. */
typedef struct oari_flow {
    const oari_ask *ask;
    oari_circle circle;
    oari_cut cut;  /* which slice or part is whose */
    oari_spot in;  /* IN, or WORK with partial results */
    oari_spot out; /* the finished result */
    size_t work;   /* where scratch in WORK begins */
} oari_flow;

oari_flow oari_flow_all(const oari_ask *ask, oari_cut cut);

/* plan_exchange.c: everyone to everyone, the order of ranks. */
void oari_plan_exchange(const oari_ask *ask, oari_plan *plan);

/* plan_ring.c */
void oari_plan_ring_all_reduce(const oari_ask *ask, oari_plan *plan);
void oari_plan_ring_reduce_scatter(const oari_ask *ask, oari_plan *plan);
void oari_plan_ring_all_gather(const oari_ask *ask, oari_plan *plan);
void oari_ring_reduce(const oari_flow *flow, oari_plan *plan, int gather);
void oari_ring_gather(const oari_flow *flow, oari_plan *plan);

/* plan_doubling.c */
void oari_plan_doubling(const oari_ask *ask, oari_plan *plan);
void oari_plan_halving(const oari_ask *ask, oari_plan *plan);
void oari_doubling(const oari_flow *flow, oari_plan *plan, size_t count);
void oari_halving(const oari_flow *flow, oari_plan *plan, size_t count);

/* plan_tree.c, plan_chain.c */
void oari_plan_binomial(const oari_ask *ask, oari_plan *plan);
void oari_plan_linear(const oari_ask *ask, oari_plan *plan);
void oari_plan_chain(const oari_ask *ask, oari_plan *plan);
/* A buffer down a tree of the circle, from its first member. */
void oari_tree_broadcast(const oari_circle *circle, oari_plan *plan,
                         oari_spot buffer, size_t count);
void oari_tree_reduce(const oari_flow *flow, oari_plan *plan, size_t count);

/* plan_bruck.c, plan_pairwise.c */
void oari_plan_bruck(const oari_ask *ask, oari_plan *plan);
void oari_plan_pairwise(const oari_ask *ask, oari_plan *plan);
void oari_plan_dissemination(const oari_ask *ask, oari_plan *plan);
void oari_signal_all(const oari_circle *circle, oari_plan *plan);
/* One word of every rank to all, for factors and sizes. */
void oari_bruck_words(const oari_ask *ask, oari_plan *plan, oari_where words);

/* plan_levels.c: inside hosts, then across. */
void oari_plan_two_level(const oari_ask *ask, oari_plan *plan);
int oari_has_levels(const oari_ask *ask);

#endif
