/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: one copy a host, on every backend that shares memory; who gets it,
 * who may write, and who may import it. What happens to windows when ranks die
 * is in fault/window_fault_test.c. */
#include "support/test_job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/memory.h>
#include <oarsong/window.h>

#include "comm/group/group.h"
#include "support/leak_check.h"

enum { ODD_BYTES = 3 * 4096 + 37, RANKS = 3 };

static const char *const sharing[] = { "sim", "shm", "native" };

static void run_on_sharing(int n, oar_rank_fn fn, void *arg)
{
    for (size_t i = 0; i < sizeof sharing / sizeof *sharing; i++)
        if (ranks_run(sharing[i], n, NULL, fn, arg) != OAR_OK)
            fail_msg("%s, %d ranks: %s", sharing[i], n, oar_last_error_text());
}

/* Whether the process may write to this byte. Does not change it. */
static int is_writable(unsigned char *byte)
{
    int pipes[2];
    ssize_t got;

    if (pipe(pipes) != 0 || write(pipes[1], byte, 1) != 1)
        return -1;
    got = read(pipes[0], byte, 1);
    close(pipes[0]);
    close(pipes[1]);
    return got == 1 ? 1 : errno == EFAULT ? 0 : -1;
}

/* ---- one copy ------------------------------------------------------------ */

static oar_status share(oar_group *g, void *arg)
{
    size_t bytes = *(const size_t *)arg;
    int rank = oar_group_rank(g), n = oar_group_size(g);
    unsigned char *data;
    oar_window *w;

    CHECK_OK(oar_window_create(g, bytes, NULL, &w));
    CHECK(oar_window_bytes(w) == bytes && oar_window_ranks(w) == n);
    for (int r = 0; r < n; r++)
        CHECK(oar_window_has(w, r));
    CHECK(!oar_window_has(w, -1) && !oar_window_has(w, n));
    data = oar_window_data(w);
    CHECK(data != NULL &&
          (uintptr_t)data % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
    for (size_t i = 0; i < bytes; i++)
        CHECK(data[i] == 0);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    for (size_t i = (size_t)rank; i < bytes; i += (size_t)n)
        data[i] = (unsigned char)(i % 251 + 1);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    for (size_t i = 0; i < bytes; i++)
        CHECK(data[i] == (unsigned char)(i % 251 + 1));
    oar_window_release(w);
    return OAR_OK;
}

static void the_ranks_of_a_host_have_one_copy(void **state)
{
    static size_t sizes[] = { 0, 1, 4096, ODD_BYTES, 3 << 20 };
    static const int ranks[] = { 1, 2, 3, 5 };

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t n = 0; n < sizeof ranks / sizeof *ranks; n++)
            run_on_sharing(ranks[n], share, &sizes[i]);
}

/* The window of a group that is gone, by a second reference. */
static oar_status outlive(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_group *other;
    oar_window *w;
    int *data;

    CHECK_OK(oar_group_dup(g, &other));
    CHECK_OK(oar_window_create(
        other, RANKS * sizeof(int),
        OAR_OPTS(oar_window_opts, .label = "weights", .timeout_ms = 20000),
        &w));
    oar_group_destroy(other);
    CHECK(oar_window_retain(w) == w);
    oar_window_release(w);
    data = oar_window_data(w);
    data[rank] = rank + 1;
    CHECK_OK(oar_barrier(g, NULL, NULL));
    for (int r = 0; r < RANKS; r++)
        CHECK(data[r] == r + 1);
    oar_window_release(w);
    return OAR_OK;
}

static void a_window_outlives_its_group(void **state)
{
    run_on_sharing(RANKS, outlive, NULL);
}

static oar_status be_refused(oar_group *g, void *arg)
{
    oar_window *w = NULL;

    CHECK(oar_window_create(g, 100, NULL, &w) == OAR_E_UNSUPPORTED);
    CHECK(w == NULL && strstr(oar_last_error_text(), "\"tcp\"") != NULL);
    return oar_barrier(g, NULL, NULL);
}

static void ranks_that_share_no_memory_get_none(void **state)
{
    if (ranks_run("tcp", 2, NULL, be_refused, NULL) != OAR_OK)
        fail_msg("%s", oar_last_error_text());
}

static void a_group_of_one_has_memory_of_its_own(void **state)
{
    static const char *const backends[] = { NULL, "native", "tcp", "self" };

    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        oar_group_opts o = oar_group_opts_init();
        oar_group *g;
        oar_window *w;

        o.backend = backends[i];
        if (oar_group_create(NULL, 0, 1, &o, &g) != OAR_OK)
            fail_msg("%s", oar_last_error_text());
        assert_int_equal(oar_window_create(g, ODD_BYTES, NULL, &w), OAR_OK);
        oar_group_destroy(g);
        memset(oar_window_data(w), 7, ODD_BYTES);
        assert_int_equal(oar_window_ranks(w), 1);
        oar_window_release(w);
    }
}

/* ---- two hosts ----------------------------------------------------------- */

/* Five ranks on three hosts that are not in a row: a b a c b. */
static int be_on_hosts(test_job *c, int rank, void *arg)
{
    static const char *const name[] = { "a", "b", "a", "c", "b" };
    static const int number[] = { 0, 1, 0, 2, 1 }, here[] = { 2, 2, 2, 1, 2 };
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;
    oar_window *w;
    int *data;

    setenv("OARSONG_HOST_ID", name[rank], 1);
    o.backend = arg;
    o.timeout_ms = 30000;
    RANK_OK(test_job_join(c, rank, &o, &g));
    for (int r = 0; r < 5; r++)
        RANK_CHECK(oar_group_host(g, r) == number[r]);
    RANK_CHECK(oar_group_host(g, -1) == -1 && oar_group_host(g, 5) == -1);
    if (strcmp(arg, "native") == 0) {
        RANK_OK(oar_window_create(g, 5 * sizeof(int), NULL, &w));
        RANK_CHECK(oar_window_ranks(w) == here[rank]);
        data = oar_window_data(w);
        data[rank] = rank + 1;
        RANK_OK(oar_barrier(g, NULL, NULL));
        for (int r = 0; r < 5; r++) {
            RANK_CHECK(oar_window_has(w, r) == (number[r] == number[rank]));
            RANK_CHECK(data[r] == (number[r] == number[rank] ? r + 1 : 0));
        }
        RANK_OK(oar_barrier(g, NULL, NULL));
        oar_window_release(w);
    }
    oar_group_destroy(g);
    return 0;
}

static void each_host_has_a_copy(void **state)
{
    static char native[] = "native", tcp[] = "tcp";
    char *const backends[] = { native, tcp };

    for (int i = 0; i < 2; i++) {
        test_job c;

        test_job_start(&c, 5, be_on_hosts, backends[i], "three hosts, %s",
                       backends[i]);
        for (int r = 0; r < 5; r++)
            test_job_expect(&c, r, 0);
        test_job_end(&c);
    }
}

static oar_status ask_for_hosts(oar_group *g, void *arg)
{
    for (int r = 0; r < oar_group_size(g); r++)
        CHECK(oar_group_host(g, r) == 0);
    CHECK(oar_group_host(g, -1) == -1);
    CHECK(oar_group_host(g, oar_group_size(g)) == -1);
    CHECK(oar_group_host(NULL, 0) == -1);
    return OAR_OK;
}

static void ranks_of_one_machine_are_on_host_0(void **state)
{
    ranks_all(RANKS, ask_for_hosts, NULL);
}

/* ---- ranks that disagree, wrong arguments -------------------------------- */

static oar_status ask_for_different_sizes(oar_group *g, void *arg)
{
    size_t bytes = 100;
    oar_window *w = NULL;

    CHECK(oar_window_create(g, bytes + (oar_group_rank(g) == 2), NULL, &w) ==
          OAR_E_MISMATCH);
    CHECK(w == NULL && oar_last_error()->peer == 2);
    CHECK(strstr(oar_last_error_text(),
                 "rank 0 asks for 100 bytes, rank 2 for 101") != NULL);
    return share(g, &bytes);
}

static void ranks_that_want_different_sizes_are_named(void **state)
{
    run_on_sharing(RANKS, ask_for_different_sizes, NULL);
}

/* A rank that asks for more than there can be fails; the others name it. */
static oar_status ask_for_too_much(oar_group *g, void *arg)
{
    size_t bytes = 100;
    oar_window *w = NULL;

    CHECK(oar_window_create(g, oar_group_rank(g) == 1 ? SIZE_MAX / 2 : bytes,
                            NULL, &w) == OAR_E_NOMEM);
    if (oar_group_rank(g) != 1)
        CHECK(oar_last_error()->peer == 1 &&
              strstr(oar_last_error_text(), "rank 1 ") != NULL);
    return share(g, &bytes);
}

static void a_rank_without_memory_is_named(void **state)
{
    run_on_sharing(RANKS, ask_for_too_much, NULL);
}

static oar_status call_wrongly(oar_group *g, void *arg)
{
    size_t bytes = 50;
    oar_window *w = NULL;

    CHECK(oar_window_create(NULL, 1, NULL, &w) == OAR_E_ARG);
    CHECK(oar_window_create(g, 1, NULL, NULL) == OAR_E_ARG);
    CHECK_OK(oar_batch_begin(g));
    CHECK(oar_window_create(g, 1, NULL, &w) == OAR_E_STATE);
    CHECK_OK(oar_batch_end(g, NULL));
    CHECK(w == NULL);
    CHECK_OK(share(g, &bytes));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_group_abort(g, "enough"));
    CHECK(oar_window_create(g, 1, NULL, &w) == OAR_E_ABORTED);
    return OAR_OK;
}

static void wrong_calls_are_refused(void **state)
{
    char token[OAR_WINDOW_TOKEN_BYTES];

    run_on_sharing(2, call_wrongly, NULL);
    assert_null(oar_window_retain(NULL));
    oar_window_release(NULL);
    assert_null(oar_window_data(NULL));
    assert_int_equal(oar_window_bytes(NULL), 0);
    assert_int_equal(oar_window_ranks(NULL), 0);
    assert_int_equal(oar_window_has(NULL, 0), 0);
    assert_int_equal(oar_window_protect(NULL, 0, 0, 1), OAR_E_ARG);
    assert_int_equal(oar_window_export(NULL, token), OAR_E_ARG);
}

/* ---- protection ---------------------------------------------------------- */

static oar_status protect(oar_group *g, void *arg)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 4 * page + 5;
    int rank = oar_group_rank(g);
    unsigned char *data;
    oar_window *w;

    CHECK_OK(oar_window_create(g, bytes, NULL, &w));
    data = oar_window_data(w);
    if (rank == 0) { /* pages 1 and 2 lie wholly inside */
        CHECK_OK(oar_window_protect(w, 1, 3 * page, 0));
        CHECK_OK(oar_window_protect(w, page + 1, page, 1)); /* no whole page */
        for (size_t i = 0; i < 5; i++)
            CHECK(is_writable(data + i * page) == (i == 0 || i > 2));
        CHECK_OK(oar_window_protect(w, 4 * page, 5, 0));
        CHECK(!is_writable(data + 4 * page) && is_writable(data + 3 * page));
    }
    CHECK_OK(oar_barrier(g, NULL, NULL));
    for (size_t i = 0; rank == 1 && i < bytes; i++)
        data[i] = 9;
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK(data[page] == 9 && data[bytes - 1] == 9);
    if (rank == 1) {
        oar_window_release(w);
        return OAR_OK;
    }
    CHECK_OK(oar_window_protect(w, 0, bytes, 1));
    for (size_t i = 0; i < 5; i++)
        CHECK(is_writable(data + i * page) == 1);
    CHECK(oar_window_protect(w, bytes, 1, 0) == OAR_E_ARG);
    CHECK(oar_window_protect(w, 1, bytes, 0) == OAR_E_ARG);
    CHECK(oar_window_protect(w, SIZE_MAX, 2, 0) == OAR_E_ARG);
    CHECK_OK(oar_window_protect(w, bytes, 0, 0));
    CHECK_OK(oar_window_protect(w, 0, 0, 0));
    CHECK(is_writable(data) == 1);
    oar_window_release(w);
    return OAR_OK;
}

static void only_whole_pages_of_this_rank_are_protected(void **state)
{
    run_on_sharing(2, protect, NULL);
}

/* ---- other processes ----------------------------------------------------- */

static oar_window *window_of_one(size_t bytes)
{
    oar_group *g;
    oar_window *w;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &g), OAR_OK);
    assert_int_equal(oar_window_create(g, bytes, NULL, &w), OAR_OK);
    oar_group_destroy(g);
    return w;
}

/* A child of fork is another process: it has nothing but the token. */
static int import_in_child(const char *token, unsigned char *old)
{
    oar_window *r, *w;
    unsigned char *data, seen;

    if (msync(old, 1, MS_ASYNC) == 0 || errno != ENOMEM)
        return 1; /* the parent's mapping is here */
    if (oar_window_import(token, 0, &r) != OAR_OK ||
        oar_window_import(token, 1, &w) != OAR_OK)
        return 2;
    data = oar_window_data(r);
    if (data[ODD_BYTES - 1] != 77 || is_writable(data) != 0 ||
        oar_window_protect(r, 0, ODD_BYTES, 1) != OAR_E_STATE ||
        mprotect(data, 1, PROT_READ | PROT_WRITE) == 0)
        return 3;
    if (oar_window_bytes(w) != ODD_BYTES || oar_window_ranks(w) != 0 ||
        oar_window_has(w, 0))
        return 4;
    ((unsigned char *)oar_window_data(w))[0] = 88;
    seen = data[0];
    oar_window_release(r);
    oar_window_release(w);
    return seen == 88 ? 0 : 5;
}

static void another_process_imports_a_window(void **state)
{
    char token[OAR_WINDOW_TOKEN_BYTES];
    oar_window *w = window_of_one(ODD_BYTES), *again;
    unsigned char *data = oar_window_data(w);
    int status;
    pid_t child;

    data[ODD_BYTES - 1] = 77;
    assert_int_equal(oar_window_export(w, token), OAR_OK);
    if ((child = fork()) == 0)
        _exit(import_in_child(token, data));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(data[0], 88);
    assert_int_equal(oar_window_import(token, 0, &again), OAR_OK);
    oar_window_release(w);
    assert_int_equal(((unsigned char *)oar_window_data(again))[0], 88);
    assert_int_equal(oar_window_import(token, 0, &w), OAR_E_NOT_FOUND);
    assert_int_equal(oar_window_export(again, token), OAR_OK); /* passed on */
    assert_int_equal(oar_window_import(token, 0, &w), OAR_OK);
    oar_window_release(again);
    assert_int_equal(((unsigned char *)oar_window_data(w))[0], 88);
    oar_window_release(w);
}

/* Another descriptor in the place of a window's is not taken for it. */
static void a_token_opens_nothing_else(void **state)
{
    char token[OAR_WINDOW_TOKEN_BYTES], other[OAR_WINDOW_TOKEN_BYTES];
    oar_window *a = window_of_one(5), *b, *got = NULL;
    static const char *const wrong[] = {
        "",
        "oarsong-window-1",
        "oarsong-window-1:1:2:3:4",
        "oarsong-window-1:-1:3:5:0123456789abcdef0123456789abcdef",
        "oarsong-window-1:01:3:5:0123456789abcdef0123456789abcdef",
    };

    assert_int_equal(oar_window_export(a, token), OAR_OK);
    oar_window_release(a);
    b = window_of_one(5); /* has a's number now */
    assert_int_equal(oar_window_export(b, other), OAR_OK);
    assert_string_not_equal(token, other);
    assert_int_equal(oar_window_import(token, 0, &got), OAR_E_NOT_FOUND);
    oar_window_release(b);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(oar_window_import(wrong[i], 0, &got), OAR_E_ARG);
    assert_int_equal(oar_window_import(NULL, 0, &got), OAR_E_ARG);
    assert_int_equal(oar_window_import(token, 0, NULL), OAR_E_ARG);
    strcat(other, "0");
    assert_int_equal(oar_window_import(other, 0, &got), OAR_E_ARG);
    assert_null(got);
}

static void a_child_of_fork_does_not_have_the_window(void **state)
{
    char token[OAR_WINDOW_TOKEN_BYTES];
    oar_window *w = window_of_one(ODD_BYTES);
    int status;
    pid_t child = fork();

    if (child == 0) {
        int before = open_descriptors(), refused;

        refused = oar_window_protect(w, 0, 1, 0) == OAR_E_STATE &&
                  oar_window_export(w, token) == OAR_E_STATE;
        oar_window_release(w);
        _exit(refused && open_descriptors() == before ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    memset(oar_window_data(w), 1, ODD_BYTES);
    oar_window_release(w);
}

/* ---- without memory ------------------------------------------------------ */

static oar_status make_and_import(void *arg)
{
    char token[OAR_WINDOW_TOKEN_BYTES];
    oar_window *w, *other;
    oar_status status = oar_window_create(arg, ODD_BYTES, NULL, &w);

    if (status != OAR_OK)
        return status;
    status = oar_window_export(w, token);
    if (status == OAR_OK)
        status = oar_window_import(token, 1, &other);
    if (status == OAR_OK)
        oar_window_release(other);
    oar_window_release(w);
    return status;
}

static void without_memory_nothing_is_left(void **state)
{
    oar_group *g;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &g), OAR_OK);
    fail_each_allocation(make_and_import, g);
    oar_group_destroy(g);
}

/* One of three ranks has no memory at some point: all fail, and go on. */
static oar_status lack_memory(oar_group *g, void *arg)
{
    size_t bytes = ODD_BYTES;
    int failures = 0;

    CHECK_OK(share(g, &bytes)); /* the plans are made */
    for (uint64_t n = 1;; n++, failures++) {
        oar_window *w = NULL;
        leak_check before = { 0 };
        oar_status status;

        CHECK_OK(oar_barrier(g, NULL, NULL));
        if (oar_group_rank(g) == 1) {
            before = leak_check_begin();
            oar_memory_fail_after(n);
        }
        CHECK_OK(oar_barrier(g, NULL, NULL));
        status = oar_window_create(g, bytes, NULL, &w);
        CHECK_OK(oar_barrier(g, NULL, NULL));
        if (oar_group_rank(g) == 1)
            oar_memory_fail_after(0);
        CHECK_OK(oar_barrier(g, NULL, NULL));
        if (status == OAR_OK) {
            oar_window_release(w);
            break; /* it took fewer */
        }
        CHECK(status == OAR_E_NOMEM && w == NULL);
        CHECK(oar_last_error()->status == OAR_E_NOMEM);
        if (oar_group_rank(g) == 1)
            CHECK(leak_check_begin().live == before.live &&
                  leak_check_begin().descriptors == before.descriptors);
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK(n < 100);
    }
    CHECK(failures >= 3);
    return OAR_OK;
}

static void a_rank_without_memory_fails_all_and_leaves_nothing(void **state)
{
    run_on_sharing(RANKS, lack_memory, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ranks_of_a_host_have_one_copy),
        cmocka_unit_test(a_window_outlives_its_group),
        cmocka_unit_test(ranks_that_share_no_memory_get_none),
        cmocka_unit_test(a_group_of_one_has_memory_of_its_own),
        cmocka_unit_test(each_host_has_a_copy),
        cmocka_unit_test(ranks_of_one_machine_are_on_host_0),
        cmocka_unit_test(ranks_that_want_different_sizes_are_named),
        cmocka_unit_test(a_rank_without_memory_is_named),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(only_whole_pages_of_this_rank_are_protected),
        cmocka_unit_test(another_process_imports_a_window),
        cmocka_unit_test(a_token_opens_nothing_else),
        cmocka_unit_test(a_child_of_fork_does_not_have_the_window),
        cmocka_unit_test(without_memory_nothing_is_left),
        cmocka_unit_test(a_rank_without_memory_fails_all_and_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
