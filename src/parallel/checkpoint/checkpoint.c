/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint: opens and closes folders of generations, and prunes them. */
#include "parallel/checkpoint/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/collective.h>

#include "base/call_site.h"
#include "base/log.h"
#include "base/status.h"

#define LOCK_NAME "oarsong.lock"

oar_status oari_ckpt_check(const oar_checkpoint *checkpoint, const char *call)
{
    if (checkpoint == NULL)
        return oari_fail(OAR_E_ARG, "%s: the checkpoint is NULL", call);
    if (checkpoint->pid != getpid())
        return oari_fail(OAR_E_STATE,
                         "%s: the checkpoint was opened by the parent of this "
                         "process",
                         call);
    return OAR_OK;
}

/* ---- opening ------------------------------------------------------------- */

static oar_status check_opts(oar_checkpoint_opts *o)
{
    if (o->block_bytes == 0)
        o->block_bytes = 4 << 20;
    if (o->block_bytes < 64 << 10 || o->block_bytes > 64 << 20 ||
        (o->block_bytes & (o->block_bytes - 1)) != 0)
        return oari_fail(OAR_E_ARG,
                         "checkpoint_open: block_bytes %zu; a power of two "
                         "from 64 KiB to 64 MiB is allowed",
                         o->block_bytes);
    if (o->threads == 0)
        o->threads = 2;
    if (o->threads < 0 || o->threads > 64)
        return oari_fail(OAR_E_ARG,
                         "checkpoint_open: %d threads; 1 to 64 are "
                         "allowed",
                         o->threads);
    if (o->keep < 0 || o->keep_every < 0 || o->writers < 0)
        return oari_fail(OAR_E_ARG,
                         "checkpoint_open: keep %d, keep_every "
                         "%" PRId64 ", writers %d",
                         o->keep, o->keep_every, o->writers);
    return OAR_OK;
}

static oar_status open_folder(oar_checkpoint *c)
{
    c->folder = c->disk->open_folder(c->disk, AT_FDCWD, c->path);
    if (c->folder < 0)
        return oari_fail(errno == ENOENT ? OAR_E_NOT_FOUND : OAR_E_SYSTEM,
                         "open the folder %s", c->path);
    return OAR_OK;
}

/* Takes the folder's lock and writes into it who has it. */
static oar_status take_lock(oar_checkpoint *c)
{
    char text[256] = "", host[65] = "";
    int n;

    c->lock_file =
        c->disk->open_file(c->disk, c->folder, LOCK_NAME, OARI_DISK_SHARED);
    if (c->lock_file < 0)
        return oari_fail(OAR_E_SYSTEM, "open %s/" LOCK_NAME, c->path);
    if (c->disk->lock(c->disk, c->lock_file) != 0) {
        if (errno != EWOULDBLOCK)
            return oari_fail(OAR_E_SYSTEM, "lock %s/" LOCK_NAME, c->path);
        (void)c->disk->read_at(c->disk, c->lock_file, text, sizeof text - 1, 0);
        text[strcspn(text, "\n")] = '\0';
        return oari_fail(OAR_E_STATE, "%s is in use by another job: %s",
                         c->path, text[0] != '\0' ? text : "unknown");
    }
    gethostname(host, sizeof host - 1);
    n = snprintf(text, sizeof text,
                 "host %s, process %" PRId64 ", since unix time %" PRId64 "\n",
                 host, c->pid, (int64_t)time(NULL));
    /* It is only for people: a disk that is full must not stop a load. */
    (void)c->disk->write_at(c->disk, c->lock_file, text, (size_t)n, 0);
    return OAR_OK;
}

/* Makes the folder if it is not there, for good: its name is synced, too. */
static oar_status make_folder(oar_checkpoint *c)
{
    const char *name;
    int parent;

    if (c->disk->make_folder(c->disk, AT_FDCWD, c->path) != 0)
        return errno == EEXIST
                   ? OAR_OK
                   : oari_fail(OAR_E_SYSTEM, "make the folder %s", c->path);
    OARI_TRY(oari_disk_open_parent(c->disk, c->path, &parent, &name));
    if (!c->opts.no_sync)
        return oari_disk_finish(c->disk, parent, c->path);
    (void)c->disk->close(c->disk, parent);
    return OAR_OK;
}

static oar_status open_first(oar_checkpoint *c)
{
    if (!c->opts.read_only)
        OARI_TRY(make_folder(c));
    OARI_TRY(open_folder(c));
    if (c->opts.read_only)
        return OAR_OK;
    OARI_TRY(take_lock(c));
    return oari_ckpt_remove_parts(c->disk, c->folder, c->path);
}

static oar_status open_all(oar_checkpoint *c)
{
    const oari_ckpt_same same[] = {
        { "read_only", c->opts.read_only != 0 },
        { "block_bytes", (int64_t)c->opts.block_bytes },
        { "writers", c->opts.writers },
        { "check_replicas", c->opts.check_replicas != 0 }
    };
    oar_status status;

    OARI_TRY(oari_ckpt_agree_same(c, "checkpoint_open",
                                  sizeof same / sizeof *same, same));
    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.sync_ms);
    status = c->rank == 0 ? open_first(c) : OAR_OK;
    oari_ckpt_slow_end(c);
    OARI_TRY(oari_ckpt_agree(c, status));
    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.sync_ms);
    status = c->rank != 0 ? open_folder(c) : OAR_OK;
    oari_ckpt_slow_end(c);
    return oari_ckpt_agree(c, status);
}

oar_status oar_checkpoint_open_at(const char *file, int line, oar_group *group,
                                  const char *folder,
                                  const oar_checkpoint_opts *opts,
                                  oar_checkpoint **checkpoint)
{
    OARI_CALLED_FROM(file, line);
    oar_checkpoint *c;
    oar_checkpoint_opts o;
    oar_status status;

    if (folder == NULL || folder[0] == '\0' || checkpoint == NULL)
        return oari_fail(OAR_E_ARG, "checkpoint_open: %s",
                         checkpoint == NULL ? "nowhere to give it"
                                            : "no folder");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(check_opts(&o));
    c = oari_alloc(1, sizeof *c);
    if (c == NULL)
        return OAR_E_NOMEM;
    c->disk = oari_disk_in_use();
    c->opts = o;
    c->folder = c->lock_file = -1;
    c->told = 1;
    pthread_mutex_init(&c->slow_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    oari_ckpt_staging_init(&c->staging);
    c->pid = getpid();
    c->ranks = 1;
    c->path = oari_strdup(folder);
    status = c->path == NULL ? OAR_E_NOMEM : OAR_OK;
    for (size_t n = strlen(folder); status == OAR_OK && n > 1; n--) {
        if (c->path[n - 1] != '/')
            break;
        c->path[n - 1] = '\0';
    }
    if (status == OAR_OK && group != NULL) {
        oar_dup_opts dup = { .size = sizeof dup,
                             .name = "checkpoint",
                             .stall_ms = -1 };

        status = oar_group_dup_with(group, &dup, &c->group);
        c->rank = oar_group_rank(group);
        c->ranks = oar_group_size(group);
    }
    if (status == OAR_OK)
        status = open_all(c);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        oar_checkpoint_close(c);
        return oari_fail_with(&why);
    }
    *checkpoint = c;
    return OAR_OK;
}

/* Ends the thread, after the save that is under way. */
static void end_background(oar_checkpoint *c)
{
    (void)oari_ckpt_settle(c, 0);
    if (!c->told)
        oari_log(OAR_LOG_WARN, "checkpoint: the last save to %s failed: %s",
                 c->path, c->failure.text);
    oari_worker_destroy(c->worker, NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    oari_ckpt_staging_free(&c->staging);
    oari_ckpt_gpu_copy_free(&c->gpu_copy);
    oar_group_destroy(c->calls);
}

void oar_checkpoint_close(oar_checkpoint *checkpoint)
{
    oar_checkpoint *c = checkpoint;

    if (c == NULL)
        return;
    if (c->pid == getpid()) /* the thread is not in a child made by fork */
        end_background(c);
    oari_ckpt_file_layout_free(&c->layout);
    oari_ckpt_save_plan_free(&c->plan);
    if (c->lock_file >= 0)
        (void)c->disk->close(c->disk, c->lock_file);
    if (c->folder >= 0)
        (void)c->disk->close(c->disk, c->folder);
    oar_group_destroy(c->group);
    pthread_mutex_destroy(&c->slow_lock);
    oari_free(c->path);
    oari_free(c);
}

oar_status oar_checkpoint_read_stats(const oar_checkpoint *checkpoint,
                                     oar_checkpoint_stats *stats)
{
    oar_checkpoint *c = (oar_checkpoint *)(uintptr_t)checkpoint; /* its lock */
    oar_checkpoint_stats now;

    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_read_stats"));
    pthread_mutex_lock(&c->lock);
    now = c->stats;
    pthread_mutex_unlock(&c->lock);
    return oari_struct_give(stats, &now, sizeof *stats, "checkpoint_stats");
}

oar_status oar_checkpoint_newest_at(const char *file, int line,
                                    oar_checkpoint *checkpoint, int64_t *step)
{
    OARI_CALLED_FROM(file, line);
    oar_checkpoint *c = checkpoint;
    oar_status status = OAR_OK;
    int64_t found = -1;
    size_t bytes;
    char *text;

    OARI_TRY(oari_ckpt_check(c, "checkpoint_newest"));
    if (step == NULL)
        return oari_fail(OAR_E_ARG, "checkpoint_newest: nowhere to give it");
    (void)oari_ckpt_settle(c, 0);
    if (c->rank == 0) {
        oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.read_ms);
        status = oari_ckpt_find_newest(c->disk, c->folder, c->path, &found,
                                       &text, &bytes);
        oari_ckpt_slow_end(c);
        if (status == OAR_OK)
            oari_free(text);
    }
    OARI_TRY(oari_ckpt_agree(c, status));
    if (c->group != NULL)
        OARI_TRY(oar_broadcast(c->group, oar_span_of(&found, 1, OAR_I64), 0,
                               NULL, NULL));
    *step = found;
    return OAR_OK;
}

/* ---- pruning ------------------------------------------------------------- */

/* Reads whether a generation is complete, and asked never to be pruned. */
static oar_status read_keep(oar_checkpoint *c, int64_t step, int *keep)
{
    oari_ckpt_index index;
    oar_status status;
    size_t bytes;
    char *text;

    OARI_TRY(
        oari_ckpt_read_index(c->disk, c->folder, c->path, step, &text, &bytes));
    OARI_TRY(oari_ckpt_index_read(OARI_CKPT_INDEX, text, bytes, &index));
    *keep = index.keep;
    status = oari_ckpt_check_files(c->disk, c->folder, c->path, step, &index);
    oari_ckpt_index_free(&index);
    return status;
}

/* Renames a generation, so that it is none any more, and removes it. */
static oar_status remove_generation(oar_checkpoint *c, int64_t step)
{
    char name[OARI_CKPT_STEP_NAME], part[OARI_CKPT_STEP_NAME + 16];

    oari_ckpt_step_name(step, name);
    snprintf(part, sizeof part, "%s.part-old", name);
    if (c->disk->rename(c->disk, c->folder, name, part) != 0)
        return oari_fail(OAR_E_SYSTEM, "rename %s/%s", c->path, name);
    return oari_ckpt_remove_tree(c->disk, c->folder, part);
}

/* Removes what is left of generations that could not be removed, and from the
 * newest on those that need not be kept. Incomplete ones do not count and
 * stay. */
static oar_status prune(oar_checkpoint *c, oar_prune_fn fn, void *arg)
{
    oari_ckpt_steps steps = { { 0 }, { 0 } };
    oar_status status =
        oari_ckpt_steps_list(c->disk, c->folder, c->path, &steps);
    int kept = 0, keep;

    for (int64_t i = 0; i < steps.part.count && !c->opts.read_only; i++)
        if (status == OAR_OK)
            status =
                oari_ckpt_remove_tree(c->disk, c->folder, steps.part.data[i]);
    if (steps.step.count <= c->opts.keep)
        steps.step.count = 0;
    for (int64_t i = steps.step.count - 1; status == OAR_OK && i >= 0; i--) {
        int64_t step = steps.step.data[i];

        if (read_keep(c, step, &keep) != OAR_OK || kept++ < c->opts.keep ||
            keep || (c->opts.keep_every > 0 && step % c->opts.keep_every == 0))
            continue;
        if (fn != NULL)
            fn(arg, step);
        if (!c->opts.read_only)
            status = remove_generation(c, step);
    }
    oari_ckpt_steps_free(&steps);
    return status;
}

oar_status oari_ckpt_prune(oar_checkpoint *c, oar_prune_fn fn, void *arg)
{
    oar_status status;

    if (c->rank != 0 || c->opts.keep == 0)
        return OAR_OK;
    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.sync_ms);
    status = prune(c, fn, arg);
    oari_ckpt_slow_end(c);
    return status;
}

oar_status oar_checkpoint_prune_at(const char *file, int line,
                                   oar_checkpoint *checkpoint, oar_prune_fn fn,
                                   void *arg)
{
    OARI_CALLED_FROM(file, line);

    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_prune"));
    (void)oari_ckpt_settle(checkpoint, 0);
    return oari_ckpt_agree(checkpoint, oari_ckpt_prune(checkpoint, fn, arg));
}
