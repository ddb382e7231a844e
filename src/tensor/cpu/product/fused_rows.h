/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/fused_rows.h: the elementwise kernels of fused.h, in loops
 * that the compiler turns into vectors. The including file defines
 *
 *   TARGET      the function attribute that allows the instructions, or nothing
 *   OARI_FUSES  where those instructions can fuse and the baseline cannot,
 *               before it includes anything
 */
#include "tensor/cpu/normal.h"
#include "tensor/cpu/product/fused.h"
#include "tensor/cpu/target_clones.h"

#define EACH_ELEMENT(i, n) OARI_IVDEP for (int64_t i = 0; i < (n); i++)

static TARGET void exp_less(float *y, const float *x, float less, int64_t n)
{
    EACH_ELEMENT(i, n)
        y[i] = oari_expf(x[i] - less);
}

static TARGET void gelu(float *y, const float *a, int64_t n)
{
    EACH_ELEMENT(i, n)
        y[i] = a[i] * oari_normal_cdff(a[i]);
}

static TARGET void gelu_back(float *y, int add, const float *grad,
                             const float *a, int64_t n)
{
    if (add)
        EACH_ELEMENT(i, n)
            y[i] += grad[i] * oari_gelu_slopef(a[i]);
    else
        EACH_ELEMENT(i, n)
            y[i] = grad[i] * oari_gelu_slopef(a[i]);
}

static TARGET void gelu_split(float *restrict y, float *restrict a, int64_t n)
{
    EACH_ELEMENT(i, n) {
        const float x = a[i], pdf = oari_normal_pdff(x);
        const float tail = oari_normal_tailf(x, pdf);
        const float cdf = oari_selectf(x < 0, tail, 1.0f - tail);

        y[i] = x * cdf;
        a[i] = oari_gelu_slope_of(x, pdf, cdf);
    }
}
