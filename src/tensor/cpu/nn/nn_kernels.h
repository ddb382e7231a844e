/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/nn/nn_kernels.h: the arithmetic of layers, as kernels.h has that
 * of tensors. All arrays of floats are row-major f32 or f64, all of one dtype
 * (see operands.h) unless said otherwise; they overlap only where said. */
#ifndef OARI_TENSOR_CPU_NN_NN_KERNELS_H
#define OARI_TENSOR_CPU_NN_NN_KERNELS_H

#include "tensor/cpu/kernels.h"

/* A shape as rows of its last dim; a single number is one row of one. */
typedef struct oari_rows {
    int64_t count, width;
} oari_rows;
oari_rows oari_rows_of(oar_shape shape);

/* Returns the data of an array that may be left out. */
static inline void *oari_data_or_null(const oari_array *a)
{
    return a != NULL ? oari_array_data(a) : NULL;
}

/* ---- softmax.c: over the last dim ---------------------------------------- */

/* `to` may be a, in backward grad. */
oar_status oari_softmax(const oari_array *to, const oari_array *a);
oar_status oari_softmax_back(const oari_array *to, int add,
                             const oari_array *grad, const oari_array *result);
oar_status oari_log_softmax(const oari_array *to, const oari_array *a);
oar_status oari_log_softmax_back(const oari_array *to, int add,
                                 const oari_array *grad,
                                 const oari_array *result);

/* ---- loss.c -------------------------------------------------------------- */

/* How rows count in a cross entropy. */
typedef struct oari_entropy_rule {
    int has_ignore;
    int64_t ignore;
    double smoothing;
    const oari_array *weight; /* [classes]; NULL: all are 1 */
} oari_entropy_rule;

/* The sum of the rows' losses, and of the weights of their targets. Rows that
 * are ignored have neither. */
typedef struct oari_entropy_sums {
    double loss, weight;
} oari_entropy_sums;

/* The loss of a row is -log softmax(logits)[target], weighted and smoothed. It
 * goes to `to` [rows] unless that is NULL; the logarithm of the row's sum of
 * exponentials to lse [rows]. logits is [rows, classes], target [rows] i64 with
 * any stride, in range or ignored. */
oari_entropy_sums oari_cross_entropy(const oari_array *to,
                                     const oari_array *lse,
                                     const oari_array *logits,
                                     const oari_array *target,
                                     const oari_entropy_rule *rule);
/* The gradient of a row's loss is `each`, times grad [rows] unless NULL. */
void oari_cross_entropy_back(const oari_array *to, int add, double each,
                             const oari_array *grad, const oari_array *lse,
                             const oari_array *logits, const oari_array *target,
                             const oari_entropy_rule *rule);

/* ---- entropy_part.c: the same where this is a part of the classes -------- */

typedef struct oari_entropy_part {
    const oari_array *logits; /* [rows, classes of the part] */
    const oari_array *target; /* [rows] i64, among all classes */
    oari_entropy_rule rule;   /* weight: of the part's classes */
    int64_t first, classes;   /* where the part begins; how many there are */
} oari_entropy_part;

/* The largest logit of each row; of none minus infinity. */
void oari_entropy_part_largest(const oari_entropy_part *p, double *most);
/* Sums over the classes, which add up to those of all parts; and how many
 * numbers they are. most: of all parts. */
int64_t oari_entropy_part_sums_count(const oari_entropy_part *p, int64_t rows);
void oari_entropy_part_sums(const oari_entropy_part *p, const double *most,
                            double *sum);
/* The losses from the sums of all parts, as oari_cross_entropy gives them. What
 * backward needs besides lse: the weight of each row's target [rows] (NULL
 * without weights), and of all classes together. */
oari_entropy_sums
oari_entropy_part_loss(const oari_entropy_part *p, const oari_array *to,
                       const oari_array *lse, const oari_array *weight,
                       const double *most, double *sum, double *total);
void oari_entropy_part_back(const oari_entropy_part *p, const oari_array *to,
                            int add, double each, const oari_array *grad,
                            const oari_array *lse, const oari_array *weight,
                            double total);

/* to (+)= a where kept, divided by 1 - p; zero elsewhere. `to` may be a. The
 * number drawn for an element is that of its position: first, and stride for
 * each step along a dim. */
oar_status oari_dropout(const oari_array *to, int add, const oari_array *a,
                        double p, uint64_t seed, int64_t first,
                        const int64_t *stride);

/* ---- pair_loss.c: numbers of a against those of b ------------------------ */

typedef enum oari_pair_kind {
    OARI_SQUARE,
    OARI_ABSOLUTE,
    OARI_HUBER,  /* a square up to edge, a line beyond */
    OARI_SMOOTH, /* the same divided by edge, which may be 0 */
    OARI_BCE,    /* binary cross entropy of logits a and probabilities b */
    OARI_KL,     /* of logarithms a and probabilities b */
    OARI_KL_LOG  /* of logarithms both */
} oari_pair_kind;

/* All have one shape. */
typedef struct oari_pairs {
    oari_pair_kind kind;
    double edge;
    const oari_array *a, *b;
    const oari_array *weight, *positive; /* of BCE, of the loss and of what b
                                            says is so; NULL: 1 */
} oari_pairs;

/* The loss of each pair goes to `to`; NULL: their sum is returned. */
double oari_pair_loss(const oari_pairs *p, const oari_array *to);
/* to (+)= factor times the slope of the loss by a, or by b (1), times grad,
 * which may be NULL. */
void oari_pair_loss_back(const oari_pairs *p, int by_b, const oari_array *to,
                         int add, const oari_array *grad, double factor);

/* ---- norm.c: over the last dim ------------------------------------------- */

/* mean and rstd get one number per row. mean NULL: of the root of the mean
 * square, without a centre. weight and bias may be NULL. */
oar_status oari_layer_norm(const oari_array *to, const oari_array *mean,
                           const oari_array *rstd, const oari_array *x,
                           const oari_array *weight, const oari_array *bias,
                           double eps);

/* Gives the bits of oari_layer_norm again, from the mean and rstd it gave. */
oar_status oari_layer_norm_again(const oari_array *to, const oari_array *mean,
                                 const oari_array *rstd, const oari_array *x,
                                 const oari_array *weight,
                                 const oari_array *bias);

/* The gradients of all three; any may be NULL; dx may be grad. scratch has room
 * for four rows, sums for two rows of f64. */
typedef struct oari_norm_back {
    const oari_array *grad, *x, *weight, *mean, *rstd;
    const oari_array *dx, *dweight, *dbias;
    int add; /* to dx; the other two are stored */
    void *scratch;
    double *sums;
} oari_norm_back;
oar_status oari_layer_norm_back(const oari_norm_back *n);

/* ---- batch_norm.c: x [n, channels, ..] ----------------------------------- */

/* Mean and variance (divided by the count) of each channel, f64. */
void oari_channel_moments(const oari_array *x, double *mean, double *var);

/* mean and rstd are [channels], f64. */
void oari_batch_norm(const oari_array *to, const oari_array *x,
                     const double *mean, const double *rstd,
                     const oari_array *weight, const oari_array *bias);

/* Compute gradients as oari_layer_norm_back does, with the struct above; here
 * mean and rstd are f64, scratch is unused and sums has room for two numbers
 * per channel: over all images the gradient times x normalised, and the
 * gradient. The first fills them in, and dweight and dbias; the second takes
 * sums over `count` numbers of a channel, from there or from elsewhere, too, to
 * dx. fixed: mean and rstd do not depend on x. */
void oari_batch_norm_sums(const oari_norm_back *n);
void oari_batch_norm_back(const oari_norm_back *n, double count, int fixed);

/* ---- group_norm.c: x [n, channels, ..] ----------------------------------- */

/* mean and rstd get one number for each group of each image. */
void oari_group_norm(const oari_array *to, double *mean, double *rstd,
                     const oari_array *x, int64_t groups,
                     const oari_array *weight, const oari_array *bias,
                     double eps);
/* Computes the gradients, with the struct above; here mean and rstd are f64,
 * scratch is unused and sums has room for two numbers per channel. */
void oari_group_norm_back(const oari_norm_back *n, int64_t groups);

/* ---- columns.c ----------------------------------------------------------- */

/* to [width] (+)= the column sums of a [rows, width]. */
oar_status oari_sum_columns(oari_pool *pool, const oari_array *to, int add,
                            const oari_array *a);

/* to [channels] (+)= the sums of a [n, channels, ..] over all but dim 1. */
oar_status oari_sum_channels(const oari_array *to, int add,
                             const oari_array *a);

/* to [count] = sums that were made in f64. NULL: nothing. */
void oari_store_sums(const oari_array *to, const double *sum, int64_t count);

/* ---- embedding.c: any dtype for rows; table of floats for backward ------- */

/* Rows of table [count, width] at index [..], row-major i64, in range or -1: a
 * row that the table does not have, which is zero. */
oar_status oari_pick_rows(const oari_array *to, const oari_array *table,
                          const oari_array *index);
/* to [count, width]: zeroed first unless add; then row by row, but none to row
 * `skip`, nor to row -1. */
oar_status oari_add_rows(const oari_array *to, int add, const oari_array *grad,
                         const oari_array *index, int64_t skip);

/* ---- rotary.c ------------------------------------------------------------ */

/* angle [t, d]: d/2 cosines and d/2 sines a row. */
oar_status oari_rotary_angles(const oari_array *angle, int64_t first,
                              double base);
/* `to` (+)= x turned by the angles, or back. Both are [.., t, h, d] with h
 * heads at each position, of which `turned` are turned and the others copied;
 * row-major. `to` may be x. */
oar_status oari_rotary(const oari_array *to, int add, const oari_array *x,
                       const oari_array *angle, int64_t turned, int back);

#endif
