/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back gives the same text. */
#include "fuzz.h"

#include <oarsong/data.h>
#include <oarsong/memory.h>

static void there_and_back(const oar_tokenizer *tokenizer, const char *text,
                           size_t bytes)
{
    int64_t *token = NULL;
    size_t count = 0, back_bytes = 0;
    char *back = NULL;

    if (oar_tokenizer_encode(tokenizer, text, bytes, &token, &count) != OAR_OK)
        return;
    for (size_t i = 0; i < count; i++)
        FUZZ_CHECK(token[i] >= 0 && token[i] < oar_tokenizer_count(tokenizer));
    FUZZ_CHECK(oar_tokenizer_decode(tokenizer, token, count, &back,
                                    &back_bytes) == OAR_OK);
    FUZZ_CHECK(back_bytes == bytes);
    FUZZ_CHECK(bytes == 0 || memcmp(back, text, bytes) == 0);
    oar_free(token);
    oar_free(back);
}

/* Tokens that need not exist. */
static void decode_any(const oar_tokenizer *tokenizer, const uint8_t *data,
                       size_t bytes)
{
    int64_t token[16];
    size_t count = bytes / 8 < 16 ? bytes / 8 : 16, back_bytes;
    char *back;

    memcpy(token, data, count * 8);
    if (oar_tokenizer_decode(tokenizer, token, count, &back, &back_bytes) ==
        OAR_OK)
        oar_free(back);
}

/* The first half makes the tokenizer, the second is encoded. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes > 0 ? bytes : 1);
    size_t half = bytes / 2;
    oar_tokenizer *tokenizer;

    FUZZ_CHECK(text != NULL);
    if (bytes > 0)
        memcpy(text, data, bytes);
    FUZZ_CHECK(oar_tokenizer_bytes(&tokenizer) == OAR_OK);
    there_and_back(tokenizer, text, bytes);
    oar_tokenizer_destroy(tokenizer);
    if (oar_tokenizer_characters(text, half, &tokenizer) == OAR_OK) {
        there_and_back(tokenizer, text, half);
        there_and_back(tokenizer, text + half, bytes - half);
        if (bytes > 0)
            decode_any(tokenizer, data, bytes);
        oar_tokenizer_destroy(tokenizer);
    }
    free(text);
    return 0;
}
