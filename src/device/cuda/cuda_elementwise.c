/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_elementwise: starts the kernels of elementwise.cu. Adjacent dims that
 * can be counted as one are joined first, so that most jobs are flat. This file
 * has no state. */
#include "device/cuda/cuda_elementwise.h"

#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/driver.h"

enum { THREADS = 256, MOST_BLOCKS = 1 << 16 };

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

/* Starts a kernel that goes through its job in strides of so many threads, or
 * fewer. */
static oar_status start_kernel(int device, const char *name, oari_cuda_job *job,
                               int64_t threads, oari_cu_stream stream)
{
    int64_t blocks = (threads + THREADS - 1) / THREADS;
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

/* Returns how many blocks of tall x wide elements turn the last two dims of a
 * job, of which one is without gaps in each array; 0: it is not such a job, or
 * too small for it. */
static int64_t turning_blocks(const oari_cuda_job *job, int64_t tall,
                              int64_t wide)
{
    int d = job->ndim - 2;
    int64_t blocks;

    if (d < 0 || d > 1 || job->stride[0][d + 1] != 1 ||
        job->stride[1][d] != 1 || job->dim[d] < OARI_CUDA_TURN_TILE / 2 ||
        job->dim[d + 1] < OARI_CUDA_TURN_TILE / 2)
        return 0;
    blocks = (job->dim[d] + tall - 1) / tall *
             ((job->dim[d + 1] + wide - 1) / wide) * (d > 0 ? job->dim[0] : 1);
    return blocks <= INT32_MAX ? blocks : 0;
}

/* Returns whether a job that turns can take squares of elements, the sides of
 * which are 16 bytes. */
static int turns_packs(const oari_cuda_job *job, int bytes)
{
    const int side = 16 / bytes, d = job->ndim - 2;
    int64_t all = job->dim[d] | job->dim[d + 1] | job->stride[0][d] |
                  job->stride[1][d + 1];

    if (d > 0)
        all |= job->stride[0][0] | job->stride[1][0];
    return bytes >= 2 && bytes <= 8 && all % side == 0 &&
           ((uintptr_t)job->data[0] | (uintptr_t)job->data[1]) % 16 == 0;
}

/* Moves elements of so many bytes. */
static oar_status start_move(int device, oari_cuda_job *job, int bytes,
                             oari_cu_stream stream)
{
    static oari_cuda_kernel_ref turn = { .file = "elementwise",
                                         .name = "oari_turn" };
    static oari_cuda_kernel_ref turn_packs = { .file = "elementwise",
                                               .name = "oari_turn_packs" };
    int64_t tall = OARI_CUDA_TURN_TILE, wide = OARI_CUDA_TURN_TILE, blocks;
    int by_packs = job->ndim >= 2 && turns_packs(job, bytes);
    oari_cuda_grid grid = { { 0, 1, 1 }, { OARI_CUDA_TURN_THREADS, 1, 1 }, 0 };

    if (by_packs) {
        tall = OARI_CUDA_TURN_DOWN * 16 / bytes;
        wide = OARI_CUDA_TURN_ACROSS * 16 / bytes;
    }
    blocks = turning_blocks(job, tall, wide);
    grid.blocks[0] = (unsigned)blocks;
    job->to = job->from = bytes;
    if (blocks > 0)
        return oari_cuda_start(device, by_packs ? &turn_packs : &turn, &grid,
                               stream, (void *[]){ job });
    job->to = job->from = widen_elements(job, bytes);
    return start_kernel(device, "oari_move", job, job->count, stream);
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
        return start_move(device, &job, (int)bytes, stream);
    }
    OARI_TRY(check_dtypes("convert", to.dtype, from.dtype));
    half = (from.dtype == OAR_F32 && oari_dtype_is_half(to.dtype)) ||
           (oari_dtype_is_half(from.dtype) && to.dtype == OAR_F32);
    if (half && is_flat(&job))
        return start_kernel(device, "oari_convert_half", &job,
                            job.count / (4 * OARI_CUDA_CONVERT_FOURS) + THREADS,
                            stream);
    return start_kernel(device, "oari_convert_any", &job, job.count, stream);
}
