/* SPDX-License-Identifier: Apache-2.0 */
/* matmul: the product of two matrices, by CBLAS. A matrix whose rows or columns
 * lie without gaps goes there as it is; any other is copied first. */
#include <limits.h>

#include <cblas.h>

#include "base/status.h"
#include "tensor/blas.h"
#include "tensor/kernels.h"

/* One side of a product, as CBLAS wants it. */
typedef struct side {
    const void *data;
    enum CBLAS_TRANSPOSE trans;
    int64_t lead;        /* elements between rows (columns if transposed) */
    oar_tensor *scratch; /* the copy, if one was needed */
} side;

/* Whether a matrix with these strides is rows one after another, some
 * distance apart; *lead is that distance. */
static int has_rows(int64_t rows, int64_t columns, int64_t row_stride,
                    int64_t column_stride, int64_t *lead)
{
    if (column_stride != 1 && columns != 1)
        return 0;
    *lead = rows == 1 ? columns : row_stride;
    return *lead >= columns;
}

static oar_status make_side(oari_pool *pool, const oari_array *a, side *s)
{
    const oari_layout *at = &a->at;
    int64_t rows = at->shape.dim[0], columns = at->shape.dim[1];
    oari_array copy;

    s->data = oari_array_data(a);
    s->trans = CblasNoTrans;
    if (has_rows(rows, columns, at->stride[0], at->stride[1], &s->lead))
        return OAR_OK;
    s->trans = CblasTrans;
    if (has_rows(columns, rows, at->stride[1], at->stride[0], &s->lead))
        return OAR_OK;
    s->scratch = oari_tensor_make(pool, a->dtype, at->shape);
    if (s->scratch == NULL)
        return OAR_E_NOMEM;
    copy = oari_array_of(s->scratch);
    oari_copy(&copy, a);
    *s = (side){ oari_array_data(&copy), CblasNoTrans, columns, s->scratch };
    return OAR_OK;
}

static oar_status check_sizes(const oari_array *a, const oari_array *b)
{
    if (a->at.shape.dim[0] <= INT_MAX && a->at.shape.dim[1] <= INT_MAX &&
        b->at.shape.dim[1] <= INT_MAX)
        return OAR_OK;
    return oari_fail(
        OAR_E_UNSUPPORTED, "matmul of %s and %s: CBLAS counts in 32 bits",
        oari_shape_text(a->at.shape).text, oari_shape_text(b->at.shape).text);
}

static void multiply(const oari_array *to, int add, const side *a,
                     const side *b, int64_t k)
{
    int m = (int)to->at.shape.dim[0], n = (int)to->at.shape.dim[1];
    int lda = (int)a->lead, ldb = (int)b->lead;
    void *c = oari_array_data(to);

    oari_blas_settle();
    if (to->dtype == OAR_F32)
        cblas_sgemm(CblasRowMajor, a->trans, b->trans, m, n, (int)k, 1.0f,
                    a->data, lda, b->data, ldb, add ? 1.0f : 0.0f, c, n);
    else
        cblas_dgemm(CblasRowMajor, a->trans, b->trans, m, n, (int)k, 1.0,
                    a->data, lda, b->data, ldb, add ? 1.0 : 0.0, c, n);
}

oar_status oari_matmul(oari_pool *pool, const oari_array *to, int add,
                       const oari_array *a, const oari_array *b)
{
    int64_t k = a->at.shape.dim[1];
    side left = { 0 }, right = { 0 };
    oar_status status;

    OARI_TRY(check_sizes(a, b));
    if (oari_shape_count(to->at.shape) == 0)
        return OAR_OK;
    if (k == 0) { /* a sum of nothing */
        if (!add)
            oari_fill(to, 0);
        return OAR_OK;
    }
    status = make_side(pool, a, &left);
    if (status == OAR_OK)
        status = make_side(pool, b, &right);
    if (status == OAR_OK)
        multiply(to, add, &left, &right, k);
    oari_tensor_drop(pool, left.scratch);
    oari_tensor_drop(pool, right.scratch);
    return status;
}
