/* SPDX-License-Identifier: Apache-2.0 */
/* pairs: starts the kernels of pairs.cu. This file has no state. */
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/pairs_job.h"

static oari_pairs_job job_of(const oari_pairs *p, const oari_array *to)
{
    return (oari_pairs_job){ .a = oari_array_data(p->a),
                             .b = oari_array_data(p->b),
                             .weight = oari_data_of(p->weight),
                             .positive = oari_data_of(p->positive),
                             .to = oari_data_of(to),
                             .count = oari_shape_count(p->a->at.shape),
                             .edge = p->edge,
                             .kind = (int)p->kind };
}

static int64_t sum_blocks(int64_t count)
{
    int64_t blocks = oari_blocks_for(count, OARI_PAIRS_THREADS);

    return blocks < OARI_PAIRS_BLOCKS ? blocks : OARI_PAIRS_BLOCKS;
}

int64_t oari_cuda_pair_partial(void)
{
    return OARI_PAIRS_BLOCKS;
}

oar_status oari_cuda_pair_loss(const oari_pairs *p, const oari_array *to)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("pairs", "oari_pair_loss");
    oari_pairs_job job = job_of(p, to);

    return oari_start_float(&kernels, p->a,
                            oari_blocks_for(job.count, OARI_PAIRS_THREADS),
                            OARI_PAIRS_THREADS, OARI_SUM_BYTES, &job);
}

oar_status oari_cuda_pair_sum(const oari_pairs *p, const oari_array *to,
                              double factor, double *partial)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("pairs", "oari_pair_loss");
    static oari_float_kernels total =
        OARI_FLOAT_KERNELS("pairs", "oari_pair_total");
    oari_pairs_job job = job_of(p, NULL);
    oari_pairs_total_job all = { .partial = partial,
                                 .to = oari_array_data(to),
                                 .count = sum_blocks(job.count),
                                 .factor = factor };

    job.partial = partial;
    OARI_TRY(oari_start_float(&kernels, p->a, all.count, OARI_PAIRS_THREADS,
                              OARI_SUM_BYTES, &job));
    return oari_start_float(&total, to, 1, OARI_PAIRS_THREADS, OARI_SUM_BYTES,
                            &all);
}

oar_status oari_cuda_pair_loss_back(const oari_pairs *p, int by_b,
                                    const oari_array *to, int add,
                                    const oari_array *grad, int each,
                                    double factor)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("pairs", "oari_pair_back");
    oari_pairs_job job = job_of(p, to);

    job.grad = oari_array_data(grad);
    job.by_b = by_b;
    job.each = each;
    job.add = add;
    job.factor = factor;
    return oari_start_float(&kernels, to,
                            oari_blocks_for(job.count, OARI_PAIRS_THREADS),
                            OARI_PAIRS_THREADS, 0, &job);
}
