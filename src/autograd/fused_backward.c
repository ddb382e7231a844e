/* SPDX-License-Identifier: Apache-2.0 */
/* fused_backward: see fused_backward.h. Memory comes from the tape's pool. */
#include "autograd/fused_backward.h"

#include "base/status.h"
#include "tensor/operands.h"

oar_status oari_fused_grad_open(oari_node *node, int i, oar_dtype dtype,
                                oar_shape shape, oari_array *to)
{
    if (i >= node->inputs || node->input[i].kind == OARI_EDGE_NONE)
        return OAR_OK;
    node->fused_grad[i] =
        oari_tensor_make_on(&node->tape->pool, oari_device_of(node->out),
                            oari_work_dtype(dtype), shape);
    if (node->fused_grad[i] == NULL)
        return OAR_E_NOMEM;
    *to = oari_array_of(node->fused_grad[i]);
    return OAR_OK;
}

/* to (+)= the gradient of input i, which waits in the node. */
static oar_status give_fused_grad(oari_node *node, int i, const oari_array *to,
                                  int add)
{
    oari_operands operands = { .pool = &node->tape->pool };
    oari_array from = oari_array_of(node->fused_grad[i]);
    const oari_array *y;

    if (!add) {
        OARI_TRY(OARI_KERNEL(to, copy, to, &from));
    } else {
        y = oari_operands_out(&operands, to, 1);
        if (operands.status == OAR_OK)
            operands.status = OARI_KERNEL(y, scale, y, 1, &from, 1);
        OARI_TRY(oari_operands_finish(&operands));
    }
    oari_tensor_drop(&node->tape->pool, node->fused_grad[i]);
    node->fused_grad[i] = NULL;
    return OAR_OK;
}

/* Returns whether input 0 waits for the second half of backward while another
 * input does not. A whole pass takes the same way, for the same bits. */
static int first_may_wait(const oari_node *node)
{
    for (int i = 1; i < node->inputs; i++)
        if (node->input[i].kind == OARI_EDGE_NODE ||
            node->input[i].kind == OARI_EDGE_INPUT)
            return node->input[0].kind == OARI_EDGE_LEAF;
    return 0;
}

oar_status oari_fused_backward(oari_node *node, int i, const oari_array *to,
                               int add)
{
    const oar_tensor *first = node->saved[0];
    oari_array dfirst;

    if (node->fused_grad[i] != NULL)
        return give_fused_grad(node, i, to, add);
    if (first_may_wait(node)) {
        OARI_TRY(oari_fused_grad_open(node, 0, first->dtype, first->at.shape,
                                      &dfirst));
        OARI_TRY(node->op->fused_backward(node, &dfirst, 0));
    } else if (i == 0) {
        return node->op->fused_backward(node, to, add);
    } else {
        OARI_TRY(node->op->fused_backward(node, NULL, 0));
    }
    return give_fused_grad(node, i, to, add);
}
