/* SPDX-License-Identifier: Apache-2.0 */
/* base/alloc.h: every allocation of the library goes through here, so that it
 * can be counted and made to fail. Anything from these is freed by oari_free
 * (public name: oar_free). */
#ifndef OARI_BASE_ALLOC_H
#define OARI_BASE_ALLOC_H

#include <oarsong/memory.h>

#include "base/plugin.h"

/* Zeroed memory for count things of size bytes each, or NULL with the last
 * error set. A count of 0 gives a pointer that can be freed. */
OARI_FOR_PLUGINS void *oari_alloc(size_t count, size_t size);

/* The same, not zeroed, at a multiple of align (a power of two). */
OARI_FOR_PLUGINS void *oari_alloc_aligned(size_t align, size_t bytes);

char *oari_strdup(const char *text);

OARI_FOR_PLUGINS void oari_free(void *memory);

/* For allocations that do not come from the heap (segments, mappings): whether
 * this one may go ahead. Returns 0, with the last error set, when a test asked
 * for it to fail. */
int oari_alloc_allowed(size_t bytes);

#endif
