/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: what the library has to say while it works.
 *
 * The library itself writes nowhere. Lines go to the function given here; or,
 * when none was given and OARSONG_LOG is set to error, warn, info or debug, to
 * standard error.
 */
#ifndef OARSONG_LOG_H
#define OARSONG_LOG_H

#include <oarsong/status.h>

OAR_BEGIN_DECLS

typedef enum oar_log_level {
    OAR_LOG_OFF = 0,
    OAR_LOG_ERROR = 1,
    OAR_LOG_WARN = 2,
    OAR_LOG_INFO = 3,
    OAR_LOG_DEBUG = 4
} oar_log_level;

/* Called with one whole line without its newline; the line is borrowed. May be
 * called from any thread, several at once. Must not call the library. */
typedef void (*oar_log_fn)(void *arg, oar_log_level level, const char *line);

/* From now on lines up to this level go to fn. fn == NULL goes back to
 * OARSONG_LOG. Call it before other threads use the library. */
OAR_API void oar_log_to(oar_log_fn fn, void *arg, oar_log_level level);

OAR_END_DECLS

#endif
