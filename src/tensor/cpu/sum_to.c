/* SPDX-License-Identifier: Apache-2.0 */
/* sum_to: the reductions that gradients are made of. Floats are summed in f64
 * and rounded once, in an order that depends only on shape and strides. */
#include "base/dtype.h"
#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/target_clones.h"

enum { COLUMNS = 64 };

oar_status oari_sum_all(const oari_array *to, const oari_array *a,
                        double factor)
{
    union {
        double real;
        uint64_t whole;
    } total = { 0 };
    oar_dtype dtype = oari_sums_dtype(OARI_REDUCE_SUM, a->dtype);
    oari_array sum = oari_host_array(&total, dtype, OAR_SCALAR);

    oari_reduce_into(OARI_REDUCE_SUM, &sum, a);
    if (dtype == OAR_F64)
        total.real *= factor;
    oari_convert(oari_array_data(to), to->dtype, &total, dtype, 1);
    return OAR_OK;
}

/* to [width] (+)= the column sums of a, row-major: what a bias gradient is. */
OARI_TARGET_CLONES static void sum_columns(const oari_array *to, int add,
                                           const oari_array *a, int64_t rows,
                                           int64_t width)
{
    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *from = oari_array_data(a);
        for (int64_t c = 0; c < width; c += COLUMNS) {
            int64_t n = width - c < COLUMNS ? width - c : COLUMNS;
            double sum[COLUMNS] = { 0 };

            for (int64_t r = 0; r < rows; r++)
                for (int64_t k = 0; k < n; k++)
                    sum[k] += (double)from[r * width + c + k];
            for (int64_t k = 0; k < n; k++)
                y[c + k] = (T)sum[k] + (add ? y[c + k] : (T)0);
        }
    })
}

/* By way of an array of sums, to which what `to` holds is added first. */
static oar_status sum_dims(oari_pool *pool, const oari_array *to, int add,
                           const oari_array *a)
{
    oar_tensor *scratch = oari_tensor_make(pool, OAR_F64, to->at.shape);
    oari_array sums;

    if (scratch == NULL)
        return OAR_E_NOMEM;
    sums = oari_array_of(scratch);
    if (add)
        oari_copy(&sums, to);
    else
        oari_fill(&sums, 0);
    oari_reduce_into(OARI_REDUCE_SUM, &sums, a);
    oari_copy(to, &sums);
    oari_tensor_drop(pool, scratch);
    return OAR_OK;
}

/* Whether `small` is the last dims of `large`. */
static int is_tail(oar_shape small, oar_shape large)
{
    for (int i = 1; i <= small.ndim; i++)
        if (small.dim[small.ndim - i] != large.dim[large.ndim - i])
            return 0;
    return 1;
}

oar_status oari_sum_to(oari_pool *pool, const oari_array *to, int add,
                       const oari_array *a)
{
    int64_t width = oari_shape_count(to->at.shape);

    if (to->dtype == a->dtype && oari_shape_equal(to->at.shape, a->at.shape)) {
        oari_scale(to, add, a, 1);
        return OAR_OK;
    }
    if (width == 0 || oari_dtype_is_half(to->dtype) || to->dtype != a->dtype ||
        !is_tail(to->at.shape, a->at.shape) || !oari_layout_is_rows(&a->at))
        return sum_dims(pool, to, add, a);
    sum_columns(to, add, a, oari_shape_count(a->at.shape) / width, width);
    return OAR_OK;
}
