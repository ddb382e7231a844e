/* SPDX-License-Identifier: Apache-2.0 */
/* arith: starts the kernels of arith.cu. Dims that lie like one dim in every
 * array are joined first, so that most jobs are flat. */
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
    KERNEL("oari_arith_scale");
    oari_arith_job job;

    if (!add && factor == 1)
        return oari_array_data(to) == oari_array_data(a)
                   ? OAR_OK
                   : oari_cuda_copy(to, a);
    job = make_job(ARRAYS(to, a));
    job.add = add;
    job.number[0] = factor;
    return start(&ref, to, &job);
}

/* ---- functions ----------------------------------------------------------- */

oar_status oari_cuda_unary(oari_unary_kind kind, const oari_array *to,
                           const oari_array *a)
{
    KERNEL("oari_arith_unary");
    oari_arith_job job = make_job(ARRAYS(to, a));

    job.kind = (int)kind;
    return start(&ref, to, &job);
}

oar_status oari_cuda_unary_back(oari_unary_kind kind, const oari_array *to,
                                int add, const oari_array *grad,
                                const oari_array *saved)
{
    KERNEL("oari_arith_unary_back");
    oari_arith_job job = make_job(ARRAYS(to, grad, saved));

    job.kind = (int)kind;
    job.add = add;
    return start(&ref, to, &job);
}

oar_status oari_cuda_binary(oari_binary_kind kind, const oari_array *to,
                            const oari_array *a, const oari_array *b)
{
    KERNEL("oari_arith_binary");
    oari_arith_job job = make_job(ARRAYS(to, a, b));

    job.kind = (int)kind;
    return start(&ref, to, &job);
}

oar_status oari_cuda_binary_back(oari_binary_kind kind, int side,
                                 const oari_array *to, int add,
                                 const oari_array *grad, const oari_array *a,
                                 const oari_array *b)
{
    KERNEL("oari_arith_binary_back");
    oari_arith_job job = make_job(ARRAYS(to, grad, a, b));

    job.kind = (int)kind;
    job.side = side;
    job.add = add;
    return start(&ref, to, &job);
}

oar_status oari_cuda_scalar(oari_scalar_kind kind, const oari_array *to,
                            const oari_array *a, const double *number)
{
    KERNEL("oari_arith_scalar");
    oari_arith_job job = make_job(ARRAYS(to, a));

    job.kind = (int)kind;
    memcpy(job.number, number, sizeof job.number);
    return start(&ref, to, &job);
}

oar_status oari_cuda_scalar_back(oari_scalar_kind kind, const oari_array *to,
                                 int add, const oari_array *grad,
                                 const oari_array *saved, const double *number)
{
    KERNEL("oari_arith_scalar_back");
    oari_arith_job job = make_job(ARRAYS(to, grad, saved));

    job.kind = (int)kind;
    job.add = add;
    memcpy(job.number, number, sizeof job.number);
    return start(&ref, to, &job);
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
