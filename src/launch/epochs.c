/* SPDX-License-Identifier: Apache-2.0 */
/* epochs: in each of them all ranks are started, with a store and a
 * secret of its own, so that nothing of one epoch reaches into the next. */
#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "launch/launch.h"

/* ---- how an epoch ended -------------------------------------------------- */

/* Writes "; had left with code 0: rank 0, 3", if any had. */
static void list_left_ranks(const launch *l, char *text, size_t room)
{
    size_t used = 0;
    int good = 0, count = 0;

    text[0] = 0;
    for (int i = 0; i < l->ranks; i++)
        good += l->rank[i].code == 0;
    if (l->opts.keep_going) {
        snprintf(text, room, "; %d of %d ranks ended with code 0", good,
                 l->ranks);
        return;
    }
    for (int i = 0; i < l->ranks && used + 64 < room; i++) {
        const launch_rank *r = &l->rank[i];
        if (r->code != 0 || r->late)
            continue;
        used += (size_t)snprintf(text + used, room - used, "%s%d",
                                 count++ == 0 ? "; had left with code 0: rank "
                                              : ", ",
                                 l->epoch.first + i);
    }
}

static oar_status describe_failure(launch *l)
{
    int local = l->culprit - l->epoch.first, rank;
    const char *reason;
    char cause[48] = "", left[256];

    /* The rank that the report names counts, rather than the first that ended;
     * if it did not fail itself, or is on another node, it is the cause. */
    if (l->culprit >= 0 && local != l->first_failed) {
        const launch_rank *r =
            local >= 0 && local < l->ranks ? &l->rank[local] : NULL;
        int code = r != NULL ? r->code : 0;
        int ended = code == 128 + SIGTERM || code == 128 + SIGKILL;

        /* A rank that failed after the launcher began to end the ranks failed
         * by itself only if another signal ended it. */
        if (code > 0 && (!r->late || (code > 128 && !ended)))
            l->first_failed = local;
        else
            snprintf(cause, sizeof cause, ", because of rank %d", l->culprit);
    }
    list_left_ranks(l, left, sizeof left);
    rank = l->epoch.first + l->first_failed;
    reason = l->reason != NULL ? l->reason[l->first_failed] : "";
    l->result.failed_rank = rank;
    l->result.exit_code = l->rank[l->first_failed].code;
    return oari_fail(OAR_E_PEER, "rank %d %s%s%s%s%s", rank,
                     launch_how_ended(l->result.exit_code).text, cause,
                     reason[0] != 0 ? ": " : "", reason, left);
}

/* ---- one epoch after the other ------------------------------------------- */

static oar_status run_ranks(launch *l)
{
    oar_status status;

    launch_recorders_make(l);
    status = launch_ranks_start(l);
    if (status != OAR_OK)
        launch_ranks_end(l, SIGTERM);
    launch_event_loop(l);
    launch_ranks_end_orphans(l);
    if (status != OAR_OK)
        return status;
    if (l->first_failed >= 0)
        return describe_failure(l);
    if (l->stop_signal != 0)
        return launch_fail_stopped(l);
    if (l->result.exit_code == 124)
        return oari_fail(OAR_E_TIMEOUT, "the ranks did not end in time");
    return OAR_OK;
}

static void end_epoch(launch *l)
{
    launch_recorders_drop(l);
    launch_store_process_stop(&l->keeper);
}

static oar_status run_alone(launch *l)
{
    for (;;) {
        oar_status status;

        l->epoch.nodes = 1;
        l->epoch.world = l->ranks;
        status = launch_epoch_serve(l, "127.0.0.1");
        if (status == OAR_OK)
            status = run_ranks(l);
        end_epoch(l);
        if (status != OAR_E_PEER || l->stop_signal != 0 ||
            l->epoch.restarts >= l->opts.max_restarts ||
            oari_now_ns() >= l->deadline_ns)
            return status;
        l->epoch.number++;
        l->epoch.restarts++;
        launch_say(l, "%s; restart %d of %d", oar_last_error_text(),
                   l->epoch.restarts, l->opts.max_restarts);
        l->result.failed_rank = -1;
        l->result.exit_code = 0;
    }
}

/* The nodes decide together whether and when there is another epoch. */
static oar_status run_with_nodes(launch *l)
{
    oar_status status;
    int more;

    while ((status = launch_nodes_join(l, &more)) == OAR_OK && more) {
        status = run_ranks(l);
        launch_nodes_ended(l, status);
        if (!l->opts.keep_going) /* other nodes may need the store */
            end_epoch(l);
    }
    end_epoch(l);
    return status;
}

oar_status launch_epochs_run(launch *l)
{
    oar_status status = l->nodes != NULL ? run_with_nodes(l) : run_alone(l);

    l->result.epoch = l->epoch.number;
    return status;
}
