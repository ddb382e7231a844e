/* SPDX-License-Identifier: Apache-2.0 */
/* unit/same_numbers.h: compares two ways to compute the same numbers. For
 * tests, one file each. */
#ifndef OARI_TESTS_SAME_H
#define OARI_TESTS_SAME_H

#include <math.h>

#include <oarsong/tensor.h>

#include "support/last_error.h"

static inline oar_tensor *normal(oar_shape shape, uint64_t seed)
{
    return oar_normal(NULL, OAR_F32, shape, seed, 0, 1);
}

/* Releases both. */
static inline void assert_same(oar_tensor *a, oar_tensor *b, double tolerance)
{
    double x[512], y[512];

    if (a == NULL || b == NULL)
        fail_msg("%s", oar_last_error_text());
    assert_int_equal(oar_tensor_count(a), oar_tensor_count(b));
    assert_true(oar_tensor_count(a) <= 512);
    OK(oar_tensor_read(a, OAR_F64, x));
    OK(oar_tensor_read(b, OAR_F64, y));
    for (int64_t i = 0; i < oar_tensor_count(a); i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i]))))
            fail_msg("element %ld: %g and %g", i, x[i], y[i]);
    oar_tensor_release(a);
    oar_tensor_release(b);
}

/* Asserts that an operation gave no result, but this error. */
static inline void assert_refused(const oar_tensor *result, oar_status status,
                                  const char *text)
{
    assert_null(result);
    assert_fails_with(oar_last_error()->status, status, text);
}

#endif
