/* SPDX-License-Identifier: Apache-2.0 */
/* plan/plan_levels.h: what the two files of the two-level plans share:
 * plan_levels.c, which sees all hosts, and plan_host.c, which sees one. */
#ifndef OARI_PLAN_PLAN_LEVELS_H
#define OARI_PLAN_PLAN_LEVELS_H

#include "plan/planners.h"

typedef struct oari_levels {
    const oari_plan_request *req;
    oari_plan *plan;
    int hosts, lanes;
    int host, local, locals; /* mine: which, my rank there, how many */
    int staged;              /* buffers here cannot be reached */
    size_t chunks;           /* of the stage used so far */
} oari_levels;

/* A run of elements in its share: where it begins in the row, where in the
 * share, whose it is (a rank; -1: everybody's). */
typedef struct oari_rail_run {
    size_t first, at, count;
    int rank;
} oari_rail_run;

/* Runs of a lane in turn, in the order of hosts: begin with host = -1. Of a
 * vector there is one, its slice. */
typedef struct oari_rail_walk {
    int host, local;
    oari_rail_run now;
} oari_rail_walk;

oari_rail_walk oari_rail_begin(void);
int oari_rail_next(const oari_levels *l, int lane, oari_rail_walk *w);

/* Elements in a lane's share. */
size_t oari_rail_share(const oari_levels *l, int lane);

int oari_rail_has_parts(
    const oari_plan_request *req); /* not slices of a vector */
int oari_is_on_rail(const oari_levels *l);

/* A rank's rank on the board of its host, and back. */
int oari_local_of(const oari_plan_request *req, int rank);
int oari_rank_at(const oari_plan_request *req, int host, int local);

/* ---- plan_host.c: inside my host ----------------------------------------- */

/* Leaves what its ranks contribute to each lane's share in its WORK. */
void oari_host_collect(oari_levels *l);
/* Hands what its lanes have to its ranks. */
void oari_host_deliver(oari_levels *l);
/* Its ranks' parts, or root's buffer, to all its ranks. */
void oari_host_gather(oari_levels *l);
void oari_host_broadcast(oari_levels *l);

#endif
