/* SPDX-License-Identifier: Apache-2.0 */
/* plan/plan_levels.h: what the two files of the two-level plans share:
 * plan_levels.c, which sees all hosts, and plan_host.c, which sees one. */
#ifndef OARI_PLAN_PLAN_LEVELS_H
#define OARI_PLAN_PLAN_LEVELS_H

#include "plan/planners.h"

typedef struct oari_levels {
    const oari_plan_request *req;
    oari_plan *plan;
    int hosts, rails;
    int root_host;           /* -1: there is no root */
    int host, local, locals; /* my host, my shm rank there, its ranks */
    int staged;              /* buffers of my host cannot be reached */
    size_t chunks;           /* of the bounce buffer used so far */
} oari_levels;

/* A run of elements in a rail's share: where it begins in the row, where in the
 * share, whose it is (a rank; -1: every rank's). */
typedef struct oari_rail_run {
    size_t first, at, count;
    int rank;
} oari_rail_run;

/* Walks over the runs of a rail in the order of hosts. A vector has one run,
 * the rail's slice. */
typedef struct oari_rail_walk {
    int host, local;
    oari_rail_run now;
} oari_rail_walk;

oari_rail_walk oari_rail_begin(void);
int oari_rail_next(const oari_levels *l, int rail, oari_rail_walk *w);

/* Returns the elements in a rail's share. */
size_t oari_rail_share(const oari_levels *l, int rail);

/* Whether I am on a rail. */
int oari_is_on_rail(const oari_levels *l);

/* Return a rank's shm rank on its host, and the rank of a shm rank. */
int oari_local_of(const oari_plan_request *req, int rank);
int oari_rank_at(const oari_plan_request *req, int host, int local);

/* ---- plan_host.c: inside my host ----------------------------------------- */

/* Leaves what its ranks contribute to each rail's share in that rail's WORK. */
void oari_host_collect(oari_levels *l);
/* Delivers what its rails have to its ranks. */
void oari_host_deliver(oari_levels *l);
/* Sends its ranks' parts, or root's buffer, to all its ranks. */
void oari_host_gather(oari_levels *l);
void oari_host_broadcast(oari_levels *l);

#endif
