/* SPDX-License-Identifier: Apache-2.0 */
/* utf8: one row per length says what the first byte looks like and which code
 * points may be written so. */
#include "base/utf8.h"

typedef struct form {
    unsigned char mask, mark; /* of the first byte */
    uint32_t least, limit;    /* code points: from, below */
} form;

static const form forms[OARI_UTF8_LONGEST] = {
    { 0x80, 0x00, 0x0, 0x80 },
    { 0xe0, 0xc0, 0x80, 0x800 },
    { 0xf0, 0xe0, 0x800, 0x10000 },
    { 0xf8, 0xf0, 0x10000, OARI_UTF8_POINTS },
};

static int is_continuation(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

size_t oari_utf8_read(const char *text, size_t bytes, uint32_t *point)
{
    unsigned char first = (unsigned char)text[0];
    const form *f;
    size_t length = 1;
    uint32_t p;

    while (length <= OARI_UTF8_LONGEST &&
           (first & forms[length - 1].mask) != forms[length - 1].mark)
        length++;
    if (length > OARI_UTF8_LONGEST || length > bytes)
        return 0;
    f = &forms[length - 1];
    p = first & (unsigned char)~f->mask;
    for (size_t i = 1; i < length; i++) {
        if (!is_continuation(text[i]))
            return 0;
        p = p << 6 | ((unsigned char)text[i] & 0x3f);
    }
    if (p < f->least || p >= f->limit || (p >= 0xd800 && p < 0xe000))
        return 0;
    *point = p;
    return length;
}

size_t oari_utf8_write(uint32_t point, char text[OARI_UTF8_LONGEST])
{
    size_t length = 1;

    while (point >= forms[length - 1].limit && length < OARI_UTF8_LONGEST)
        length++;
    for (size_t i = length - 1; i > 0; i--) {
        text[i] = (char)(0x80 | (point & 0x3f));
        point >>= 6;
    }
    text[0] = (char)(forms[length - 1].mark | point);
    return length;
}

size_t oari_utf8_count(const char *text, size_t bytes)
{
    size_t count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += !is_continuation(text[i]);
    return count;
}
