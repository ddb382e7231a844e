/* SPDX-License-Identifier: Apache-2.0 */
/* report: what the recorders of the ranks say when something is wrong. Each
 * rank records into memory that it shares with the launcher (a recorder file),
 * so that the launcher can read it when the rank is dead. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/autopsy.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "autopsy/autopsy.h"
#include "record/recorder_file.h"
#include "launch/launch.h"

enum { DEFAULT_STALL_MS = 30000, STALL_LOOK_MS = 1000 };

/* ---- recorder files ------------------------------------------------------ */

/* Returns the folder where the user wants the recorder files; NULL: none. */
static const char *user_folder(void)
{
    return oari_env_text("OARSONG_RECORDER_DIR");
}

static int is_wanted(const launch *l)
{
    return l->opts.narrate || l->logs.folder[0] != 0;
}

static void drop_recorder(launch_rank *r)
{
    if (r->box >= 0)
        close(r->box);
    r->box = -1;
}

void launch_recorders_renew(launch *l, int local)
{
    launch_rank *r = &l->rank[local];

    drop_recorder(r);
    if (is_wanted(l) && user_folder() == NULL &&
        oari_recorder_file_make(l->epoch.first + local, &r->box) != OAR_OK)
        r->box = -1; /* the rank runs without */
}

void launch_recorders_make(launch *l)
{
    for (int i = 0; i < l->ranks; i++)
        launch_recorders_renew(l, i);
    l->stall_look_ns = 0;
}

void launch_recorders_drop(launch *l)
{
    for (int i = 0; i < l->ranks; i++)
        drop_recorder(&l->rank[i]);
}

void launch_recorders_in_rank(const launch *l, int local)
{
    for (int i = 0; i < l->ranks; i++)
        if (i != local && l->rank[i].box >= 0)
            close(l->rank[i].box);
    if (l->rank[local].box >= 0)
        fcntl(l->rank[local].box, F_SETFD, 0);
}

/* ---- reading ------------------------------------------------------------- */

static oar_autopsy *open_autopsy(const launch *l)
{
    oar_autopsy *autopsy = NULL;
    int *fds;

    if (!is_wanted(l))
        return NULL;
    if (user_folder() != NULL)
        return oar_autopsy_open(user_folder(), &autopsy) == OAR_OK ? autopsy
                                                                   : NULL;
    if ((fds = oari_alloc((size_t)l->epoch.world, sizeof *fds)) == NULL)
        return NULL;
    for (int r = 0; r < l->epoch.world; r++)
        fds[r] = -1; /* ranks of other nodes */
    for (int i = 0; i < l->ranks; i++)
        fds[l->epoch.first + i] = l->rank[i].box;
    if (oar_autopsy_from_fds(fds, l->epoch.world, &autopsy) != OAR_OK)
        autopsy = NULL;
    oari_free(fds);
    return autopsy;
}

/* Adds how the ranks of this node ended: only the launcher knows. */
static void note_ends(const launch *l, oar_autopsy *a)
{
    char text[64];

    for (int i = 0; i < l->ranks; i++) {
        int code = l->rank[i].code;
        if (code < 0)
            continue;
        if (code > 128 && sigabbrev_np(code - 128) != NULL)
            snprintf(text, sizeof text, "killed by SIG%s",
                     sigabbrev_np(code - 128));
        else
            snprintf(text, sizeof text, "exit code %d", code);
        oar_autopsy_note(a, l->epoch.first + i, text);
    }
    if (l->first_failed >= 0)
        oari_autopsy_note_first(a, l->epoch.first + l->first_failed);
}

/* ---- reporting ----------------------------------------------------------- */

/* Prints the report, and saves it in the folders for logs and of the trace. */
static void give_report(launch *l, const oar_autopsy *a)
{
    char folder[PATH_MAX], *text = NULL;

    if (l->opts.narrate && oar_autopsy_text(a, &text) == OAR_OK) {
        launch_say_text(l, text);
        oar_free(text);
    }
    if (oari_env_text("OARSONG_TRACE") != NULL &&
        oar_autopsy_save(a, oari_env_text("OARSONG_TRACE")) != OAR_OK)
        launch_say(l, "the autopsy is not in the trace: %s",
                   oar_last_error_text());
    if (l->logs.folder[0] == 0)
        return;
    if (launch_logs_recorder(&l->logs, l->epoch.number, l->respawned, folder) !=
            OAR_OK ||
        oar_autopsy_save(a, folder) != OAR_OK)
        launch_say(l, "the autopsy is not kept: %s", oar_last_error_text());
    else
        launch_say(l, "`oarsong autopsy %s` shows this again", folder);
}

/* Returns whether a rank has recorded anything: programs that do not use the
 * library have not. */
static int has_records(const launch *l)
{
    oari_recorder_head head;

    if (user_folder() != NULL)
        return 1;
    for (int i = 0; i < l->ranks; i++) {
        int box = l->rank[i].box;
        if (box >= 0 &&
            pread(box, &head, sizeof head, 0) == (ssize_t)sizeof head &&
            head.owner != 0)
            return 1;
    }
    return 0;
}

void launch_report(launch *l, const char *why)
{
    oar_error kept = *oar_last_error();
    oar_autopsy *a = has_records(l) ? open_autopsy(l) : NULL;

    if (a == NULL)
        return;
    note_ends(l, a);
    l->culprit = oari_autopsy_culprit(a);
    launch_say(l, "%s; what the ranks did last:", why);
    give_report(l, a);
    oar_autopsy_destroy(a);
    if (kept.status != OAR_OK)
        oari_fail_with(&kept);
}

/* ---- stalls -------------------------------------------------------------- */

static uint64_t hash_stall(const oar_stall *s)
{
    uint64_t h = s->number * 31 + (uint64_t)s->kind + 1;

    for (const char *c = s->group; *c != 0; c++)
        h = h * 1099511628211u + (unsigned char)*c;
    return h;
}

void launch_check_stall(launch *l)
{
    int64_t stall_ms =
        l->opts.stall_ms != 0 ? l->opts.stall_ms : DEFAULT_STALL_MS;
    int64_t look_ms =
        stall_ms / 4 < STALL_LOOK_MS ? stall_ms / 4 : STALL_LOOK_MS;
    oar_stall stall = oar_stall_init();
    oar_autopsy *a;

    if (stall_ms < 0 || !is_wanted(l) || oari_now_ns() < l->stall_look_ns ||
        l->kill_ns != OARI_NEVER)
        return;
    l->stall_look_ns = oari_deadline(look_ms);
    if (!has_records(l) || (a = open_autopsy(l)) == NULL)
        return;
    if (oar_autopsy_stall(a, stall_ms, &stall) &&
        hash_stall(&stall) != l->stall_seen) { /* each is reported once */
        l->stall_seen = hash_stall(&stall);
        launch_say(l, "the job is stalled; what the ranks did last:");
        note_ends(l, a);
        give_report(l, a);
    }
    oar_autopsy_destroy(a);
}
