/* SPDX-License-Identifier: Apache-2.0 */
/* hosts: treats ranks of one machine as if they were on several hosts. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

/* "3+1": so many on each, in a row. */
static int read_row(const char *text, int most, int *ranks, int *host)
{
    char one[16];
    size_t count, length;
    int n = 0;

    for (int h = 0;; h++, text += length + 1) {
        length = strcspn(text, "+");
        snprintf(one, sizeof one, "%.*s", (int)length, text);
        if (length >= sizeof one ||
            !tool_number(one, 1, (size_t)(most - n), &count))
            return 0;
        for (size_t i = 0; i < count; i++)
            host[n++] = h;
        if (text[length] == 0)
            break;
    }
    *ranks = n;
    return 1;
}

int tool_hosts(const char *text, int most, int *ranks, int *host)
{
    size_t hosts;

    if (strchr(text, '+') != NULL)
        return read_row(text, most, ranks, host);
    if (!tool_number(text, 1, (size_t)*ranks, &hosts))
        return 0;
    for (int r = 0; r < *ranks; r++)
        host[r] = r % (int)hosts;
    return 1;
}
