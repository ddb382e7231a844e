/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/desk.h: arrays as kernels like them best: row by row, f32 or f64.
 *
 * What is so already is used where it lies. Halves and strided arrays are
 * copied to scratch memory first, and results rounded back once at the end:
 *
 *     oari_desk desk = { .pool = pool };
 *     const oari_array *a = oari_desk_in(&desk, &input);
 *     const oari_array *y = oari_desk_out(&desk, &result, add);
 *     if (desk.status == OAR_OK)
 *         kernel(y, add, a);
 *     return oari_desk_clear(&desk);
 */
#ifndef OARI_TENSOR_DESK_H
#define OARI_TENSOR_DESK_H

#include "base/dtype.h"
#include "tensor/cpu/kernels.h"

enum { OARI_DESK_MOST = 9 };

typedef struct oari_sheet {
    oari_array plain;     /* what the kernel sees */
    oar_tensor *scratch;  /* NULL: plain is the array itself */
    const oari_array *to; /* of a result; NULL: an input */
} oari_sheet;

typedef struct oari_desk {
    oari_pool *pool;
    oar_status status; /* of everything so far */
    int count;
    oari_sheet sheet[OARI_DESK_MOST];
} oari_desk;

/* The dtype that numbers of this one are computed in. */
static inline oar_dtype oari_work_dtype(oar_dtype dtype)
{
    return dtype == OAR_F64 ? OAR_F64 : OAR_F32;
}

/* An input. NULL gives NULL. */
const oari_array *oari_desk_in(oari_desk *desk, const oari_array *a);
const oari_array *oari_desk_tensor(oari_desk *desk, const oar_tensor *a);

/* A result; if the kernel will add to it, it starts with what it holds. NULL
 * gives NULL. `to` stays where it is until the desk is cleared. */
const oari_array *oari_desk_out(oari_desk *desk, const oari_array *to, int add);

/* A place of `count` numbers of this dtype to work in. */
void *oari_desk_scratch(oari_desk *desk, oar_dtype dtype, int64_t count);

/* Writes the results back, if all went well, and returns the status. */
oar_status oari_desk_clear(oari_desk *desk);

#endif
