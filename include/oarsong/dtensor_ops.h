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

/* ---- views and slices ---------------------------------------------------- */

/* Shapes, dims and positions are those of the whole. */
OAR_API oar_dtensor oar_dtensor_reshape(oar_tape *tape, oar_dtensor a,
                                        oar_shape shape);
OAR_API oar_dtensor oar_dtensor_transpose(oar_tape *tape, oar_dtensor a, int d0,
                                          int d1);
OAR_API oar_dtensor oar_dtensor_permute(oar_tape *tape, oar_dtensor a,
                                        oar_dims order);
OAR_API oar_dtensor oar_dtensor_expand(oar_tape *tape, oar_dtensor a,
                                       oar_shape shape);
OAR_API oar_dtensor oar_dtensor_squeeze(oar_tape *tape, oar_dtensor a, int dim);
OAR_API oar_dtensor oar_dtensor_unsqueeze(oar_tape *tape, oar_dtensor a,
                                          int dim);
OAR_API oar_dtensor oar_dtensor_contiguous(oar_tape *tape, oar_dtensor a);
OAR_API oar_dtensor oar_dtensor_flip(oar_tape *tape, oar_dtensor a,
                                     oar_dims dims);

/* Along a dim that is cut, what is taken stays where it is: the result has
 * parts of other sizes, some perhaps empty. */
OAR_API oar_dtensor oar_dtensor_narrow(oar_tape *tape, oar_dtensor a, int dim,
                                       int64_t start, int64_t length);
OAR_API oar_dtensor oar_dtensor_slice(oar_tape *tape, oar_dtensor a, int dim,
                                      int64_t start, int64_t stop,
                                      int64_t step);
/* Along a dim that is cut, the result is partial: other ranks have zeros. */
OAR_API oar_dtensor oar_dtensor_select(oar_tape *tape, oar_dtensor a, int dim,
                                       int64_t index);
/* As oar_tensor_split and oar_chunk. */
OAR_API oar_status oar_dtensor_split(oar_tape *tape, oar_dtensor a, int dim,
                                     int pieces, const int64_t *size,
                                     oar_dtensor *piece);
OAR_API oar_status oar_dtensor_chunk(oar_tape *tape, oar_dtensor a, int dim,
                                     int pieces, oar_dtensor *piece);

OAR_API oar_dtensor oar_dtensor_cat(oar_tape *tape, int count,
                                    const oar_dtensor *a, int dim);
OAR_API oar_dtensor oar_dtensor_stack(oar_tape *tape, int count,
                                      const oar_dtensor *a, int dim);

/* ---- reductions ---------------------------------------------------------- */

/* Over dims that are cut, the result is partial: sums, products, maxima and
 * minima of parts. Where a gradient of prod, max or min is wanted, ranks
 * combine them at once, and the result is not partial: of equal elements on
 * several ranks, the first rank's gets the gradient. */
OAR_API oar_dtensor oar_dtensor_sum(oar_tape *tape, oar_dtensor a);
OAR_API oar_dtensor oar_dtensor_mean(oar_tape *tape, oar_dtensor a);
#define OAR_DTENSOR_REDUCE_LIST(X) \
    X(sum_over)                    \
    X(mean_over)                   \
    X(prod_over)                   \
    X(max_over)                    \
    X(min_over)                    \
    X(any_over)                    \
    X(all_over)
#define OAR_DTENSOR_REDUCE(name)                                          \
    OAR_API oar_dtensor oar_dtensor_##name(oar_tape *tape, oar_dtensor a, \
                                           oar_dims over, int keep);
OAR_DTENSOR_REDUCE_LIST(OAR_DTENSOR_REDUCE)
#undef OAR_DTENSOR_REDUCE
OAR_API oar_dtensor oar_dtensor_var_over(oar_tape *tape, oar_dtensor a,
                                         oar_dims over, int keep,
                                         int correction);

/* Along a dim of which every rank needs whole rows. */
OAR_API oar_dtensor oar_dtensor_argmax(oar_tape *tape, oar_dtensor a, int dim,
                                       int keep);
OAR_API oar_dtensor oar_dtensor_argmin(oar_tape *tape, oar_dtensor a, int dim,
                                       int keep);
OAR_API oar_status oar_dtensor_max_with_index(oar_tape *tape, oar_dtensor a,
                                              int dim, int keep,
                                              oar_dtensor *value,
                                              oar_dtensor *index);
OAR_API oar_status oar_dtensor_min_with_index(oar_tape *tape, oar_dtensor a,
                                              int dim, int keep,
                                              oar_dtensor *value,
                                              oar_dtensor *index);
OAR_API oar_status oar_dtensor_topk(oar_tape *tape, oar_dtensor a, int64_t k,
                                    oar_dtensor *value, oar_dtensor *index);
OAR_API oar_status oar_dtensor_sort(oar_tape *tape, oar_dtensor a, int dim,
                                    int descending, oar_dtensor *value,
                                    oar_dtensor *index);
OAR_API oar_dtensor oar_dtensor_cumsum(oar_tape *tape, oar_dtensor a, int dim);

/* ---- products ------------------------------------------------------------ */

OAR_API oar_dtensor oar_dtensor_matmul(oar_tape *tape, oar_dtensor a,
                                       oar_dtensor b);
/* bias may be NULL. */
OAR_API oar_dtensor oar_dtensor_linear(oar_tape *tape, oar_dtensor x,
                                       oar_dtensor weight,
                                       const oar_dtensor *bias);
OAR_API oar_dtensor oar_dtensor_linear_act(oar_tape *tape, oar_dtensor x,
                                           oar_dtensor weight,
                                           const oar_dtensor *bias,
                                           oar_activation kind);

/* ---- norms ---------------------------------------------------------------
 * weight, bias and running statistics may be NULL. */

OAR_API oar_dtensor oar_dtensor_layer_norm(oar_tape *tape, oar_dtensor x,
                                           const oar_dtensor *weight,
                                           const oar_dtensor *bias, double eps);
/* *sum gets a + b; NULL: nobody asks. */
OAR_API oar_dtensor oar_dtensor_add_layer_norm(oar_tape *tape, oar_dtensor a,
                                               oar_dtensor b,
                                               const oar_dtensor *weight,
                                               const oar_dtensor *bias,
                                               double eps, oar_dtensor *sum);
OAR_API oar_dtensor oar_dtensor_rms_norm(oar_tape *tape, oar_dtensor x,
                                         const oar_dtensor *weight, double eps);
OAR_API oar_dtensor oar_dtensor_group_norm(oar_tape *tape, oar_dtensor x,
                                           int64_t groups,
                                           const oar_dtensor *weight,
                                           const oar_dtensor *bias, double eps);
/* Where the batch is cut, statistics are those of all ranks. In training,
 * running statistics that do not lie as the channels of x do are OAR_E_ARG:
 * they are written. */
OAR_API oar_dtensor oar_dtensor_batch_norm(
    oar_tape *tape, oar_dtensor x, const oar_dtensor *weight,
    const oar_dtensor *bias, const oar_dtensor *running_mean,
    const oar_dtensor *running_var, int training, double momentum, double eps);

/* ---- probabilities and losses -------------------------------------------- */

OAR_API oar_dtensor oar_dtensor_softmax(oar_tape *tape, oar_dtensor a);
OAR_API oar_dtensor oar_dtensor_softmax_over(oar_tape *tape, oar_dtensor a,
                                             int dim);
OAR_API oar_dtensor oar_dtensor_log_softmax(oar_tape *tape, oar_dtensor a,
                                            int dim);
/* Leaves out what oar_dropout of the whole would, whatever the cut. */
OAR_API oar_dtensor oar_dtensor_dropout(oar_tape *tape, oar_dtensor a, double p,
                                        uint64_t seed);

/* Logits may be cut in their classes: then two numbers of each row are merged,
 * and no logits move. Tensors are not in the options, where they are OAR_E_ARG,
 * but beside them: weight [classes], or NULL. */
OAR_API oar_dtensor oar_dtensor_cross_entropy(oar_tape *tape,
                                              oar_dtensor logits,
                                              oar_dtensor target);
OAR_API oar_dtensor oar_dtensor_cross_entropy_with(
    oar_tape *tape, oar_dtensor logits, oar_dtensor target,
    const oar_dtensor *weight, const oar_cross_entropy_opts *opts);

/* The cross entropy of oar_dtensor_linear(x, weight); all logits of a rank are
 * in memory at once. */
OAR_API oar_dtensor oar_dtensor_linear_cross_entropy(
    oar_tape *tape, oar_dtensor x, oar_dtensor weight, oar_dtensor target,
    const oar_cross_entropy_opts *opts);

OAR_API oar_dtensor oar_dtensor_mse(oar_tape *tape, oar_dtensor a,
                                    oar_dtensor b);
OAR_API oar_dtensor oar_dtensor_mse_with(oar_tape *tape, oar_dtensor a,
                                         oar_dtensor b,
                                         const oar_loss_opts *opts);
OAR_API oar_dtensor oar_dtensor_l1_loss(oar_tape *tape, oar_dtensor a,
                                        oar_dtensor b,
                                        const oar_loss_opts *opts);
OAR_API oar_dtensor oar_dtensor_huber_loss(oar_tape *tape, oar_dtensor a,
                                           oar_dtensor b, double delta,
                                           const oar_loss_opts *opts);
OAR_API oar_dtensor oar_dtensor_smooth_l1_loss(oar_tape *tape, oar_dtensor a,
                                               oar_dtensor b, double beta,
                                               const oar_loss_opts *opts);
OAR_API oar_dtensor oar_dtensor_bce_with_logits(
    oar_tape *tape, oar_dtensor logits, oar_dtensor target,
    const oar_dtensor *weight, const oar_dtensor *positive_weight,
    const oar_bce_opts *opts);
OAR_API oar_dtensor oar_dtensor_kl_div(oar_tape *tape, oar_dtensor a,
                                       oar_dtensor target,
                                       const oar_kl_div_opts *opts);

/* ---- picking by index ---------------------------------------------------- */

OAR_API oar_dtensor oar_dtensor_index_select(oar_tape *tape, oar_dtensor a,
                                             int dim, oar_dtensor index);
OAR_API oar_dtensor oar_dtensor_take_along(oar_tape *tape, oar_dtensor a,
                                           int dim, oar_dtensor index);
/* What oar_tensor_scatter_add computes. */
OAR_API oar_dtensor oar_dtensor_scatter_add(oar_tape *tape, oar_dtensor a,
                                            int dim, oar_dtensor index,
                                            oar_dtensor source);
/* Rows of the table may be cut: the result is then a partial sum. The options'
 * vocabulary and first are the spec's matter: OAR_E_ARG unless 0. */
OAR_API oar_dtensor oar_dtensor_embedding(oar_tape *tape, oar_dtensor table,
                                          oar_dtensor index);
OAR_API oar_dtensor oar_dtensor_embedding_with(oar_tape *tape,
                                               oar_dtensor table,
                                               oar_dtensor index,
                                               const oar_embedding_opts *opts);

/* ---- attention, convolutions, pools -------------------------------------- */

/* mask NULL: none; the options have no mask and no heads. */
OAR_API oar_dtensor oar_dtensor_attention(oar_tape *tape, oar_dtensor q,
                                          oar_dtensor k, oar_dtensor v,
                                          const oar_dtensor *mask,
                                          const oar_attention_opts *opts);
OAR_API oar_dtensor oar_dtensor_rotary(oar_tape *tape, oar_dtensor x,
                                       int64_t first, double base);

OAR_API oar_dtensor oar_dtensor_conv1d(oar_tape *tape, oar_dtensor x,
                                       oar_dtensor weight,
                                       const oar_dtensor *bias,
                                       const oar_conv1d_opts *opts);
OAR_API oar_dtensor oar_dtensor_conv2d(oar_tape *tape, oar_dtensor x,
                                       oar_dtensor weight,
                                       const oar_dtensor *bias,
                                       const oar_conv2d_opts *opts);
OAR_API oar_dtensor oar_dtensor_conv_transpose1d(
    oar_tape *tape, oar_dtensor x, oar_dtensor weight, const oar_dtensor *bias,
    const oar_conv_transpose1d_opts *opts);
OAR_API oar_dtensor oar_dtensor_conv_transpose2d(
    oar_tape *tape, oar_dtensor x, oar_dtensor weight, const oar_dtensor *bias,
    const oar_conv_transpose2d_opts *opts);
OAR_API oar_dtensor oar_dtensor_max_pool2d(oar_tape *tape, oar_dtensor x,
                                           int height, int width,
                                           const oar_pool2d_opts *opts);
OAR_API oar_dtensor oar_dtensor_avg_pool2d(oar_tape *tape, oar_dtensor x,
                                           int height, int width,
                                           const oar_pool2d_opts *opts);
OAR_API oar_dtensor oar_dtensor_adaptive_avg_pool1d(oar_tape *tape,
                                                    oar_dtensor x, int length);
OAR_API oar_dtensor oar_dtensor_adaptive_avg_pool2d(oar_tape *tape,
                                                    oar_dtensor x, int height,
                                                    int width);

OAR_END_DECLS

#endif
