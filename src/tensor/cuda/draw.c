/* SPDX-License-Identifier: Apache-2.0 */
/* draw: starts the kernels of draw.cu. This file has no state. */
#include <math.h>

#include "device/cuda/cuda_replay.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/draw_job.h"

enum { THREADS = 256, MOST_PACKED = 1 << 30 };

oar_status oari_cuda_dropout(const oari_array *to, int add, const oari_array *a,
                             double p, uint64_t seed, int64_t first,
                             const int64_t *stride)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("draw", "oari_dropout");
    const oar_shape *s = &to->at.shape;
    oari_dropout_job job = { .x = oari_array_data(a),
                             .to = oari_array_data(to),
                             .count = oari_shape_count(*s),
                             .first = first,
                             .seed = seed,
                             .least = (uint32_t)ceil(p * 0x1p24),
                             .factor = p < 1 ? 1 / (1 - p) : 0,
                             .add = add };
    int64_t run = 1, threads;
    int follow = 1;

    OARI_TRY(oari_replay_salt(to->device.index, &job.salt));
    for (int d = s->ndim - 1; d >= 0; d--) {
        job.dim[d] = s->dim[d];
        job.stride[d] = stride[d];
        follow &= s->dim[d] == 1 || stride[d] == run;
        run *= s->dim[d];
    }
    job.ndim = follow ? 0 : s->ndim;
    job.is_packed = follow && first % 4 == 0 && oari_is_packed(to, job.count) &&
                    oari_is_packed(a, job.count) && job.least < 1u << 24 &&
                    first + job.count < (int64_t)1 << 34;
    job.bound = job.least << 8;
    threads = job.is_packed ? (job.count * (int64_t)oar_dtype_size(to->dtype) /
                                   OARI_PACK_BYTES +
                               OARI_DROPOUT_PACKS - 1) /
                                  OARI_DROPOUT_PACKS
              : follow ? job.count / 4 + 2
                       : job.count;
    return oari_start_float(&kernels, to,
                            job.is_packed ? (threads + THREADS - 1) / THREADS
                                          : oari_blocks_for(threads, THREADS),
                            THREADS, 0, &job);
}

oar_status oari_cuda_rotary_angles(const oari_array *angle, int64_t first,
                                   double base)
{
    static oari_cuda_kernel_ref kernel = { .file = "draw",
                                           .name = "oari_rotary_angles" };
    oari_angles_job job = { .angle = oari_array_data(angle),
                            .t = angle->at.shape.dim[0],
                            .d = angle->at.shape.dim[1],
                            .first = first,
                            .base = base,
                            .is_f64 = angle->dtype == OAR_F64 };

    return oari_start_one(&kernel, angle,
                          oari_blocks_for(job.t * (job.d / 2), THREADS),
                          THREADS, 0, &job);
}

oar_status oari_cuda_rotary(const oari_array *to, int add, const oari_array *x,
                            const oari_array *angle, int64_t turned, int back)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("draw", "oari_rotary");
    int nd = x->at.shape.ndim;
    oari_rotary_job job = { .x = oari_array_data(x),
                            .angle = oari_array_data(angle),
                            .to = oari_array_data(to),
                            .count = oari_shape_count(x->at.shape) / 2,
                            .t = angle->at.shape.dim[0],
                            .heads = x->at.shape.dim[nd - 2],
                            .d = x->at.shape.dim[nd - 1],
                            .turned = turned,
                            .add = add,
                            .back = back };
    int64_t threads = job.count;

    job.is_packed = oari_is_packed(x, job.d / 2) &&
                    oari_is_packed(to, job.d / 2) &&
                    oari_is_packed(angle, job.d / 2) && job.count < MOST_PACKED;
    if (job.is_packed)
        threads /= OARI_PACK_BYTES / (int64_t)oar_dtype_size(to->dtype);
    return oari_start_float(&kernels, to, oari_blocks_for(threads, THREADS),
                            THREADS, 0, &job);
}
