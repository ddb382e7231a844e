/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/tensor_pool.h: tensors and storage kept for reuse, so that a training
 * step asks nothing of the system once the first has run.
 *
 * Free storages wait in one list per class of size, four classes per power of
 * two. While a pool lends, an empty list is helped out by the next sizes: good
 * for what is given back soon, and a waste for what stays, which gets fewer of
 * them. Only what the pool holds the last reference to is ever reused. What no
 * step has used for a while goes back to the system. Storages in shared memory
 * wait in lists of their own: that memory is slow to get. So do those of each
 * GPU: what is given back there is handed out at once to work behind it on the
 * same stream, and no call waits.
 *
 * A tensor that was owned is not reused at once: the caller may still have the
 * pointer, which would be that of another tensor. It rests for some resets,
 * with no references and no storage, so that every function refuses it. For
 * each tensor that a pool asks the system for it asks for those that will be
 * used while the first one rests. */
#ifndef OARI_TENSOR_TENSOR_POOL_H
#define OARI_TENSOR_TENSOR_POOL_H

#include "tensor/tensor.h"

enum {
    OARI_POOL_CLASSES = 256,
    OARI_POOL_PATIENCE = 64, /* resets that an unused storage is kept for */
    OARI_POOL_RESTS = 3      /* resets before a tensor is used again */
};

/* How many classes larger a storage may be than what is asked for. */
typedef enum oari_pool_lending {
    OARI_LENDS_NONE = 0,
    OARI_LENDS_NEXT = 1,
    OARI_LENDS_SOME = 2,
    OARI_LENDS_LARGE = 3 /* all are less than twice as large */
} oari_pool_lending;

/* Tensors linked through `next`. */
typedef struct oari_pool_list {
    oar_tensor *first, *last;
} oari_pool_list;

struct oari_pool {
    oar_tensor **owned; /* given up by oari_pool_reset */
    int64_t count, room;
    oar_tensor *free_tensors;
    oari_pool_list resting[OARI_POOL_RESTS]; /* by the reset that did it */
    oar_storage *free_storages[OARI_POOL_CLASSES];
    oar_storage *free_shared[OARI_POOL_CLASSES]; /* in shared memory */
    struct oari_pool_gpu *gpus;                  /* free ones of each GPU */
    size_t share_from; /* bytes: storages so large are shared; 0: none is */
    uint64_t resets;
    oari_pool_lending lends;
    oar_tensor *offer, *last_offer; /* oldest first */
};

/* Takes the caller's reference: the tensor lives until the next reset. Drops
 * the reference on failure. */
oar_status oari_pool_own(oari_pool *pool, oar_tensor *tensor);

/* Offers the storage of a tensor that the pool owns: while the pool does not
 * lend, it may empty the tensor before it asks the system for memory. */
void oari_pool_offer(oari_pool *pool, oar_tensor *tensor);

/* Gives up all tensors that the pool owns. */
void oari_pool_reset(oari_pool *pool);

/* Gives up all tensors that the pool owns and frees all memory that it keeps. A
 * zeroed pool is empty. */
void oari_pool_close(oari_pool *pool);

/* Take tensors and storages out of the pool (NULL: from the system) and put
 * them back. oari_tensor_make and oari_tensor_over are made of these. */
oar_tensor *oari_pool_take_tensor(oari_pool *pool);
oar_status oari_pool_take_storage(oari_pool *pool, oar_device device,
                                  size_t bytes, oar_storage **storage);
void oari_pool_keep_tensor(oari_pool *pool, oar_tensor *tensor);
void oari_pool_rest_tensor(oari_pool *pool, oar_tensor *tensor);
void oari_pool_keep_storage(oari_pool *pool, oar_storage *storage);

#endif
