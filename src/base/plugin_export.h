/* SPDX-License-Identifier: Apache-2.0 */
/* base/plugin_export.h: marks the internal functions that backends of this tree
 * may use when they are built as plugins. cmake/oarsong.map lists such a
 * function as OARSONG_PRIVATE: no other program can rely on it. */
#ifndef OARI_BASE_PLUGIN_EXPORT_H
#define OARI_BASE_PLUGIN_EXPORT_H

#define OARI_FOR_PLUGINS __attribute__((visibility("default")))

#endif
