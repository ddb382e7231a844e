/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/channel_norm.h: batch norm and group norm on a GPU, where no
 * statistic is ever read by the host. x is [n, channels, ..], row-major;
 * statistics are f64 on its device, one for each channel or, with groups, for
 * each group of each image. */
#ifndef OARI_TENSOR_CUDA_CHANNEL_NORM_H
#define OARI_TENSOR_CUDA_CHANNEL_NORM_H

#include "tensor/cpu/nn/nn_kernels.h"

/* stats [1 + 2 * statistics] = how many numbers each is of, the means, and the
 * sums of squared distances from these. groups 0: of channels. */
oar_status oari_cuda_channel_moments(oari_pool *pool, const oari_array *stats,
                                     const oari_array *x, int64_t groups);

/* stats = those of all parts [parts, 1 + 2 channels], added in their order. */
oar_status oari_cuda_merge_moments(const oari_array *stats,
                                   const oari_array *all);

/* What running statistics become. */
typedef struct oari_running {
    const oari_array *mean, *var; /* any float dtype; NULL: there are none */
    const oari_array *batches;    /* i64, counted up; or NULL */
    double momentum;              /* below 0: 1 / batches */
} oari_running;

/* mean and rstd from stats; or, if that is NULL, from the running ones, which
 * then stay as they are. */
oar_status oari_cuda_channel_stats(const oari_array *mean,
                                   const oari_array *rstd,
                                   const oari_array *stats,
                                   const oari_running *running, double eps);

oar_status oari_cuda_channel_norm(const oari_array *to, const oari_array *x,
                                  const oari_array *mean,
                                  const oari_array *rstd, int64_t groups,
                                  const oari_array *weight,
                                  const oari_array *bias);

/* sums [2, statistics] and, unless NULL, n->dweight and n->dbias. */
oar_status oari_cuda_channel_sums(oari_pool *pool, const oari_norm_back *n,
                                  int64_t groups, const oari_array *sums);
/* n->dx from the sums, of *count numbers each, on the device; sums NULL: mean
 * and rstd do not depend on x. */
oar_status oari_cuda_channel_norm_back(const oari_norm_back *n, int64_t groups,
                                       const oari_array *sums,
                                       const oari_array *count);

#endif
