/* SPDX-License-Identifier: Apache-2.0 */
/* Which of two faults counts, and what of a fault a control page passes on. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "link/shm/board.h"

enum { RANKS = 3 };

static oari_fault make_fault(oar_status status, oari_evidence evidence,
                             uint64_t sequence, const char *text)
{
    oari_fault f = { .error = { .size = sizeof f.error,
                                .status = status,
                                .sequence = sequence },
                     .evidence = evidence };

    strncpy(f.error.text, text, sizeof f.error.text - 1);
    return f;
}

/* The words of users get into texts: names of groups, labels, reasons. */
static void a_text_is_no_evidence_of_a_fault(void **state)
{
    oari_fault guess =
        make_fault(OAR_E_TIMEOUT, OARI_EVIDENCE_TIMEOUT, 1,
                   "recv waited 200 ms for rank 1 [group \"x, stopped\"]");
    oari_fault death =
        make_fault(OAR_E_PEER, OARI_EVIDENCE_SEEN, 7, "rank 2 has died");
    oari_fault stop = make_fault(OAR_E_TIMEOUT, OARI_EVIDENCE_STOPPED, 7,
                                 "recv waited 200 ms for rank 2");

    assert_false(oari_fault_sure(&guess));
    assert_true(oari_fault_sure(&death));
    assert_true(oari_fault_sure(&stop));
    assert_true(oari_fault_before(&death, &guess));
    assert_false(oari_fault_before(&guess, &death));
    assert_true(oari_fault_before(&stop, &guess));
    assert_false(oari_fault_before(&guess, &stop));
}

static void of_two_certain_faults_the_earlier_operation_counts(void **state)
{
    oari_fault early =
        make_fault(OAR_E_TIMEOUT, OARI_EVIDENCE_STOPPED, 3, "stopped");
    oari_fault late = make_fault(OAR_E_PEER, OARI_EVIDENCE_SEEN, 4, "died");

    assert_true(oari_fault_before(&early, &late));
    assert_false(oari_fault_before(&late, &early));
}

/* Control pages that no other process maps. */
typedef struct control_pages {
    oari_board board;
    oari_control *control;
    _Atomic uint32_t first[2];
} control_pages;

static void open_pages(control_pages *t)
{
    *t = (control_pages){ .board = { .rank = 1, .ranks = RANKS } };
    t->control = aligned_alloc(128, RANKS * sizeof *t->control);
    assert_non_null(t->control);
    memset(t->control, 0, RANKS * sizeof *t->control);
    assert_int_equal(oari_board_init(&t->board), OAR_OK);
    for (int r = 0; r < RANKS; r++)
        t->board.control[r] = &t->control[r];
    t->board.first = t->first;
}

static void close_pages(control_pages *t)
{
    oari_board_clear(&t->board);
    free(t->control);
}

static void the_evidence_of_a_fault_passes_the_control_page(void **state)
{
    for (int e = 0; e < OARI_EVIDENCES; e++) {
        oari_fault fault =
            make_fault(OAR_E_TIMEOUT, (oari_evidence)e, 5, "too late");
        control_pages t;

        open_pages(&t);
        for (int f = OARI_FACT_FAULT; f <= OARI_FACT_FINAL_FAULT; f++) {
            oari_fault found;

            assert_false(oari_board_published(&t.board, f, &found));
            oari_board_publish(&t.board, f, &fault);
            assert_true(oari_board_published(&t.board, f, &found));
            assert_int_equal(found.evidence, e);
            assert_string_equal(found.error.text, "too late");
        }
        close_pages(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_no_evidence_of_a_fault),
        cmocka_unit_test(of_two_certain_faults_the_earlier_operation_counts),
        cmocka_unit_test(the_evidence_of_a_fault_passes_the_control_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
