/* SPDX-License-Identifier: Apache-2.0 */
/* logs: torchrun's folders, and torchrun's notation for what goes there. */
#include "launch/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/fork.h"
#include "base/status.h"

enum { RUNS_MAX = 9999 }; /* with one id in one folder */

/* ---- reading ------------------------------------------------------------- */

/* Returns a number from 0 to most that ends before one of `ends` or at the end
 * of the text; -1: there is none. */
static int read_number(const char **text, const char *ends, int most)
{
    char *tail;
    long value;

    if (**text < '0' || **text > '9')
        return -1;
    errno = 0;
    value = strtol(*text, &tail, 10);
    if (errno != 0 || value > most || (*tail != 0 && !strchr(ends, *tail)))
        return -1;
    *text = tail;
    return (int)value;
}

static oar_status fail_std(const char *what, const char *text)
{
    return oari_fail(OAR_E_ARG,
                     "%s is \"%s\", but should be 0 (none), 1 (stdout), 2 "
                     "(stderr), 3 (both), or by local rank, as in 0:1,2:3",
                     what, text);
}

oar_status launch_std_read(const char *what, const char *text, int ranks,
                           unsigned char *value)
{
    const char *at = text;
    int rank, std;

    memset(value, 0, (size_t)ranks);
    if (text == NULL)
        return OAR_OK;
    if (strchr(text, ':') == NULL) {
        if ((std = read_number(&at, "", 3)) < 0)
            return fail_std(what, text);
        memset(value, std, (size_t)ranks);
        return OAR_OK;
    }
    for (;; at++) {
        if ((rank = read_number(&at, ":", INT_MAX)) < 0 || *at++ != ':' ||
            (std = read_number(&at, ",", 3)) < 0)
            return fail_std(what, text);
        if (rank >= ranks)
            return oari_fail(OAR_E_ARG, "%s names local rank %d of %d", what,
                             rank, ranks);
        value[rank] = (unsigned char)std;
        if (*at == 0)
            return OAR_OK;
    }
}

oar_status launch_filter_read(const char *text, int ranks, unsigned char *value)
{
    const char *at = text;
    int rank;

    memset(value, text == NULL, (size_t)ranks);
    for (; text != NULL; at++) {
        if ((rank = read_number(&at, ",", INT_MAX)) < 0)
            return oari_fail(OAR_E_ARG,
                             "local-ranks-filter is \"%s\", but should be "
                             "local ranks, as in 0,2",
                             text);
        if (rank < ranks) /* another node may have it */
            value[rank] = 1;
        if (*at == 0)
            break;
    }
    return OAR_OK;
}

oar_status launch_logs_read(launch_logs *logs, const oar_launch_opts *opts,
                            const char *run_id, int ranks)
{
    size_t n = (size_t)ranks;
    int all = opts->log_dir != NULL && opts->redirects == NULL &&
              opts->tee == NULL; /* a folder alone is for all output */

    logs->file = oari_alloc(3 * n, 1);
    if (logs->file == NULL)
        return OAR_E_NOMEM;
    logs->only = logs->file + n;
    logs->shown = logs->file + 2 * n;
    if (opts->log_dir != NULL &&
        snprintf(logs->folder, sizeof logs->folder, "%s/%s", opts->log_dir,
                 run_id) >= (int)sizeof logs->folder - 64)
        return oari_fail(OAR_E_ARG, "the path of log-dir is too long");
    OARI_TRY(launch_std_read("redirects", opts->redirects, ranks, logs->only));
    OARI_TRY(launch_std_read("tee", all ? "3" : opts->tee, ranks, logs->file));
    OARI_TRY(launch_filter_read(opts->show_ranks, ranks, logs->shown));
    for (int i = 0; i < ranks; i++) {
        if (logs->only[i] != 0 && opts->log_dir == NULL)
            return oari_fail(OAR_E_ARG, "redirects to files without a log-dir");
        logs->only[i] &= (unsigned char)~logs->file[i]; /* tee goes first */
        logs->file[i] |= logs->only[i];
        if (opts->log_dir == NULL)
            logs->file[i] = 0;
    }
    return OAR_OK;
}

void launch_logs_drop(launch_logs *logs)
{
    oari_free(logs->file);
    logs->file = NULL;
}

/* ---- making -------------------------------------------------------------- */

/* Makes all folders of the path, up to the last '/'. */
static oar_status make_folders(const char *path)
{
    char part[PATH_MAX];

    for (const char *at = path; (at = strchr(at + 1, '/')) != NULL;) {
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return oari_fail(OAR_E_SYSTEM, "make the folder %s", part);
    }
    return OAR_OK;
}

/* Other nodes may share the folder, so only this rank's part of it shows
 * whether an earlier run has used it. */
static oar_status choose_folder(launch_logs *logs, int attempt, int rank)
{
    size_t bytes = strlen(logs->folder);
    char path[PATH_MAX + 64];

    for (int n = 2; !logs->chosen; n++) {
        snprintf(path, sizeof path, "%s/attempt_%d/%d", logs->folder, attempt,
                 rank);
        OARI_TRY(make_folders(path));
        if (mkdir(path, 0777) == 0)
            logs->chosen = 1;
        else if (errno != EEXIST || n > RUNS_MAX)
            return oari_fail(OAR_E_SYSTEM, "make the folder %s", path);
        else
            snprintf(logs->folder + bytes, sizeof logs->folder - bytes, ".%d",
                     n);
    }
    return OAR_OK;
}

oar_status launch_logs_open(launch_logs *logs, int attempt, int rank,
                            int stream, int again, int *fd)
{
    char path[PATH_MAX + 64];

    OARI_TRY(choose_folder(logs, attempt, rank));
    snprintf(path, sizeof path, "%s/attempt_%d/%d/%s.log", logs->folder,
             attempt, rank, stream == 0 ? "stdout" : "stderr");
    OARI_TRY(make_folders(path));
    *fd = open(
        path, O_WRONLY | O_CREAT | (again ? 0 : O_TRUNC) | O_APPEND | O_CLOEXEC,
        0666);
    if (*fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make the file %s", path);
    oari_fork_guard(*fd);
    return OAR_OK;
}

oar_status launch_logs_recorder(const launch_logs *logs, int attempt,
                                int before, char path[PATH_MAX])
{
    char more[16] = "";

    if (before > 0)
        snprintf(more, sizeof more, ".%d", before + 1);
    if (snprintf(path, PATH_MAX, "%s/attempt_%d/recorder%s/", logs->folder,
                 attempt, more) >= PATH_MAX)
        return oari_fail(OAR_E_ARG, "the path of log-dir is too long");
    OARI_TRY(make_folders(path));
    path[strlen(path) - 1] = 0;
    return OAR_OK;
}
