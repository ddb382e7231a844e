/* SPDX-License-Identifier: Apache-2.0 */
/* Which reports of ranks differ: op_report.h. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "record/op_report.h"
#include "record/operation.h"

enum { RANKS = 3 };

/* A rank's history, of which every call is its fingerprint. */
typedef struct told_rank {
    oari_history history;
    oari_history_entry ring[OARI_HISTORY_SHM];
    oari_op_report report;
} told_rank;

static void call(told_rank *r, uint64_t fingerprint)
{
    r->history.ring = r->ring;
    r->history.room = OARI_HISTORY_SHM;
    oari_history_add(&r->history, r->history.number + 1, 0, 0, fingerprint);
}

static void enter_barrier(told_rank *r)
{
    r->history.monitored_count++;
    oari_history_add_monitored(&r->history, 0, OARI_FORM_MONITORED, 99);
}

static void leave_barrier(told_rank *r)
{
    r->history.monitored_number = 0;
}

/* Reports on collective `number`. */
static void make_reports(told_rank *r, int ranks, uint64_t number,
                         const oari_op_report **list)
{
    oari_recorder *empty;

    assert_int_equal(
        oari_recorder_make(&(oari_ring_owner){ .group = "empty", .ranks = 1 },
                           &empty),
        OAR_OK);
    for (int i = 0; i < ranks; i++) {
        oari_op_report_make(&r[i].history, oari_recorder_base(empty), i, number,
                            &r[i].report);
        list[i] = &r[i].report;
    }
    oari_recorder_destroy(empty);
}

static void collectives_that_differ_are_found(void **state)
{
    static told_rank r[2];
    const oari_op_report *list[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        call(&r[i], 1);
        call(&r[i], i == 0 ? 2 : 3);
    }
    make_reports(r, 2, 2, list);
    assert_int_equal(oari_op_report_differs(list[0], list[1]), 2);
}

/* The ranks of a monitored barrier do not leave it at once: who still waits in
 * it is not in another operation than those who have gone on. */
static void a_rank_still_in_a_monitored_barrier_is_no_mismatch(void **state)
{
    static told_rank r[RANKS];
    const oari_op_report *list[RANKS];
    oar_error why;

    (void)state;
    for (int i = 0; i < RANKS; i++) {
        call(&r[i], 1);
        enter_barrier(&r[i]);
    }
    for (int i = 1; i < RANKS; i++) {
        leave_barrier(&r[i]);
        call(&r[i], 2);
    }
    make_reports(r, RANKS, 2, list);
    assert_int_equal(oari_op_report_differs(list[0], list[1]), 0);
    assert_int_equal(oari_op_report_differs(list[1], list[0]), 0);
    assert_int_equal(oari_op_reports_compare(list, RANKS, &why), 0);
}

static void a_rank_that_skips_a_monitored_barrier_is_found(void **state)
{
    static told_rank r[RANKS];
    const oari_op_report *list[RANKS];
    oar_error why;

    (void)state;
    for (int i = 0; i < RANKS; i++) {
        call(&r[i], 1);
        if (i < 2)
            enter_barrier(&r[i]);
    }
    call(&r[2], 2);
    make_reports(r, RANKS, 2, list);
    assert_int_equal(oari_op_report_differs(list[0], list[1]), 0);
    assert_int_equal(oari_op_report_differs(list[0], list[2]), 2);
    assert_int_equal(oari_op_report_differs(list[2], list[0]), 2);
    assert_int_equal(oari_op_reports_compare(list, RANKS, &why), 1);
    assert_int_equal(why.status, OAR_E_MISMATCH);
    assert_int_equal(why.peer, 2);
}

/* Ranks that went on are compared although a lower rank still waits. */
static void ranks_behind_a_waiting_one_are_compared(void **state)
{
    static told_rank r[RANKS];
    const oari_op_report *list[RANKS];
    oar_error why;

    (void)state;
    for (int i = 0; i < RANKS; i++)
        enter_barrier(&r[i]);
    for (int i = 1; i < RANKS; i++) {
        leave_barrier(&r[i]);
        call(&r[i], (uint64_t)i);
    }
    make_reports(r, RANKS, 1, list);
    assert_int_equal(oari_op_reports_compare(list, RANKS, &why), 1);
    assert_int_equal(why.rank, 1);
    assert_int_equal(why.peer, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_that_differ_are_found),
        cmocka_unit_test(a_rank_still_in_a_monitored_barrier_is_no_mismatch),
        cmocka_unit_test(a_rank_that_skips_a_monitored_barrier_is_found),
        cmocka_unit_test(ranks_behind_a_waiting_one_are_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
