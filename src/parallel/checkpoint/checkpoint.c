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

    c->lock =
        c->disk->open_file(c->disk, c->folder, LOCK_NAME, OARI_DISK_SHARED);
    if (c->lock < 0)
        return oari_fail(OAR_E_SYSTEM, "open %s/" LOCK_NAME, c->path);
    if (c->disk->lock(c->disk, c->lock) != 0) {
        if (errno != EWOULDBLOCK)
            return oari_fail(OAR_E_SYSTEM, "lock %s/" LOCK_NAME, c->path);
        (void)c->disk->read_at(c->disk, c->lock, text, sizeof text - 1, 0);
        text[strcspn(text, "\n")] = '\0';
        return oari_fail(OAR_E_STATE, "%s is in use by another job: %s",
                         c->path, text[0] != '\0' ? text : "unknown");
    }
    gethostname(host, sizeof host - 1);
    n = snprintf(text, sizeof text,
                 "host %s, process %" PRId64 ", since unix time %" PRId64 "\n",
                 host, c->pid, (int64_t)time(NULL));
    /* It is only for people: a disk that is full must not stop a load. */
    (void)c->disk->write_at(c->disk, c->lock, text, (size_t)n, 0);
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
    OARI_TRY(oari_ckpt_agree(c, c->rank == 0 ? open_first(c) : OAR_OK));
    return oari_ckpt_agree(c, c->rank != 0 ? open_folder(c) : OAR_OK);
}

oar_status oar_checkpoint_open(oar_group *group, const char *folder,
                               const oar_checkpoint_opts *opts,
                               oar_checkpoint **checkpoint)
{
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
    c->folder = c->lock = -1;
    pthread_mutex_init(&c->slow_lock, NULL);
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

void oar_checkpoint_close(oar_checkpoint *checkpoint)
{
    oar_checkpoint *c = checkpoint;

    if (c == NULL)
        return;
    oari_ckpt_file_layout_free(&c->layout);
    oari_ckpt_save_plan_free(&c->plan);
    if (c->lock >= 0)
        (void)c->disk->close(c->disk, c->lock);
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
    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_read_stats"));
    return oari_struct_give(stats, &checkpoint->stats, sizeof *stats,
                            "checkpoint_stats");
}

oar_status oar_checkpoint_newest(oar_checkpoint *checkpoint, int64_t *step)
{
    oar_checkpoint *c = checkpoint;
    oar_status status = OAR_OK;
    int64_t found = -1;
    size_t bytes;
    char *text;

    OARI_TRY(oari_ckpt_check(c, "checkpoint_newest"));
    if (step == NULL)
        return oari_fail(OAR_E_ARG, "checkpoint_newest: nowhere to give it");
    if (c->rank == 0) {
        status = oari_ckpt_find_newest(c->disk, c->folder, c->path, &found,
                                       &text, &bytes);
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

/* Returns whether a generation asked never to be pruned. One that cannot be
 * read is kept. */
static int must_stay(oar_checkpoint *c, int64_t step)
{
    oari_ckpt_index index;
    size_t bytes;
    char *text;
    int keep;

    if (oari_ckpt_read_index(c->disk, c->folder, c->path, step, &text,
                             &bytes) != OAR_OK ||
        oari_ckpt_index_read(OARI_CKPT_INDEX, text, bytes, &index) != OAR_OK)
        return 1;
    keep = index.keep;
    oari_ckpt_index_free(&index);
    return keep;
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

oar_status oari_ckpt_prune(oar_checkpoint *c)
{
    oari_ckpt_steps steps = { { 0 }, { 0 } };
    oar_status status;

    if (c->opts.keep == 0)
        return OAR_OK;
    status = oari_ckpt_steps_list(c->disk, c->folder, c->path, &steps);
    for (int64_t i = 0; status == OAR_OK && i < steps.step.count - c->opts.keep;
         i++) {
        int64_t step = steps.step.data[i];

        if (c->opts.keep_every > 0 && step % c->opts.keep_every == 0)
            continue;
        if (!must_stay(c, step))
            status = remove_generation(c, step);
    }
    oari_ckpt_steps_free(&steps);
    return status;
}
