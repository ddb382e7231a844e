/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for other ranks: what is reported meanwhile, and when the wait
 * ends. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/log.h>

#include "base/clock.h"
#include "link/rendezvous.h"
#include "support/last_error.h"

enum { LONG_MS = 60000 };

static struct {
    int lines;
    char text[1024];
} heard;

static void hear(void *arg, oar_log_level level, const char *line)
{
    heard.lines++;
    snprintf(heard.text, sizeof heard.text, "%s", line);
}

static void key_of(const void *arg, int rank, char *key, size_t bytes)
{
    snprintf(key, bytes, "here/%d", rank);
}

static oari_rendezvous rendezvous_in(oar_store *store)
{
    return (oari_rendezvous){ .store = store,
                              .group = "g",
                              .rank = 0,
                              .ranks = 5,
                              .timeout_ms = 1300,
                              .key = key_of };
}

static void missing_ranks_are_named_after_a_second(void **state)
{
    oar_store *store;
    oari_rendezvous r;
    void *value = NULL;
    size_t bytes;

    OK(oar_store_create_memory(&store));
    OK(oar_store_set(store, "here/2", "", 0));
    r = rendezvous_in(store);
    memset(&heard, 0, sizeof heard);
    oar_log_to(hear, NULL, OAR_LOG_WARN);
    assert_fails_with(oari_rendezvous_get(&r, "here/1", 1, oari_deadline(1300),
                                          &value, &bytes),
                      OAR_E_TIMEOUT,
                      "rank 1 did not join group \"g\" in 1300 ms");
    oar_log_to(NULL, NULL, OAR_LOG_WARN);
    assert_int_equal(oar_last_error()->peer, 1);
    assert_int_equal(heard.lines, 1);
    assert_non_null(strstr(heard.text, "group \"g\", rank 0 has waited 1."));
    assert_non_null(strstr(heard.text, " for ranks 1, 3, 4 to join"));
    assert_null(value);
    oar_store_destroy(store);
}

static void as_rank_of_a_launcher(int rank, int size)
{
    char text[16];

    setenv("OARSONG_RUN_ID", "test", 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("OARSONG_RANK", text, 1);
    snprintf(text, sizeof text, "%d", size);
    setenv("OARSONG_SIZE", text, 1);
}

static int forget_launcher(void **state)
{
    unsetenv("OARSONG_RUN_ID");
    unsetenv("OARSONG_RANK");
    unsetenv("OARSONG_SIZE");
    return 0;
}

static void a_rank_that_has_ended_is_not_waited_for(void **state)
{
    int64_t deadline = oari_deadline(LONG_MS);
    char key[OARI_ENDED_KEY];
    oar_store *store;
    oari_rendezvous r;
    void *value = NULL;
    size_t bytes;

    OK(oar_store_create_memory(&store));
    oari_ended_key(1, key);
    OK(oar_store_set(store, key, "0", 1));
    r = rendezvous_in(store);
    as_rank_of_a_launcher(0, 5);
    assert_fails_with(
        oari_rendezvous_get(&r, "here/1", 1, deadline, &value, &bytes),
        OAR_E_PEER, "rank 1 ended with code 0 before it joined group \"g\"");
    assert_int_equal(oar_last_error()->peer, 1);
    assert_true(oari_now_ns() < deadline);
    oar_store_destroy(store);
}

/* Its ranks are others than the launcher's: nothing can be told from those. */
static void the_end_of_another_group_s_rank_means_nothing(void **state)
{
    char key[OARI_ENDED_KEY];
    oar_store *store;
    oari_rendezvous r;
    void *value = NULL;
    size_t bytes;

    OK(oar_store_create_memory(&store));
    oari_ended_key(1, key);
    OK(oar_store_set(store, key, "0", 1));
    r = rendezvous_in(store);
    as_rank_of_a_launcher(0, 8);
    assert_int_equal(oari_rendezvous_get(&r, "here/1", 1, oari_deadline(700),
                                         &value, &bytes),
                     OAR_E_TIMEOUT);
    oar_store_destroy(store);
}

/* A process that signs in as rank 1, and lives until it is killed. */
static pid_t start_namesake(const char *folder)
{
    int ends[2];
    char signed_in = 0;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    if ((pid = fork()) == 0) {
        oar_store *store;
        signed_in = oar_store_create_file(folder, &store) == OAR_OK &&
                    oari_rendezvous_sign(store, "g", 1) == OAR_OK;
        if (write(ends[1], &signed_in, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &signed_in, 1), 1);
    close(ends[0]);
    assert_int_equal(signed_in, 1);
    return pid;
}

static void a_rank_that_is_there_twice_is_named(void **state)
{
    char folder[] = "/tmp/oarsong-test-XXXXXX", text[64];
    oar_store *store;
    pid_t pid;

    assert_non_null(mkdtemp(folder));
    pid = start_namesake(folder);
    OK(oar_store_create_file(folder, &store));
    OK(oari_rendezvous_sign(store, "g", 0));
    OK(oari_rendezvous_sign(store, "another", 1));
    assert_fails_with(oari_rendezvous_sign(store, "g", 1), OAR_E_RANK,
                      "rank 1 of group \"g\" is there twice");
    snprintf(text, sizeof text, "process %d has joined", (int)pid);
    assert_non_null(strstr(oar_last_error_text(), text));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    OK(oari_rendezvous_sign(store, "g", 1)); /* the other has ended */
    OK(oari_rendezvous_sign(store, "g", 1)); /* this is the same process */
    oar_store_clear(store);
    oar_store_destroy(store);
}

static void an_unknown_host_is_not_waited_for(void **state)
{
    int64_t deadline = oari_deadline(LONG_MS);
    oar_store *store = NULL;

    assert_fails_with(
        oar_store_create_tcp("no such.invalid:80", LONG_MS, &store),
        OAR_E_NOT_FOUND, "no such.invalid");
    assert_null(store);
    assert_true(oari_now_ns() < deadline);
}

/* Port 1 is for a service that no machine has any more. */
static void a_missing_store_is_reported_after_a_second(void **state)
{
    oar_store *store = NULL;

    memset(&heard, 0, sizeof heard);
    oar_log_to(hear, NULL, OAR_LOG_WARN);
    assert_fails_with(oar_store_create_tcp("127.0.0.1:1", 2500, &store),
                      OAR_E_CLOSED, "no store at 127.0.0.1:1");
    oar_log_to(NULL, NULL, OAR_LOG_WARN);
    assert_int_equal(heard.lines, 1);
    assert_non_null(strstr(heard.text, "no store at 127.0.0.1:1 yet: "));
}

#define TEST(name) cmocka_unit_test_teardown(name, forget_launcher)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(missing_ranks_are_named_after_a_second),
        TEST(a_rank_that_has_ended_is_not_waited_for),
        TEST(the_end_of_another_group_s_rank_means_nothing),
        TEST(a_rank_that_is_there_twice_is_named),
        TEST(an_unknown_host_is_not_waited_for),
        TEST(a_missing_store_is_reported_after_a_second),
    };

    forget_launcher(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
