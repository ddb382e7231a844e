/* SPDX-License-Identifier: Apache-2.0 */
/* compare: functions of two elements that are true or false. A bool is a byte;
 * whatever is not zero is true. */
#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/walk.h"

#define COMPARE_ROW(name, expression)                                          \
    OARI_TARGET_CLONES static void name##_row(const oari_walk_row *row,        \
                                              void *arg)                       \
    {                                                                          \
        const oar_dtype *dtype = arg;                                          \
                                                                               \
        OARI_BY_NUMBER(*dtype,                                                 \
                       { OARI_FLAT3(row, uint8_t, T, T, *Y = (expression)); }) \
    }

COMPARE_ROW(eq, A == B)
COMPARE_ROW(ne, A != B)
COMPARE_ROW(lt, A < B)
COMPARE_ROW(le, A <= B)
COMPARE_ROW(gt, A > B)
COMPARE_ROW(ge, A >= B)

#define LOGICAL_ROW(name, expression)                                   \
    OARI_TARGET_CLONES static void name##_row(const oari_walk_row *row, \
                                              void *arg)                \
    {                                                                   \
        OARI_FLAT3(row, uint8_t, uint8_t, uint8_t, *Y = (expression));  \
    }

LOGICAL_ROW(and, A != 0 && B != 0)
LOGICAL_ROW(or, A != 0 || B != 0)
LOGICAL_ROW(xor, (A != 0) != (B != 0))

oar_status oari_compare(oari_compare_kind kind, const oari_array *to,
                        const oari_array *a, const oari_array *b)
{
    static const oari_walk_fn rows[OARI_COMPARE_COUNT] = {
#define X(name) [OARI_COMPARE_##name] = name##_row,
        OAR_COMPARE_LIST(X) X(and) X(or) X(xor)
#undef X
    };
    oar_dtype dtype = oari_row_dtype(a->dtype);

    if (dtype == OAR_BOOL)
        dtype = OAR_U8;
    oari_walk_flat(to->at.shape, 3, (const oari_array *[]){ to, a, b }, 0,
                   rows[kind], &dtype);
    return OAR_OK;
}
