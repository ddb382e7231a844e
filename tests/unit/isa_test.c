/* SPDX-License-Identifier: Apache-2.0 */
/* What OARSONG_ISA allows. A process reads it once, so each case runs in a
 * process of its own; this one never reads it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <oarsong/log.h>

#include "base/isa.h"
#include "base/reduce/reduce.h"

enum { WARNED = 64 }; /* besides a level */

static void hear(void *arg, oar_log_level level, const char *line)
{
    int *warned = arg;

    if (level == OAR_LOG_WARN && strstr(line, "OARSONG_ISA") != NULL)
        *warned = WARNED;
}

/* The level that a process with this setting finds, and WARNED if it warned.
 * check says whether all is well otherwise; it runs there. */
static int level_with(const char *setting, int (*check)(void))
{
    pid_t child = fork();
    int status, warned = 0;

    assert_true(child >= 0);
    if (child == 0) {
        if (setting != NULL)
            setenv("OARSONG_ISA", setting, 1);
        else
            unsetenv("OARSONG_ISA");
        oar_log_to(hear, &warned, OAR_LOG_WARN);
        status = (int)oari_isa_here();
        _exit(check == NULL || check() ? status | warned : 127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_setting_is_the_most_that_is_used(void **state)
{
    int all = level_with(NULL, NULL);

    assert_in_range(all, OARI_ISA_BASELINE, OARI_ISA_AVX512);
    assert_int_equal(level_with("", NULL), all);
    for (int i = 0; i < OARI_ISA_COUNT; i++)
        assert_int_equal(level_with(oari_isa_name((oari_isa)i), NULL),
                         i < all ? i : all);
}

static void a_wrong_setting_is_a_warning(void **state)
{
    int all = level_with(NULL, NULL);

    assert_int_equal(level_with("AVX2", NULL), all | WARNED);
    assert_int_equal(level_with("sse2", NULL), all | WARNED);
    assert_int_equal(level_with("avx", NULL), all | WARNED);
}

/* Reductions obey too. */
static int reduces_by_the_level(void)
{
    const char *name = oari_reduce_isa();

    if (oari_isa_here() > OARI_ISA_BASELINE)
        return strcmp(name, oari_isa_name(oari_isa_here())) == 0;
    return strcmp(name, "avx2") != 0 && strcmp(name, "avx512") != 0;
}

static void reductions_follow_it(void **state)
{
    for (int i = 0; i < OARI_ISA_COUNT; i++)
        assert_int_not_equal(
            level_with(oari_isa_name((oari_isa)i), reduces_by_the_level), 127);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_setting_is_the_most_that_is_used),
        cmocka_unit_test(a_wrong_setting_is_a_warning),
        cmocka_unit_test(reductions_follow_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
