/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_start: this file has no state. */
#include "tensor/cuda/cuda_start.h"

enum { MOST_BLOCKS = 8192 };

static oar_status start_grid(oari_cuda_kernel_ref *kernel, const oari_array *to,
                             int64_t blocks, int64_t down, unsigned threads,
                             unsigned shared_bytes, void *job)
{
    oari_cuda_grid grid = { { (unsigned)blocks, (unsigned)down, 1 },
                            { threads, 1, 1 },
                            shared_bytes };
    void *parameter[] = { job };

    if (blocks <= 0 || down <= 0)
        return OAR_OK;
    if (blocks > INT32_MAX || down > UINT16_MAX)
        return oari_fail(OAR_E_UNSUPPORTED, "%s on a GPU of %lld x %lld blocks",
                         kernel->name, (long long)blocks, (long long)down);
    return oari_cuda_start(to->device.index, kernel, &grid,
                           oar_stream_current(to->device), parameter);
}

oar_status oari_start_one(oari_cuda_kernel_ref *kernel, const oari_array *to,
                          int64_t blocks, unsigned threads,
                          unsigned shared_bytes, void *job)
{
    return start_grid(kernel, to, blocks, 1, threads, shared_bytes, job);
}

oar_status oari_start_float_grid(oari_float_kernels *kernels,
                                 const oari_array *to, int64_t blocks,
                                 int64_t down, unsigned threads,
                                 unsigned shared_bytes, void *job)
{
    static const int at[] = {
        [OAR_F32] = 0, [OAR_F64] = 1, [OAR_F16] = 2, [OAR_BF16] = 3
    };

    if (!oari_dtype_is_float(to->dtype))
        return oari_fail(OAR_E_DTYPE, "%s of %s", kernels->of[0].name,
                         oar_dtype_name(to->dtype));
    return start_grid(&kernels->of[at[to->dtype]], to, blocks, down, threads,
                      shared_bytes, job);
}

oar_status oari_start_float(oari_float_kernels *kernels, const oari_array *to,
                            int64_t blocks, unsigned threads,
                            unsigned shared_bytes, void *job)
{
    return oari_start_float_grid(kernels, to, blocks, 1, threads, shared_bytes,
                                 job);
}

int64_t oari_blocks_for(int64_t count, unsigned threads)
{
    int64_t blocks = (count + threads - 1) / threads;

    return blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
}

int oari_is_packed(const oari_array *a, int64_t width)
{
    return a == NULL ||
           ((uintptr_t)oari_array_data(a) % OARI_PACK_BYTES == 0 &&
            width * (int64_t)oar_dtype_size(a->dtype) % OARI_PACK_BYTES == 0);
}
