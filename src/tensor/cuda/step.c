/* SPDX-License-Identifier: Apache-2.0 */
/* step: starts the kernels of step.cu: parameters of one dtype together, as
 * many as fit a launch. This file has no state. */
#include "tensor/cuda/cuda_step.h"

#include "tensor/cuda/cuda_start.h"

enum { CLIP_THREADS = 1024 };

static int64_t blocks_of(int64_t count)
{
    return (count + OARI_STEP_SHARE - 1) / OARI_STEP_SHARE;
}

int64_t oari_cuda_squares_room(int count, const oari_step_param *param)
{
    int64_t blocks = 0;

    for (int i = 0; i < count; i++)
        blocks += blocks_of(oari_shape_count(param[i].grad.at.shape));
    return blocks;
}

static oari_step_stretch stretch_of(const oari_step_param *p, int64_t blocks)
{
    oari_step_stretch s = { .param = oari_array_data(&p->param),
                            .grad = oari_array_data(&p->grad),
                            .master = p->master,
                            .count = oari_shape_count(p->param.at.shape),
                            .first_block = (uint32_t)blocks,
                            .is_wide = p->grad.dtype != p->param.dtype };

    uintptr_t bits =
        (uintptr_t)s.param | (uintptr_t)s.grad | (uintptr_t)s.master;

    for (int k = 0; k < OARI_STEP_STATES; k++) {
        s.state[k] = p->state[k];
        bits |= (uintptr_t)s.state[k];
    }
    s.is_packed = bits % OARI_PACK_BYTES == 0;
    return s;
}

/* Takes the next stretches of a dtype, from *next on, that fit a launch.
 * Returns how many there are; *blocks: that they need. */
static int take_stretches(oar_dtype dtype, int count,
                          const oari_step_param *param, int *next,
                          oari_step_stretch *stretch, int64_t *blocks)
{
    int taken = 0;

    *blocks = 0;
    for (; *next < count && taken < OARI_STEP_STRETCHES; (*next)++) {
        const oari_step_param *p = &param[*next];
        int64_t more = blocks_of(oari_shape_count(p->param.at.shape));

        if (p->param.dtype != dtype || more == 0)
            continue;
        stretch[taken++] = stretch_of(p, *blocks);
        *blocks += more;
    }
    return taken;
}

static const oar_dtype dtypes[] = { OAR_F32, OAR_F64, OAR_F16, OAR_BF16 };

/* Starts a kernel for all parameters of each dtype. job->partial moves on with
 * the blocks. */
static oar_status run_stretches(oari_float_kernels *kernels, oari_step_job *job,
                                int count, const oari_step_param *param)
{
    for (int d = 0; d < OARI_FLOAT_DTYPES; d++)
        for (int next = 0; next < count;) {
            oari_array like = param[0].param;
            int64_t blocks;

            like.dtype = dtypes[d];
            job->stretches = take_stretches(dtypes[d], count, param, &next,
                                            job->stretch, &blocks);
            OARI_TRY(oari_start_float(kernels, &like, blocks, OARI_STEP_THREADS,
                                      OARI_SUM_BYTES, job));
            if (job->partial != NULL)
                job->partial += blocks;
        }
    return OAR_OK;
}

oar_status oari_cuda_step(oari_step_rule rule, const oari_step_factors *factors,
                          oari_step_factors *room, const double *scale,
                          const double *skipped, int count,
                          const oari_step_param *param)
{
    static oari_cuda_kernel_ref put = { .file = "step",
                                        .name = "oari_step_put_factors" };
    static oari_float_kernels kernels = OARI_FLOAT_KERNELS("step", "oari_step");
    oari_step_job job = { .factors = room, .scale = scale, .rule = rule };

    if (count == 0)
        return OAR_OK;
    if (factors != NULL || skipped != NULL) {
        oari_step_factors_job first = { .to = room,
                                        .skipped = skipped,
                                        .are_there = factors == NULL };

        if (factors != NULL)
            first.factors = *factors;
        OARI_TRY(oari_start_one(&put, &param[0].param, 1, 32, 0, &first));
    }
    return run_stretches(&kernels, &job, count, param);
}

oar_status oari_cuda_scale_grads(const double *scale, int count,
                                 const oari_step_param *param)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("step", "oari_scale_grads");
    oari_step_job job = { .scale = scale };

    return run_stretches(&kernels, &job, count, param);
}

oar_status oari_cuda_grad_norm(int count, const oari_step_param *param,
                               double limit, double *partial, double *numbers,
                               float *norm, const oari_step_scaler *scaler)
{
    static oari_float_kernels kernels =
        OARI_FLOAT_KERNELS("step", "oari_grad_squares");
    static oari_cuda_kernel_ref clip = { .file = "step", .name = "oari_clip" };
    oari_step_job job = { .partial = partial };
    oari_clip_job total = {
        .partial = partial, .limit = limit, .numbers = numbers, .norm = norm
    };

    if (scaler != NULL) {
        total.scaler = scaler->numbers;
        total.skipped = scaler->skipped;
        total.interval = scaler->interval;
    }
    OARI_TRY(run_stretches(&kernels, &job, count, param));
    total.blocks = job.partial - partial;
    return oari_start_one(&clip, &param[0].param, 1, CLIP_THREADS,
                          OARI_SUM_BYTES, &total);
}
