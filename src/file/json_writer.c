/* SPDX-License-Identifier: Apache-2.0 */
/* json_writer: see its header. */
#include "file/json_writer.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/status.h"
#include "base/utf8.h"

/* Returns whether a text is UTF-8, as JSON is; sets the status if it is not. */
static int is_utf8(oari_json_writer *w, const char *text)
{
    size_t bytes = strlen(text), length;
    uint32_t point;

    for (size_t at = 0; at < bytes; at += length) {
        length = oari_utf8_read(text + at, bytes - at, &point);
        if (length == 0) {
            w->status = oari_fail(OAR_E_ARG,
                                  "byte %zu of the text \"%.*s...\" is not "
                                  "UTF-8",
                                  at, (int)(at < 100 ? at : 100), text);
            return 0;
        }
    }
    return 1;
}

/* Makes room for more bytes and returns where they go; NULL without memory. */
static char *make_room(oari_json_writer *w, size_t bytes)
{
    if (w->status == OAR_OK)
        w->status = oari_vec_reserve(&w->text, (int64_t)bytes);
    return w->status == OAR_OK ? w->text.data + w->text.count : NULL;
}

void oari_json_add(oari_json_writer *w, const char *format, ...)
{
    enum { MOSTLY = 64 }; /* bytes are enough, so that it is formatted once */
    va_list args, again;
    char *to = make_room(w, MOSTLY);
    int length = -1;

    va_start(args, format);
    va_copy(again, args);
    if (to != NULL)
        length = vsnprintf(to, MOSTLY, format, args);
    if (length >= MOSTLY && (to = make_room(w, (size_t)length + 1)) != NULL)
        vsnprintf(to, (size_t)length + 1, format, again);
    if (to != NULL && length > 0)
        w->text.count += length;
    va_end(again);
    va_end(args);
}

void oari_json_quote(oari_json_writer *w, const char *text)
{
    /* No byte takes more than \u001f does. */
    char *from = make_room(w, 6 * strlen(text) + 2), *to = from;

    if (to == NULL || !is_utf8(w, text))
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
