/* SPDX-License-Identifier: Apache-2.0 */
/* json_reader: a cursor over text. `first` is all the state that nesting needs:
 * it says whether a comma must come before the next member, and a value that
 * has just ended is never the first. */
#include "file/json_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"

enum { DEEPEST = 32 };

void oari_json_start(oari_json *json, const char *what, char *text,
                     size_t bytes)
{
    *json = (oari_json){ what, text, text, text + bytes, 1, OAR_OK };
}

oar_status oari_json_refuse(oari_json *json, const char *format, ...)
{
    char text[400];
    va_list args;

    if (json->status != OAR_OK)
        return json->status;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json->status =
        oari_fail(OAR_E_DATA, "%s: byte %lld of its JSON %s", json->what,
                  (long long)(json->at - json->start), text);
    return json->status;
}

/* Returns the next byte that is not a space, without taking it; 0 at the end
 * of the text and after an error. */
static char next_byte(oari_json *json)
{
    if (json->status != OAR_OK)
        return 0;
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' ||
                                    *json->at == '\n' || *json->at == '\r'))
        json->at++;
    return json->at < json->end ? *json->at : 0;
}

static void take_byte(oari_json *json, char wanted)
{
    char found = next_byte(json);

    if (found == wanted && json->status == OAR_OK)
        json->at++;
    else if (found == 0)
        oari_json_refuse(json, "is its end, where '%c' must stand", wanted);
    else
        oari_json_refuse(json, "is not the '%c' that must stand there", wanted);
}

void oari_json_open(oari_json *json, char bracket)
{
    take_byte(json, bracket);
    json->first = 1;
}

/* Goes to the next thing inside the open value, over a comma. Returns 0 at its
 * end. */
static int next_inside(oari_json *json, char bracket)
{
    if (next_byte(json) == bracket) {
        json->at++;
        json->first = 0;
        return 0;
    }
    if (!json->first)
        take_byte(json, ',');
    json->first = 0;
    return json->status == OAR_OK;
}

int oari_json_element(oari_json *json)
{
    return next_inside(json, ']');
}

int oari_json_key(oari_json *json, const char **key)
{
    if (!next_inside(json, '}'))
        return 0;
    oari_json_text(json, key);
    take_byte(json, ':');
    return json->status == OAR_OK;
}

/* ---- texts --------------------------------------------------------------- */

static int read_hex(oari_json *json, uint32_t *value)
{
    *value = 0;
    if (json->end - json->at < 4)
        return 0;
    for (int i = 0; i < 4; i++) {
        char c = *json->at++;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;

        if (digit > 15)
            return 0;
        *value = *value << 4 | digit;
    }
    return 1;
}

/* Reads the rest of \uXXXX, and of the pair of them that a character above
 * U+FFFF takes. Returns the bytes written, 0 if it is malformed. */
static size_t read_escaped_point(oari_json *json, char *to)
{
    uint32_t point, low;

    if (!read_hex(json, &point) || point == 0)
        return 0;
    if (point >= 0xd800 && point < 0xdc00) {
        if (json->end - json->at < 6 || json->at[0] != '\\' ||
            json->at[1] != 'u')
            return 0;
        json->at += 2;
        if (!read_hex(json, &low) || low < 0xdc00 || low > 0xdfff)
            return 0;
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    } else if (point >= 0xdc00 && point <= 0xdfff) {
        return 0;
    }
    return oari_utf8_write(point, to);
}

/* Decodes the escape behind a backslash. Returns the bytes written to `to`,
 * which never overtakes the text that is read. */
static size_t read_escape(oari_json *json, char *to)
{
    static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    char c = json->at < json->end ? *json->at++ : 0;
    const char *found = c != 0 ? strchr(plain, c) : NULL;

    if (c == 'u')
        return read_escaped_point(json, to);
    if (found == NULL)
        return 0;
    *to = means[found - plain];
    return 1;
}

void oari_json_text(oari_json *json, const char **text)
{
    char *to;

    take_byte(json, '"');
    if (json->status != OAR_OK)
        return;
    *text = json->at;
    /* Most texts are plain, and stay where they are. */
    while (json->at < json->end && *json->at >= 0x20 && *json->at < 0x7f &&
           *json->at != '"' && *json->at != '\\')
        json->at++;
    to = json->at;
    while (json->at < json->end && *json->at != '"') {
        uint32_t point;
        size_t bytes;

        if (*json->at == '\\') {
            json->at++;
            bytes = read_escape(json, to);
        } else {
            bytes = oari_utf8_read(json->at, (size_t)(json->end - json->at),
                                   &point);
            if (bytes > 0 && point < 0x20)
                bytes = 0;
            memmove(to, json->at, bytes);
            json->at += bytes;
        }
        if (bytes == 0) {
            oari_json_refuse(json, "is not part of a well-formed text");
            return;
        }
        to += bytes;
    }
    take_byte(json, '"');
    *to = '\0'; /* at the closing quote or before it */
}

/* ---- numbers and the rest ------------------------------------------------ */

void oari_json_u64(oari_json *json, uint64_t *number, uint64_t most)
{
    char first = next_byte(json);
    uint64_t value = 0;
    char *from = json->at;

    if (json->status != OAR_OK)
        return;
    while (json->at < json->end && *json->at >= '0' && *json->at <= '9') {
        uint64_t digit = (uint64_t)(*json->at - '0');

        if (value > (most - digit) / 10 || digit > most) {
            oari_json_refuse(json, "is in a number above %llu",
                             (unsigned long long)most);
            return;
        }
        value = 10 * value + digit;
        json->at++;
    }
    if (json->at == from || (first == '0' && json->at > from + 1))
        oari_json_refuse(json, "is not part of a whole number");
    else
        *number = value;
}

void oari_json_skip(oari_json *json)
{
    char closing[DEEPEST];
    int depth = 0;
    const char *text;

    do {
        char c = next_byte(json);

        if (json->status != OAR_OK)
            return;
        if (c == '{' || c == '[') {
            if (depth == DEEPEST) {
                oari_json_refuse(json, "is nested more than %d deep", DEEPEST);
                return;
            }
            closing[depth++] = c == '{' ? '}' : ']';
            oari_json_open(json, c);
        } else if (c == '"') {
            oari_json_text(json, &text);
        } else { /* a number of any form, true, false or null */
            char *from = json->at;

            while (json->at < json->end && *json->at != 0 &&
                   strchr("+-.0123456789Eaeflnrstu", *json->at) != NULL)
                json->at++;
            if (json->at == from)
                oari_json_refuse(json, "does not begin a value");
        }
        /* On to the next value: of this one, or of one that holds it. */
        while (depth > 0 &&
               !(closing[depth - 1] == '}' ? oari_json_key(json, &text)
                                           : oari_json_element(json)))
            depth--;
    } while (depth > 0 && json->status == OAR_OK);
}

oar_status oari_json_end(oari_json *json)
{
    next_byte(json);
    if (json->status == OAR_OK && json->at < json->end)
        oari_json_refuse(json, "comes after its end");
    return json->status;
}
