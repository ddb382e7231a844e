/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_parse: schedules from texts. Texts are the users' and may be
 * anything; no number is used before it is checked. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "parallel/schedule/schedule.h"
#include "base/status.h"

enum { MOST_BYTES = 64 << 20 };

typedef struct reader {
    const char *at, *end, *line; /* line: where the current one begins */
    int row;
    oari_schedule_draft draft;
} reader;

static const char overlap[] = "OVERLAP_F_B";

/* ---- words --------------------------------------------------------------- */

static oar_status expected(const reader *r, const char *what)
{
    int length = 0;

    while (r->at + length < r->end && length < 20 &&
           isprint((unsigned char)r->at[length]))
        length++;
    return oari_fail(OAR_E_DATA,
                     "line %d, column %lld of a schedule: expected %s, found "
                     "\"%.*s\"",
                     r->row + 1, (long long)(r->at - r->line) + 1, what, length,
                     r->at);
}

static int peek(const reader *r)
{
    return r->at < r->end ? (unsigned char)*r->at : EOF;
}

static void skip_blanks(reader *r)
{
    while (peek(r) == ' ' || peek(r) == '\t' || peek(r) == '\r')
        r->at++;
}

/* Takes a word if it is next. */
static int take_word(reader *r, const char *word)
{
    size_t length = strlen(word);

    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return 0;
    r->at += length;
    return 1;
}

static oar_status read_number(reader *r, const char *what, int *number)
{
    const char *from = r->at;

    if (!isdigit(peek(r)))
        return expected(r, what);
    for (*number = 0; isdigit(peek(r)); r->at++) {
        *number = 10 * *number + (*r->at - '0');
        if (*number >= OARI_SCHEDULE_NUMBERS)
            return oari_fail(OAR_E_ARG,
                             "line %d, column %lld of a schedule: a number "
                             "above %d",
                             r->row + 1, (long long)(from - r->line) + 1,
                             OARI_SCHEDULE_NUMBERS - 1);
    }
    return OAR_OK;
}

/* ---- actions ------------------------------------------------------------- */

static oar_status read_action(reader *r, oar_action *action)
{
    int act = 0;

    OARI_TRY(read_number(r, "a stage", &action->stage));
    while (act <= OAR_ACT_RESHARD &&
           !take_word(r, oari_act_notation((oar_act)act)))
        act++;
    if (act > OAR_ACT_RESHARD)
        return expected(r, "F, B, I, W or another action");
    action->act = (oar_act)act;
    action->micro = -1;
    action->joined = 0;
    if (act <= OAR_ACT_RECV_B)
        return read_number(r, "a micro-batch", &action->micro);
    return OAR_OK;
}

static oar_status add_action(reader *r, const oar_action *action)
{
    return oari_vec_push(&r->draft.schedule->row[r->row], *action);
}

/* Reads (0F3;7B1)OVERLAP_F_B. */
static oar_status read_pair(reader *r)
{
    oar_action first, second;

    r->at++;
    OARI_TRY(read_action(r, &first));
    if (first.act != OAR_ACT_F || !take_word(r, ";"))
        return expected(r, "an F and \";\"");
    OARI_TRY(read_action(r, &second));
    if (second.act != OAR_ACT_B || !take_word(r, ")"))
        return expected(r, "a B and \")\"");
    if (!take_word(r, overlap))
        return expected(r, overlap);
    first.joined = 1;
    OARI_TRY(add_action(r, &first));
    return add_action(r, &second);
}

/* Reads what is between two commas, which may be nothing. */
static oar_status read_cell(reader *r)
{
    oar_action action;

    skip_blanks(r);
    if (peek(r) == '(') {
        OARI_TRY(read_pair(r));
    } else if (peek(r) != ',' && peek(r) != '\n' && peek(r) != EOF) {
        OARI_TRY(read_action(r, &action));
        OARI_TRY(add_action(r, &action));
    }
    skip_blanks(r);
    if (peek(r) != ',' && peek(r) != '\n' && peek(r) != EOF)
        return expected(r, "a comma or the end of the line");
    return OAR_OK;
}

static oar_status read_rows(reader *r, int rows)
{
    for (r->row = 0; r->row < rows; r->row++) {
        r->line = r->at;
        OARI_TRY(read_cell(r));
        while (peek(r) == ',') {
            r->at++;
            OARI_TRY(read_cell(r));
        }
        r->at += r->at < r->end;
    }
    return OAR_OK;
}

/* ---- texts --------------------------------------------------------------- */

/* Returns how many lines a text has, without empty ones at its end. */
static int count_rows(const char *text, size_t *bytes)
{
    int rows = 1;

    while (*bytes > 0 && isspace((unsigned char)text[*bytes - 1]))
        --*bytes;
    if (*bytes == 0)
        return 0;
    for (size_t i = 0; i < *bytes && rows <= OARI_SCHEDULE_NUMBERS; i++)
        rows += text[i] == '\n';
    return rows;
}

oar_status oar_schedule_parse(const char *text, size_t bytes,
                              const oar_schedule_opts *opts,
                              oar_schedule **schedule)
{
    oar_schedule_opts o = { 0 };
    reader r = { .at = text, .line = text };
    int rows;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (text == NULL || schedule == NULL)
        return oari_fail(OAR_E_ARG, "no text of a schedule, or nowhere to give "
                                    "the schedule");
    if (bytes > MOST_BYTES)
        return oari_fail(OAR_E_ARG, "a schedule of %zu bytes: at most %d",
                         bytes, MOST_BYTES);
    rows = count_rows(text, &bytes);
    r.end = text + bytes;
    if (rows == 0)
        return oari_fail(OAR_E_DATA, "a schedule without a row");
    if (rows > OARI_SCHEDULE_NUMBERS)
        return oari_fail(OAR_E_ARG, "a schedule of more than %d ranks",
                         OARI_SCHEDULE_NUMBERS);
    OARI_TRY(oari_schedule_draft_begin(rows, &r.draft));
    r.draft.status = read_rows(&r, rows);
    return oari_schedule_draft_end(&r.draft, o.ahead, schedule);
}

/* ---- files --------------------------------------------------------------- */

static oar_status read_file(FILE *file, const char *path, char **text,
                            size_t *bytes)
{
    OARI_VEC(char) v = { NULL, 0, 0 };
    oar_status status = OAR_OK;
    size_t got = 1;

    while (status == OAR_OK && got > 0 && v.count <= MOST_BYTES) {
        status = oari_vec_reserve(&v, 1 << 16);
        if (status != OAR_OK)
            break;
        got = fread(v.data + v.count, 1, 1 << 16, file);
        v.count += (int64_t)got;
    }
    if (status == OAR_OK && ferror(file))
        status = oari_fail(OAR_E_SYSTEM, "read %s", path);
    if (status != OAR_OK)
        oari_vec_free(&v);
    *text = v.data;
    *bytes = (size_t)v.count;
    return status;
}

oar_status oar_schedule_load(const char *path, const oar_schedule_opts *opts,
                             oar_schedule **schedule)
{
    oar_status status;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file;

    if (path == NULL)
        return oari_fail(OAR_E_ARG, "no path of a schedule");
    file = fopen(path, "rbe");
    if (file == NULL)
        return oari_fail(OAR_E_SYSTEM, "open %s", path);
    status = read_file(file, path, &text, &bytes);
    fclose(file);
    if (status == OAR_OK)
        status = oar_schedule_parse(text, bytes, opts, schedule);
    oari_free(text);
    return status;
}
