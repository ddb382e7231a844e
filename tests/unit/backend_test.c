/* SPDX-License-Identifier: Apache-2.0 */
/* Which backends there are, and what becomes of plugins that are not whole. */
#include "support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/backend.h>

static const char *plugin(const char *name)
{
    static char path[1024];

    snprintf(path, sizeof path, "%s/tests/plugins/lib%s.so",
             getenv("OARSONG_BUILD_DIR"), name);
    return path;
}

static void assert_says(const char *text)
{
    if (strstr(oar_last_error_text(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", oar_last_error_text(), text);
}

static void the_built_in_backends_are_listed_and_work(void **state)
{
    static const char *const names[] = { "self", "sim", "native", "shm" };
    oar_backend_caps caps = oar_backend_caps_init();

    for (int i = 0; i < 4; i++) {
        assert_string_equal(oar_backend_name(i), names[i]);
        assert_int_equal(oar_backend_available(names[i], &caps), OAR_OK);
        assert_non_null(caps.note);
        assert_int_equal(oar_backend_available(names[i], NULL), OAR_OK);
    }
    assert_null(oar_backend_name(-1));
    assert_null(oar_backend_name(1000));
}

static void a_backend_that_is_not_there_is_not_found(void **state)
{
    assert_int_equal(oar_backend_available("tin-cans", NULL), OAR_E_NOT_FOUND);
    assert_says("tin-cans");
    assert_int_equal(oar_backend_available(NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_backend_load(NULL, NULL), OAR_E_ARG);
}

static void a_file_that_is_not_there_says_so(void **state)
{
    assert_int_equal(oar_backend_load("./no-such.so", NULL), OAR_E_UNAVAILABLE);
    assert_says("no-such.so");
}

static void a_library_without_the_symbol_is_refused(void **state)
{
    assert_int_equal(oar_backend_load(plugin("silent"), NULL),
                     OAR_E_UNAVAILABLE);
    assert_says(OAR_BACKEND_PLUGIN_SYMBOL);
}

static void a_backend_of_another_abi_is_refused(void **state)
{
    assert_int_equal(oar_backend_load(plugin("old"), NULL), OAR_E_UNAVAILABLE);
    assert_says("ABI 8, this is 1");
}

static void an_incomplete_table_is_refused(void **state)
{
    assert_int_equal(oar_backend_load(plugin("hollow"), NULL),
                     OAR_E_UNAVAILABLE);
    assert_says("incomplete");
}

static void a_backend_that_cannot_work_here_says_why(void **state)
{
    oar_group *group = NULL;
    oar_group_opts o = oar_group_opts_init();
    const char *name = NULL;

    assert_int_equal(oar_backend_load(plugin("sick"), &name), OAR_OK);
    assert_string_equal(name, "sick");
    assert_int_equal(oar_backend_available("sick", NULL), OAR_E_UNAVAILABLE);
    assert_says("no oars in this machine");
    o.backend = plugin("sick");
    assert_int_equal(oar_group_create(NULL, 0, 1, &o, &group),
                     OAR_E_UNAVAILABLE);
    assert_null(group);
}

static void loading_twice_gives_the_same(void **state)
{
    const char *first, *second;
    int before = 0, after = 0;

    assert_int_equal(oar_backend_load(plugin("carrier"), &first), OAR_OK);
    while (oar_backend_name(before) != NULL)
        before++;
    assert_int_equal(oar_backend_load(plugin("carrier"), &second), OAR_OK);
    while (oar_backend_name(after) != NULL)
        after++;
    assert_ptr_equal(first, second);
    assert_int_equal(before, after);
    assert_int_equal(oar_backend_available("carrier", NULL), OAR_OK);
}

static oar_status sum_over_carrier(oar_group *g, void *arg)
{
    double x = oar_group_rank(g) + 1;

    CHECK(strcmp(oar_group_backend(g), "carrier") == 0);
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_F64), OAR_SUM, NULL, NULL));
    CHECK(x == oar_group_size(g) * (oar_group_size(g) + 1) / 2.0);
    return OAR_OK;
}

static void a_plugin_carries_collectives(void **state)
{
    for (int n = 1; n <= 5; n += 2)
        assert_int_equal(
            ranks_run(plugin("carrier"), n, NULL, sum_over_carrier, NULL),
            OAR_OK);
}

static void kinds_have_names(void **state)
{
    assert_string_equal(oar_coll_name(OAR_COLL_ALL_REDUCE), "all_reduce");
    assert_string_equal(oar_coll_name(OAR_COLL_RECV), "recv");
    assert_string_equal(oar_coll_name((oar_coll)999), "?");
}

static void a_backend_reports_in_its_own_words(void **state)
{
    assert_int_equal(oar_backend_fail(OAR_E_CLOSED, "line %d is cut", 3),
                     OAR_E_CLOSED);
    assert_string_equal(oar_last_error_text(), "line 3 is cut");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_built_in_backends_are_listed_and_work),
        cmocka_unit_test(a_backend_that_is_not_there_is_not_found),
        cmocka_unit_test(a_file_that_is_not_there_says_so),
        cmocka_unit_test(a_library_without_the_symbol_is_refused),
        cmocka_unit_test(a_backend_of_another_abi_is_refused),
        cmocka_unit_test(an_incomplete_table_is_refused),
        cmocka_unit_test(a_backend_that_cannot_work_here_says_why),
        cmocka_unit_test(loading_twice_gives_the_same),
        cmocka_unit_test(a_plugin_carries_collectives),
        cmocka_unit_test(kinds_have_names),
        cmocka_unit_test(a_backend_reports_in_its_own_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
