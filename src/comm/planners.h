/* SPDX-License-Identifier: Apache-2.0 */
/* comm/planners.h: every planner, for the table in plan.c. */
#ifndef OARI_COMM_PLANNERS_H
#define OARI_COMM_PLANNERS_H

#include "comm/plan.h"

/* plan_line.c: the data fits into the exchange line. One meeting. */
void oari_plan_line_barrier(const oari_ask *ask, oari_plan *plan);
void oari_plan_line_broadcast(const oari_ask *ask, oari_plan *plan);
void oari_plan_line_all_reduce(const oari_ask *ask, oari_plan *plan);

/* plan_direct.c: on the peers' buffers in place; staged where they cannot be
 * reached. */
void oari_plan_direct_broadcast(const oari_ask *ask, oari_plan *plan);
void oari_plan_direct_all_reduce(const oari_ask *ask, oari_plan *plan);

/* plan_staged.c: through shared chunks, for private memory. The rest: after a
 * first meeting. */
void oari_plan_staged_broadcast(const oari_ask *ask, oari_plan *plan);
void oari_plan_staged_all_reduce(const oari_ask *ask, oari_plan *plan);
void oari_plan_staged_broadcast_rest(const oari_ask *ask, oari_plan *plan);
void oari_plan_staged_all_reduce_rest(const oari_ask *ask, oari_plan *plan);

/* plan_message.c: over send and receive. */
void oari_plan_dissemination(const oari_ask *ask, oari_plan *plan);
void oari_plan_binomial(const oari_ask *ask, oari_plan *plan);
void oari_plan_exchange(const oari_ask *ask, oari_plan *plan);

#endif
