/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/dispatch.h: one body of code for each dtype.
 *
 * OARI_BY_...(dtype, body) runs body with T as the C type of dtype. W is the
 * type to add and multiply in: T itself for floats, an unsigned one for
 * integers, so that they wrap. Other dtypes do nothing: check before. */
#ifndef OARI_TENSOR_CPU_DISPATCH_H
#define OARI_TENSOR_CPU_DISPATCH_H

#include <stdint.h>

#define OARI_CASE(DTYPE, TYPE, WIDE, ...)       \
    case DTYPE: {                               \
        typedef TYPE T __attribute__((unused)); \
        typedef WIDE W __attribute__((unused)); \
        __VA_ARGS__                             \
        break;                                  \
    }

#define OARI_FLOAT_CASES(...)                     \
    OARI_CASE(OAR_F32, float, float, __VA_ARGS__) \
    OARI_CASE(OAR_F64, double, double, __VA_ARGS__)

#define OARI_INTEGER_CASES(...)                         \
    OARI_CASE(OAR_I8, int8_t, uint64_t, __VA_ARGS__)    \
    OARI_CASE(OAR_U8, uint8_t, uint64_t, __VA_ARGS__)   \
    OARI_CASE(OAR_I16, int16_t, uint64_t, __VA_ARGS__)  \
    OARI_CASE(OAR_U16, uint16_t, uint64_t, __VA_ARGS__) \
    OARI_CASE(OAR_I32, int32_t, uint64_t, __VA_ARGS__)  \
    OARI_CASE(OAR_U32, uint32_t, uint64_t, __VA_ARGS__) \
    OARI_CASE(OAR_I64, int64_t, uint64_t, __VA_ARGS__)  \
    OARI_CASE(OAR_U64, uint64_t, uint64_t, __VA_ARGS__)

#define OARI_BY_FLOAT(dtype, ...)     \
    switch (dtype) {                  \
        OARI_FLOAT_CASES(__VA_ARGS__) \
    default: break;                   \
    }

#define OARI_BY_INTEGER(dtype, ...)     \
    switch (dtype) {                    \
        OARI_INTEGER_CASES(__VA_ARGS__) \
    default: break;                     \
    }

#define OARI_BY_NUMBER(dtype, ...)      \
    switch (dtype) {                    \
        OARI_FLOAT_CASES(__VA_ARGS__)   \
        OARI_INTEGER_CASES(__VA_ARGS__) \
    default: break;                     \
    }

/* Runs body with T as an unsigned type of that many bytes: for what only moves
 * elements. */
#define OARI_BY_BYTES(bytes, ...)                     \
    switch (bytes) {                                  \
        OARI_CASE(1, uint8_t, uint8_t, __VA_ARGS__)   \
        OARI_CASE(2, uint16_t, uint16_t, __VA_ARGS__) \
        OARI_CASE(4, uint32_t, uint32_t, __VA_ARGS__) \
        OARI_CASE(8, uint64_t, uint64_t, __VA_ARGS__) \
    default: break;                                   \
    }

#endif
