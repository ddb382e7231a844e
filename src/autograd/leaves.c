/* SPDX-License-Identifier: Apache-2.0 */
/* leaves: the set of leaves a tape has met, with a place for each, so that two
 * tapes that share parameters can count for themselves what they owe them. */
#include <string.h>

#include "autograd/tape.h"
#include "base/alloc.h"

static int64_t *place_for(const oari_leaves *l, const oar_tensor *leaf)
{
    uint64_t hash = (uint64_t)(uintptr_t)leaf * 0x9E3779B97F4A7C15u;
    int64_t at = (int64_t)(hash >> 32) & (l->slots - 1);

    while (l->index[at] != 0 && l->leaf[l->index[at] - 1].tensor != leaf)
        at = (at + 1) & (l->slots - 1);
    return &l->index[at];
}

static oar_status grow_leaves(oari_leaves *l)
{
    oari_leaves more = { .count = l->count,
                         .room = l->room > 0 ? 2 * l->room : 32 };

    more.slots = 2 * more.room;
    more.leaf = oari_alloc((size_t)more.room, sizeof *more.leaf);
    more.index = oari_alloc((size_t)more.slots, sizeof *more.index);
    if (more.leaf == NULL || more.index == NULL) {
        oari_free(more.leaf);
        oari_free(more.index);
        return OAR_E_NOMEM;
    }
    if (l->count > 0)
        memcpy(more.leaf, l->leaf, (size_t)l->count * sizeof *l->leaf);
    for (int64_t i = 0; i < l->count; i++)
        *place_for(&more, l->leaf[i].tensor) = i + 1;
    oari_free(l->leaf);
    oari_free(l->index);
    *l = more;
    return OAR_OK;
}

int64_t oari_leaves_find(oari_leaves *leaves, oar_tensor *leaf)
{
    int64_t *place;

    if (leaves->count == leaves->room && grow_leaves(leaves) != OAR_OK)
        return -1;
    place = place_for(leaves, leaf);
    if (*place == 0) {
        leaves->leaf[leaves->count].rebases = leaf->rebases;
        leaves->leaf[leaves->count++].tensor = oar_tensor_retain(leaf);
        *place = leaves->count;
    }
    return *place - 1;
}

void oari_leaves_reset(oari_leaves *leaves, oari_pool *pool)
{
    if (leaves->count == 0)
        return;
    for (int64_t i = 0; i < leaves->count; i++)
        oari_tensor_drop(pool, leaves->leaf[i].tensor);
    memset(leaves->leaf, 0, (size_t)leaves->count * sizeof *leaves->leaf);
    memset(leaves->index, 0, (size_t)leaves->slots * sizeof *leaves->index);
    leaves->count = 0;
}

void oari_leaves_close(oari_leaves *leaves, oari_pool *pool)
{
    oari_leaves_reset(leaves, pool);
    oari_free(leaves->leaf);
    oari_free(leaves->index);
    memset(leaves, 0, sizeof *leaves);
}
