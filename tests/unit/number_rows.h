/* SPDX-License-Identifier: Apache-2.0 */
/* number_rows.h: rows of numbers of any dtype, and what operations make of
 * them. For tests, one file each: everything is static and some of it may be
 * unused. */
#ifndef OARI_TESTS_ROWS_H
#define OARI_TESTS_ROWS_H

#include <math.h>

#include <oarsong/ops.h>

#include "support/last_error.h"

/* Compares and releases; NaN equals NaN. */
static inline void expect(oar_tensor *a, oar_dtype dtype, int count,
                          const double *want)
{
    double got[64];

    if (a == NULL)
        fail_msg("%s", oar_last_error_text());
    assert_int_equal(oar_tensor_dtype(a), dtype);
    assert_int_equal(oar_tensor_count(a), count);
    OK(oar_tensor_read(a, OAR_F64, got));
    for (int i = 0; i < count; i++)
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("element %d is %.17g, not %.17g", i, got[i], want[i]);
    oar_tensor_release(a);
}

#define EXPECT(a, dtype, ...)                                      \
    expect(a, dtype, (int)(sizeof((double[]){ __VA_ARGS__ }) / 8), \
           (double[]){ __VA_ARGS__ })

static inline oar_tensor *row_of(oar_dtype dtype, int count,
                                 const double *number)
{
    oar_tensor *a = oar_empty(NULL, dtype, OAR_SHAPE(count));

    OK(oar_tensor_write(a, OAR_F64, number));
    return a;
}

#define ROW(dtype, ...)                                         \
    row_of(dtype, (int)(sizeof((double[]){ __VA_ARGS__ }) / 8), \
           (double[]){ __VA_ARGS__ })

static inline void release_all(int count, oar_tensor **a)
{
    for (int i = 0; i < count; i++)
        oar_tensor_release(a[i]);
}

#define RELEASE(...)                                                           \
    release_all(                                                               \
        (int)(sizeof((oar_tensor *[]){ __VA_ARGS__ }) / sizeof(oar_tensor *)), \
        (oar_tensor *[]){ __VA_ARGS__ })

#endif
