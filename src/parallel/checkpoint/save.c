/* SPDX-License-Identifier: Apache-2.0 */
/* save: the phases of a save. After each of them all ranks agree whether it
 * succeeded everywhere, so that all leave at the same place.
 *
 *   plan    lists of arrays, and values; nothing is sent that has not changed
 *   copy    only in the background, whose thread does the rest
 *   make    rank 0 makes the folder step-N.part-ID
 *   write   each rank its files, synced
 *   commit  rank 0 writes the index, syncs all folders, renames the folder to
 *           step-N and syncs its parent
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "base/trace.h"
#include "parallel/checkpoint/saving.h"

/* ---- make ---------------------------------------------------------------- */

static oar_status check_space(const oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;
    uint64_t wanted = c->plan.bytes + ((uint64_t)c->layout.file.count << 12);
    uint64_t space;

    if (c->disk->free_bytes(c->disk, c->folder, &space) == 0 &&
        space < wanted) {
        errno = ENOSPC;
        return oari_fail(OAR_E_SYSTEM,
                         "%s: a generation of %" PRIu64 " bytes, and %" PRIu64
                         " are free",
                         c->path, wanted, space);
    }
    return OAR_OK;
}

/* Makes the folders of the sections that have files. */
static oar_status make_sections(const oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;
    char section[OARI_CKPT_LONGEST_PATH], before[OARI_CKPT_LONGEST_PATH] = "";

    for (int64_t i = 0; i < c->layout.file.count; i++) {
        const char *path = c->layout.file.data[i].path;

        snprintf(section, sizeof section, "%.*s", (int)strcspn(path, "/"),
                 path);
        if (strcmp(section, before) == 0)
            continue;
        if (c->disk->make_folder(c->disk, s->generation, section) != 0)
            return oari_fail(OAR_E_SYSTEM, "make %s/%s/%s", c->path,
                             s->part_name, section);
        memcpy(before, section, sizeof before);
    }
    return OAR_OK;
}

oar_status oari_ckpt_make_part(oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;
    char name[OARI_CKPT_STEP_NAME], age[64];
    int there;

    oari_ckpt_step_name(s->step, name);
    there = c->disk->open_folder(c->disk, c->folder, name);
    if (there >= 0) {
        (void)c->disk->close(c->disk, there);
        oari_ckpt_age_text(c->disk, c->folder, s->step, age, sizeof age);
        return oari_fail(OAR_E_STATE, "%s has step %" PRId64 " already%s",
                         c->path, s->step, age);
    }
    if (errno != ENOENT)
        return oari_fail(OAR_E_SYSTEM, "look at %s/%s", c->path, name);
    OARI_TRY(check_space(s));
    snprintf(s->part_name, sizeof s->part_name, "%s.part-%s", name, s->id);
    if (c->disk->make_folder(c->disk, c->folder, s->part_name) != 0)
        return oari_fail(OAR_E_SYSTEM, "make %s/%s", c->path, s->part_name);
    s->generation = c->disk->open_folder(c->disk, c->folder, s->part_name);
    if (s->generation < 0)
        return oari_fail(OAR_E_SYSTEM, "open %s/%s", c->path, s->part_name);
    return make_sections(s);
}

static oar_status open_part(oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;
    char name[OARI_CKPT_STEP_NAME];

    oari_ckpt_step_name(s->step, name);
    snprintf(s->part_name, sizeof s->part_name, "%s.part-%s", name, s->id);
    s->generation = c->disk->open_folder(c->disk, c->folder, s->part_name);
    if (s->generation < 0)
        return oari_fail(OAR_E_SYSTEM,
                         "open %s/%s, which rank 0 has made: do all ranks see "
                         "the same folder?",
                         c->path, s->part_name);
    return OAR_OK;
}

static oar_status make_generation(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    oar_status status;

    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.sync_ms);
    status = c->rank == 0 ? oari_ckpt_make_part(s) : OAR_OK;
    oari_ckpt_slow_end(c);
    OARI_TRY(oari_ckpt_agree(c, status));
    if (c->group == NULL)
        return OAR_OK;
    oari_ckpt_slow_begin(c, oari_ckpt_slow_limits.sync_ms);
    status = c->rank != 0 ? open_part(s) : OAR_OK;
    oari_ckpt_slow_end(c);
    return oari_ckpt_agree(c, status);
}

/* ---- phases -------------------------------------------------------------- */

static double seconds_since(int64_t start_ns)
{
    return (double)(oari_now_ns() - start_ns) * 1e-9;
}

static oar_status write_generation(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    int64_t start = oari_now_ns();

    OARI_TRY(make_generation(s));
    OARI_TRY(oari_ckpt_agree(c, oari_ckpt_write_files(s)));
    OARI_TRY(oari_ckpt_agree(c, oari_ckpt_gather_written(s)));
    s->stats.write_s = seconds_since(start);
    start = oari_now_ns();
    OARI_TRY(oari_ckpt_agree(c, c->rank == 0 ? oari_ckpt_commit(s) : OAR_OK));
    s->stats.commit_s = seconds_since(start);
    return OAR_OK;
}

void oari_ckpt_remove_part(const oari_ckpt_saving *s)
{
    oar_error why = *oar_last_error();

    if (s->part_name[0] != '\0' && s->c->rank == 0 &&
        oari_ckpt_remove_tree(s->c->disk, s->c->folder, s->part_name) != OAR_OK)
        oari_log(OAR_LOG_WARN, "checkpoint: %s stays: %s", s->part_name,
                 oar_last_error_text());
    (void)oari_fail_with(&why);
}

oar_status oari_ckpt_run_phases(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    oar_status status = write_generation(s);

    if (status != OAR_OK)
        oari_ckpt_remove_part(s);
    if (s->generation >= 0)
        (void)c->disk->close(c->disk, s->generation);
    s->generation = -1;
    if (status == OAR_OK && oari_ckpt_prune(c, NULL, NULL) != OAR_OK)
        oari_log(OAR_LOG_WARN, "checkpoint: %s is not pruned: %s", c->path,
                 oar_last_error_text());
    s->stats.size = sizeof s->stats;
    s->stats.step = s->step;
    s->stats.total_s = seconds_since(s->start_ns);
    return status;
}

void oari_ckpt_saving_free(oari_ckpt_saving *s)
{
    if (s == NULL)
        return;
    for (int64_t i = 0; s->written != NULL && i < s->c->layout.file.count; i++)
        oari_vec_free(&s->written[i].sum);
    oari_free(s->written);
    oari_ckpt_free_arrays(s);
    oari_ckpt_images_free(&s->images);
    oari_ckpt_values_free(&s->values);
    oari_ckpt_part_list_free(&s->list);
    oari_free(s);
}

/* ---- the call ------------------------------------------------------------ */

static oar_status check_save(const oar_checkpoint *c, const oar_state *state,
                             int64_t step, const oar_save_opts *opts)
{
    if (step < 0 || step > 999999999999)
        return oari_fail(OAR_E_ARG,
                         "checkpoint_save: step %" PRId64
                         "; 0 to 999,999,999,999 are allowed",
                         step);
    if (state == NULL)
        return oari_fail(OAR_E_ARG, "checkpoint_save: the state is NULL");
    if (c->opts.read_only)
        return oari_fail(OAR_E_STATE, "checkpoint_save: %s is read-only",
                         c->path);
    if (opts->note != NULL && strlen(opts->note) > 200)
        return oari_fail(OAR_E_ARG, "checkpoint_save: a note of %zu bytes",
                         strlen(opts->note));
    if (opts->has_dtype && !oari_dtype_is_float(opts->dtype))
        return oari_fail(OAR_E_DTYPE, "checkpoint_save: floats as %s",
                         oar_dtype_name(opts->dtype));
    if (opts->lazy && !opts->background)
        return oari_fail(OAR_E_ARG, "checkpoint_save: lazy is for saves in the "
                                    "background");
    return OAR_OK;
}

/* Finds the arrays that this rank's files have something of. */
static oar_status find_used_arrays(oari_ckpt_saving *s)
{
    unsigned char *used = oari_alloc((size_t)s->state->item.count + 1, 1);
    oar_status status;

    if (used == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < s->images.files; i++)
        for (int64_t k = 0; k < s->images.file[i].is->count; k++)
            used[s->images.file[i].part[k].item] = 1;
    status = oari_ckpt_find_arrays(s, used);
    oari_free(used);
    return status;
}

/* Finds the arrays and makes the images of this rank's files. */
static oar_status prepare_files(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;

    OARI_TRY(oari_ckpt_add_kept(s->state, c->ranks, &s->values));
    s->images.plan = &c->plan;
    s->images.layout = &c->layout;
    s->images.block_bytes = c->opts.block_bytes;
    OARI_TRY(oari_ckpt_images_make(&s->images,
                                   &(oari_ckpt_image_label){ .id = s->id,
                                                             .step = s->step,
                                                             .rank = c->rank },
                                   &s->list));
    if (s->array == NULL)
        OARI_TRY(find_used_arrays(s));
    s->staged = s->opts.background && !s->fetched;
    s->images.stream = s->staged;
    return s->opts.background ? oari_ckpt_background_prepare(s) : OAR_OK;
}

/* What all ranks do in the call. */
static oar_status begin_saving(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;

    OARI_TRY(oari_ckpt_agree_plan(s));
    if (c->opts.check_replicas && c->ranks > 1)
        OARI_TRY(oari_ckpt_check_replicas(s));
    OARI_TRY(oari_ckpt_agree(c, prepare_files(s)));
    if (s->opts.background)
        OARI_TRY(oari_ckpt_background_group(c));
    s->stats.plan_s = seconds_since(s->start_ns);
    s->stats.bytes = c->plan.load[c->rank];
    s->stats.all_bytes = c->plan.bytes;
    return OAR_OK;
}

static oar_status run_saving(oari_ckpt_saving *s)
{
    oar_status status = begin_saving(s);

    if (status == OAR_OK && s->opts.background) {
        oari_ckpt_background_start(s);
        return OAR_OK;
    }
    if (status == OAR_OK)
        status = oari_ckpt_run_phases(s);
    s->stats.stall_s = s->stats.total_s;
    oari_ckpt_ended(s, status, 1);
    oari_ckpt_saving_free(s);
    return status;
}

oar_status oar_checkpoint_save_at(const char *file, int line,
                                  oar_checkpoint *checkpoint,
                                  const oar_state *state, int64_t step,
                                  const oar_save_opts *opts)
{
    OARI_CALLED_FROM(file, line);
    OARI_TRACED(OARI_TRACE_CHECKPOINT, "save");
    oari_ckpt_call call = { 0 };
    oari_ckpt_saving *s;
    oar_save_opts o;
    oar_status status;

    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_save"));
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    s = oari_alloc(1, sizeof *s);
    status = s == NULL ? OAR_E_NOMEM : check_save(checkpoint, state, step, &o);
    call.step = step;
    call.options = oari_ckpt_options(&o);
    call.busy = o.no_wait && oari_ckpt_is_busy(checkpoint);
    if (s != NULL) {
        s->start_ns = oari_now_ns();
        s->c = checkpoint;
        s->state = state;
        s->step = step;
        s->opts = o;
        s->generation = -1;
        s->site = oari_call_site_of(file, line);
    }
    status = oari_ckpt_agree_call(checkpoint, &call, status);
    if (status == OAR_OK)
        status = oari_ckpt_settle(checkpoint, 1);
    if (status != OAR_OK) {
        oari_free(s);
        return status;
    }
    memcpy(s->id, call.id, sizeof s->id);
    if (o.note != NULL)
        memcpy(s->note, o.note, strlen(o.note));
    return run_saving(s);
}
