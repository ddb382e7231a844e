/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_names: see its header. */
#include "parallel/checkpoint/tensor_names.h"

#include <stdio.h>
#include <string.h>

int oari_ckpt_section_is_in(const char *sections, const char *section)
{
    const char *at = sections;
    size_t length = strlen(section);

    if (at == NULL)
        return 1;
    while (*at != '\0') {
        size_t n = strcspn(at, ",");

        if (n == length && memcmp(at, section, n) == 0)
            return 1;
        at += n + (at[n] == ',');
    }
    return 0;
}

int oari_ckpt_rename(const char *from, const char *to, const char *name,
                     char *renamed, size_t room)
{
    const char *star = strchr(from, '*');
    size_t before = star != NULL ? (size_t)(star - from) : strlen(from);
    size_t after = star != NULL ? strlen(star + 1) : 0;
    size_t length = strlen(name);
    const char *slot = strchr(to, '*');
    int n;

    if (star == NULL
            ? strcmp(from, name) != 0
            : length < before + after || memcmp(name, from, before) != 0 ||
                  memcmp(name + length - after, star + 1, after) != 0)
        return 0;
    if (star == NULL || slot == NULL)
        n = snprintf(renamed, room, "%s", to);
    else
        n = snprintf(renamed, room, "%.*s%.*s%s", (int)(slot - to), to,
                     (int)(length - before - after), name + before, slot + 1);
    return n >= 0 && (size_t)n < room;
}

/* The number of edits between two names, up to a limit. */
static int count_edits(const char *a, const char *b)
{
    enum { LONGEST = 120 };
    int row[LONGEST + 1], n = (int)strlen(b);

    if (strlen(a) > LONGEST || n > LONGEST)
        return LONGEST;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

const char *oari_ckpt_index_nearest(const oari_ckpt_index *index,
                                    const char *section, const char *name)
{
    const char *best = NULL;
    int least = 0;

    for (int64_t i = 0; i < index->tensors; i++) {
        const oari_ckpt_index_tensor *t = &index->tensor[i];
        int edits;

        if (section != NULL && strcmp(t->section, section) != 0)
            continue;
        edits = count_edits(name, t->name);
        if (best == NULL || edits < least) {
            best = t->name;
            least = edits;
        }
    }
    return best;
}
