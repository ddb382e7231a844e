/* SPDX-License-Identifier: Apache-2.0 */
/* arith: starts the kernels of arith.cu and float_arith.cu. Dims that lie like
 * one dim in every array are joined first, so that most jobs are flat. */
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/cuda_elementwise.h"
#include "tensor/cuda/arith_job.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/job_start.h"

/* ---- jobs ---------------------------------------------------------------- */

oari_job_array oari_job_array_of(const oari_array *a)
{
    oari_job_array made = { .data = oari_array_data(a),
                            .dtype = (int)a->dtype };

    if (a->device.kind != OAR_CPU)
        return made;
    made.by_value = 1; /* one element */
    memcpy(&made.value, made.data, oar_dtype_size(a->dtype));
    made.data = NULL;
    return made;
}

int oari_job_numbers_of(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F64: return OARI_JOB_F64;
    case OAR_I8:
    case OAR_I16:
    case OAR_I32:
    case OAR_I64: return OARI_JOB_SIGNED;
    default:
        return oari_dtype_is_float(dtype) ? OARI_JOB_F32 : OARI_JOB_UNSIGNED;
    }
}

/* Every array broadcasts to the shape of the first. */
static oari_arith_job make_job(int arrays, const oari_array *const *a)
{
    oar_shape shape = a[0]->at.shape;
    oari_arith_job job = { .count = oari_shape_count(shape),
                           .numbers = oari_job_numbers_of(a[0]->dtype) };
    oari_layout at[OARI_JOB_ARRAYS];

    for (int k = 0; k < arrays; k++) {
        at[k] = oari_layout_expand(&a[k]->at, shape);
        job.array[k] = oari_job_array_of(a[k]);
    }
    for (int d = 0; d < shape.ndim; d++) {
        int64_t length = shape.dim[d];
        int joined = job.ndim > 0, to;

        if (length == 1)
            continue;
        for (int k = 0; k < arrays && joined; k++)
            joined =
                job.array[k].stride[job.ndim - 1] == at[k].stride[d] * length;
        to = joined ? job.ndim - 1 : job.ndim++;
        job.dim[to] = joined ? job.dim[to] * length : length;
        for (int k = 0; k < arrays; k++)
            job.array[k].stride[to] = at[k].stride[d];
    }
    if (job.ndim == 0)
        job.dim[job.ndim++] = 1;
    return job;
}

#define ARRAYS(...)                                                        \
    (int)(sizeof((const oari_array *[]){ __VA_ARGS__ }) / sizeof(void *)), \
        (const oari_array *[])                                             \
    {                                                                      \
        __VA_ARGS__                                                        \
    }

oar_status oari_cuda_start_flat(oar_device device, oari_cuda_kernel_ref *ref,
                                int64_t count, void *job)
{
    int64_t warps = (count + 31) / 32, threads = warps < 8 ? warps * 32 : 256;
    int64_t blocks = (count + threads - 1) / (threads > 0 ? threads : 1);
    oari_cuda_grid grid = {
        { (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), 1, 1 },
        { (unsigned)threads, 1, 1 },
        0
    };

    if (count == 0)
        return OAR_OK;
    return oari_cuda_start(device.index, ref, &grid, oar_stream_current(device),
                           (void *[]){ job });
}

static oar_status start(oari_cuda_kernel_ref *ref, const oari_array *to,
                        oari_arith_job *job)
{
    return oari_cuda_start_flat(to->device, ref, job->count, job);
}

#define KERNEL(text) \
    static oari_cuda_kernel_ref ref = { .file = "arith", .name = text }

/* ---- by packs ------------------------------------------------------------ */

/* Returns how an array lies in a job of one or two dims, or -1. */
static int lies_how(const oari_arith_job *job, const oari_job_array *a)
{
    int64_t row = job->ndim == 2 ? a->stride[0] : job->count;
    int64_t column = a->stride[job->ndim - 1];

    if (a->by_value || (column == 0 && (job->ndim == 1 || row == 0)))
        return OARI_LIES_ONE;
    if (column == 1)
        return job->ndim == 1 || row == job->dim[1] ? OARI_LIES_ALIKE
               : row == 0                           ? OARI_LIES_ROW
                                                    : -1;
    return column == 0 && row == 1 ? OARI_LIES_COLUMN : -1;
}

/* Sets job->packed, width and how arrays lie. */
static void set_packs(oari_arith_job *job, int arrays)
{
    int all_f32 = 1;

    job->width = job->dim[job->ndim - 1];
    job->all_halves = 1;
    for (int k = 0; k < arrays; k++) {
        oari_job_array *a = &job->array[k];

        a->lies = job->ndim <= 2 ? lies_how(job, a) : -1;
        if (a->lies < 0 || (k == 0 && a->lies != OARI_LIES_ALIKE))
            return;
        job->has_rows |=
            a->lies == OARI_LIES_ROW || a->lies == OARI_LIES_COLUMN;
        if (a->lies > OARI_LIES_ROW)
            continue;
        if ((uintptr_t)a->data % 16 != 0 ||
            (a->dtype != OAR_F32 && a->dtype != OAR_F16 &&
             a->dtype != OAR_BF16))
            return;
        all_f32 &= a->dtype == OAR_F32;
        job->all_halves &= a->dtype != OAR_F32;
    }
    if (!job->has_rows) {
        job->packed = all_f32 ? 4 : 8;
    } else if (job->count < UINT32_MAX && job->width % (all_f32 ? 4 : 8) == 0) {
        job->packed = all_f32 ? 4 : 8;
        job->row_chunk = (uint32_t)(128 % job->width);
        job->row_step = (uint32_t)(OARI_TILE_THREADS * 8 % job->width);
    }
}

/* Three kernels of a name: for packs of halves, for what else is computed in
 * f32, and for all other numbers. */
typedef struct arith_kernel {
    oari_cuda_kernel_ref half, narrow, wide;
} arith_kernel;

#define THREE_KERNELS(text)                                              \
    static arith_kernel ref = {                                          \
        .half = { .file = "float_arith", .name = "oari_half_" text },    \
        .narrow = { .file = "float_arith", .name = "oari_float_" text }, \
        .wide = { .file = "arith", .name = "oari_arith_" text }          \
    }

static oar_status start_either(arith_kernel *ref, const oari_array *to,
                               int arrays, oari_arith_job *job)
{
    int64_t tiles = (job->count + OARI_TILE - 1) / OARI_TILE;
    oari_cuda_grid grid = { { (unsigned)tiles, 1, 1 },
                            { OARI_TILE_THREADS, 1, 1 },
                            0 };

    if (job->numbers != OARI_JOB_F32)
        return start(&ref->wide, to, job);
    if (tiles == 0)
        return OAR_OK;
    if (tiles > INT32_MAX)
        return oari_fail(OAR_E_UNSUPPORTED, "%s on a GPU of %lld elements",
                         ref->narrow.name, (long long)job->count);
    set_packs(job, arrays);
    return oari_cuda_start(
        to->device.index,
        job->packed && job->all_halves ? &ref->half : &ref->narrow, &grid,
        oar_stream_current(to->device), (void *[]){ job });
}

/* ---- copy, fill, scale --------------------------------------------------- */

oar_status oari_cuda_copy(const oari_array *to, const oari_array *from)
{
    oari_layout at = oari_layout_expand(&from->at, to->at.shape);

    return oari_cuda_assign(
        to->device.index,
        (oari_cuda_shape){ to->at.shape.ndim, to->at.shape.dim },
        (oari_cuda_array){ oari_array_data(to), to->dtype, to->at.stride },
        (oari_cuda_array){ oari_array_data(from), from->dtype, at.stride },
        oar_stream_current(to->device));
}

oar_status oari_cuda_fill(const oari_array *to, double value)
{
    KERNEL("oari_arith_fill");
    oari_arith_job job;

    if (oari_layout_is_rows(&to->at)) /* needs no kernel */
        return oar_device_fill(
            oar_span_on(to->device, oari_array_data(to),
                        (size_t)oari_shape_count(to->at.shape), to->dtype),
            value, oar_stream_current(to->device));
    job = make_job(ARRAYS(to));
    oari_convert(&job.array[1].value, to->dtype, &value, OAR_F64, 1);
    job.kind = (int)oar_dtype_size(to->dtype);
    return start(&ref, to, &job);
}

oar_status oari_cuda_scale(const oari_array *to, int add, const oari_array *a,
                           double factor)
{
    THREE_KERNELS("scale");
    oari_arith_job job;

    if (!add && factor == 1)
        return oari_array_data(to) == oari_array_data(a)
                   ? OAR_OK
                   : oari_cuda_copy(to, a);
    job = make_job(ARRAYS(to, a));
    job.add = add;
    job.number[0] = factor;
    return start_either(&ref, to, 2, &job);
}

/* ---- functions ----------------------------------------------------------- */

oar_status oari_cuda_unary(oari_unary_kind kind, const oari_array *to,
                           const oari_array *a)
{
    THREE_KERNELS("unary");
    oari_arith_job job = make_job(ARRAYS(to, a));

    job.kind = (int)kind;
    return start_either(&ref, to, 2, &job);
}

oar_status oari_cuda_unary_back(oari_unary_kind kind, const oari_array *to,
                                int add, const oari_array *grad,
                                const oari_array *saved)
{
    THREE_KERNELS("unary_back");
    oari_arith_job job = make_job(ARRAYS(to, grad, saved));

    job.kind = (int)kind;
    job.add = add;
    return start_either(&ref, to, 3, &job);
}

/* A quotient or a power of integers. */
static oar_status run_integer(const oari_array *to, const oari_arith_job *at)
{
    KERNEL("oari_arith_integer");
    oari_integer_job job = { .at = *at };

    OARI_TRY(oari_index_check_of(to->device.index, &job.check));
    OARI_TRY(oari_cuda_start_flat(to->device, &ref, at->count, &job));
    return oari_index_checked(to->device.index, oar_stream_current(to->device));
}

oar_status oari_cuda_binary(oari_binary_kind kind, const oari_array *to,
                            const oari_array *a, const oari_array *b)
{
    THREE_KERNELS("binary");
    oari_arith_job job = make_job(ARRAYS(to, a, b));

    job.kind = (int)kind;
    if ((kind == OARI_DIV || kind == OARI_POW) &&
        !oari_dtype_is_float(to->dtype))
        return run_integer(to, &job);
    return start_either(&ref, to, 3, &job);
}

/* to (+)= grad times the other input of a product. */
static oar_status scale_by_other(const oari_array *to, int add,
                                 const oari_array *grad,
                                 const oari_array *other)
{
    THREE_KERNELS("binary");
    oari_arith_job job = make_job(ARRAYS(to, grad, other));

    job.kind = OARI_MUL;
    job.add = add;
    return start_either(&ref, to, 3, &job);
}

oar_status oari_cuda_binary_back(oari_binary_kind kind, int side,
                                 const oari_array *to, int add,
                                 const oari_array *grad, const oari_array *a,
                                 const oari_array *b)
{
    THREE_KERNELS("binary_back");
    oari_arith_job job;

    if (oari_job_numbers_of(to->dtype) == OARI_JOB_F32) {
        if (kind == OARI_MUL)
            return scale_by_other(to, add, grad, side ? a : b);
        if (kind == OARI_ADD || kind == OARI_SUB)
            return oari_cuda_scale(to, add, grad,
                                   kind == OARI_SUB && side ? -1 : 1);
    }
    job = make_job(ARRAYS(to, grad, a, b));
    job.kind = (int)kind;
    job.side = side;
    job.add = add;
    return start_either(&ref, to, 4, &job);
}

oar_status oari_cuda_scalar(oari_scalar_kind kind, const oari_array *to,
                            const oari_array *a, const double *number)
{
    THREE_KERNELS("scalar");
    oari_arith_job job = make_job(ARRAYS(to, a));

    job.kind = (int)kind;
    memcpy(job.number, number, sizeof job.number);
    return start_either(&ref, to, 2, &job);
}

oar_status oari_cuda_scalar_back(oari_scalar_kind kind, const oari_array *to,
                                 int add, const oari_array *grad,
                                 const oari_array *saved, const double *number)
{
    THREE_KERNELS("scalar_back");
    oari_arith_job job = make_job(ARRAYS(to, grad, saved));

    job.kind = (int)kind;
    job.add = add;
    memcpy(job.number, number, sizeof job.number);
    return start_either(&ref, to, 3, &job);
}

/* ---- compare and select -------------------------------------------------- */

oar_status oari_cuda_compare(oari_compare_kind kind, const oari_array *to,
                             const oari_array *a, const oari_array *b)
{
    KERNEL("oari_arith_compare");
    oari_arith_job job = make_job(ARRAYS(to, a, b));

    job.kind = (int)kind;
    job.numbers = oari_job_numbers_of(a->dtype);
    for (int k = 1; k <= 2; k++) /* bools are bytes, as on the cpu */
        if (job.array[k].dtype == OAR_BOOL)
            job.array[k].dtype = OAR_U8;
    return start(&ref, to, &job);
}

oar_status oari_cuda_mask_select(const oari_array *to, const oari_array *mask,
                                 const oari_array *a, const oari_array *b)
{
    KERNEL("oari_arith_select");
    oari_arith_job job = make_job(ARRAYS(to, mask, a, b));

    job.kind = (int)oar_dtype_size(to->dtype);
    return start(&ref, to, &job);
}

oar_status oari_cuda_mask_select_back(const oari_array *to, int add,
                                      const oari_array *mask, int side,
                                      const oari_array *grad)
{
    KERNEL("oari_arith_select_back");
    oari_arith_job job = make_job(ARRAYS(to, grad, mask));

    job.add = add;
    job.side = side;
    return start(&ref, to, &job);
}

oar_status oari_cuda_outside_triangle(const oari_array *to, int upper,
                                      int64_t diagonal)
{
    KERNEL("oari_arith_triangle");
    oari_arith_job job = make_job(ARRAYS(to));
    int64_t most = to->at.shape.dim[0] + to->at.shape.dim[1];

    job.dim[1] = to->at.shape.dim[1];
    job.side = upper;
    /* beyond the matrix all diagonals are alike */
    job.number[0] = (double)(diagonal > most    ? most
                             : diagonal < -most ? -most
                                                : diagonal);
    return start(&ref, to, &job);
}

oar_status oari_cuda_var_back(const oari_array *to, int add,
                              const oari_array *grad, const oari_array *a,
                              const oari_array *mean, double divisor)
{
    KERNEL("oari_arith_var_back");
    oari_arith_job job = make_job(ARRAYS(to, grad, a, mean));

    job.add = add;
    job.number[0] = 2 / divisor;
    return start(&ref, to, &job);
}
