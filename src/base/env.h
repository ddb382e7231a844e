/* SPDX-License-Identifier: Apache-2.0 */
/* base/env.h: reads settings from the environment and checks their limits. */
#ifndef OARI_BASE_ENV_H
#define OARI_BASE_ENV_H

#include <oarsong/status.h>

#include "base/plugin_export.h"

/* Reads a whole number in [low, high], with an optional K, M or G (powers of
 * 1024) after it. An unset or empty variable leaves *value alone. Any other
 * text is OAR_E_ARG with a sentence that names the variable. */
OARI_FOR_PLUGINS oar_status oari_env_int(const char *name, int64_t low,
                                         int64_t high, int64_t *value);

/* Reads a number of that form from a text; the text of OAR_E_ARG names `what`.
 */
oar_status oari_parse_int(const char *what, const char *text, int64_t low,
                          int64_t high, int64_t *value);

/* Returns 1 if the variable is 1, true, yes or on, in any case; else 0. */
int oari_env_flag(const char *name);

/* Checks every variable that begins with OARSONG_: one with a value that is not
 * in its list is OAR_E_ARG, and the first call with `warn` logs unknown names.
 */
oar_status oari_env_check(int warn);

/* Returns the variable's value; NULL if it is unset or empty. */
const char *oari_env_text(const char *name);

#endif
