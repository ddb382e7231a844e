/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/channel_job.h: the arguments of the kernels of channel_norm.cu,
 * for C and C++.
 *
 * x is [images, channels, inner]. What is normalised together has one number in
 * mean and rstd: a channel of all images (a batch norm), or `wide` channels of
 * one image (a group norm; wide is 0 in a batch norm). */
#ifndef OARI_TENSOR_CUDA_CHANNEL_JOB_H
#define OARI_TENSOR_CUDA_CHANNEL_JOB_H

#include <stdint.h>

enum { OARI_CHANNEL_THREADS = 256 };

/* Two sums over each channel: of x less its first number and the square of
 * that; or, with a gradient, of it and of it times x less the mean. Each of
 * `segments` parts of a channel's numbers has sums of its own. */
typedef struct oari_channel_sums_job {
    const void *x, *grad; /* grad NULL: the first kind */
    const double *mean;
    double *partial; /* [segments, 2, channels] */
    int64_t images, channels, inner;
    int64_t segments, each;  /* numbers of a channel in a segment */
    int is_short;            /* packed: a segment is a warp's */
    int64_t shared;          /* channels that share a mean: 1, or wide */
    int x_dtype, grad_dtype; /* packed kernels: both are the kernel's */
} oari_channel_sums_job;

/* From sums of segments to moments: stats is the count, then the means, then
 * the sums of squared distances, of `channels` channels. */
typedef struct oari_channel_moments_job {
    const double *partial;
    const void *x;
    double *stats;
    int64_t images, channels, inner, segments;
    int x_dtype;
} oari_channel_moments_job;

/* From parts' moments, one after the other, to those of all. */
typedef struct oari_merge_moments_job {
    const double *all; /* [parts, 1 + 2 channels] */
    double *stats;
    int64_t channels, parts;
} oari_merge_moments_job;

/* Mean and rstd from stats, or if that is NULL from the running ones; and new
 * running ones, unless NULL. */
typedef struct oari_channel_stats_job {
    const double *stats;
    double *mean, *rstd;
    void *running_mean, *running_var;
    int64_t *batches; /* NULL, or is counted up; then momentum below 0 is 1
                         divided by it */
    int64_t channels;
    int mean_dtype, var_dtype;
    double momentum, eps;
} oari_channel_stats_job;

/* Element by element: with a gradient its own, else x normalised. */
typedef struct oari_channel_norm_job {
    void *to;
    const void *x, *grad, *weight, *bias;
    const double *mean, *rstd;
    const double *tilt, *sum; /* of what shares a mean; NULL: fixed */
    const double *count_at;   /* numbers that share a mean */
    int64_t elements, channels, inner, wide;
    int to_dtype, x_dtype, grad_dtype, param_dtype;
    int is_f64, add;
} oari_channel_norm_job;

/* Sums of segments to those of what shares a mean (tilt, sum; weighed in a
 * group norm), and over images to the gradients of weight and bias. */
typedef struct oari_channel_total_job {
    const double *partial; /* of `planes`: channels, or images * channels */
    const double *rstd;
    const void *weight;
    double *tilt, *sum;
    void *dweight, *dbias; /* or NULL */
    int64_t planes, channels, segments, wide;
    int param_dtype, dweight_dtype, dbias_dtype;
} oari_channel_total_job;

#endif
