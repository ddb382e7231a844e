/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/cuda_kernels.h: the kernels of GPUs. Each does what the cpu's of
 * the same name does (kernel_table.h says where that is written), in the order
 * of the thread's current stream of the device. */
#ifndef OARI_TENSOR_CUDA_CUDA_KERNELS_H
#define OARI_TENSOR_CUDA_CUDA_KERNELS_H

#include "tensor/kernel_table.h"

/* ---- arith.c ----------------------------------------------------------- */

oar_status oari_cuda_copy(const oari_array *to, const oari_array *from);
oar_status oari_cuda_fill(const oari_array *to, double value);
oar_status oari_cuda_scale(const oari_array *to, int add, const oari_array *a,
                           double factor);
oar_status oari_cuda_unary(oari_unary_kind kind, const oari_array *to,
                           const oari_array *a);
oar_status oari_cuda_unary_back(oari_unary_kind kind, const oari_array *to,
                                int add, const oari_array *grad,
                                const oari_array *saved);
oar_status oari_cuda_binary(oari_binary_kind kind, const oari_array *to,
                            const oari_array *a, const oari_array *b);
oar_status oari_cuda_binary_back(oari_binary_kind kind, int side,
                                 const oari_array *to, int add,
                                 const oari_array *grad, const oari_array *a,
                                 const oari_array *b);
oar_status oari_cuda_scalar(oari_scalar_kind kind, const oari_array *to,
                            const oari_array *a, const double *number);
oar_status oari_cuda_scalar_back(oari_scalar_kind kind, const oari_array *to,
                                 int add, const oari_array *grad,
                                 const oari_array *saved, const double *number);
oar_status oari_cuda_compare(oari_compare_kind kind, const oari_array *to,
                             const oari_array *a, const oari_array *b);
oar_status oari_cuda_mask_select(const oari_array *to, const oari_array *mask,
                                 const oari_array *a, const oari_array *b);
oar_status oari_cuda_mask_select_back(const oari_array *to, int add,
                                      const oari_array *mask, int side,
                                      const oari_array *grad);
oar_status oari_cuda_outside_triangle(const oari_array *to, int upper,
                                      int64_t diagonal);
oar_status oari_cuda_var_back(const oari_array *to, int add,
                              const oari_array *grad, const oari_array *a,
                              const oari_array *mean, double divisor);

/* ---- reductions.c ----------------------------------------------------- */

oar_status oari_cuda_reduce_over(oari_pool *pool, oari_reduce_kind kind,
                                 const oari_array *to, const oari_array *a,
                                 double factor);
oar_status oari_cuda_sum_to(oari_pool *pool, const oari_array *to, int add,
                            const oari_array *a);
oar_status oari_cuda_sum_all(const oari_array *to, const oari_array *a,
                             double factor);
oar_status oari_cuda_var(oari_pool *pool, const oari_array *to,
                         const oari_array *mean, const oari_array *a,
                         double divisor);
oar_status oari_cuda_extreme_back(oari_pool *pool, const oari_array *to,
                                  int add, const oari_array *grad,
                                  const oari_array *a,
                                  const oari_array *result);
oar_status oari_cuda_prod_back(oari_pool *pool, const oari_array *to, int add,
                               const oari_array *grad, const oari_array *a);

/* ---- lines.c ----------------------------------------------------------- */

oar_status oari_cuda_argmax(const oari_array *to, const oari_array *a);
oar_status oari_cuda_argmin(const oari_array *to, const oari_array *a);
oar_status oari_cuda_cumsum(const oari_array *to, int add, const oari_array *a,
                            int dim, int from_end);
oar_status oari_cuda_index_select(const oari_array *to, const oari_array *a,
                                  int dim, const oari_array *index);
oar_status oari_cuda_index_add(const oari_array *to, int dim,
                               const oari_array *index, const oari_array *grad);
oar_status oari_cuda_gather(const oari_array *to, const oari_array *a, int dim,
                            const oari_array *index);
oar_status oari_cuda_scatter_add(const oari_array *to, int dim,
                                 const oari_array *index,
                                 const oari_array *source);

/* ---- cuda_norm.c: weight and bias may be f32 where x is a half ----------- */

oar_status oari_cuda_layer_norm(const oari_array *to, const oari_array *mean,
                                const oari_array *rstd, const oari_array *x,
                                const oari_array *weight,
                                const oari_array *bias, double eps);
oar_status
oari_cuda_layer_norm_again(const oari_array *to, const oari_array *mean,
                           const oari_array *rstd, const oari_array *x,
                           const oari_array *weight, const oari_array *bias);
/* sum = a + b, and to = its norm, in one pass. */
oar_status oari_cuda_add_layer_norm(const oari_array *sum, const oari_array *to,
                                    const oari_array *mean,
                                    const oari_array *rstd, const oari_array *a,
                                    const oari_array *b,
                                    const oari_array *weight,
                                    const oari_array *bias, double eps);
/* scratch is unused; sums has room for oari_cuda_norm_sums numbers of what x is
 * computed in. dweight and dbias have one dtype, which may be f32. */
oar_status oari_cuda_layer_norm_back(const oari_norm_back *n);
int64_t oari_cuda_norm_sums(oari_rows rows);

/* ---- rows.c -------------------------------------------------------------- */

oar_status oari_cuda_softmax(const oari_array *to, const oari_array *a);
oar_status oari_cuda_softmax_back(const oari_array *to, int add,
                                  const oari_array *grad,
                                  const oari_array *result);
oar_status oari_cuda_log_softmax(const oari_array *to, const oari_array *a);
oar_status oari_cuda_log_softmax_back(const oari_array *to, int add,
                                      const oari_array *grad,
                                      const oari_array *result);

/* A cross entropy, whose sums stay on the device. */
typedef struct oari_cuda_entropy {
    const oari_array *logits; /* [rows, classes] */
    const oari_array *target; /* [rows] i64, any stride; checked */
    const oari_array *lse;    /* [rows], of what logits are computed in */
    const oari_array *sums;   /* [2] f64: all losses, all weights */
    const oari_entropy_rule *rule;
    int each;      /* the gradient has a number for each row */
    int by_weight; /* the loss is divided by the weights */
} oari_cuda_entropy;

/* Gives lse and the loss of each row, in the dtype of lse (loss may be NULL);
 * and, unless grad_to is NULL, the gradient of the logits for a loss whose
 * gradient is 1 there: grad_to may be logits; by_weight reads sums. */
oar_status oari_cuda_cross_entropy(const oari_cuda_entropy *e,
                                   const oari_array *loss,
                                   const oari_array *grad_to);
/* Gives the sums of the losses of all rows (0 if loss is NULL) and of their
 * weights; and the loss of all, one number of the logits' dtype, to `to`,
 * which may be NULL. target may have more rows than logits. */
oar_status oari_cuda_entropy_total(const oari_cuda_entropy *e,
                                   const oari_array *to,
                                   const oari_array *loss);
/* grad: [rows] if each, else one number, on the device. */
oar_status oari_cuda_cross_entropy_back(const oari_cuda_entropy *e,
                                        const oari_array *to, int add,
                                        const oari_array *grad);

/* ---- pairs.c ------------------------------------------------------------- */

/* The loss of each pair. */
oar_status oari_cuda_pair_loss(const oari_pairs *p, const oari_array *to);
/* to, one number, = factor times the sum of all. partial has room for
 * oari_cuda_pair_partial numbers. */
oar_status oari_cuda_pair_sum(const oari_pairs *p, const oari_array *to,
                              double factor, double *partial);
int64_t oari_cuda_pair_partial(void);
/* grad, on the device, has a number for each pair, or one. */
oar_status oari_cuda_pair_loss_back(const oari_pairs *p, int by_b,
                                    const oari_array *to, int add,
                                    const oari_array *grad, int each,
                                    double factor);

/* ---- cuda_embedding.c ---------------------------------------------------- */

/* The table's rows are those from `first` on of a vocabulary. */
typedef struct oari_table_part {
    int64_t first, vocabulary;
} oari_table_part;

/* Checks the indices, which are among the vocabulary's (part NULL: the
 * table's); row, unless NULL, gets the table's row of each index, or -1. */
oar_status oari_cuda_pick_rows(const oari_array *to, const oari_array *table,
                               const oari_array *index,
                               const oari_table_part *part,
                               const oari_array *row);
/* to [count] i64 = 0, 1, 2, ... */
oar_status oari_cuda_positions(const oari_array *to);
/* to (+)= the sums of the rows of grad by index. `to` may be f32 where grad is
 * a half; scratch has room for oari_cuda_add_rows_scratch numbers of 32 bits.
 */
oar_status oari_cuda_add_rows(const oari_array *to, int add,
                              const oari_array *grad, const oari_array *index,
                              int64_t skip, void *scratch);
int64_t oari_cuda_add_rows_scratch(int64_t picks, int64_t rows);

/* ---- cuda_hash.c --------------------------------------------------------- */

oar_status oari_cuda_hash_add(const oari_array *to, const oari_array *a,
                              uint64_t seed);

/* ---- cuda_low_rank.c ----------------------------------------------------- */

oar_status oari_cuda_low_rank_p(const oari_low_rank *l);
oar_status oari_cuda_low_rank_q(const oari_low_rank *l);
oar_status oari_cuda_low_rank_back(const oari_low_rank *l);

/* ---- draw.c -------------------------------------------------------------- */

oar_status oari_cuda_dropout(const oari_array *to, int add, const oari_array *a,
                             double p, uint64_t seed, int64_t first,
                             const int64_t *stride);
oar_status oari_cuda_rotary_angles(const oari_array *angle, int64_t first,
                                   double base);
oar_status oari_cuda_rotary(const oari_array *to, int add, const oari_array *x,
                            const oari_array *angle, int64_t turned, int back);

/* ---- product.c: any strides of a and b; to is f32 or of their dtype ------ */

oar_status oari_cuda_matmul(oari_pool *pool, const oari_array *to, int add,
                            const oari_array *a, const oari_array *b);

/* to [rows, n] = x [rows, k] times weight [n, k] turned, + bias [n] or NULL. */
oar_status oari_cuda_linear(oari_pool *pool, const oari_array *to,
                            const oari_array *x, const oari_array *weight,
                            const oari_array *bias);

/* pre = that, and to = a function of pre, in one pass where cuBLASLt has it.
 */
oar_status oari_cuda_linear_act(oari_pool *pool, oari_unary_kind kind,
                                const oari_array *to, const oari_array *pre,
                                const oari_array *x, const oari_array *weight,
                                const oari_array *bias);
/* to = a b times the slope of a function at pre. Returns OAR_E_UNSUPPORTED,
 * without an error's text, unless cuBLASLt has that as one pass. */
oar_status oari_cuda_matmul_slope(oari_unary_kind kind, const oari_array *to,
                                  const oari_array *pre, const oari_array *a,
                                  const oari_array *b);

/* ---- bias_act.c ---------------------------------------------------------- */

/* Returns below 0 if oari_cuda_act_back does not have this function. */
int oari_cuda_act_kind(oari_unary_kind kind);
/* As oari_cuda_unary, in packs of 16 bytes where that can be. */
oar_status oari_cuda_act(oari_unary_kind kind, const oari_array *to,
                         const oari_array *a);

/* The gradient of a function of every element and of a bias before it. All
 * matrices are row by row, of one dtype. */
typedef struct oari_cuda_act_grad {
    oari_unary_kind kind;
    const oari_array *grad;  /* of the result */
    const oari_array *pre;   /* what the function was of */
    const oari_array *to;    /* gets the gradient of that; may be grad */
    const oari_array *again; /* gets the result; may be pre, or NULL */
    const oari_array *sums;  /* (+)= the columns' sums; f32 or of their dtype */
    int add;                 /* to sums */
} oari_cuda_act_grad;
oar_status oari_cuda_act_back(oari_pool *pool, const oari_cuda_act_grad *g);

/* ---- cuda_attention.c ---------------------------------------------------- */

oar_status oari_cuda_attend(const oari_attention *a);
oar_status oari_cuda_attend_back(const oari_attention *a);
/* Numbers of scratch memory, f32 (f64 for f64), that backward needs. */
int64_t oari_cuda_attend_scratch(const oari_attention *a);

#endif
