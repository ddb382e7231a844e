/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/fused.h: the f32 kernels that gain most from wide vectors
 * and from a multiplication and an addition in one step, for each level of
 * base/isa.h.
 *
 * One text serves all levels (fused_rows.h, fused_product.h). Elements do not
 * depend on the width of a vector, so all levels that fuse give the same bits,
 * as do those of other machines that fuse; only the baseline of x86-64 rounds
 * twice. */
#ifndef OARI_TENSOR_CPU_PRODUCT_FUSED_H
#define OARI_TENSOR_CPU_PRODUCT_FUSED_H

#include <stdint.h>

#include "base/isa.h"
#include "tensor/cpu/math.h"

/* c (+)= factor a b, where b's and c's columns lie without gaps. The sum for
 * an element of c starts at 0 and takes k in order, rounded once each; then
 * the factor, then what was there. */
typedef struct oari_product {
    const float *a, *b;
    float *c;
    int64_t m, n, k;
    int64_t row, step; /* of a: from row to row, from one k to the next */
    int64_t ldb, ldc;
    float factor;
    int add;
} oari_product;

typedef struct oari_fused_set {
    /* (optional) NULL: CBLAS is better. Made for b in the first cache. */
    void (*product)(const oari_product *p);
    /* y = e^(x - less); y may be x. */
    void (*exp_less)(float *y, const float *x, float less, int64_t n);
    /* y = a cdf(a), of normal.h; y may be a. */
    void (*gelu)(float *y, const float *a, int64_t n);
    /* y (+)= grad times the slope of that at a; y may be either. */
    void (*gelu_back)(float *y, int add, const float *grad, const float *a,
                      int64_t n);
    /* y = a cdf(a), and a becomes the slope there; they do not overlap. */
    void (*gelu_split)(float *restrict y, float *restrict a, int64_t n);
} oari_fused_set;

extern const oari_fused_set oari_fused_baseline;
#if defined(__x86_64__)
extern const oari_fused_set oari_fused_avx2, oari_fused_avx512;
#endif

/* Returns the set of oari_isa_here(), unless a test has chosen another. Any
 * thread. */
const oari_fused_set *oari_fused(void);

/* Chooses the set of a level. Returns 0, and changes nothing, where this
 * machine lacks it. */
int oari_fused_use(oari_isa isa);

static inline void oari_exp_less_f32(float *y, const float *x, float less,
                                     int64_t n)
{
    oari_fused()->exp_less(y, x, less, n);
}

static inline void oari_exp_less_f64(double *y, const double *x, double less,
                                     int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = exp(x[i] - less);
}

/* y = e^(x - less), n of them, by the type of the row. */
#define OARI_EXP_LESS(y, x, less, n)     \
    _Generic(*(y), float                 \
             : oari_exp_less_f32, double \
             : oari_exp_less_f64)(y, x, less, n)

#endif
