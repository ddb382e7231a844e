/* SPDX-License-Identifier: Apache-2.0 */
/* live: looks at a running job. A look is an autopsy of the recorder files that
 * are open here (live_find.c), and from it what each rank does (live_rank.c).
 */
#include "autopsy/live.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autopsy/autopsy.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

enum { SCAN_MS = 2000 };

struct oar_live {
    oari_live_files files;
    oari_live_file one; /* of the job, to know the others by */
    char folder[PATH_MAX];
    pid_t launcher; /* has all files of the job open; 0: all are searched */
    int64_t scan_ns;
    oar_autopsy *autopsy;
    oari_live_view *rank;
    int ranks;
    char verdict[1024];
};

/* ---- the files of the job ------------------------------------------------ */

/* Returns whether a file is rather the one of its rank: the newer one is. */
static int is_newer(const oari_recorder_head *a, const oari_recorder_head *b)
{
    return a->epoch != b->epoch ? a->epoch > b->epoch : a->base_ns > b->base_ns;
}

/* Gives the newest file of each rank; -1: none. Returns how many ranks there
 * are. */
static int choose_files(const oari_live_files *files, int fd[OARI_MEMBERS])
{
    const oari_recorder_head *of[OARI_MEMBERS] = { NULL };
    int ranks = 0;

    for (int64_t i = 0; i < files->count; i++) {
        const oari_recorder_head *h = &files->file[i].head;

        if (h->rank < 0 || h->rank >= OARI_MEMBERS ||
            (of[h->rank] != NULL && !is_newer(h, of[h->rank])))
            continue;
        of[h->rank] = h;
        fd[h->rank] = files->file[i].fd;
        if (h->rank >= ranks)
            ranks = h->rank + 1;
        if (h->world > ranks && h->world <= OARI_MEMBERS)
            ranks = h->world;
    }
    for (int r = 0; r < ranks; r++)
        if (of[r] == NULL)
            fd[r] = -1;
    return ranks;
}

/* Closes files that a newer one has replaced. */
static void drop_replaced(oari_live_files *files, const int *fd, int ranks)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < files->count; i++) {
        int rank = files->file[i].head.rank;

        if (rank >= 0 && rank < ranks && fd[rank] != files->file[i].fd)
            close(files->file[i].fd);
        else
            files->file[kept++] = files->file[i];
    }
    files->count = kept;
}

/* Closes files of other jobs, which a search of all processes has found. */
static void drop_others(oar_live *l)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < l->files.count; i++)
        if (l->files.file[i].inode == l->one.inode ||
            oari_live_same_job(&l->files.file[i], &l->one))
            l->files.file[kept++] = l->files.file[i];
        else
            close(l->files.file[i].fd);
    l->files.count = kept;
}

static oar_status find_more(oar_live *l)
{
    if (l->folder[0] != 0)
        return oari_live_find_in(l->folder, &l->files);
    if (l->launcher != 0)
        return oari_live_find(l->launcher, &l->files);
    if (oari_now_ns() < l->scan_ns)
        return OAR_OK;
    l->scan_ns = oari_deadline(SCAN_MS);
    OARI_TRY(oari_live_find(0, &l->files));
    drop_others(l);
    return OAR_OK;
}

/* ---- a look -------------------------------------------------------------- */

static oar_status make_room(oar_live *l, int ranks)
{
    oari_live_view *more;

    if (ranks <= l->ranks)
        return OAR_OK;
    more = oari_alloc((size_t)ranks, sizeof *more);
    if (more == NULL)
        return OAR_E_NOMEM;
    if (l->ranks > 0)
        memcpy(more, l->rank, (size_t)l->ranks * sizeof *more);
    oari_free(l->rank);
    l->rank = more;
    l->ranks = ranks;
    return OAR_OK;
}

oar_status oar_live_look(oar_live *live)
{
    oari_analysis a = { 0 };
    oar_autopsy *autopsy = NULL;
    int fd[OARI_MEMBERS], ranks;

    if (live == NULL)
        return oari_fail(OAR_E_ARG, "live_look at NULL");
    OARI_TRY(find_more(live));
    oari_live_reread(&live->files);
    ranks = choose_files(&live->files, fd);
    if (ranks == 0)
        return oari_fail(OAR_E_NOT_FOUND, "no rank has begun to record yet");
    drop_replaced(&live->files, fd, ranks);
    OARI_TRY(oar_autopsy_from_fds(fd, ranks, &autopsy));
    if (oari_analysis_make(autopsy, &a) != OAR_OK ||
        make_room(live, autopsy->ranks) != OAR_OK) {
        oari_analysis_clear(&a);
        oar_autopsy_destroy(autopsy);
        return oar_last_error()->status;
    }
    for (int r = 0; r < live->ranks; r++)
        oari_live_describe(&a, &live->rank[r], r);
    snprintf(live->verdict, sizeof live->verdict, "%s", a.verdict);
    oari_analysis_clear(&a);
    oar_autopsy_destroy(live->autopsy);
    live->autopsy = autopsy;
    return OAR_OK;
}

/* ---- opening ------------------------------------------------------------- */

/* Returns the file that was begun last, of all that this fits: a run id, or
 * NULL for any; -1: none. */
static int64_t newest_file(const oari_live_files *files, const char *run)
{
    int64_t best = -1;

    for (int64_t i = 0; i < files->count; i++) {
        const oari_recorder_head *h = &files->file[i].head;

        if (run != NULL ? strcmp(h->run, run) != 0
                        : atomic_load(&h->owner) == 0)
            continue;
        if (best < 0 || h->base_ns > files->file[best].head.base_ns)
            best = i;
    }
    return best;
}

/* Returns the file that this process writes, or -1. */
static int64_t file_of(const oari_live_files *files, pid_t pid)
{
    for (int64_t i = 0; i < files->count; i++)
        if (atomic_load(&files->file[i].head.owner) == pid)
            return i;
    return -1;
}

/* Finds the job of a pid, which is its launcher's or a rank's. */
static oar_status open_process(oar_live *l, pid_t pid)
{
    int64_t index;

    OARI_TRY(oari_live_find(pid, &l->files));
    if (l->files.count > 0 && file_of(&l->files, pid) < 0) {
        l->launcher = pid;
        l->one = l->files.file[0];
        return OAR_OK;
    }
    OARI_TRY(oari_live_find(0, &l->files));
    if ((index = file_of(&l->files, pid)) < 0)
        return oari_fail(OAR_E_NOT_FOUND,
                         "process %d is neither a rank nor a launcher of a job "
                         "of this user",
                         (int)pid);
    l->one = l->files.file[index];
    oari_live_keep_job(&l->files, index);
    return OAR_OK;
}

/* Finds a job by the id of its run; NULL: the newest. */
static oar_status open_run(oar_live *l, const char *run)
{
    int64_t index;

    OARI_TRY(oari_live_find(0, &l->files));
    if ((index = newest_file(&l->files, run)) < 0)
        return run != NULL
                   ? oari_fail(OAR_E_NOT_FOUND,
                               "this user runs no job \"%s\" here", run)
                   : oari_fail(OAR_E_NOT_FOUND, "this user runs no job here");
    l->one = l->files.file[index];
    oari_live_keep_job(&l->files, index);
    return OAR_OK;
}

static oar_status open_what(oar_live *l, const char *what)
{
    struct stat info;
    char *end = NULL;
    long pid = what != NULL ? strtol(what, &end, 10) : 0;

    l->scan_ns = oari_deadline(SCAN_MS);
    if (what != NULL && *end == 0 && pid > 0 && pid < INT_MAX &&
        kill((pid_t)pid, 0) == 0)
        return open_process(l, (pid_t)pid);
    if (what != NULL && stat(what, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(l->folder, sizeof l->folder, "%s", what);
        return OAR_OK;
    }
    return open_run(l, what);
}

oar_status oar_live_open(const char *what, oar_live **live)
{
    oar_live *l;
    oar_status status;

    if (live == NULL)
        return oari_fail(OAR_E_ARG, "live_open with nowhere to put it");
    if ((l = oari_alloc(1, sizeof *l)) == NULL)
        return OAR_E_NOMEM;
    status = open_what(l, what);
    if (status == OAR_OK)
        status = oar_live_look(l);
    if (status != OAR_OK) {
        oar_live_close(l);
        return status;
    }
    *live = l;
    return OAR_OK;
}

void oar_live_close(oar_live *live)
{
    if (live == NULL)
        return;
    oari_live_files_close(&live->files);
    oar_autopsy_destroy(live->autopsy);
    oari_free(live->rank);
    oari_free(live);
}

/* ---- what the last look has found ---------------------------------------- */

int oar_live_ranks(const oar_live *live)
{
    return live != NULL ? live->ranks : 0;
}

static oar_status check_rank(const oar_live *live, int rank)
{
    return live != NULL && rank >= 0 && rank < live->ranks
               ? OAR_OK
               : oari_fail(OAR_E_RANK, "a job without rank %d", rank);
}

oar_status oar_live_rank_at(const oar_live *live, int rank, oar_live_rank *out)
{
    OARI_TRY(check_rank(live, rank));
    return oari_struct_give(out, &live->rank[rank].now, sizeof *out,
                            "live rank");
}

int oar_live_metrics(const oar_live *live, int rank)
{
    return check_rank(live, rank) == OAR_OK ? live->rank[rank].metrics : 0;
}

oar_status oar_live_metric_at(const oar_live *live, int rank, int index,
                              oar_live_metric *out)
{
    OARI_TRY(check_rank(live, rank));
    if (index < 0 || index >= live->rank[rank].metrics)
        return oari_fail(OAR_E_ARG, "rank %d has no number %d", rank, index);
    return oari_struct_give(out, &live->rank[rank].metric[index], sizeof *out,
                            "live metric");
}

const char *oar_live_run(const oar_live *live)
{
    for (int64_t i = 0; live != NULL && i < live->files.count; i++)
        if (live->files.file[i].head.run[0] != 0)
            return live->files.file[i].head.run;
    return "";
}

const char *oar_live_verdict(const oar_live *live)
{
    return live != NULL ? live->verdict : "";
}

const oar_autopsy *oar_live_autopsy(const oar_live *live)
{
    return live != NULL ? live->autopsy : NULL;
}
