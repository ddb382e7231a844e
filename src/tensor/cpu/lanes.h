/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/lanes.h: sums, dot products and maxima of short rows, in the dtype
 * of the row, sixteen lanes at once, which fold in halves at the end: the order
 * depends only on the count. */
#ifndef OARI_TENSOR_CPU_LANES_H
#define OARI_TENSOR_CPU_LANES_H

#include <stdint.h>

enum { OARI_SIMD_LANES = 16 };

#define OARI_SIMD_SUMS(T, name)                                         \
    static inline T oari_fold_##name(const T *lane)                     \
    {                                                                   \
        T eight[8], four[4];                                            \
        for (int k = 0; k < 8; k++)                                     \
            eight[k] = lane[k] + lane[k + 8];                           \
        for (int k = 0; k < 4; k++)                                     \
            four[k] = eight[k] + eight[k + 4];                          \
        return (four[0] + four[2]) + (four[1] + four[3]);               \
    }                                                                   \
    static inline T oari_sum_##name(const T *a, int64_t n)              \
    {                                                                   \
        T lane[OARI_SIMD_LANES] = { 0 };                                \
        int64_t i = 0;                                                  \
        for (; i + OARI_SIMD_LANES <= n; i += OARI_SIMD_LANES)          \
            for (int k = 0; k < OARI_SIMD_LANES; k++)                   \
                lane[k] += a[i + k];                                    \
        for (int k = 0; i < n; i++, k++)                                \
            lane[k] += a[i];                                            \
        return oari_fold_##name(lane);                                  \
    }                                                                   \
    static inline T oari_dot_##name(const T *a, const T *b, int64_t n)  \
    {                                                                   \
        T lane[OARI_SIMD_LANES] = { 0 };                                \
        int64_t i = 0;                                                  \
        for (; i + OARI_SIMD_LANES <= n; i += OARI_SIMD_LANES)          \
            for (int k = 0; k < OARI_SIMD_LANES; k++)                   \
                lane[k] += a[i + k] * b[i + k];                         \
        for (int k = 0; i < n; i++, k++)                                \
            lane[k] += a[i] * b[i];                                     \
        return oari_fold_##name(lane);                                  \
    }                                                                   \
    /* The sum of (a[i] - middle) squared. */                           \
    static inline T oari_spread_##name(const T *a, T middle, int64_t n) \
    {                                                                   \
        T lane[OARI_SIMD_LANES] = { 0 };                                \
        int64_t i = 0;                                                  \
        for (; i + OARI_SIMD_LANES <= n; i += OARI_SIMD_LANES)          \
            for (int k = 0; k < OARI_SIMD_LANES; k++)                   \
                lane[k] += (a[i + k] - middle) * (a[i + k] - middle);   \
        for (int k = 0; i < n; i++, k++)                                \
            lane[k] += (a[i] - middle) * (a[i] - middle);               \
        return oari_fold_##name(lane);                                  \
    }                                                                   \
    /* The largest; of n >= 1. */                                       \
    static inline T oari_most_##name(const T *a, int64_t n)             \
    {                                                                   \
        T lane[OARI_SIMD_LANES], four[4], most;                         \
        int64_t i = 0;                                                  \
        for (int k = 0; k < OARI_SIMD_LANES; k++)                       \
            lane[k] = a[0];                                             \
        for (; i + OARI_SIMD_LANES <= n; i += OARI_SIMD_LANES)          \
            for (int k = 0; k < OARI_SIMD_LANES; k++)                   \
                lane[k] = a[i + k] > lane[k] ? a[i + k] : lane[k];      \
        for (int k = 0; i < n; i++, k++)                                \
            lane[k] = a[i] > lane[k] ? a[i] : lane[k];                  \
        for (int k = 0; k < 8; k++)                                     \
            lane[k] = lane[k + 8] > lane[k] ? lane[k + 8] : lane[k];    \
        for (int k = 0; k < 4; k++)                                     \
            four[k] = lane[k + 4] > lane[k] ? lane[k + 4] : lane[k];    \
        most = four[0];                                                 \
        for (int k = 1; k < 4; k++)                                     \
            most = four[k] > most ? four[k] : most;                     \
        return most;                                                    \
    }

OARI_SIMD_SUMS(float, f32)
OARI_SIMD_SUMS(double, f64)

/* By the type of the row. */
#define OARI_BY_ROW(name, a) \
    _Generic(*(a), float : oari_##name##_f32, double : oari_##name##_f64)
#define OARI_ROW_SUM(a, n)             OARI_BY_ROW(sum, a)(a, n)
#define OARI_ROW_DOT(a, b, n)          OARI_BY_ROW(dot, a)(a, b, n)
#define OARI_ROW_SQUARES(a, middle, n) OARI_BY_ROW(spread, a)(a, middle, n)
#define OARI_ROW_MAX(a, n)             OARI_BY_ROW(most, a)(a, n)

#endif
