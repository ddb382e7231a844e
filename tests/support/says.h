/* SPDX-License-Identifier: Apache-2.0 */
/* support/says.h: whether a call did what it should, and what it said. */
#ifndef TESTS_SUPPORT_SAYS_H
#define TESTS_SUPPORT_SAYS_H

#include <oarsong/status.h>

/* Whether got is wanted, is this thread's last error, and its sentence has this
 * text in it. Prints what it is instead. For ranks: CHECK(says(...)). */
int says(oar_status got, oar_status wanted, const char *text);

/* The same as an assertion of cmocka's. */
#define assert_says(got, wanted, text) assert_true(says(got, wanted, text))

/* Asserts that a call succeeds. */
#define OK(call)                                              \
    do {                                                      \
        if ((call) != OAR_OK)                                 \
            fail_msg("%s: %s", #call, oar_last_error_text()); \
    } while (0)

#endif
