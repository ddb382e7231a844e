/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: what the library has to say while it works.
 *
 * Lines go to the function given here. When none was given, those up to the
 * level of OARSONG_LOG (off, error, warn, info or debug) go to standard error;
 * where that is not set, warnings and errors do. What a call returns as an
 * error is not also a line. Apart from this the library writes nowhere.
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
