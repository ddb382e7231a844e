/* SPDX-License-Identifier: Apache-2.0 */
/* base/status.h: functions with which the library's own code reports failures.
 */
#ifndef OARI_BASE_STATUS_H
#define OARI_BASE_STATUS_H

#include <oarsong/status.h>

#include "base/plugin_export.h"

/* Writes the calling thread's last error (status, errno at entry for
 * OAR_E_SYSTEM, text) and returns status, so that a function can end with
 *     return oari_fail(OAR_E_SYSTEM, "open %s", path);
 * For OAR_E_SYSTEM the text of errno is appended; ENOMEM makes it OAR_E_NOMEM,
 * so return what this returns. The first function that knows the cause calls
 * this; its callers only pass the status on. */
OARI_FOR_PLUGINS oar_status oari_fail(oar_status status, const char *format,
                                      ...) OAR_PRINTF(2, 3);

/* Notes the rank that the last error is about, and returns status:
 *     return oari_about(rank, oari_fail(OAR_E_TIMEOUT, ...)); */
oar_status oari_about(int peer, oar_status status);

/* Makes *record the calling thread's last error and returns its status. */
oar_status oari_fail_with(const oar_error *record);

/* Fills *record with status and text; no rank, peer or other detail is set. */
void oari_error_set(oar_error *record, oar_status status, const char *format,
                    ...) OAR_PRINTF(3, 4);

/* Copies the caller's options struct into *into, which has `size` bytes: NULL
 * gives all zeros, a smaller struct is filled up with zeros, a larger one is
 * refused if it sets a byte that this library does not know. */
oar_status oari_opts_read(void *into, size_t size, const void *from);

/* Copies a struct of `size` bytes, whose first member is its size, into the
 * caller's struct, which has its own size set: a smaller one gets what fits.
 * OAR_E_ARG, with a text that names `what`, if it has no size or is NULL. */
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
