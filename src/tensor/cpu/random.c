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
    oar_dtype dtype; /* of the elements */
    uint64_t seed;
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

static void fill_random(char *to, uint64_t first, uint64_t count,
                        const spread *s)
{
    int whole = !oari_dtype_is_float(s->dtype);
    int narrow = !whole && s->dtype != OAR_F64;
    size_t bytes = oar_dtype_size(s->dtype);
    oari_rng rng = { .seed = s->seed };
    union {
        float f32[BLOCK];
        double f64[BLOCK];
    } made;

    for (uint64_t i = 0; i < count; i += BLOCK) {
        size_t n = count - i < BLOCK ? count - i : BLOCK;

        if (narrow)
            block_f32(rng, first + i, made.f32, n, s);
        else
            block_f64(rng, first + i, made.f64, n, s);
        for (size_t k = 0; k < n && whole; k++)
            made.f64[k] = floor(made.f64[k]);
        oari_convert(to + i * bytes, s->dtype, &made,
                     narrow ? OAR_F32 : OAR_F64, n);
    }
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

void oari_fill_uniform(void *to, oar_dtype dtype, int64_t first, int64_t count,
                       uint64_t seed, double low, double high)
{
    oar_dtype made = oari_dtype_is_float(dtype) ? dtype : OAR_F64;
    spread s = { .dtype = dtype,
                 .seed = seed,
                 .start = low,
                 .width = high - low,
                 .most = low < high ? last_below(made, low, high) : high };

    fill_random(to, (uint64_t)first, (uint64_t)count, &s);
}

void oari_fill_normal(void *to, oar_dtype dtype, int64_t first, int64_t count,
                      uint64_t seed, double mean, double deviation)
{
    spread s = { .dtype = dtype,
                 .seed = seed,
                 .normal = 1,
                 .start = mean,
                 .width = deviation,
                 .most = INFINITY };

    fill_random(to, (uint64_t)first, (uint64_t)count, &s);
}
