/* SPDX-License-Identifier: Apache-2.0 */
/* base/dtype.h: half types, and conversion between dtypes. */
#ifndef OARI_BASE_DTYPE_H
#define OARI_BASE_DTYPE_H

#include <oarsong/span.h>

#include "base/plugin_export.h"

/* Convert between an f32 and the bits of a half type. Rounding is to nearest,
 * ties to even; overflow gives infinity; NaN stays a (quiet) NaN. */
uint16_t oari_f16_from_f32(float value);
float oari_f16_to_f32(uint16_t bits);
uint16_t oari_bf16_from_f32(float value);
float oari_bf16_to_f32(uint16_t bits);

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

#endif
