/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank is named when a group cannot be made: the messages that ranks
 * leave are followed to a rank that has left none, also when they lead in a
 * circle. */
#include "support/ranks.h"

#include <stdio.h>

#include "base/status.h"
#include "comm/fault/open_failure.h"

enum { RANKS = 5 };

/* In which all ranks have begun to make the group. */
static oar_store *make_store(void)
{
    oar_store *store;

    assert_int_equal(oar_store_create_memory(&store), OAR_OK);
    for (int r = 0; r < RANKS; r++) {
        char key[32];
        int64_t times;

        snprintf(key, sizeof key, "g/agree/%d", r);
        assert_int_equal(oar_store_add(store, key, 1, &times), OAR_OK);
    }
    return store;
}

/* A rank gives up because of a peer. Returns the rank that it names in the
 * end. */
static int give_up(oar_store *store, int rank, oar_status status, int peer,
                   const unsigned char *missing)
{
    oari_about(peer, oari_fail(status, "rank %d %s", peer,
                               status == OAR_E_PEER ? "left" : "is late"));
    oari_open_failure_report(store, "g", rank, RANKS, missing);
    return oar_last_error()->peer;
}

static void messages_lead_to_the_rank_that_has_left_none(void **state)
{
    oar_store *store = make_store();

    assert_int_equal(give_up(store, 0, OAR_E_TIMEOUT, 2, NULL), 2);
    assert_int_equal(give_up(store, 1, OAR_E_PEER, 0, NULL), 2);
    assert_string_equal(oar_last_error_text(), "rank 2 is late");
    oar_store_destroy(store);
}

static void all_that_were_missed_are_asked(void **state)
{
    static const unsigned char missing[RANKS] = { [1] = 1, [4] = 1 };
    oar_store *store = make_store();

    assert_int_equal(give_up(store, 3, OAR_E_TIMEOUT, 1, missing), 1);
    /* 1 says 3, which says 1 and 4 */
    assert_int_equal(give_up(store, 1, OAR_E_PEER, 3, NULL), 4);
    assert_int_equal(oar_last_error()->status, OAR_E_TIMEOUT);
    assert_string_equal(oar_last_error_text(),
                        "rank 4 had not joined group \"g\" when rank 3 gave "
                        "up");
    /* seen to leave by one that had joined them */
    {
        oar_error said;
        assert_int_equal(oari_open_failure_find(store, "g", 0, RANKS, 1, &said),
                         1);
        assert_int_equal(said.peer, 4);
        assert_int_equal(oari_open_failure_find(store, "g", 0, RANKS, 4, &said),
                         0);
    }
    oar_store_destroy(store);
}

/* Of those that missed only each other, the one that was late. */
static void a_circle_ends_at_the_one_that_was_late(void **state)
{
    oar_store *store = make_store();

    assert_int_equal(give_up(store, 3, OAR_E_TIMEOUT, 1, NULL), 1);
    assert_int_equal(give_up(store, 1, OAR_E_PEER, 3, NULL), 1);
    assert_int_equal(oar_last_error()->status, OAR_E_TIMEOUT);
    assert_string_equal(oar_last_error_text(), "rank 1 is late");
    assert_int_equal(give_up(store, 2, OAR_E_PEER, 1, NULL), 1);
    assert_string_equal(oar_last_error_text(), "rank 1 is late");
    oar_store_destroy(store);
}

static void what_is_not_about_a_peer_stays(void **state)
{
    oar_store *store = make_store();

    oari_fail(OAR_E_MISMATCH, "it is something else");
    oari_open_failure_report(store, "g", 0, RANKS, NULL);
    assert_string_equal(oar_last_error_text(), "it is something else");
    oar_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_lead_to_the_rank_that_has_left_none),
        cmocka_unit_test(all_that_were_missed_are_asked),
        cmocka_unit_test(a_circle_ends_at_the_one_that_was_late),
        cmocka_unit_test(what_is_not_about_a_peer_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
