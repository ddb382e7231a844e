/* SPDX-License-Identifier: Apache-2.0 */
/* base/utf8.h: characters in bytes, by the table of RFC 3629: no overlong
 * forms, no surrogates, nothing above U+10FFFF. */
#ifndef OARI_BASE_UTF8_H
#define OARI_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { OARI_UTF8_POINTS = 0x110000, OARI_UTF8_LONGEST = 4 };

/* Reads the character that text begins with, which has at least one byte.
 * Returns its length; 0 if it is malformed or cut short. */
size_t oari_utf8_read(const char *text, size_t bytes, uint32_t *point);

/* Writes a character and returns its length. */
size_t oari_utf8_write(uint32_t point, char text[OARI_UTF8_LONGEST]);

/* Counts the characters of a well-formed text. Of another text it counts at
 * least as many as oari_utf8_read would find. */
size_t oari_utf8_count(const char *text, size_t bytes);

#endif
