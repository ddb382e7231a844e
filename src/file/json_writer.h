/* SPDX-License-Identifier: Apache-2.0 */
/* file/json_writer.h: a text that grows. The first failure (OAR_E_NOMEM) is
 * kept as its status; what is added after it is lost. A writer of zeros is an
 * empty text. */
#ifndef OARI_FILE_JSON_WRITER_H
#define OARI_FILE_JSON_WRITER_H

#include "base/vec.h"

typedef struct oari_json_writer {
    OARI_VEC(char) text;
    oar_status status;
} oari_json_writer;

/* Adds formatted text as it is. */
void oari_json_add(oari_json_writer *writer, const char *format, ...)
    OAR_PRINTF(2, 3);

/* Adds a text in quotes, escaped where JSON asks for it. It must be UTF-8. */
void oari_json_quote(oari_json_writer *writer, const char *text);

/* Adds `count` copies of a byte. */
void oari_json_fill(oari_json_writer *writer, char byte, size_t count);

#endif
