/* SPDX-License-Identifier: Apache-2.0 */
/* product: products of matrices on a GPU: by cuBLASLt where it is and takes
 * them, else by kernels of ours (product_mma.cu for halves, product_any.cu for
 * the rest). Leading dims that both sides and the result have are batches; a
 * leading dim that the result does not have is a sum. This file has no state.
 */
#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/cuda_blas.h"
#include "device/cuda/cuda.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/product_job.h"

enum { MOST_BATCHES = 65535 /* of a grid, in its second dim */ };

/* Dims that both sides may have, in the order of the result's. */
typedef struct leading {
    int64_t dim;
    int64_t a, b, to; /* strides; 0: repeated */
} leading;

static int64_t stride_at(const oari_array *x, int d, int dims)
{
    int at = d - (dims - x->at.shape.ndim);

    return at < 0 || x->at.shape.dim[at] == 1 ? 0 : x->at.stride[at];
}

static int64_t dim_at(const oari_array *x, int d, int dims)
{
    int at = d - (dims - x->at.shape.ndim);

    return at < 0 ? 1 : x->at.shape.dim[at];
}

/* A dim that is repeated or not; none stays none. */
static int64_t broadcast_dim(int64_t a, int64_t b)
{
    return a != 1 ? a : b;
}

/* Puts a leading dim where it belongs, joined to the one before if all strides
 * let it be. */
static void add_dim(int *count, int64_t *dims, int64_t *const stride[3],
                    const int64_t step[3], int64_t dim)
{
    int n = *count, joined = n > 0;

    for (int i = 0; i < 3 && joined; i++)
        joined = stride[i] == NULL || stride[i][n - 1] == step[i] * dim;
    if (joined) {
        dims[n - 1] *= dim;
        n--;
    } else {
        dims[n] = dim;
        *count = n + 1;
    }
    for (int i = 0; i < 3; i++)
        if (stride[i] != NULL)
            stride[i][n] = step[i];
}

static void set_leading(oari_cuda_product *p, const oari_array *to,
                        const oari_array *a, const oari_array *b)
{
    int dims = to->at.shape.ndim;

    if (a->at.shape.ndim > dims)
        dims = a->at.shape.ndim;
    if (b->at.shape.ndim > dims)
        dims = b->at.shape.ndim;
    p->batches = p->sums = 1;
    for (int d = 0; d < dims - 2; d++) {
        int64_t kept = dim_at(to, d, dims);
        int64_t dim = broadcast_dim(
            broadcast_dim(dim_at(a, d, dims), dim_at(b, d, dims)), kept);
        int64_t step[3] = { stride_at(a, d, dims), stride_at(b, d, dims),
                            stride_at(to, d, dims) };

        if (dim == 1)
            continue;
        if (kept == 1) {
            add_dim(&p->sum_dims, p->sum_dim,
                    (int64_t *const[]){ p->a.sum, p->b.sum, NULL }, step, dim);
            p->sums *= dim;
        } else {
            add_dim(&p->dims, p->dim,
                    (int64_t *const[]){ p->a.batch, p->b.batch, p->batch },
                    step, dim);
            p->batches *= dim;
        }
    }
}

/* Whether copies of 16 bytes of a side begin at multiples of 16 bytes. */
static int is_aligned(const oari_cuda_side *s, int64_t far,
                      const oari_cuda_product *p)
{
    int64_t bits = far;

    for (int i = 0; i < p->dims; i++)
        bits |= s->batch[i];
    for (int i = 0; i < p->sum_dims; i++)
        bits |= s->sum[i];
    return bits % 8 == 0 && (uintptr_t)s->data % 16 == 0;
}

/* across: the dim of m or n; along: that of k; both of the last two. */
static void set_side(oari_cuda_side *s, const oari_array *x, int across,
                     const oari_cuda_product *p)
{
    const int last = x->at.shape.ndim - 2;
    const int64_t *stride = x->at.stride + last, *dim = x->at.shape.dim + last;

    s->data = oari_array_data(x);
    s->dtype = (int)x->dtype;
    s->across = dim[across] > 1 ? stride[across] : 0;
    s->along = dim[1 - across] > 1 ? stride[1 - across] : 0;
    if (s->along == 0 && s->across != 1)
        s->along = 1; /* one step only: whatever is quickest */
    s->turned = s->along != 1 && (s->across == 1 || s->across == 0);
    s->aligned = is_aligned(s, s->turned ? s->along : s->across, p);
    if (s->turned && oari_dtype_is_half(x->dtype) &&
        (!s->aligned || s->across == 0))
        s->turned = s->aligned = 0;
    if (s->along != 1 && !s->turned)
        s->aligned = 0;
}

/* ---- by cuBLASLt --------------------------------------------------------- */

/* A side as cuBLASLt wants it; 0 if it cannot be said. */
static int blas_side(const oari_cuda_side *s, int64_t rows, int64_t steps,
                     int is_left, oari_blas_side *out)
{
    int64_t along = steps == 1 ? 1 : s->along;
    int64_t across = rows == 1 ? 1 : s->across;

    if (along == 1 && (rows == 1 || across >= steps))
        *out = (oari_blas_side){ s->data, !is_left, rows == 1 ? steps : across,
                                 s->batch[0] };
    else if (across == 1 && (steps == 1 || along >= rows))
        *out = (oari_blas_side){ s->data, is_left, steps == 1 ? rows : along,
                                 s->batch[0] };
    else
        return 0;
    return 1;
}

/* Returns OAR_E_UNSUPPORTED, without an error's text, if it is not for
 * cuBLASLt. */
static oar_status multiply_by_blas(int device, const oari_cuda_product *p,
                                   oari_cu_stream stream)
{
    const oar_dtype dtype = (oar_dtype)p->a.dtype, to = (oar_dtype)p->c_type;
    oari_blas_job job = { .dtype = dtype,
                          .to_dtype = to,
                          .m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .batches = p->batches,
                          .to = p->c,
                          .to_lead = p->row,
                          .to_batch = p->batch[0],
                          .add = p->add,
                          .bias = p->bias,
                          .aux = p->aux,
                          .aux_lead = p->aux != NULL ? p->n : 0,
                          .epilogue = p->aux != NULL && p->bias != NULL
                                          ? OARI_BLAS_GELU
                                      : p->aux != NULL  ? OARI_BLAS_GELU_BACK
                                      : p->bias != NULL ? OARI_BLAS_BIAS
                                                        : OARI_BLAS_PLAIN };

    if (p->b.dtype != p->a.dtype || p->dims > 1 || p->sums > 1 ||
        p->batches > INT32_MAX ||
        (p->bias != NULL && p->bias_type != p->c_type))
        return OAR_E_UNSUPPORTED;
    if (to != dtype && !(oari_dtype_is_half(dtype) && to == OAR_F32))
        return OAR_E_UNSUPPORTED;
    if (!blas_side(&p->a, p->m, p->k, 1, &job.a) ||
        !blas_side(&p->b, p->n, p->k, 0, &job.b) || !oari_blas_present(device))
        return OAR_E_UNSUPPORTED;
    return oari_blas_multiply(device, &job, stream);
}

/* ---- by our kernels ------------------------------------------------------ */

static oar_status multiply_by_kernel(int device, oari_cuda_product *p,
                                     oari_cu_stream stream)
{
    static oari_cuda_kernel_ref of_bf16 = { .file = "product_mma",
                                            .name = "oari_product_bf16" };
    static oari_cuda_kernel_ref of_f16 = { .file = "product_mma",
                                           .name = "oari_product_f16" };
    static oari_cuda_kernel_ref of_f32 = { .file = "product_any",
                                           .name = "oari_product_any_f32" };
    static oari_cuda_kernel_ref of_f64 = { .file = "product_any",
                                           .name = "oari_product_any_f64" };
    const int wide = p->a.dtype == OAR_F64 || p->b.dtype == OAR_F64;
    const int half = p->a.dtype == p->b.dtype && p->k <= INT32_MAX &&
                     oari_dtype_is_half((oar_dtype)p->a.dtype);
    const int64_t tile = half ? OARI_PRODUCT_TILE : OARI_PRODUCT_SMALL;
    const int64_t blocks =
        ((p->m + tile - 1) / tile) * ((p->n + tile - 1) / tile);
    const int64_t batches =
        p->batches < MOST_BATCHES ? p->batches : MOST_BATCHES;
    oari_cuda_grid grid = { { (unsigned)blocks, (unsigned)batches, 1 },
                            { OARI_PRODUCT_THREADS, 1, 1 },
                            half   ? OARI_PRODUCT_SHARED
                            : wide ? OARI_PRODUCT_ANY_SHARED * 8
                                   : OARI_PRODUCT_ANY_SHARED * 4 };

    if (blocks > INT32_MAX)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "a product of %lld x %lld on a GPU: too large",
                         (long long)p->m, (long long)p->n);
    return oari_cuda_start(device,
                           half   ? p->a.dtype == OAR_F16 ? &of_f16 : &of_bf16
                           : wide ? &of_f64
                                  : &of_f32,
                           &grid, stream, (void *[]){ p });
}

/* ---- both ---------------------------------------------------------------- */

/* pre, unless it is NULL, gets the product and the bias, and `to` gelu_tanh of
 * that; without a bias `to` is the product times the slope at pre. Both are
 * OAR_E_UNSUPPORTED, with no error's text, if cuBLASLt does not take them. */
static oar_status multiply(const oari_array *to, int add, const oari_array *a,
                           const oari_array *b, const oari_array *bias,
                           const oari_array *pre)
{
    const int na = a->at.shape.ndim, nb = b->at.shape.ndim;
    const int n = to->at.shape.ndim, device = to->device.index;
    oari_cu_stream stream = oar_stream_current(to->device);
    oari_cuda_product p = { .c = oari_array_data(to),
                            .c_type = (int)to->dtype,
                            .row = to->at.shape.dim[n - 2] > 1
                                       ? to->at.stride[n - 2]
                                       : to->at.shape.dim[n - 1],
                            .add = add,
                            .m = a->at.shape.dim[na - 2],
                            .n = b->at.shape.dim[nb - 1],
                            .k = a->at.shape.dim[na - 1] };
    oar_status status;

    if (bias != NULL) {
        p.bias = oari_array_data(bias);
        p.bias_type = (int)bias->dtype;
    }
    if (pre != NULL)
        p.aux = oari_array_data(pre);
    set_leading(&p, to, a, b);
    set_side(&p.a, a, 0, &p);
    set_side(&p.b, b, 1, &p);
    if (p.m == 0 || p.n == 0 || p.batches == 0)
        return OAR_OK;
    status = p.k > 0 && p.sums > 0 ? multiply_by_blas(device, &p, stream)
                                   : OAR_E_UNSUPPORTED;
    if (status != OAR_E_UNSUPPORTED || pre != NULL)
        return status;
    return multiply_by_kernel(device, &p, stream);
}

oar_status oari_cuda_matmul(oari_pool *pool, const oari_array *to, int add,
                            const oari_array *a, const oari_array *b)
{
    (void)pool;
    return multiply(to, add, a, b, NULL, NULL);
}

oar_status oari_cuda_linear(oari_pool *pool, const oari_array *to,
                            const oari_array *x, const oari_array *weight,
                            const oari_array *bias)
{
    oari_array turned = *weight;

    (void)pool;
    turned.at = oari_layout_transpose(turned.at, 0, 1);
    if (bias != NULL && bias->at.shape.dim[0] > 1 && bias->at.stride[0] != 1) {
        OARI_TRY(oari_cuda_copy(to, bias)); /* repeated in every row */
        return multiply(to, 1, x, &turned, NULL, NULL);
    }
    return multiply(to, 0, x, &turned, bias, NULL);
}

/* Whether cuBLASLt computes the function, or its slope, with the product. Of
 * halves only: its tanh is a short one. */
static int has_epilogue(oari_unary_kind kind, const oari_array *pre)
{
    return kind == OARI_UNARY_gelu_tanh && oari_dtype_is_half(pre->dtype) &&
           pre->at.shape.dim[1] % 8 == 0 &&
           (uintptr_t)oari_array_data(pre) % 16 == 0;
}

oar_status oari_cuda_linear_act(oari_pool *pool, oari_unary_kind kind,
                                const oari_array *to, const oari_array *pre,
                                const oari_array *x, const oari_array *weight,
                                const oari_array *bias)
{
    oari_array turned = *weight;
    oar_status status = OAR_E_UNSUPPORTED;

    turned.at = oari_layout_transpose(turned.at, 0, 1);
    if (has_epilogue(kind, pre) && bias != NULL && bias->at.stride[0] == 1)
        status = multiply(to, 0, x, &turned, bias, pre);
    if (status != OAR_E_UNSUPPORTED)
        return status;
    OARI_TRY(oari_cuda_linear(pool, pre, x, weight, bias));
    return oari_cuda_act(kind, to, pre);
}

oar_status oari_cuda_matmul_slope(oari_unary_kind kind, const oari_array *to,
                                  const oari_array *pre, const oari_array *a,
                                  const oari_array *b)
{
    if (!has_epilogue(kind, pre) || to->dtype != pre->dtype)
        return OAR_E_UNSUPPORTED;
    return multiply(to, 0, a, b, NULL, pre);
}
