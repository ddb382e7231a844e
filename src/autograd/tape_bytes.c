/* SPDX-License-Identifier: Apache-2.0 */
/* tape_bytes: how much memory a tape has in use. Storages that were counted are
 * marked in `used`, which means nothing while they are in use. */
#include "autograd/tape.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

static const uint64_t COUNTED = UINT64_MAX;

static size_t count_tensor(const oar_tensor *t, uint64_t mark)
{
    oar_storage *s = t != NULL ? t->storage : NULL;

    if (s == NULL || !s->recyclable || !s->attached || s->used == mark)
        return 0;
    s->used = mark;
    return s->capacity;
}

static size_t count_all(const oar_tape *tape, uint64_t mark)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < tape->pool.count; i++)
        bytes += count_tensor(tape->pool.owned[i], mark);
    for (int64_t n = 0; n < tape->nodes; n++) {
        const oari_node *node = tape->node[n];
        bytes += count_tensor(node->grad, mark);
        for (int i = 0; i < OARI_MAX_SAVED; i++)
            bytes += count_tensor(node->saved[i], mark);
        for (int i = 0; i < OARI_MAX_INPUTS; i++)
            bytes += count_tensor(node->fused_grad[i], mark);
    }
    return bytes;
}

size_t oar_tape_bytes(const oar_tape *tape)
{
    size_t bytes;

    if (tape == NULL)
        return 0;
    bytes = count_all(tape, COUNTED);
    count_all(tape, 0);
    return bytes;
}
