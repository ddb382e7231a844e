/* SPDX-License-Identifier: Apache-2.0 */
/* name_match: comparing dotted names. */
#include "base/name_match.h"

#include <string.h>

enum { LETTERS = 64 };

int oari_name_fits(const char *pattern, const char *name, int below)
{
    for (;;) {
        size_t p = strcspn(pattern, "."), n = strcspn(name, ".");
        int any = p == 1 && pattern[0] == '*';

        if (n == 0 || (!any && (p != n || strncmp(pattern, name, n) != 0)))
            return 0;
        if (pattern[p] == 0 || name[n] == 0)
            return pattern[p] == 0 && (name[n] == 0 || below);
        pattern += p + 1;
        name += n + 1;
    }
}

int oari_edit_distance(const char *a, size_t length, const char *b)
{
    int row[LETTERS + 1];
    int m = length < LETTERS ? (int)length : LETTERS;
    int n = (int)strnlen(b, LETTERS);

    for (int k = 0; k <= n; k++)
        row[k] = k;
    for (int i = 1; i <= m; i++) {
        int corner = row[0];

        row[0] = i;
        for (int k = 1; k <= n; k++) {
            int changed = corner + (a[i - 1] != b[k - 1]);
            int least = row[k] < row[k - 1] ? row[k] + 1 : row[k - 1] + 1;

            corner = row[k];
            row[k] = changed < least ? changed : least;
        }
    }
    return row[n];
}
