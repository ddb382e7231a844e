/* SPDX-License-Identifier: Apache-2.0 */
/* What everything else needs: statuses and the last error, options, memory, the
 * log, settings from the environment, the clock, the version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <oarsong/version.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/reduce/reduce.h"
#include "base/status.h"
#include "support/leak_check.h"

/* ---- status -------------------------------------------------------------- */

static void every_status_has_a_name_and_a_text(void **state)
{
#define X(name, value, text)                           \
    assert_int_equal(name, value);                     \
    assert_string_equal(oar_status_name(name), #name); \
    assert_string_equal(oar_status_text(name), text);
    OAR_STATUS_LIST(X)
#undef X
    assert_string_equal(oar_status_name((oar_status)999), "OAR_E_UNKNOWN");
    assert_string_equal(oar_status_name((oar_status)-1), "OAR_E_UNKNOWN");
    assert_non_null(oar_status_text((oar_status)999));
}

static void a_failure_is_remembered_until_it_is_cleared(void **state)
{
    const oar_error *e = oar_last_error();

    assert_int_equal(oari_fail(OAR_E_RANK, "rank %d of %d", 7, 4), OAR_E_RANK);
    assert_int_equal(e->status, OAR_E_RANK);
    assert_int_equal(e->size, sizeof *e);
    assert_int_equal(e->rank, -1);
    assert_int_equal(e->peer, -1);
    assert_int_equal(e->sys_errno, 0);
    assert_string_equal(e->text, "rank 7 of 4");
    assert_string_equal(oar_last_error_text(), "rank 7 of 4");
    oar_clear_error();
    assert_int_equal(oar_last_error()->status, OAR_OK);
    assert_string_equal(oar_last_error_text(), "");
    assert_int_equal(oar_last_error()->rank, -1);
}

static void a_failure_may_repeat_the_one_before_it(void **state)
{
    oar_error mine;

    oari_fail(OAR_E_PEER, "rank %d is gone", 3);
    oari_fail(OAR_E_ABORTED, "step 7: %s, %d", oar_last_error_text(), 11);
    assert_string_equal(oar_last_error_text(), "step 7: rank 3 is gone, 11");
    assert_int_equal(oar_last_error()->status, OAR_E_ABORTED);
    oari_error_set(&mine, OAR_E_ARG, "first");
    oari_error_set(&mine, OAR_E_DATA, "after %s", mine.text);
    assert_string_equal(mine.text, "after first");
    errno = ENOENT;
    oari_fail(OAR_E_SYSTEM, "again: %s", oar_last_error_text());
    assert_int_equal(oar_last_error()->sys_errno, ENOENT);
    assert_memory_equal(oar_last_error_text(), "again: step 7", 13);
}

static void a_system_failure_says_what_errno_was(void **state)
{
    char want[128];

    errno = ENOENT;
    oari_fail(OAR_E_SYSTEM, "open %s", "nowhere");
    snprintf(want, sizeof want, "open nowhere: %s", strerror(ENOENT));
    assert_string_equal(oar_last_error_text(), want);
    assert_int_equal(oar_last_error()->sys_errno, ENOENT);
    errno = ENOENT;
    oari_fail(OAR_E_ARG, "not the system's fault");
    assert_int_equal(oar_last_error()->sys_errno, 0);
}

static void a_long_text_is_cut_and_still_ends(void **state)
{
    char many[2000];

    memset(many, 'x', sizeof many);
    many[sizeof many - 1] = 0;
    errno = EIO;
    oari_fail(OAR_E_SYSTEM, "%s", many);
    assert_int_equal(strlen(oar_last_error_text()),
                     sizeof oar_last_error()->text - 1);
}

static void a_whole_record_can_be_passed_on(void **state)
{
    oar_error record;

    oar_clear_error();
    oari_error_set(&record, OAR_E_PEER, "rank %d left", 3);
    assert_int_equal(oar_last_error()->status, OAR_OK);
    assert_int_equal(record.rank, -1);
    assert_int_equal(record.peer, -1);
    record.peer = 3;
    assert_int_equal(oari_fail_with(&record), OAR_E_PEER);
    assert_int_equal(oar_last_error()->peer, 3);
    assert_string_equal(oar_last_error_text(), "rank 3 left");
}

static void *fail_elsewhere(void *before)
{
    *(oar_status *)before = oar_last_error()->status;
    oari_fail(OAR_E_DATA, "elsewhere");
    return NULL;
}

static void each_thread_has_its_own_last_error(void **state)
{
    oar_status before = OAR_E_INTERNAL;
    pthread_t thread;

    oari_fail(OAR_E_SHAPE, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &before), 0);
    pthread_join(thread, NULL);
    assert_int_equal(before, OAR_OK);
    assert_int_equal(oar_last_error()->status, OAR_E_SHAPE);
    assert_string_equal(oar_last_error_text(), "here");
}

static oar_status try_it(oar_status inner)
{
    OARI_TRY(inner);
    return OAR_E_INTERNAL;
}

static void try_returns_on_failure_only(void **state)
{
    assert_int_equal(try_it(OAR_E_CLOSED), OAR_E_CLOSED);
    assert_int_equal(try_it(OAR_OK), OAR_E_INTERNAL);
}

/* ---- options ------------------------------------------------------------- */

typedef struct old_opts {
    size_t size;
    int64_t timeout_ms;
    int64_t retries;
} old_opts;
OAR_OPTS_INIT(old_opts);

typedef struct new_opts {
    old_opts old;
    double extra;
} new_opts;

static void a_system_call_without_memory_is_out_of_memory(void **state)
{
    errno = ENOMEM;
    assert_int_equal(oari_fail(OAR_E_SYSTEM, "map 3 bytes"), OAR_E_NOMEM);
    assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
    assert_int_equal(oar_last_error()->sys_errno, ENOMEM);
    assert_non_null(strstr(oar_last_error_text(), "map 3 bytes: Cannot"));
}

static void no_options_are_all_defaults(void **state)
{
    old_opts got = { 9, 9, 9 }, none = { 0 };

    assert_int_equal(oari_opts_read(&got, sizeof got, NULL), OAR_OK);
    assert_memory_equal(&got, &none, sizeof got);
}

static void options_are_copied(void **state)
{
    old_opts got, made = old_opts_init();

    assert_int_equal(
        oari_opts_read(&got, sizeof got, OAR_OPTS(old_opts, .retries = 5)),
        OAR_OK);
    assert_int_equal(got.timeout_ms, 0);
    assert_int_equal(got.retries, 5);
    made.timeout_ms = 50;
    assert_int_equal(oari_opts_read(&got, sizeof got, &made), OAR_OK);
    assert_int_equal(got.timeout_ms, 50);
    assert_int_equal(got.retries, 0);
}

static void options_of_older_headers_are_filled_up(void **state)
{
    old_opts given = { offsetof(old_opts, retries), 50, 77 };
    old_opts got = { 9, 9, 9 };

    assert_int_equal(oari_opts_read(&got, sizeof got, &given), OAR_OK);
    assert_int_equal(got.timeout_ms, 50);
    assert_int_equal(got.retries, 0);
}

static void options_of_newer_headers_pass_unless_they_are_used(void **state)
{
    new_opts given = { { sizeof given, 50, 2 }, 0 };
    old_opts got;

    assert_int_equal(oari_opts_read(&got, sizeof got, &given), OAR_OK);
    assert_int_equal(got.timeout_ms, 50);
    assert_int_equal(got.retries, 2);
    given.extra = 1;
    assert_int_equal(oari_opts_read(&got, sizeof got, &given), OAR_E_ARG);
}

static void options_without_a_size_are_refused(void **state)
{
    old_opts given = { 0, 50, 2 }, got;

    assert_int_equal(oari_opts_read(&got, sizeof got, &given), OAR_E_ARG);
    given.size = sizeof given.size - 1;
    assert_int_equal(oari_opts_read(&got, sizeof got, &given), OAR_E_ARG);
}

/* At the end of a page with nothing behind it. */
static void options_with_a_size_that_was_not_set_are_not_read(void **state)
{
    static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 7,         1 << 20,
                                    4104,     sizeof(old_opts) + 1, 9 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    old_opts *given, got, from = { sizeof from, 50, 2 };

    assert_true(memory != MAP_FAILED);
    assert_int_equal(mprotect(memory + page, page, PROT_NONE), 0);
    given = (old_opts *)(memory + page - sizeof *given);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        given->size = sizes[i];
        assert_int_equal(oari_opts_read(&got, sizeof got, given), OAR_E_ARG);
        assert_non_null(strstr(oar_last_error_text(), "OAR_OPTS"));
        assert_int_equal(oari_struct_give(given, &from, sizeof from, "stats"),
                         OAR_E_ARG);
    }
    munmap(memory, 2 * page);
}

static void options_are_made_for_other_languages(void **state)
{
    old_opts made = { 9, 9, 9 };

    oar_opts_init(&made, sizeof made);
    assert_int_equal(made.size, sizeof made);
    assert_int_equal(made.timeout_ms, 0);
    assert_int_equal(made.retries, 0);
    oar_opts_init(NULL, sizeof made);
}

static void a_struct_given_out_fits_the_callers_size(void **state)
{
    const old_opts from = { sizeof from, 50, 2 };
    old_opts small = { offsetof(old_opts, retries), 9, 9 };
    new_opts large = { { sizeof large, 9, 9 }, 1.5 };

    assert_int_equal(oari_struct_give(&small, &from, sizeof from, "x"), OAR_OK);
    assert_int_equal(small.size, offsetof(old_opts, retries));
    assert_int_equal(small.timeout_ms, 50);
    assert_int_equal(small.retries, 9);
    assert_int_equal(oari_struct_give(&large, &from, sizeof from, "x"), OAR_OK);
    assert_int_equal(large.old.size, sizeof large);
    assert_int_equal(large.old.retries, 2);
    assert_true(large.extra == 1.5);
    small.size = 0;
    assert_int_equal(oari_struct_give(&small, &from, sizeof from, "x"),
                     OAR_E_ARG);
    assert_int_equal(oari_struct_give(NULL, &from, sizeof from, "stats"),
                     OAR_E_ARG);
    assert_string_equal(oar_last_error_text(), "stats is NULL");
}

/* ---- call sites ---------------------------------------------------------- */

static oari_call_site site_inside(const char *file, int line)
{
    OARI_CALLED_FROM(file, line);

    return oari_call_site_of(NULL, 0);
}

static oari_call_site site_within(const char *file, int line)
{
    OARI_CALLED_FROM("user.c", 7);

    return site_inside(file, line);
}

static void a_call_without_a_file_is_made_from_the_one_around_it(void **state)
{
    assert_string_equal(site_within(NULL, 0).file, "user.c");
    assert_int_equal(site_within(NULL, 0).line, 7);
    assert_string_equal(site_within("hook.c", 9).file, "hook.c");
    assert_int_equal(site_within("hook.c", 9).line, 9);
    assert_string_equal(oari_call_site_of(NULL, 3).file, "?");
}

/* The last of this process: the table stays full. */
static void so_many_file_names_are_kept_and_no_more(void **state)
{
    char name[300];
    const char *first = oari_call_site_of("0.py", 1).file;
    int kept = 1;

    for (int i = 1; i < 2000; i++) {
        snprintf(name, sizeof name, "%d.py", i);
        kept += strcmp(oari_call_site_of(name, 1).file, name) == 0;
    }
    assert_in_range(kept, 1000, 1024);
    assert_string_equal(oari_call_site_of(name, 1).file, "?");
    snprintf(name, sizeof name, "0.py");
    assert_ptr_equal(oari_call_site_of(name, 1).file, first);
}

/* ---- memory -------------------------------------------------------------- */

static void allocations_are_counted(void **state)
{
    oar_memory_stats before = memory_now(), during, after;
    void *a = oari_alloc(3, 100), *b = oari_alloc_aligned(4096, 5000);

    during = memory_now();
    assert_int_equal(during.allocations, before.allocations + 2);
    assert_int_equal(during.live, before.live + 2);
    assert_int_equal(during.live_bytes, before.live_bytes + 5300);
    oar_free(a);
    oari_free(b);
    after = memory_now();
    assert_int_equal(after.allocations, during.allocations);
    assert_int_equal(after.live, before.live);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

static void memory_is_zeroed_and_aligned(void **state)
{
    static const char zeros[1000];
    void *plain = oari_alloc(10, 100), *page;

    assert_memory_equal(plain, zeros, 1000);
    assert_int_equal((uintptr_t)plain % 64, 0);
    oari_free(plain);
    for (size_t align = 1; align <= 1 << 16; align *= 2) {
        page = oari_alloc_aligned(align, 3);
        assert_non_null(page);
        assert_int_equal((uintptr_t)page % align, 0);
        memset(page, 1, 3);
        oari_free(page);
    }
}

static void nothing_can_be_allocated_and_freed(void **state)
{
    void *none = oari_alloc(0, 8);

    assert_non_null(none);
    oari_free(none);
    oari_free(NULL);
    oar_free(NULL);
}

static void impossible_sizes_are_out_of_memory(void **state)
{
    oar_clear_error();
    assert_null(oari_alloc(SIZE_MAX / 2, 3));
    assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
    oar_clear_error();
    assert_null(oari_alloc_aligned(64, SIZE_MAX - 64));
    assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
}

static void the_chosen_allocation_fails_once(void **state)
{
    void *first, *second, *third;

    oar_clear_error();
    oar_memory_fail_after(2);
    first = oari_alloc(1, 1);
    second = oari_alloc(1, 1);
    assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
    third = oari_strdup("again");
    assert_non_null(first);
    assert_null(second);
    assert_string_equal(third, "again");
    oari_free(first);
    oari_free(third);
    oar_memory_fail_after(1);
    assert_false(oari_alloc_allowed(10));
    assert_true(oari_alloc_allowed(10));
    oar_memory_fail_after(1);
    oar_memory_fail_after(0);
    assert_true(oari_alloc_allowed(10));
    oar_memory_fail_after(1);
    assert_null(oari_strdup("no"));
}

static void memory_stats_of_any_size_are_filled(void **state)
{
    oar_memory_stats part = { .size = offsetof(oar_memory_stats, live),
                              .live = 12345 };

    assert_int_equal(oar_memory_read(&part), OAR_OK);
    assert_int_equal(part.size, offsetof(oar_memory_stats, live));
    assert_true(part.allocations > 0);
    assert_int_equal(part.live, 12345);
    part.size = 0;
    assert_int_equal(oar_memory_read(&part), OAR_E_ARG);
    assert_int_equal(oar_memory_read(NULL), OAR_E_ARG);
}

/* ---- log ----------------------------------------------------------------- */

static struct {
    int lines;
    oar_log_level level;
    char text[2000];
} heard;

static void hear(void *arg, oar_log_level level, const char *line)
{
    assert_ptr_equal(arg, &heard);
    heard.lines++;
    heard.level = level;
    snprintf(heard.text, sizeof heard.text, "%s", line);
}

static void lines_up_to_the_level_are_logged(void **state)
{
    memset(&heard, 0, sizeof heard);
    oar_log_to(hear, &heard, OAR_LOG_WARN);
    oari_log(OAR_LOG_ERROR, "lost %d ranks", 2);
    assert_int_equal(heard.lines, 1);
    assert_int_equal(heard.level, OAR_LOG_ERROR);
    assert_string_equal(heard.text, "lost 2 ranks");
    oari_log(OAR_LOG_WARN, "slow");
    oari_log(OAR_LOG_INFO, "not for us");
    oari_log(OAR_LOG_DEBUG, "nor this");
    assert_int_equal(heard.lines, 2);
    oar_log_to(hear, &heard, OAR_LOG_OFF);
    oari_log(OAR_LOG_ERROR, "nobody listens");
    assert_int_equal(heard.lines, 2);
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
    oari_log(OAR_LOG_ERROR, "nobody listens");
    assert_int_equal(heard.lines, 2);
}

static void a_long_line_is_cut(void **state)
{
    char many[3000];

    memset(many, 'y', sizeof many);
    many[sizeof many - 1] = 0;
    oar_log_to(hear, &heard, OAR_LOG_DEBUG);
    oari_log(OAR_LOG_DEBUG, "%s", many);
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
    assert_int_equal(strlen(heard.text), 1023);
}

/* What this program, run again as "say", writes to standard error. */
static void run_again(const char *level, char *said, size_t size)
{
    int ends[2], status;
    size_t used = 0;
    ssize_t got;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        setenv("OARSONG_LOG", level, 1);
        execl("/proc/self/exe", "base_test", "say", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (used + 1 < size &&
           (got = read(ends[0], said + used, size - 1 - used)) > 0)
        used += (size_t)got;
    said[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Leaves at once: what a sanitizer would look for at exit is not here. */
static void say(void)
{
    oari_log(OAR_LOG_ERROR, "an error");
    oari_log(OAR_LOG_WARN, "a warning");
    oari_log(OAR_LOG_DEBUG, "a detail");
    _exit(0);
}

static void the_environment_can_ask_for_lines(void **state)
{
    char said[500];

    run_again("", said, sizeof said);
    assert_string_equal(said, "oarsong: an error\noarsong: a warning\n");
    run_again("error", said, sizeof said);
    assert_string_equal(said, "oarsong: an error\n");
    run_again("off", said, sizeof said);
    assert_string_equal(said, "");
    run_again("Warn", said, sizeof said);
    assert_string_equal(said, "oarsong: an error\noarsong: a warning\n");
    run_again("debug", said, sizeof said);
    assert_non_null(strstr(said, "oarsong: a detail\n"));
}

/* ---- names of variables -------------------------------------------------- */

static void an_unknown_name_is_reported_once(void **state)
{
    memset(&heard, 0, sizeof heard);
    setenv("OARSONG_TIMEOUT", "5", 1);
    oar_log_to(hear, &heard, OAR_LOG_WARN);
    assert_int_equal(oari_env_check(0), OAR_OK);
    assert_int_equal(heard.lines, 0);
    assert_int_equal(oari_env_check(1), OAR_OK);
    assert_int_equal(heard.lines, 1);
    assert_string_equal(heard.text,
                        "OARSONG_TIMEOUT is set, but means nothing to this "
                        "version; the nearest name is OARSONG_TIMEOUT_MS");
    assert_int_equal(oari_env_check(1), OAR_OK);
    assert_int_equal(heard.lines, 1);
    oar_log_to(NULL, NULL, OAR_LOG_OFF);
    unsetenv("OARSONG_TIMEOUT");
}

static void a_variable_takes_its_words_in_any_case(void **state)
{
    static const struct {
        const char *name, *value, *why; /* NULL: it is taken */
    } tried[] = {
        { "OARSONG_WIRE", "TLS", NULL },
        { "OARSONG_WIRE", "", NULL },
        { "OARSONG_WIRE", "aut", "should be auto, plain, auth or tls" },
        { "OARSONG_WIRE", "auto plain", "OARSONG_WIRE is \"auto plain\"" },
        { "OARSONG_SHRINK", "most", "should be majority or any" },
        { "OARSONG_ENABLE_GPU_FALLBACK", "maybe", "should be 1, true, yes" },
        { "OARSONG_BACKEND", "anything at all", NULL },
    };

    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        oar_status status;
        setenv(tried[i].name, tried[i].value, 1);
        status = oari_env_check(0);
        unsetenv(tried[i].name);
        assert_int_equal(status, tried[i].why == NULL ? OAR_OK : OAR_E_ARG);
        if (tried[i].why != NULL)
            assert_non_null(strstr(oar_last_error_text(), tried[i].why));
    }
}

/* ---- settings ------------------------------------------------------------ */

static void whole_numbers_are_read(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = { { "0", 0 },
                 { "-5", -5 },
                 { "42", 42 },
                 { "3k", 3 << 10 },
                 { "3K", 3 << 10 },
                 { "7m", 7 << 20 },
                 { "7M", 7 << 20 },
                 { "2g", (int64_t)2 << 30 },
                 { "2G", (int64_t)2 << 30 },
                 { "-1K", -1024 },
                 { "9223372036854775807", INT64_MAX },
                 { "-9223372036854775808", INT64_MIN } };

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t value = 99;

        assert_int_equal(
            oari_parse_int("x", good[i].text, INT64_MIN, INT64_MAX, &value),
            OAR_OK);
        assert_true(value == good[i].value);
    }
}

static void what_is_no_whole_number_is_refused(void **state)
{
    static const char *const bad[] = { "",
                                       "K",
                                       "one",
                                       "1.5",
                                       "1T",
                                       "1KB",
                                       "1 K",
                                       "0x1",
                                       "--1",
                                       "9223372036854775808",
                                       "9007199254740993K",
                                       "8589934592G" };
    int64_t value = 99;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(
            oari_parse_int("x", bad[i], INT64_MIN, INT64_MAX, &value),
            OAR_E_ARG);
    assert_true(value == 99);
}

static void limits_are_inclusive_and_named(void **state)
{
    int64_t value = 99;

    assert_int_equal(oari_parse_int("depth", "1", 1, 2048, &value), OAR_OK);
    assert_int_equal(oari_parse_int("depth", "2K", 1, 2048, &value), OAR_OK);
    assert_true(value == 2048);
    assert_int_equal(oari_parse_int("depth", "0", 1, 2048, &value), OAR_E_ARG);
    assert_int_equal(oari_parse_int("depth", "2049", 1, 2048, &value),
                     OAR_E_ARG);
    assert_int_equal(oari_parse_int("depth", "3K", 1, 2048, &value), OAR_E_ARG);
    assert_true(value == 2048);
    assert_string_equal(oar_last_error_text(),
                        "depth is \"3K\", but should be a whole number from 1 "
                        "to 2048");
    assert_int_equal(oari_parse_int("x", "1K", 1025, 4096, &value), OAR_E_ARG);
    assert_int_equal(oari_parse_int("x", "-2K", -2000, 0, &value), OAR_E_ARG);
}

static void settings_come_from_the_environment(void **state)
{
    int64_t value = 99;

    unsetenv("OARSONG_TEST_X");
    assert_null(oari_env_text("OARSONG_TEST_X"));
    assert_int_equal(oari_env_int("OARSONG_TEST_X", 0, 10, &value), OAR_OK);
    setenv("OARSONG_TEST_X", "", 1);
    assert_null(oari_env_text("OARSONG_TEST_X"));
    assert_int_equal(oari_env_int("OARSONG_TEST_X", 0, 10, &value), OAR_OK);
    assert_true(value == 99);
    setenv("OARSONG_TEST_X", "7", 1);
    assert_string_equal(oari_env_text("OARSONG_TEST_X"), "7");
    assert_int_equal(oari_env_int("OARSONG_TEST_X", 0, 10, &value), OAR_OK);
    assert_true(value == 7);
    setenv("OARSONG_TEST_X", "11", 1);
    assert_int_equal(oari_env_int("OARSONG_TEST_X", 0, 10, &value), OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "OARSONG_TEST_X"));
    assert_true(value == 7);
    unsetenv("OARSONG_TEST_X");
}

/* ---- clock and version --------------------------------------------------- */

static void ticks_run_at_the_rate_they_say(void **state)
{
    double rate = oari_ticks_per_second(), passed;
    int64_t start = oari_now_ns(), now;
    uint64_t ticks = oari_ticks();

    do
        now = oari_now_ns();
    while (now - start < 20000000);
    passed = (double)(oari_ticks() - ticks) / rate;
    assert_true(passed > 0.019);
    assert_true(oari_ticks_per_second() == rate);
}

/* However busy the machine is. */
static void both_clocks_are_read_at_one_moment(void **state)
{
    oari_moment from = oari_moment_now(), to;
    double s, passed;

    usleep(200000);
    to = oari_moment_now();
    s = (double)(to.ns - from.ns) / 1e9;
    passed = (double)(to.ticks - from.ticks) / oari_ticks_per_second();
    assert_true(s >= 0.2 && fabs(passed / s - 1) < 1e-3);
}

static void deadlines_pass_and_never_does_not(void **state)
{
    int64_t before = oari_now_ns(), soon = oari_deadline(1000);

    assert_true(soon >= before + 1000000000);
    assert_true(soon <= oari_now_ns() + 1000000000);
    assert_in_range(oari_deadline_left_ms(soon), 1, 1000);
    assert_int_equal(oari_deadline_left_ms(before), 0);
    assert_int_equal(oari_deadline_left_ms(before - 5000000000), 0);
    assert_int_equal(oari_deadline_left_ms(oari_deadline(0)), 0);
    assert_true(oari_deadline(-1) == OARI_NEVER);
    assert_true(oari_deadline(INT64_MAX) == OARI_NEVER);
    assert_int_equal(oari_deadline_left_ms(OARI_NEVER), -1);
    assert_int_equal(oari_deadline_left_ms(OARI_NEVER - 1), INT_MAX);
}

static void the_version_is_that_of_the_headers(void **state)
{
    char text[32];

    snprintf(text, sizeof text, "%d.%d.%d", OAR_VERSION_MAJOR,
             OAR_VERSION_MINOR, OAR_VERSION_PATCH);
    assert_string_equal(text, OAR_VERSION_TEXT);
    assert_int_equal(oar_version(), OAR_VERSION_CODE);
    assert_int_equal(OAR_VERSION_CODE, OAR_VERSION_MAJOR * 10000 +
                                           OAR_VERSION_MINOR * 100 +
                                           OAR_VERSION_PATCH);
}

static void the_build_says_its_version_and_instruction_set(void **state)
{
    const char *text = oar_build_text();

    assert_ptr_equal(strstr(text, OAR_VERSION_TEXT ", "), text);
    assert_non_null(strstr(text, oari_reduce_isa()));
    assert_ptr_equal(oar_build_text(), text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_and_a_text),
        cmocka_unit_test(a_failure_is_remembered_until_it_is_cleared),
        cmocka_unit_test(a_failure_may_repeat_the_one_before_it),
        cmocka_unit_test(a_system_failure_says_what_errno_was),
        cmocka_unit_test(a_long_text_is_cut_and_still_ends),
        cmocka_unit_test(a_whole_record_can_be_passed_on),
        cmocka_unit_test(each_thread_has_its_own_last_error),
        cmocka_unit_test(try_returns_on_failure_only),
        cmocka_unit_test(a_system_call_without_memory_is_out_of_memory),
        cmocka_unit_test(no_options_are_all_defaults),
        cmocka_unit_test(options_are_copied),
        cmocka_unit_test(options_of_older_headers_are_filled_up),
        cmocka_unit_test(options_of_newer_headers_pass_unless_they_are_used),
        cmocka_unit_test(options_without_a_size_are_refused),
        cmocka_unit_test(options_with_a_size_that_was_not_set_are_not_read),
        cmocka_unit_test(options_are_made_for_other_languages),
        cmocka_unit_test(a_struct_given_out_fits_the_callers_size),
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(nothing_can_be_allocated_and_freed),
        cmocka_unit_test(impossible_sizes_are_out_of_memory),
        cmocka_unit_test(the_chosen_allocation_fails_once),
        cmocka_unit_test(memory_stats_of_any_size_are_filled),
        cmocka_unit_test(lines_up_to_the_level_are_logged),
        cmocka_unit_test(an_unknown_name_is_reported_once),
        cmocka_unit_test(a_variable_takes_its_words_in_any_case),
        cmocka_unit_test(a_long_line_is_cut),
        cmocka_unit_test(the_environment_can_ask_for_lines),
        cmocka_unit_test(whole_numbers_are_read),
        cmocka_unit_test(what_is_no_whole_number_is_refused),
        cmocka_unit_test(limits_are_inclusive_and_named),
        cmocka_unit_test(settings_come_from_the_environment),
        cmocka_unit_test(ticks_run_at_the_rate_they_say),
        cmocka_unit_test(both_clocks_are_read_at_one_moment),
        cmocka_unit_test(deadlines_pass_and_never_does_not),
        cmocka_unit_test(the_version_is_that_of_the_headers),
        cmocka_unit_test(the_build_says_its_version_and_instruction_set),
        cmocka_unit_test(a_call_without_a_file_is_made_from_the_one_around_it),
        cmocka_unit_test(so_many_file_names_are_kept_and_no_more),
    };

    if (argc == 2 && strcmp(argv[1], "say") == 0)
        say();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
