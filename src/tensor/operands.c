/* SPDX-License-Identifier: Apache-2.0 */
/* operands: scratch copies around a kernel, in memory of a pool. */
#include "tensor/operands.h"

/* Gives an operand scratch memory of this dtype and shape. On failure it has no
 * data, and the status of the operands is set. */
static void take_scratch(oari_operands *operands, oari_operand *s,
                         oar_device device, oar_dtype dtype, oar_shape shape)
{
    s->plain = (oari_array){ NULL, dtype, oari_layout_rows(shape), device };
    if (operands->status != OAR_OK)
        return;
    s->scratch = oari_tensor_make_on(operands->pool, device, dtype, shape);
    if (s->scratch == NULL)
        operands->status = OAR_E_NOMEM;
    else
        s->plain = oari_array_of(s->scratch);
}

/* Adds an operand: the array itself if it is plain, else scratch memory. */
static oari_operand *add_operand(oari_operands *operands, const oari_array *a,
                                 oar_dtype dtype)
{
    oari_operand *s = &operands->operand[operands->count++];

    *s = (oari_operand){ .plain = *a };
    if (a->dtype != dtype || !oari_layout_is_rows(&a->at))
        take_scratch(operands, s, a->device, dtype, a->at.shape);
    return s;
}

/* The dtype that a device computes an array in. */
static oar_dtype plain_dtype(const oari_array *a)
{
    return oari_kernels_on(a->device)->wide ? oari_work_dtype(a->dtype)
                                            : a->dtype;
}

const oari_array *oari_operands_in(oari_operands *operands, const oari_array *a)
{
    oari_operand *s;

    if (a == NULL)
        return NULL;
    s = add_operand(operands, a, plain_dtype(a));
    if (s->scratch != NULL)
        operands->status = OARI_KERNEL(a, copy, &s->plain, a);
    return &s->plain;
}

const oari_array *oari_operands_tensor(oari_operands *operands,
                                       const oar_tensor *a)
{
    oari_array array;

    if (a == NULL)
        return NULL;
    array = oari_array_of(a);
    return oari_operands_in(operands, &array);
}

const oari_array *oari_operands_out(oari_operands *operands,
                                    const oari_array *to, int add)
{
    return to == NULL
               ? NULL
               : oari_operands_out_as(operands, to, plain_dtype(to), add);
}

const oari_array *oari_operands_out_as(oari_operands *operands,
                                       const oari_array *to, oar_dtype dtype,
                                       int add)
{
    oari_operand *s = add_operand(operands, to, dtype);

    if (s->scratch != NULL)
        s->to = to;
    if (s->scratch != NULL && add)
        operands->status = OARI_KERNEL(to, copy, &s->plain, to);
    return &s->plain;
}

void *oari_operands_scratch(oari_operands *operands, oar_device device,
                            oar_dtype dtype, int64_t count)
{
    oari_operand *s = &operands->operand[operands->count++];

    *s = (oari_operand){ .to = NULL };
    take_scratch(operands, s, device, dtype, OAR_SHAPE(count));
    return s->plain.data;
}

oar_status oari_operands_finish(oari_operands *operands)
{
    for (int i = 0; i < operands->count; i++) {
        oari_operand *s = &operands->operand[i];

        if (s->to != NULL && operands->status == OAR_OK)
            operands->status = OARI_KERNEL(s->to, copy, s->to, &s->plain);
        oari_tensor_drop(operands->pool, s->scratch);
    }
    operands->count = 0;
    return operands->status;
}
