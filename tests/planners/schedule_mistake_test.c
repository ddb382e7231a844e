/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules that cannot run are refused, and no others: from sound ones, with
 * one action dropped, doubled, moved or swapped at a time. The judge is a small
 * executor that runs the rows with mailboxes; nothing of the library takes part
 * in it. And texts that are no schedules. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <oarsong/schedule.h>

#include "support/last_error.h"
#include "support/leak_check.h"

enum { RANKS = 4, ROW = 128, STAGES = 12, MICRO = 8, TEXT = 1 << 16 };

typedef struct rows {
    int ranks, given; /* given: with messages */
    int count[RANKS];
    oar_action row[RANKS][ROW];
} rows;

/* ---- the judge ----------------------------------------------------------- */

typedef struct executor {
    const rows *r;
    int stages, micro;
    int owner[STAGES];
    unsigned char did[STAGES][MICRO][8];
} executor;

static int is_in(const executor *e, int stage)
{
    return stage >= 0 && stage < e->stages;
}

/* Whether a stage's result or gradient for `micro` has reached the rank of a
 * neighbouring stage. */
static int has_arrived(const executor *e, int from, int to, int micro,
                       int forward)
{
    const unsigned char *there = e->did[from][micro];
    int made =
        forward ? there[OAR_ACT_F] : there[OAR_ACT_B] || there[OAR_ACT_I];

    if (e->owner[from] == e->owner[to] || !e->r->given)
        return made;
    return there[forward ? OAR_ACT_SEND_F : OAR_ACT_SEND_B] &&
           e->did[to][micro][forward ? OAR_ACT_RECV_F : OAR_ACT_RECV_B];
}

/* Whether an action could be done now: 1 yes, 0 not yet, -1 never. */
static int possible(const executor *e, const oar_action *a)
{
    const unsigned char *did = e->did[a->stage][a->micro];
    int peer = a->act == OAR_ACT_SEND_F || a->act == OAR_ACT_RECV_B
                   ? a->stage + 1
                   : a->stage - 1;
    int back = did[OAR_ACT_B] || did[OAR_ACT_I];

    if (did[a->act])
        return -1;
    switch (a->act) {
    case OAR_ACT_F:
        return a->stage == 0 ||
               has_arrived(e, a->stage - 1, a->stage, a->micro, 1);
    case OAR_ACT_B:
    case OAR_ACT_I:
        if (!did[OAR_ACT_F] || back)
            return -1;
        return a->stage == e->stages - 1 ||
               has_arrived(e, a->stage + 1, a->stage, a->micro, 0);
    case OAR_ACT_W: return did[OAR_ACT_I] ? 1 : -1;
    default: break;
    }
    if (!is_in(e, peer) || e->owner[peer] == e->owner[a->stage])
        return -1;
    if (a->act == OAR_ACT_SEND_F)
        return did[OAR_ACT_F] ? 1 : -1;
    if (a->act == OAR_ACT_SEND_B)
        return back ? 1 : -1;
    return 1; /* a receive only posts */
}

static void find_owners(executor *e)
{
    memset(e->owner, 0xff, sizeof e->owner);
    for (int r = 0; r < e->r->ranks; r++)
        for (int i = 0; i < e->r->count[r]; i++) {
            const oar_action *a = &e->r->row[r][i];

            e->stages = a->stage < e->stages ? e->stages : a->stage + 1;
            e->micro = a->micro < e->micro ? e->micro : a->micro + 1;
            if (e->owner[a->stage] < 0)
                e->owner[a->stage] = r;
        }
}

/* Whether everything was done that a step needs. */
static int is_complete(const executor *e)
{
    for (int s = 0; s < e->stages; s++)
        for (int m = 0; m < e->micro; m++) {
            const unsigned char *did = e->did[s][m];

            if (!did[OAR_ACT_F] ||
                (!did[OAR_ACT_B] && !(did[OAR_ACT_I] && did[OAR_ACT_W])))
                return 0;
        }
    return 1;
}

/* Whether the rows run to their ends. */
static int can_run(const rows *r)
{
    executor e = { .r = r };
    int at[RANKS] = { 0 }, moved = 1;

    find_owners(&e);
    while (moved) {
        moved = 0;
        for (int rank = 0; rank < r->ranks; rank++)
            while (at[rank] < r->count[rank]) {
                const oar_action *a = &r->row[rank][at[rank]];
                int now = e.owner[a->stage] == rank ? possible(&e, a) : -1;

                if (now < 0)
                    return 0;
                if (now == 0)
                    break;
                e.did[a->stage][a->micro][a->act] = 1;
                at[rank]++;
                moved = 1;
            }
    }
    for (int rank = 0; rank < r->ranks; rank++)
        if (at[rank] < r->count[rank])
            return 0;
    return is_complete(&e);
}

/* ---- the library's word -------------------------------------------------- */

static const char *notation(oar_act act)
{
    static const char *const names[] = {
        "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"
    };

    return names[act];
}

static void print_rows(const rows *r, char *text)
{
    for (int rank = 0; rank < r->ranks; rank++) {
        for (int i = 0; i < r->count[rank]; i++) {
            const oar_action *a = &r->row[rank][i];

            text += sprintf(text, "%s%d%s%d", i > 0 ? "," : "", a->stage,
                            notation(a->act), a->micro);
        }
        text += sprintf(text, "\n");
    }
}

/* Returns where an action is in a row, -1 if it is not there. */
static int find_action(const rows *r, int rank, const char *name)
{
    char text[64];

    for (int i = 0; i < r->count[rank]; i++) {
        const oar_action *a = &r->row[rank][i];

        snprintf(text, sizeof text, "%d%s%d", a->stage, notation(a->act),
                 a->micro);
        if (strcmp(text, name) == 0)
            return i;
    }
    return -1;
}

/* Follows a circle: each rank waits for an action that the next one runs later
 * than the one at which it waits, and the last waits for the first. */
static void follow_circle(const rows *r, const char *why)
{
    int rank, place, other, first = -1, last = -1;
    char at[32], needed[32], after[32], before[32] = "", begin[32] = "";

    for (const char *clause = why; clause != NULL;
         clause = strchr(clause, ';'), clause = clause ? clause + 2 : NULL) {
        if (sscanf(clause,
                   "rank %d at %31s (%d%*[a-z]) waits for %31[^,], which rank "
                   "%d runs after %31[^;]",
                   &rank, at, &place, needed, &other, after) != 6)
            fail_msg("\"%s\" is no circle", why);
        assert_int_equal(find_action(r, rank, at), place - 1);
        assert_true(find_action(r, other, needed) >
                        find_action(r, other, after) ||
                    strcmp(needed, after) == 0);
        if (first < 0) {
            first = rank;
            strcpy(begin, at);
        } else {
            assert_int_equal(rank, last);
            assert_string_equal(at, before);
        }
        last = other;
        strcpy(before, after);
    }
    assert_int_equal(last, first);
    assert_string_equal(before, begin);
}

static int circles;

static int is_accepted(const rows *r, char *text)
{
    static char why[TEXT];
    oar_schedule *s = NULL;
    oar_status status;
    size_t length;

    print_rows(r, text);
    OK(oar_schedule_parse(text, strlen(text), NULL, &s));
    status = oar_schedule_check(s, NULL, NULL);
    length = oar_schedule_explain(s, why, sizeof why);
    assert_int_equal(length, strlen(why));
    assert_true((status == OAR_OK) == (length == 0));
    if (strstr(why, " waits for ") != NULL) {
        follow_circle(r, why);
        circles++;
    }
    oar_schedule_release(s);
    return status == OAR_OK;
}

/* ---- mistakes ------------------------------------------------------------ */

typedef struct judgements {
    int accepted, refused;
} judgements;

static void compare(const rows *r, judgements *t)
{
    static char text[TEXT];
    int accepted = is_accepted(r, text), wanted = can_run(r);

    if (accepted != wanted)
        fail_msg("%s can%s run: %s\n%s", accepted ? "accepted, but it" : "it",
                 wanted ? "" : "not", oar_last_error_text(), text);
    t->accepted += accepted;
    t->refused += !accepted;
}

static void remove_at(rows *r, int rank, int i)
{
    oar_action *row = r->row[rank];

    memmove(row + i, row + i + 1, (size_t)(--r->count[rank] - i) * sizeof *row);
}

static void insert_at(rows *r, int rank, int i, oar_action a)
{
    oar_action *row = r->row[rank];

    assert_true(r->count[rank] < ROW);
    memmove(row + i + 1, row + i, (size_t)(r->count[rank]++ - i) * sizeof *row);
    row[i] = a;
}

/* Drops the action, doubles it, and gives it to another rank. */
static void mistreat_action(const rows *sound, int rank, int i, judgements *t)
{
    oar_action a = sound->row[rank][i];
    rows r = *sound;

    remove_at(&r, rank, i);
    compare(&r, t);
    if (r.ranks > 1 && r.count[rank] > 0) {
        int other = (rank + 1) % r.ranks;

        insert_at(&r, other, i < r.count[other] ? i : r.count[other], a);
        compare(&r, t);
    }
    r = *sound;
    insert_at(&r, rank, i + 1, a);
    compare(&r, t);
    r = *sound;
    r.row[rank][i].micro = (a.micro + 1) % MICRO;
    compare(&r, t);
    r = *sound;
    r.row[rank][i].stage = a.stage > 0 ? a.stage - 1 : a.stage + 1;
    compare(&r, t);
    r = *sound;
    r.row[rank][i].act = (oar_act)((a.act + 1) % (sound->given ? 8 : 4));
    compare(&r, t);
}

/* Swaps the action with each that comes later in its row, and moves it behind
 * it. */
static void misplace_action(const rows *sound, int rank, int i, judgements *t)
{
    for (int k = i + 1; k < sound->count[rank]; k++) {
        oar_action a = sound->row[rank][i];
        rows r = *sound;

        r.row[rank][i] = r.row[rank][k];
        r.row[rank][k] = a;
        compare(&r, t);
        r = *sound;
        remove_at(&r, rank, i);
        insert_at(&r, rank, k, a);
        compare(&r, t);
    }
}

static rows rows_of(oar_schedule_kind kind, int ranks, int micro, int all)
{
    oar_schedule *s = NULL;
    rows r = { .ranks = ranks, .given = all };

    OK(oar_schedule_make(kind, ranks, micro, NULL, &s));
    for (int rank = 0; rank < ranks; rank++)
        for (int64_t i = 0; i < oar_schedule_actions(s, rank); i++) {
            oar_action a;

            OK(oar_schedule_action(s, rank, i, &a));
            a.joined = 0;
            if (all || a.act <= OAR_ACT_W)
                insert_at(&r, rank, r.count[rank], a);
        }
    oar_schedule_release(s);
    return r;
}

static void every_mistake_is_found_and_nothing_else(void **state)
{
    judgements t = { 0, 0 };

    circles = 0;
    for (int k = 0; k < OAR_SCHEDULE_KINDS; k++)
        for (int all = 0; all < 2; all++)
            for (int ranks = 1; ranks <= 3; ranks++) {
                int dual = k == OAR_SCHEDULE_DUALPIPE_V;
                rows r = rows_of((oar_schedule_kind)k, ranks,
                                 dual         ? 2 * ranks
                                 : ranks == 3 ? 4
                                              : 3,
                                 all);

                compare(&r, &t);
                for (int rank = 0; rank < ranks; rank++)
                    for (int i = 0; i < r.count[rank]; i++) {
                        mistreat_action(&r, rank, i, &t);
                        misplace_action(&r, rank, i, &t);
                    }
            }
    assert_true(t.accepted > 1000);
    assert_true(t.refused > 10000);
    assert_true(circles > 1000);
}

/* ---- sentences ----------------------------------------------------------- */

static void refuses(const char *text, const char *reason)
{
    oar_schedule *s = NULL;
    char why[1024];

    OK(oar_schedule_parse(text, strlen(text), NULL, &s));
    assert_fails_with(oar_schedule_check(s, NULL, NULL), OAR_E_ARG,
                      "the schedule cannot run: ");
    oar_schedule_explain(s, why, sizeof why);
    assert_string_equal(why, reason);
    assert_last_error_has(reason);
    oar_schedule_release(s);
}

static void a_circle_is_named(void **state)
{
    refuses("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            "rank 0 at 0B0 (2nd) waits for 1B0, which rank 1 runs after 1F1; "
            "rank 1 at 1F1 (2nd) waits for 0F1, which rank 0 runs after 0B0");
    refuses("1F0,0F0,1B0,0B0",
            "rank 0 at 1F0 (1st) waits for 0F0, which rank 0 runs after 1F0");
    refuses("0F0,0F1,0SEND_F1,0RECV_B0,0B0,0SEND_F0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1",
            "rank 0 at 0B0 (5th) waits for 1SEND_B0, which rank 1 runs after "
            "1F0; rank 1 at 1F0 (2nd) waits for 0SEND_F0, which rank 0 runs "
            "after 0B0");
}

/* Each of 16 ranks wants to begin with its second stage: the circle goes
 * through all of them, and is longer than the text of an error. */
static void a_long_circle_is_told_in_full(void **state)
{
    enum { MANY = 16 };
    char text[1024], why[4096], clause[128];
    oar_schedule *s = NULL;
    int at = 0;

    for (int r = 0; r < MANY; r++)
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "%dF0,%dF0,%dB0,%dB0\n", MANY + r, r, MANY + r, r);
    OK(oar_schedule_parse(text, (size_t)at, NULL, &s));
    assert_fails_with(oar_schedule_check(s, NULL, NULL), OAR_E_ARG,
                      "... (oar_schedule_explain has the rest)");
    assert_true(oar_schedule_explain(s, why, sizeof why) > 512);
    for (int r = 0; r < MANY; r++) {
        int before = (r + MANY - 1) % MANY;

        snprintf(clause, sizeof clause,
                 "rank %d at %dF0 (1st) waits for %dF0, which rank %d runs "
                 "after %dF0",
                 r, MANY + r, MANY + r - 1, before, MANY + before);
        assert_non_null(strstr(why, clause));
    }
    oar_schedule_release(s);
}

static void what_is_wrong_in_a_row_is_named(void **state)
{
    refuses("0F0,0F0,0B0", "rank 0 at 0F0 (2nd): it has run before");
    refuses("0F0,0B0,0F1", "rank 0 never runs 0B1");
    refuses("0F0,0B0,0B1", "rank 0 never runs 0F1");
    refuses("0B0,0F0",
            "rank 0 at 0B0 (1st): it needs 0F0, which comes later in its row");
    refuses("0F0,0W0,0I0",
            "rank 0 at 0W0 (2nd): it needs 0I0, which comes later in its row");
    refuses("0F0,0I0", "rank 0 never runs 0W0");
    refuses("0F0,0W0", "rank 0 never runs 0I0");
    refuses("0F0,0B0,0I0", "rank 0 at 0B0 (2nd): its row also has I of it");
    refuses("0F0,0B0\n0F1,0B1",
            "rank 1 at 0F1 (1st): stage 0 is on rank 0 already");
    refuses("0F0,0B0\n2F0,2B0", "stage 1 is on no rank");
    refuses("0F0,0B0\n\n1F0,1B0", "rank 1 has no action");
    refuses("0UNSHARD", "there is no micro-batch");
    refuses("65535F65535", "stage 0 is on no rank");
    refuses("0F65535,0B65535", "rank 0 never runs 0F0");
}

static void messages_without_their_other_end_are_named(void **state)
{
    refuses("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0",
            "rank 0 never runs 0SEND_F0");
    refuses("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0",
            "rank 1 never runs 1RECV_F0");
    refuses("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0",
            "rank 1 at 1F0 (1st): it needs 1RECV_F0, which comes later in its "
            "row");
    refuses("0F0,0SEND_F0,1F0,1B0,0B0",
            "rank 0 at 0SEND_F0 (2nd): there is no other rank to send it to");
    refuses("0RECV_F0,0F0,0B0",
            "rank 0 at 0RECV_F0 (1st): there is no other rank to receive it "
            "from");
}

static void shards_come_and_go_in_pairs(void **state)
{
    static const char good[] = "0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD,"
                               "0REDUCE_GRAD";
    oar_schedule *s = NULL;
    char text[256];

    OK(oar_schedule_parse(good, strlen(good), NULL, &s));
    OK(oar_schedule_check(s, NULL, NULL));
    oar_schedule_text(s, 1, text, sizeof text);
    assert_memory_equal(text, good, strlen(good));
    oar_schedule_release(s);
    refuses("0UNSHARD,0UNSHARD,0F0,0B0",
            "rank 0 at 0UNSHARD (2nd): the stage is whole already");
    refuses("0F0,0UNSHARD,0B0",
            "rank 0 at 0UNSHARD (2nd): the stage was used before");
    refuses("0F0,0RESHARD,0B0",
            "rank 0 at 0RESHARD (2nd): the stage is not whole");
    refuses("0UNSHARD,0F0,0RESHARD,0B0",
            "rank 0 at 0B0 (4th): the stage is not whole any more");
    refuses("0F0,0F1,0B0,0REDUCE_GRAD,0B1",
            "rank 0 at 0B1 (5th): the stage's gradients are reduced already");
}

/* ---- texts --------------------------------------------------------------- */

static void is_no_text(const char *text, oar_status status, const char *reason)
{
    oar_schedule *s = NULL;

    assert_fails_with(oar_schedule_parse(text, strlen(text), NULL, &s), status,
                      reason);
    assert_null(s);
}

static void texts_that_are_no_schedules_are_refused(void **state)
{
    is_no_text("", OAR_E_DATA, "a schedule without a row");
    is_no_text(" \n\r\n", OAR_E_DATA, "a schedule without a row");
    is_no_text("0F0xyz", OAR_E_DATA,
               "line 1, column 4 of a schedule: expected a comma or the end of "
               "the line, found \"xyz\"");
    is_no_text("F0", OAR_E_DATA, "column 1 of a schedule: expected a stage");
    is_no_text("0F0,\n1F", OAR_E_DATA,
               "line 2, column 3 of a schedule: expected a micro-batch, found "
               "\"\"");
    is_no_text("0F0,0G0", OAR_E_DATA, "column 6 of a schedule: expected F, B");
    is_no_text("0f0", OAR_E_DATA, "expected F, B");
    is_no_text("0UNSHARD3", OAR_E_DATA, "expected a comma");
    is_no_text("-1F0", OAR_E_DATA, "expected a stage, found \"-1F0\"");
    is_no_text("0F0;0B0", OAR_E_DATA, "expected a comma");
    is_no_text("0F0 0B0", OAR_E_DATA, "expected a comma");
    is_no_text("\"0F0\"", OAR_E_DATA, "expected a stage");
    is_no_text("(0F0;0B0", OAR_E_DATA, "expected a B and \")\"");
    is_no_text("(0F0;0B0)", OAR_E_DATA, "expected OVERLAP_F_B");
    is_no_text("(0B0;0F0)OVERLAP_F_B", OAR_E_DATA, "expected an F");
    is_no_text("(0F0)OVERLAP_F_B", OAR_E_DATA, "expected an F and \";\"");
    is_no_text("65536F0", OAR_E_ARG, "a number above 65535");
    is_no_text("0F99999999999999999999", OAR_E_ARG, "column 3");
    is_no_text("0F0\x01", OAR_E_DATA, "found \"\"");
}

static void a_text_has_an_end_and_a_limit(void **state)
{
    static const char text[] = "0F0,0B0";
    oar_schedule *s = NULL;
    char *many = malloc(65537);

    assert_fails_with(oar_schedule_parse(text, 6, NULL, &s), OAR_E_DATA,
                      "expected a micro-batch");
    assert_fails_with(oar_schedule_parse(text, (64 << 20) + 1, NULL, &s),
                      OAR_E_ARG, "at most 67108864");
    assert_fails_with(oar_schedule_parse(NULL, 0, NULL, &s), OAR_E_ARG,
                      "no text");
    assert_non_null(many);
    memset(many, '\n', 65537);
    many[65536] = ',';
    assert_fails_with(oar_schedule_parse(many, 65537, NULL, &s), OAR_E_ARG,
                      "more than 65536 ranks");
    free(many);
    assert_null(s);
}

/* Blanks, idle cells, line ends of other systems, and overlapped pairs. */
static void texts_of_torch_are_read(void **state)
{
    static const char text[] = " 0F0 ,, 0F1,\t(0F2;0B0)OVERLAP_F_B,0B1,0B2,\r\n"
                               ",1F0,1B0,1F1,1B1,1F2,1B2,,\r\n\r\n";
    oar_schedule *s = NULL;
    char again[256];

    OK(oar_schedule_parse(text, strlen(text), NULL, &s));
    OK(oar_schedule_check(s, NULL, NULL));
    oar_schedule_text(s, 0, again, sizeof again);
    assert_string_equal(again, "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"
                               "1F0,1B0,1F1,1B1,1F2,1B2\n");
    oar_schedule_release(s);
}

static void schedules_are_loaded_from_files(void **state)
{
    char folder[FOLDER_PATH], path[FOLDER_PATH + 16];
    oar_schedule *s = NULL;
    FILE *file;

    folder_make(folder);
    snprintf(path, sizeof path, "%s/a.csv", folder);
    assert_fails_with(oar_schedule_load(path, NULL, &s), OAR_E_SYSTEM, path);
    assert_fails_with(oar_schedule_load(folder, NULL, &s), OAR_E_SYSTEM,
                      folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("0F0,0B0\r\n1F0,1B0\r\n", file);
    fclose(file);
    OK(oar_schedule_load(path, NULL, &s));
    OK(oar_schedule_check(s, NULL, NULL));
    assert_int_equal(oar_schedule_ranks(s), 2);
    oar_schedule_release(s);
    assert_fails_with(oar_schedule_load(NULL, NULL, &s), OAR_E_ARG, "no path");
    assert_int_equal(folder_remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_found_and_nothing_else),
        cmocka_unit_test(a_circle_is_named),
        cmocka_unit_test(a_long_circle_is_told_in_full),
        cmocka_unit_test(what_is_wrong_in_a_row_is_named),
        cmocka_unit_test(messages_without_their_other_end_are_named),
        cmocka_unit_test(shards_come_and_go_in_pairs),
        cmocka_unit_test(texts_that_are_no_schedules_are_refused),
        cmocka_unit_test(a_text_has_an_end_and_a_limit),
        cmocka_unit_test(texts_of_torch_are_read),
        cmocka_unit_test(schedules_are_loaded_from_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
