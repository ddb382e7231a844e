/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_low_rank: starts the kernels of low_rank.cu. This file has no state. */
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/low_rank_job.h"

static oari_low_rank_job job_of(const oari_low_rank *l)
{
    return (oari_low_rank_job){ .m = oari_array_data(&l->m),
                                .lost = l->lost,
                                .p = l->p,
                                .q = l->q,
                                .rows = l->m.at.shape.dim[0],
                                .columns = l->m.at.shape.dim[1],
                                .rank = l->rank };
}

oar_status oari_cuda_low_rank_p(const oari_low_rank *l)
{
    static oari_cuda_kernel_ref kernel = { .file = "low_rank",
                                           .name = "oari_low_rank_project" };
    oari_low_rank_job job = job_of(l);

    return oari_start_one(&kernel, &l->m,
                          oari_blocks_for(job.rows * 32, OARI_LOW_RANK_THREADS),
                          OARI_LOW_RANK_THREADS, 0, &job);
}

oar_status oari_cuda_low_rank_q(const oari_low_rank *l)
{
    static oari_cuda_kernel_ref orthonormal = {
        .file = "low_rank", .name = "oari_low_rank_orthonormal"
    };
    static oari_cuda_kernel_ref kernel = { .file = "low_rank",
                                           .name = "oari_low_rank_columns" };
    oari_low_rank_job job = job_of(l);

    OARI_TRY(
        oari_start_one(&orthonormal, &l->m, 1, OARI_LOW_RANK_BLOCK, 0, &job));
    return oari_start_one(
        &kernel, &l->m,
        (job.columns + OARI_LOW_RANK_COLUMNS - 1) / OARI_LOW_RANK_COLUMNS,
        OARI_LOW_RANK_COLUMNS * OARI_LOW_RANK_GROUPS, 0, &job);
}

oar_status oari_cuda_low_rank_back(const oari_low_rank *l)
{
    static oari_cuda_kernel_ref kernel = { .file = "low_rank",
                                           .name = "oari_low_rank_rebuild" };
    oari_low_rank_job job = job_of(l);

    return oari_start_one(
        &kernel, &l->m,
        oari_blocks_for(job.rows * job.columns, OARI_LOW_RANK_THREADS),
        OARI_LOW_RANK_THREADS, 0, &job);
}
