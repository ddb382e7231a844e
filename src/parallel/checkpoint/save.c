/* SPDX-License-Identifier: Apache-2.0 */
/* save: the phases of a save. After each of them all ranks agree whether it
 * succeeded everywhere, so that all leave at the same place.
 *
 *   plan    lists of arrays, and values; nothing is sent that has not changed
 *   make    rank 0 makes the folder step-N.part-ID
 *   write   each rank its files, synced
 *   commit  rank 0 writes the index, syncs all folders, renames the folder to
 *           step-N and syncs its parent
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/collective.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "file/new_file.h"
#include "parallel/checkpoint/saving.h"

/* ---- arrays -------------------------------------------------------------- */

/* Finds each array's numbers in host memory, row by row, in the dtype that is
 * saved; copies those that do not lie so. */
static oar_status find_arrays(oari_ckpt_saving *s)
{
    size_t items = (size_t)s->state->item.count;

    s->copy = oari_alloc(items, sizeof *s->copy);
    s->array = oari_alloc(items, sizeof *s->array);
    if (s->copy == NULL || s->array == NULL)
        return OAR_E_NOMEM;
    for (size_t i = 0; i < items; i++) {
        const oari_ckpt_item *item = &s->state->item.data[i];
        oar_dtype dtype = oari_ckpt_saved_dtype(s, item);
        size_t bytes =
            (size_t)oar_tensor_count(item->tensor) * oar_dtype_size(dtype);

        if (dtype == oar_tensor_dtype(item->tensor) &&
            oar_tensor_is_contiguous(item->tensor) &&
            oar_tensor_device(item->tensor).kind == OAR_CPU) {
            s->array[i] = oar_tensor_const_data(item->tensor);
            if (s->array[i] == NULL && bytes > 0)
                return oari_fail(OAR_E_STATE,
                                 "checkpoint: \"%.100s\" has no data",
                                 item->name);
            continue;
        }
        s->copy[i] = oari_alloc_aligned(64, bytes > 0 ? bytes : 1);
        if (s->copy[i] == NULL)
            return OAR_E_NOMEM;
        OARI_TRY(oar_tensor_read(item->tensor, dtype, s->copy[i]));
        s->array[i] = s->copy[i];
    }
    return OAR_OK;
}

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

/* Rank 0 makes the folder. */
static oar_status make_part(oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;
    char name[OARI_CKPT_STEP_NAME];
    int there;

    oari_ckpt_step_name(s->step, name);
    there = c->disk->open_folder(c->disk, c->folder, name);
    if (there >= 0) {
        (void)c->disk->close(c->disk, there);
        return oari_fail(OAR_E_STATE, "%s has step %" PRId64 " already",
                         c->path, s->step);
    }
    if (errno != ENOENT)
        return oari_fail(OAR_E_SYSTEM, "look at %s/%s", c->path, name);
    OARI_TRY(check_space(s));
    OARI_TRY(oari_random_id(s->id));
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

    OARI_TRY(oari_ckpt_agree(c, c->rank == 0 ? make_part(s) : OAR_OK));
    if (c->group == NULL)
        return OAR_OK;
    OARI_TRY(oar_broadcast(c->group, oar_span_of(s->id, sizeof s->id, OAR_U8),
                           0, NULL, NULL));
    return oari_ckpt_agree(c, c->rank != 0 ? open_part(s) : OAR_OK);
}

/* ---- the call ------------------------------------------------------------ */

static void end_saving(oari_ckpt_saving *s)
{
    const oar_checkpoint *c = s->c;

    if (s->generation >= 0)
        (void)c->disk->close(c->disk, s->generation);
    for (int64_t i = 0; s->copy != NULL && i < s->state->item.count; i++)
        oari_free(s->copy[i]);
    for (int64_t i = 0; s->written != NULL && i < c->layout.file.count; i++)
        oari_vec_free(&s->written[i].sum);
    oari_free(s->written);
    oari_free(s->copy);
    oari_free(s->array);
    oari_ckpt_values_free(&s->values);
    oari_ckpt_part_list_free(&s->list);
}

static oar_status write_phase(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;

    s->written = oari_alloc((size_t)c->layout.file.count, sizeof *s->written);
    if (s->written == NULL)
        return OAR_E_NOMEM;
    return oari_ckpt_write_files(c, s->generation, s->id, s->step, &s->list,
                                 s->array, s->written);
}

static oar_status run_phases(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    int64_t start = oari_now_ns(), planned, written;

    OARI_TRY(oari_ckpt_agree_plan(s));
    OARI_TRY(oari_ckpt_agree(c, find_arrays(s)));
    planned = oari_now_ns();
    OARI_TRY(make_generation(s));
    OARI_TRY(oari_ckpt_agree(c, write_phase(s)));
    OARI_TRY(oari_ckpt_agree(c, oari_ckpt_gather_written(s)));
    written = oari_now_ns();
    OARI_TRY(oari_ckpt_agree(c, c->rank == 0 ? oari_ckpt_commit(s) : OAR_OK));
    c->stats = (oar_checkpoint_stats){
        .size = sizeof c->stats,
        .step = s->step,
        .bytes = c->plan.load[c->rank],
        .all_bytes = c->plan.bytes,
        .plan_s = (double)(planned - start) * 1e-9,
        .write_s = (double)(written - planned) * 1e-9,
        .commit_s = (double)(oari_now_ns() - written) * 1e-9,
        .total_s = (double)(oari_now_ns() - start) * 1e-9
    };
    return OAR_OK;
}

/* Removes what a save that failed has left, without hiding why it failed. */
static void remove_part(const oari_ckpt_saving *s)
{
    oar_error why = *oar_last_error();

    if (s->part_name[0] != '\0' && s->c->rank == 0 &&
        oari_ckpt_remove_tree(s->c->disk, s->c->folder, s->part_name) != OAR_OK)
        oari_log(OAR_LOG_WARN, "checkpoint: %s stays: %s", s->part_name,
                 oar_last_error_text());
    (void)oari_fail_with(&why);
}

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
    return OAR_OK;
}

oar_status oar_checkpoint_save(oar_checkpoint *checkpoint,
                               const oar_state *state, int64_t step,
                               const oar_save_opts *opts)
{
    oari_ckpt_saving s = {
        .c = checkpoint, .state = state, .step = step, .generation = -1
    };
    oar_status status;

    OARI_TRY(oari_ckpt_check(checkpoint, "checkpoint_save"));
    OARI_TRY(oari_opts_read(&s.opts, sizeof s.opts, opts));
    status = oari_ckpt_agree(checkpoint,
                             check_save(checkpoint, state, step, &s.opts));
    if (status != OAR_OK)
        return status;
    status = run_phases(&s);
    if (status != OAR_OK)
        remove_part(&s);
    end_saving(&s);
    if (status == OAR_OK && checkpoint->rank == 0 &&
        oari_ckpt_prune(checkpoint) != OAR_OK)
        oari_log(OAR_LOG_WARN, "checkpoint: %s is not pruned: %s",
                 checkpoint->path, oar_last_error_text());
    return status;
}
