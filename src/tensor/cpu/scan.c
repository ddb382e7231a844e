/* SPDX-License-Identifier: Apache-2.0 */
/* scan: sums of everything up to a place, along any dim. Along the last one a
 * sum stays in a register; along others, columns are summed side by side. */
#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/target_clones.h"

enum { COLUMNS = 64 };

/* Both put the sum of R so far, and what GIVE makes of it, in place of each
 * element, in steps of `by`, 1 or -1. */
#define SUM_ROWS(R, y, x, s, by, GIVE)                        \
    for (int64_t b_ = 0; b_ < (s).before; b_++) {             \
        int64_t at = (b_ + ((by) < 0)) * (s).at - ((by) < 0); \
        R sum = 0;                                            \
        for (int64_t i_ = 0; i_ < (s).at; i_++, at += (by)) { \
            sum += (R)(x)[at];                                \
            (y)[at] = GIVE((y)[at], sum);                     \
        }                                                     \
    }

#define SUM_COLUMNS(R, y, x, s, by, GIVE)                           \
    for (int64_t b_ = 0; b_ < (s).before; b_++)                     \
        for (int64_t c_ = 0; c_ < (s).after; c_ += COLUMNS) {       \
            const int64_t left_ = (s).after - c_;                   \
            const int64_t n_ = left_ < COLUMNS ? left_ : COLUMNS;   \
            int64_t row_ = (b_ + ((by) < 0)) * (s).at - ((by) < 0); \
            R sum[COLUMNS] = { 0 };                                 \
            for (int64_t i_ = 0; i_ < (s).at; i_++, row_ += (by)) { \
                const int64_t at = row_ * (s).after + c_;           \
                for (int64_t k_ = 0; k_ < n_; k_++) {               \
                    sum[k_] += (R)(x)[at + k_];                     \
                    (y)[at + k_] = GIVE((y)[at + k_], sum[k_]);     \
                }                                                   \
            }                                                       \
        }

#define STORE(y, sum) ((T)(sum))
#define ADD(y, sum)   ((T)(sum) + (y))

#define SUM_ALONG(R, y, x, s, by, GIVE)       \
    do {                                      \
        if ((s).after == 1)                   \
            SUM_ROWS(R, y, x, s, by, GIVE)    \
        else                                  \
            SUM_COLUMNS(R, y, x, s, by, GIVE) \
    } while (0)

OARI_TARGET_CLONES oar_status oari_cumsum(const oari_array *to, int add,
                                          const oari_array *a, int dim,
                                          int from_end)
{
    const oari_around s = oari_shape_around(to->at.shape, dim);
    const int64_t by = from_end ? -1 : 1;

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *x = oari_array_data(a);
        if (add)
            SUM_ALONG(double, y, x, s, by, ADD);
        else
            SUM_ALONG(double, y, x, s, by, STORE);
    })
    OARI_BY_INTEGER(to->dtype, {
        T *y = oari_array_data(to);
        const T *x = oari_array_data(a);
        SUM_ALONG(uint64_t, y, x, s, by, STORE);
    })
    return OAR_OK;
}
