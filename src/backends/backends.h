/* SPDX-License-Identifier: Apache-2.0 */
/* backends/backends.h: the backends of this tree, but for plugins. A folder has
 * a line here for each name; deleting it and its lines leaves a library that
 * builds (tests/without-backends). The order is that of `oarsong info`. */
#ifndef OARI_BACKENDS_BACKENDS_H
#define OARI_BACKENDS_BACKENDS_H

#include "link/link.h"

#define OARI_BACKEND_LIST(X) \
    X(self)                  \
    X(sim)                   \
    X(native)                \
    X(shm)                   \
    X(tcp)                   \
    X(nccl)                  \
    X(ipc)                   \
    X(hybrid) /* of comm */  \
    X(hosted)

/* The post table of a backend for device memory: all kinds but the barrier. */
#define OARI_POST_ON_DEVICE(post)                                           \
    {                                                                       \
        [OAR_COLL_BROADCAST] = (post), [OAR_COLL_ALL_REDUCE] = (post),      \
        [OAR_COLL_REDUCE] = (post), [OAR_COLL_GATHER] = (post),             \
        [OAR_COLL_SCATTER] = (post), [OAR_COLL_ALL_GATHER] = (post),        \
        [OAR_COLL_REDUCE_SCATTER] = (post), [OAR_COLL_ALL_TO_ALL] = (post), \
        [OAR_COLL_SEND] = (post), [OAR_COLL_RECV] = (post),                 \
    }

#define OARI_BACKEND_ROW(name) extern const oari_backend oari_backend_##name;
OARI_BACKEND_LIST(OARI_BACKEND_ROW)
#undef OARI_BACKEND_ROW

#endif
