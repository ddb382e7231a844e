/* SPDX-License-Identifier: Apache-2.0 */
/* file/json_reader.h: reads JSON that has a known form, in one pass and without
 * a tree: its caller asks for what must come next.
 *
 *     oari_json_open(&json, '{');
 *     while (oari_json_key(&json, &key))
 *         if (strcmp(key, "step") == 0)
 *             oari_json_u64(&json, &step);
 *         else
 *             oari_json_refuse(&json, "has an unknown member \"%s\"", key);
 *     return oari_json_end(&json);
 *
 * The first thing that is wrong is kept as the status (OAR_E_DATA, with the
 * byte); from then on every function does nothing and returns 0, so that loops
 * end. It allocates nothing: texts are decoded where they stand, and end in a
 * zero byte. Nesting is bounded by the caller's own calls, and by 32 for what
 * is skipped. */
#ifndef OARI_FILE_JSON_READER_H
#define OARI_FILE_JSON_READER_H

#include <stddef.h>
#include <stdint.h>

#include <oarsong/status.h>

typedef struct oari_json {
    const char *what; /* the file's name, for errors */
    char *start, *at, *end;
    int first; /* no member or element of the open value has been read */
    oar_status status;
} oari_json;

/* Begins to read `bytes` of text, which are changed. The byte behind them must
 * be writable. */
void oari_json_start(oari_json *json, const char *what, char *text,
                     size_t bytes);

/* Opens an object or an array: bracket is '{' or '['. */
void oari_json_open(oari_json *json, char bracket);

/* Goes to the next member of an object and gives its key; returns 0 at its end,
 * which is read, too. */
int oari_json_key(oari_json *json, const char **key);

/* Goes to the next element of an array; returns 0 at its end. */
int oari_json_element(oari_json *json);

/* Reads a text: UTF-8 without zero bytes. It stays valid as long as the memory
 * that is read. */
void oari_json_text(oari_json *json, const char **text);

/* Reads a whole number from 0 to `most`: digits only, no leading zeros. */
void oari_json_u64(oari_json *json, uint64_t *number, uint64_t most);

/* Reads any value and forgets it. */
void oari_json_skip(oari_json *json);

/* Says that what was read last is wrong; the sentence begins with the file's
 * name and the byte. Returns OAR_E_DATA. */
oar_status oari_json_refuse(oari_json *json, const char *format, ...)
    OAR_PRINTF(2, 3);

/* Returns the status; OAR_E_DATA if anything but spaces is left. */
oar_status oari_json_end(oari_json *json);

#endif
