/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/kernels.h: the arithmetic, without tapes or gradients.
 *
 * Kernels work on arrays whose shapes and dtypes the caller has checked. `to`
 * comes first; where there is an `add`, the result is added to what `to` holds
 * instead of replacing it. `to` may be exactly an input only where said. Those
 * that take a pool may need scratch memory, and can fail only for that. */
#ifndef OARI_TENSOR_KERNELS_H
#define OARI_TENSOR_KERNELS_H

#include "tensor/tensor.h"

/* ---- copy.c: any dtype, any strides ------------------------------------- */

/* Converts where the dtypes differ. Same shape. */
void oari_copy(const oari_array *to, const oari_array *from);
void oari_fill(const oari_array *to, double value);

/* ---- random.c: row-major `to` ------------------------------------------- */

void oari_fill_uniform(const oari_array *to, uint64_t seed, double low,
                       double high);
void oari_fill_normal(const oari_array *to, uint64_t seed, double mean,
                      double deviation);

/* ---- elementwise.c: inputs broadcast to `to` ---------------------------- */

void oari_add(const oari_array *to, int add, const oari_array *a,
              const oari_array *b);
void oari_mul(const oari_array *to, int add, const oari_array *a,
              const oari_array *b);

/* to (+)= factor * a. Floats. `to` may be a. */
void oari_scale(const oari_array *to, int add, const oari_array *a,
                double factor);
/* `to` may be a. */
void oari_relu(const oari_array *to, const oari_array *a);
/* to (+)= grad where result, relu's, is above zero. `to` may be grad. */
void oari_relu_back(const oari_array *to, int add, const oari_array *grad,
                    const oari_array *result);

/* ---- sum.c -------------------------------------------------------------- */

/* to, one element, = factor times the sum of all of a. Floats are summed in
 * f64; integers wrap, and factor is for floats only. */
void oari_sum_all(const oari_array *to, const oari_array *a, double factor);

/* Sums a over the dims that `to` was broadcast along: what the gradient of a
 * broadcast is. Floats, summed in f64. */
oar_status oari_sum_to(oari_pool *pool, const oari_array *to, int add,
                       const oari_array *a);

/* ---- matmul.c: f32 and f64 ---------------------------------------------- */

/* to [m, n] (row-major) (+)= a [m, k] times b [k, n]. Transposed views cost no
 * copy. OAR_E_UNSUPPORTED for a side that CBLAS cannot count. */
oar_status oari_matmul(oari_pool *pool, const oari_array *to, int add,
                       const oari_array *a, const oari_array *b);

/* ---- softmax.c: row-major `to`, f32 and f64 ----------------------------- */

/* Over the last dim. a has any strides; `to` may be a. */
void oari_softmax(const oari_array *to, const oari_array *a);
void oari_softmax_back(const oari_array *to, int add, const oari_array *grad,
                       const oari_array *result);

/* to, one element, = mean of -log softmax(logits)[target], and the softmax in
 * prob, row-major. logits is [rows, classes], target [rows] i64, in range. */
void oari_cross_entropy(const oari_array *to, const oari_array *prob,
                        const oari_array *logits, const oari_array *target);
void oari_cross_entropy_back(const oari_array *to, int add,
                             const oari_array *grad, const oari_array *prob,
                             const oari_array *target);

#endif
