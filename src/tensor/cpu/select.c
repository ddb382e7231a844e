/* SPDX-License-Identifier: Apache-2.0 */
/* select: one element or another, by a mask. */
#include "tensor/cpu/arith.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/walk.h"

/* By size alone: a selected element keeps its bits, whatever they mean. */
OARI_TARGET_CLONES static void where_row(const oari_walk_row *row, void *arg)
{
    const size_t *bytes = arg;

    OARI_BY_BYTES(*bytes,
                  { OARI_FLAT4(row, T, uint8_t, T, T, *Y = A != 0 ? B : C); })
}

/* The same array as bytes that no walk looks into. */
static oari_array bits_of(const oari_array *a)
{
    oari_array bits = *a;

    if (oar_dtype_size(a->dtype) == sizeof(uint16_t))
        bits.dtype = OAR_U16;
    return bits;
}

oar_status oari_mask_select(const oari_array *to, const oari_array *mask,
                            const oari_array *a, const oari_array *b)
{
    oari_array y = bits_of(to), yes = bits_of(a), no = bits_of(b);
    size_t bytes = oar_dtype_size(to->dtype);

    oari_walk_flat(to->at.shape, 4,
                   (const oari_array *[]){ &y, mask, &yes, &no }, 0, where_row,
                   &bytes);
    return OAR_OK;
}

typedef struct back {
    oar_dtype dtype;
    int add, side;
} back;

OARI_TARGET_CLONES static void where_back_row(const oari_walk_row *row,
                                              void *arg)
{
    const back *j = arg;
    const int side = j->side;

    OARI_BY_FLOAT(j->dtype, {
        if (j->add)
            OARI_FLAT3(row, T, T, uint8_t, *Y += (B != 0) == side ? A : (T)0);
        else
            OARI_FLAT3(row, T, T, uint8_t, *Y = (B != 0) == side ? A : (T)0);
    })
}

oar_status oari_mask_select_back(const oari_array *to, int add,
                                 const oari_array *mask, int side,
                                 const oari_array *grad)
{
    back j = { oari_row_dtype(to->dtype), add, side };

    oari_walk_flat(to->at.shape, 3, (const oari_array *[]){ to, grad, mask },
                   add, where_back_row, &j);
    return OAR_OK;
}

oar_status oari_outside_triangle(const oari_array *to, int upper,
                                 int64_t diagonal)
{
    int64_t rows = to->at.shape.dim[0], columns = to->at.shape.dim[1];
    uint8_t *y = oari_array_data(to);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            y[r * columns + c] = upper ? c - r < diagonal : c - r > diagonal;
    return OAR_OK;
}
