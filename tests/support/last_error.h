/* SPDX-License-Identifier: Apache-2.0 */
/* support/last_error.h: whether a call failed as it should, and said why. */
#ifndef TESTS_SUPPORT_LAST_ERROR_H
#define TESTS_SUPPORT_LAST_ERROR_H

#include <oarsong/status.h>

/* Returns whether the sentence of this thread's last error contains text. */
int last_error_has(const char *text);
#define assert_last_error_has(text)                                       \
    do {                                                                  \
        if (!last_error_has(text))                                        \
            fail_msg("\"%s\" does not say \"%s\"", oar_last_error_text(), \
                     text);                                               \
    } while (0)

/* Returns whether got is wanted, is the status of this thread's last error, and
 * the error's sentence contains text. Prints what differs. For ranks:
 * CHECK(fails_with(...)). */
int fails_with(oar_status got, oar_status wanted, const char *text);

/* Asserts the same by cmocka. */
#define assert_fails_with(got, wanted, text) \
    assert_true(fails_with(got, wanted, text))

/* Asserts that a call succeeds. */
#define OK(call)                                              \
    do {                                                      \
        if ((call) != OAR_OK)                                 \
            fail_msg("%s: %s", #call, oar_last_error_text()); \
    } while (0)

#endif
