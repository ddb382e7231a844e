/* SPDX-License-Identifier: Apache-2.0 */
/* What schedules are chosen by, and what they look like: the best of all kinds,
 * layers dealt to stages (compared with trying all ways), and the pictures. */
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

enum { CHOICES = 16 };

/* ---- best ---------------------------------------------------------------- */

typedef struct contest {
    oar_schedule *best;
    int count;
    oar_schedule_choice list[CHOICES];
} contest;

static contest hold(int ranks, int micro, int chunks,
                    const oar_schedule_cost *cost, uint64_t bytes)
{
    contest c = { NULL, CHOICES, { { 0 } } };

    for (int i = 0; i < CHOICES; i++)
        c.list[i] = oar_schedule_choice_init();
    OK(oar_schedule_best(ranks, micro, chunks, cost, bytes, &c.best, &c.count,
                         c.list));
    return c;
}

static const oar_schedule_choice *choice_of(const contest *c,
                                            oar_schedule_kind kind, int chunks)
{
    for (int i = 0; i < c->count; i++)
        if (c->list[i].kind == kind && c->list[i].chunks == chunks)
            return &c->list[i];
    fail_msg("%s was not tried", oar_schedule_kind_name(kind));
    return NULL;
}

/* Times at 1 for each half part of a rank: 3M + ... of the table, twice. */
static void all_kinds_are_tried(void **state)
{
    contest c = hold(4, 16, 2, NULL, 0);

    assert_int_equal(c.count, 7);
    assert_true(choice_of(&c, OAR_SCHEDULE_GPIPE, 1)->report.time == 2 * 57);
    assert_true(choice_of(&c, OAR_SCHEDULE_1F1B, 1)->report.time == 2 * 57);
    assert_true(choice_of(&c, OAR_SCHEDULE_ZB_H1, 1)->report.time == 2 * 51);
    assert_true(choice_of(&c, OAR_SCHEDULE_INTERLEAVED, 2)->report.time ==
                2 * 52.5);
    assert_true(choice_of(&c, OAR_SCHEDULE_ZB_V, 2)->report.time == 2 * 49.5);
    assert_int_equal(choice_of(&c, OAR_SCHEDULE_1F1B, 1)->report.most_bytes,
                     2 * 4);
    /* zb_v and dualpipe_v take as long; zb_v needs less */
    assert_int_equal(c.list[0].kind, OAR_SCHEDULE_ZB_V);
    assert_int_equal(c.list[1].kind, OAR_SCHEDULE_DUALPIPE_V);
    assert_int_equal(oar_schedule_stages(c.best), 8);
    for (int i = 1; i < c.count; i++)
        assert_true(c.list[i - 1].report.time <= c.list[i].report.time);
    oar_schedule_release(c.best);
}

static void chunks_that_divide_are_tried(void **state)
{
    contest c = hold(2, 3, 6, NULL, 0);

    choice_of(&c, OAR_SCHEDULE_INTERLEAVED, 2);
    choice_of(&c, OAR_SCHEDULE_LOOPED_BFS, 3);
    choice_of(&c, OAR_SCHEDULE_INTERLEAVED, 6);
    choice_of(&c, OAR_SCHEDULE_ZB_V, 2);
    assert_int_equal(c.count, 3 + 6 + 1); /* no dualpipe_v: 3 < 2 * 2 */
    oar_schedule_release(c.best);
    c = hold(2, 8, 1, NULL, 0);
    assert_int_equal(c.count, 3);
    oar_schedule_release(c.best);
}

/* What each part costs and keeps is added up for stages of several parts; what
 * a stage sends is what its last part does. */
static void parts_are_joined_to_stages(void **state)
{
    const double forward[] = { 1, 2, 3, 4 }, none[] = { 0, 0, 0, 0 };
    const uint64_t held[] = { 10, 20, 30, 40 }, message[] = { 1, 5, 1, 1 };
    contest c = hold(2, 1, 2,
                     OAR_OPTS(oar_schedule_cost, .forward = forward,
                              .inputs = none, .weights = none, .hop = 100,
                              .held = held, .message = message),
                     0);
    const oar_schedule_choice *gpipe = choice_of(&c, OAR_SCHEDULE_GPIPE, 1);

    assert_true(gpipe->report.time == 3 + 100 + 7 + 100);
    assert_int_equal(gpipe->report.most_bytes, 70 + 5 + 0);
    assert_int_equal(gpipe->report.most_rank, 1);
    oar_schedule_release(c.best);
}

static void what_does_not_fit_is_not_taken(void **state)
{
    oar_schedule *s = NULL;
    contest c = hold(4, 16, 2, NULL, 8);

    assert_int_equal(c.list[0].kind, OAR_SCHEDULE_ZB_V);
    assert_false(choice_of(&c, OAR_SCHEDULE_DUALPIPE_V, 2)->fits);
    assert_false(c.list[c.count - 1].fits);
    oar_schedule_release(c.best);
    assert_fails_with(oar_schedule_best(4, 16, 2, NULL, 7, &s, NULL, NULL),
                      OAR_E_ARG, "needs 7 bytes or less: zb_v needs 8");
    assert_null(s);
    assert_fails_with(oar_schedule_best(0, 16, 2, NULL, 0, &s, NULL, NULL),
                      OAR_E_ARG, "0 ranks with 2 parts each");
    assert_fails_with(oar_schedule_best(4, 0, 2, NULL, 0, &s, NULL, NULL),
                      OAR_E_ARG, "0 micro-batches");
    assert_fails_with(oar_schedule_best(4, 16, 2, NULL, 0, NULL, NULL, NULL),
                      OAR_E_ARG, "nowhere");
}

/* The times are those of a simulation in Python. */
static void the_best_depends_on_the_costs(void **state)
{
    double forward[8], inputs[8], weights[8];
    contest c;

    for (int i = 0; i < 8; i++) {
        forward[i] = 0.5;
        inputs[i] = 0.6;
        weights[i] = 0.4;
    }
    c = hold(4, 16, 2,
             OAR_OPTS(oar_schedule_cost, .forward = forward, .inputs = inputs,
                      .weights = weights),
             0);
    assert_int_equal(c.list[0].kind, OAR_SCHEDULE_ZB_V);
    assert_true(fabs(c.list[0].report.time - 49.8) < 1e-9);
    assert_true(fabs(choice_of(&c, OAR_SCHEDULE_DUALPIPE_V, 2)->report.time -
                     50.1) < 1e-9);
    assert_true(fabs(choice_of(&c, OAR_SCHEDULE_ZB_H1, 1)->report.time - 52.2) <
                1e-9);
    oar_schedule_release(c.best);
}

/* ---- balance ------------------------------------------------------------- */

static int is_dearer(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x < y) - (x > y);
}

/* The costs of stages, dearest first. */
static void sorted_costs(const double *cost, int stages, const int *count,
                         double *sum)
{
    for (int s = 0; s < stages; s++) {
        sum[s] = 0;
        for (int i = 0; i < count[s]; i++)
            sum[s] += *cost++;
    }
    qsort(sum, (size_t)stages, sizeof *sum, is_dearer);
}

static int compare_costs(const double *a, const double *b, int stages)
{
    for (int i = 0; i < stages; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

/* Goes through all ways to deal `left` layers to the stages from `stage` on. */
static void try_ways(const double *cost, int stages, int *count, int stage,
                     int left, double *best)
{
    double sum[8];

    if (stage == stages - 1) {
        count[stage] = left;
        sorted_costs(cost, stages, count, sum);
        if (best[0] < 0 || compare_costs(sum, best, stages) < 0)
            memcpy(best, sum, (size_t)stages * sizeof *best);
        return;
    }
    for (int n = 1; n <= left - (stages - 1 - stage); n++) {
        count[stage] = n;
        try_ways(cost, stages, count, stage + 1, left - n, best);
    }
}

static void layers_are_dealt_as_evenly_as_can_be(void **state)
{
    unsigned seed = 1;

    for (int round = 0; round < 400; round++) {
        int layers = 1 + round % 11, count[8], tried[8], sum = 0;
        int stages = 1 + round / 11 % (layers < 6 ? layers : 6);
        double cost[11], ours[8], best[8] = { -1 };

        for (int i = 0; i < layers; i++) {
            seed = seed * 1103515245u + 12345u;
            cost[i] = seed >> 16 & 15; /* whole numbers: sums are exact */
        }
        OK(oar_schedule_balance(layers, cost, stages, count));
        for (int s = 0; s < stages; s++) {
            assert_true(count[s] >= 1);
            sum += count[s];
        }
        assert_int_equal(sum, layers);
        try_ways(cost, stages, tried, 0, layers, best);
        sorted_costs(cost, stages, count, ours);
        assert_int_equal(compare_costs(ours, best, stages), 0);
    }
}

static void many_layers_are_dealt(void **state)
{
    static double cost[4096];
    int count[16];

    for (int i = 0; i < 4096; i++)
        cost[i] = 1 + i % 3;
    OK(oar_schedule_balance(4096, cost, 16, count));
    for (int s = 0; s < 16; s++)
        assert_in_range(count[s], 255, 257);
    assert_fails_with(oar_schedule_balance(4097, cost, 16, count), OAR_E_ARG,
                      "at most 4096");
    assert_fails_with(oar_schedule_balance(2, cost, 3, count), OAR_E_ARG,
                      "2 layers on 3 stages");
    assert_fails_with(oar_schedule_balance(2, cost, 0, count), OAR_E_ARG,
                      "2 layers on 0 stages");
    cost[1] = -1;
    assert_fails_with(oar_schedule_balance(2, cost, 2, count), OAR_E_ARG,
                      "the cost of layer 1 is -1");
    assert_fails_with(oar_schedule_balance(2, NULL, 2, count), OAR_E_ARG,
                      "no costs");
}

/* ---- pictures ------------------------------------------------------------ */

static char *draw(oar_schedule_kind kind, int ranks, int micro,
                  const oar_schedule_cost *cost, oar_picture picture)
{
    oar_schedule *s = NULL;
    char *text = NULL;

    OK(oar_schedule_make(kind, ranks, micro, NULL, &s));
    OK(oar_schedule_draw(s, cost, picture, &text));
    oar_schedule_release(s);
    return text;
}

static void check_picture(oar_schedule_kind kind, int ranks, int micro,
                          const oar_schedule_cost *cost, const char *want)
{
    char *text = draw(kind, ranks, micro, cost, OAR_PICTURE_TEXT);

    assert_string_equal(text, want);
    oar_free(text);
}

static void schedules_are_drawn_as_texts(void **state)
{
    check_picture(OAR_SCHEDULE_ZB_H1, 4, 8, NULL,
                  "rank 0 |0123   a.4b.5c.6d.7e.f.g.h.|\n"
                  "rank 1 | 012  a3b.4c.5d.6e.7f.g.h..|\n"
                  "rank 2 |  01 a2b3c.4d.5e.6f.7g.h...|\n"
                  "rank 3 |   0a1b2c3d.4e.5f.6g.7h....|\n");
    check_picture(OAR_SCHEDULE_GPIPE, 2, 2, NULL,
                  "rank 0 |01   aabb|\n"
                  "rank 1 | 01aabb  |\n");
    check_picture(OAR_SCHEDULE_ZB_V, 1, 1, NULL,
                  "rank 0 stage 0 |0   a.|\n"
                  "       stage 1 | 0a.  |\n");
    /* F twice as long as the shortest, which is a column */
    check_picture(OAR_SCHEDULE_GPIPE, 1, 1,
                  OAR_OPTS(oar_schedule_cost, .forward = (double[]){ 1 },
                           .inputs = (double[]){ 0.5 },
                           .weights = (double[]){ 0 }),
                  "rank 0 |00a|\n");
}

static void long_texts_are_not_wider_than_a_page(void **state)
{
    char *text = draw(OAR_SCHEDULE_1F1B, 2, 1000, NULL, OAR_PICTURE_TEXT);

    assert_int_equal(strcspn(text, "\n"), strlen("rank 0 ||") + 240);
    oar_free(text);
}

static int count_of(const char *text, const char *what)
{
    int count = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        count++;
    return count;
}

static void schedules_are_drawn_as_svg(void **state)
{
    char *text = draw(OAR_SCHEDULE_ZB_V, 2, 3, NULL, OAR_PICTURE_SVG);

    assert_memory_equal(text, "<svg ", 5);
    assert_int_equal(count_of(text, "<rect "), 4 * 3 * 3);
    assert_int_equal(count_of(text, "<g"), count_of(text, "</g>"));
    assert_int_equal(count_of(text, "<title>3I2</title>"), 1);
    assert_int_equal(count_of(text, ">rank "), 2);
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    oar_free(text);
}

static void schedules_are_drawn_as_traces(void **state)
{
    char *text =
        draw(OAR_SCHEDULE_GPIPE, 2, 2, OAR_OPTS(oar_schedule_cost, .hop = 0.25),
             OAR_PICTURE_CHROME);

    assert_int_equal(count_of(text, "\"ph\":\"X\""), 8);
    assert_int_equal(count_of(text, "\"thread_name\""), 2);
    assert_non_null(strstr(text,
                           "{\"name\":\"1F0\",\"ph\":\"X\",\"pid\":0,\"tid\":1,"
                           "\"ts\":1250.000,\"dur\":1000.000,\"args\":{"
                           "\"stage\":1,\"micro\":0}}"));
    oar_free(text);
}

static void what_cannot_run_is_not_drawn(void **state)
{
    oar_schedule *s = NULL;
    char *text = NULL;

    OK(oar_schedule_parse("0F0", 3, NULL, &s));
    OK(oar_schedule_draw(s, NULL, OAR_PICTURE_TEXT, &text));
    assert_string_equal(text, "rank 0 |0|\n");
    oar_free(text);
    oar_schedule_release(s);
    OK(oar_schedule_parse("0B0", 3, NULL, &s));
    text = NULL;
    assert_fails_with(oar_schedule_draw(s, NULL, OAR_PICTURE_TEXT, &text),
                      OAR_E_ARG, "cannot run: rank 0 never runs 0F0");
    assert_fails_with(oar_schedule_draw(s, NULL, (oar_picture)3, &text),
                      OAR_E_ARG, "no such picture");
    assert_null(text);
    oar_schedule_release(s);
}

static oar_status use_all(void *arg)
{
    oar_schedule *s = NULL;
    char *text = NULL;
    int count[2];
    oar_status status = oar_schedule_best(2, 4, 2, NULL, 0, &s, NULL, NULL);

    if (status == OAR_OK)
        status = oar_schedule_draw(s, NULL, OAR_PICTURE_SVG, &text);
    if (status == OAR_OK)
        status = oar_schedule_balance(3, (double[]){ 1, 2, 3 }, 2, count);
    oar_schedule_release(s);
    oar_free(text);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    fail_each_allocation(use_all, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_are_tried),
        cmocka_unit_test(chunks_that_divide_are_tried),
        cmocka_unit_test(parts_are_joined_to_stages),
        cmocka_unit_test(what_does_not_fit_is_not_taken),
        cmocka_unit_test(the_best_depends_on_the_costs),
        cmocka_unit_test(layers_are_dealt_as_evenly_as_can_be),
        cmocka_unit_test(many_layers_are_dealt),
        cmocka_unit_test(schedules_are_drawn_as_texts),
        cmocka_unit_test(long_texts_are_not_wider_than_a_page),
        cmocka_unit_test(schedules_are_drawn_as_svg),
        cmocka_unit_test(schedules_are_drawn_as_traces),
        cmocka_unit_test(what_cannot_run_is_not_drawn),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
