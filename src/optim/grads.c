/* SPDX-License-Identifier: Apache-2.0 */
/* grads: one loop for each type and purpose. Those that find something out have
 * one walk, those that change the numbers another. */
#include "optim/grads.h"

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "optim/optim_gpu.h"
#include "tensor/kernel_table.h"
#include "tensor/cpu/target_clones.h"

enum { BLOCK = 1024, LANES = 8 };

/* Gives `found` with what n more numbers add to it. */
typedef struct finder {
    double (*f32)(const float *x, int64_t n, double found);
    double (*f64)(const double *x, int64_t n, double found);
} finder;

typedef struct changer {
    void (*f32)(float *x, int64_t n, double by);
    void (*f64)(double *x, int64_t n, double by);
} changer;

#define LOOPS(name, T)                                                      \
    OARI_TARGET_CLONES static double squares_##name(const T *x, int64_t n,  \
                                                    double found)           \
    {                                                                       \
        double lane[LANES] = { 0 };                                         \
        int64_t i = 0;                                                      \
        for (; i + LANES <= n; i += LANES)                                  \
            for (int k = 0; k < LANES; k++)                                 \
                lane[k] += (double)x[i + k] * (double)x[i + k];             \
        for (; i < n; i++)                                                  \
            lane[0] += (double)x[i] * (double)x[i];                         \
        for (int k = 0; k < LANES; k++)                                     \
            found += lane[k];                                               \
        return found;                                                       \
    }                                                                       \
    OARI_TARGET_CLONES static double odd_##name(const T *x, int64_t n,      \
                                                double found)               \
    {                                                                       \
        int odd = 0;                                                        \
        for (int64_t i = 0; i < n; i++)                                     \
            odd |= !(x[i] - x[i] == 0); /* infinity and NaN give NaN */     \
        return odd ? 1 : found;                                             \
    }                                                                       \
    OARI_TARGET_CLONES static void scale_##name(T *x, int64_t n, double by) \
    {                                                                       \
        const T factor = (T)by;                                             \
        for (int64_t i = 0; i < n; i++)                                     \
            x[i] *= factor;                                                 \
    }                                                                       \
    OARI_TARGET_CLONES static void clamp_##name(T *x, int64_t n, double by) \
    {                                                                       \
        const T limit = (T)by;                                              \
        for (int64_t i = 0; i < n; i++) {                                   \
            T cut = x[i] > limit ? limit : x[i];                            \
            x[i] = cut < -limit ? -limit : cut;                             \
        }                                                                   \
    }

LOOPS(f32, float)
LOOPS(f64, double)

static const finder squares_of = { squares_f32, squares_f64 };
static const finder odd = { odd_f32, odd_f64 };
static const changer scale = { scale_f32, scale_f64 };
static const changer clamp = { clamp_f32, clamp_f64 };

static double find_in_grad(const finder *f, const oar_tensor *grad)
{
    oar_dtype dtype = oar_tensor_dtype(grad);
    const uint16_t *half = oar_tensor_const_data(grad);
    int64_t n = oar_tensor_count(grad);
    float wide[BLOCK];
    double found = 0;

    if (dtype == OAR_F32)
        return f->f32(oar_tensor_const_data(grad), n, 0);
    if (dtype == OAR_F64)
        return f->f64(oar_tensor_const_data(grad), n, 0);
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK;

        oari_convert(wide, OAR_F32, half + i, dtype, (size_t)count);
        found = f->f32(wide, count, found);
    }
    return found;
}

static void change_grad(const changer *c, oar_tensor *grad, double by)
{
    oar_dtype dtype = oar_tensor_dtype(grad);
    uint16_t *half = oar_tensor_data(grad);
    int64_t n = oar_tensor_count(grad);
    float wide[BLOCK];

    oar_tensor_touch(grad);
    if (dtype == OAR_F32)
        c->f32(oar_tensor_data(grad), n, by);
    else if (dtype == OAR_F64)
        c->f64(oar_tensor_data(grad), n, by);
    if (dtype == OAR_F32 || dtype == OAR_F64)
        return;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK;

        oari_convert(wide, OAR_F32, half + i, dtype, (size_t)count);
        c->f32(wide, count, by);
        oari_convert(half + i, dtype, wide, OAR_F32, (size_t)count);
    }
}

/* ---- on a GPU ------------------------------------------------------------ */

static int count_on_gpus(int count, oar_tensor *const *grad)
{
    int found = 0;

    for (int i = 0; i < count; i++)
        found += oari_is_gpu(oar_tensor_device(grad[i]));
    return found;
}

/* Adds the squares of those on GPUs. */
static oar_status add_gpu_squares(int count, oar_tensor *const *grad,
                                  double *squares)
{
    int found = count_on_gpus(count, grad), at = 0;
    oar_tensor **list;
    oar_status status;
    double more = 0;

    if (found == 0)
        return OAR_OK;
    list = oari_alloc((size_t)found, sizeof(oar_tensor *));
    if (list == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < count; i++)
        if (oari_is_gpu(oar_tensor_device(grad[i])))
            list[at++] = grad[i];
    status = oari_gpu_grad_squares(found, list, &more);
    oari_free(list);
    *squares += more;
    return status;
}

oar_status oari_grads_squares(int count, oar_tensor *const *grad,
                              double *squares)
{
    *squares = 0;
    for (int i = 0; i < count; i++)
        if (!oari_is_gpu(oar_tensor_device(grad[i])))
            *squares += find_in_grad(&squares_of, grad[i]);
    return add_gpu_squares(count, grad, squares);
}

oar_status oari_grads_finite(int count, oar_tensor *const *grad, int *finite)
{
    double squares = 0;

    *finite = 1;
    for (int i = 0; i < count && *finite; i++)
        if (!oari_is_gpu(oar_tensor_device(grad[i])))
            *finite = find_in_grad(&odd, grad[i]) == 0;
    if (!*finite)
        return OAR_OK;
    OARI_TRY(add_gpu_squares(count, grad, &squares));
    *finite = squares - squares == 0;
    return OAR_OK;
}

oar_status oari_grad_scale(oar_tensor *grad, double factor)
{
    oari_array a = oari_array_of(grad);

    if (!oari_is_gpu(a.device)) {
        change_grad(&scale, grad, factor);
        return OAR_OK;
    }
    oar_tensor_touch(grad);
    return OARI_KERNEL(&a, scale, &a, 0, &a, factor);
}

oar_status oari_grad_clamp(oar_tensor *grad, double limit)
{
    const double numbers[] = { -limit, limit };
    oari_array a = oari_array_of(grad);

    if (!oari_is_gpu(a.device)) {
        change_grad(&clamp, grad, limit);
        return OAR_OK;
    }
    oar_tensor_touch(grad);
    return OARI_KERNEL(&a, scalar, OARI_CLAMP, &a, &a, numbers);
}
