/* SPDX-License-Identifier: Apache-2.0 */
/* backends/registry/plugin.h: backends in shared objects: loaded by path, or
 * looked for by name. They stay loaded until the process ends. Any thread. */
#ifndef OARI_BACKENDS_REGISTRY_PLUGIN_H
#define OARI_BACKENDS_REGISTRY_PLUGIN_H

#include <oarsong/backend.h>

oar_status oari_plugin_load(const char *path, const oar_backend_ops **ops);

/* Looks for liboarsong-FILE.so in the folders of OARSONG_PLUGIN_PATH, beside
 * the library, and in the folder oarsong/ there. OAR_E_NOT_FOUND: it is in none
 * of them. */
oar_status oari_plugin_search(const char *file, const oar_backend_ops **ops);

/* Returns the index-th plugin that is loaded; NULL past the last. */
const oar_backend_ops *oari_plugin_at(int index);

#endif
