/* SPDX-License-Identifier: Apache-2.0 */
/* dtensor.h: a tensor of which every rank of a mesh holds a part, and ways to
 * move it from one arrangement to any other.
 *
 *     oar_placement rows[2] = { oar_placement_shard(0),
 *                               oar_placement_replicate() };
 *     oar_placement columns[2] = { oar_placement_replicate(),
 *                                  oar_placement_shard(1) };
 *     const oar_spec *a = oar_spec_of(mesh, 2, rows, OAR_SHAPE(5, 3), NULL);
 *     const oar_spec *b = oar_spec_of(mesh, 2, columns, OAR_SHAPE(5, 3), NULL);
 *
 *     x = oar_dtensor_from_local(local, a);
 *     y = oar_redistribute(tape, x, b, NULL);
 *
 * A DTensor is a value: the local tensor, which belongs to its tape or to the
 * caller as ever, and a spec, which belongs to the mesh. There is nothing to
 * free. A NULL local is a failure, and goes through a chain of calls as in
 * ops.h.
 *
 * Gradients. The gradient of what is sharded, flat or replicated is placed as
 * the tensor itself: where it is replicated, all ranks have the same numbers,
 * the whole sum. The gradient of what is partial is replicated.
 *
 * Every rank of the mesh makes the same calls with the same specs. Ranks whose
 * specs differ get OAR_E_MISMATCH with both: the first time that a pair of
 * specs is used, on all ranks of the mesh, and later where they meet in a
 * collective. If one rank fails otherwise, the others fail when their time is
 * up, as with any collective.
 *
 * Tensors on the cpu. Threads: any thread may ask about a spec; moves are
 * collectives.
 */
#ifndef OARSONG_DTENSOR_H
#define OARSONG_DTENSOR_H

#include <oarsong/mesh.h>
#include <oarsong/tape.h>

OAR_BEGIN_DECLS

/* ---- placements ---------------------------------------------------------- */

/* How a tensor lies along one dim of a mesh. */
typedef enum oar_placement_kind {
    OAR_REPLICATE = 0, /* the same on all ranks of a row */
    OAR_SHARD = 1,     /* cut along one dim of the tensor */
    OAR_PARTIAL = 2,   /* the numbers of all ranks, combined by op */
    OAR_FLAT = 3       /* cut into ranges of its elements, row by row */
} oar_placement_kind;

typedef struct oar_placement {
    oar_placement_kind kind;
    int dim;               /* shard: of the tensor; negative: from the end */
    oar_reduce_op_kind op; /* partial: sum, prod, min or max */
    const int64_t *sizes;  /* shard, flat: one number for each rank of a row,
                              rows or elements; may be 0. NULL: nearly equal,
                              the first ones larger */
} oar_placement;

static inline oar_placement oar_placement_replicate(void)
{
    oar_placement p = { OAR_REPLICATE, 0, OAR_REDUCE_OP_SUM, NULL };
    return p;
}

static inline oar_placement oar_placement_shard(int dim)
{
    oar_placement p = { OAR_SHARD, dim, OAR_REDUCE_OP_SUM, NULL };
    return p;
}

static inline oar_placement oar_placement_partial(oar_reduce_op_kind op)
{
    oar_placement p = { OAR_PARTIAL, 0, op, NULL };
    return p;
}

static inline oar_placement oar_placement_flat(void)
{
    oar_placement p = { OAR_FLAT, 0, OAR_REDUCE_OP_SUM, NULL };
    return p;
}

/* ---- specs --------------------------------------------------------------- */

/* A shape and its placement along each dim of a mesh. Equal specs of a mesh are
 * the same pointer, which lives as long as the mesh. */
typedef struct oar_spec oar_spec;

typedef struct oar_spec_opts {
    size_t size;
    const int *order; /* the mesh dims in the order in which they cut, each
                         once; NULL: 0, 1, ... It matters where two cut the same
                         dim: the later one cuts the parts of the earlier one.
                         Flat ones are last */
} oar_spec_opts;
OAR_OPTS_INIT(oar_spec_opts);

/* Gives the spec; count is the number of mesh dims. Copies everything. opts may
 * be NULL. NULL on failure: OAR_E_SHAPE if count is another, or if sizes are
 * negative, do not add up, or are given for parts of parts that differ in
 * length; OAR_E_ARG for a dim that the shape does not have, an order that is
 * none or that has a flat cut before a shard, and partial placements with
 * another operator or with two different ones. */
OAR_API const oar_spec *oar_spec_of(oar_mesh *mesh, int count,
                                    const oar_placement *placement,
                                    oar_shape shape, const oar_spec_opts *opts);

OAR_API oar_mesh *oar_spec_mesh(const oar_spec *spec);  /* borrowed */
OAR_API oar_shape oar_spec_shape(const oar_spec *spec); /* of the whole */
/* Returns the placement along a mesh dim; sizes are borrowed, and NULL where
 * they are nearly equal. Replicated if there is no such dim. */
OAR_API oar_placement oar_spec_placement(const oar_spec *spec, int mesh_dim);
/* Returns the shape of a rank's local tensor: one dim where a placement is
 * flat. An empty shape if there is no such rank. */
OAR_API oar_shape oar_spec_local_shape(const oar_spec *spec, int rank);

/* Gives a rank's part as a checkpoint takes it (checkpoint.h), and its shape.
 * OAR_E_RANK; OAR_E_STATE for a partial spec; OAR_E_UNSUPPORTED for a range of
 * the elements of a box that are not one range of the whole: flat after a shard
 * of another dim than the first. */
struct oar_place;
OAR_API oar_status oar_spec_place_of(const oar_spec *spec, int rank,
                                     struct oar_place *place, oar_shape *part);

/* Writes "[5, 3] on dp=2 tp=2: S(0) R". Cut to fit; returns the length that the
 * text has, as snprintf does. */
OAR_API size_t oar_spec_text(const oar_spec *spec, char *text, size_t bytes);

/* ---- what a move would cost ---------------------------------------------- */

enum { OAR_MOVES = 12 }; /* steps of a plan, at most */

/* One step of a plan. */
typedef struct oar_move {
    int sends; /* 0: each rank cuts, or fills up, what it has */
    oar_coll kind;
    int mesh_dim;               /* the row it is over; -1: all ranks */
    uint64_t bytes, most_bytes; /* that this rank receives; that any does */
    double us;                  /* by the mesh's figures (mesh.h) */
    const oar_spec *after;
} oar_move;

typedef struct oar_move_plan {
    size_t size;
    int moves;
    uint64_t bytes, most_bytes; /* of all steps together */
    double us;
    oar_move move[OAR_MOVES];
} oar_move_plan;
OAR_OPTS_INIT(oar_move_plan);

/* Gives the plan by which oar_redistribute goes from one spec to another: the
 * cheapest sequence of collectives along mesh dims and of exchanges between
 * all ranks, by the mesh's latencies and bandwidths. Sends nothing, and needs
 * no group: a mesh that only counts can have 10,000 ranks. An all_reduce counts
 * twice the bytes but for the rank's own share, as a ring receives them.
 * OAR_E_ARG for specs of two meshes or shapes, OAR_E_DTYPE for a dtype without
 * the operator of a partial placement. */
OAR_API oar_status oar_explain(const oar_spec *from, const oar_spec *to,
                               oar_dtype dtype, oar_move_plan *plan);
/* The same as text, a line for each step. Cut to fit; returns the length that
 * the text has, 0 on failure. */
OAR_API size_t oar_explain_text(const oar_spec *from, const oar_spec *to,
                                oar_dtype dtype, char *text, size_t bytes);

/* ---- DTensors ------------------------------------------------------------ */

typedef struct oar_dtensor {
    oar_tensor *local;
    const oar_spec *spec;
} oar_dtensor;

/* Takes a local tensor as this rank's part of a whole. Sends and copies
 * nothing, so the ranks see to it that what is replicated is the same.
 * OAR_E_SHAPE if it has not the shape of this rank's part. Borrows local. */
OAR_API oar_dtensor oar_dtensor_from_local(oar_tensor *local,
                                           const oar_spec *spec);

/* Cuts a whole tensor into parts. root: the rank of the mesh that has it; the
 * others give NULL, and all the same dtype. No gradient goes back to it. -1:
 * every rank has it, the same numbers, and each takes its part; then a gradient
 * goes back, and dtype is not read. A wrong tensor on root is told on all
 * ranks. */
#define oar_dtensor_scatter(...) oar_dtensor_scatter_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_dtensor oar_dtensor_scatter_at(const char *file, int line,
                                           oar_tape *tape, oar_tensor *whole,
                                           oar_dtype dtype,
                                           const oar_spec *spec, int root);

/* Make the numbers of the whole, of which each rank makes its part: those of
 * oar_full, oar_uniform and oar_normal on one rank, whatever the cut. Nothing
 * is sent, so all ranks give the same arguments. What is partial is kept as
 * oar_redistribute keeps it. tape as in tensor.h. */
OAR_API oar_dtensor oar_dtensor_zeros(oar_tape *tape, oar_dtype dtype,
                                      const oar_spec *spec);
OAR_API oar_dtensor oar_dtensor_ones(oar_tape *tape, oar_dtype dtype,
                                     const oar_spec *spec);
OAR_API oar_dtensor oar_dtensor_full(oar_tape *tape, oar_dtype dtype,
                                     const oar_spec *spec, double value);
OAR_API oar_dtensor oar_dtensor_uniform(oar_tape *tape, oar_dtype dtype,
                                        const oar_spec *spec, uint64_t seed,
                                        double low, double high);
OAR_API oar_dtensor oar_dtensor_normal(oar_tape *tape, oar_dtype dtype,
                                       const oar_spec *spec, uint64_t seed,
                                       double mean, double deviation);
/* The same of a lazy tensor (oar_lazy) of the whole, a parameter of a model,
 * say, which stays lazy. OAR_E_SHAPE if it has not the spec's shape,
 * OAR_E_STATE if it is not lazy. */
OAR_API oar_dtensor oar_dtensor_from_lazy(oar_tape *tape,
                                          const oar_tensor *lazy,
                                          const oar_spec *spec);

typedef struct oar_redistribute_opts {
    size_t size;
    uint64_t most_bytes; /* that any rank may receive: a plan with more is
                            OAR_E_UNSUPPORTED, with the plan in the message; 0:
                            any number */
} oar_redistribute_opts;
OAR_OPTS_INIT(oar_redistribute_opts);

/* Moves a tensor to another spec of the same mesh, by the plan that oar_explain
 * gives. If it lies so already, the result is a.local itself; without a tape, a
 * new reference to it. What becomes partial is kept by the first rank of a row
 * or, where it was sharded, by each that has it; with min and max by all.
 * Gradients go back through sums only: through a partial prod, min or max
 * backward is OAR_E_UNSUPPORTED. OAR_E_STATE for a mesh without a group, or
 * inside a batch. */
#define oar_redistribute(...) oar_redistribute_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_dtensor oar_redistribute_at(const char *file, int line,
                                        oar_tape *tape, oar_dtensor a,
                                        const oar_spec *to,
                                        const oar_redistribute_opts *opts);

/* What becomes of gradients where several ranks have the same numbers and go on
 * with them outside of DTensors. There is no default. */
typedef enum oar_local_grads {
    OAR_GRADS_EQUAL = 1, /* all do the same, and have the same gradient */
    OAR_GRADS_ADD = 2    /* each does something of its own: the gradients are
                            added up over these ranks */
} oar_local_grads;

/* Gives the local tensor, to go on without a spec: a.local itself, or a view of
 * it; without a tape, a new reference. OAR_E_ARG unless grads says what becomes
 * of gradients; OAR_E_STATE if it is partial: redistribute it first. */
OAR_API oar_tensor *oar_dtensor_to_local(oar_tape *tape, oar_dtensor a,
                                         oar_local_grads grads);

/* Gives the whole tensor on every rank, as redistributing it to replicated and
 * oar_dtensor_to_local do. */
#define oar_dtensor_whole(...) oar_dtensor_whole_at(OAR_HERE, __VA_ARGS__)
OAR_API oar_tensor *oar_dtensor_whole_at(const char *file, int line,
                                         oar_tape *tape, oar_dtensor a,
                                         oar_local_grads grads);

/* Writes the spec, which part this rank has, and its numbers, as
 * oar_tensor_text does. Sends nothing. */
OAR_API size_t oar_dtensor_text(oar_dtensor a, char *text, size_t bytes);

OAR_END_DECLS

#endif
