/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends, and plugins: good, refusing and broken ones. */
#include "support/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/backend.h>
#include <oarsong/p2p.h>

#include "support/leak_check.h"
#include "support/last_error.h"

enum { PATH_BYTES = 1200 };

/* A plugin of support/plugins; they are built next to the tests. */
static const char *plugin(const char *name, char path[PATH_BYTES])
{
    char self[1024];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    assert_true(n > 0);
    self[n] = 0;
    *strrchr(self, '/') = 0;
    snprintf(path, PATH_BYTES, "%s/../plugins/lib%s.so", self, name);
    return path;
}

static int is_listed(const char *name)
{
    int times = 0;

    for (int i = 0; oar_backend_name(i) != NULL; i++)
        times += strcmp(oar_backend_name(i), name) == 0;
    return times;
}

/* ---- what is built in ---------------------------------------------------- */

static const char *const built_in[] = { "self", "sim", "native", "shm" };

static void the_built_in_backends_are_listed_once_and_work(void **state)
{
    for (int i = 0; i < 4; i++) {
        oar_backend_caps caps = oar_backend_caps_init();
        assert_int_equal(is_listed(built_in[i]), 1);
        assert_string_equal(oar_backend_name(i), built_in[i]);
        assert_int_equal(oar_backend_available(built_in[i], NULL), OAR_OK);
        assert_int_equal(oar_backend_available(built_in[i], &caps), OAR_OK);
        assert_non_null(caps.note);
        assert_int_equal(caps.size, sizeof caps);
    }
    assert_null(oar_backend_name(-1));
    assert_null(oar_backend_name(1000));
}

static void every_kind_of_collective_has_its_name(void **state)
{
    assert_string_equal(oar_coll_name(OAR_COLL_BARRIER), "barrier");
    assert_string_equal(oar_coll_name(OAR_COLL_ALL_REDUCE), "all_reduce");
    assert_string_equal(oar_coll_name(OAR_COLL_RECV), "recv");
    for (int i = 0; i < OAR_COLL_COUNT; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(oar_coll_name((oar_coll)i),
                                    oar_coll_name((oar_coll)k));
    assert_string_equal(oar_coll_name(OAR_COLL_COUNT), "?");
    assert_string_equal(oar_coll_name((oar_coll)999), "?");
}

static void backend_fail_writes_the_last_error(void **state)
{
    char text[600];

    assert_fails_with(oar_backend_fail(OAR_E_AUTH, "rank %d: %s", 7, "who?"),
                      OAR_E_AUTH, "rank 7: who?");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_fails_with(oar_backend_fail(OAR_E_DATA, "%s", text), OAR_E_DATA,
                      "xxx");
}

static void what_does_not_exist_is_not_found(void **state)
{
    oar_backend_caps caps = { 0 };

    assert_fails_with(oar_backend_available("pigeon", &caps), OAR_E_NOT_FOUND,
                      "\"pigeon\"");
    assert_fails_with(oar_backend_available("", &caps), OAR_E_NOT_FOUND,
                      "\"\"");
    assert_fails_with(oar_backend_available(NULL, &caps), OAR_E_ARG, "name");
    assert_fails_with(oar_backend_available("self", &caps), OAR_E_ARG, "size");
    assert_fails_with(oar_backend_load(NULL, NULL), OAR_E_ARG, "path");
}

/* ---- plugins that cannot be ---------------------------------------------- */

static void what_is_no_plugin_is_refused_with_the_reason(void **state)
{
    static const char *const wrong[][2] = {
        { "no_entry_point", "does not export " OAR_BACKEND_PLUGIN_SYMBOL },
        { "old_abi", "ABI 11, this is 4" },
        { "empty_table", "has no self_size" },
        { "wrong_table", "gives no table" },
        { "wrong_size", "ends before its post array" },
        { "wrong_name", "has no name" },
        { "wrong_self", "has no self_size" },
        { "wrong_open", "lacks open or close" },
        { "wrong_close", "lacks open or close" },
        { "wrong_recv", "lacks one of send and recv" },
        { "wrong_arm", "lacks one of wait_fd and arm" },
        { "wrong_count", "ends within its post array" },
        { "missing_symbol", "undefined symbol: oar_no_such_thing" },
        { "wrong_messages", "neither messages nor collectives" },
    };
    leak_check before = leak_check_begin();
    const char *name = "untouched";

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char path[PATH_BYTES];
        plugin(wrong[i][0], path);
        assert_fails_with(oar_backend_load(path, &name), OAR_E_UNAVAILABLE,
                          wrong[i][1]);
        assert_non_null(strstr(oar_last_error_text(), wrong[i][0]));
        assert_fails_with(oar_backend_available(path, NULL), OAR_E_UNAVAILABLE,
                          wrong[i][1]);
    }
    assert_string_equal(name, "untouched");
    assert_int_equal(is_listed("wrong"), 0);
    leak_check_end(&before);
}

static void a_path_that_leads_nowhere_is_named(void **state)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;

    assert_fails_with(oar_backend_load("/no/such/lib.so", NULL),
                      OAR_E_UNAVAILABLE, "/no/such/lib.so");
    assert_fails_with(oar_backend_load("/dev/null", NULL), OAR_E_UNAVAILABLE,
                      "/dev/null");
    assert_fails_with(oar_backend_available("nowhere.so", NULL),
                      OAR_E_UNAVAILABLE, "nowhere.so");
    o.backend = "./gone.so";
    assert_fails_with(oar_group_create(NULL, 0, 1, &o, &g), OAR_E_UNAVAILABLE,
                      "gone.so");
    assert_null(g);
}

static void an_older_table_without_a_post_array_is_taken(void **state)
{
    char path[PATH_BYTES];
    const char *name = NULL;

    assert_int_equal(oar_backend_load(plugin("old_table", path), &name),
                     OAR_OK);
    assert_string_equal(name, "wrong");
    assert_int_equal(oar_backend_available("wrong", NULL), OAR_OK);
}

/* ---- plugins by name ----------------------------------------------------- */

typedef struct plugin_folder {
    char folder[64], path[256], list[600];
} plugin_folder;

/* A folder with liboarsong-finch.so in it, which is that plugin, somewhere in
 * OARSONG_PLUGIN_PATH. */
static void make_plugin_folder(plugin_folder *a, const char *of)
{
    char file[PATH_BYTES];

    assert_int_equal(access(plugin(of, file), R_OK), 0); /* it is built */
    snprintf(a->folder, sizeof a->folder, "/tmp/oarsong-test-XXXXXX");
    assert_non_null(mkdtemp(a->folder));
    snprintf(a->path, sizeof a->path, "%s/liboarsong-finch.so", a->folder);
    assert_int_equal(symlink(file, a->path), 0);
    snprintf(a->list, sizeof a->list, "/no/such/folder::%s:/", a->folder);
    assert_int_equal(setenv("OARSONG_PLUGIN_PATH", a->list, 1), 0);
}

static void remove_plugin_folder(plugin_folder *a)
{
    unsetenv("OARSONG_PLUGIN_PATH");
    assert_int_equal(unlink(a->path), 0);
    assert_int_equal(rmdir(a->folder), 0);
}

static void a_plugin_is_found_by_name_in_the_plugin_path(void **state)
{
    oar_backend_caps caps = oar_backend_caps_init();
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;
    plugin_folder a;

    assert_fails_with(oar_backend_available("finch", &caps), OAR_E_NOT_FOUND,
                      "\"finch\"");
    make_plugin_folder(&a, "loopback");
    assert_int_equal(oar_backend_available("finch", &caps), OAR_OK);
    assert_string_equal(caps.note, "goes round");
    o.backend = "finch";
    assert_int_equal(oar_group_create(NULL, 0, 1, &o, &g), OAR_OK);
    assert_string_equal(oar_group_backend(g), "loopback");
    oar_group_destroy(g);
    remove_plugin_folder(&a);
}

static void a_plugin_not_found_says_where_it_was_looked_for(void **state)
{
    plugin_folder a;

    make_plugin_folder(&a, "loopback");
    assert_fails_with(oar_backend_available("wren", NULL), OAR_E_NOT_FOUND,
                      "liboarsong-wren.so");
    assert_non_null(strstr(oar_last_error_text(), "OARSONG_PLUGIN_PATH"));
    assert_non_null(strstr(oar_last_error_text(), "beside the library"));
    remove_plugin_folder(&a);
}

static void a_plugin_found_by_name_that_is_broken_says_why(void **state)
{
    plugin_folder a;

    make_plugin_folder(&a, "old_abi");
    assert_fails_with(oar_backend_available("finch", NULL), OAR_E_UNAVAILABLE,
                      "liboarsong-finch.so: made for backend ABI");
    remove_plugin_folder(&a);
    make_plugin_folder(&a, "missing_symbol");
    assert_fails_with(oar_backend_available("finch", NULL), OAR_E_UNAVAILABLE,
                      "oar_no_such_thing");
    remove_plugin_folder(&a);
    make_plugin_folder(&a, "unavailable");
    assert_fails_with(oar_backend_available("finch", NULL), OAR_E_UNAVAILABLE,
                      "no oars in this machine");
    remove_plugin_folder(&a);
}

static void folders_that_cannot_be_are_passed_over(void **state)
{
    char *list = malloc(9000);
    plugin_folder a;

    make_plugin_folder(&a, "loopback");
    memset(list, 'x', 5000); /* longer than any path */
    snprintf(list + 5000, 4000, "::/dev/null:%s", a.folder);
    setenv("OARSONG_PLUGIN_PATH", list, 1);
    assert_int_equal(oar_backend_available("finch", NULL), OAR_OK);
    free(list);
    remove_plugin_folder(&a);
}

/* ---- one that works ------------------------------------------------------ */

static void a_plugin_is_known_by_its_name_once_it_is_loaded(void **state)
{
    oar_backend_caps caps = oar_backend_caps_init();
    char path[PATH_BYTES];
    const char *name = NULL, *again = NULL;

    plugin("loopback", path);
    assert_fails_with(oar_backend_available("loopback", NULL), OAR_E_NOT_FOUND,
                      "loopback");
    assert_int_equal(oar_backend_load(path, NULL), OAR_OK);
    assert_int_equal(oar_backend_load(path, &name), OAR_OK);
    assert_int_equal(oar_backend_load(path, &again), OAR_OK);
    assert_string_equal(name, "loopback");
    assert_ptr_equal(name, again);
    assert_int_equal(is_listed("loopback"), 1);
    assert_int_equal(oar_backend_available("loopback", &caps), OAR_OK);
    assert_string_equal(caps.note, "goes round");
    assert_int_equal(caps.dtypes, 1u << OAR_F32);
    assert_int_equal(oar_backend_available(path, NULL), OAR_OK);
}

static oar_group *make_loopback(const char *backend, int64_t timeout_ms)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;

    o.backend = backend;
    o.timeout_ms = timeout_ms;
    if (oar_group_create(NULL, 0, 1, &o, &g) != OAR_OK)
        fail_msg("%s: %s", backend, oar_last_error_text());
    return g;
}

static void a_group_over_a_plugin_plans_what_it_lacks(void **state)
{
    char path[PATH_BYTES];
    leak_check before;
    float x[3] = { 1, 2, 3 }, y[3] = { 0 };
    oar_span s = oar_span_of(x, 3, OAR_F32), t = oar_span_of(y, 3, OAR_F32);
    oar_work *work;
    oar_group *g;

    assert_int_equal(oar_backend_load(plugin("loopback", path), NULL), OAR_OK);
    before = leak_check_begin();
    for (int by_path = 0; by_path < 2; by_path++) {
        g = make_loopback(by_path ? path : "loopback", 5000);
        assert_string_equal(oar_group_backend(g), "loopback");
        assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
        assert_int_equal(oar_broadcast(g, s, 0, NULL, NULL), OAR_OK);
        assert_int_equal(oar_all_reduce_into(g, s, t, OAR_AVG, NULL, NULL),
                         OAR_OK);
        assert_memory_equal(x, y, sizeof x);
        y[0] = 7;
        assert_int_equal(oar_send(g, s, 0, 1, NULL, &work), OAR_OK);
        assert_int_equal(oar_recv(g, t, 0, 1, NULL, NULL), OAR_OK);
        assert_int_equal(oar_work_wait(work), OAR_OK);
        assert_memory_equal(x, y, sizeof x);
        oar_work_release(work);
        assert_int_equal(oar_send(g, s, 0, 1, NULL, &work), OAR_OK);
        assert_fails_with(
            oar_recv(g, oar_span_of(y, 2, OAR_F32), 0, 1, NULL, NULL),
            OAR_E_SIZE, "8 bytes");
        oar_work_release(work);
        assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
        oar_group_destroy(g);
    }
    leak_check_end(&before);
}

static void a_message_over_a_plugin_times_out_and_is_aborted(void **state)
{
    char path[PATH_BYTES];
    float x = 0;
    oar_span s = oar_span_of(&x, 1, OAR_F32);
    oar_work *work;
    oar_group *g;

    assert_int_equal(oar_backend_load(plugin("loopback", path), NULL), OAR_OK);
    g = make_loopback("loopback", 50);
    assert_fails_with(oar_recv(g, s, 0, 3, NULL, NULL), OAR_E_TIMEOUT,
                      "recv waited 50 ms for rank 0");
    assert_fails_with(oar_barrier(g, NULL, NULL), OAR_E_TIMEOUT, "recv waited");
    oar_group_destroy(g);

    g = make_loopback("loopback", -1);
    assert_int_equal(oar_recv(g, s, 0, 3, NULL, &work), OAR_OK);
    assert_int_equal(oar_group_abort(g, "no more"), OAR_OK);
    assert_fails_with(oar_work_wait(work), OAR_E_ABORTED, "no more");
    oar_work_release(work);
    oar_group_destroy(g);

    g = make_loopback("loopback", -1);
    assert_int_equal(oar_recv(g, s, 0, 3, NULL, &work), OAR_OK);
    oar_work_release(work);
    oar_group_destroy(g); /* with the receive still pending */
}

static void a_plugin_that_refuses_says_why(void **state)
{
    oar_group_opts o = oar_group_opts_init();
    char path[PATH_BYTES];
    oar_store *store;
    oar_group *g = NULL;

    assert_int_equal(oar_backend_load(plugin("loopback", path), NULL), OAR_OK);
    o.backend = "loopback";
    setenv("LOOPBACK_REFUSES", "1", 1);
    assert_fails_with(oar_backend_available("loopback", NULL),
                      OAR_E_UNAVAILABLE, "LOOPBACK_REFUSES says no");
    assert_fails_with(oar_group_create(NULL, 0, 1, &o, &g), OAR_E_UNAVAILABLE,
                      "LOOPBACK_REFUSES says no");
    unsetenv("LOOPBACK_REFUSES");
    assert_int_equal(oar_store_create_memory(&store), OAR_OK);
    assert_fails_with(oar_group_create(store, 0, 2, &o, &g), OAR_E_WORLD,
                      "loopback: 2 ranks");
    oar_store_destroy(store);
    assert_null(g);
}

static void a_complete_backend_may_be_unavailable_here(void **state)
{
    oar_group_opts o = oar_group_opts_init();
    char path[PATH_BYTES];
    const char *name = NULL;
    oar_group *g = NULL;

    assert_int_equal(oar_backend_load(plugin("unavailable", path), &name),
                     OAR_OK);
    assert_string_equal(name, "unavailable");
    assert_fails_with(oar_backend_available("unavailable", NULL),
                      OAR_E_UNAVAILABLE, "no oars in this machine");
    o.backend = path;
    assert_fails_with(oar_group_create(NULL, 0, 1, &o, &g), OAR_E_UNAVAILABLE,
                      "no oars in this machine");
    assert_null(g);
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

static void a_plugin_carries_collectives_between_processes(void **state)
{
    char path[PATH_BYTES];

    plugin("carrier", path);
    for (int n = 1; n <= 5; n += 2)
        if (ranks_run(path, n, NULL, sum_over_carrier, NULL) != OAR_OK)
            fail_msg("%d ranks: %s", n, oar_last_error_text());
}

static void a_plan_over_shared_memory_is_refused_without_it(void **state)
{
    oar_group_opts o = oar_group_opts_init();
    char path[PATH_BYTES];
    oar_group *g = NULL;

    assert_int_equal(oar_backend_load(plugin("loopback", path), NULL), OAR_OK);
    o.backend = "loopback";
    setenv("OARSONG_ALGO", "direct", 1);
    assert_fails_with(oar_group_create(NULL, 0, 1, &o, &g), OAR_E_UNSUPPORTED,
                      "shared memory");
    unsetenv("OARSONG_ALGO");
    assert_null(g);
}

/* ---- loading at once, without memory, and too much ----------------------- */

static void *load_it(void *path)
{
    const char *name = NULL;

    return oar_backend_load(path, &name) == OAR_OK &&
                   strcmp(name, "loopback") == 0 && oar_backend_name(4) != NULL
               ? NULL
               : path;
}

static void threads_load_one_plugin_once(void **state)
{
    enum { THREADS = 5 };
    pthread_t thread[THREADS];
    char path[PATH_BYTES];
    void *failed;
    int before = is_listed("loopback");

    plugin("loopback", path);
    memmove(path + 1, path, strlen(path) + 1); /* another way to spell it */
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, load_it, path), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(is_listed("loopback"), before + 1);
}

static oar_status load_once(void *path)
{
    return oar_backend_load(path, NULL);
}

static oar_status open_once(void *backend)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;
    oar_status status;

    o.backend = backend;
    status = oar_group_create(NULL, 0, 1, &o, &g);
    oar_group_destroy(g);
    return status;
}

static void without_memory_nothing_is_loaded_or_left(void **state)
{
    char path[PATH_BYTES], other[PATH_BYTES + 4];

    plugin("loopback", path);
    snprintf(other, sizeof other, "//%s", path);
    fail_each_allocation(load_once, other);
    fail_each_allocation(open_once, path);
    plugin("carrier", path); /* this one can be woken */
    assert_int_equal(oar_backend_load(path, NULL), OAR_OK);
    fail_each_allocation(open_once, path);
}

static void the_number_of_plugins_is_limited(void **state)
{
    char path[PATH_BYTES], other[PATH_BYTES + 100];
    oar_status status = OAR_OK;
    int loaded = 0;

    plugin("loopback", path);
    for (int i = 3; i < 80 && status == OAR_OK; i++) {
        snprintf(other, sizeof other, "%.*s%s", i,
                 "////////////////////////////////////////////////////////////"
                 "////////////////////",
                 path);
        status = oar_backend_load(other, NULL);
        loaded += status == OAR_OK;
    }
    assert_true(loaded > 50);
    assert_fails_with(status, OAR_E_UNAVAILABLE, "more than 64");
    assert_int_equal(oar_backend_available("loopback", NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_built_in_backends_are_listed_once_and_work),
        cmocka_unit_test(every_kind_of_collective_has_its_name),
        cmocka_unit_test(backend_fail_writes_the_last_error),
        cmocka_unit_test(what_does_not_exist_is_not_found),
        cmocka_unit_test(what_is_no_plugin_is_refused_with_the_reason),
        cmocka_unit_test(a_path_that_leads_nowhere_is_named),
        cmocka_unit_test(an_older_table_without_a_post_array_is_taken),
        cmocka_unit_test(a_plugin_is_known_by_its_name_once_it_is_loaded),
        cmocka_unit_test(a_plugin_is_found_by_name_in_the_plugin_path),
        cmocka_unit_test(a_plugin_not_found_says_where_it_was_looked_for),
        cmocka_unit_test(a_plugin_found_by_name_that_is_broken_says_why),
        cmocka_unit_test(folders_that_cannot_be_are_passed_over),
        cmocka_unit_test(a_group_over_a_plugin_plans_what_it_lacks),
        cmocka_unit_test(a_message_over_a_plugin_times_out_and_is_aborted),
        cmocka_unit_test(a_plugin_that_refuses_says_why),
        cmocka_unit_test(a_complete_backend_may_be_unavailable_here),
        cmocka_unit_test(a_plugin_carries_collectives_between_processes),
        cmocka_unit_test(a_plan_over_shared_memory_is_refused_without_it),
        cmocka_unit_test(threads_load_one_plugin_once),
        cmocka_unit_test(without_memory_nothing_is_loaded_or_left),
        cmocka_unit_test(the_number_of_plugins_is_limited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
