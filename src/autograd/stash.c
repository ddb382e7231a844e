/* SPDX-License-Identifier: Apache-2.0 */
/* stash: see stash.h. The memory comes from the tape's pool. */
#include "autograd/stash.h"

#include "base/status.h"
#include "tensor/desk.h"

oar_status oari_stash_open(oari_node *node, int i, oar_dtype dtype,
                           oar_shape shape, oari_array *to)
{
    if (!oari_stash_wanted(node, i))
        return OAR_OK;
    node->stash[i] =
        oari_tensor_make(&node->tape->pool, oari_work_dtype(dtype), shape);
    if (node->stash[i] == NULL)
        return OAR_E_NOMEM;
    *to = oari_array_of(node->stash[i]);
    return OAR_OK;
}

/* to (+)= the gradient of input i, which waits. */
static oar_status give(oari_node *node, int i, const oari_array *to, int add)
{
    oari_desk desk = { .pool = &node->tape->pool };
    oari_array from = oari_array_of(node->stash[i]);
    const oari_array *y;

    if (!add) {
        oari_copy(to, &from);
    } else {
        y = oari_desk_out(&desk, to, 1);
        if (desk.status == OAR_OK)
            oari_scale(y, 1, &from, 1);
        OARI_TRY(oari_desk_clear(&desk));
    }
    oari_tensor_drop(&node->tape->pool, node->stash[i]);
    node->stash[i] = NULL;
    return OAR_OK;
}

/* Whether input 0 waits for the second half of backward while another does
 * not. The whole pass takes the same way, for the same bits. */
static int first_may_wait(const oari_node *node)
{
    for (int i = 1; i < node->inputs; i++)
        if (node->input[i].kind == OARI_EDGE_NODE ||
            node->input[i].kind == OARI_EDGE_INPUT)
            return node->input[0].kind == OARI_EDGE_LEAF;
    return 0;
}

oar_status oari_stash_backward(oari_node *node, int i, const oari_array *to,
                               int add, oari_stash_fn all)
{
    const oar_tensor *first = node->saved[0];
    oari_array dfirst;

    if (node->stash[i] != NULL)
        return give(node, i, to, add);
    if (first_may_wait(node)) {
        OARI_TRY(
            oari_stash_open(node, 0, first->dtype, first->at.shape, &dfirst));
        OARI_TRY(all(node, &dfirst, 0));
    } else if (i == 0) {
        return all(node, to, add);
    } else {
        OARI_TRY(all(node, NULL, 0));
    }
    return give(node, i, to, add);
}
