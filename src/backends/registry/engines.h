/* SPDX-License-Identifier: Apache-2.0 */
/* backends/registry/engines.h: the external engines that this tree has a plugin
 * for. */
#ifndef OARI_BACKENDS_REGISTRY_ENGINES_H
#define OARI_BACKENDS_REGISTRY_ENGINES_H

#include <oarsong/backend.h>

/* Returns the index-th name; NULL past the last. */
const char *oari_known_engine(int index);

/* Loads an engine's plugin. OAR_E_NOT_FOUND: there is no engine of that name;
 * OAR_E_UNAVAILABLE, with the reason and what to install: it is not here. */
oar_status oari_known_engine_find(const char *name,
                                  const oar_backend_ops **ops);

#endif
