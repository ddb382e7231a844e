/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of store, by the same tests: what store.h promises. What only the
 * TCP store has is in store_tcp_test.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/group.h>
#include <oarsong/store.h>

#include "base/clock.h"
#include "store/store.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { PATIENCE_MS = 20000 };

typedef enum store_kind {
    MEMORY,
    FILES,
    TCP,
    PREFIX,
    PREFIX_OF_TCP
} store_kind;

/* One store, and a second handle on what it holds where that can be. */
typedef struct fixture {
    store_kind kind;
    char folder[FOLDER_PATH]; /* "": no folder */
    oar_store_server *server;
    oar_store *parent; /* of a prefix */
    oar_store *store;
    oar_store *other;
} fixture;

static fixture *make(store_kind kind)
{
    fixture *f = calloc(1, sizeof *f);

    f->kind = kind;
    return f;
}

static int make_memory(void **state)
{
    fixture *f = make(MEMORY);

    assert_int_equal(oar_store_create_memory(&f->store), OAR_OK);
    f->other = f->store;
    *state = f;
    return 0;
}

static int make_file(void **state)
{
    fixture *f = make(FILES);

    folder_make(f->folder);
    assert_int_equal(oar_store_create_file(f->folder, &f->store), OAR_OK);
    assert_int_equal(oar_store_create_file(f->folder, &f->other), OAR_OK);
    *state = f;
    return 0;
}

static void connect_to(fixture *f, oar_store **store)
{
    assert_int_equal(oar_store_create_tcp(oar_store_server_address(f->server),
                                          PATIENCE_MS, store),
                     OAR_OK);
}

static int make_tcp(void **state)
{
    fixture *f = make(TCP);

    assert_int_equal(oar_store_serve("127.0.0.1:0", &f->server), OAR_OK);
    connect_to(f, &f->store);
    connect_to(f, &f->other);
    *state = f;
    return 0;
}

/* The same by TLS, as between hosts: both ends keep what they began with. */
static int make_tls(void **state)
{
    int made;

    setenv("OARSONG_WIRE", "tls", 1);
    setenv("OARSONG_SECRET",
           "00112233445566778899aabbccddeeff"
           "00112233445566778899aabbccddeeff",
           1);
    made = make_tcp(state);
    unsetenv("OARSONG_SECRET");
    unsetenv("OARSONG_WIRE");
    return made;
}

/* Keys beside the prefix, which nothing may see or touch. */
static void surround(oar_store *parent)
{
    assert_int_equal(oar_store_set(parent, "spa", "1", 1), OAR_OK);
    assert_int_equal(oar_store_set(parent, "spac", "2", 1), OAR_OK);
    assert_int_equal(oar_store_set(parent, "spb", "3", 1), OAR_OK);
    assert_int_equal(oar_store_set(parent, "k", "4", 1), OAR_OK);
}

static int make_prefix(void **state)
{
    fixture *f = make(PREFIX);

    assert_int_equal(oar_store_create_memory(&f->parent), OAR_OK);
    surround(f->parent);
    assert_int_equal(oar_store_create_prefix(f->parent, "space/", &f->store),
                     OAR_OK);
    assert_int_equal(oar_store_create_prefix(f->parent, "space/", &f->other),
                     OAR_OK);
    *state = f;
    return 0;
}

static int make_prefix_of_tcp(void **state)
{
    fixture *f = make(PREFIX_OF_TCP);
    oar_store *outer;

    assert_int_equal(oar_store_serve("127.0.0.1:0", &f->server), OAR_OK);
    connect_to(f, &f->parent);
    surround(f->parent);
    assert_int_equal(oar_store_create_prefix(f->parent, "sp", &outer), OAR_OK);
    assert_int_equal(oar_store_create_prefix(outer, "ace/", &f->store), OAR_OK);
    assert_int_equal(oar_store_create_prefix(outer, "ace/", &f->other), OAR_OK);
    oar_store_destroy(outer); /* its prefixes hold it */
    *state = f;
    return 0;
}

static void assert_surrounded(oar_store *parent);

static int drop(void **state)
{
    fixture *f = *state;

    if (f->parent != NULL)
        assert_surrounded(f->parent);
    oar_store_destroy(f->parent);
    if (f->other != f->store)
        oar_store_destroy(f->other);
    oar_store_destroy(f->store);
    oar_store_server_destroy(f->server);
    if (f->folder[0] != 0)
        folder_remove(f->folder);
    free(f);
    return 0;
}

static void assert_holds(oar_store *store, const char *key, const void *value,
                         size_t bytes)
{
    void *found;
    size_t found_bytes;

    assert_int_equal(oar_store_get(store, key, 0, &found, &found_bytes),
                     OAR_OK);
    assert_int_equal(found_bytes, bytes);
    assert_memory_equal(found, value, bytes);
    assert_int_equal(((char *)found)[bytes], 0);
    oar_free(found);
}

static void assert_surrounded(oar_store *parent)
{
    assert_holds(parent, "spa", "1", 1);
    assert_holds(parent, "spac", "2", 1);
    assert_holds(parent, "spb", "3", 1);
    assert_holds(parent, "k", "4", 1);
}

static void assert_lacks(oar_store *store, const char *key)
{
    void *value = store;
    size_t bytes = 77;

    assert_int_equal(oar_store_get(store, key, 0, &value, &bytes),
                     OAR_E_TIMEOUT);
    assert_non_null(strstr(oar_last_error_text(), key));
    assert_ptr_equal(value, store);
    assert_int_equal(bytes, 77);
}

/* ---- one at a time ------------------------------------------------------- */

static void what_is_set_is_got_through_every_handle(void **state)
{
    fixture *f = *state;

    assert_lacks(f->store, "k");
    assert_int_equal(oar_store_set(f->store, "k", "abc", 3), OAR_OK);
    assert_holds(f->store, "k", "abc", 3);
    assert_holds(f->other, "k", "abc", 3);
    assert_int_equal(oar_store_set(f->other, "k", "longer than before", 18),
                     OAR_OK);
    assert_holds(f->store, "k", "longer than before", 18);
    assert_int_equal(oar_store_set(f->store, "k", "s", 1), OAR_OK);
    assert_holds(f->other, "k", "s", 1);
}

static void a_value_may_be_empty_binary_and_large(void **state)
{
    fixture *f = *state;
    unsigned char *large = malloc(OAR_STORE_VALUE_MAX + 1);

    assert_int_equal(oar_store_set(f->store, "empty", NULL, 0), OAR_OK);
    assert_holds(f->other, "empty", "", 0);
    for (int i = 0; i <= OAR_STORE_VALUE_MAX; i++)
        large[i] = (unsigned char)(i * 7 + i / 256);
    assert_int_equal(
        oar_store_set(f->store, "full", large, OAR_STORE_VALUE_MAX), OAR_OK);
    assert_holds(f->other, "full", large, OAR_STORE_VALUE_MAX);
    assert_fails_with(
        oar_store_set(f->store, "full", large, OAR_STORE_VALUE_MAX + 1),
        OAR_E_ARG, "\"full\"");
    assert_holds(f->other, "full", large, OAR_STORE_VALUE_MAX);
    free(large);
}

static void keys_may_have_any_character(void **state)
{
    fixture *f = *state;
    static const char *const key[] = {
        ".",        "..",       "/",          "a/b",   "../up",     "%2F",
        ".lock",    ".new",     "with space", "tab\t", "new\nline", "a%b",
        "\xc3\xa4", "\x01\xff", "a",          "A",     "*?[]",      "a.b",
    };
    enum { KEYS = sizeof key / sizeof *key };

    for (int i = 0; i < KEYS; i++)
        assert_int_equal(oar_store_set(f->store, key[i], &i, sizeof i), OAR_OK);
    for (int i = 0; i < KEYS; i++)
        assert_holds(f->other, key[i], &i, sizeof i);
    for (int i = 0; i < KEYS; i++) {
        assert_int_equal(oar_store_delete(f->other, key[i]), OAR_OK);
        assert_lacks(f->store, key[i]);
    }
}

static void keys_have_1_to_200_bytes(void **state)
{
    fixture *f = *state;
    char key[OAR_STORE_KEY_MAX + 2];

    memset(key, 'k', sizeof key);
    key[OAR_STORE_KEY_MAX + 1] = 0;
    assert_fails_with(oar_store_set(f->store, key, "v", 1), OAR_E_ARG,
                      "201 bytes");
    assert_fails_with(
        oar_store_get(f->store, key, 0, (void *[]){ NULL }, (size_t[]){ 0 }),
        OAR_E_ARG, "201 bytes");
    assert_fails_with(oar_store_set(f->store, "", "v", 1), OAR_E_ARG,
                      "0 bytes");
    assert_fails_with(oar_store_set(f->store, NULL, "v", 1), OAR_E_ARG, "key");
    key[OAR_STORE_KEY_MAX] = 0;
    if (f->parent != NULL) { /* the prefix counts */
        assert_fails_with(oar_store_set(f->store, key, "v", 1), OAR_E_ARG,
                          "prefix");
        key[OAR_STORE_KEY_MAX - strlen("space/")] = 0;
    }
    assert_int_equal(oar_store_set(f->store, key, "v", 1), OAR_OK);
    assert_holds(f->other, key, "v", 1);
}

static void bad_arguments_are_refused(void **state)
{
    fixture *f = *state;
    const char *key = NULL;
    void *value;
    size_t bytes;
    int64_t sum = 7;
    int swapped = 7;

    assert_fails_with(oar_store_set(NULL, "k", "v", 1), OAR_E_ARG, "store");
    assert_fails_with(oar_store_set(f->store, "k", NULL, 1), OAR_E_ARG,
                      "\"k\"");
    assert_fails_with(oar_store_get(NULL, "k", 0, &value, &bytes), OAR_E_ARG,
                      "store");
    assert_fails_with(oar_store_get(f->store, "k", 0, NULL, &bytes), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_store_get(f->store, "k", 0, &value, NULL), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_store_add(NULL, "k", 1, &sum), OAR_E_ARG, "store");
    assert_fails_with(
        oar_store_compare_set(NULL, "k", NULL, 0, "v", 1, &swapped), OAR_E_ARG,
        "store");
    assert_fails_with(
        oar_store_compare_set(f->store, "k", NULL, 0, NULL, 1, &swapped),
        OAR_E_ARG, "\"k\"");
    assert_fails_with(oar_store_delete(NULL, "k"), OAR_E_ARG, "store");
    assert_fails_with(oar_store_wait(f->store, -1, &key, 0), OAR_E_ARG, "-1");
    assert_fails_with(oar_store_wait(f->store, 1, NULL, 0), OAR_E_ARG,
                      "1 keys");
    assert_fails_with(oar_store_wait(f->store, 1, &key, 0), OAR_E_ARG, "key");
    assert_fails_with(oar_store_clear(NULL), OAR_E_ARG, "store");
    assert_int_equal(sum, 7);
    assert_int_equal(swapped, 7);
    oar_store_destroy(NULL);
}

static void add_counts_from_zero_and_keeps_text(void **state)
{
    fixture *f = *state;
    int64_t sum = 0;

    assert_int_equal(oar_store_add(f->store, "n", 5, &sum), OAR_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(oar_store_add(f->other, "n", -12, &sum), OAR_OK);
    assert_int_equal(sum, -7);
    assert_holds(f->store, "n", "-7", 2);
    assert_int_equal(oar_store_add(f->store, "n", 0, NULL), OAR_OK);
    assert_int_equal(oar_store_set(f->store, "n", "40", 2), OAR_OK);
    assert_int_equal(oar_store_add(f->other, "n", 2, &sum), OAR_OK);
    assert_int_equal(sum, 42);
}

static void add_refuses_what_is_no_number_or_overflows(void **state)
{
    fixture *f = *state;
    int64_t sum = 7;

    assert_int_equal(oar_store_set(f->store, "text", "abc", 3), OAR_OK);
    assert_fails_with(oar_store_add(f->store, "text", 1, &sum), OAR_E_ARG,
                      "text");
    assert_holds(f->store, "text", "abc", 3);
    assert_int_equal(oar_store_add(f->store, "big", INT64_MAX, NULL), OAR_OK);
    assert_fails_with(oar_store_add(f->store, "big", 1, &sum), OAR_E_ARG,
                      "big");
    assert_int_equal(sum, 7);
    assert_int_equal(oar_store_add(f->store, "big", INT64_MIN, &sum), OAR_OK);
    assert_int_equal(sum, -1);
    assert_int_equal(oar_store_add(f->store, "small", INT64_MIN, &sum), OAR_OK);
    assert_int_equal(oar_store_add(f->store, "small", 0, &sum), OAR_OK);
    assert_int_equal(sum, INT64_MIN);
}

static void compare_set_swaps_only_what_was_expected(void **state)
{
    fixture *f = *state;
    int swapped = 7;

    assert_int_equal(
        oar_store_compare_set(f->store, "k", "x", 1, "y", 1, &swapped), OAR_OK);
    assert_int_equal(swapped, 0);
    assert_lacks(f->store, "k");
    assert_int_equal(
        oar_store_compare_set(f->store, "k", NULL, 0, "first", 5, &swapped),
        OAR_OK);
    assert_int_equal(swapped, 1);
    assert_int_equal(
        oar_store_compare_set(f->other, "k", NULL, 0, "second", 6, &swapped),
        OAR_OK);
    assert_int_equal(swapped, 0);
    assert_int_equal(
        oar_store_compare_set(f->other, "k", "firs", 4, "third", 5, &swapped),
        OAR_OK);
    assert_int_equal(swapped, 0);
    assert_holds(f->store, "k", "first", 5);
    assert_int_equal(
        oar_store_compare_set(f->other, "k", "first", 5, NULL, 0, NULL),
        OAR_OK);
    assert_holds(f->store, "k", "", 0);
    assert_int_equal(
        oar_store_compare_set(f->store, "k", "", 0, "again", 5, &swapped),
        OAR_OK);
    assert_int_equal(swapped, 1);
    assert_holds(f->other, "k", "again", 5);
}

static void delete_removes_one_key_once(void **state)
{
    fixture *f = *state;

    assert_fails_with(oar_store_delete(f->store, "gone"), OAR_E_NOT_FOUND,
                      "gone");
    assert_int_equal(oar_store_set(f->store, "gone", "v", 1), OAR_OK);
    assert_int_equal(oar_store_set(f->store, "stays", "v", 1), OAR_OK);
    assert_int_equal(oar_store_delete(f->other, "gone"), OAR_OK);
    assert_lacks(f->store, "gone");
    assert_fails_with(oar_store_delete(f->store, "gone"), OAR_E_NOT_FOUND,
                      "gone");
    assert_holds(f->store, "stays", "v", 1);
}

static void clear_removes_every_key(void **state)
{
    fixture *f = *state;

    assert_int_equal(oar_store_set(f->store, "a", "v", 1), OAR_OK);
    assert_int_equal(oar_store_add(f->store, "b", 1, NULL), OAR_OK);
    assert_int_equal(oar_store_clear(f->store), OAR_OK);
    assert_lacks(f->store, "a");
    assert_lacks(f->other, "b");
    assert_int_equal(oar_store_clear(f->other), OAR_OK);
    if (f->folder[0] != 0)
        assert_int_equal(folder_entries(f->folder), -1);
}

static void assert_lists(oar_store *store, const char *prefix, int count,
                         const char *const *key)
{
    char **found = NULL;
    int n = -1;

    assert_int_equal(oar_store_list(store, prefix, &n, &found), OAR_OK);
    assert_int_equal(n, count);
    for (int i = 0; i < count; i++)
        assert_string_equal(found[i], key[i]);
    assert_null(found[count]);
    oar_free(found);
}

static void a_list_has_the_keys_that_begin_so_in_order(void **state)
{
    fixture *f = *state;
    static const char *const all[] = { "\x01", "a",   "a b", "a.",  "a/1",
                                       "a/2",  "aa/", "b",   "\xff" };

    assert_lists(f->store, "", 0, NULL);
    for (int i = 8; i >= 0; i--)
        assert_int_equal(oar_store_set(f->store, all[i], "v", 1), OAR_OK);
    assert_lists(f->other, "", 9, all);
    assert_lists(f->other, NULL, 9, all);
    assert_lists(f->other, "a/", 2, all + 4);
    assert_lists(f->other, "a", 6, all + 1);
    assert_lists(f->other, "a/1", 1, all + 4);
    assert_lists(f->other, "a/11", 0, NULL);
    assert_lists(f->other, "c", 0, NULL);
    assert_int_equal(oar_store_delete(f->store, "a/1"), OAR_OK);
    assert_lists(f->other, "a/", 1, all + 5);
}

/* More than one message of the wire holds, and than a table begins with. */
static void a_list_may_be_long(void **state)
{
    fixture *f = *state;
    enum { MANY = 4999 };
    char key[32], **found = NULL;
    int n = 0;

    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "many/%d", i * 7 % MANY);
        assert_int_equal(oar_store_set(f->store, key, "", 0), OAR_OK);
    }
    assert_int_equal(oar_store_list(f->other, "many/", &n, &found), OAR_OK);
    assert_int_equal(n, MANY);
    for (int i = 1; i < n; i++)
        assert_true(strcmp(found[i - 1], found[i]) < 0);
    oar_free(found);
    assert_int_equal(oar_store_clear(f->store), OAR_OK);
    assert_lists(f->store, "", 0, NULL);
}

static void a_list_refuses_bad_arguments(void **state)
{
    fixture *f = *state;
    char wide[OAR_STORE_KEY_MAX + 2], **keys = NULL;
    int n = 7;

    assert_fails_with(oar_store_list(NULL, "", &n, &keys), OAR_E_ARG, "store");
    assert_fails_with(oar_store_list(f->store, "", NULL, &keys), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_store_list(f->store, "", &n, NULL), OAR_E_ARG,
                      "nowhere");
    assert_null(keys);
    memset(wide, 'w', sizeof wide);
    wide[OAR_STORE_KEY_MAX + 1] = 0;
    assert_lists(f->store, wide, 0, NULL);
}

static void a_prefix_in_a_store_is_a_store(void **state)
{
    fixture *f = *state;
    oar_store *inner;
    int64_t sum;
    const char *const key[] = { "n" };

    assert_int_equal(oar_store_set(f->store, "outside", "o", 1), OAR_OK);
    assert_int_equal(oar_store_create_prefix(f->store, "in.", &inner), OAR_OK);
    assert_int_equal(oar_store_add(inner, "n", 5, &sum), OAR_OK);
    assert_holds(f->other, "in.n", "5", 1);
    assert_lacks(inner, "outside");
    assert_lists(inner, "", 1, key);
    assert_int_equal(oar_store_wait(inner, 1, key, 0), OAR_OK);
    assert_int_equal(oar_store_clear(inner), OAR_OK);
    assert_lacks(f->other, "in.n");
    assert_holds(f->other, "outside", "o", 1);
    oar_store_destroy(inner);
    assert_fails_with(oar_store_create_prefix(NULL, "p", &inner), OAR_E_ARG,
                      "store");
    assert_fails_with(oar_store_create_prefix(f->store, NULL, &inner),
                      OAR_E_ARG, "prefix");
    assert_fails_with(oar_store_create_prefix(f->store, "", &inner), OAR_E_ARG,
                      "0 bytes");
    assert_fails_with(oar_store_create_prefix(f->store, "p", NULL), OAR_E_ARG,
                      "place");
}

/* ---- waiting ------------------------------------------------------------- */

static void a_timeout_names_the_key_and_is_kept(void **state)
{
    fixture *f = *state;
    int64_t start = oari_now_ns(), took;
    void *value;
    size_t bytes;

    assert_fails_with(oar_store_get(f->store, "never", 30, &value, &bytes),
                      OAR_E_TIMEOUT, "\"never\"");
    assert_non_null(strstr(oar_last_error_text(), "30 ms"));
    took = oari_now_ns() - start;
    assert_true(took >= 30000000);
    assert_true(took < 10000000000);
}

static void wait_names_the_first_key_that_is_missing(void **state)
{
    fixture *f = *state;
    static const char *const key[] = { "one", "two", "three" };

    assert_int_equal(oar_store_wait(f->store, 0, NULL, 0), OAR_OK);
    assert_int_equal(oar_store_set(f->store, "one", "1", 1), OAR_OK);
    assert_int_equal(oar_store_set(f->store, "three", "3", 1), OAR_OK);
    assert_fails_with(oar_store_wait(f->other, 3, key, 20), OAR_E_TIMEOUT,
                      "\"two\"");
    assert_int_equal(oar_store_set(f->store, "two", NULL, 0), OAR_OK);
    assert_int_equal(oar_store_wait(f->other, 3, key, 0), OAR_OK);
    assert_int_equal(oar_store_wait(f->other, 3, key, -1), OAR_OK);
}

enum { CROWD = 600 };

static void *set_crowd(void *arg)
{
    fixture *f = arg;
    char key[32];

    for (int i = 0; i < CROWD; i++) {
        snprintf(key, sizeof key, "crowd %d", i * 7 % CROWD);
        if (oar_store_set(f->other, key, "", 0) != OAR_OK)
            return arg;
    }
    return NULL;
}

static void many_keys_may_be_waited_for(void **state)
{
    fixture *f = *state;
    static char text[CROWD][32];
    const char *key[CROWD];
    pthread_t thread;
    void *failed;

    for (int i = 0; i < CROWD; i++) {
        snprintf(text[i], sizeof text[i], "crowd %d", i);
        key[i] = text[i];
    }
    assert_int_equal(pthread_create(&thread, NULL, set_crowd, f), 0);
    assert_int_equal(oar_store_wait(f->store, CROWD, key, PATIENCE_MS), OAR_OK);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_int_equal(oar_store_delete(f->other, "crowd 599"), OAR_OK);
    assert_fails_with(oar_store_wait(f->store, CROWD, key, 0), OAR_E_TIMEOUT,
                      "\"crowd 599\"");
}

static void *set_late(void *arg)
{
    fixture *f = arg;
    const char *asked = "asked";

    if (oar_store_wait(f->other, 1, &asked, PATIENCE_MS) == OAR_OK)
        oar_store_set(f->other, "answer", "42", 2);
    return NULL;
}

static void a_waiting_client_sees_what_another_sets(void **state)
{
    fixture *f = *state;
    pthread_t thread;
    void *value;
    size_t bytes;

    assert_int_equal(pthread_create(&thread, NULL, set_late, f), 0);
    assert_int_equal(oar_store_set(f->store, "asked", "?", 1), OAR_OK);
    assert_int_equal(oar_store_get(f->store, "answer", -1, &value, &bytes),
                     OAR_OK);
    assert_string_equal(value, "42");
    oar_free(value);
    pthread_join(thread, NULL);
}

/* ---- several at once ----------------------------------------------------- */

enum { CONTENDERS = 5, ADDS = 100, ROUNDS = 20 };

/* Adds to one number and tries to win every round, as all others do. Returns
 * wins. */
static int contend(oar_store *store, int who)
{
    int wins = 0, swapped;
    char key[32];

    for (int i = 0; i < ADDS; i++)
        if (oar_store_add(store, "sum", who + 1, NULL) != OAR_OK)
            return -1;
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(key, sizeof key, "round %d", i);
        if (oar_store_compare_set(store, key, NULL, 0, &who, sizeof who,
                                  &swapped) != OAR_OK)
            return -1;
        wins += swapped;
    }
    return wins;
}

static void assert_fair(oar_store *store, int wins)
{
    int64_t sum;

    assert_int_equal(oar_store_add(store, "sum", 0, &sum), OAR_OK);
    assert_int_equal(sum, ADDS * CONTENDERS * (CONTENDERS + 1) / 2);
    assert_int_equal(wins, ROUNDS);
}

typedef struct contender {
    oar_store *store;
    int who, wins;
    pthread_t thread;
} contender;

static void *contend_as_thread(void *arg)
{
    contender *c = arg;

    c->wins = contend(c->store, c->who);
    return NULL;
}

static void threads_add_exactly_and_one_wins_each_round(void **state)
{
    fixture *f = *state;
    contender c[CONTENDERS];
    int wins = 0;

    for (int i = 0; i < CONTENDERS; i++) {
        c[i].store = i & 1 ? f->other : f->store;
        c[i].who = i;
        assert_int_equal(
            pthread_create(&c[i].thread, NULL, contend_as_thread, &c[i]), 0);
    }
    for (int i = 0; i < CONTENDERS; i++) {
        pthread_join(c[i].thread, NULL);
        assert_true(c[i].wins >= 0);
        wins += c[i].wins;
    }
    assert_fair(f->store, wins);
}

static void processes_add_exactly_and_one_wins_each_round(void **state)
{
    fixture *f = *state;
    pid_t pid[CONTENDERS];
    int wins = 0, how;

    for (int i = 0; i < CONTENDERS; i++)
        if ((pid[i] = fork()) == 0) {
            oar_store *mine;
            _exit(oar_store_create_file(f->folder, &mine) == OAR_OK
                      ? contend(mine, i)
                      : 255);
        }
    for (int i = 0; i < CONTENDERS; i++) {
        assert_int_equal(waitpid(pid[i], &how, 0), pid[i]);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) <= ROUNDS);
        wins += WEXITSTATUS(how);
    }
    assert_fair(f->store, wins);
}

/* A value is the same byte throughout: half of one and half of another would
 * show. */
static void *rewrite(void *arg)
{
    oar_store *store = arg;
    char value[5000];

    for (int i = 0; i < 200; i++) {
        memset(value, 'a' + i % 26, sizeof value);
        if (oar_store_set(store, "whole", value, 1 + (size_t)i * 7 % 5000) !=
            OAR_OK)
            return arg;
    }
    return oar_store_set(store, "end", "", 0) == OAR_OK ? NULL : arg;
}

static void a_reader_never_sees_half_a_value(void **state)
{
    fixture *f = *state;
    pthread_t thread;
    void *value, *failed;
    size_t bytes;

    assert_int_equal(oar_store_set(f->store, "whole", "x", 1), OAR_OK);
    assert_int_equal(pthread_create(&thread, NULL, rewrite, f->other), 0);
    do {
        assert_int_equal(oar_store_get(f->store, "whole", 0, &value, &bytes),
                         OAR_OK);
        for (size_t i = 1; i < bytes; i++)
            assert_int_equal(((char *)value)[i], ((char *)value)[0]);
        oar_free(value);
    } while (oar_store_get(f->store, "end", 0, &value, &bytes) != OAR_OK);
    oar_free(value);
    pthread_join(thread, &failed);
    assert_null(failed);
}

/* ---- without memory ------------------------------------------------------ */

static oar_status make_one(void *arg)
{
    fixture *f = arg;
    oar_store *store = NULL;
    oar_status status = OAR_E_ARG;

    switch (f->kind) {
    case MEMORY: status = oar_store_create_memory(&store); break;
    case FILES: status = oar_store_create_file(f->folder, &store); break;
    case PREFIX:
        status = oar_store_create_prefix(f->parent, "in", &store);
        break;
    default: break; /* store_tcp_test.c */
    }
    oar_store_destroy(store);
    return status;
}

static oar_status undo(fixture *f, oar_status status)
{
    oar_memory_fail_after(0);
    if (status == OAR_OK)
        status = oar_store_delete(f->store, "k");
    return status;
}

static oar_status set_without(void *arg)
{
    fixture *f = arg;

    return undo(f, oar_store_set(f->store, "k", "v", 1));
}

static oar_status add_without(void *arg)
{
    fixture *f = arg;

    return undo(f, oar_store_add(f->store, "k", 1, NULL));
}

static oar_status swap_without(void *arg)
{
    fixture *f = arg;

    return undo(f, oar_store_compare_set(f->store, "k", NULL, 0, "v", 1, NULL));
}

static oar_status get_without(void *arg)
{
    fixture *f = arg;
    void *value;
    size_t bytes;
    oar_status status = oar_store_get(f->store, "there", 0, &value, &bytes);

    if (status == OAR_OK)
        oar_free(value);
    return status;
}

static oar_status wait_without(void *arg)
{
    fixture *f = arg;
    static const char *const key[] = { "there", "there" };

    return oar_store_wait(f->store, 2, key, 0);
}

static oar_status list_without(void *arg)
{
    fixture *f = arg;
    char **keys = NULL;
    int count;
    oar_status status = oar_store_list(f->store, "", &count, &keys);

    oar_free(keys);
    return status;
}

static oar_status delete_without(void *arg)
{
    fixture *f = arg;
    oar_status status = oar_store_delete(f->store, "there");

    oar_memory_fail_after(0);
    if (status == OAR_OK)
        status = oar_store_set(f->store, "there", "v", 1);
    return status;
}

static void without_memory_every_call_fails_whole(void **state)
{
    fixture *f = *state;

    fail_each_allocation(make_one, f);
    assert_int_equal(oar_store_set(f->store, "there", "v", 1), OAR_OK);
    fail_each_allocation(set_without, f);
    fail_each_allocation(add_without, f);
    fail_each_allocation(swap_without, f);
    fail_each_allocation(get_without, f);
    fail_each_allocation(wait_without, f);
    fail_each_allocation(list_without, f);
    if (f->folder[0] != 0) /* in memory it needs none */
        fail_each_allocation(delete_without, f);
    assert_holds(f->store, "there", "v", 1);
    assert_lacks(f->store, "k");
}

static void a_change_without_memory_leaves_the_old_value(void **state)
{
    fixture *f = *state;

    assert_int_equal(oar_store_set(f->store, "n", "41", 2), OAR_OK);
    for (int n = 1; n <= 2; n++) {
        oar_memory_fail_after((uint64_t)n);
        if (oar_store_add(f->store, "n", 1, NULL) == OAR_OK)
            break;
        oar_memory_fail_after(0);
        assert_holds(f->other, "n", "41", 2);
    }
    oar_memory_fail_after(0);
}

/* ---- making and folders -------------------------------------------------- */

static void constructors_want_somewhere_to_put_it(void **state)
{
    oar_store_server *server = NULL;
    oar_store *store = NULL;

    assert_fails_with(oar_store_create_memory(NULL), OAR_E_ARG, "nowhere");
    assert_fails_with(oar_store_create_file(NULL, &store), OAR_E_ARG, "folder");
    assert_fails_with(oar_store_create_file("/tmp", NULL), OAR_E_ARG, "place");
    assert_fails_with(oar_store_create_tcp(NULL, 0, &store), OAR_E_ARG,
                      "address");
    assert_fails_with(oar_store_create_tcp("127.0.0.1:1", 0, NULL), OAR_E_ARG,
                      "place");
    assert_fails_with(oar_store_serve(NULL, &server), OAR_E_ARG, "address");
    assert_fails_with(oar_store_serve("127.0.0.1:0", NULL), OAR_E_ARG, "place");
    assert_null(server);
    assert_null(store);
}

static void a_folder_that_cannot_be_is_named(void **state)
{
    oar_store *store = NULL;

    assert_fails_with(oar_store_create_file("/proc/no/such/place", &store),
                      OAR_E_SYSTEM, "/proc/no/such/place");
    assert_int_not_equal(oar_last_error()->sys_errno, 0);
    assert_fails_with(oar_store_create_file("/dev/null", &store), OAR_E_SYSTEM,
                      "/dev/null");
    assert_null(store);
}

static void a_folder_is_made_for_its_user_alone_and_keeps_its_keys(void **state)
{
    char base[FOLDER_PATH], folder[FOLDER_PATH + 8];
    oar_store *store;
    struct stat info;

    folder_make(base);
    snprintf(folder, sizeof folder, "%s/new", base);
    assert_int_equal(oar_store_create_file(folder, &store), OAR_OK);
    assert_int_equal(stat(folder, &info), 0);
    assert_int_equal(info.st_mode & 077, 0);
    assert_int_equal(oar_store_set(store, "k", "kept", 4), OAR_OK);
    oar_store_destroy(store);
    assert_int_equal(oar_store_create_file(folder, &store), OAR_OK);
    assert_holds(store, "k", "kept", 4);
    assert_int_equal(oar_store_clear(store), OAR_OK);
    oar_store_destroy(store);
    assert_int_equal(folder_entries(base), 0);
    folder_remove(base);
}

/* A process that has the lock of the folder, until it is told by the pipe; -1:
 * it could not. Closing *release tells it. */
static pid_t hold_lock(const fixture *f, int *release)
{
    char path[FOLDER_PATH + 8], byte = 0;
    int told[2], held[2], fd;
    pid_t pid;

    assert_int_equal(pipe(told), 0);
    assert_int_equal(pipe(held), 0);
    snprintf(path, sizeof path, "%s/.lock", f->folder);
    if ((pid = fork()) == 0) {
        close(told[1]);
        fd = open(path, O_RDWR | O_CREAT, 0600);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || write(held[1], "", 1) != 1)
            _exit(1);
        if (read(told[0], &byte, 1) != 0)
            _exit(1);
        _exit(0);
    }
    close(told[0]);
    close(held[1]);
    assert_int_equal(read(held[0], &byte, 1), 1);
    close(held[0]);
    *release = told[1];
    return pid;
}

static void expect_end(pid_t pid)
{
    int ended = -1;

    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_int_equal(ended, 0);
}

static void a_folder_that_stays_locked_is_given_up_in_time(void **state)
{
    fixture *f = *state;
    int64_t sum = 7, start = oari_now_ns(), before;
    char holder[32];
    int release;
    pid_t pid = hold_lock(f, &release);

    snprintf(holder, sizeof holder, "process %d", (int)pid);
    before = oari_store_set_lock_deadline(oari_deadline(200));
    assert_fails_with(oar_store_add(f->store, "n", 1, &sum), OAR_E_TIMEOUT,
                      holder);
    oari_store_set_lock_deadline(before);
    assert_true(oari_now_ns() - start >= 200 * INT64_C(1000000));
    assert_non_null(strstr(oar_last_error_text(), f->folder));
    assert_int_equal(sum, 7);
    close(release);
    expect_end(pid);
    assert_int_equal(oar_store_add(f->store, "n", 1, &sum), OAR_OK);
    assert_int_equal(sum, 1);
}

/* A group asks for less time than the store has. */
static void a_group_waits_for_the_lock_no_longer_than_it_says(void **state)
{
    fixture *f = *state;
    oar_group_opts o = oar_group_opts_init();
    int64_t start = oari_now_ns();
    oar_group *g = NULL;
    int release;
    pid_t pid = hold_lock(f, &release);

    o.backend = "shm";
    o.timeout_ms = 300;
    assert_fails_with(oar_group_create(f->store, 0, 2, &o, &g), OAR_E_TIMEOUT,
                      "locked");
    assert_true(oari_now_ns() - start < 20 * INT64_C(1000000000));
    assert_null(g);
    close(release);
    expect_end(pid);
}

static _Atomic int signals;
static int lock_release;

/* Lets go of the lock when the caller has been disturbed often enough. */
static void disturb(int number)
{
    if (++signals == 20)
        close(lock_release);
}

static void a_signal_does_not_end_a_wait_for_the_lock(void **state)
{
    fixture *f = *state;
    struct sigaction action = { .sa_handler = disturb }, before;
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { 0 };
    pid_t pid = hold_lock(f, &lock_release);
    int64_t sum = 0;

    signals = 0;
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    assert_int_equal(oar_store_add(f->store, "n", 1, &sum), OAR_OK);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_int_equal(sum, 1);
    assert_true(signals >= 20);
    expect_end(pid);
}

static void a_key_too_odd_for_a_file_name_is_refused(void **state)
{
    fixture *f = *state;
    char key[OAR_STORE_KEY_MAX + 1] = { 0 };
    void *value;
    size_t bytes;

    memset(key, '/', OAR_STORE_KEY_MAX);
    assert_fails_with(oar_store_set(f->store, key, "v", 1), OAR_E_ARG,
                      "too long");
    assert_fails_with(oar_store_get(f->store, key, 0, &value, &bytes),
                      OAR_E_ARG, "too long");
}

static void a_value_that_grew_too_large_on_disk_is_refused(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH + 8];
    void *value;
    size_t bytes;
    FILE *file;

    snprintf(path, sizeof path, "%s/k", f->folder);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), OAR_STORE_VALUE_MAX + 1), 0);
    fclose(file);
    assert_fails_with(oar_store_get(f->store, "k", 0, &value, &bytes),
                      OAR_E_DATA, "1048577");
}

#define LOCAL(test)                                      \
    { "memory: " #test, test, make_memory, drop, NULL }, \
        { "file: " #test, test, make_file, drop, NULL }, \
    {                                                    \
        "prefix: " #test, test, make_prefix, drop, NULL  \
    }
#define ALL(test)                                                          \
    LOCAL(test), { "tcp: " #test, test, make_tcp, drop, NULL },            \
        { "tls: " #test, test, make_tls, drop, NULL },                     \
    {                                                                      \
        "prefix of prefix of tcp: " #test, test, make_prefix_of_tcp, drop, \
            NULL                                                           \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(what_is_set_is_got_through_every_handle),
        ALL(a_value_may_be_empty_binary_and_large),
        ALL(keys_may_have_any_character),
        ALL(keys_have_1_to_200_bytes),
        ALL(bad_arguments_are_refused),
        ALL(add_counts_from_zero_and_keeps_text),
        ALL(add_refuses_what_is_no_number_or_overflows),
        ALL(compare_set_swaps_only_what_was_expected),
        ALL(delete_removes_one_key_once),
        ALL(clear_removes_every_key),
        ALL(a_list_has_the_keys_that_begin_so_in_order),
        ALL(a_list_may_be_long),
        ALL(a_list_refuses_bad_arguments),
        ALL(a_prefix_in_a_store_is_a_store),
        ALL(many_keys_may_be_waited_for),
        ALL(a_timeout_names_the_key_and_is_kept),
        ALL(wait_names_the_first_key_that_is_missing),
        ALL(a_waiting_client_sees_what_another_sets),
        ALL(threads_add_exactly_and_one_wins_each_round),
        cmocka_unit_test_setup_teardown(
            processes_add_exactly_and_one_wins_each_round, make_file, drop),
        ALL(a_reader_never_sees_half_a_value),
        LOCAL(without_memory_every_call_fails_whole),
        LOCAL(a_change_without_memory_leaves_the_old_value),
        cmocka_unit_test_setup_teardown(
            a_folder_that_stays_locked_is_given_up_in_time, make_file, drop),
        cmocka_unit_test_setup_teardown(
            a_group_waits_for_the_lock_no_longer_than_it_says, make_file, drop),
        cmocka_unit_test_setup_teardown(
            a_signal_does_not_end_a_wait_for_the_lock, make_file, drop),
        cmocka_unit_test(constructors_want_somewhere_to_put_it),
        cmocka_unit_test(a_folder_that_cannot_be_is_named),
        cmocka_unit_test(
            a_folder_is_made_for_its_user_alone_and_keeps_its_keys),
        cmocka_unit_test_setup_teardown(
            a_key_too_odd_for_a_file_name_is_refused, make_file, drop),
        cmocka_unit_test_setup_teardown(
            a_value_that_grew_too_large_on_disk_is_refused, make_file, drop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
