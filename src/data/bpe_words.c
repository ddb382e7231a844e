/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_words: the pattern by which GPT-2 cuts text, without a regex engine:
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * The first alternative that fits counts. Each of the next three is a run of
 * characters of one class after at most one space; the last two take white
 * space, all of it at the end of the text, else all but its last character,
 * which belongs to what follows. */
#include <string.h>

#include "data/bpe.h"
#include "data/unicode_ranges.h"
#include "base/utf8.h"

typedef enum char_class { LETTER, NUMBER, SPACE, OTHER } char_class;

/* White_Space of Unicode beyond ASCII. */
static const oari_unicode_range unicode_spaces[] = {
    { 0x85, 0x85 },     { 0xa0, 0xa0 },     { 0x1680, 0x1680 },
    { 0x2000, 0x200a }, { 0x2028, 0x2029 }, { 0x202f, 0x202f },
    { 0x205f, 0x205f }, { 0x3000, 0x3000 },
};

static int is_within(uint32_t point, const oari_unicode_range *range,
                     size_t count)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (range[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && range[low].first <= point;
}

#define IS_WITHIN(point, table) \
    is_within(point, table, sizeof(table) / sizeof *(table))

/* Returns the class of the character that text begins with, and its length. */
static char_class class_at(const char *text, size_t bytes, size_t *length)
{
    uint32_t point = (unsigned char)text[0];

    if (point < 0x80) { /* most of most texts */
        *length = 1;
        if ((point | 0x20) >= 'a' && (point | 0x20) <= 'z')
            return LETTER;
        if (point >= '0' && point <= '9')
            return NUMBER;
        return point == ' ' || (point >= '\t' && point <= '\r') ? SPACE : OTHER;
    }
    *length = oari_utf8_read(text, bytes, &point);
    if (*length == 0) {
        *length = 1;
        return OTHER;
    }
    if (IS_WITHIN(point, unicode_letters))
        return LETTER;
    if (IS_WITHIN(point, unicode_numbers))
        return NUMBER;
    return IS_WITHIN(point, unicode_spaces) ? SPACE : OTHER;
}

/* Returns the bytes of the characters of one class that text begins with, and
 * the length of the last. */
static size_t run_of(char_class wanted, const char *text, size_t bytes,
                     size_t *last)
{
    size_t run = 0, length = 0;

    *last = 0;
    while (run < bytes &&
           class_at(text + run, bytes - run, &length) == wanted) {
        run += length;
        *last = length;
    }
    return run;
}

/* Returns the bytes of an English ending that text begins with, or 0. */
static size_t contraction_at(const char *text, size_t bytes)
{
    static const char *const ending[] = { "'s", "'t",  "'re", "'ve",
                                          "'m", "'ll", "'d" };

    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        size_t length = strlen(ending[i]);

        if (bytes >= length && memcmp(text, ending[i], length) == 0)
            return length;
    }
    return 0;
}

size_t oari_bpe_word(const char *text, size_t bytes)
{
    size_t word = contraction_at(text, bytes), length, last;
    size_t before = text[0] == ' ' && bytes > 1 ? 1 : 0;
    char_class kind;

    if (word > 0)
        return word;
    kind = class_at(text + before, bytes - before, &length);
    if (kind != SPACE)
        return before + run_of(kind, text + before, bytes - before, &last);
    word = run_of(SPACE, text, bytes, &last);
    return word < bytes && word > last ? word - last : word;
}
