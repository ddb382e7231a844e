/* SPDX-License-Identifier: Apache-2.0 */
/* support/ranks.h: the same function on N ranks, as threads or as processes. */
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/collective.h>
#include <oarsong/group.h>
#include <oarsong/launch.h>

/* Ends a rank's function with a line that says where and why. */
#define CHECK(condition)                                       \
    do {                                                       \
        if (!(condition))                                      \
            return ranks_fail(__FILE__, __LINE__, #condition); \
    } while (0)
#define CHECK_OK(call) CHECK((call) == OAR_OK)

oar_status ranks_fail(const char *file, int line, const char *condition);

/* Runs fn on n ranks and returns what oar_sim_run_with or oar_launch_fn says:
 * backend "sim" is threads, any other processes. Processes are ended after
 * four minutes. */
oar_status ranks_run(const char *backend, int n, const oar_group_opts *opts,
                     oar_rank_fn fn, void *arg);

/* The backends every test of collectives should pass on. Ends with NULL. A
 * plugin is added when OARSONG_TEST_PLUGIN names one. */
const char *const *ranks_backends(void);

/* Runs fn on every backend above and asserts that it succeeds on all ranks. */
void ranks_all(int n, oar_rank_fn fn, void *arg);

#endif
