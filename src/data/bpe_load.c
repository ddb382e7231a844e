/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_load: the files of a GPT-2 tokenizer, as Hugging Face writes them.
 *
 * vocab.json is an object of tokens and their numbers; merges.txt has a line
 * for each merge, the first to be done first. Both write the bytes of a token
 * as letters: a byte that can be printed as itself, each other one as the next
 * character from U+0100 on. Nothing in the files is trusted: files have at most
 * FILE_BYTES, every byte must have a token, so that every text can be encoded,
 * and every merge must be of tokens that exist. */
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"
#include "data/bpe.h"
#include "base/utf8.h"

enum { FILE_BYTES = 16 << 20, POINTS = 0x100 + OARI_BYTES };

/* What is needed while the files are read. */
typedef struct loading {
    oari_bpe *bpe;
    const char *path;        /* of the file that is read */
    int16_t byte_of[POINTS]; /* by code point; -1: none */
    char *text;              /* room for the bytes of a line */
    OARI_VEC(oari_bpe_merge) merges;
} loading;

/* Gives the whole of a file, with a zero byte after it. */
static oar_status read_file(const char *path, char **data, size_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    char *made = NULL;
    ssize_t got = 1;
    oar_status status = OAR_OK;

    *bytes = 0;
    if (fd < 0 || fstat(fd, &st) != 0)
        status = oari_fail(OAR_E_SYSTEM, "open %s", path);
    else if (!S_ISREG(st.st_mode) || st.st_size > FILE_BYTES)
        status =
            oari_fail(OAR_E_DATA, "%s is not a plain file of at most %d bytes",
                      path, (int)FILE_BYTES);
    else if ((made = oari_alloc((size_t)st.st_size + 1, 1)) == NULL)
        status = OAR_E_NOMEM;
    while (status == OAR_OK && got > 0 && *bytes < (size_t)st.st_size) {
        got = read(fd, made + *bytes, (size_t)st.st_size - *bytes);
        if (got < 0)
            status = oari_fail(OAR_E_SYSTEM, "read %s", path);
        else
            *bytes += (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    if (status != OAR_OK)
        oari_free(made);
    else
        *data = made;
    return status;
}

/* ---- bytes as letters ---------------------------------------------------- */

/* Writes the bytes that letters stand for; there are at most as many. Returns
 * how many, or 0 if a letter stands for none or there are no letters. */
static size_t read_letters(const loading *l, const char *letters, size_t length,
                           char *bytes)
{
    size_t count = 0;

    for (size_t at = 0, one; at < length; at += one) {
        uint32_t point;

        one = oari_utf8_read(letters + at, length - at, &point);
        if (one == 0 || point >= POINTS || l->byte_of[point] < 0)
            return 0;
        bytes[count++] = (char)l->byte_of[point];
    }
    return count;
}

/* ---- vocab.json ---------------------------------------------------------- */

static int compare_tokens(const void *a, const void *b)
{
    const oari_bpe_token *x = a, *y = b;
    int order =
        memcmp(x->data, y->data, x->bytes < y->bytes ? x->bytes : y->bytes);

    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

int32_t oari_bpe_find(const oari_bpe *bpe, const char *data, size_t bytes)
{
    oari_bpe_token wanted = { .data = data, .bytes = bytes };
    const oari_bpe_token *found =
        bsearch(&wanted, bpe->sorted, (size_t)bpe->count, sizeof wanted,
                compare_tokens);

    return found != NULL ? found->token : -1;
}

/* Takes the numbers and letters of all tokens out of the object. */
static oar_status take_tokens(loading *l, json_t *object)
{
    oari_bpe *b = l->bpe;
    char *next = b->text;
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        json_int_t number =
            json_is_integer(value) ? json_integer_value(value) : -1;
        size_t bytes = read_letters(l, key, strlen(key), next);

        if (bytes == 0)
            return oari_fail(OAR_E_DATA,
                             "%s: \"%.40s\" is no token: its letters do not "
                             "stand for bytes",
                             l->path, key);
        if (number < 0 || number >= b->count || b->token[number].bytes > 0)
            return oari_fail(OAR_E_DATA,
                             "%s: the number of \"%.40s\" is not one of 0 to "
                             "%d, each once",
                             l->path, key, (int)b->count - 1);
        b->token[number] = (oari_bpe_token){ .data = next,
                                             .bytes = bytes,
                                             .token = (int32_t)number };
        next += bytes;
    }
    return OAR_OK;
}

static oar_status make_tokens(loading *l, json_t *object, size_t file_bytes)
{
    oari_bpe *b = l->bpe;
    size_t count = json_object_size(object);

    if (!json_is_object(object) || count < OARI_BYTES)
        return oari_fail(OAR_E_DATA, "%s: not an object of at least %d tokens",
                         l->path, (int)OARI_BYTES);
    b->count = (int32_t)count; /* no more than the file has bytes */
    b->text = oari_alloc(file_bytes, 1);
    b->token = oari_alloc(count, sizeof *b->token);
    b->sorted = oari_alloc(count, sizeof *b->sorted);
    if (b->text == NULL || b->token == NULL || b->sorted == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(take_tokens(l, object));
    memcpy(b->sorted, b->token, count * sizeof *b->sorted);
    qsort(b->sorted, count, sizeof *b->sorted, compare_tokens);
    for (int i = 0; i < OARI_BYTES; i++) {
        char byte = (char)i;

        b->of_byte[i] = oari_bpe_find(b, &byte, 1);
        if (b->of_byte[i] < 0)
            return oari_fail(OAR_E_DATA, "%s: byte 0x%02x has no token",
                             l->path, (unsigned)i);
    }
    return OAR_OK;
}

static oar_status load_vocab(loading *l, const char *path)
{
    json_error_t why;
    json_t *object;
    oar_status status;
    size_t bytes;
    char *data;

    l->path = path;
    OARI_TRY(read_file(path, &data, &bytes));
    object = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &why);
    oari_free(data);
    if (object == NULL)
        return oari_fail(OAR_E_DATA, "%s, line %d: %s", path, why.line,
                         why.text);
    status = make_tokens(l, object, bytes);
    json_decref(object);
    return status;
}

/* ---- merges.txt ---------------------------------------------------------- */

/* Finds the token that letters stand for: -1 if there is none. Its bytes go to
 * the room for a line, after `used`. */
static int32_t token_of(const loading *l, const char *letters, size_t length,
                        size_t *used)
{
    char *room = l->text + *used;
    size_t bytes = read_letters(l, letters, length, room);

    *used += bytes;
    return oari_bpe_find(l->bpe, room, bytes);
}

static oar_status add_merge(loading *l, const char *line, size_t length,
                            int number)
{
    const char *space = memchr(line, ' ', length);
    size_t first = space != NULL ? (size_t)(space - line) : length, used = 0;
    oari_bpe_merge made = { .rank = (int32_t)l->merges.count };

    if (space == NULL)
        return oari_fail(OAR_E_DATA, "%s, line %d: not two tokens", l->path,
                         number);
    made.left = token_of(l, line, first, &used);
    made.right = token_of(l, space + 1, length - first - 1, &used);
    made.result = oari_bpe_find(l->bpe, l->text, used);
    if (made.left < 0 || made.right < 0 || made.result < 0)
        return oari_fail(OAR_E_DATA,
                         "%s, line %d: these two tokens, or what they make, "
                         "are not in the vocabulary",
                         l->path, number);
    return oari_vec_push(&l->merges, made);
}

static int compare_merges(const void *a, const void *b)
{
    const oari_bpe_merge *x = a, *y = b;

    return x->left != y->left ? (x->left > y->left) - (x->left < y->left)
                              : (x->right > y->right) - (x->right < y->right);
}

/* Sorts the merges, and notes where those of each token begin. */
static oar_status sort_merges(loading *l)
{
    oari_bpe *b = l->bpe;
    int32_t count = (int32_t)l->merges.count;

    b->first = oari_alloc((size_t)b->count + 1, sizeof *b->first);
    if (b->first == NULL)
        return OAR_E_NOMEM;
    b->merge = l->merges.data;
    l->merges.data = NULL;
    if (count > 0)
        qsort(b->merge, (size_t)count, sizeof *b->merge, compare_merges);
    for (int32_t i = 0; i < count; i++) {
        b->first[b->merge[i].left + 1]++;
        if (i > 0 && compare_merges(&b->merge[i - 1], &b->merge[i]) == 0)
            return oari_fail(OAR_E_DATA,
                             "%s: tokens %d and %d are merged twice", l->path,
                             (int)b->merge[i].left, (int)b->merge[i].right);
    }
    for (int32_t i = 0; i < b->count; i++)
        b->first[i + 1] += b->first[i];
    return OAR_OK;
}

static oar_status load_merges(loading *l, const char *path)
{
    static const char version[] = "#version";
    size_t bytes = 0, length;
    char *data = NULL;
    oar_status status;
    int number = 1;

    l->path = path;
    OARI_TRY(read_file(path, &data, &bytes));
    l->text = oari_alloc(bytes + 1, 1);
    status = l->text != NULL ? OAR_OK : OAR_E_NOMEM;
    for (size_t at = 0; status == OAR_OK && at < bytes; at += length + 1) {
        const char *line = data + at, *end = memchr(line, '\n', bytes - at);

        length = end != NULL ? (size_t)(end - line) : bytes - at;
        if (length > 0 &&
            (number > 1 || strncmp(line, version, sizeof version - 1) != 0))
            status = add_merge(l, line, length, number);
        number++;
    }
    oari_free(data);
    return status == OAR_OK ? sort_merges(l) : status;
}

oar_status oari_bpe_open(const char *vocab_path, const char *merges_path,
                         oari_bpe **bpe)
{
    loading l = { .bpe = oari_alloc(1, sizeof *l.bpe) };
    oar_status status = OAR_E_NOMEM;
    int next = 0x100;

    for (int i = 0; i < POINTS; i++)
        l.byte_of[i] = -1;
    for (int i = 0; i < OARI_BYTES; i++) {
        int is_printed = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i != 0xad);

        l.byte_of[is_printed ? i : next++] = (int16_t)i;
    }
    if (l.bpe != NULL)
        status = load_vocab(&l, vocab_path);
    if (status == OAR_OK)
        status = load_merges(&l, merges_path);
    oari_free(l.text);
    oari_vec_free(&l.merges);
    if (status != OAR_OK)
        oari_bpe_close(l.bpe);
    else
        *bpe = l.bpe;
    return status;
}
