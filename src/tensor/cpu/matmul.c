/* SPDX-License-Identifier: Apache-2.0 */
/* matmul: products of matrices, by CBLAS, or by oneDNN if dnnl.h says so. A
 * matrix whose rows or columns lie without gaps goes there as it is; any other
 * is copied first. Many matrices that lie like one large one are multiplied as
 * that; others one by one. Halves that oneDNN does not take go by way of f32.
 */
#include <limits.h>

#include <cblas.h>

#include "base/status.h"
#include "tensor/cpu/product/blas.h"
#include "tensor/cpu/product/dnnl.h"
#include "tensor/operands.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/walk.h"

enum {
    PIECE = 1 << 18, /* numbers of the left side for CBLAS at once */
    LEAST_ROWS = 512 /* fewer would be slow */
};

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

static void multiply_rows(const oari_array *to, int add, const side *a,
                          const side *b, int64_t k, int64_t first, int64_t rows)
{
    int64_t bytes = (int64_t)oar_dtype_size(to->dtype);
    int m = (int)rows, n = (int)to->at.shape.dim[1];
    int lda = (int)a->lead, ldb = (int)b->lead;
    const void *from = (const char *)a->data + first * a->lead * bytes;
    void *c = (char *)oari_array_data(to) + first * n * bytes;

    if (to->dtype == OAR_F32)
        cblas_sgemm(CblasRowMajor, a->trans, b->trans, m, n, (int)k, 1.0f, from,
                    lda, b->data, ldb, add ? 1.0f : 0.0f, c, n);
    else
        cblas_dgemm(CblasRowMajor, a->trans, b->trans, m, n, (int)k, 1.0, from,
                    lda, b->data, ldb, add ? 1.0 : 0.0, c, n);
}

static oari_matrix matrix_of(const side *s)
{
    return (oari_matrix){ s->data, s->lead, s->trans != CblasNoTrans };
}

/* By oneDNN, if it takes such products and has a way for this one; else
 * OAR_E_UNSUPPORTED. */
static oar_status multiply_by_dnnl(oari_pool *pool, const oari_array *to,
                                   int add, const side *a, const side *b,
                                   int64_t k, oar_dtype dtype)
{
    int64_t m = to->at.shape.dim[0], n = to->at.shape.dim[1];

    if (!oari_dnnl_takes(dtype, m, n, k))
        return OAR_E_UNSUPPORTED;
    return oari_dnnl_multiply(pool,
                              &(oari_gemm_job){
                                  .dtype = dtype,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .factor = 1,
                                  .a = matrix_of(a),
                                  .b = matrix_of(b),
                                  .c = oari_array_data(to),
                                  .lead = n,
                                  .add = add,
                              },
                              to->dtype);
}

/* CBLAS packs all rows of a that it is given, k numbers each, into memory of
 * its own. It gets them in parts: no need for that to grow with the batch. */
static void multiply_sides(const oari_array *to, int add, const side *a,
                           const side *b, int64_t k)
{
    int64_t m = to->at.shape.dim[0], rows = PIECE / k;

    if (rows < LEAST_ROWS)
        rows = LEAST_ROWS;
    if (a->trans != CblasNoTrans || rows > m)
        rows = m;
    oari_blas_enter();
    for (int64_t i = 0; i < m; i += rows)
        multiply_rows(to, add, a, b, k, i, m - i < rows ? m - i : rows);
    oari_blas_leave();
}

/* Of two matrices. OAR_E_UNSUPPORTED without an error: they are halves, which
 * nobody takes as they are. */
static oar_status multiply_pair(oari_pool *pool, const oari_array *to, int add,
                                const oari_array *a, const oari_array *b)
{
    int64_t k = a->at.shape.dim[1];
    side left = { 0 }, right = { 0 };
    oar_status status;

    if (a->at.shape.dim[0] > INT_MAX || k > INT_MAX ||
        b->at.shape.dim[1] > INT_MAX)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "matmul of %s and %s: CBLAS counts in 32 bits",
                         oari_shape_text(a->at.shape).text,
                         oari_shape_text(b->at.shape).text);
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
        status = multiply_by_dnnl(pool, to, add, &left, &right, k, a->dtype);
    if (status == OAR_E_UNSUPPORTED && !oari_dtype_is_half(a->dtype)) {
        multiply_sides(to, add, &left, &right, k);
        status = OAR_OK;
    }
    oari_tensor_drop(pool, left.scratch);
    oari_tensor_drop(pool, right.scratch);
    return status;
}

/* ---- many matrices ------------------------------------------------------- */

static oari_array transposed(oari_array a)
{
    int last = a.at.shape.ndim - 1;

    a.at = oari_layout_transpose(a.at, last - 1, last);
    return a;
}

/* The dims before the last two. */
static oari_array lead_of(oari_array a)
{
    a.at.shape.ndim -= 2;
    return a;
}

static int64_t matrix_count(const oari_array *a)
{
    return oari_shape_count(lead_of(*a).at.shape);
}

/* All the rows of all matrices as one matrix, if strides can say that. */
static int fold_rows(const oari_array *a, oari_array *folded)
{
    int64_t width = a->at.shape.dim[a->at.shape.ndim - 1];
    int64_t rows = width > 0 ? oari_shape_count(a->at.shape) / width : 0;

    *folded = *a;
    return rows > 0 &&
           oari_layout_reshape(&a->at, OAR_SHAPE(rows, width), &folded->at);
}

/* Where b is one matrix: [.., m, k] x [k, n] is [.. m, k] x [k, n]; where the
 * result is one: the sum over .. of [k, m] x [m, n] is [k, .. m] x [.. m, n].
 * Returns whether that is the case, and makes the three matrices. */
static int fold_matrices(const oari_array *to, const oari_array *a,
                         const oari_array *b, oari_array *m)
{
    oari_array turned = transposed(*a);

    if (matrix_count(b) == 1 && matrix_count(to) == matrix_count(a))
        return fold_rows(to, &m[0]) && fold_rows(a, &m[1]) &&
               fold_rows(b, &m[2]);
    if (matrix_count(to) != 1 ||
        !oari_shape_equal(lead_of(*a).at.shape, lead_of(*b).at.shape) ||
        !fold_rows(to, &m[0]) || !fold_rows(&turned, &m[1]) ||
        !fold_rows(b, &m[2]))
        return 0;
    m[1] = transposed(m[1]);
    return 1;
}

typedef struct many {
    oari_pool *pool;
    const oari_array *matrix[3]; /* to, a and b, for their last dims */
    int add;
    oar_status status;
} many;

/* Element i of row k of the walk as a matrix. */
static oari_array matrix_at(const oari_walk_row *row, int k, int64_t i,
                            const oari_array *like)
{
    const oari_layout *at = &like->at;
    int r = at->shape.ndim - 2, c = r + 1;
    int64_t bytes = (int64_t)oar_dtype_size(like->dtype);

    return (oari_array){
        .data = (char *)row->data[k] + i * row->stride[k] * bytes,
        .dtype = like->dtype,
        .at = { .shape = OAR_SHAPE(at->shape.dim[r], at->shape.dim[c]),
                .stride = { at->stride[r], at->stride[c] } }
    };
}

static void multiply_row(const oari_walk_row *row, void *arg)
{
    many *j = arg;

    for (int64_t i = 0; i < row->count && j->status == OAR_OK; i++) {
        oari_array to = matrix_at(row, 0, i, j->matrix[0]);
        oari_array a = matrix_at(row, 1, i, j->matrix[1]);
        oari_array b = matrix_at(row, 2, i, j->matrix[2]);

        j->status = multiply_pair(j->pool, &to, j->add, &a, &b);
    }
}

/* One by one. A result that several products go to is their sum. */
static oar_status multiply_many(oari_pool *pool, const oari_array *to, int add,
                                const oari_array *a, const oari_array *b)
{
    oari_array lead[3] = { lead_of(*to), lead_of(*a), lead_of(*b) };
    many j = { pool, { to, a, b }, add, OAR_OK };
    oar_shape shape = lead[0].at.shape;

    oari_shape_broadcast(shape, lead[1].at.shape, &shape);
    oari_shape_broadcast(shape, lead[2].at.shape, &shape);
    if (!add && !oari_shape_equal(shape, lead[0].at.shape)) {
        oari_fill(to, 0);
        j.add = 1;
    }
    oari_walk(shape, 3, (const oari_array *[]){ &lead[0], &lead[1], &lead[2] },
              multiply_row, &j);
    return j.status;
}

/* By way of f32. The right one, a weight most often, takes its memory first: as
 * the last one it would take a storage that is larger than it needs. */
static oar_status multiply_halves(oari_pool *pool, const oari_array *to,
                                  int add, const oari_array *a,
                                  const oari_array *b)
{
    oari_operands operands = { .pool = pool };
    const oari_array *right = oari_operands_in(&operands, b);
    const oari_array *left = oari_operands_in(&operands, a);
    const oari_array *product = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK)
        operands.status = oari_matmul(pool, product, add, left, right);
    return oari_operands_finish(&operands);
}

/* What oneDNN multiplies as it is: two matrices, or many that lie like two.
 * Small ones one by one would cost more than they gain. */
static int fold_halves(const oari_array *to, const oari_array *a,
                       const oari_array *b, oari_array *m)
{
    if (a->dtype != OAR_BF16 || b->dtype != OAR_BF16 ||
        (to->dtype != OAR_BF16 && to->dtype != OAR_F32) ||
        !oari_dnnl_takes(OAR_BF16, 1, 1, 1))
        return 0;
    m[0] = *to;
    m[1] = *a;
    m[2] = *b;
    return (to->at.shape.ndim == 2 && a->at.shape.ndim == 2 &&
            b->at.shape.ndim == 2) ||
           fold_matrices(to, a, b, m);
}

oar_status oari_matmul(oari_pool *pool, const oari_array *to, int add,
                       const oari_array *a, const oari_array *b)
{
    oari_array m[3];
    oar_status status;

    if (oari_dtype_is_half(to->dtype) || oari_dtype_is_half(a->dtype)) {
        status = fold_halves(to, a, b, m)
                     ? multiply_pair(pool, &m[0], add, &m[1], &m[2])
                     : OAR_E_UNSUPPORTED;
        return status == OAR_E_UNSUPPORTED
                   ? multiply_halves(pool, to, add, a, b)
                   : status;
    }
    if (to->at.shape.ndim == 2 && a->at.shape.ndim == 2 &&
        b->at.shape.ndim == 2)
        return multiply_pair(pool, to, add, a, b);
    if (fold_matrices(to, a, b, m))
        return multiply_pair(pool, &m[0], add, &m[1], &m[2]);
    return multiply_many(pool, to, add, a, b);
}
