/* SPDX-License-Identifier: Apache-2.0 */
/* comm/registry.h: which backends there are. */
#ifndef OARI_COMM_REGISTRY_H
#define OARI_COMM_REGISTRY_H

#include <oarsong/backend.h>

/* Finds a backend by name, or loads it by path (a name with a slash or ending
 * in .so), and checks that it works here. NULL: "native", or "self" for a group
 * of one. */
oar_status oari_backend_find(const char *name, int ranks,
                             const oar_backend_ops **backend);

/* The links that the core makes beside an engine that wants them. */
const oar_backend_ops *oari_backend_links(int ranks);

#endif
