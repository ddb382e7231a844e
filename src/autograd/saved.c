/* SPDX-License-Identifier: Apache-2.0 */
/* saved: see saved.h. References of nodes are counted apart in `saves`, so that
 * those from outside can be told from them. Only a tensor that the node's own
 * tape owns counts: others may be in use by several threads. */
#include "autograd/saved.h"

#include "base/status.h"

void oari_save(oari_node *node, int k, oar_tensor *tensor)
{
    if (tensor == NULL)
        return;
    node->saved[k] = oar_tensor_retain(tensor);
    if (tensor->storage != NULL)
        node->version[k] = oari_tensor_version(tensor);
    tensor->saves += tensor->owner == &node->tape->pool;
}

void oari_unsave(oari_node *node, int k)
{
    oari_pool *pool = &node->tape->pool;
    oar_tensor *t = node->saved[k];

    if (t == NULL)
        return;
    node->saved[k] = NULL;
    if (t->owner != pool) {
        oari_tensor_drop(pool, t);
        return;
    }
    t->saves--;
    oar_tensor_release(t); /* not the last: the tape has one */
    oari_release_if_unused(t);
}

/* ---- giving back --------------------------------------------------------- */

/* Whether the result can be made again at any time before its node is spent. */
static int can_rebuild(const oar_tensor *t)
{
    const oari_node *node = t->node;

    if (node == NULL || node->op->rebuild == NULL ||
        node->state != OARI_RECORDED)
        return 0;
    for (int k = 0; k < OARI_MAX_SAVED; k++)
        if (node->saved[k] == t ||
            (node->op->rebuild_from >> k & 1 && node->saved[k] == NULL))
            return 0;
    return 1;
}

void oari_release_if_unused(oar_tensor *tensor)
{
    oar_tensor *t = tensor;
    int over = t->spare || (t->node != NULL &&
                            t->node->state != OARI_RECORDED && !t->node->root);

    if (t->owner == NULL || t->storage == NULL || !over ||
        oari_tensor_retained(t))
        return;
    if (t->saves > 0 && (!t->spare || t->rebuilt || !can_rebuild(t)))
        return;
    if (t->saves == 0 || !t->node->op->costly)
        oari_tensor_empty(t->owner, t);
    else if (t->node->tape->rebuilds)
        oari_pool_offer(t->owner, t);
}

void oari_tape_drop(oar_tape *tape, oar_tensor *tensor)
{
    if (tensor == NULL || tensor->owner != &tape->pool || tensor->spare)
        return;
    tensor->spare = 1;
    oari_release_if_unused(tensor);
}

int oari_unshared(const oar_tape *tape, const oar_tensor *tensor)
{
    const oar_tensor *t = tensor;

    return tape != NULL && t->owner == &tape->pool && t->saves == 0 &&
           !oari_tensor_retained(t) && t->storage != NULL &&
           !t->storage->read_only && oari_storage_alone(t->storage) &&
           oari_layout_is_rows(&t->at);
}

int oari_saved_alone(const oari_node *node, int k)
{
    const oar_tensor *t = node->saved[k];

    return t->spare && t->saves == 1 && !oari_tensor_retained(t) &&
           !t->storage->read_only && oari_storage_alone(t->storage) &&
           oari_layout_is_rows(&t->at);
}

/* ---- bringing back ------------------------------------------------------- */

/* Computes t once more; its node made it row by row, from the start of its
 * storage. */
static oar_status rebuild_result(oar_tensor *t)
{
    oari_node *node = t->node;
    size_t bytes = (size_t)t->count * oar_dtype_size(t->dtype);
    oari_pool_lending lends;
    oar_status status;
    oari_array to;

    OARI_TRY(oari_rebuild_saved(node, OARI_READS_ALL));
    OARI_TRY(oari_check_saved(node, OARI_READS_ALL));
    lends = t->owner->lends;
    t->owner->lends = lends != OARI_LENDS_NONE ? OARI_LENDS_NEXT : lends;
    status = oari_pool_take_storage(t->owner, t->made_on, bytes, &t->storage);
    t->owner->lends = lends;
    OARI_TRY(status);
    t->rebuilt = 1;
    to = oari_array_of(t);
    return node->op->rebuild(node, &to);
}

oar_status oari_rebuild_saved(oari_node *node, unsigned mask)
{
    for (int k = 0; k < OARI_MAX_SAVED; k++) {
        oar_tensor *t = node->saved[k];

        if (t != NULL && mask >> k & 1 && t->storage == NULL && can_rebuild(t))
            OARI_TRY(rebuild_result(t));
    }
    return OAR_OK;
}

oar_status oari_rebuild_for_held(oari_node *node)
{
    oar_tensor *t = node->out;

    return t->storage == NULL && t->saves > 0 && can_rebuild(t)
               ? rebuild_result(t)
               : OAR_OK;
}

oar_status oari_check_saved(const oari_node *node, unsigned mask)
{
    for (int k = 0; k < OARI_MAX_SAVED; k++) {
        const oar_tensor *t = node->saved[k];

        if (t == NULL || !(mask >> k & 1))
            continue;
        if (!oari_tensor_attached(t))
            return oari_fail(OAR_E_STATE, "backward of %s needs a tensor %s %s",
                             node->op->name, oari_shape_text(t->at.shape).text,
                             oari_absence(t));
        if (!t->spare && oari_tensor_version(t) != node->version[k])
            return oari_fail(OAR_E_STATE,
                             "backward of %s needs a tensor %s that was "
                             "changed after it was saved",
                             node->op->name, oari_shape_text(t->at.shape).text);
    }
    return OAR_OK;
}
