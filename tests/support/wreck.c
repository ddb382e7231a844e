/* SPDX-License-Identifier: Apache-2.0 */
#include "support/wreck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <oarsong/autopsy.h>

#include "support/census.h"

enum { PATH = 160 };

static void path_of(const crew *c, char path[PATH])
{
    snprintf(path, PATH, "%s/boxes", c->folder);
}

void wreck_keep_box(const crew *c)
{
    char path[PATH];

    path_of(c, path);
    mkdir(path, 0700);
    setenv("OARSONG_RECORDER_DIR", path, 1);
}

/* The first rank that the first line names; -1: none. */
static int first_named(const char *text)
{
    const char *at = strstr(text, "rank ");
    int rank = -1;

    if (at != NULL && at < text + strcspn(text, "\n"))
        sscanf(at, "rank %d", &rank);
    return rank;
}

int wreck_names(const crew *c, int rank, reason why)
{
    oar_autopsy *autopsy = NULL;
    char path[PATH], *text = NULL;
    oar_status status;
    int named;

    path_of(c, path);
    status = oar_autopsy_open(path, &autopsy);
    if (status == OAR_E_NOT_FOUND)
        return 1;
    if (status == OAR_OK)
        status = oar_autopsy_text(autopsy, &text);
    oar_autopsy_destroy(autopsy);
    if (status != OAR_OK)
        return verdict_say(why, "no autopsy: %s", oar_last_error_text());
    named = first_named(text);
    if (named != rank)
        verdict_say(why, "the autopsy names another: %.700s", text);
    oar_free(text);
    return named == rank;
}

void wreck_clear(const crew *c)
{
    char path[PATH];

    path_of(c, path);
    folder_drop(path);
}
