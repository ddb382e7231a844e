/* SPDX-License-Identifier: Apache-2.0 */
/* data/bpe.h: byte-pair encoding as GPT-2 does it. Text is cut into words by a
 * fixed pattern; the bytes of each word are tokens first, and then neighbours
 * are merged by a list, those of the lowest rank first.
 *
 *   bpe_load.c   the two files: vocab.json and merges.txt
 *   bpe_words.c  the pattern
 *   bpe.c        merging
 */
#ifndef OARI_DATA_BPE_H
#define OARI_DATA_BPE_H

#include <oarsong/status.h>

#include <stddef.h>
#include <stdint.h>

enum { OARI_BYTES = 256 };

/* The bytes that a token stands for. */
typedef struct oari_bpe_token {
    const char *data; /* in the vocabulary's `text` */
    size_t bytes;
    int32_t token;
} oari_bpe_token;

/* Two neighbours become one token. */
typedef struct oari_bpe_merge {
    int32_t left, right, result, rank;
} oari_bpe_merge;

/* Does not change once made: any thread may read it. */
typedef struct oari_bpe {
    int32_t count;
    char *text;             /* of all tokens, one behind the other */
    oari_bpe_token *token;  /* by number */
    oari_bpe_token *sorted; /* by bytes */
    int32_t of_byte[OARI_BYTES];
    oari_bpe_merge *merge; /* by left, then by right */
    int32_t *first;        /* by token: the first merge whose left it is, and,
                              after the last token, the number of merges */
} oari_bpe;

/* Reads both files. OAR_E_DATA says what is wrong with one, and where. */
oar_status oari_bpe_open(const char *vocab_path, const char *merges_path,
                         oari_bpe **bpe);
void oari_bpe_close(oari_bpe *bpe); /* NULL is fine, or a half-made one */

/* Returns the token that stands for exactly these bytes, or -1. */
int32_t oari_bpe_find(const oari_bpe *bpe, const char *data, size_t bytes);

/* Gives the tokens of any bytes; the caller frees them. */
oar_status oari_bpe_encode(const oari_bpe *bpe, const char *text, size_t bytes,
                           int64_t **token, size_t *count);

/* Returns the bytes of the word that text begins with; text is not empty. A
 * byte that is not UTF-8 counts as a character that is no letter, number or
 * space. */
size_t oari_bpe_word(const char *text, size_t bytes);

#endif
