/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer: text to numbers and back. Tokens of the byte tokenizer are the
 * bytes; those of the character tokenizer are places in a sorted table of code
 * points; those of the byte-pair tokenizer come from its files (data/bpe.h).
 * Text is checked, never trusted. Read-only once made: any thread. */
#include <string.h>

#include <oarsong/data.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/utf8.h"
#include "data/bpe.h"

/* Without points and byte pairs every byte is a token. */
struct oar_tokenizer {
    int64_t count;
    uint32_t *point; /* sorted; or NULL */
    oari_bpe *bpe;   /* or NULL */
};

enum { WORD = 64 };

static oar_status check_text(const char *what, const char *text, size_t bytes)
{
    if (text == NULL && bytes > 0)
        return oari_fail(OAR_E_ARG, "%s: no text", what);
    return OAR_OK;
}

static oar_status malformed(const char *what, const char *text, size_t at)
{
    return oari_fail(OAR_E_DATA, "%s: byte %zu (0x%02x) is not UTF-8", what, at,
                     (unsigned char)text[at]);
}

/* ---- making -------------------------------------------------------------- */

oar_status oar_tokenizer_bytes(oar_tokenizer **tokenizer)
{
    oar_tokenizer *made;

    if (tokenizer == NULL)
        return oari_fail(OAR_E_ARG, "tokenizer_bytes: nowhere to give it");
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->count = OARI_BYTES;
    *tokenizer = made;
    return OAR_OK;
}

/* Sets the bit of every code point that occurs. */
static oar_status mark_points(const char *text, size_t bytes, uint64_t *seen)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t point;
        size_t length = oari_utf8_read(text + at, bytes - at, &point);

        if (length == 0)
            return malformed("tokenizer_characters", text, at);
        seen[point / WORD] |= (uint64_t)1 << point % WORD;
        at += length;
    }
    return OAR_OK;
}

/* Fills the tokenizer's table with the code points of a text. */
static oar_status find_points(const char *text, size_t bytes,
                              oar_tokenizer *tokenizer)
{
    uint64_t *seen = oari_alloc(OARI_UTF8_POINTS / WORD, sizeof *seen);
    oar_status status;
    uint32_t *next;

    if (seen == NULL)
        return OAR_E_NOMEM;
    status = mark_points(text, bytes, seen);
    if (status == OAR_OK) {
        for (uint32_t i = 0; i < OARI_UTF8_POINTS / WORD; i++)
            tokenizer->count += __builtin_popcountll(seen[i]);
        next = oari_alloc((size_t)tokenizer->count, sizeof *next);
        tokenizer->point = next;
        status = next != NULL ? OAR_OK : OAR_E_NOMEM;
    }
    for (uint32_t p = 0; status == OAR_OK && p < OARI_UTF8_POINTS; p++)
        if (seen[p / WORD] >> p % WORD & 1)
            *next++ = p;
    oari_free(seen);
    return status;
}

oar_status oar_tokenizer_characters(const char *text, size_t bytes,
                                    oar_tokenizer **tokenizer)
{
    oar_tokenizer *made;
    oar_status status;

    OARI_TRY(check_text("tokenizer_characters", text, bytes));
    if (tokenizer == NULL)
        return oari_fail(OAR_E_ARG, "tokenizer_characters: nowhere to give it");
    if (bytes == 0)
        return oari_fail(OAR_E_ARG, "tokenizer_characters of an empty text");
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    status = find_points(text, bytes, made);
    if (status != OAR_OK) {
        oar_tokenizer_destroy(made);
        return status;
    }
    *tokenizer = made;
    return OAR_OK;
}

oar_status oar_tokenizer_bpe(const char *vocab_path, const char *merges_path,
                             oar_tokenizer **tokenizer)
{
    oar_tokenizer *made;
    oar_status status;

    if (vocab_path == NULL || merges_path == NULL || tokenizer == NULL)
        return oari_fail(OAR_E_ARG, "tokenizer_bpe: no path or nowhere to give "
                                    "it");
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    status = oari_bpe_open(vocab_path, merges_path, &made->bpe);
    if (status != OAR_OK) {
        oar_tokenizer_destroy(made);
        return status;
    }
    made->count = made->bpe->count;
    *tokenizer = made;
    return OAR_OK;
}

void oar_tokenizer_destroy(oar_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    oari_bpe_close(tokenizer->bpe);
    oari_free(tokenizer->point);
    oari_free(tokenizer);
}

int64_t oar_tokenizer_count(const oar_tokenizer *tokenizer)
{
    return tokenizer != NULL ? tokenizer->count : 0;
}

/* ---- encoding ------------------------------------------------------------ */

/* Returns the place of a code point in the table, or -1. */
static int64_t token_of(const oar_tokenizer *tokenizer, uint32_t point)
{
    int64_t low = 0, high = tokenizer->count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (tokenizer->point[middle] < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < tokenizer->count && tokenizer->point[low] == point ? low : -1;
}

static oar_status encode_points(const oar_tokenizer *tokenizer,
                                const char *text, size_t bytes, int64_t *token)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t point;
        size_t length = oari_utf8_read(text + at, bytes - at, &point);

        if (length == 0)
            return malformed("encode", text, at);
        *token = token_of(tokenizer, point);
        if (*token++ < 0)
            return oari_fail(OAR_E_DATA,
                             "encode: the character U+%04X at byte %zu has no "
                             "token",
                             (unsigned)point, at);
        at += length;
    }
    return OAR_OK;
}

oar_status oar_tokenizer_encode(const oar_tokenizer *tokenizer,
                                const char *text, size_t bytes, int64_t **token,
                                size_t *count)
{
    oar_status status = OAR_OK;
    size_t tokens = bytes;
    int64_t *made;

    if (tokenizer == NULL || token == NULL || count == NULL)
        return oari_fail(OAR_E_ARG, "encode: no tokenizer or nowhere to give "
                                    "the tokens");
    OARI_TRY(check_text("encode", text, bytes));
    if (tokenizer->bpe != NULL)
        return oari_bpe_encode(tokenizer->bpe, text, bytes, token, count);
    if (tokenizer->point != NULL)
        tokens = oari_utf8_count(text, bytes);
    made = oari_alloc(tokens, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    if (tokenizer->point != NULL)
        status = encode_points(tokenizer, text, bytes, made);
    else
        for (size_t i = 0; i < bytes; i++)
            made[i] = (unsigned char)text[i];
    if (status != OAR_OK) {
        oari_free(made);
        return status;
    }
    *token = made;
    *count = tokens;
    return OAR_OK;
}

oar_status oar_tokenizer_find(const oar_tokenizer *tokenizer, const char *text,
                              size_t bytes, int64_t *token)
{
    int64_t found = -1;
    uint32_t point;

    if (tokenizer == NULL || token == NULL)
        return oari_fail(OAR_E_ARG, "tokenizer_find: no tokenizer or nowhere "
                                    "to give the token");
    OARI_TRY(check_text("tokenizer_find", text, bytes));
    if (tokenizer->bpe != NULL && bytes > 0)
        found = oari_bpe_find(tokenizer->bpe, text, bytes);
    else if (tokenizer->point == NULL && bytes == 1)
        found = (unsigned char)text[0];
    else if (tokenizer->point != NULL && bytes > 0 &&
             oari_utf8_read(text, bytes, &point) == bytes)
        found = token_of(tokenizer, point);
    if (found < 0)
        return oari_fail(OAR_E_NOT_FOUND, "no token is \"%.*s\"",
                         (int)(bytes < 40 ? bytes : 40),
                         text != NULL ? text : "");
    *token = found;
    return OAR_OK;
}

/* ---- decoding ------------------------------------------------------------ */

/* Writes the tokens as text and returns its bytes; with NULL only counts. */
static size_t write_text(const oar_tokenizer *tokenizer, const int64_t *token,
                         size_t count, char *text)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        char one[OARI_UTF8_LONGEST] = { (char)token[i] };
        const char *from = one;
        size_t length = 1;

        if (tokenizer->bpe != NULL) {
            from = tokenizer->bpe->token[token[i]].data;
            length = tokenizer->bpe->token[token[i]].bytes;
        } else if (tokenizer->point != NULL) {
            length = oari_utf8_write(tokenizer->point[token[i]], one);
        }
        if (text != NULL)
            memcpy(text + bytes, from, length);
        bytes += length;
    }
    return bytes;
}

oar_status oar_tokenizer_decode(const oar_tokenizer *tokenizer,
                                const int64_t *token, size_t count, char **text,
                                size_t *bytes)
{
    size_t length;
    char *made;

    if (tokenizer == NULL || text == NULL)
        return oari_fail(OAR_E_ARG, "decode: no tokenizer or nowhere to give "
                                    "the text");
    if (token == NULL && count > 0)
        return oari_fail(OAR_E_ARG, "decode: no tokens");
    for (size_t i = 0; i < count; i++)
        if (token[i] < 0 || token[i] >= tokenizer->count)
            return oari_fail(OAR_E_DATA,
                             "decode: token %lld, number %zu, of "
                             "a tokenizer with %lld",
                             (long long)token[i], i,
                             (long long)tokenizer->count);
    length = write_text(tokenizer, token, count, NULL);
    made = oari_alloc(length + 1, 1);
    if (made == NULL)
        return OAR_E_NOMEM;
    write_text(tokenizer, token, count, made);
    *text = made;
    if (bytes != NULL)
        *bytes = length;
    return OAR_OK;
}
