/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm: groups of channels brought to mean 0 and deviation 1, in each
 * image alone. x is [n, channels, ..]: planes of `inner` numbers that lie
 * together, `wide` of them a group. Sums over planes are f64. */
#include <math.h>

#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

enum { CHUNK = 4096, LANES = 8 }; /* added up before it goes to f64; at once */

typedef struct extent {
    int64_t groups;          /* of all images */
    int64_t wide, inner;     /* a group's channels, a channel's numbers */
    int64_t channels, count; /* of an image; numbers of a group */
} extent;

static extent extent_of(oar_shape shape, int64_t groups)
{
    extent e = { shape.dim[0] * groups, shape.dim[1] / groups, 1, shape.dim[1],
                 0 };

    for (int i = 2; i < shape.ndim; i++)
        e.inner *= shape.dim[i];
    e.count = e.wide * e.inner;
    return e;
}

/* ---- forward ------------------------------------------------------------- */

OARI_TARGET_CLONES static void find_moments(const oari_array *x, extent e,
                                            double eps, double *mean,
                                            double *rstd){
    OARI_BY_FLOAT(x->dtype,
                  {
                      const T *a = oari_array_data(x);
                      for (int64_t g = 0; g < e.groups; g++, a += e.count) {
                          double sum = 0;
                          double spread = 0;
                          for (int64_t k = 0; k < e.count; k += CHUNK)
                              sum += (double)OARI_ROW_SUM(
                                  a + k,
                                  e.count - k < CHUNK ? e.count - k : CHUNK);
                          mean[g] = sum / (double)e.count;
                          for (int64_t k = 0; k < e.count; k += CHUNK)
                              spread += (double)OARI_ROW_SQUARES(
                                  a + k, (T)mean[g],
                                  e.count - k < CHUNK ? e.count - k : CHUNK);
                          rstd[g] = 1 / sqrt(spread / (double)e.count + eps);
                      }
                  })
}

OARI_TARGET_CLONES
    void oari_group_norm(const oari_array *to, double *mean, double *rstd,
                         const oari_array *x, int64_t groups,
                         const oari_array *weight, const oari_array *bias,
                         double eps)
{
    extent e = extent_of(x->at.shape, groups);

    find_moments(x, e, eps, mean, rstd);
    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        const T *w = oari_data_or_null(weight);
        const T *b = oari_data_or_null(bias);
        T *restrict y = oari_array_data(to);
        for (int64_t i = 0; i < e.groups * e.wide; i++) {
            const int64_t g = i / e.wide;
            const int64_t c = i % e.channels;
            const T factor = (T)(rstd[g] * (w != NULL ? (double)w[c] : 1));
            const T middle = (T)mean[g];
            const T offset = b != NULL ? b[c] : (T)0;
            for (int64_t k = 0; k < e.inner; k++)
                y[k] = (a[k] - middle) * factor + offset;
            a += e.inner;
            y += e.inner;
        }
    })
}

/* ---- backward ------------------------------------------------------------ */

/* The sums over a plane of the gradient, and of it times x off the middle. */
typedef struct pair {
    double sum, tilt;
} pair;

#define PLANE_OF(T, name)                                             \
    static inline pair plane_##name(const T *g, const T *x, T middle, \
                                    int64_t n)                        \
    {                                                                 \
        double sum[LANES] = { 0 }, tilt[LANES] = { 0 };               \
        pair p = { 0, 0 };                                            \
        int64_t i = 0;                                                \
        for (; i + LANES <= n; i += LANES)                            \
            for (int k = 0; k < LANES; k++) {                         \
                sum[k] += (double)g[i + k];                           \
                tilt[k] += (double)(g[i + k] * (x[i + k] - middle));  \
            }                                                         \
        for (int k = 0; i < n; i++, k++) {                            \
            sum[k] += (double)g[i];                                   \
            tilt[k] += (double)(g[i] * (x[i] - middle));              \
        }                                                             \
        for (int k = 0; k < LANES; k++)                               \
            p = (pair){ p.sum + sum[k], p.tilt + tilt[k] };           \
        return p;                                                     \
    }

PLANE_OF(float, f32)
PLANE_OF(double, f64)

#define PLANE(g) _Generic(*(g), float : plane_f32, double : plane_f64)

/* Adds the sums of group number `group` to those of its channels; returns
 * what the gradient of x is made of: both, weighed, over the whole group. */
OARI_TARGET_CLONES static pair group_sums(const oari_norm_back *n, extent e,
                                          int64_t group)
{
    const double *mean = oari_array_data(n->mean);
    const double *rstd = oari_array_data(n->rstd);
    int64_t first = group * e.wide % e.channels;
    pair all = { 0, 0 };

    OARI_BY_FLOAT(n->x->dtype, {
        const T *g = (const T *)oari_array_data(n->grad) + group * e.count;
        const T *x = (const T *)oari_array_data(n->x) + group * e.count;
        const T *w = oari_data_or_null(n->weight);
        for (int64_t c = first; c < first + e.wide; c++) {
            const pair p = PLANE(g)(g, x, (T)mean[group], e.inner);
            const double weight = w != NULL ? (double)w[c] : 1;
            n->sums[c] += p.tilt * rstd[group];
            n->sums[e.channels + c] += p.sum;
            all.sum += weight * p.sum;
            all.tilt += weight * p.tilt;
            g += e.inner;
            x += e.inner;
        }
    })
    return all;
}

OARI_TARGET_CLONES static void group_grads(const oari_norm_back *n, extent e,
                                           int64_t group, pair all)
{
    const double middle = ((const double *)oari_array_data(n->mean))[group];
    const double scale = ((const double *)oari_array_data(n->rstd))[group];
    const double share = scale / (double)e.count;
    int64_t first = group * e.wide % e.channels;

    OARI_BY_FLOAT(n->x->dtype, {
        const T *g = (const T *)oari_array_data(n->grad) + group * e.count;
        const T *x = (const T *)oari_array_data(n->x) + group * e.count;
        const T *w = oari_data_or_null(n->weight);
        T *y = (T *)oari_array_data(n->dx) + group * e.count;
        const T flat = (T)(all.sum * share);
        const T tilt = (T)(all.tilt * share * scale * scale);
        for (int64_t c = first; c < first + e.wide; c++) {
            const T factor = (T)(scale * (w != NULL ? (double)w[c] : 1));
            OARI_IVDEP
            for (int64_t k = 0; k < e.inner; k++)
                y[k] = g[k] * factor - flat - (x[k] - (T)middle) * tilt +
                       (n->add ? y[k] : (T)0);
            g += e.inner;
            x += e.inner;
            y += e.inner;
        }
    })
}

void oari_group_norm_back(const oari_norm_back *n, int64_t groups)
{
    extent e = extent_of(n->x->at.shape, groups);

    for (int64_t k = 0; k < 2 * e.channels; k++)
        n->sums[k] = 0;
    for (int64_t group = 0; e.count > 0 && group < e.groups; group++) {
        pair all = group_sums(n, e, group);

        if (n->dx != NULL)
            group_grads(n, e, group, all);
    }
    oari_store_sums(n->dweight, n->sums, e.channels);
    oari_store_sums(n->dbias, n->sums + e.channels, e.channels);
}
