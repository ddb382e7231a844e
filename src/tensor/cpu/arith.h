/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/arith.h: the arithmetic of ops.h, without tapes or gradients.
 *
 * As in kernels.h: shapes and dtypes are checked by the caller, `to` comes
 * first, and `add` adds to what it holds. Halves are computed in f32. `to` may
 * be exactly an input of the same shape in what goes element by element. */
#ifndef OARI_TENSOR_CPU_ARITH_H
#define OARI_TENSOR_CPU_ARITH_H

#include "tensor/arith_kinds.h"
#include "tensor/tensor.h"

/* ---- unary.c ------------------------------------------------------------- */

/* What the gradient is computed from. */
typedef enum oari_unary_saves {
    OARI_SAVES_NOTHING,
    OARI_SAVES_INPUT,
    OARI_SAVES_RESULT
} oari_unary_saves;

oari_unary_saves oari_unary_saved(oari_unary_kind kind);
int oari_unary_on_integers(oari_unary_kind kind);
oar_status oari_unary(oari_unary_kind kind, const oari_array *to,
                      const oari_array *a);
/* Sets `to` to the function of x, and x to its slope there, in one pass.
 * Returns 0, and does nothing, if for this kind and dtype that is no quicker
 * than two passes or gives other bits. Both arrays are row-major. */
int oari_unary_split(oari_unary_kind kind, const oari_array *to,
                     const oari_array *x);

/* to (+)= grad times the slope. saved is grad where nothing was saved. */
oar_status oari_unary_back(oari_unary_kind kind, const oari_array *to, int add,
                           const oari_array *grad, const oari_array *saved);

/* ---- binary.c: inputs broadcast to `to` ---------------------------------- */

oar_status oari_binary(oari_binary_kind kind, const oari_array *to,
                       const oari_array *a, const oari_array *b);

/* to (+)= the gradient of input `side` in the shape of grad, not yet summed
 * over what was broadcast. What the kind does not need may be grad itself. */
oar_status oari_binary_back(oari_binary_kind kind, int side,
                            const oari_array *to, int add,
                            const oari_array *grad, const oari_array *a,
                            const oari_array *b);

/* Returns whether an integer array has elements that are zero or negative. */
typedef struct oari_signs {
    int zero, negative;
} oari_signs;
oari_signs oari_signs_of(const oari_array *a);

/* base to a power, wrapping. */
static inline uint64_t oari_whole_power(uint64_t base, uint64_t exponent)
{
    uint64_t power = 1;

    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            power *= base;
    return power;
}

/* ---- scalar.c: with one or two numbers ----------------------------------- */

oar_status oari_scalar(oari_scalar_kind kind, const oari_array *to,
                       const oari_array *a, const double *number);
/* saved is the input. Not of OARI_SHIFT, whose slope is 1. */
oar_status oari_scalar_back(oari_scalar_kind kind, const oari_array *to,
                            int add, const oari_array *grad,
                            const oari_array *saved, const double *number);

/* ---- compare.c: `to` is bool --------------------------------------------- */

oar_status oari_compare(oari_compare_kind kind, const oari_array *to,
                        const oari_array *a, const oari_array *b);

/* ---- select.c: mask is bool; everything broadcasts to `to` --------------- */

/* a where mask is set, else b. Any dtype. */
oar_status oari_mask_select(const oari_array *to, const oari_array *mask,
                            const oari_array *a, const oari_array *b);
/* to (+)= grad where mask is `side`, else 0. Floats. */
oar_status oari_mask_select_back(const oari_array *to, int add,
                                 const oari_array *mask, int side,
                                 const oari_array *grad);
/* Sets a row-major bool matrix outside its lower (or upper) triangle. */
oar_status oari_outside_triangle(const oari_array *to, int upper,
                                 int64_t diagonal);

/* ---- reduce_dims.c ------------------------------------------------------
 * `to` is row-major and has a's dims, those reduced with size 1 (or, where it
 * is only summed into, a shape that broadcasts to a's). */

/* The dtype that a reduction of this dtype runs in. */
oar_dtype oari_sums_dtype(oari_reduce_kind kind, oar_dtype dtype);

/* Reduces a into sums, which is of that dtype and holds what to start from. */
oar_status oari_reduce_into(oari_reduce_kind kind, const oari_array *sums,
                            const oari_array *a);

/* Floats are summed and multiplied in f64, and with factor at the end; integers
 * wrap. max and min of floats are NaN if one of them is. */
oar_status oari_reduce_over(oari_pool *pool, oari_reduce_kind kind,
                            const oari_array *to, const oari_array *a,
                            double factor);

/* The first element of a that equals its result gets the gradient. */
oar_status oari_extreme_back(oari_pool *pool, const oari_array *to, int add,
                             const oari_array *grad, const oari_array *a,
                             const oari_array *result);
oar_status oari_prod_back(oari_pool *pool, const oari_array *to, int add,
                          const oari_array *grad, const oari_array *a);

/* The mean in `mean` (f64) and the variance, divided by `divisor`. */
oar_status oari_var(oari_pool *pool, const oari_array *to,
                    const oari_array *mean, const oari_array *a,
                    double divisor);
oar_status oari_var_back(const oari_array *to, int add, const oari_array *grad,
                         const oari_array *a, const oari_array *mean,
                         double divisor);

/* ---- top.c: a is row-major, no half -------------------------------------- */

/* Where the first largest of each row is, or the first smallest; a NaN is both.
 * `to` is i64. */
oar_status oari_argmax(const oari_array *to, const oari_array *a);
oar_status oari_argmin(const oari_array *to, const oari_array *a);
/* The largest of each row in order; value and index are row-major [.., k]. */
oar_status oari_topk(const oari_array *value, const oari_array *index,
                     const oari_array *a);

/* ---- sort.c: a is row-major, no half ------------------------------------- */

/* How many u64 of scratch a row of this width needs. */
int64_t oari_sort_scratch(int64_t width);
/* Where the elements of each row were before they are sorted: index is i64 and
 * row-major. Equal ones keep their order; NaN is largest. */
oar_status oari_sort(const oari_array *index, const oari_array *a,
                     int descending, uint64_t *scratch);

/* ---- scan.c: row-major, no half ------------------------------------------ */

/* Sums along dim from its start, or from its end. Floats are added in f64;
 * integers wrap, and are never added to `to`. */
oar_status oari_cumsum(const oari_array *to, int add, const oari_array *a,
                       int dim, int from_end);

/* ---- index.c: index is i64 and in range ---------------------------------- */

oar_status oari_index_select(const oari_array *to, const oari_array *a, int dim,
                             const oari_array *index);
/* to += grad at the places it was picked from. No halves. */
oar_status oari_index_add(const oari_array *to, int dim,
                          const oari_array *index, const oari_array *grad);
oar_status oari_gather(const oari_array *to, const oari_array *a, int dim,
                       const oari_array *index);
oar_status oari_scatter_add(const oari_array *to, int dim,
                            const oari_array *index, const oari_array *source);

#endif
