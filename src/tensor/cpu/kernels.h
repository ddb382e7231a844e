/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/kernels.h: the arithmetic, without tapes or gradients.
 *
 * Kernels work on arrays whose shapes and dtypes the caller has checked. `to`
 * comes first; where there is an `add`, the result is added to what `to` holds
 * instead of replacing it. `to` may be exactly an input only where said. Those
 * that take a pool may need scratch memory, and can fail only for that. */
#ifndef OARI_TENSOR_CPU_KERNELS_H
#define OARI_TENSOR_CPU_KERNELS_H

#include "tensor/tensor.h"

/* ---- tensor_copy.c: any dtype, any strides ------------------------------- */

/* Converts where the dtypes differ. Same shape. */
oar_status oari_copy(const oari_array *to, const oari_array *from);
oar_status oari_fill(const oari_array *to, double value);

/* Adds to `to`, one u64, a hash of the bytes of a, which is row-major, and of
 * the seed. */
oar_status oari_hash_add(const oari_array *to, const oari_array *a,
                         uint64_t seed);

/* ---- random.c: numbers first .. first+count-1 of the row of a seed ------- */

void oari_fill_uniform(void *to, oar_dtype dtype, int64_t first, int64_t count,
                       uint64_t seed, double low, double high);
void oari_fill_normal(void *to, oar_dtype dtype, int64_t first, int64_t count,
                      uint64_t seed, double mean, double deviation);

/* ---- accumulate.c: the input broadcasts to `to` -------------------------- */

/* to (+)= factor * a; for integers a whole factor. `to` may be a. */
oar_status oari_scale(const oari_array *to, int add, const oari_array *a,
                      double factor);

/* ---- sum_to.c ------------------------------------------------------------ */

/* to, one element, = factor times the sum of all of a. Floats are summed in
 * f64; integers wrap, and factor is for floats only. */
oar_status oari_sum_all(const oari_array *to, const oari_array *a,
                        double factor);

/* Sums a over the dims that `to` was broadcast along: what the gradient of a
 * broadcast is. Floats, summed in f64; a half `to` takes an f32 a too. */
oar_status oari_sum_to(oari_pool *pool, const oari_array *to, int add,
                       const oari_array *a);

/* ---- matmul.c: floats ---------------------------------------------------- */

/* to [.., m, n] (row-major) (+)= a [.., m, k] times b [.., k, n]. The leading
 * dims of all three broadcast; a result that several products go to is their
 * sum. Transposed views cost no copy. OAR_E_UNSUPPORTED for a side that CBLAS
 * cannot count. */
oar_status oari_matmul(oari_pool *pool, const oari_array *to, int add,
                       const oari_array *a, const oari_array *b);

#endif
