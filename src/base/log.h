/* SPDX-License-Identifier: Apache-2.0 */
/* base/log.h: writes the log (see oarsong/log.h). */
#ifndef OARI_BASE_LOG_H
#define OARI_BASE_LOG_H

#include <oarsong/log.h>

/* Writes one line, without its newline. */
void oari_log(oar_log_level level, const char *format, ...) OAR_PRINTF(2, 3);

#endif
