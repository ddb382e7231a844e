/* SPDX-License-Identifier: Apache-2.0 */
/* dtensor_ops.h: operations on DTensors.
 *
 *     x = oar_dtensor_from_local(rows, x_spec);        [8, 6]: S(0)
 *     b = oar_dtensor_from_local(bias, b_spec);        [6]:    R
 *     y = oar_dtensor_add(tape, x, b);                 [8, 6]: S(0)
 *
 * oar_dtensor_NAME is what oar_NAME (ops.h) computes, of the whole tensors.
 * Each rank computes its part from its local tensors; where the placements of
 * the inputs do not fit the operation, they are moved first, by what is
 * cheapest (dtensor.h). docs/dtensor.md has the table of placements that fit.
 * The spec of the result says how it lies; a result may be partial, and is
 * added up only when something needs its numbers.
 *
 * Gradients are as in dtensor.h. Where an input is replicated, and the ranks
 * compute different parts with it, backward adds its gradients up.
 *
 * A failed input (local NULL) gives a failed result. Inputs are of one mesh,
 * and every rank of it makes the same calls. The first call with new specs
 * compares them over all ranks: if they differ, all get OAR_E_MISMATCH with
 * both. Otherwise ranks meet only where data moves. Results belong to the tape
 * or, without one, to the caller, as in ops.h.
 */
#ifndef OARSONG_DTENSOR_OPS_H
#define OARSONG_DTENSOR_OPS_H

#include <oarsong/dtensor.h>
#include <oarsong/ops.h>

OAR_BEGIN_DECLS

/* ---- what operations may move -------------------------------------------- */

typedef struct oar_dtensor_limits {
    size_t size;
    int strict; /* an operation that has no rule for the placements of its
                   inputs is OAR_E_UNSUPPORTED. 0: they are moved first, to
                   replicated or to what it has a rule for, and the first time
                   that an operation does so the mesh's rank 0 logs a warning */
    uint64_t most_bytes; /* that the moves of one operation may bring any rank;
                            more is OAR_E_UNSUPPORTED, with the numbers. 0: any
                            number */
} oar_dtensor_limits;
OAR_OPTS_INIT(oar_dtensor_limits);

/* Sets what operations on DTensors of a mesh may do from now on. limits NULL:
 * anything, as at first. All ranks set the same. */
OAR_API oar_status oar_dtensor_set_limits(oar_mesh *mesh,
                                          const oar_dtensor_limits *limits);

/* What was moved: how often, and the bytes that this rank received, counted as
 * oar_explain does. */
typedef struct oar_dtensor_traffic {
    size_t size;
    uint64_t moves, bytes;                   /* in forward */
    uint64_t implicit_moves, implicit_bytes; /* of them by operations */
    uint64_t backward_moves, backward_bytes;
} oar_dtensor_traffic;
OAR_OPTS_INIT(oar_dtensor_traffic);

/* Counts moves of DTensors of a mesh under this name from now on; backward
 * counts under the name that forward had. The name is copied; "" is the first
 * one. Returns the name before, which lives as long as the mesh; NULL on
 * failure. */
OAR_API const char *oar_dtensor_set_scope(oar_mesh *mesh, const char *name);

/* Gives what was counted under a name; NULL: under all names.
 * OAR_E_NOT_FOUND if there is no such scope. */
OAR_API oar_status oar_dtensor_read_traffic(oar_mesh *mesh, const char *name,
                                            oar_dtensor_traffic *traffic);

/* ---- element by element; shapes broadcast as in NumPy -------------------- */

#define OAR_DTENSOR_UNARY(name) \
    OAR_API oar_dtensor oar_dtensor_##name(oar_tape *tape, oar_dtensor a);
OAR_UNARY_LIST(OAR_DTENSOR_UNARY)
OAR_DTENSOR_UNARY(logical_not)
#undef OAR_DTENSOR_UNARY

#define OAR_DTENSOR_BINARY_LIST(X) \
    X(add)                         \
    X(sub)                         \
    X(mul)                         \
    X(div)                         \
    X(pow)                         \
    X(minimum)                     \
    X(maximum)                     \
    X(logical_and)                 \
    X(logical_or)                  \
    X(logical_xor)                 \
    OAR_COMPARE_LIST(X)
#define OAR_DTENSOR_BINARY(name)                                          \
    OAR_API oar_dtensor oar_dtensor_##name(oar_tape *tape, oar_dtensor a, \
                                           oar_dtensor b);
OAR_DTENSOR_BINARY_LIST(OAR_DTENSOR_BINARY)
#undef OAR_DTENSOR_BINARY

#define OAR_DTENSOR_SCALAR_LIST(X) \
    X(scale)                       \
    X(shift)                       \
    X(power)                       \
    X(leaky_relu)                  \
    X(minimum_scalar)              \
    X(maximum_scalar)              \
    X(eq_scalar)                   \
    X(ne_scalar)                   \
    X(lt_scalar)                   \
    X(le_scalar)                   \
    X(gt_scalar)                   \
    X(ge_scalar)
#define OAR_DTENSOR_SCALAR(name)                                          \
    OAR_API oar_dtensor oar_dtensor_##name(oar_tape *tape, oar_dtensor a, \
                                           double number);
OAR_DTENSOR_SCALAR_LIST(OAR_DTENSOR_SCALAR)
#undef OAR_DTENSOR_SCALAR

OAR_API oar_dtensor oar_dtensor_clamp(oar_tape *tape, oar_dtensor a, double low,
                                      double high);
OAR_API oar_dtensor oar_dtensor_cast(oar_tape *tape, oar_dtensor a,
                                     oar_dtype dtype);
OAR_API oar_dtensor oar_dtensor_where(oar_tape *tape, oar_dtensor mask,
                                      oar_dtensor a, oar_dtensor b);
OAR_API oar_dtensor oar_dtensor_where_scalar(oar_tape *tape, oar_dtensor mask,
                                             oar_dtensor a, double number);
OAR_API oar_dtensor oar_dtensor_masked_fill(oar_tape *tape, oar_dtensor a,
                                            oar_dtensor mask, double value);
OAR_API oar_dtensor oar_dtensor_tril(oar_tape *tape, oar_dtensor a,
                                     int64_t diagonal);
OAR_API oar_dtensor oar_dtensor_triu(oar_tape *tape, oar_dtensor a,
                                     int64_t diagonal);

OAR_END_DECLS

#endif
