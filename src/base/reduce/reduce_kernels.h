/* SPDX-License-Identifier: Apache-2.0 */
/* base/reduce/reduce_kernels.h: every kernel of an instruction set, and its
 * table. Included last by a file that has included reduce_vector.h and brought
 * what that asks for, a function fit() (see oari_reduce_set), ISA_TABLE, which
 * is the name of the table, and ISA_NAME, its text. */
#define E f32
#include "base/reduce/reduce_loops.h"
#define E f64
#include "base/reduce/reduce_loops.h"
#define E f16
#include "base/reduce/reduce_loops.h"
#define E bf16
#include "base/reduce/reduce_loops.h"
#define E u8
#include "base/reduce/reduce_loops.h"
#define E i8
#include "base/reduce/reduce_loops.h"
#define E u16
#include "base/reduce/reduce_loops.h"
#define E i16
#include "base/reduce/reduce_loops.h"
#define E u32
#include "base/reduce/reduce_loops.h"
#define E i32
#include "base/reduce/reduce_loops.h"
#define E u64
#include "base/reduce/reduce_loops.h"
#define E i64
#include "base/reduce/reduce_loops.h"
#define E flag
#include "base/reduce/reduce_loops.h"

OARI_FLOAT_KERNELS(f32)
OARI_FLOAT_KERNELS(f64)
OARI_FLOAT_KERNELS(f16)
OARI_FLOAT_KERNELS(bf16)

#define MIN_MAX(E)                         \
    OARI_KERNEL(E, min, OAR_REDUCE_OP_MIN) \
    OARI_KERNEL(E, max, OAR_REDUCE_OP_MAX)
#define UNSIGNED(E)                          \
    OARI_KERNEL(E, sum, OAR_REDUCE_OP_SUM)   \
    OARI_KERNEL(E, prod, OAR_REDUCE_OP_PROD) \
    MIN_MAX(E)
#define BITWISE(E)                          \
    OARI_KERNEL(E, and, OAR_REDUCE_OP_BAND) \
    OARI_KERNEL(E, or, OAR_REDUCE_OP_BOR)   \
    OARI_KERNEL(E, xor, OAR_REDUCE_OP_BXOR)

UNSIGNED(u8)
UNSIGNED(u16)
UNSIGNED(u32)
UNSIGNED(u64)
MIN_MAX(i8)
MIN_MAX(i16)
MIN_MAX(i32)
MIN_MAX(i64)
BITWISE(u8)
BITWISE(flag)

#define FLOATS(op)                                                    \
    [OAR_F32] = f32_##op, [OAR_F64] = f64_##op, [OAR_F16] = f16_##op, \
    [OAR_BF16] = bf16_##op
/* Signed ones wrap as unsigned ones do. */
#define WRAPPING(op)                                                  \
    [OAR_I8] = u8_##op, [OAR_U8] = u8_##op, [OAR_I16] = u16_##op,     \
    [OAR_U16] = u16_##op, [OAR_I32] = u32_##op, [OAR_U32] = u32_##op, \
    [OAR_I64] = u64_##op, [OAR_U64] = u64_##op
#define ORDERED(op)                                                   \
    [OAR_I8] = i8_##op, [OAR_U8] = u8_##op, [OAR_I16] = i16_##op,     \
    [OAR_U16] = u16_##op, [OAR_I32] = i32_##op, [OAR_U32] = u32_##op, \
    [OAR_I64] = i64_##op, [OAR_U64] = u64_##op
/* Bits are bits, whatever the width of the integer. */
#define BITS(op)                                                   \
    [OAR_I8] = u8_##op, [OAR_U8] = u8_##op, [OAR_I16] = u8_##op,   \
    [OAR_U16] = u8_##op, [OAR_I32] = u8_##op, [OAR_U32] = u8_##op, \
    [OAR_I64] = u8_##op, [OAR_U64] = u8_##op, [OAR_BOOL] = flag_##op

/* clang-format off */
const oari_reduce_set ISA_TABLE = {
    .name = ISA_NAME,
    .fit = fit,
    .table.fn = {
        [OARI_ANY_SHAPE] = {
            [OAR_REDUCE_OP_SUM] = { FLOATS(sum), WRAPPING(sum), [OAR_BOOL] = flag_or },
            [OAR_REDUCE_OP_PROD] = { FLOATS(prod), WRAPPING(prod),
                              [OAR_BOOL] = flag_and },
            [OAR_REDUCE_OP_MIN] = { FLOATS(min), ORDERED(min), [OAR_BOOL] = flag_and },
            [OAR_REDUCE_OP_MAX] = { FLOATS(max), ORDERED(max), [OAR_BOOL] = flag_or },
            [OAR_REDUCE_OP_BAND] = { BITS(and) },
            [OAR_REDUCE_OP_BOR] = { BITS(or) },
            [OAR_REDUCE_OP_BXOR] = { BITS(xor) },
        },
        [OARI_TWO_TO_ONE] = { [OAR_REDUCE_OP_SUM] = { FLOATS(two_to_one) } },
        [OARI_TWO_TO_TWO] = { [OAR_REDUCE_OP_SUM] = { FLOATS(two_to_two) } },
        [OARI_SCALED] = { [OAR_REDUCE_OP_SUM] = { FLOATS(scaled) } },
    },
};
/* clang-format on */
