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

#define OARI_BACKEND_ROW(name) extern const oari_backend oari_backend_##name;
OARI_BACKEND_LIST(OARI_BACKEND_ROW)
#undef OARI_BACKEND_ROW

#endif
