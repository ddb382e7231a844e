/* SPDX-License-Identifier: Apache-2.0 */
/* base/env.h: settings from the environment, with their limits checked. */
#ifndef OARI_BASE_ENV_H
#define OARI_BASE_ENV_H

#include <oarsong/status.h>

#include "base/plugin.h"

/* Reads a whole number in [low, high], with an optional K, M or G (powers of
 * 1024) behind it. Unset or empty leaves *value alone. Anything else is
 * OAR_E_ARG with a sentence that names the variable. */
OARI_FOR_PLUGINS oar_status oari_env_int(const char *name, int64_t low,
                                         int64_t high, int64_t *value);

/* The same reading of a text that came from elsewhere; what names it. */
oar_status oari_parse_int(const char *what, const char *text, int64_t low,
                          int64_t high, int64_t *value);

/* 1 for 1, true, yes and on, in any case; 0 for everything else. */
int oari_env_flag(const char *name);

/* Looks at every variable that begins with OARSONG_: one whose value is none of
 * its words is OAR_E_ARG, and the first call with `warn` logs the names that we
 * do not know. */
oar_status oari_env_check(int warn);

/* NULL when unset or empty. */
const char *oari_env_text(const char *name);

#endif
