/* SPDX-License-Identifier: Apache-2.0 */
/* The byte-pair tokenizer, held against a slow one that follows the definition:
 * the pattern alternative by alternative, merges by looking at all pairs. And
 * files that are not what they should be. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <oarsong/data.h>
#include <oarsong/memory.h>

#include "data/bpe.h"
#include "support/census.h"
#include "support/says.h"

/* ---- a small vocabulary -------------------------------------------------- */

/* In the order of their ranks. Some compete: "ll" comes before "el" and "lo",
 * and "aaa" can be cut in two ways. */
static const char *const merges[][2] = {
    { "l", "l" },   { "h", "e" },       { "e", "l" },           { "l", "o" },
    { "he", "ll" }, { "hell", "o" },    { " ", "w" },           { "o", "r" },
    { " w", "or" }, { "l", "d" },       { " wor", "ld" },       { "a", "a" },
    { "aa", "aa" }, { "\xc3", "\xa9" }, { "1", "2" },           { "12", "3" },
    { "\n", "\n" }, { " ", " " },       { "  ", " " },          { "'", "s" },
    { " ", "he" },  { "\xe6", "\x97" }, { "\xe6\x97", "\xa5" }, { "!", "!" },
    { " ", "!" },   { "\xff", "\xfe" },
};

enum {
    MERGES = sizeof merges / sizeof *merges,
    END = 256 + MERGES, /* the token of <|endoftext|> */
    LONGEST = 16
};

/* A byte's token: not the byte itself. */
static int token_of_byte(int byte)
{
    return (byte * 7 + 3) % 256;
}

static char folder[FOLDER_PATH], vocab[FOLDER_PATH + 16],
    list[FOLDER_PATH + 16];

/* Writes a byte as the letter that stands for it. */
static void put_letter(FILE *file, unsigned char byte)
{
    static const char shown[] = "\\\"";
    int before = 0;

    if ((byte > 32 && byte < 127) || (byte > 160 && byte != 173)) {
        if (byte < 128)
            fprintf(file, "%s%c", strchr(shown, byte) ? "\\" : "", byte);
        else
            fprintf(file, "%c%c", 0xc0 | byte >> 6, 0x80 | (byte & 63));
        return;
    }
    for (int i = 0; i < byte; i++) /* those before that cannot be shown */
        before += i < 33 || (i > 126 && i < 161) || i == 173;
    fprintf(file, "\\u%04x", (unsigned)(256 + before));
}

static void put_token(FILE *file, const char *bytes, size_t count, int number)
{
    fputs(number > 0 ? ", \"" : "\"", file);
    for (size_t i = 0; i < count; i++)
        put_letter(file, (unsigned char)bytes[i]);
    fprintf(file, "\": %d", number);
}

/* The same letters without JSON's escapes. */
static void put_plain(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        char *made = NULL;
        size_t bytes = 0;
        FILE *memory = open_memstream(&made, &bytes);
        unsigned point;

        put_letter(memory, (unsigned char)*text);
        fclose(memory);
        if (sscanf(made, "\\u%4x", &point) == 1)
            fprintf(file, "%c%c", (int)(0xc0 | point >> 6),
                    (int)(0x80 | (point & 63)));
        else
            fputs(made, file);
        free(made);
    }
}

static void write_vocab(void)
{
    FILE *file = fopen(vocab, "w");

    assert_non_null(file);
    fputs("{", file);
    for (int i = 0; i < 256; i++) {
        char byte = 0;

        while (token_of_byte((unsigned char)byte) != i)
            byte++;
        put_token(file, &byte, 1, i);
    }
    for (int i = 0; i < MERGES; i++) {
        char both[LONGEST];

        snprintf(both, sizeof both, "%s%s", merges[i][0], merges[i][1]);
        put_token(file, both, strlen(both), 256 + i);
    }
    put_token(file, "<|endoftext|>", 13, END);
    fputs("}", file);
    assert_int_equal(fclose(file), 0);
}

static void write_list(void)
{
    FILE *file = fopen(list, "w");

    assert_non_null(file);
    fputs("#version: 0.2\n", file);
    for (int i = 0; i < MERGES; i++) {
        put_plain(file, merges[i][0]);
        fputs(" ", file);
        put_plain(file, merges[i][1]);
        fputs("\n", file);
    }
    assert_int_equal(fclose(file), 0);
}

static int open_folder(void **state)
{
    folder_make(folder);
    snprintf(vocab, sizeof vocab, "%s/vocab.json", folder);
    snprintf(list, sizeof list, "%s/merges.txt", folder);
    return 0;
}

static int close_folder(void **state)
{
    folder_drop(folder);
    return 0;
}

static oar_tokenizer *small(void)
{
    oar_tokenizer *made;

    write_vocab();
    write_list();
    OK(oar_tokenizer_bpe(vocab, list, &made));
    return made;
}

/* ---- words --------------------------------------------------------------- */

/* Words with a bar after each. */
static void words_are(const char *text, const char *want)
{
    char got[256] = "";
    size_t bytes = strlen(text), word;

    for (size_t at = 0; at < bytes; at += word) {
        word = oari_bpe_word(text + at, bytes - at);
        assert_in_range(word, 1, bytes - at);
        strncat(got, text + at, word);
        strcat(got, "|");
    }
    assert_string_equal(got, want);
}

static void text_is_cut_into_words_as_by_the_pattern(void **state)
{
    words_are("Hello world", "Hello| world|");
    words_are("Hello  world ", "Hello| | world| |");
    words_are("  two\n\n three\t", " | two|\n\n| three|\t|");
    words_are("I'm you're he'll don't it's I'd we've",
              "I|'m| you|'re| he|'ll| don|'t| it|'s| I|'d| we|'ve|");
    words_are("IT'S 'tis ''s 's", "IT|'|S| '|tis| ''|s| '|s|");
    words_are("'sound'", "'s|ound|'|");
    words_are("a1b22 33", "a|1|b|22| 33|");
    words_are("x=1; y!!", "x|=|1|;| y|!!|");
    words_are("\n\na", "\n|\n|a|");
    words_are(" \n a", " \n| a|");
    words_are("a\nb", "a|\n|b|");
    words_are("   ", "   |");
    words_are("caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac", /* letters */
              "caf\xc3\xa9| \xe6\x97\xa5\xe6\x9c\xac|");
    words_are("x\xc2\xbd\xe2\x85\xa7\xd9\xa0", /* one half, VIII, Arabic 0 */
              "x|\xc2\xbd\xe2\x85\xa7\xd9\xa0|");
    words_are("a\xc2\xa0\xe3\x80\x80 b", /* spaces that are not ASCII */
              "a|\xc2\xa0\xe3\x80\x80| b|");
    words_are("e\xcc\x81 \xf0\x9f\x99\x82\xe2\x80\x8b", /* neither */
              "e|\xcc\x81| \xf0\x9f\x99\x82\xe2\x80\x8b|");
    words_are("a\xff\xc3 b", "a|\xff\xc3| b|"); /* not UTF-8 */
    words_are("\xe2\x80", "\xe2\x80|");
}

/* ---- the slow tokenizer -------------------------------------------------- */

/* Characters with their classes, Letter, Number, Space or Other. */
static const struct {
    const char *text;
    char class;
} letters[] = {
    { "h", 'L' },
    { "e", 'L' },
    { "l", 'L' },
    { "o", 'L' },
    { "w", 'L' },
    { "r", 'L' },
    { "d", 'L' },
    { "a", 'L' },
    { "s", 'L' },
    { "\xc3\xa9", 'L' },
    { "\xe6\x97\xa5", 'L' },
    { "1", 'N' },
    { "2", 'N' },
    { "3", 'N' },
    { "\xc2\xbd", 'N' },
    { " ", 'S' },
    { " ", 'S' },
    { "\n", 'S' },
    { "\xc2\x85", 'S' },
    { "\xe2\x80\xa8", 'S' },
    { "!", 'O' },
    { "'", 'O' },
    { "\xff", 'O' },
    { "\xfe", 'O' },
    { "\xcc\x81", 'O' },
    { "\x1f", 'O' },
    { "\xf0\x9f\x99\x82", 'O' },
};

enum { KINDS = sizeof letters / sizeof *letters, CHARACTERS = 24 };

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* How many characters one alternative of the pattern takes, 0: it fails. */
static int take_run(const int *c, int count, char class)
{
    int at = count > 0 && strcmp(letters[c[0]].text, " ") == 0;
    int first = at;

    while (at < count && letters[c[at]].class == class)
        at++;
    if (at > first)
        return at;
    for (at = 0; at < count && letters[c[at]].class == class;)
        at++; /* without the optional space */
    return at;
}

static int slow_word(const int *c, int count)
{
    static const char *const ending[] = { "s", "re", "d", "ll" };
    int run = 0;

    for (int i = 0; i < 4 && strcmp(letters[c[0]].text, "'") == 0; i++) {
        int length = (int)strlen(ending[i]), same = 0;

        while (same < length && 1 + same < count &&
               letters[c[1 + same]].text[0] == ending[i][same])
            same++;
        if (same == length)
            return 1 + length;
    }
    for (int i = 0; i < 3 && run == 0; i++)
        run = take_run(c, count, "LNO"[i]);
    if (run > 0)
        return run;
    while (run < count && letters[c[run]].class == 'S')
        run++;
    for (int n = run; n > 0; n--) /* not followed by what is no space */
        if (n == count || letters[c[n]].class == 'S')
            return n;
    return run;
}

/* The tokens of a word: all pairs of the lowest rank at once, again and again.
 */
static size_t slow_merge(const char *word, size_t bytes, int64_t *token)
{
    char part[128][LONGEST];
    size_t count = bytes;

    for (size_t i = 0; i < bytes; i++) {
        part[i][0] = word[i];
        part[i][1] = '\0';
    }
    for (int rank = 0; rank < MERGES; rank++) {
        size_t kept = 0;
        int found = 0;

        for (size_t i = 0; i < count; i++, kept++) {
            int joins = i + 1 < count &&
                        strcmp(part[i], merges[rank][0]) == 0 &&
                        strcmp(part[i + 1], merges[rank][1]) == 0;

            memmove(part[kept], part[i], LONGEST);
            if (joins)
                strcat(part[kept], part[++i]);
            found |= joins;
        }
        count = kept;
        if (found)
            rank = -1; /* the lowest again */
    }
    for (size_t i = 0; i < count; i++) {
        token[i] = token_of_byte((unsigned char)part[i][0]);
        for (int k = 0; k < MERGES && part[i][1] != '\0'; k++) {
            char both[LONGEST];

            snprintf(both, sizeof both, "%s%s", merges[k][0], merges[k][1]);
            if (strcmp(both, part[i]) == 0)
                token[i] = 256 + k;
        }
    }
    return count;
}

static size_t slow_encode(const int *c, int count, int64_t *token)
{
    size_t tokens = 0;

    for (int at = 0; at < count;) {
        int end = at + slow_word(c + at, count - at);
        char word[128] = "";

        for (; at < end; at++)
            strcat(word, letters[c[at]].text);
        tokens += slow_merge(word, strlen(word), token + tokens);
    }
    return tokens;
}

static void tokens_are_those_of_the_definition(void **state)
{
    oar_tokenizer *t = small();
    uint64_t seed = 1;

    for (int round = 0; round < 20000; round++) {
        int c[CHARACTERS], length = (int)(draw(&seed) % CHARACTERS);
        char text[4 * CHARACTERS + 1] = "";
        int64_t want[4 * CHARACTERS], *got;
        size_t wanted, count;

        for (int i = 0; i < length; i++) {
            c[i] = (int)(draw(&seed) % KINDS);
            strcat(text, letters[c[i]].text);
        }
        wanted = slow_encode(c, length, want);
        OK(oar_tokenizer_encode(t, text, strlen(text), &got, &count));
        if (count != wanted || memcmp(got, want, count * sizeof *got) != 0)
            fail_msg("\"%s\": %zu tokens, wanted %zu", text, count, wanted);
        oar_free(got);
    }
    oar_tokenizer_destroy(t);
}

static void tokens_are_those_worked_out_by_hand(void **state)
{
    oar_tokenizer *t = small();
    const int64_t want[] = {
        256 + 5,  256 + 10, 256 + 23, /* hello, world, !! */
        256 + 12, 256 + 11,           /* aaaaaa: four and two */
    };
    int64_t *got;
    size_t count;

    OK(oar_tokenizer_encode(t, "hello world!!aaaaaa", 19, &got, &count));
    assert_int_equal(count, 5);
    assert_memory_equal(got, want, sizeof want);
    oar_free(got);
    oar_tokenizer_destroy(t);
}

/* ---- there and back ------------------------------------------------------ */

static void comes_back(const oar_tokenizer *t, const char *text, size_t bytes)
{
    int64_t *token;
    size_t count, length;
    char *back;

    OK(oar_tokenizer_encode(t, text, bytes, &token, &count));
    OK(oar_tokenizer_decode(t, token, count, &back, &length));
    assert_int_equal(length, bytes);
    assert_memory_equal(back, text, bytes);
    oar_free(token);
    oar_free(back);
}

static void all_bytes_come_back(void **state)
{
    enum { PAIRS = 2 * 256 * 256 };
    oar_tokenizer *t = small();
    char *pairs = malloc(PAIRS);

    assert_non_null(pairs);
    for (int i = 0; i < PAIRS / 2; i++) {
        pairs[2 * i] = (char)(i >> 8);
        pairs[2 * i + 1] = (char)i;
    }
    for (int i = 0; i < PAIRS; i += 2)
        comes_back(t, pairs + i, 2);
    comes_back(t, pairs, PAIRS);
    comes_back(t, pairs, 0);
    comes_back(t, NULL, 0);
    free(pairs);
    oar_tokenizer_destroy(t);
}

/* A slow way would take minutes. */
static void a_word_may_be_as_long_as_the_text(void **state)
{
    enum { LONG = 400001 };
    oar_tokenizer *t = small();
    char *text = malloc(LONG);
    int64_t *token;
    size_t count;

    assert_non_null(text);
    memset(text, 'a', LONG);
    OK(oar_tokenizer_encode(t, text, LONG, &token, &count));
    assert_int_equal(count, LONG / 4 + 1);
    assert_int_equal(token[0], 256 + 12);
    assert_int_equal(token[count - 1], token_of_byte('a'));
    oar_free(token);
    comes_back(t, text, LONG);
    free(text);
    oar_tokenizer_destroy(t);
}

static void the_end_of_text_is_plain_text_unless_it_is_asked_for(void **state)
{
    static const char end[] = "<|endoftext|>";
    oar_tokenizer *t = small();
    int64_t *token, found = -1;
    size_t count, bytes;
    char *back;

    assert_int_equal(oar_tokenizer_count(t), END + 1);
    OK(oar_tokenizer_find(t, end, strlen(end), &found));
    assert_int_equal(found, END);
    OK(oar_tokenizer_decode(t, &found, 1, &back, &bytes));
    assert_string_equal(back, end);
    oar_free(back);
    OK(oar_tokenizer_encode(t, end, strlen(end), &token, &count));
    for (size_t i = 0; i < count; i++)
        assert_true(token[i] != END);
    oar_free(token);
    oar_tokenizer_destroy(t);
}

/* ---- finding ------------------------------------------------------------- */

static void a_token_is_found_by_its_text(void **state)
{
    oar_tokenizer *bpe = small(), *bytes, *points;
    int64_t found = -1;

    OK(oar_tokenizer_bytes(&bytes));
    OK(oar_tokenizer_characters("a\xc3\xa9", 3, &points));
    OK(oar_tokenizer_find(bpe, " world", 6, &found));
    assert_int_equal(found, 256 + 10);
    OK(oar_tokenizer_find(bytes, "\xff", 1, &found));
    assert_int_equal(found, 255);
    OK(oar_tokenizer_find(points, "\xc3\xa9", 2, &found));
    assert_int_equal(found, 1);
    assert_says(oar_tokenizer_find(bpe, "hel", 3, &found), OAR_E_NOT_FOUND,
                "\"hel\"");
    assert_says(oar_tokenizer_find(bpe, "", 0, &found), OAR_E_NOT_FOUND, "");
    assert_says(oar_tokenizer_find(bytes, "ab", 2, &found), OAR_E_NOT_FOUND,
                "\"ab\"");
    assert_says(oar_tokenizer_find(points, "a\xc3", 2, &found), OAR_E_NOT_FOUND,
                "");
    assert_says(oar_tokenizer_find(points, "b", 1, &found), OAR_E_NOT_FOUND,
                "\"b\"");
    assert_int_equal(found, 1);
    assert_says(oar_tokenizer_find(bpe, NULL, 1, &found), OAR_E_ARG, "no text");
    assert_says(oar_tokenizer_find(NULL, "a", 1, &found), OAR_E_ARG,
                "no tokenizer");
    oar_tokenizer_destroy(bpe);
    oar_tokenizer_destroy(bytes);
    oar_tokenizer_destroy(points);
}

/* ---- files --------------------------------------------------------------- */

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void refused(oar_status status, const char *why)
{
    oar_tokenizer *none = NULL;

    assert_says(oar_tokenizer_bpe(vocab, list, &none), status, why);
    assert_null(none);
}

/* Replaces the first `from` in the vocabulary. */
static void change_vocab(const char *from, const char *to)
{
    static char data[65536], made[65536];
    FILE *file;
    char *at;

    write_vocab();
    file = fopen(vocab, "r");
    data[fread(data, 1, sizeof data - 1, file)] = '\0';
    fclose(file);
    at = strstr(data, from);
    assert_non_null(at);
    snprintf(made, sizeof made, "%.*s%s%s", (int)(at - data), data, to,
             at + strlen(from));
    write_text(vocab, made);
}

static void a_vocabulary_that_cannot_be_is_refused(void **state)
{
    char number[64], other[64];

    write_list();
    write_text(vocab, "");
    refused(OAR_E_DATA, "vocab.json, line");
    write_text(vocab, "[1, 2]");
    refused(OAR_E_DATA, "256 tokens");
    write_text(vocab, "{\"a\": 0}");
    refused(OAR_E_DATA, "256 tokens");
    snprintf(number, sizeof number, "\"a\": %d", token_of_byte('a'));
    snprintf(other, sizeof other, "\"zz\": %d", token_of_byte('a'));
    change_vocab(number, other);
    refused(OAR_E_DATA, "byte 0x61 has no token");
    change_vocab(number, "\"a\": -1");
    refused(OAR_E_DATA, "the number of \"a\"");
    change_vocab(number, "\"a\": 283"); /* one too many */
    refused(OAR_E_DATA, "0 to 282");
    change_vocab(number, "\"a\": 9007199254740993000");
    refused(OAR_E_DATA, "0 to 282");
    change_vocab(number, "\"a\": 97.0");
    refused(OAR_E_DATA, "the number of \"a\"");
    change_vocab(number, "\"a\": \"0\"");
    refused(OAR_E_DATA, "the number of \"a\"");
    change_vocab(number, "\"a\": 282"); /* is <|endoftext|> */
    refused(OAR_E_DATA, "each once");
    change_vocab("endoftext", "end of text");
    refused(OAR_E_DATA, "is no token");
    change_vocab("endoftext", "\\u0144");
    refused(OAR_E_DATA, "is no token");
    change_vocab("<|endoftext|>", "");
    refused(OAR_E_DATA, "is no token");
    change_vocab("<|endoftext|>", "a");
    refused(OAR_E_DATA, "vocab.json, line");
}

static void merges_that_cannot_be_are_refused(void **state)
{
    oar_tokenizer *made;

    write_vocab();
    write_text(list, "#version: 0.2\nl l\nhe\n");
    refused(OAR_E_DATA, "merges.txt, line 3: not two tokens");
    write_text(list, "l l\nhe x\n");
    refused(OAR_E_DATA, "line 2: these two tokens");
    write_text(list, "l l l\n");
    refused(OAR_E_DATA, "line 1");
    write_text(list, "ll \n");
    refused(OAR_E_DATA, "line 1");
    write_text(list, " ll\n");
    refused(OAR_E_DATA, "line 1");
    write_text(list, "\xff\xff l\n");
    refused(OAR_E_DATA, "line 1");
    write_text(list, "l l\n\n#version: 0.2\n");
    refused(OAR_E_DATA, "line 3");
    write_text(list, "l l\nh e\nl l\n");
    refused(OAR_E_DATA, "merged twice");
    write_text(list, "");
    OK(oar_tokenizer_bpe(vocab, list, &made)); /* none at all is fine */
    comes_back(made, "hello", 5);
    oar_tokenizer_destroy(made);
    write_text(list, "l l\nh e"); /* no end of line at the end */
    OK(oar_tokenizer_bpe(vocab, list, &made));
    comes_back(made, "hello", 5);
    oar_tokenizer_destroy(made);
}

static void files_that_are_none_are_refused(void **state)
{
    census before = census_take();
    oar_tokenizer *none = NULL;
    char pipe_path[FOLDER_PATH + 16];

    write_vocab();
    write_list();
    assert_int_equal(truncate(list, (16 << 20) + 1), 0);
    refused(OAR_E_DATA, "at most 16777216 bytes");
    assert_int_equal(truncate(vocab, (16 << 20) + 1), 0);
    refused(OAR_E_DATA, "at most 16777216 bytes");
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_says(oar_tokenizer_bpe(pipe_path, list, &none), OAR_E_DATA,
                "plain file");
    assert_says(oar_tokenizer_bpe("/none/such", list, &none), OAR_E_SYSTEM,
                "/none/such");
    assert_says(oar_tokenizer_bpe(NULL, list, &none), OAR_E_ARG, "no path");
    assert_says(oar_tokenizer_bpe(vocab, NULL, &none), OAR_E_ARG, "no path");
    assert_says(oar_tokenizer_bpe(vocab, list, NULL), OAR_E_ARG, "nowhere");
    assert_null(none);
    census_expect(&before);
}

static oar_status make_and_encode(void *arg)
{
    oar_tokenizer *made = NULL;
    oar_status status = oar_tokenizer_bpe(vocab, list, &made);
    int64_t *token = NULL;
    size_t count;

    if (status == OAR_OK)
        status = oar_tokenizer_encode(made, "hello world, hello", 18, &token,
                                      &count);
    oar_free(token);
    oar_tokenizer_destroy(made);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    write_vocab();
    write_list();
    census_fail_each(make_and_encode, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_cut_into_words_as_by_the_pattern),
        cmocka_unit_test(tokens_are_those_of_the_definition),
        cmocka_unit_test(tokens_are_those_worked_out_by_hand),
        cmocka_unit_test(all_bytes_come_back),
        cmocka_unit_test(a_word_may_be_as_long_as_the_text),
        cmocka_unit_test(the_end_of_text_is_plain_text_unless_it_is_asked_for),
        cmocka_unit_test(a_token_is_found_by_its_text),
        cmocka_unit_test(a_vocabulary_that_cannot_be_is_refused),
        cmocka_unit_test(merges_that_cannot_be_are_refused),
        cmocka_unit_test(files_that_are_none_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
