/* SPDX-License-Identifier: Apache-2.0 */
#include "support/netns.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int netns_ip(const char *format, ...)
{
    char line[256] = "ip ";
    size_t used = 3;
    va_list args;

    va_start(args, format);
    used += (size_t)vsnprintf(line + used, sizeof line - used, format, args);
    va_end(args);
    snprintf(line + used, sizeof line - used, " >/dev/null 2>&1");
    return system(line) == 0;
}
