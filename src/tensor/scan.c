/* SPDX-License-Identifier: Apache-2.0 */
/* scan: sums of everything up to a place, along any dim. */
#include "tensor/arith.h"
#include "tensor/dispatch.h"
#include "tensor/wide.h"

enum { COLUMNS = 64 }; /* that are summed side by side */

/* Runs body for n columns that lie side by side, at most COLUMNS, and each of
 * their places in turn: `at` is that of the first column, and sum has one R a
 * column. */
#define EACH_PLACE(R, s, from_end, body)                                    \
    for (int64_t b_ = 0; b_ < (s).before; b_++)                             \
        for (int64_t c_ = 0; c_ < (s).after; c_ += COLUMNS) {               \
            const int64_t left_ = (s).after - c_;                           \
            const int64_t n = left_ < COLUMNS ? left_ : COLUMNS;            \
            R sum[COLUMNS] = { 0 };                                         \
            for (int64_t i_ = 0; i_ < (s).at; i_++) {                       \
                const int64_t place_ = (from_end) ? (s).at - 1 - i_ : i_;   \
                const int64_t at = (b_ * (s).at + place_) * (s).after + c_; \
                body                                                        \
            }                                                               \
        }

OARI_WIDE static void sum_floats(const oari_array *to, int add,
                                 const oari_array *a, oari_around s,
                                 int from_end){
    OARI_BY_FLOAT(to->dtype,
                  {
                      T *y = oari_array_data(to);
                      const T *x = oari_array_data(a);
                      EACH_PLACE(double, s, from_end, {
                          for (int64_t k = 0; k < n; k++) {
                              sum[k] += (double)x[at + k];
                              y[at + k] = (T)sum[k] + (add ? y[at + k] : (T)0);
                          }
                      })
                  })
}

OARI_WIDE static void sum_integers(const oari_array *to, const oari_array *a,
                                   oari_around s, int from_end)
{
    OARI_BY_INTEGER(to->dtype, {
        T *y = oari_array_data(to);
        const T *x = oari_array_data(a);
        EACH_PLACE(uint64_t, s, from_end, {
            for (int64_t k = 0; k < n; k++) {
                sum[k] += (uint64_t)x[at + k];
                y[at + k] = (T)sum[k];
            }
        })
    })
}

void oari_cumsum(const oari_array *to, int add, const oari_array *a, int dim,
                 int from_end)
{
    oari_around s = oari_shape_around(to->at.shape, dim);

    sum_floats(to, add, a, s, from_end);
    sum_integers(to, a, s, from_end);
}
