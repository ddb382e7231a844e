/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm: channels brought to mean 0 and deviation 1. x is [n, channels,
 * ..]: planes of `inner` numbers that lie together. Sums over planes are f64.
 * Planes of one number are done a row of channels at a time, which adds the
 * same numbers in the same order. */
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

typedef struct planes {
    int64_t images, channels, inner;
} planes;

static planes planes_of(oar_shape shape)
{
    planes p = { shape.dim[0], shape.dim[1], 1 };

    for (int i = 2; i < shape.ndim; i++)
        p.inner *= shape.dim[i];
    return p;
}

/* ---- moments ------------------------------------------------------------- */

OARI_TARGET_CLONES static void plane_moments(const oari_array *x, planes p,
                                             double *mean, double *var)
{
    double count = (double)(p.images * p.inner);

    OARI_BY_FLOAT(x->dtype, {
        const T *a = oari_array_data(x);
        for (int64_t c = 0; c < p.channels; c++) {
            double sum = 0;
            double spread = 0;
            for (int64_t i = 0; i < p.images; i++)
                sum += (double)OARI_ROW_SUM(a + (i * p.channels + c) * p.inner,
                                            p.inner);
            mean[c] = sum / count;
            for (int64_t i = 0; i < p.images; i++)
                spread += (double)OARI_ROW_SQUARES(
                    a + (i * p.channels + c) * p.inner, (T)mean[c], p.inner);
            var[c] = spread / count;
        }
    })
}

OARI_TARGET_CLONES static void row_moments(const oari_array *x, planes p,
                                           double *mean, double *var)
{
    for (int64_t c = 0; c < p.channels; c++)
        mean[c] = var[c] = 0;
    OARI_BY_FLOAT(x->dtype, {
        const T *a = oari_array_data(x);
        for (int64_t i = 0; i < p.images; i++) {
            const T *row = a + i * p.channels;
            OARI_IVDEP
            for (int64_t c = 0; c < p.channels; c++)
                mean[c] += (double)row[c];
        }
        for (int64_t c = 0; c < p.channels; c++)
            mean[c] /= (double)p.images;
        for (int64_t i = 0; i < p.images; i++) {
            const T *row = a + i * p.channels;
            OARI_IVDEP
            for (int64_t c = 0; c < p.channels; c++) {
                T far = row[c] - (T)mean[c];
                var[c] += (double)(far * far);
            }
        }
    })
    for (int64_t c = 0; c < p.channels; c++)
        var[c] /= (double)p.images;
}

void oari_channel_moments(const oari_array *x, double *mean, double *var)
{
    planes p = planes_of(x->at.shape);

    if (p.inner == 1)
        row_moments(x, p, mean, var);
    else
        plane_moments(x, p, mean, var);
}

/* ---- forward ------------------------------------------------------------- */

/* How channels are moved and stretched. */
typedef struct scales {
    const double *mean, *rstd;
    const oari_array *weight, *bias; /* or NULL */
} scales;

OARI_TARGET_CLONES static void
plane_norm(const oari_array *to, const oari_array *x, planes p, const scales *s)
{
    const double *mean = s->mean, *rstd = s->rstd;

    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        const T *w = s->weight != NULL ? oari_array_data(s->weight) : NULL;
        const T *b = s->bias != NULL ? oari_array_data(s->bias) : NULL;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < p.images * p.channels; i++) {
            int64_t c = i % p.channels;
            const T factor = (T)(rstd[c] * (w ? (double)w[c] : 1));
            const T middle = (T)mean[c];
            const T offset = b ? b[c] : (T)0;
            for (int64_t k = 0; k < p.inner; k++)
                y[k] = (a[k] - middle) * factor + offset;
            a += p.inner;
            y += p.inner;
        }
    })
}

OARI_TARGET_CLONES static void
row_norm(const oari_array *to, const oari_array *x, planes p, const scales *s)
{
    const double *mean = s->mean, *rstd = s->rstd;

    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        const T *w = s->weight != NULL ? oari_array_data(s->weight) : NULL;
        const T *b = s->bias != NULL ? oari_array_data(s->bias) : NULL;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < p.images; i++) {
            OARI_IVDEP
            for (int64_t c = 0; c < p.channels; c++)
                y[c] = (a[c] - (T)mean[c]) *
                           (T)(rstd[c] * (w ? (double)w[c] : 1)) +
                       (b ? b[c] : (T)0);
            a += p.channels;
            y += p.channels;
        }
    })
}

void oari_batch_norm(const oari_array *to, const oari_array *x,
                     const double *mean, const double *rstd,
                     const oari_array *weight, const oari_array *bias)
{
    planes p = planes_of(x->at.shape);
    scales s = { mean, rstd, weight, bias };

    if (p.inner == 1)
        row_norm(to, x, p, &s);
    else
        plane_norm(to, x, p, &s);
}

/* ---- backward ------------------------------------------------------------ */

/* The sums over a channel of the gradient, and of it times x normalised. */
OARI_TARGET_CLONES static void plane_sums(const oari_norm_back *n, planes p)
{
    const double *mean = oari_array_data(n->mean);
    const double *rstd = oari_array_data(n->rstd);

    OARI_BY_FLOAT(n->x->dtype, {
        const T *g = oari_array_data(n->grad);
        const T *x = oari_array_data(n->x);
        for (int64_t i = 0; i < p.images * p.channels; i++) {
            int64_t c = i % p.channels;
            const T middle = (T)mean[c];
            double sum = 0;
            double tilt = 0;
            for (int64_t k = 0; k < p.inner; k++) {
                sum += (double)g[k];
                tilt += (double)(g[k] * (x[k] - middle));
            }
            n->sums[c] += tilt * rstd[c];
            n->sums[p.channels + c] += sum;
            g += p.inner;
            x += p.inner;
        }
    })
}

OARI_TARGET_CLONES static void row_sums(const oari_norm_back *n, planes p)
{
    const double *mean = oari_array_data(n->mean);
    const double *rstd = oari_array_data(n->rstd);
    double *tilt = n->sums, *sum = n->sums + p.channels;

    OARI_BY_FLOAT(n->x->dtype, {
        const T *g = oari_array_data(n->grad);
        const T *x = oari_array_data(n->x);
        for (int64_t i = 0; i < p.images; i++) {
            OARI_IVDEP
            for (int64_t c = 0; c < p.channels; c++) {
                tilt[c] += (double)(g[c] * (x[c] - (T)mean[c])) * rstd[c];
                sum[c] += (double)g[c];
            }
            g += p.channels;
            x += p.channels;
        }
    })
}

OARI_TARGET_CLONES static void plane_grads(const oari_norm_back *n, planes p,
                                           double count, int fixed)
{
    const double *mean = oari_array_data(n->mean);
    const double *rstd = oari_array_data(n->rstd);

    OARI_BY_FLOAT(n->x->dtype, {
        const T *g = oari_array_data(n->grad);
        const T *x = oari_array_data(n->x);
        const T *w = n->weight != NULL ? oari_array_data(n->weight) : NULL;
        T *y = oari_array_data(n->dx);
        for (int64_t i = 0; i < p.images * p.channels; i++) {
            int64_t c = i % p.channels;
            const T factor = (T)(rstd[c] * (w ? (double)w[c] : 1));
            const T middle = (T)mean[c];
            const T tilt = fixed ? (T)0 : (T)(n->sums[c] * rstd[c] / count);
            const T flat = fixed ? (T)0 : (T)(n->sums[p.channels + c] / count);
            for (int64_t k = 0; k < p.inner; k++)
                y[k] = (g[k] - flat - (x[k] - middle) * tilt) * factor +
                       (n->add ? y[k] : (T)0);
            g += p.inner;
            x += p.inner;
            y += p.inner;
        }
    })
}

OARI_TARGET_CLONES static void row_grads(const oari_norm_back *n, planes p,
                                         double count, int fixed)
{
    const double *mean = oari_array_data(n->mean);
    const double *rstd = oari_array_data(n->rstd);
    const double *tilt = n->sums, *sum = n->sums + p.channels;
    const double share = fixed ? 0 : 1 / count;

    OARI_BY_FLOAT(n->x->dtype, {
        const T *g = oari_array_data(n->grad);
        const T *x = oari_array_data(n->x);
        const T *w = n->weight != NULL ? oari_array_data(n->weight) : NULL;
        T *y = oari_array_data(n->dx);
        for (int64_t i = 0; i < p.images; i++) {
            OARI_IVDEP
            for (int64_t c = 0; c < p.channels; c++) {
                T factor = (T)(rstd[c] * (w ? (double)w[c] : 1));
                T slope = (x[c] - (T)mean[c]) * (T)(tilt[c] * rstd[c] * share);
                y[c] = (g[c] - (T)(sum[c] * share) - slope) * factor +
                       (n->add ? y[c] : (T)0);
            }
            g += p.channels;
            x += p.channels;
            y += p.channels;
        }
    })
}

void oari_batch_norm_sums(const oari_norm_back *n)
{
    planes p = planes_of(n->x->at.shape);

    for (int64_t k = 0; k < 2 * p.channels; k++)
        n->sums[k] = 0;
    if (p.inner == 1)
        row_sums(n, p);
    else
        plane_sums(n, p);
    oari_store_sums(n->dweight, n->sums, p.channels);
    oari_store_sums(n->dbias, n->sums + p.channels, p.channels);
}

void oari_batch_norm_back(const oari_norm_back *n, double count, int fixed)
{
    planes p = planes_of(n->x->at.shape);

    if (p.inner == 1)
        row_grads(n, p, count, fixed);
    else
        plane_grads(n, p, count, fixed);
}
