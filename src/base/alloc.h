/* SPDX-License-Identifier: Apache-2.0 */
/* base/alloc.h: makes every allocation of the library, so that tests can count
 * them and make them fail. oari_free (public name: oar_free) frees them all. */
#ifndef OARI_BASE_ALLOC_H
#define OARI_BASE_ALLOC_H

#include <oarsong/memory.h>

#include "base/plugin_export.h"

/* Returns zeroed memory for count elements of size bytes each, or NULL with the
 * last error set. A count of 0 gives a pointer that can be freed. */
OARI_FOR_PLUGINS void *oari_alloc(size_t count, size_t size);

/* Returns memory that is not zeroed, at a multiple of align (a power of two),
 * or NULL with the last error set. */
OARI_FOR_PLUGINS void *oari_alloc_aligned(size_t align, size_t bytes);

/* Returns a copy of a text, or NULL with the last error set. */
char *oari_strdup(const char *text);

/* Frees memory of these functions. NULL is fine. */
OARI_FOR_PLUGINS void oari_free(void *memory);

/* Returns whether an allocation that is not from the heap (a segment, a
 * mapping) may go ahead: 0, with the last error set, if a test wants it to
 * fail. */
int oari_alloc_allowed(size_t bytes);

#endif
