/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: what the fuzz targets share.
 *
 * A target is one file with one function that takes bytes from outside and
 * asserts what their reader promises. With clang and OARSONG_FUZZ it is linked
 * with libFuzzer (`make fuzz`); everywhere else with replay.c, which goes
 * through the corpus.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Ends the process if a promise is broken, in every kind of build. */
#define FUZZ_CHECK(condition)                                          \
    do {                                                               \
        if (!(condition)) {                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, \
                    #condition);                                       \
            abort();                                                   \
        }                                                              \
    } while (0)

/* A copy that ends in a zero byte, of exactly its size, so that a sanitizer
 * sees a byte read too far; free it. */
static inline char *fuzz_text(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);

    FUZZ_CHECK(text != NULL);
    if (bytes > 0)
        memcpy(text, data, bytes);
    text[bytes] = 0;
    return text;
}

/* Takes the next n bytes off the front; what is not there is zero. */
static inline void fuzz_take(const uint8_t **data, size_t *bytes, void *into,
                             size_t n)
{
    size_t part = n < *bytes ? n : *bytes;

    memset(into, 0, n);
    if (part > 0)
        memcpy(into, *data, part);
    *data += part;
    *bytes -= part;
}

#endif
