/* SPDX-License-Identifier: Apache-2.0 */
/* env: reads numbers and texts from the environment. */
#include "base/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"

const char *oari_env_text(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && *text != 0 ? text : NULL;
}

oar_status oari_parse_int(const char *what, const char *text, int64_t low,
                          int64_t high, int64_t *value)
{
    static const char units[] = "kKmMgG"; /* two letters for each 2^10 */
    int64_t number, unit = 1;
    const char *found;
    char *tail;

    errno = 0;
    number = strtoll(text, &tail, 10);
    if (tail != text && *tail != 0 && (found = strchr(units, *tail)) != NULL) {
        unit = INT64_C(1) << (found - units + 2) / 2 * 10;
        tail++;
    }
    if (errno != 0 || tail == text || *tail != 0 ||
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
