/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scaled: adds integers with factors or a divisor, block by block.
 *
 * A factor multiplies in f64; the product truncates toward zero and saturates,
 * and the sum of products wraps. A divisor that is a whole number divides as an
 * integer, so that 64-bit sums lose no digit; any other divides in f64, and the
 * quotient truncates and saturates. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/reduce/reduce_isa.h"

enum { BLOCK = 256 }; /* elements: everything below stays in the first cache */

typedef union words {
    unsigned char bytes[8 * BLOCK];
    double f64[BLOCK];
    int64_t i64[BLOCK];
    uint64_t u64[BLOCK];
} words;

double oari_reduce_exact_inverse(double divisor)
{
    int exponent;

    if (fabs(frexp(divisor, &exponent)) != 0.5 || abs(exponent) > 100)
        return 0;
    return 1 / divisor;
}

/* Divides by a whole number that fits in 64 bits as integers do, by any other
 * as f64 does. */
static void divide_sum(words *sum, oar_dtype dtype, size_t n, double by)
{
    int is_signed = dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
                    dtype == OAR_I64;
    double least = is_signed ? -0x1p63 : 1, over = is_signed ? 0x1p63 : 0x1p64;
    int is_whole = by >= least && by < over && by == trunc(by);
    oar_dtype via = !is_whole ? OAR_F64 : is_signed ? OAR_I64 : OAR_U64;
    words wide;

    oari_convert(wide.bytes, via, sum->bytes, dtype, n);
    for (size_t i = 0; i < n; i++)
        if (via == OAR_F64)
            wide.f64[i] /= by;
        else if (via == OAR_U64)
            wide.u64[i] /= (uint64_t)by;
        else if (by == -1) /* the least number has no negative: it wraps */
            wide.u64[i] = 0 - wide.u64[i];
        else
            wide.i64[i] /= (int64_t)by;
    oari_convert(sum->bytes, dtype, wide.bytes, via, n);
}

/* Loads the elements of source s from byte `at` on, times its factor. */
static void load_source(const oari_reduction *r, int s, size_t at, size_t n,
                        words *part)
{
    const unsigned char *from = (const unsigned char *)r->source[s] + at;
    words wide;

    if (r->factor == NULL) {
        memcpy(part->bytes, from, n * oar_dtype_size(r->dtype));
        return;
    }
    oari_convert(wide.f64, OAR_F64, from, r->dtype, n);
    for (size_t i = 0; i < n; i++)
        wide.f64[i] *= r->factor[s];
    oari_convert(part->bytes, r->dtype, wide.f64, OAR_F64, n);
}

static void add_part(words *sum, const words *part, oar_dtype dtype, size_t n)
{
    const void *source[] = { sum->bytes, part->bytes };
    void *destination[] = { sum->bytes };

    oari_reduce(&(oari_reduction){ .kind = OAR_REDUCE_OP_SUM,
                                   .dtype = dtype,
                                   .sources = 2,
                                   .source = source,
                                   .destinations = 1,
                                   .destination = destination },
                n);
}

void oari_reduce_scaled_integers(const oari_reduction *r, size_t bytes)
{
    size_t size = oar_dtype_size(r->dtype);
    words sum, part;

    for (size_t at = 0; at < bytes; at += BLOCK * size) {
        size_t n = (bytes - at) / size < BLOCK ? (bytes - at) / size : BLOCK;

        load_source(r, 0, at, n, &sum);
        for (int s = 1; s < r->sources; s++) {
            load_source(r, s, at, n, &part);
            add_part(&sum, &part, r->dtype, n);
        }
        if (r->divisor != 0)
            divide_sum(&sum, r->dtype, n, r->divisor);
        for (int i = 0; i < r->destinations; i++)
            memcpy((unsigned char *)r->destination[i] + at, sum.bytes,
                   n * size);
    }
}
