/* SPDX-License-Identifier: Apache-2.0 */
/* op_device: from one device to another. The gradient goes back the way that
 * the numbers came. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernel_table.h"
#include "tensor/move.h"

static oar_status to_back(oari_node *node, int i, const oari_array *to, int add)
{
    oari_pool *pool = &node->tape->pool;
    oari_array grad = oari_array_of(node->grad), here;
    oar_tensor *scratch;
    oar_status status;

    if (!add)
        return oari_move(pool, to, &grad);
    scratch = oari_tensor_make_on(pool, to->device, to->dtype, to->at.shape);
    if (scratch == NULL)
        return OAR_E_NOMEM;
    here = oari_array_of(scratch);
    status = oari_move(pool, &here, &grad);
    if (status == OAR_OK)
        status = OARI_KERNEL(to, scale, to, 1, &here, 1);
    oari_tensor_drop(pool, scratch);
    return status;
}

static const oari_op_class to_op = { .name = "to", .backward = to_back };

oar_tensor *oar_to(oar_tape *tape, const oar_tensor *a, oar_device device)
{
    oari_pool *pool = oari_tape_pool(tape);
    union {
        const oar_tensor *given;
        oar_tensor *tensor; /* what records has one kind of pointer */
    } input = { a };
    oari_array to, from;
    oar_tensor *out;

    if (oari_check_inputs("to", tape, 1, &input.tensor) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(pool, device, a->dtype, a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    if (oari_move(pool, &to, &from) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = &to_op,
                                          .inputs = 1,
                                          .input = { input.tensor } });
}
