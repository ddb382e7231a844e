/* SPDX-License-Identifier: Apache-2.0 */
/* base/dtype.h: kinds of dtypes, and conversion between them. */
#ifndef OARI_BASE_DTYPE_H
#define OARI_BASE_DTYPE_H

#include <oarsong/span.h>

#include "base/plugin_export.h"

/* Converts count elements. Float to integer truncates toward zero and
 * saturates, NaN gives 0; a bool is 1 for every value but zero; integer to
 * integer wraps. The buffers may be the same only if the dtypes are. */
OARI_FOR_PLUGINS void oari_convert(void *to, oar_dtype to_dtype,
                                   const void *from, oar_dtype from_dtype,
                                   size_t count);

static inline int oari_dtype_is_float(oar_dtype dtype)
{
    return dtype <= OAR_BF16;
}

static inline int oari_dtype_is_half(oar_dtype dtype)
{
    return dtype == OAR_F16 || dtype == OAR_BF16;
}

static inline size_t oari_span_bytes(const oar_span *span)
{
    return span->count * oar_dtype_size(span->dtype);
}

#endif
