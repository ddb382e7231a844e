/* SPDX-License-Identifier: Apache-2.0 */
/* env: numbers and texts from the environment. */
#include "base/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>

#include "base/status.h"

const char *oari_env_text(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && *text != 0 ? text : NULL;
}

static int64_t unit_of(const char *tail)
{
    if (tail[0] != 0 && tail[1] != 0)
        return 0;
    switch (tail[0]) {
    case 0: return 1;
    case 'k':
    case 'K': return 1 << 10;
    case 'm':
    case 'M': return 1 << 20;
    case 'g':
    case 'G': return 1 << 30;
    }
    return 0;
}

oar_status oari_parse_int(const char *what, const char *text, int64_t low,
                          int64_t high, int64_t *value)
{
    char *tail;
    int64_t number, unit;

    errno = 0;
    number = strtoll(text, &tail, 10);
    unit = unit_of(tail);
    if (errno != 0 || tail == text || unit == 0 ||
        __builtin_mul_overflow(number, unit, &number) || number < low ||
        number > high)
        return oari_fail(OAR_E_ARG,
                         "%s is \"%s\", but should be a whole number from "
                         "%" PRId64 " to %" PRId64,
                         what, text, low, high);
    *value = number;
    return OAR_OK;
}

oar_status oari_env_int(const char *name, int64_t low, int64_t high,
                        int64_t *value)
{
    const char *text = oari_env_text(name);

    if (text == NULL)
        return OAR_OK;
    return oari_parse_int(name, text, low, high, value);
}

int oari_env_flag(const char *name)
{
    static const char *const yes[] = { "1", "true", "yes", "on" };
    const char *text = oari_env_text(name);

    for (int i = 0; text != NULL && i < 4; i++)
        if (strcasecmp(text, yes[i]) == 0)
            return 1;
    return 0;
}
