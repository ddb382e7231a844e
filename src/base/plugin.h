/* SPDX-License-Identifier: Apache-2.0 */
/* base/plugin.h: what backends of this tree that are built as plugins may use
 * of the inside of the library. Such a function is marked here and listed in
 * cmake/oarsong.map as OARSONG_PRIVATE: nobody else can rely on it. */
#ifndef OARI_BASE_PLUGIN_H
#define OARI_BASE_PLUGIN_H

#define OARI_FOR_PLUGINS __attribute__((visibility("default")))

#endif
