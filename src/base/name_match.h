/* SPDX-License-Identifier: Apache-2.0 */
/* base/name_match.h: dotted names that fit a pattern, and names that are nearly
 * the same. */
#ifndef OARI_BASE_NAME_MATCH_H
#define OARI_BASE_NAME_MATCH_H

#include <stddef.h>

/* Returns whether a dotted name fits a pattern, of which any part between dots
 * may be "*"; with `below`, also whether it is below one that does. */
int oari_name_fits(const char *pattern, const char *name, int below);

/* Returns how many letters must be put in, taken out or changed to make b of
 * the first `length` letters of a; only the first 64 of each count. */
int oari_edit_distance(const char *a, size_t length, const char *b);

#endif
