/* SPDX-License-Identifier: Apache-2.0 */
/* convert: converts elements of any dtype to any other.
 *
 * The pairs that training uses (halves and f64 to and from f32) have loops of
 * their own. All others are converted block by block by way of a wide form that
 * holds every value exactly: f64 for floats, i64 or u64 for integers. Narrowing
 * to a half rounds once: the step to f32 in between rounds to odd, which keeps
 * the bits that decide the last rounding. Buffers need no alignment. */
#include "base/dtype.h"

#include <string.h>

#include "base/half.h"

enum { BLOCK = 256 }; /* elements; the wide form stays in the first cache */

typedef union wide {
    double f64[BLOCK];
    int64_t i64[BLOCK];
    uint64_t u64[BLOCK];
} wide;

typedef void loop_fn(void *to, const void *from, size_t count);
typedef void read_fn(wide *to, const unsigned char *from, size_t count);
typedef void write_fn(unsigned char *to, const wide *from, size_t count);

/* The member of the wide form into which a dtype is read. */
typedef enum form { F64, I64, U64, FORMS } form;

/* name, C type, form, least, greatest, first value that is too great */
#define INTEGERS(X)                                    \
    X(i8, int8_t, i64, INT8_MIN, INT8_MAX, 0x1p7)      \
    X(u8, uint8_t, u64, 0, UINT8_MAX, 0x1p8)           \
    X(i16, int16_t, i64, INT16_MIN, INT16_MAX, 0x1p15) \
    X(u16, uint16_t, u64, 0, UINT16_MAX, 0x1p16)       \
    X(i32, int32_t, i64, INT32_MIN, INT32_MAX, 0x1p31) \
    X(u32, uint32_t, u64, 0, UINT32_MAX, 0x1p32)       \
    X(i64, int64_t, i64, INT64_MIN, INT64_MAX, 0x1p63) \
    X(u64, uint64_t, u64, 0, UINT64_MAX, 0x1p64)

/* ---- loops over unaligned memory ----------------------------------------- */

#define LOOP(name, to_type, from_type, expression)                       \
    static void name(void *to_data, const void *from_data, size_t count) \
    {                                                                    \
        unsigned char *restrict to = to_data;                            \
        const unsigned char *restrict from = from_data;                  \
                                                                         \
        for (size_t i = 0; i < count; i++) {                             \
            from_type x;                                                 \
            to_type y;                                                   \
                                                                         \
            memcpy(&x, from + i * sizeof x, sizeof x);                   \
            y = (to_type)(expression);                                   \
            memcpy(to + i * sizeof y, &y, sizeof y);                     \
        }                                                                \
    }

#if defined(__aarch64__)
LOOP(f32_from_f16, float, __fp16, x) /* one instruction in hardware */
LOOP(f16_from_f32, __fp16, float, x)
#else
LOOP(f32_from_f16, float, uint16_t, oari_f16_bits_to_f32(x))
LOOP(f16_from_f32, uint16_t, float, oari_f16_bits_from_f32(x))
#endif
LOOP(f32_from_bf16, float, uint16_t, oari_bf16_bits_to_f32(x))
LOOP(bf16_from_f32, uint16_t, float, oari_bf16_bits_from_f32(x))
LOOP(f64_from_f32, double, float, x)
LOOP(f32_from_f64, float, double, x)

static loop_fn *direct_loop(oar_dtype to, oar_dtype from)
{
    if (from == OAR_F32)
        return to == OAR_F16    ? f16_from_f32
               : to == OAR_BF16 ? bf16_from_f32
               : to == OAR_F64  ? f64_from_f32
                                : NULL;
    if (to == OAR_F32)
        return from == OAR_F16    ? f32_from_f16
               : from == OAR_BF16 ? f32_from_bf16
               : from == OAR_F64  ? f32_from_f64
                                  : NULL;
    return NULL;
}

/* ---- into the wide form -------------------------------------------------- */

#define READ(name, type, member, expression)                                   \
    static void read_##name(wide *to, const unsigned char *from, size_t count) \
    {                                                                          \
        for (size_t i = 0; i < count; i++) {                                   \
            type x;                                                            \
                                                                               \
            memcpy(&x, from + i * sizeof x, sizeof x);                         \
            to->member[i] = (expression);                                      \
        }                                                                      \
    }
#define READ_INTEGER(name, type, form, least, most, over) \
    READ(name, type, form, x)

INTEGERS(READ_INTEGER)
READ(bool, unsigned char, u64, x != 0)
READ(f16, uint16_t, f64, (double)oari_f16_bits_to_f32(x))
READ(bf16, uint16_t, f64, (double)oari_bf16_bits_to_f32(x))
READ(f32, float, f64, (double)x)
READ(f64, double, f64, x)

static read_fn *const reader[OAR_DTYPE_COUNT] = {
    [OAR_F32] = read_f32,   [OAR_F64] = read_f64, [OAR_F16] = read_f16,
    [OAR_BF16] = read_bf16, [OAR_I8] = read_i8,   [OAR_U8] = read_u8,
    [OAR_I16] = read_i16,   [OAR_U16] = read_u16, [OAR_I32] = read_i32,
    [OAR_U32] = read_u32,   [OAR_I64] = read_i64, [OAR_U64] = read_u64,
    [OAR_BOOL] = read_bool,
};

static form form_of(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F32:
    case OAR_F64:
    case OAR_F16:
    case OAR_BF16: return F64;
    case OAR_I8:
    case OAR_I16:
    case OAR_I32:
    case OAR_I64: return I64;
    default: return U64;
    }
}

/* ---- out of the wide form ------------------------------------------------ */

#define WRITE(name, member, type, expression)                                \
    static void name##_from_##member##s(unsigned char *to, const wide *from, \
                                        size_t count)                        \
    {                                                                        \
        for (size_t i = 0; i < count; i++) {                                 \
            __typeof__(from->member[0]) x = from->member[i];                 \
            type y = (type)(expression);                                     \
                                                                             \
            memcpy(to + i * sizeof y, &y, sizeof y);                         \
        }                                                                    \
    }

/* Integers from integers wrap: the low bits of the wide form are the value.
 * Integers from floats truncate and saturate; NaN gives 0. */
#define WRITE_INTEGER(name, type, form, least, most, over) \
    WRITE(name, u64, type, x)                              \
    WRITE(name, f64, type,                                 \
          x != x                 ? 0                       \
          : x <= (double)(least) ? (least)                 \
          : x >= (over)          ? (most)                  \
                                 : (type)x)

INTEGERS(WRITE_INTEGER)
WRITE(bool, u64, unsigned char, x != 0)
WRITE(bool, f64, unsigned char, x != 0)
WRITE(f64, f64, double, x)
WRITE(f64, i64, double, x)
WRITE(f64, u64, double, x)
WRITE(f32, f64, float, x)
WRITE(f32, i64, float, x)
WRITE(f32, u64, float, x)
WRITE(f16, f64, uint16_t, oari_f16_bits_from_f32(oari_odd_from_f64(x)))
WRITE(f16, i64, uint16_t, oari_f16_bits_from_f32(oari_odd_from_i64(x)))
WRITE(f16, u64, uint16_t, oari_f16_bits_from_f32(oari_odd_from_u64(x)))
WRITE(bf16, f64, uint16_t, oari_bf16_bits_from_f32(oari_odd_from_f64(x)))
WRITE(bf16, i64, uint16_t, oari_bf16_bits_from_f32(oari_odd_from_i64(x)))
WRITE(bf16, u64, uint16_t, oari_bf16_bits_from_f32(oari_odd_from_u64(x)))

#define TO_FLOAT(name)                                      \
    {                                                       \
        [F64] = name##_from_f64s, [I64] = name##_from_i64s, \
        [U64] = name##_from_u64s                            \
    }
#define TO_INTEGER(name)                                    \
    {                                                       \
        [F64] = name##_from_f64s, [I64] = name##_from_u64s, \
        [U64] = name##_from_u64s                            \
    }

static write_fn *const writer[OAR_DTYPE_COUNT][FORMS] = {
    [OAR_F32] = TO_FLOAT(f32),     [OAR_F64] = TO_FLOAT(f64),
    [OAR_F16] = TO_FLOAT(f16),     [OAR_BF16] = TO_FLOAT(bf16),
    [OAR_I8] = TO_INTEGER(i8),     [OAR_U8] = TO_INTEGER(u8),
    [OAR_I16] = TO_INTEGER(i16),   [OAR_U16] = TO_INTEGER(u16),
    [OAR_I32] = TO_INTEGER(i32),   [OAR_U32] = TO_INTEGER(u32),
    [OAR_I64] = TO_INTEGER(i64),   [OAR_U64] = TO_INTEGER(u64),
    [OAR_BOOL] = TO_INTEGER(bool),
};

static void convert_wide(unsigned char *to, oar_dtype to_dtype,
                         const unsigned char *from, oar_dtype from_dtype,
                         size_t count)
{
    size_t to_bytes = oar_dtype_size(to_dtype);
    size_t from_bytes = oar_dtype_size(from_dtype);
    read_fn *read = reader[from_dtype];
    write_fn *write = writer[to_dtype][form_of(from_dtype)];
    wide block;

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;

        read(&block, from + at * from_bytes, n);
        write(to + at * to_bytes, &block, n);
    }
}

void oari_convert(void *to, oar_dtype to_dtype, const void *from,
                  oar_dtype from_dtype, size_t count)
{
    loop_fn *direct = direct_loop(to_dtype, from_dtype);

    if (count == 0)
        return;
    if (direct != NULL)
        direct(to, from, count);
    else if (to_dtype != from_dtype || to_dtype == OAR_BOOL)
        convert_wide(to, to_dtype, from, from_dtype, count);
    else if (to != from)
        memcpy(to, from, count * oar_dtype_size(to_dtype));
}
