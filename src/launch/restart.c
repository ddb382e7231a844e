/* SPDX-License-Identifier: Apache-2.0 */
/* restart: epochs. In each all ranks are started anew, with a store and a
 * secret of its own, so that nothing of one reaches into the next. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/status.h"
#include "launch/launch.h"

/* ---- one epoch ----------------------------------------------------------- */

static oar_status make_secret(char text[LAUNCH_SECRET_ROOM])
{
    unsigned char bytes[32];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return oari_fail(OAR_E_SYSTEM, "make a secret for the job");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return OAR_OK;
}

static oar_status pick_master(launch *l, const char *host)
{
    launch_epoch *e = &l->epoch;

    snprintf(e->master, sizeof e->master, "%s",
             l->opts.master_addr != NULL ? l->opts.master_addr : host);
    e->master_port =
        l->opts.master_port > 0 ? l->opts.master_port : launch_free_port();
    return e->master_port > 0
               ? OAR_OK
               : oari_fail(OAR_E_SYSTEM, "find a free port for MASTER_PORT");
}

oar_status launch_epoch_serve(launch *l, const char *host)
{
    char address[OARI_SOCK_TEXT];
    int v6 = strchr(host, ':') != NULL;

    OARI_TRY(make_secret(l->epoch.secret));
    OARI_TRY(pick_master(l, host));
    snprintf(address, sizeof address, v6 ? "[%.250s]:0" : "%.250s:0", host);
    return launch_keeper_start(
        &l->keeper,
        &(launch_keeper_task){ .serve = address, .secret = l->epoch.secret },
        l->epoch.store);
}

/* The only node there is. */
static oar_status begin_alone(launch *l)
{
    l->epoch.nodes = 1;
    l->epoch.world = l->ranks;
    return launch_epoch_serve(l, "127.0.0.1");
}

static oar_status run_ranks(launch *l)
{
    oar_status status;

    launch_boxes_make(l);
    status = launch_ranks_start(l);
    if (status != OAR_OK)
        launch_ranks_end(l, SIGTERM);
    launch_watch(l);
    launch_ranks_end_orphans(l);
    return status;
}

static void end_epoch(launch *l)
{
    launch_boxes_drop(l);
    launch_keeper_stop(&l->keeper);
}

/* ---- how it ended -------------------------------------------------------- */

static int count_good(const launch *l)
{
    int good = 0;

    for (int i = 0; i < l->ranks; i++)
        good += l->rank[i].code == 0;
    return good;
}

/* "; had left with code 0: rank 0, 3", if any had. */
static void tell_who_left(const launch *l, char *text, size_t room)
{
    size_t used = 0;
    int count = 0;

    text[0] = 0;
    if (l->opts.keep_going) {
        snprintf(text, room, "; %d of %d ranks ended with code 0",
                 count_good(l), l->ranks);
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

/* Whether it ended badly, and not because we told it to. */
static int failed_by_itself(const launch_rank *r)
{
    int told = r->code == 128 + SIGTERM || r->code == 128 + SIGKILL;

    return r->code > 0 && (!r->late || (r->code > 128 && !told));
}

/* The rank that the report names counts, rather than the first that ended; if
 * it did not fail itself, or not here: ", because of rank 2". */
static void use_verdict(launch *l, char *text, size_t room)
{
    int local = l->culprit - l->epoch.first;

    text[0] = 0;
    if (l->culprit < 0 || local == l->first_failed)
        return;
    if (local >= 0 && local < l->ranks && failed_by_itself(&l->rank[local]))
        l->first_failed = local;
    else
        snprintf(text, room, ", because of rank %d", l->culprit);
}

static oar_status rank_failed(launch *l)
{
    const char *reason;
    char cause[48], left[256];
    int rank;

    use_verdict(l, cause, sizeof cause);
    tell_who_left(l, left, sizeof left);
    rank = l->epoch.first + l->first_failed;
    reason = l->reason != NULL ? l->reason[l->first_failed] : "";
    l->result.failed_rank = rank;
    l->result.exit_code = l->rank[l->first_failed].code;
    return oari_fail(OAR_E_PEER, "rank %d %s%s%s%s%s", rank,
                     launch_how_ended(l->result.exit_code).text, cause,
                     reason[0] != 0 ? ": " : "", reason, left);
}

static oar_status outcome(launch *l)
{
    if (l->first_failed >= 0)
        return rank_failed(l);
    if (l->told != 0)
        return launch_fail_told(l);
    if (l->result.exit_code == 124)
        return oari_fail(OAR_E_TIMEOUT, "the ranks did not end in time");
    return OAR_OK;
}

/* ---- one after the other ------------------------------------------------- */

static int may_restart(const launch *l, oar_status status)
{
    return status == OAR_E_PEER && l->told == 0 &&
           l->epoch.restarts < l->opts.max_restarts &&
           oari_now_ns() < l->deadline_ns;
}

static void next_epoch(launch *l)
{
    l->epoch.number++;
    l->epoch.restarts++;
    launch_say(l, "%s; restart %d of %d", oar_last_error_text(),
               l->epoch.restarts, l->opts.max_restarts);
    l->result.failed_rank = -1;
    l->result.exit_code = 0;
}

static oar_status run_alone(launch *l)
{
    for (;;) {
        oar_status status = begin_alone(l);
        if (status == OAR_OK && (status = run_ranks(l)) == OAR_OK)
            status = outcome(l);
        end_epoch(l);
        if (!may_restart(l, status))
            return status;
        next_epoch(l);
    }
}

/* With others: they decide together whether and when to go on. */
static oar_status run_with_nodes(launch *l)
{
    oar_status status;
    int more;

    while ((status = launch_nodes_join(l, &more)) == OAR_OK && more) {
        if ((status = run_ranks(l)) == OAR_OK)
            status = outcome(l);
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
