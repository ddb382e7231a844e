/* SPDX-License-Identifier: Apache-2.0 */
/* launch_job: the public calls. They read the options, prepare what lasts for
 * all epochs, run these, and leave this process as it was. */
#include "launch/launch.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "base/thread.h"
#include "link/link.h"
#include "launch/hostfile.h"

/* ---- options ------------------------------------------------------------- */

/* The id becomes the name of a folder. */
static oar_status pick_run_id(launch *l)
{
    const char *id = l->opts.run_id;
    uint64_t number = 0;

    if (id == NULL && l->opts.max_nodes > 1)
        id = "default"; /* all nodes need the same id */
    if (id == NULL) {
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
            return oari_fail(OAR_E_SYSTEM, "make an id for the run");
        snprintf(l->run_id, sizeof l->run_id, "%016llx",
                 (unsigned long long)number);
        return OAR_OK;
    }
    if (id[0] == 0 || id[0] == '.' || strlen(id) >= sizeof l->run_id)
        return oari_fail(OAR_E_ARG, "the id of a run has 1 to %d bytes",
                         LAUNCH_ID_ROOM - 1);
    for (const char *c = id; *c != 0; c++)
        if (!isalnum((unsigned char)*c) && strchr("._-", *c) == NULL)
            return oari_fail(OAR_E_ARG,
                             "the id \"%s\" may have letters, digits, '.', "
                             "'_' and '-'",
                             id);
    memcpy(l->run_id, id, strlen(id) + 1);
    return OAR_OK;
}

static oar_status check_nodes(oar_launch_opts *o)
{
    if (o->min_nodes == 0 && o->max_nodes == 0)
        o->min_nodes = o->max_nodes = 1;
    if (o->min_nodes < 1 || o->max_nodes < o->min_nodes ||
        o->max_nodes > OARI_MAX_RANKS)
        return oari_fail(OAR_E_ARG, "from %d to %d nodes: from 1 to at most %d",
                         o->min_nodes, o->max_nodes, OARI_MAX_RANKS);
    if (o->max_nodes > 1 && o->endpoint == NULL)
        return oari_fail(OAR_E_ARG,
                         "several nodes, but no endpoint where they meet: the "
                         "same HOST:PORT on each (--rdzv-endpoint)");
    return OAR_OK;
}

static oar_status read_options(launch *l, const oar_launch_opts *opts)
{
    OARI_TRY(oari_opts_read(&l->opts, sizeof l->opts, opts));
    if (l->ranks == OAR_LAUNCH_AUTO && l->opts.hostfile != NULL)
        OARI_TRY(launch_hostfile_slots(l->opts.hostfile, &l->ranks));
    if (l->ranks == OAR_LAUNCH_AUTO)
        l->ranks = oari_cpus();
    if (l->ranks < 1 || l->ranks > OARI_MAX_RANKS)
        return oari_fail(OAR_E_WORLD, "%d ranks: 1 to %d", l->ranks,
                         OARI_MAX_RANKS);
    for (const char *const *env = l->opts.env; env != NULL && *env != NULL;
         env++) {
        size_t bytes = strcspn(*env, "=");
        if (bytes == 0 || bytes > 255 || (*env)[bytes] == 0)
            return oari_fail(OAR_E_ARG, "\"%s\" is not NAME=VALUE", *env);
    }
    OARI_TRY(check_nodes(&l->opts));
    if (l->opts.max_respawns < 0)
        return oari_fail(OAR_E_ARG, "%d respawns: a number from 0 on",
                         l->opts.max_respawns);
    if (l->opts.max_respawns > 0)
        l->opts.keep_going = 1;
    if (l->opts.keep_going && l->opts.max_restarts > 0)
        return oari_fail(OAR_E_ARG,
                         "%s and max-restarts: after a failure the other ranks "
                         "either go on or are started again",
                         l->opts.max_respawns > 0 ? "respawn" : "keep-going");
    OARI_TRY(pick_run_id(l));
    if (l->opts.log_dir != NULL || l->opts.redirects != NULL ||
        l->opts.tee != NULL || l->opts.show_ranks != NULL)
        l->opts.lines = 1;
    OARI_TRY(launch_logs_read(&l->logs, &l->opts, l->run_id, l->ranks));
    OARI_TRY(launch_bind_plan(l->opts.bind, l->ranks, &l->bound));
    l->deadline_ns =
        l->opts.timeout_ms > 0 ? oari_deadline(l->opts.timeout_ms) : OARI_NEVER;
    return OAR_OK;
}

/* ---- preparing ----------------------------------------------------------- */

static oar_status prepare(launch *l)
{
    l->rank = oari_alloc((size_t)l->ranks, sizeof *l->rank);
    if (l->rank == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < l->ranks; i++) {
        launch_stream none = { .fd = -1, .peer_fd = -1, .log_fd = -1 };

        l->rank[i].stream[0] = l->rank[i].stream[1] = none;
        l->rank[i].box = -1;
    }
    if (l->fn != NULL) {
        void *at =
            mmap(NULL, (size_t)l->ranks * LAUNCH_REASON_ROOM,
                 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return oari_fail(OAR_E_SYSTEM, "map memory for what ranks say");
        l->reason = at;
    }
    OARI_TRY(launch_output_open(l));
    return l->opts.max_nodes > 1 ? launch_nodes_open(l) : OAR_OK;
}

static void release(launch *l)
{
    launch_nodes_close(l);
    if (l->poll != NULL)
        launch_output_close(l);
    if (l->reason != NULL)
        munmap(l->reason, (size_t)l->ranks * LAUNCH_REASON_ROOM);
    launch_logs_drop(&l->logs);
    oari_free(l->bound);
    oari_free(l->rank);
}

/* ---- the calls ----------------------------------------------------------- */

static oar_status run_job(launch *l)
{
    struct rlimit more;
    int reaper = 0;
    oar_status status;
    oar_error why;

    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    if (l->opts.sole)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* Two pipes for each rank are soon more than a process may have open. */
    getrlimit(RLIMIT_NOFILE, &l->files);
    more = l->files;
    more.rlim_cur = more.rlim_max;
    setrlimit(RLIMIT_NOFILE, &more);
    l->terminal = l->ranks == 1 && !l->opts.lines && isatty(STDIN_FILENO) == 1;
    launch_signals_block(l);
    status = prepare(l);
    if (status == OAR_OK)
        status = launch_epochs_run(l);
    why = *oar_last_error();
    release(l);
    launch_signals_restore(l);
    setrlimit(RLIMIT_NOFILE, &l->files);
    prctl(PR_SET_CHILD_SUBREAPER, reaper);
    return status != OAR_OK ? oari_fail_with(&why) : OAR_OK;
}

static oar_status launch_all(launch *l, const oar_launch_opts *opts,
                             oar_launch_result *result)
{
    oar_status status = read_options(l, opts);

    l->result.size = sizeof l->result;
    l->result.failed_rank = -1;
    if (status == OAR_OK)
        status = run_job(l);
    else
        release(l);
    if (result != NULL && status != OAR_E_ARG) {
        oar_error why = *oar_last_error();
        OARI_TRY(oari_struct_give(result, &l->result, sizeof l->result,
                                  "launch result"));
        if (status != OAR_OK)
            return oari_fail_with(&why);
    }
    return status;
}

oar_status oar_launch(int ranks, char *const *argv, const oar_launch_opts *opts,
                      oar_launch_result *result)
{
    launch l = { .ranks = ranks, .argv = argv, .signal_fd = -1 };

    if (argv == NULL || argv[0] == NULL)
        return oari_fail(OAR_E_ARG, "launch without a program");
    return launch_all(&l, opts, result);
}

oar_status oar_launch_fn(int ranks, oar_rank_fn fn, void *arg,
                         const oar_group_opts *group_opts,
                         const oar_launch_opts *opts, oar_launch_result *result)
{
    launch l = { .ranks = ranks,
                 .fn = fn,
                 .arg = arg,
                 .group_opts = group_opts,
                 .signal_fd = -1 };

    if (fn == NULL)
        return oari_fail(OAR_E_ARG, "launch without a function");
    return launch_all(&l, opts, result);
}
