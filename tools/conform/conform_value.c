/* SPDX-License-Identifier: Apache-2.0 */
/* conform_value: what every rank puts in, by formula.
 *
 * Floats are within a factor of a few of 1 and, where they are added, of one
 * sign for each element, so that no digits cancel and an error can be given in
 * units of the last place; some elements are NaN, infinite or zero. Integers
 * use all their bits, except where the result of an overflow is not defined
 * (means and factors).
 */
#include "conform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A stretch of elements that are not ordinary numbers; prime, so that they fall
 * everywhere in parts and vectors. */
enum { PERIOD = 61, NANS = 13, ZEROS = 29, INFINITIES = 41 };

int value_is_float(oar_dtype dtype)
{
    return dtype <= OAR_BF16;
}

int value_is_signed(oar_dtype dtype)
{
    return dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
           dtype == OAR_I64;
}

static int is_bitwise(oar_reduce_op_kind op)
{
    return op == OAR_REDUCE_OP_BAND || op == OAR_REDUCE_OP_BOR ||
           op == OAR_REDUCE_OP_BXOR;
}

int value_is_scaled(oar_reduce_op_kind op)
{
    return op == OAR_REDUCE_OP_PREMUL_SUM || op == OAR_REDUCE_OP_WEIGHTED_MEAN;
}

int value_is_pick(oar_reduce_op_kind op)
{
    return op == OAR_REDUCE_OP_MIN || op == OAR_REDUCE_OP_MAX;
}

int value_makes_sense(oar_reduce_op_kind op, oar_dtype dtype)
{
    if (is_bitwise(op))
        return !value_is_float(dtype);
    if (op == OAR_REDUCE_OP_AVG || value_is_scaled(op))
        return dtype != OAR_BOOL;
    return 1;
}

double value_factor(const conform_job *j, int rank)
{
    if (j->t.op == OAR_REDUCE_OP_WEIGHTED_MEAN)
        return rank == 1 ? 0 : 1 + rank % 3;
    return value_is_float(j->t.dtype) ? 0.5 + 0.25 * (rank % 5) : 1 + rank % 3;
}

/* ---- inputs -------------------------------------------------------------- */

static uint64_t seed_of(const conform_job *j, int rank)
{
    return j->seed ^ (uint64_t)(rank + 1) << 40;
}

static double special(const conform_job *j, uint64_t bits, int rank, size_t i)
{
    switch (i % PERIOD) {
    case NANS: return rank == (int)(i % (size_t)j->size) ? (double)NAN : 1;
    case ZEROS: return bits & 1 ? 0.0 : -0.0;
    default: return bits % 3 == 0 ? INFINITY : bits % 3 == 1 ? -INFINITY : 1;
    }
}

static void add_specials(const conform_job *j, int rank, size_t start, size_t n,
                         double *f)
{
    static const size_t places[] = { NANS, ZEROS, INFINITIES };

    if (value_is_scaled(j->t.op) || j->t.op == OAR_REDUCE_OP_PROD)
        return;
    for (int p = 0; p < 3; p++)
        for (size_t i = (places[p] + PERIOD - start % PERIOD) % PERIOD; i < n;
             i += PERIOD)
            f[i] = special(j, value_mix(seed_of(j, rank), start + i), rank,
                           start + i);
}

void value_floats(const conform_job *j, int rank, size_t start, size_t n,
                  double *f)
{
    int is_prod = j->t.op == OAR_REDUCE_OP_PROD;
    int any_sign = value_is_pick(j->t.op) || is_prod;
    double low = is_prod ? 0.75 : 0.5, range = is_prod ? 0.5 : 1.5;
    uint64_t seed = seed_of(j, rank);

    for (size_t i = 0; i < n; i++) {
        uint64_t bits = value_mix(seed, start + i);
        double part = (double)(bits >> 11) * 0x1p-53; /* in [0, 1) */
        double size = float_rounded(j->t.dtype, low + range * part);
        f[i] = ((any_sign ? bits : (start + i) >> 1) & 1) != 0 ? -size : size;
    }
    add_specials(j, rank, start, n, f);
}

/* How large an integer may be whose sums and multiples must not overflow. */
static uint64_t limit_of(const conform_job *j)
{
    int bits =
        (int)oar_dtype_size(j->t.dtype) * 8 - value_is_signed(j->t.dtype);
    uint64_t most = bits > 40 ? 1ull << 40 : (1ull << bits) - 1;
    uint64_t limit = most / (3 * (uint64_t)j->size);

    return limit > 0 ? limit : 1;
}

void value_widen(oar_dtype dtype, uint64_t *u, size_t n)
{
    int spare = 64 - (int)oar_dtype_size(dtype) * 8;

    if (value_is_signed(dtype))
        for (size_t i = 0; i < n; i++)
            u[i] = (uint64_t)((int64_t)(u[i] << spare) >> spare);
    else
        for (size_t i = 0; i < n; i++)
            u[i] = u[i] << spare >> spare;
}

void value_integers(const conform_job *j, int rank, size_t start, size_t n,
                    uint64_t *u)
{
    uint64_t seed = seed_of(j, rank), limit = limit_of(j);
    int bounded = kind_reduces(j->t.kind) &&
                  (j->t.op == OAR_REDUCE_OP_AVG || value_is_scaled(j->t.op));

    for (size_t i = 0; i < n; i++)
        u[i] = value_mix(seed, start + i);
    if (j->t.dtype == OAR_BOOL)
        for (size_t i = 0; i < n; i++)
            u[i] &= 1;
    else if (bounded && value_is_signed(j->t.dtype))
        for (size_t i = 0; i < n; i++)
            u[i] = u[i] % (2 * limit + 1) - limit;
    else if (bounded)
        for (size_t i = 0; i < n; i++)
            u[i] %= limit + 1;
    value_widen(j->t.dtype, u, n);
}

static int adds_floats(const conform_job *j)
{
    return value_is_float(j->t.dtype) && kind_reduces(j->t.kind);
}

/* ---- elements ------------------------------------------------------------ */

#define COPY_LOW(type)                                 \
    for (size_t i = 0; i < n; i++) {                   \
        type low = (type)u[i];                         \
        memcpy(to + i * sizeof low, &low, sizeof low); \
    }

void value_store_integers(oar_dtype dtype, const uint64_t *u, size_t n,
                          unsigned char *to)
{
    switch (oar_dtype_size(dtype)) {
    case 1: COPY_LOW(uint8_t) break;
    case 2: COPY_LOW(uint16_t) break;
    case 4: COPY_LOW(uint32_t) break;
    default: memcpy(to, u, 8 * n); break;
    }
}

static void store(const conform_job *j, const value_block *b, size_t n,
                  unsigned char *to)
{
    size_t size = oar_dtype_size(j->t.dtype);

    if (!adds_floats(j)) {
        value_store_integers(j->t.dtype, b->u, n, to);
        return;
    }
    for (size_t i = 0; i < n; i++)
        float_write(j->t.dtype, b->f[i], to + i * size);
}

static void inputs(const conform_job *j, int rank, size_t start, size_t n,
                   value_block *b)
{
    if (adds_floats(j))
        value_floats(j, rank, start, n, b->f);
    else
        value_integers(j, rank, start, n, b->u);
}

void value_fill(const conform_job *j, int rank, size_t start, size_t count,
                void *to)
{
    size_t size = oar_dtype_size(j->t.dtype);
    unsigned char *at = to;
    value_block b;

    for (size_t done = 0; done < count; done += VALUE_BLOCK) {
        size_t n = count - done < VALUE_BLOCK ? count - done : VALUE_BLOCK;
        inputs(j, rank, start + done, n, &b);
        store(j, &b, n, at + done * size);
    }
}

/* The first of n elements that differs; n if none does. */
size_t value_first_other(const unsigned char *got, const unsigned char *want,
                         size_t n, size_t size)
{
    if (memcmp(got, want, n * size) == 0)
        return n;
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i * size, want + i * size, size) != 0)
            return i;
    return n;
}

size_t value_find_other(const conform_job *j, int rank, size_t start,
                        size_t count, const void *data, uint64_t *want)
{
    size_t size = oar_dtype_size(j->t.dtype);
    unsigned char made[8 * VALUE_BLOCK];

    for (size_t done = 0; done < count; done += VALUE_BLOCK) {
        size_t n = count - done < VALUE_BLOCK ? count - done : VALUE_BLOCK, at;
        value_fill(j, rank, start + done, n, made);
        at = value_first_other((const unsigned char *)data + done * size, made,
                               n, size);
        if (at < n) {
            memcpy(want, made + at * size, size);
            return done + at;
        }
    }
    return count;
}

void value_show(oar_dtype dtype, const void *element, char text[48])
{
    uint64_t raw = 0, wide;

    memcpy(&raw, element, oar_dtype_size(dtype));
    wide = raw;
    value_widen(dtype, &wide, 1);
    if (value_is_float(dtype))
        snprintf(text, 48, "%.9g (0x%llx)", float_read(dtype, element),
                 (unsigned long long)raw);
    else if (value_is_signed(dtype))
        snprintf(text, 48, "%lld", (long long)wide);
    else
        snprintf(text, 48, "%llu", (unsigned long long)raw);
}
