/* SPDX-License-Identifier: Apache-2.0 */
/* json_writer: see its header. */
#include "file/json_writer.h"

#include <stdarg.h>
#include <stdio.h>

/* Makes room for more bytes and returns where they go; NULL without memory. */
static char *make_room(oari_json_writer *w, size_t bytes)
{
    if (w->status == OAR_OK)
        w->status = oari_vec_reserve(&w->text, (int64_t)bytes);
    return w->status == OAR_OK ? w->text.data + w->text.count : NULL;
}

void oari_json_add(oari_json_writer *w, const char *format, ...)
{
    va_list args, again;
    int length;
    char *to;

    va_start(args, format);
    va_copy(again, args);
    length = vsnprintf(NULL, 0, format, args);
    to = length < 0 ? NULL : make_room(w, (size_t)length + 1);
    if (to != NULL) {
        vsnprintf(to, (size_t)length + 1, format, again);
        w->text.count += length;
    }
    va_end(again);
    va_end(args);
}

void oari_json_quote(oari_json_writer *w, const char *text)
{
    /* No byte takes more than \u001f does. */
    char *from = make_room(w, 6 * strlen(text) + 2), *to = from;

    if (to == NULL)
        return;
    *to++ = '"';
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            *to++ = '\\';
            *to++ = (char)c;
        } else if (c < 0x20) {
            static const char digit[] = "0123456789abcdef";

            for (const char *escape = "\\u00"; *escape != '\0'; escape++)
                *to++ = *escape;
            *to++ = digit[c >> 4];
            *to++ = digit[c & 15];
        } else {
            *to++ = (char)c;
        }
    }
    *to++ = '"';
    w->text.count += to - from;
}

void oari_json_fill(oari_json_writer *w, char byte, size_t count)
{
    char *to = make_room(w, count);

    if (to == NULL)
        return;
    memset(to, byte, count);
    w->text.count += (int64_t)count;
}
