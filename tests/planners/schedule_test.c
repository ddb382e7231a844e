/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of every kind: equal to PyTorch's, sound for all sizes, with the
 * times and the memory that the literature gives for them; and their texts. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include <oarsong/memory.h>
#include <oarsong/schedule.h>

#include "support/last_error.h"
#include "support/leak_check.h"

enum { TEXT = 1 << 20 };

static oar_schedule *make(oar_schedule_kind kind, int ranks, int micro,
                          int chunks)
{
    oar_schedule *s = NULL;

    OK(oar_schedule_make(kind, ranks, micro,
                         OAR_OPTS(oar_schedule_opts, .chunks = chunks), &s));
    return s;
}

static oar_schedule *parse(const char *text)
{
    oar_schedule *s = NULL;

    OK(oar_schedule_parse(text, strlen(text), NULL, &s));
    return s;
}

/* ---- PyTorch's ----------------------------------------------------------- */

static uint64_t fnv(const char *text)
{
    uint64_t value = 0xcbf29ce484222325u;

    for (; *text != '\0'; text++)
        value = (value ^ (unsigned char)*text) * 0x100000001b3u;
    return value;
}

static oar_schedule_kind kind_named(const char *word)
{
    for (int k = 0; k < OAR_SCHEDULE_KINDS; k++)
        if (strcmp(oar_schedule_kind_name((oar_schedule_kind)k), word) == 0)
            return (oar_schedule_kind)k;
    fail_msg("no kind is called %s", word);
    return OAR_SCHEDULE_GPIPE;
}

static FILE *open_golden(void)
{
    const char *root = getenv("OARSONG_SOURCE_DIR");
    char path[1024];
    FILE *file;

    snprintf(path, sizeof path, "%s/tests/golden/schedules.golden",
             root != NULL ? root : ".");
    file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

/* The rows of a golden text must be ours, one by one. */
static void compare_rows(FILE *file, int rows, const char *text)
{
    static char line[TEXT];

    for (int r = 0; r < rows; r++, text += strlen(line)) {
        assert_non_null(fgets(line, sizeof line, file));
        assert_memory_equal(text, line, strlen(line));
    }
}

static void every_kind_is_what_torch_makes(void **state)
{
    static char text[TEXT];
    FILE *file = open_golden();
    int ranks, micro, chunks, rows, cases = 0;
    unsigned long long hash;
    char word[32];

    while (fscanf(file, "%31s %d %d %d %llx %d\n", word, &ranks, &micro,
                  &chunks, &hash, &rows) == 6) {
        oar_schedule *s = make(kind_named(word), ranks, micro, chunks);

        assert_true(oar_schedule_text(s, 0, text, sizeof text) < sizeof text);
        compare_rows(file, rows, text);
        if (fnv(text) != hash)
            fail_msg("%s of %d ranks, %d micro-batches, %d chunks differs",
                     word, ranks, micro, chunks);
        oar_schedule_release(s);
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 457);
}

/* ---- all sizes ----------------------------------------------------------- */

typedef struct wanted {
    double time;   /* NAN: no formula */
    int in_flight; /* -1: no formula */
} wanted;

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Time at F = I = W = 1 a rank, and the most that a rank holds, in stages. */
static wanted formula(oar_schedule_kind kind, int p, int m, int v)
{
    switch (kind) {
    case OAR_SCHEDULE_GPIPE: return (wanted){ 3 * m + 3 * (p - 1), m };
    case OAR_SCHEDULE_1F1B: return (wanted){ 3 * m + 3 * (p - 1), least(m, p) };
    case OAR_SCHEDULE_INTERLEAVED:
        return m % p == 0 ? (wanted){ 3 * m + 3. * (p - 1) / v,
                                      least(m * v, (v + 1) * p - 1) }
                          : (wanted){ NAN, -1 };
    case OAR_SCHEDULE_LOOPED_BFS:
        return (wanted){ m >= p ? 3 * m + 3. * (p - 1) / v : NAN, m * v };
    case OAR_SCHEDULE_ZB_H1:
        return (wanted){ m >= p ? 3 * m + p - 1 : NAN, least(m, p) };
    case OAR_SCHEDULE_ZB_V:
        return (wanted){ m >= 2 * p - 1 ? 3 * m + (p - 1) / 2. : NAN,
                         least(2 * m, 2 * p) };
    case OAR_SCHEDULE_DUALPIPE_V:
        return (wanted){ 3 * m + (p - 1) / 2., p > 1 ? 2 * p + 1 : -1 };
    }
    return (wanted){ NAN, -1 };
}

static oar_schedule_report report_of(const oar_schedule *s, double part)
{
    oar_schedule_report report = oar_schedule_report_init();
    oar_schedule_cost cost = oar_schedule_cost_init();
    static double each[256];

    for (int i = 0; i < oar_schedule_stages(s); i++)
        each[i] = part;
    cost.forward = cost.inputs = cost.weights = each;
    OK(oar_schedule_check(s, &cost, &report));
    return report;
}

/* Writes, reads and writes again, with and without messages. */
static void check_text(const oar_schedule *s)
{
    static char text[TEXT], again[TEXT];

    for (int all = 0; all < 2; all++) {
        size_t bytes = oar_schedule_text(s, all, text, sizeof text);
        oar_schedule *read;

        assert_true(bytes < sizeof text);
        assert_int_equal(bytes, strlen(text));
        read = parse(text);
        oar_schedule_text(read, all, again, sizeof again);
        assert_string_equal(text, again);
        OK(oar_schedule_check(read, NULL, NULL));
        oar_schedule_release(read);
    }
}

static void check_size(oar_schedule_kind kind, int p, int m, int v)
{
    oar_schedule *s = make(kind, p, m, v);
    oar_schedule_report r = report_of(s, 1. / v);
    wanted want = formula(kind, p, m, v);

    assert_int_equal(oar_schedule_ranks(s), p);
    assert_int_equal(oar_schedule_stages(s), p * v);
    assert_int_equal(oar_schedule_micro(s), m);
    assert_true(r.ascending);
    if (!isnan(want.time) && fabs(r.time - want.time) > 1e-9 * r.time)
        fail_msg("%s of %d ranks, %d micro-batches, %d chunks takes %g, not %g",
                 oar_schedule_kind_name(kind), p, m, v, r.time, want.time);
    assert_true(r.time > 3 * m - 1e-9 && r.time < 3 * m + 3 * (p - 1) + 1e-9);
    assert_true(fabs(r.bubble - (1 - 3 * m / r.time)) < 1e-9);
    if (want.in_flight >= 0)
        assert_int_equal(r.in_flight, want.in_flight);
    assert_int_equal(r.most_bytes, r.in_flight); /* 1 each */
    if (p < 5 && m < 10)
        check_text(s);
    oar_schedule_release(s);
}

static void check_sizes(int p, int m)
{
    check_size(OAR_SCHEDULE_GPIPE, p, m, 1);
    check_size(OAR_SCHEDULE_1F1B, p, m, 1);
    check_size(OAR_SCHEDULE_ZB_H1, p, m, 1);
    check_size(OAR_SCHEDULE_ZB_V, p, m, 2);
    if (m >= 2 * p)
        check_size(OAR_SCHEDULE_DUALPIPE_V, p, m, 2);
    for (int v = 1; v <= 4; v++) {
        check_size(OAR_SCHEDULE_INTERLEAVED, p, m, v);
        check_size(OAR_SCHEDULE_LOOPED_BFS, p, m, v);
    }
}

static void every_schedule_is_sound(void **state)
{
    for (int p = 1; p <= 16; p++)
        for (int m = 1; m <= 40; m++)
            check_sizes(p, m);
}

static void large_schedules_are_sound(void **state)
{
    check_size(OAR_SCHEDULE_INTERLEAVED, 64, 250, 4);
    check_size(OAR_SCHEDULE_ZB_V, 64, 256, 2);
}

/* ---- messages ------------------------------------------------------------ */

static void check_full_text(oar_schedule_kind kind, int ahead, const char *want)
{
    oar_schedule *s = NULL;
    char text[1024];

    OK(oar_schedule_make(kind, 2, 2,
                         OAR_OPTS(oar_schedule_opts, .ahead = ahead), &s));
    oar_schedule_text(s, 1, text, sizeof text);
    assert_string_equal(text, want);
    oar_schedule_release(s);
}

static void messages_are_put_in(void **state)
{
    check_full_text(OAR_SCHEDULE_1F1B, -1,
                    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
    check_full_text(OAR_SCHEDULE_1F1B, 0,
                    "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0RECV_B1,0B0,0B1\n"
                    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
    /* a gradient's receive never comes before the F of its micro-batch */
    check_full_text(OAR_SCHEDULE_1F1B, 9,
                    "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0RECV_B1,0B0,0B1\n"
                    "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

/* Stages 1 and 2 are both on rank 1: they pass nothing by message. */
static void neighbouring_stages_on_one_rank_send_nothing(void **state)
{
    check_full_text(
        OAR_SCHEDULE_ZB_V, -1,
        "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3I0,3SEND_B0,3W0,3RECV_F1,3F1,"
        "3I1,3SEND_B1,3W1,0RECV_B0,0I0,0W0,0RECV_B1,0I1,0W1\n"
        "1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1,2RECV_B0,2I0,2W0,"
        "1I0,1SEND_B0,1W0,2RECV_B1,2I1,2W1,1I1,1SEND_B1,1W1\n");
}

/* ---- memory and time ----------------------------------------------------- */

/* Counted by hand. Rank 0 holds two micro-batches, and has posted the receives
 * of both gradients in B of the first: 2 x 100 + 7 + 7. Rank 1 holds one, with
 * what has come for it: 1000, a message of 7 that it has posted and one that it
 * sends. */
static void memory_is_that_of_activations_and_messages(void **state)
{
    oar_schedule_report r = oar_schedule_report_init();
    oar_schedule_cost cost = oar_schedule_cost_init();
    oar_schedule *s = make(OAR_SCHEDULE_1F1B, 2, 2, 1);
    uint64_t held[] = { 100, 1000 }, half[] = { 30, 4000 },
             message[] = { 7, 9 };

    cost.held = held;
    cost.half = half;
    OK(oar_schedule_check(s, &cost, &r));
    assert_int_equal(r.most_bytes, 1000);
    assert_int_equal(r.most_rank, 1);
    cost.message = message;
    OK(oar_schedule_check(s, &cost, &r));
    assert_int_equal(r.most_bytes, 1000 + 7 + 7);
    held[1] = 1;
    OK(oar_schedule_check(s, &cost, &r));
    assert_int_equal(r.most_bytes, 2 * 100 + 7 + 7);
    assert_int_equal(r.most_rank, 0);
    oar_schedule_release(s);

    /* zb_h1: rank 1 keeps one weights half back */
    s = make(OAR_SCHEDULE_ZB_H1, 2, 3, 1);
    cost.message = NULL;
    held[1] = 1000;
    OK(oar_schedule_check(s, &cost, &r));
    assert_int_equal(r.most_bytes, 4000 + 4000);
    oar_schedule_release(s);
}

/* F 2, I 3, W 4 on stage 0; F 5, I 1, W 2 on stage 1; a hop of 10: F0 ends at
 * 2, arrives at 12, F 17, B 20, arrives at 30, B 37. */
static void time_is_that_of_the_longest_chain(void **state)
{
    oar_schedule_report r = oar_schedule_report_init();
    oar_schedule *s = make(OAR_SCHEDULE_GPIPE, 2, 1, 1);

    OK(oar_schedule_check(s,
                          OAR_OPTS(oar_schedule_cost,
                                   .forward = (double[]){ 2, 5 },
                                   .inputs = (double[]){ 3, 1 },
                                   .weights = (double[]){ 4, 2 }, .hop = 10),
                          &r));
    assert_true(r.time == 37);
    assert_true(fabs(r.bubble - (1 - 17 / (2 * 37.))) < 1e-12);
    assert_fails_with(
        oar_schedule_check(
            s, OAR_OPTS(oar_schedule_cost, .inputs = (double[]){ 3, NAN }), &r),
        OAR_E_ARG, "the cost of I of stage 1 is");
    assert_fails_with(
        oar_schedule_check(s, OAR_OPTS(oar_schedule_cost, .hop = -1), &r),
        OAR_E_ARG, "the cost of a message is -1");
    oar_schedule_release(s);
}

static void gradients_in_another_order_are_told(void **state)
{
    oar_schedule_report r = oar_schedule_report_init();
    oar_schedule *s = parse("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0");

    OK(oar_schedule_check(s, NULL, &r));
    assert_false(r.ascending);
    oar_schedule_release(s);
}

static void evaluation_only_goes_forward(void **state)
{
    for (int k = 0; k < OAR_SCHEDULE_KINDS; k++) {
        oar_schedule_report r = oar_schedule_report_init();
        oar_schedule *s = NULL;
        char text[4096];

        OK(oar_schedule_make((oar_schedule_kind)k, 3, 7,
                             OAR_OPTS(oar_schedule_opts, .forward_only = 1),
                             &s));
        OK(oar_schedule_check(s, NULL, &r));
        assert_int_equal(r.in_flight, 1);
        oar_schedule_text(s, 1, text, sizeof text);
        assert_null(strpbrk(text, "BIW"));
        oar_schedule_release(s);
    }
}

/* ---- cases of the original ----------------------------------------------- */

/* Forward, stage s has micro-batch t - s at tick t. */
static void at_each_tick_a_stage_has_its_micro_batch(void **state)
{
    static const oar_schedule_kind kinds[] = { OAR_SCHEDULE_GPIPE,
                                               OAR_SCHEDULE_1F1B };

    for (int k = 0; k < 2; k++) {
        oar_schedule *s = NULL;
        char *text = NULL;

        OK(oar_schedule_make(kinds[k], 4, 4,
                             OAR_OPTS(oar_schedule_opts, .forward_only = 1),
                             &s));
        OK(oar_schedule_draw(s, NULL, OAR_PICTURE_TEXT, &text));
        assert_string_equal(text, "rank 0 |0123   |\n"
                                  "rank 1 | 0123  |\n"
                                  "rank 2 |  0123 |\n"
                                  "rank 3 |   0123|\n");
        oar_free(text);
        oar_schedule_release(s);
    }
}

/* Its 1F1B was GPipe: the kind was stored and never looked at. */
static void gpipe_and_1f1b_are_not_the_same(void **state)
{
    oar_schedule *a = make(OAR_SCHEDULE_GPIPE, 2, 4, 1);
    oar_schedule *b = make(OAR_SCHEDULE_1F1B, 2, 4, 1);
    char text[2][256];

    assert_int_equal(oar_schedule_micro(a), 4);
    oar_schedule_text(a, 0, text[0], sizeof text[0]);
    oar_schedule_text(b, 0, text[1], sizeof text[1]);
    assert_string_not_equal(text[0], text[1]);
    assert_true(report_of(b, 1).in_flight < report_of(a, 1).in_flight);
    oar_schedule_release(a);
    oar_schedule_release(b);
}

/* Its target for 4 stages and 8 micro-batches: ranks work 70 % of the time. */
static void four_stages_and_eight_micro_batches_are_busy(void **state)
{
    oar_schedule *a = make(OAR_SCHEDULE_1F1B, 4, 8, 1);
    oar_schedule *b = make(OAR_SCHEDULE_ZB_H1, 4, 8, 1);

    assert_true(fabs(1 - report_of(a, 1).bubble - 8. / 11) < 1e-9);
    assert_true(fabs(1 - report_of(b, 1).bubble - 8. / 9) < 1e-9);
    oar_schedule_release(a);
    oar_schedule_release(b);
}

/* ---- the calls ----------------------------------------------------------- */

static void what_cannot_be_made_is_refused(void **state)
{
    oar_schedule *s = NULL;

    assert_fails_with(oar_schedule_make(OAR_SCHEDULE_GPIPE, 2, 0, NULL, &s),
                      OAR_E_ARG, "a schedule of 0 micro-batches");
    assert_fails_with(oar_schedule_make(OAR_SCHEDULE_GPIPE, 0, 2, NULL, &s),
                      OAR_E_ARG, "a schedule of 0 ranks");
    assert_fails_with(
        oar_schedule_make(OAR_SCHEDULE_DUALPIPE_V, 3, 5, NULL, &s), OAR_E_ARG,
        "needs at least 6 micro-batches, not 5");
    assert_fails_with(
        oar_schedule_make(OAR_SCHEDULE_1F1B, 2, 2,
                          OAR_OPTS(oar_schedule_opts, .chunks = 2), &s),
        OAR_E_ARG, "1f1b with 2 stages on each rank: it has 1");
    assert_fails_with(
        oar_schedule_make(OAR_SCHEDULE_INTERLEAVED, 2, 2,
                          OAR_OPTS(oar_schedule_opts, .chunks = -1), &s),
        OAR_E_ARG, "interleaved with -1 stages");
    assert_fails_with(
        oar_schedule_make(OAR_SCHEDULE_1F1B, 2, 2,
                          OAR_OPTS(oar_schedule_opts, .ahead = 65), &s),
        OAR_E_ARG, "at most 64");
    assert_fails_with(
        oar_schedule_make(OAR_SCHEDULE_GPIPE, 65536, 65536, NULL, &s),
        OAR_E_ARG, "16777216 actions");
    assert_fails_with(oar_schedule_make((oar_schedule_kind)7, 2, 2, NULL, &s),
                      OAR_E_ARG, "no kind 7");
    assert_fails_with(oar_schedule_make(OAR_SCHEDULE_GPIPE, 2, 2, NULL, NULL),
                      OAR_E_ARG, "nowhere");
    assert_null(s);
}

static void a_schedule_answers_questions(void **state)
{
    oar_schedule *s = make(OAR_SCHEDULE_ZB_V, 3, 4, 2), *same;
    const int rank_of[] = { 0, 1, 2, 2, 1, 0 };
    oar_action a;
    char five[5];

    for (int i = 0; i < 6; i++)
        assert_int_equal(oar_schedule_rank_of(s, i), rank_of[i]);
    assert_int_equal(oar_schedule_rank_of(s, 6), -1);
    assert_int_equal(oar_schedule_rank_of(s, -1), -1);
    OK(oar_schedule_action(s, 1, 0, &a));
    assert_int_equal(a.stage, 1);
    assert_int_equal(a.act, OAR_ACT_RECV_F);
    assert_int_equal(a.micro, 0);
    assert_int_equal(oar_schedule_actions(s, 3), -1);
    assert_fails_with(oar_schedule_action(s, 3, 0, &a), OAR_E_RANK,
                      "has no rank 3");
    assert_fails_with(oar_schedule_action(s, 0, oar_schedule_actions(s, 0), &a),
                      OAR_E_ARG, "there is no action");
    assert_true(oar_schedule_text(s, 0, five, sizeof five) > 100);
    assert_string_equal(five, "0F0,");
    same = oar_schedule_retain(s);
    oar_schedule_release(s);
    assert_int_equal(oar_schedule_micro(same), 4);
    oar_schedule_release(same);
    assert_string_equal(oar_schedule_kind_name((oar_schedule_kind)9), "?");
}

static void no_schedule_has_nothing(void **state)
{
    char text[8] = "before";

    assert_null(oar_schedule_retain(NULL));
    oar_schedule_release(NULL);
    assert_int_equal(oar_schedule_ranks(NULL), 0);
    assert_int_equal(oar_schedule_stages(NULL), 0);
    assert_int_equal(oar_schedule_micro(NULL), 0);
    assert_int_equal(oar_schedule_actions(NULL, 0), -1);
    assert_int_equal(oar_schedule_text(NULL, 0, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(oar_schedule_explain(NULL, text, sizeof text), 0);
    assert_fails_with(oar_schedule_check(NULL, NULL, NULL), OAR_E_ARG,
                      "no schedule");
}

static oar_status use_schedules(void *arg)
{
    oar_schedule_report r = oar_schedule_report_init();
    oar_schedule *s = NULL, *read = NULL;
    char text[4096];
    oar_status status;

    status =
        oar_schedule_make((oar_schedule_kind) * (int *)arg, 3, 7, NULL, &s);
    if (status == OAR_OK) {
        oar_schedule_text(s, 1, text, sizeof text);
        status = oar_schedule_parse(text, strlen(text), NULL, &read);
    }
    if (status == OAR_OK)
        status = oar_schedule_check(read, NULL, &r);
    oar_schedule_release(s);
    oar_schedule_release(read);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    for (int k = 0; k < OAR_SCHEDULE_KINDS; k++)
        fail_each_allocation(use_schedules, &k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_what_torch_makes),
        cmocka_unit_test(every_schedule_is_sound),
        cmocka_unit_test(large_schedules_are_sound),
        cmocka_unit_test(messages_are_put_in),
        cmocka_unit_test(neighbouring_stages_on_one_rank_send_nothing),
        cmocka_unit_test(memory_is_that_of_activations_and_messages),
        cmocka_unit_test(time_is_that_of_the_longest_chain),
        cmocka_unit_test(gradients_in_another_order_are_told),
        cmocka_unit_test(evaluation_only_goes_forward),
        cmocka_unit_test(at_each_tick_a_stage_has_its_micro_batch),
        cmocka_unit_test(gpipe_and_1f1b_are_not_the_same),
        cmocka_unit_test(four_stages_and_eight_micro_batches_are_busy),
        cmocka_unit_test(what_cannot_be_made_is_refused),
        cmocka_unit_test(a_schedule_answers_questions),
        cmocka_unit_test(no_schedule_has_nothing),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
