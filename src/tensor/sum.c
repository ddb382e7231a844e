/* SPDX-License-Identifier: Apache-2.0 */
/* sum: reductions. Floats are summed in f64 and rounded once, in an order that
 * depends only on shape and strides. */
#include "base/dtype.h"
#include "tensor/dispatch.h"
#include "tensor/kernels.h"
#include "tensor/walk.h"

enum { LANES = 8, COLUMNS = 64 };

typedef struct total {
    oar_dtype dtype;
    double real;
    uint64_t whole;
} total;

/* Several sums at once, so that one does not wait for the other. */
#define SUM_OF(a, stride, count, sum)                           \
    do {                                                        \
        double lane_[LANES] = { 0 };                            \
        int64_t i_ = 0;                                         \
        for (; i_ + LANES <= (count); i_ += LANES)              \
            for (int k_ = 0; k_ < LANES; k_++)                  \
                lane_[k_] += (double)(a)[(i_ + k_) * (stride)]; \
        for (; i_ < (count); i_++)                              \
            lane_[0] += (double)(a)[i_ * (stride)];             \
        for (int k_ = 0; k_ < LANES; k_++)                      \
            (sum) += lane_[k_];                                 \
    } while (0)

static void sum_row(const oari_row *row, void *arg)
{
    total *t = arg;

    OARI_BY_FLOAT(t->dtype, {
        const T *a = row->data[0];
        if (row->stride[0] == 1)
            SUM_OF(a, 1, row->count, t->real);
        else
            SUM_OF(a, row->stride[0], row->count, t->real);
    })
    OARI_BY_INTEGER(t->dtype, {
        const T *a = row->data[0];
        for (int64_t i = 0; i < row->count; i++)
            t->whole += (uint64_t)a[i * row->stride[0]];
    })
}

void oari_sum_all(const oari_array *to, const oari_array *a, double factor)
{
    total t = { .dtype = a->dtype };

    oari_walk(a->at.shape, 1, &a, sum_row, &t);
    t.real *= factor;
    if (oari_dtype_is_float(a->dtype))
        oari_convert(oari_array_data(to), to->dtype, &t.real, OAR_F64, 1);
    else
        oari_convert(oari_array_data(to), to->dtype, &t.whole, OAR_U64, 1);
}

/* to [width] (+)= the column sums of a, row-major: what a bias gradient is. */
static void sum_columns(const oari_array *to, int add, const oari_array *a,
                        int64_t rows, int64_t width)
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

/* Adds a row of floats, data[1], into a row of f64 sums, data[0]. */
static void gather_row(const oari_row *row, void *arg)
{
    const oar_dtype *dtype = arg;
    double *sum = row->data[0];

    OARI_BY_FLOAT(*dtype, {
        const T *a = row->data[1];
        if (row->stride[0] == 0)
            SUM_OF(a, row->stride[1], row->count, sum[0]);
        else
            for (int64_t i = 0; i < row->count; i++)
                sum[i * row->stride[0]] += (double)a[i * row->stride[1]];
    })
}

static void add_sums(const oari_array *to, int add, const oari_array *sums)
{
    const double *sum = oari_array_data(sums);
    int64_t count = oari_shape_count(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < count; i++)
            y[i] = (T)sum[i] + (add ? y[i] : (T)0);
    })
}

static oar_status sum_dims(oari_pool *pool, const oari_array *to, int add,
                           const oari_array *a)
{
    oar_tensor *scratch = oari_tensor_make(pool, OAR_F64, to->at.shape);
    oar_dtype dtype = a->dtype;
    oari_array sums;

    if (scratch == NULL)
        return OAR_E_NOMEM;
    sums = oari_array_of(scratch);
    oari_fill(&sums, 0);
    oari_walk(a->at.shape, 2, (const oari_array *[]){ &sums, a }, gather_row,
              &dtype);
    add_sums(to, add, &sums);
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

    if (oari_shape_equal(to->at.shape, a->at.shape)) {
        oari_scale(to, add, a, 1);
        return OAR_OK;
    }
    if (width == 0 || !is_tail(to->at.shape, a->at.shape) ||
        !oari_layout_is_rows(&a->at))
        return sum_dims(pool, to, add, a);
    sum_columns(to, add, a, oari_shape_count(a->at.shape) / width, width);
    return OAR_OK;
}
