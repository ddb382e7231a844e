/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels OpenBLAS uses, where it is the CBLAS. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tensor/cpu/product/blas.h"

static const char *better(const char *core, int avx2, int avx512, int bf16)
{
    const char *name = oari_blas_better_core(core, avx2, avx512, bf16);

    return name != NULL ? name : "";
}

static void only_the_oldest_kernels_are_left_for_better_ones(void **state)
{
    assert_string_equal(better("Prescott", 1, 1, 1), "Cooperlake");
    assert_string_equal(better("Prescott", 1, 1, 0), "SkylakeX");
    assert_string_equal(better("Prescott", 1, 0, 0), "Haswell");
    assert_string_equal(better("Prescott", 0, 0, 0), "");
    assert_string_equal(better("Haswell", 1, 1, 1), "");
    assert_string_equal(better("Zen", 1, 1, 1), "");
}

/* Runs this program again and returns its exit status. */
static int run_again(const char *core)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        unsetenv("OPENBLAS_CORETYPE");
        if (core != NULL)
            setenv("OPENBLAS_CORETYPE", core, 1);
        execl("/proc/self/exe", "blas_test", "core", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

enum { OLDEST = 1, NEWER = 2 };

static int core_kind(void)
{
    return strcmp(oari_blas_core(), "Prescott") == 0 ? OLDEST : NEWER;
}

/* Whether OpenBLAS may choose again here. The thread sanitizer has a thread of
 * its own from the beginning. */
static int may_choose(void)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    return oari_blas_core() != NULL && __builtin_cpu_supports("avx2");
#else
    return 0;
#endif
}

static void a_new_processor_gets_better_kernels_than_the_oldest(void **state)
{
    if (!may_choose())
        skip();
    assert_int_equal(run_again(NULL), NEWER);
}

static void what_the_user_names_is_kept(void **state)
{
    if (!may_choose())
        skip();
    assert_int_equal(run_again("Prescott"), OLDEST);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_oldest_kernels_are_left_for_better_ones),
        cmocka_unit_test(a_new_processor_gets_better_kernels_than_the_oldest),
        cmocka_unit_test(what_the_user_names_is_kept),
    };

    if (argc > 1)
        return core_kind();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
