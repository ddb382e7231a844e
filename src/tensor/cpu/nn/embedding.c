/* SPDX-License-Identifier: Apache-2.0 */
/* embedding: rows of a table by index. */
#include <string.h>

#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

oar_status oari_pick_rows(const oari_array *to, const oari_array *table,
                          const oari_array *index)
{
    const int64_t *at = oari_array_data(index);
    size_t bytes = (size_t)table->at.shape.dim[1] * oar_dtype_size(to->dtype);
    const char *from = oari_array_data(table);
    char *y = oari_array_data(to);
    int64_t count = oari_shape_count(index->at.shape);

    for (int64_t i = 0; i < count; i++, y += bytes)
        if (at[i] >= 0)
            memcpy(y, from + (size_t)at[i] * bytes, bytes);
        else
            memset(y, 0, bytes);
    return OAR_OK;
}

OARI_TARGET_CLONES oar_status oari_add_rows(const oari_array *to, int add,
                                            const oari_array *grad,
                                            const oari_array *index,
                                            int64_t skip)
{
    const int64_t *at = oari_array_data(index);
    int64_t width = to->at.shape.dim[1];
    int64_t count = oari_shape_count(index->at.shape);

    if (!add)
        oari_fill(to, 0);
    OARI_BY_FLOAT(to->dtype, {
        const T *g = oari_array_data(grad);
        T *table = oari_array_data(to);
        for (int64_t i = 0; i < count; i++, g += width) {
            if (at[i] < 0 || at[i] == skip)
                continue;
            T *restrict row = table + at[i] * width;
            for (int64_t k = 0; k < width; k++)
                row[k] += g[k];
        }
    })
    return OAR_OK;
}
