/* SPDX-License-Identifier: Apache-2.0 */
/* lines: starts the kernels of lines.cu. */
#include <string.h>

#include "base/status.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/job_start.h"

#define KERNEL(text) \
    static oari_cuda_kernel_ref ref = { .file = "lines", .name = text }

static oari_line_job make_job(const oari_array *to, const oari_array *a)
{
    return (oari_line_job){ .to = oari_array_data(to),
                            .a = oari_array_data(a),
                            .to_dtype = (int)to->dtype,
                            .a_dtype = (int)a->dtype,
                            .numbers = oari_job_numbers_of(a->dtype) };
}

/* ---- along a dim of row-major arrays ------------------------------------- */

static oar_status find_extreme(const oari_array *to, const oari_array *a,
                               int smallest)
{
    KERNEL("oari_lines_extreme");
    oari_rows rows = oari_rows_of(a->at.shape);
    oari_line_job job = make_job(to, a);

    job.lines = rows.count;
    job.a_at = rows.width;
    job.kind = smallest;
    return oari_cuda_start_flat(to->device, &ref, job.lines, &job);
}

oar_status oari_cuda_argmax(const oari_array *to, const oari_array *a)
{
    return find_extreme(to, a, 0);
}

oar_status oari_cuda_argmin(const oari_array *to, const oari_array *a)
{
    return find_extreme(to, a, 1);
}

/* Fills in how the lines along a dim lie. */
static void set_lines(oari_line_job *job, oar_shape shape, int dim)
{
    oari_around around = oari_shape_around(shape, dim);

    job->before = around.before;
    job->after = around.after;
    job->lines = around.before * around.after;
    job->a_at = around.at;
}

oar_status oari_cuda_cumsum(const oari_array *to, int add, const oari_array *a,
                            int dim, int from_end)
{
    KERNEL("oari_lines_cumsum");
    oari_line_job job = make_job(to, a);

    set_lines(&job, a->at.shape, dim);
    job.add = add;
    job.from_end = from_end;
    return oari_cuda_start_flat(to->device, &ref, job.lines, &job);
}

oar_status oari_cuda_index_add(const oari_array *to, int dim,
                               const oari_array *index, const oari_array *grad)
{
    KERNEL("oari_lines_index_add");
    oari_line_job job = make_job(to, grad);

    set_lines(&job, grad->at.shape, dim);
    job.to_at = to->at.shape.dim[dim];
    job.index = oari_array_data(index);
    job.index_stride = index->at.stride[0];
    return oari_cuda_start_flat(to->device, &ref, job.lines, &job);
}

/* ---- by an index of any strides ------------------------------------------ */

/* Lines of the index's shape along dim. */
static void set_index(oari_line_job *job, const oari_array *to,
                      const oari_array *a, int dim, const oari_layout *index,
                      const oari_array *numbers)
{
    job->ndim = index->shape.ndim;
    job->along = dim;
    job->index = oari_array_data(numbers);
    job->index_at = index->shape.dim[dim];
    job->lines = 1;
    for (int d = 0; d < job->ndim; d++) {
        job->dim[d] = index->shape.dim[d];
        job->to_stride[d] = to->at.stride[d];
        job->a_stride[d] = a->at.stride[d];
        job->index_strides[d] = index->stride[d];
        if (d != dim)
            job->lines *= job->dim[d];
    }
}

oar_status oari_cuda_gather(const oari_array *to, const oari_array *a, int dim,
                            const oari_array *index)
{
    KERNEL("oari_lines_gather");
    oari_line_job job = make_job(to, a);

    set_index(&job, to, a, dim, &index->at, index);
    job.kind = (int)oar_dtype_size(to->dtype);
    return oari_cuda_start_flat(to->device, &ref, job.lines * job.index_at,
                                &job);
}

/* The index [n] repeated to the shape of the result. */
oar_status oari_cuda_index_select(const oari_array *to, const oari_array *a,
                                  int dim, const oari_array *index)
{
    oari_array all = *index;

    all.at.shape = to->at.shape;
    memset(all.at.stride, 0, sizeof all.at.stride);
    all.at.stride[dim] = index->at.stride[0];
    return oari_cuda_gather(to, a, dim, &all);
}

oar_status oari_cuda_scatter_add(const oari_array *to, int dim,
                                 const oari_array *index,
                                 const oari_array *source)
{
    KERNEL("oari_lines_scatter_add");
    oari_line_job job = make_job(to, source);

    set_index(&job, to, source, dim, &index->at, index);
    return oari_cuda_start_flat(to->device, &ref, job.lines, &job);
}
