/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_elementwise: starts the kernels of elementwise.cu. Adjacent dims that
 * can be counted as one are joined first, so that most jobs are flat. This file
 * has no state. */
#include "device/cuda/cuda_elementwise.h"

#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/driver.h"

enum { THREADS = 256, MOST_BLOCKS = 8192 };

/* ---- jobs ---------------------------------------------------------------- */

static oari_cuda_job make_job(oari_cuda_shape shape,
                              const oari_cuda_array *const *a, int arrays)
{
    oari_cuda_job job = { .count = 1 };

    for (int d = 0; d < shape.ndim; d++) {
        int64_t length = shape.dim[d];
        int joined = job.ndim > 0, at;

        job.count *= length;
        if (length == 1)
            continue;
        /* A dim that continues where the last one ends, in all arrays,
         * lengthens that one. */
        for (int k = 0; k < arrays && joined; k++)
            joined = job.stride[k][job.ndim - 1] == a[k]->stride[d] * length;
        at = joined ? job.ndim - 1 : job.ndim++;
        job.dim[at] = joined ? job.dim[at] * length : length;
        for (int k = 0; k < arrays; k++)
            job.stride[k][at] = a[k]->stride[d];
    }
    for (int k = 0; k < arrays; k++)
        job.data[k] = a[k]->data;
    if (job.ndim == 0)
        job.dim[job.ndim++] = 1;
    job.to = (int)a[0]->dtype;
    job.from = (int)a[1]->dtype;
    return job;
}

/* Returns whether both arrays of a job are without gaps. */
static int is_flat(const oari_cuda_job *job)
{
    return job->count == 1 ||
           (job->ndim == 1 && job->stride[0][0] == 1 && job->stride[1][0] == 1);
}

static oar_status start_kernel(int device, const char *name, oari_cuda_job *job,
                               oari_cu_stream stream)
{
    int64_t blocks = (job->count + THREADS - 1) / THREADS;
    void *parameter[] = { job };
    oari_cu_function kernel;

    OARI_TRY(oari_cuda_kernel(device, "elementwise", name, &kernel));
    return oari_cuda_launch(
        device, kernel, (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
        THREADS, stream, parameter);
}

static oar_status check_dtypes(const char *what, oar_dtype to, oar_dtype from)
{
    if (to <= OAR_BOOL && from <= OAR_BOOL)
        return OAR_OK;
    return oari_fail(OAR_E_UNSUPPORTED, "%s on a GPU: %s and %s", what,
                     oar_dtype_name(to), oar_dtype_name(from));
}

/* Takes several elements, up to 16 bytes, as one where the last dim is without
 * gaps in both arrays. Returns the bytes of an element then. */
static int widen_elements(oari_cuda_job *job, int bytes)
{
    int last = job->ndim - 1;

    while (bytes < 16 && job->stride[0][last] == 1 &&
           job->stride[1][last] == 1 && job->dim[last] % 2 == 0) {
        for (int k = 0; k < OARI_CUDA_ARRAYS; k++) {
            if ((uintptr_t)job->data[k] % (uintptr_t)(2 * bytes) != 0)
                return bytes;
            for (int d = 0; d < last; d++)
                if (job->stride[k][d] % 2 != 0)
                    return bytes;
        }
        for (int k = 0; k < OARI_CUDA_ARRAYS; k++)
            for (int d = 0; d < last; d++)
                job->stride[k][d] /= 2;
        job->dim[last] /= 2;
        job->count /= 2;
        bytes *= 2;
    }
    return bytes;
}

/* ---- copies -------------------------------------------------------------- */

oar_status oari_cuda_assign(int device, oari_cuda_shape shape,
                            oari_cuda_array to, oari_cuda_array from,
                            oari_cu_stream stream)
{
    const oari_cuda_array *arrays[] = { &to, &from };
    oari_cuda_job job = make_job(shape, arrays, 2);
    oar_device gpu = oar_device_of(OAR_CUDA, device);
    size_t bytes = oar_dtype_size(to.dtype);
    int half; /* between f32 and a half type: has a loop of its own */

    if (job.count == 0)
        return OAR_OK;
    if (to.dtype == from.dtype && to.dtype != OAR_BOOL) {
        if (is_flat(&job))
            return oar_device_copy(to.data, gpu, from.data, gpu,
                                   (size_t)job.count * bytes, stream);
        job.to = job.from = widen_elements(&job, (int)bytes);
        return start_kernel(device, "oari_move", &job, stream);
    }
    OARI_TRY(check_dtypes("convert", to.dtype, from.dtype));
    half = (from.dtype == OAR_F32 && oari_dtype_is_half(to.dtype)) ||
           (oari_dtype_is_half(from.dtype) && to.dtype == OAR_F32);
    return start_kernel(device,
                        half && is_flat(&job) ? "oari_convert_half"
                                              : "oari_convert_any",
                        &job, stream);
}
