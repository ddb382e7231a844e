/* SPDX-License-Identifier: Apache-2.0 */
/* base/reduce/reduce_vector.h: the elements of reduce_loops.h in GCC's vectors
 * of fixed width. The including file defines
 *
 *   VEC     bytes of a vector
 *   TARGET  the function attribute that allows the instructions, or nothing
 *
 * and, after including this, f16_load and f16_store. It may say OWN_MIN_MAX or
 * OWN_BF16 and bring its own of those. All functions compile to a few
 * instructions; none is left out of line. */
#include <string.h>

#include "base/reduce/reduce_isa.h"

#define INLINE   static inline __attribute__((always_inline, unused)) TARGET
#define UNIT_MAX VEC
#define VECTOR   __attribute__((vector_size(VEC)))
#define MEMORY   __attribute__((vector_size(VEC), aligned(1), may_alias))

/* acc: in a register; mem: anywhere in memory; bits: a comparison's result. */
#define ELEMENT(E, type, bits_type)                                          \
    typedef type E##_acc VECTOR;                                             \
    typedef type E##_mem MEMORY;                                             \
    typedef bits_type E##_bits VECTOR;                                       \
    INLINE size_t E##_unit(void)                                             \
    {                                                                        \
        return VEC;                                                          \
    }                                                                        \
    INLINE E##_acc E##_pick(E##_bits which, E##_acc yes, E##_acc no)         \
    {                                                                        \
        return (E##_acc)((which & (E##_bits)yes) | (~which & (E##_bits)no)); \
    }

#define PLAIN_MEMORY(E)                                 \
    INLINE E##_acc E##_load(const unsigned char *from)  \
    {                                                   \
        return *(const E##_mem *)from;                  \
    }                                                   \
    INLINE void E##_store(unsigned char *to, E##_acc a) \
    {                                                   \
        *(E##_mem *)to = a;                             \
    }

ELEMENT(f32, float, int32_t)
ELEMENT(f64, double, int64_t)
ELEMENT(u8, uint8_t, int8_t)
ELEMENT(i8, int8_t, int8_t)
ELEMENT(u16, uint16_t, int16_t)
ELEMENT(i16, int16_t, int16_t)
ELEMENT(u32, uint32_t, int32_t)
ELEMENT(i32, int32_t, int32_t)
ELEMENT(u64, uint64_t, int64_t)
ELEMENT(i64, int64_t, int64_t)
PLAIN_MEMORY(f32)
PLAIN_MEMORY(f64)
PLAIN_MEMORY(u8)
PLAIN_MEMORY(i8)
PLAIN_MEMORY(u16)
PLAIN_MEMORY(i16)
PLAIN_MEMORY(u32)
PLAIN_MEMORY(i32)
PLAIN_MEMORY(u64)
PLAIN_MEMORY(i64)

/* ---- floats -------------------------------------------------------------- */

/* Equal numbers differ at most in the sign of zero: or-ing the bits gives the
 * lesser, and-ing the greater. A NaN in a is kept; one in b is taken because
 * the comparison is false. */
#define FLOAT_MIN_MAX(E)                                                   \
    INLINE E##_acc E##_least(E##_acc a, E##_acc b)                         \
    {                                                                      \
        E##_acc same = (E##_acc)((E##_bits)a | (E##_bits)b);               \
                                                                           \
        return E##_pick(a == b, same, E##_pick((a < b) | (a != a), a, b)); \
    }                                                                      \
    INLINE E##_acc E##_most(E##_acc a, E##_acc b)                          \
    {                                                                      \
        E##_acc same = (E##_acc)((E##_bits)a & (E##_bits)b);               \
                                                                           \
        return E##_pick(a == b, same, E##_pick((a > b) | (a != a), a, b)); \
    }

#ifdef OWN_MIN_MAX
INLINE f32_acc f32_least(f32_acc a, f32_acc b);
INLINE f32_acc f32_most(f32_acc a, f32_acc b);
INLINE f64_acc f64_least(f64_acc a, f64_acc b);
INLINE f64_acc f64_most(f64_acc a, f64_acc b);
#else
FLOAT_MIN_MAX(f32)
FLOAT_MIN_MAX(f64)
#endif

#define FLOAT_ARITHMETIC(E, type)                                             \
    INLINE E##_acc E##_combine(oar_reduce_op_kind kind, E##_acc a, E##_acc b) \
    {                                                                         \
        switch (kind) {                                                       \
        case OAR_REDUCE_OP_SUM: return a + b;                                 \
        case OAR_REDUCE_OP_PROD: return a * b;                                \
        case OAR_REDUCE_OP_MIN: return E##_least(a, b);                       \
        default: return E##_most(a, b);                                       \
        }                                                                     \
    }                                                                         \
    INLINE E##_acc E##_scale(E##_acc a, double x)                             \
    {                                                                         \
        return a * (type)x;                                                   \
    }                                                                         \
    INLINE E##_acc E##_divide(E##_acc a, double x)                            \
    {                                                                         \
        return a / (type)x;                                                   \
    }

FLOAT_ARITHMETIC(f32, float)
FLOAT_ARITHMETIC(f64, double)

/* ---- halves: two vectors of f32, split as suits load and store ----------- */

#define HALF(E)                                                               \
    typedef struct E##_acc {                                                  \
        f32_acc a, b;                                                         \
    } E##_acc;                                                                \
    INLINE size_t E##_unit(void)                                              \
    {                                                                         \
        return VEC;                                                           \
    }                                                                         \
    INLINE E##_acc E##_combine(oar_reduce_op_kind kind, E##_acc x, E##_acc y) \
    {                                                                         \
        return (E##_acc){ f32_combine(kind, x.a, y.a),                        \
                          f32_combine(kind, x.b, y.b) };                      \
    }                                                                         \
    INLINE E##_acc E##_scale(E##_acc x, double y)                             \
    {                                                                         \
        return (E##_acc){ f32_scale(x.a, y), f32_scale(x.b, y) };             \
    }                                                                         \
    INLINE E##_acc E##_divide(E##_acc x, double y)                            \
    {                                                                         \
        return (E##_acc){ f32_divide(x.a, y), f32_divide(x.b, y) };           \
    }

HALF(f16)
HALF(bf16)

#ifndef OWN_BF16
/* The bits of a as bf16 in the upper half of each lane, rounded to even. A NaN
 * is left as it is: arithmetic made it, or a bf16, so its upper half is one. */
INLINE u32_acc round_bf16(f32_acc a)
{
    u32_acc bits = (u32_acc)a;
    u32_acc rounded = bits + 0x7fffu + ((bits >> 16) & 1u);

    return u32_pick((u32_bits)(a != a), bits, rounded);
}

/* Even elements in one vector, odd ones in the other: no lane ever moves. */
INLINE bf16_acc bf16_load(const unsigned char *from)
{
    u32_acc pair = u32_load(from);

    return (bf16_acc){ (f32_acc)(pair << 16), (f32_acc)(pair & 0xffff0000u) };
}

INLINE void bf16_store(unsigned char *to, bf16_acc x)
{
    u32_acc even = round_bf16(x.a), odd = round_bf16(x.b);

    u32_store(to, (even >> 16) | (odd & 0xffff0000u));
}
#endif

/* ---- integers and bool: unsigned arithmetic wraps as signed would -------- */

#define INTEGER(E)                                                            \
    INLINE E##_acc E##_combine(oar_reduce_op_kind kind, E##_acc a, E##_acc b) \
    {                                                                         \
        switch (kind) {                                                       \
        case OAR_REDUCE_OP_SUM: return a + b;                                 \
        case OAR_REDUCE_OP_PROD: return a * b;                                \
        case OAR_REDUCE_OP_MIN: return E##_pick((E##_bits)(a < b), a, b);     \
        case OAR_REDUCE_OP_MAX: return E##_pick((E##_bits)(a > b), a, b);     \
        case OAR_REDUCE_OP_BAND: return a & b;                                \
        case OAR_REDUCE_OP_BOR: return a | b;                                 \
        default: return a ^ b;                                                \
        }                                                                     \
    }                                                                         \
    UNSCALED(E)

/* Scaled integers are reduce_scaled.c's. */
#define UNSCALED(E)                                \
    INLINE E##_acc E##_scale(E##_acc a, double x)  \
    {                                              \
        return a;                                  \
    }                                              \
    INLINE E##_acc E##_divide(E##_acc a, double x) \
    {                                              \
        return a;                                  \
    }

INTEGER(u8)
INTEGER(i8)
INTEGER(u16)
INTEGER(i16)
INTEGER(u32)
INTEGER(i32)
INTEGER(u64)
INTEGER(i64)

ELEMENT(flag, uint8_t, int8_t)
UNSCALED(flag)

INLINE flag_acc flag_load(const unsigned char *from)
{
    return (flag_acc)(u8_load(from) != 0) & 1;
}

INLINE void flag_store(unsigned char *to, flag_acc a)
{
    u8_store(to, a);
}

INLINE flag_acc flag_combine(oar_reduce_op_kind kind, flag_acc a, flag_acc b)
{
    return u8_combine(kind, a, b);
}
