/* SPDX-License-Identifier: Apache-2.0 */
/* value: inputs by formula, and the results that follow from them.
 *
 * Data that is only moved uses all bits, integers that wrap too. What is added
 * as floats, averaged or multiplied by factors are small integers, whose sums
 * every dtype holds exactly in any order: only means need a tolerance. */
#include <math.h>
#include <string.h>

#include "soak.h"

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t draw(const soak *k, uint64_t op, int field)
{
    return mix(mix(k->s->seed, op), (uint64_t)field);
}

uint64_t own_draw(const soak *k, uint64_t op, int field)
{
    return mix(draw(k, op, field), 1000 + (uint64_t)k->rank);
}

static int is_float(oar_dtype dtype)
{
    return dtype <= OAR_BF16;
}

static int is_signed(oar_dtype dtype)
{
    return dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
           dtype == OAR_I64;
}

static int is_scaled(oar_reduce_op_kind op)
{
    return op == OAR_REDUCE_OP_PREMUL_SUM || op == OAR_REDUCE_OP_WEIGHTED_MEAN;
}

static int is_mean(oar_reduce_op_kind op)
{
    return op == OAR_REDUCE_OP_AVG || op == OAR_REDUCE_OP_WEIGHTED_MEAN;
}

int value_makes_sense(oar_reduce_op_kind op, oar_dtype dtype)
{
    if (op == OAR_REDUCE_OP_BAND || op == OAR_REDUCE_OP_BOR ||
        op == OAR_REDUCE_OP_BXOR)
        return !is_float(dtype);
    if (op == OAR_REDUCE_OP_AVG || is_scaled(op))
        return dtype != OAR_BOOL;
    return 1;
}

double value_factor(const soak_op *t, int rank)
{
    uint64_t bits = mix(t->op, 77 + (uint64_t)rank);

    if (t->fold == OAR_REDUCE_OP_WEIGHTED_MEAN)
        return rank == 1 ? 0 : 1 + (double)(bits % 2);
    if (t->fold != OAR_REDUCE_OP_PREMUL_SUM)
        return 1;
    return is_float(t->dtype) && bits % 3 == 0 ? 0.5 : 1 + (double)(bits % 2);
}

/* ---- elements ------------------------------------------------------------ */

static uint64_t base_of(const soak *k, const soak_op *t, int rank)
{
    return mix(draw(k, t->value, 500), (uint64_t)t->c->world[rank]);
}

static uint64_t bits_of(uint64_t base, size_t i)
{
    uint64_t x = (base + i) * 0x9e3779b97f4a7c15u;

    return x ^ x >> 29;
}

static uint64_t narrow(oar_dtype dtype, uint64_t bits)
{
    int spare = 64 - 8 * (int)oar_dtype_size(dtype);

    if (dtype == OAR_BOOL)
        return bits >> 40 & 1;
    if (is_signed(dtype))
        return (uint64_t)((int64_t)(bits << spare) >> spare);
    return bits << spare >> spare;
}

static int is_small(const soak_op *t)
{
    return is_float(t->dtype) || is_mean(t->fold) || is_scaled(t->fold);
}

/* The input of a reduction, as an integer. */
static int64_t term(const soak_op *t, uint64_t base, size_t i)
{
    uint64_t bits = bits_of(base, i);
    int has_sign = is_float(t->dtype) || is_signed(t->dtype);
    int64_t small = (int64_t)(bits >> 33) % (is_scaled(t->fold) ? 6 : 12);

    if (!is_small(t))
        return (int64_t)narrow(t->dtype, bits);
    if (t->fold == OAR_REDUCE_OP_PROD)
        small = 1 + small % 2;
    return has_sign && (bits & 1) ? -small : small;
}

static uint16_t half_of(double value)
{
    float f = (float)value;
    uint32_t bits;

    memcpy(&bits, &f, 4);
    if (value == 0)
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) |
                      (((bits >> 23 & 255) - 127 + 15) << 10) |
                      (bits >> 13 & 1023));
}

static double of_half(uint16_t half)
{
    int power = half >> 10 & 31;
    double size = power == 0 ? (half & 1023) * 0x1p-24
                             : ldexp(1024 + (half & 1023), power - 25);

    if (power == 31)
        return (double)NAN; /* none of ours */
    return half & 0x8000 ? -size : size;
}

static void write_float(oar_dtype dtype, double value, unsigned char *to)
{
    float f = (float)value;
    uint16_t half = half_of(value);
    uint32_t bits;

    memcpy(&bits, &f, 4);
    bits >>= 16;
    switch (dtype) {
    case OAR_F32: memcpy(to, &f, 4); break;
    case OAR_F64: memcpy(to, &value, 8); break;
    case OAR_F16: memcpy(to, &half, 2); break;
    default:
        half = (uint16_t)bits;
        memcpy(to, &half, 2);
        break;
    }
}

static double read_float(oar_dtype dtype, const unsigned char *at)
{
    uint32_t bits = 0;
    uint16_t half;
    double wide;
    float f;

    switch (dtype) {
    case OAR_F32: memcpy(&f, at, 4); return (double)f;
    case OAR_F64: memcpy(&wide, at, 8); return wide;
    case OAR_F16: memcpy(&half, at, 2); return of_half(half);
    default:
        memcpy(&half, at, 2);
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    }
}

static void write_bits(size_t size, uint64_t bits, unsigned char *to)
{
    uint8_t one = (uint8_t)bits;
    uint16_t two = (uint16_t)bits;
    uint32_t four = (uint32_t)bits;

    switch (size) {
    case 1: *to = one; break;
    case 2: memcpy(to, &two, 2); break;
    case 4: memcpy(to, &four, 4); break;
    default: memcpy(to, &bits, 8); break;
    }
}

static void write_input(const soak_op *t, uint64_t base, size_t i,
                        unsigned char *to)
{
    size_t size = oar_dtype_size(t->dtype);

    if (!kind_reduces(t->kind))
        write_bits(size, narrow(t->dtype, bits_of(base, i)), to);
    else if (is_float(t->dtype))
        write_float(t->dtype, (double)term(t, base, i), to);
    else
        write_bits(size, (uint64_t)term(t, base, i), to);
}

void value_fill(const soak *k, const soak_op *t, int rank, size_t start,
                size_t count, void *to)
{
    size_t size = oar_dtype_size(t->dtype);
    uint64_t base = base_of(k, t, rank);

    for (size_t i = 0; i < count; i++)
        write_input(t, base, start + i, (unsigned char *)to + i * size);
}

/* ---- reductions ---------------------------------------------------------- */

static int64_t combine(const soak_op *t, int64_t a, int64_t b)
{
    int less = is_signed(t->dtype) || is_float(t->dtype)
                   ? a < b
                   : (uint64_t)a < (uint64_t)b;

    switch (t->fold) {
    case OAR_REDUCE_OP_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case OAR_REDUCE_OP_MIN: return less ? a : b;
    case OAR_REDUCE_OP_MAX: return less ? b : a;
    case OAR_REDUCE_OP_BAND: return a & b;
    case OAR_REDUCE_OP_BOR: return a | b;
    case OAR_REDUCE_OP_BXOR: return a ^ b;
    default:
        return t->dtype == OAR_BOOL ? a | b
                                    : (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

/* Twice the reduction, so that factors of a half stay integers. */
static int64_t folded(const soak_op *t, const uint64_t *base, size_t i)
{
    int scaled = is_scaled(t->fold);
    int64_t sum = 0;

    for (int r = 0; r < t->c->size; r++) {
        int64_t x = term(t, base[r], i);
        if (scaled)
            x *= (int64_t)(2 * value_factor(t, r));
        sum = r == 0 ? x : combine(t, sum, x);
    }
    return sum;
}

/* What `folded` is to be divided by. */
static double divisor(const soak_op *t)
{
    double sum = 0;

    if (t->fold == OAR_REDUCE_OP_AVG)
        return t->c->size;
    if (t->fold == OAR_REDUCE_OP_PREMUL_SUM)
        return 2;
    if (t->fold != OAR_REDUCE_OP_WEIGHTED_MEAN)
        return 1;
    for (int r = 0; r < t->c->size; r++)
        sum += value_factor(t, r);
    return 2 * sum;
}

static double tolerance(const soak_op *t)
{
    static const double relative[] = { 0x1p-20, 0x1p-49, 0x1p-9, 0x1p-6 };

    return is_mean(t->fold) ? 12 * relative[t->dtype] : 0;
}

static int is_right(const soak_op *t, int64_t sum, double by,
                    const unsigned char *at)
{
    size_t size = oar_dtype_size(t->dtype);
    unsigned char want[8];

    if (is_float(t->dtype))
        return fabs(read_float(t->dtype, at) - (double)sum / by) <=
               tolerance(t);
    if (by > 1)
        sum /= (int64_t)by;
    write_bits(size, narrow(t->dtype, (uint64_t)sum), want);
    if (t->dtype == OAR_BOOL)
        *want = sum != 0;
    return memcmp(want, at, size) == 0;
}

static size_t find_wrong_fold(const soak *k, const soak_op *t, size_t start,
                              size_t count, const unsigned char *data)
{
    size_t size = oar_dtype_size(t->dtype);
    uint64_t base[SOAK_RANKS];
    double by = divisor(t);

    for (int r = 0; r < t->c->size; r++)
        base[r] = base_of(k, t, r);
    for (size_t i = 0; i < count; i++)
        if (!is_right(t, folded(t, base, start + i), by, data + i * size))
            return i;
    return count;
}

size_t value_find_wrong(const soak *k, const soak_op *t, int rank, size_t start,
                        size_t count, const void *data)
{
    size_t size = oar_dtype_size(t->dtype);
    const unsigned char *at = data;
    unsigned char want[8];
    uint64_t base;

    if (rank < 0)
        return find_wrong_fold(k, t, start, count, data);
    base = base_of(k, t, rank);
    for (size_t i = 0; i < count; i++) {
        write_input(t, base, start + i, want);
        if (memcmp(want, at + i * size, size) != 0)
            return i;
    }
    return count;
}
