/* SPDX-License-Identifier: Apache-2.0 */
/* columns: sums of columns and of channels: what bias gradients are. In the
 * dtype itself for a few rows at a time, and in f64 over those. */
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

enum { COLUMNS = 64, ROWS = 32 };

#define ADD_ROWS(sum, from, rows, n, width)  \
    for (int64_t i_ = 0; i_ < (rows); i_++)  \
        for (int64_t k_ = 0; k_ < (n); k_++) \
            sum[k_] += (from)[i_ * (width) + k_];

OARI_TARGET_CLONES oar_status oari_sum_columns(oari_pool *pool,
                                               const oari_array *to, int add,
                                               const oari_array *a)
{
    oari_rows r = oari_rows_of(a->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *from = oari_array_data(a);
        for (int64_t c = 0; c < r.width; c += COLUMNS) {
            int64_t n = r.width - c < COLUMNS ? r.width - c : COLUMNS;
            double total[COLUMNS] = { 0 };
            for (int64_t i = 0; i < r.count; i += ROWS) {
                int64_t rows = r.count - i < ROWS ? r.count - i : ROWS;
                const T *first = from + i * r.width + c;
                T sum[COLUMNS] = { 0 };
                if (n == COLUMNS)
                    ADD_ROWS(sum, first, rows, COLUMNS, r.width)
                else
                    ADD_ROWS(sum, first, rows, n, r.width)
                for (int64_t k = 0; k < n; k++)
                    total[k] += (double)sum[k];
            }
            for (int64_t k = 0; k < n; k++)
                y[c + k] = (T)total[k] + (add ? y[c + k] : (T)0);
        }
    })
    return OAR_OK;
}

OARI_TARGET_CLONES oar_status oari_sum_channels(const oari_array *to, int add,
                                                const oari_array *a)
{
    int64_t channels = to->at.shape.dim[0], images = a->at.shape.dim[0];
    int64_t count = oari_shape_count(a->at.shape);
    int64_t inner = count > 0 ? count / (images * channels) : 0;

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *from = oari_array_data(a);
        for (int64_t c = 0; c < channels; c++) {
            double sum = 0;
            for (int64_t i = 0; i < images; i++)
                sum += (double)OARI_ROW_SUM(from + (i * channels + c) * inner,
                                            inner);
            y[c] = (T)sum + (add ? y[c] : (T)0);
        }
    })
    return OAR_OK;
}

void oari_store_sums(const oari_array *to, const double *sum, int64_t count)
{
    if (to == NULL)
        return;
    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        for (int64_t k = 0; k < count; k++)
            y[k] = (T)sum[k];
    })
}
