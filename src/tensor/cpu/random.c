/* SPDX-License-Identifier: Apache-2.0 */
/* random: tensors of random numbers. Element i gets number i of the stream of
 * its seed, whatever the shape; f64 and integers use the f64 stream, the other
 * floats the f32 one. */
#include <math.h>

#include "base/dtype.h"
#include "base/rng.h"
#include "tensor/cpu/kernels.h"

enum { BLOCK = 256 }; /* elements made at once */

typedef struct spread {
    int normal;
    double start, width; /* low and high - low, or mean and deviation */
    double most;         /* rounding must not carry a number above this */
} spread;

static void block_f32(oari_rng rng, uint64_t first, float *out, size_t count,
                      const spread *s)
{
    if (s->normal)
        oari_rng_normal_f32(rng, first, out, count);
    else
        oari_rng_uniform_f32(rng, first, out, count);
    for (size_t i = 0; i < count; i++) {
        double number = s->start + s->width * (double)out[i];

        out[i] = (float)(number < s->most ? number : s->most);
    }
}

static void block_f64(oari_rng rng, uint64_t first, double *out, size_t count,
                      const spread *s)
{
    if (s->normal)
        oari_rng_normal_f64(rng, first, out, count);
    else
        oari_rng_uniform_f64(rng, first, out, count);
    for (size_t i = 0; i < count; i++) {
        double number = s->start + s->width * out[i];

        out[i] = number < s->most ? number : s->most;
    }
}

static void make_block(const oari_array *to, oari_rng rng, uint64_t first,
                       size_t count, const spread *s)
{
    void *out = (char *)oari_array_data(to) +
                first * (uint64_t)oar_dtype_size(to->dtype);
    union {
        float f32[BLOCK];
        double f64[BLOCK];
    } made;

    if (oari_dtype_is_float(to->dtype) && to->dtype != OAR_F64) {
        block_f32(rng, first, made.f32, count, s);
        oari_convert(out, to->dtype, made.f32, OAR_F32, count);
        return;
    }
    block_f64(rng, first, made.f64, count, s);
    if (to->dtype != OAR_F64)
        for (size_t i = 0; i < count; i++)
            made.f64[i] = floor(made.f64[i]);
    oari_convert(out, to->dtype, made.f64, OAR_F64, count);
}

static void fill_random(const oari_array *to, uint64_t seed, const spread *s)
{
    uint64_t count = (uint64_t)oari_shape_count(to->at.shape);
    oari_rng rng = { .seed = seed };

    for (uint64_t i = 0; i < count; i += BLOCK)
        make_block(to, rng, i, count - i < BLOCK ? count - i : BLOCK, s);
}

/* An element of a floating dtype, and its value. */
static uint64_t round_to_dtype(oar_dtype dtype, double *value)
{
    uint64_t bits = 0;

    oari_convert(&bits, dtype, value, OAR_F64, 1);
    oari_convert(value, OAR_F64, &bits, dtype, 1);
    return bits;
}

/* The largest number of a floating dtype that is below high and is not what
 * high is rounded to, unless low is rounded to that too. */
static double last_below(oar_dtype dtype, double low, double high)
{
    uint64_t sign = (uint64_t)1 << (8 * oar_dtype_size(dtype) - 1);
    double most = high;
    uint64_t bits = round_to_dtype(dtype, &most);

    round_to_dtype(dtype, &low);
    if (most < high && low == most)
        return most;
    if ((bits & ~sign) == 0)
        bits = sign + 1; /* below zero comes the least negative one */
    else
        bits += (bits & sign) != 0 ? 1 : (uint64_t)-1;
    oari_convert(&most, OAR_F64, &bits, dtype, 1);
    return most;
}

void oari_fill_uniform(const oari_array *to, uint64_t seed, double low,
                       double high)
{
    oar_dtype dtype = oari_dtype_is_float(to->dtype) ? to->dtype : OAR_F64;

    fill_random(
        to, seed,
        &(spread){ .start = low,
                   .width = high - low,
                   .most = low < high ? last_below(dtype, low, high) : high });
}

void oari_fill_normal(const oari_array *to, uint64_t seed, double mean,
                      double deviation)
{
    fill_random(to, seed, &(spread){ 1, mean, deviation, INFINITY });
}
