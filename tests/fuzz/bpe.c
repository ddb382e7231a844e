/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a byte-pair tokenizer: any bytes are refused or make one that
 * gives every text back. */
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#include <oarsong/data.h>
#include <oarsong/memory.h>

enum { PATH = 64 };

static int open_memory(const char *data, size_t bytes, char path[PATH])
{
    int fd = memfd_create("bpe", MFD_CLOEXEC);

    FUZZ_CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, PATH, "/proc/self/fd/%d", fd);
    return fd;
}

/* Appends a vocabulary of all bytes, and of what a few merges make. */
static size_t write_vocab(char *text, size_t room)
{
    static const char *const more[] = { "ab", "abc", "bc", "aa", "aaaa" };
    size_t used = 0;
    int hidden = 256;

    for (int i = 0; i < 256; i++) {
        int shown = (i > 32 && i < 127) || (i > 160 && i != 173);

        used += (size_t)snprintf(text + used, room - used, "%s\"\\u%04x\":%d",
                                 i > 0 ? "," : "{",
                                 (unsigned)(shown ? i : hidden++), i);
    }
    for (int i = 0; i < 5; i++)
        used += (size_t)snprintf(text + used, room - used, ",\"%s\":%d",
                                 more[i], 256 + i);
    return used + (size_t)snprintf(text + used, room - used, "}");
}

static void there_and_back(const oar_tokenizer *t, const char *text,
                           size_t bytes)
{
    int64_t *token;
    size_t count, length;
    char *back;

    FUZZ_CHECK(oar_tokenizer_encode(t, text, bytes, &token, &count) == OAR_OK);
    for (size_t i = 0; i < count; i++)
        FUZZ_CHECK(token[i] >= 0 && token[i] < oar_tokenizer_count(t));
    FUZZ_CHECK(oar_tokenizer_decode(t, token, count, &back, &length) == OAR_OK);
    FUZZ_CHECK(length == bytes && memcmp(back, text, bytes) == 0);
    oar_free(token);
    oar_free(back);
}

/* The first byte says which file the rest is: the vocabulary, or the merges of
 * one that is well formed. The rest is encoded, too. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char made[8192];
    char vocab_path[PATH], merges_path[PATH], *text;
    oar_tokenizer *tokenizer;
    int vocab, merges;
    uint8_t which;

    fuzz_take(&data, &bytes, &which, 1);
    text = fuzz_text(data, bytes);
    if (which % 2 == 0) {
        vocab = open_memory(text, bytes, vocab_path);
        merges = open_memory("a b\n", 4, merges_path);
    } else {
        vocab = open_memory(made, write_vocab(made, sizeof made), vocab_path);
        merges = open_memory(text, bytes, merges_path);
    }
    if (oar_tokenizer_bpe(vocab_path, merges_path, &tokenizer) == OAR_OK) {
        there_and_back(tokenizer, text, bytes);
        oar_tokenizer_destroy(tokenizer);
    }
    close(vocab);
    close(merges);
    free(text);
    return 0;
}
