/* SPDX-License-Identifier: Apache-2.0 */
/* base/status.h: how the library's own code reports a failure. */
#ifndef OARI_BASE_STATUS_H
#define OARI_BASE_STATUS_H

#include <oarsong/status.h>

#include "base/plugin.h"

/* Writes the calling thread's last error (status, errno at entry for
 * OAR_E_SYSTEM, text) and returns status, so that a function can end with
 *     return oari_fail(OAR_E_SYSTEM, "open %s", path);
 * For OAR_E_SYSTEM the text of errno is appended; ENOMEM makes it OAR_E_NOMEM,
 * so return what this returns. Said once, by the function that knows the cause
 * first; callers above pass the status on in silence. */
OARI_FOR_PLUGINS oar_status oari_fail(oar_status status, const char *format,
                                      ...) OAR_PRINTF(2, 3);

/* Says which rank the last error is about, and returns status:
 *     return oari_about(rank, oari_fail(OAR_E_TIMEOUT, ...)); */
oar_status oari_about(int peer, oar_status status);

/* Makes *record the calling thread's last error and returns its status. */
oar_status oari_fail_with(const oar_error *record);

/* Fills *record with status and text and with "nobody" everywhere else. */
void oari_error_set(oar_error *record, oar_status status, const char *format,
                    ...) OAR_PRINTF(3, 4);

/* Copies an options struct of the caller's into *into, which is `size` bytes:
 * NULL gives all zeros, a smaller one is filled up with zeros, a larger one is
 * refused if it sets a byte this library does not know. */
oar_status oari_opts_read(void *into, size_t size, const void *from);

/* Copies a struct of `size` bytes, whose first member is its size, out into the
 * caller's, who has set its own size first: a smaller one gets what fits. what
 * names it when it has no size or is NULL (OAR_E_ARG). */
oar_status oari_struct_give(void *into, const void *from, size_t size,
                            const char *what);

/* Returns from the calling function on failure. */
#define OARI_TRY(call)                 \
    do {                               \
        oar_status oari_try_ = (call); \
        if (oari_try_ != OAR_OK)       \
            return oari_try_;          \
    } while (0)

#endif
