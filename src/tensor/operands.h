/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/operands.h: the operands of a kernel as plain arrays: row by row, and
 * f32 or f64 where the device's table of kernels says that it is `wide`.
 *
 * An array that is plain already is used where it lies. Halves and strided
 * arrays are copied to scratch memory first, and results are rounded back once
 * at the end:
 *
 *     oari_operands operands = { .pool = pool };
 *     const oari_array *a = oari_operands_in(&operands, &input);
 *     const oari_array *y = oari_operands_out(&operands, &result, add);
 *     if (operands.status == OAR_OK)
 *         operands.status = OARI_KERNEL(y, kernel, y, add, a);
 *     return oari_operands_finish(&operands);
 */
#ifndef OARI_TENSOR_OPERANDS_H
#define OARI_TENSOR_OPERANDS_H

#include "base/dtype.h"
#include "tensor/kernel_table.h"

enum { OARI_OPERANDS_MAX = 10 };

typedef struct oari_operand {
    oari_array plain;     /* what the kernel sees */
    oar_tensor *scratch;  /* NULL: plain is the array itself */
    const oari_array *to; /* of a result; NULL: an input */
} oari_operand;

typedef struct oari_operands {
    oari_pool *pool;
    oar_status status; /* of everything so far */
    int count;
    oari_operand operand[OARI_OPERANDS_MAX];
} oari_operands;

/* Returns the dtype that numbers of this dtype are computed in. */
static inline oar_dtype oari_work_dtype(oar_dtype dtype)
{
    return dtype == OAR_F64 ? OAR_F64 : OAR_F32;
}

/* Return an input as a plain array; NULL for NULL. */
const oari_array *oari_operands_in(oari_operands *operands,
                                   const oari_array *a);
const oari_array *oari_operands_tensor(oari_operands *operands,
                                       const oar_tensor *a);

/* Returns a plain array for a result, with what `to` holds if the kernel will
 * add to it; NULL for NULL. `to` must stay valid until oari_operands_finish. */
const oari_array *oari_operands_out(oari_operands *operands,
                                    const oari_array *to, int add);

/* The same where the kernel's results have another dtype than `to`. */
const oari_array *oari_operands_out_as(oari_operands *operands,
                                       const oari_array *to, oar_dtype dtype,
                                       int add);

/* Returns scratch memory on a device for `count` numbers of this dtype; NULL on
 * failure. */
void *oari_operands_scratch(oari_operands *operands, oar_device device,
                            oar_dtype dtype, int64_t count);

/* Writes the results back if nothing has failed, frees the scratch memory and
 * returns the status. */
oar_status oari_operands_finish(oari_operands *operands);

#endif
