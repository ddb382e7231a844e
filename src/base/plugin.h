/* SPDX-License-Identifier: Apache-2.0 */
/* base/plugin.h: what the plugins of this tree reach of the library beyond its
 * public headers. A function so marked is named in cmake/oarsong.map too. */
#ifndef OARI_BASE_PLUGIN_H
#define OARI_BASE_PLUGIN_H

#define OARI_FOR_PLUGINS __attribute__((visibility("default")))

#endif
