/* SPDX-License-Identifier: Apache-2.0 */
#include "support/post_mortem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <oarsong/autopsy.h>

#include "support/leak_check.h"

enum { PATH = 160 };

static void path_of(const test_job *c, char path[PATH])
{
    snprintf(path, PATH, "%s/records", c->folder);
}

void post_mortem_keep(const test_job *c)
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

int post_mortem_names(const test_job *c, int rank, failure_text why)
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
        return failure_write(why, "no autopsy: %s", oar_last_error_text());
    named = first_named(text);
    if (named != rank)
        failure_write(why, "the autopsy names another: %.700s", text);
    oar_free(text);
    return named == rank;
}

void post_mortem_clear(const test_job *c)
{
    char path[PATH];

    path_of(c, path);
    folder_remove(path);
}
