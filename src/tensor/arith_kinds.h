/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/arith_kinds.h: which function a kernel computes; for C and C++. */
#ifndef OARI_TENSOR_ARITH_KINDS_H
#define OARI_TENSOR_ARITH_KINDS_H

#include <oarsong/ops.h>

typedef enum oari_unary_kind {
#define X(name) OARI_UNARY_##name,
    OAR_UNARY_LIST(X)
#undef X
        OARI_UNARY_COUNT
} oari_unary_kind;

typedef enum oari_binary_kind {
    OARI_ADD,
    OARI_SUB,
    OARI_MUL,
    OARI_DIV,
    OARI_POW,
    OARI_MINIMUM,
    OARI_MAXIMUM,
    OARI_BINARY_COUNT
} oari_binary_kind;

typedef enum oari_scalar_kind {
    OARI_SHIFT,
    OARI_POWER,
    OARI_CLAMP,
    OARI_LEAKY_RELU,
    OARI_SCALAR_COUNT
} oari_scalar_kind;

typedef enum oari_compare_kind {
#define X(name) OARI_COMPARE_##name,
    OAR_COMPARE_LIST(X)
#undef X
        OARI_COMPARE_and,
    OARI_COMPARE_or,
    OARI_COMPARE_xor,
    OARI_COMPARE_COUNT
} oari_compare_kind;

typedef enum oari_reduce_kind {
    OARI_REDUCE_SUM,
    OARI_REDUCE_PROD,
    OARI_REDUCE_MAX,
    OARI_REDUCE_MIN,
    OARI_REDUCE_ANY, /* whether an element is not zero */
    OARI_REDUCE_ALL, /* whether none is */
    OARI_REDUCE_SET, /* how many bools are set: what their sum is */
    OARI_REDUCE_COUNT
} oari_reduce_kind;

#endif
