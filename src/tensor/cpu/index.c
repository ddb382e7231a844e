/* SPDX-License-Identifier: Apache-2.0 */
/* index: elements picked by the numbers in another array, and put back. */
#include <string.h>

#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/walk.h"

/* ---- whole slices -------------------------------------------------------- */

static int64_t index_at(const oari_array *index, int64_t i)
{
    const int64_t *number = oari_array_data(index);

    return number[i * index->at.stride[0]];
}

oar_status oari_index_select(const oari_array *to, const oari_array *a, int dim,
                             const oari_array *index)
{
    oari_around s = oari_shape_around(a->at.shape, dim);
    size_t bytes = (size_t)s.after * oar_dtype_size(a->dtype);
    int64_t picks = to->at.shape.dim[dim];
    const char *x = oari_array_data(a);
    char *y = oari_array_data(to);
    oari_array part = *to, from = *a;

    if (oari_shape_count(to->at.shape) == 0)
        return OAR_OK;
    if (oari_layout_is_rows(&a->at)) {
        for (int64_t b = 0; b < s.before; b++)
            for (int64_t i = 0; i < picks; i++, y += bytes)
                memcpy(y, x + (size_t)(b * s.at + index_at(index, i)) * bytes,
                       bytes);
        return OAR_OK;
    }
    for (int64_t i = 0; i < picks; i++) {
        part.at = oari_layout_narrow(to->at, dim, i, 1);
        from.at = oari_layout_narrow(a->at, dim, index_at(index, i), 1);
        oari_copy(&part, &from);
    }
    return OAR_OK;
}

oar_status oari_index_add(const oari_array *to, int dim,
                          const oari_array *index, const oari_array *grad)
{
    oari_around s = oari_shape_around(to->at.shape, dim);
    int64_t picks = grad->at.shape.dim[dim];

    OARI_BY_FLOAT(to->dtype, {
        const T *g = oari_array_data(grad);
        for (int64_t b = 0; b < s.before; b++)
            for (int64_t i = 0; i < picks; i++, g += s.after) {
                T *y = oari_array_data(to);
                y += (b * s.at + index_at(index, i)) * s.after;
                for (int64_t k = 0; k < s.after; k++)
                    y[k] += g[k];
            }
    })
    return OAR_OK;
}

/* ---- single elements ----------------------------------------------------- */

/* a in the shape of index, with nothing moving along dim: the number in index
 * does that. */
static oari_array flatten_dim(const oari_array *a, int dim,
                              const oari_array *index)
{
    oari_array out = *a;

    out.at.shape = index->at.shape;
    out.at.stride[dim] = 0;
    return out;
}

typedef struct job {
    oar_dtype dtype;
    int64_t stride; /* of a's dim */
} job;

static void gather_row(const oari_walk_row *row, void *arg)
{
    const job *j = arg;
    const int64_t *s = row->stride, *index = row->data[1];

    OARI_BY_BYTES(oar_dtype_size(j->dtype), {
        T *y = row->data[0];
        const T *a = row->data[2];
        for (int64_t i = 0; i < row->count; i++)
            y[i * s[0]] = a[i * s[2] + index[i * s[1]] * j->stride];
    })
}

oar_status oari_gather(const oari_array *to, const oari_array *a, int dim,
                       const oari_array *index)
{
    oari_array from = flatten_dim(a, dim, index);
    job j = { a->dtype, a->at.stride[dim] };

    oari_walk(index->at.shape, 3, (const oari_array *[]){ to, index, &from },
              gather_row, &j);
    return OAR_OK;
}

static void scatter_row(const oari_walk_row *row, void *arg)
{
    const job *j = arg;
    const int64_t *s = row->stride, *index = row->data[1];

    OARI_BY_NUMBER(j->dtype, {
        T *y = row->data[0];
        const T *a = row->data[2];
        for (int64_t i = 0; i < row->count; i++) {
            T *at = &y[i * s[0] + index[i * s[1]] * j->stride];
            *at = (T)((W)*at + (W)a[i * s[2]]);
        }
    })
}

oar_status oari_scatter_add(const oari_array *to, int dim,
                            const oari_array *index, const oari_array *source)
{
    oari_array into = flatten_dim(to, dim, index);
    job j = { to->dtype, to->at.stride[dim] };

    oari_walk(index->at.shape, 3,
              (const oari_array *[]){ &into, index, source }, scatter_row, &j);
    return OAR_OK;
}
