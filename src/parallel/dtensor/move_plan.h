/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/move_plan.h: by which steps a tensor goes from one layout to
 * another, and what they cost. Pure: nothing is sent. */
#ifndef OARI_PARALLEL_DTENSOR_MOVE_PLAN_H
#define OARI_PARALLEL_DTENSOR_MOVE_PLAN_H

#include "parallel/dtensor/spec.h"

typedef enum oari_move_kind {
    OARI_MOVE_CUT,            /* a rank keeps some of what it has */
    OARI_MOVE_FILL,           /* replicated or sharded becomes partial */
    OARI_MOVE_GATHER,         /* along one mesh dim, as the next three */
    OARI_MOVE_REDUCE,         /* partial becomes replicated */
    OARI_MOVE_REDUCE_SCATTER, /* partial becomes sharded or flat */
    OARI_MOVE_EXCHANGE        /* pieces between any two; mesh_dim -1: over all
                                 ranks */
} oari_move_kind;

typedef struct oari_move_step {
    oari_move_kind kind;
    int mesh_dim;
    double us;
    oari_cuts after;
} oari_move_step;

/* The tensor that moves, and the ranks that have it. */
typedef struct oari_mover {
    const oari_grid *grid;
    oar_shape shape;
    size_t element; /* bytes */
} oari_mover;

/* Bytes that memory copies in a microsecond, and what a step costs a rank even
 * if it sends nothing. */
extern const double oari_move_copied_in_us, oari_move_least_us;

/* Returns the bytes of the largest part. */
double oari_move_bytes(const oari_mover *mover, const oari_cuts *layout);

/* Whether the parts along a cut lie one behind the other in what they are parts
 * of. */
int oari_move_in_one_piece(const oari_mover *mover, const oari_cut *cut);

/* Gives what a gather along a mesh dim costs, and for each byte of the result.
 */
void oari_move_price_gather(const oari_grid *grid, int mesh_dim, double *us,
                            double *byte);
/* The same of an exchange along several, as bits, with what a step costs at
 * least. */
void oari_move_price_exchange(const oari_grid *grid, unsigned along, double *us,
                              double *byte);

/* Gives the step that puts another cut on one mesh dim, which must be the
 * innermost of its tensor dim. Returns 0 if no step does that. */
int oari_move_along(const oari_mover *mover, const oari_cuts *from,
                    int mesh_dim, const oari_cut *cut, oari_move_step *step);

/* Gives the step from a layout to any other that is partial along the same mesh
 * dims. Returns 0 if they differ there. */
int oari_move_exchange(const oari_mover *mover, const oari_cuts *from,
                       const oari_cuts *to, oari_move_step *step);

/* Finds the cheapest steps, and how many there are: none if the layouts are the
 * same. OAR_E_NOMEM. */
oar_status oari_plan_move(const oari_mover *mover, const oari_cuts *from,
                          const oari_cuts *to, oari_move_step step[OAR_MOVES],
                          int *steps);

/* Returns the elements that a rank receives in a step. */
int64_t oari_move_received(const oari_mover *mover, const oari_cuts *before,
                           const oari_move_step *step, int rank);

/* Checks what two specs and a dtype need for a move, as oar_explain says. call
 * is for messages. */
oar_status oari_move_check(const oar_spec *from, const oar_spec *to,
                           oar_dtype dtype, const char *call);

/* ---- paths that a mesh keeps --------------------------------------------- */

struct oari_move_path {
    oari_move_path *next;
    const oar_spec *from, *to;
    size_t element;
    _Atomic int compared; /* all ranks have used it */
    uint64_t key;         /* the same on all ranks */
    char *label;          /* "redistribute [5, 3] S(0) R to R R" */
    int steps;
    double us;
    uint64_t bytes; /* that this rank receives */
    oari_move_step step[];
};

/* Returns the path between two specs of one mesh and shape for elements of that
 * size, planned at the first call. NULL without memory. */
oari_move_path *oari_move_path_of(const oar_spec *from, const oar_spec *to,
                                  size_t element);

/* Frees a row of the table. */
void oari_move_paths_free(oari_move_path *path);

#endif
