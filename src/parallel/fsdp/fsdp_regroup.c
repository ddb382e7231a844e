/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_regroup: survivors take over the shards of ranks that are lost.
 *
 * Whole parameters are in one window and the optimizer's state in another (see
 * fsdp_kept.c); what a dead rank wrote there is still there. Survivors make new
 * shards over the smaller group and copy from the old windows what is theirs by
 * the new cut. The old shards are only read, until all ranks have made all that
 * can fail. Then each of them moves the module and the optimizer over, which
 * cannot fail.
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/reducer/agreement.h"

static const char *const call = "fsdp_regroup";

/* ---- what can be taken over ---------------------------------------------- */

static oar_status check_arguments(const oari_fsdp *d, const oar_group *group,
                                  const oar_optim *optim)
{
    if (d == NULL || group == NULL || optim == NULL)
        return oari_fail(OAR_E_ARG, "fsdp_regroup %s",
                         d == NULL       ? "of a module that FSDP does not wrap"
                         : group == NULL ? "without a group"
                                         : "without an optimizer");
    if (oari_shards_on_gpu(d->shards))
        return oari_fail(OAR_E_DEVICE,
                         "fsdp_regroup: the module is on a GPU, whose memory "
                         "goes with the process that has it: load a "
                         "checkpoint");
    if (d->kept == NULL)
        return oari_fail(OAR_E_DATA,
                         "fsdp_regroup: the shards of a rank that is lost, and "
                         "the optimizer's state of them, are lost with it: "
                         "oar_fsdp_keep_state was not called; load a "
                         "checkpoint");
    if (d->kept->optim != optim || d->kept->params != oar_optim_params(optim))
        return oari_fail(
            OAR_E_ARG, "fsdp_regroup: %s since oar_fsdp_keep_state",
            d->kept->optim != optim ? "the optimizer is another"
                                    : "the optimizer has got more parameters");
    return OAR_OK;
}

static oar_status check_group(const oari_fsdp *d, const oar_group *group)
{
    int ranks = oar_group_size(group), before = oar_group_size(d->group);

    if (group == d->group)
        return oari_fail(OAR_E_STATE,
                         "fsdp_regroup over the group that the module has: "
                         "give it one that oar_group_shrink has made");
    for (int r = 0; r < ranks; r++)
        if (oar_group_translate(group, r, d->group) < 0)
            return oari_fail(OAR_E_ARG,
                             "fsdp_regroup: rank %d of group \"%s\" is not in "
                             "the module's group \"%s\"",
                             r, oar_group_name(group),
                             oar_group_name(d->group));
    if (ranks < before && oar_group_fault(d->group, NULL) == OAR_OK)
        return oari_fail(OAR_E_STATE,
                         "fsdp_regroup: group \"%s\" has lost nobody: its %d "
                         "ranks cannot go on with %d",
                         oar_group_name(d->group), before, ranks);
    return OAR_OK;
}

/* All ranks must have regrouped as often: the last time, a rank may have died
 * when some had gone over and others had not. */
static oar_status check_generation(const oari_fsdp *d, oar_group *group)
{
    int32_t most[2] = { d->kept->generation, -d->kept->generation };

    OARI_TRY(oar_all_reduce(group, oar_span_of(most, 2, OAR_I32), OAR_MAX,
                            OAR_OPTS(oar_call_opts, .label = call), NULL));
    if (most[0] == -most[1])
        return OAR_OK;
    return oari_fail(OAR_E_DATA,
                     "fsdp_regroup: a rank died at the end of an earlier one, "
                     "and only some of the others went over: load a "
                     "checkpoint");
}

/* Returns the last step that a rank has begun. */
static uint64_t last_step(const oari_kept *k)
{
    uint64_t last = 0;

    for (int r = 0; r < k->shards->ranks; r++) {
        uint64_t begun = oari_kept_line_of(k, r)->begun;
        last = last < begun ? begun : last;
    }
    return last;
}

/* Whether the last step can be finished. The answer is the same on all ranks:
 * nobody steps now. */
static oar_status check_shards(const oari_kept *k, uint64_t step)
{
    for (int r = 0; r < k->shards->ranks; r++) {
        const oari_kept_line *line = oari_kept_line_of(k, r);

        if (line->changing)
            return oari_about(
                r, oari_fail(OAR_E_DATA,
                             "fsdp_regroup: parameters were being written or "
                             "loaded, and rank %d has not published them; load "
                             "a checkpoint",
                             r));
        if (line->done + 1 < step)
            return oari_about(
                r, oari_fail(OAR_E_DATA,
                             "fsdp_regroup: rank %d has taken %" PRIu64
                             " of %" PRIu64 " optimizer steps; load a "
                             "checkpoint",
                             r, line->done, step));
    }
    return OAR_OK;
}

/* ---- making the new shards ----------------------------------------------- */

/* What takes the place of what the module has, and what is given back. */
typedef struct regrouping {
    oar_shards *shards;
    oari_kept *kept;
    oar_clip_part *clip;
    oar_optim_entry *entry, *before; /* of the optimizer */
    int entries, entries_before;
    uint64_t step; /* that all ranks have taken then */
    int detached;  /* flats, so far */
    int replaced;  /* the optimizer has the new entries */
} regrouping;

/* Makes the optimizer's state of a shard, in the new window. */
static oar_status make_states(const oari_fsdp *d, const oari_kept *to,
                              const oar_shard *shard, oar_optim_entry *e)
{
    oar_dtype dtype = shard->data.dtype == OAR_F64 ? OAR_F64 : OAR_F32;
    int half = oari_dtype_is_half(shard->data.dtype);

    for (int slot = 0; slot < to->slots; slot++) {
        size_t at = oari_kept_at(to, to->shards->part, slot, shard->array,
                                 shard->first);
        const char *name = oar_optim_state_name(to->optim, slot);

        if (strcmp(name, "master") == 0 && !half)
            continue;
        oari_inherit_plane(d->kept, slot, to, shard);
        e->state[slot] = oar_view_of(NULL, to->storage,
                                     (int64_t)(at / oar_dtype_size(dtype)),
                                     dtype, OAR_SHAPE((int64_t)shard->count));
        if (e->state[slot] == NULL)
            return oar_last_error()->status;
    }
    return OAR_OK;
}

static oar_status make_entries(const oari_fsdp *d, regrouping *n)
{
    int groups = oar_optim_groups(d->kept->optim);

    n->entry = oari_alloc((size_t)n->shards->shards + 1, sizeof *n->entry);
    if (n->entry == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < n->shards->shards; i++) {
        const oar_shard *shard = &n->shards->shard[i];
        const oari_kept_record *r =
            oari_inherit_record(d->kept, n->step, shard->array);
        oari_kept_record *mine = oari_kept_record_of(n->kept, n->shards->part,
                                                     n->step, shard->array);
        oar_optim_entry *e = &n->entry[n->entries];

        if (r == NULL || r->group < 0 || shard->grad.data == NULL)
            continue;
        if (r->group >= groups)
            return oari_fail(OAR_E_DATA,
                             "fsdp_regroup: parameter \"%s\" is in group %d of "
                             "the optimizer, which has %d groups here",
                             d->param[shard->array].name, r->group, groups);
        e->param = shard->tensor;
        e->group = r->group;
        e->steps = r->steps + (r->has_grad != 0);
        *mine = (oari_kept_record){ .group = e->group,
                                    .steps = e->steps,
                                    .index = n->entries };
        n->kept->array[n->entries++] = shard->array;
        OARI_TRY(make_states(d, n->kept, shard, e));
    }
    return OAR_OK;
}

/* Writes down what the optimizer has now, and holds its states. */
static oar_status list_entries(oar_optim *optim, regrouping *n)
{
    int count = oar_optim_params(optim);

    n->before = oari_alloc((size_t)count + 1, sizeof *n->before);
    if (n->before == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < count; i++) {
        oar_optim_entry *e = &n->before[i];

        e->param = oar_optim_param(optim, i);
        e->steps = oar_optim_param_steps(optim, i);
        OARI_TRY(oar_optim_param_group(optim, i, &e->group));
        for (int k = 0; k < 4; k++)
            e->state[k] = oar_tensor_retain(oar_optim_state(optim, i, k));
        n->entries_before++;
    }
    return OAR_OK;
}

/* Copies what this rank has by the new cut; needs no other rank. */
static oar_status fill_shards(const oari_fsdp *d, regrouping *n)
{
    const oari_kept *from = d->kept;
    oari_kept_line *line = oari_kept_line_of(n->kept, n->shards->part);

    n->kept->optim = from->optim;
    n->kept->generation = from->generation + 1;
    n->shards->weight = d->shards->weight;
    line->begun = line->done = n->step;
    OARI_TRY(oari_kept_take_shards(n->kept, n->shards));
    for (int i = 0; n->shards->apart && i < n->shards->shards; i++)
        oari_inherit_plane(from, oari_kept_shards_plane(from), n->kept,
                           &n->shards->shard[i]);
    OARI_TRY(oari_fsdp_list_clipped(n->shards, &n->clip));
    OARI_TRY(list_entries(from->optim, n));
    OARI_TRY(make_entries(d, n));
    n->kept->params = n->entries;
    return OAR_OK;
}

static oar_status make_new(const oari_fsdp *d, oar_group *group, regrouping *n)
{
    OARI_TRY(oari_fsdp_make_shards(d, group, d->shards, &n->shards));
    OARI_TRY(oari_kept_make(n->shards, group, d->kept->slots, &n->kept));
    return oari_agree_on_status(group, fill_shards(d, n), call);
}

/* ---- going over ---------------------------------------------------------- */

/* Takes the parameters from the old memory and gives the optimizer its new
 * ones; the last that can fail here. */
static oar_status let_go(const oari_fsdp *d, regrouping *n)
{
    for (; n->detached < d->shards->flats; n->detached++)
        OARI_TRY(oar_storage_detach(d->flat[n->detached]));
    OARI_TRY(oar_optim_replace(d->kept->optim, n->entries, n->entry));
    n->replaced = 1;
    return oari_inherit_step(d->kept, n->step, n->shards, n->entries, n->entry);
}

/* Lets go on all ranks, or on none. */
static oar_status let_go_together(const oari_fsdp *d, oar_group *group,
                                  regrouping *n)
{
    OARI_TRY(oari_agree_on_status(group, let_go(d, n), call));
    return n->shards->apart ? oar_shards_publish(n->shards) : OAR_OK;
}

/* Has room: cannot fail. */
static void attach_flats(const oari_fsdp *d, const oar_shards *s, int flats)
{
    for (int f = 0; f < flats; f++)
        oar_storage_attach_read_only(
            d->flat[f], oari_shards_whole(s, &s->flat[f]), NULL, NULL);
}

static void undo(const oari_fsdp *d, const regrouping *n)
{
    oar_error keep = *oar_last_error();

    attach_flats(d, d->shards, n->detached);
    if (n->replaced)
        oar_optim_replace(d->kept->optim, n->entries_before, n->before);
    oari_fail_with(&keep);
}

/* Frees whichever of old and new is in n, and the lists. */
static void drop(regrouping *n)
{
    oar_error keep = *oar_last_error();

    for (int i = 0; i < n->entries; i++)
        for (int k = 0; k < 4; k++)
            oar_tensor_release(n->entry[i].state[k]);
    for (int i = 0; i < n->entries_before; i++)
        for (int k = 0; k < 4; k++)
            oar_tensor_release(n->before[i].state[k]);
    oari_free(n->entry);
    oari_free(n->before);
    oari_free(n->clip);
    oari_kept_free(n->kept);
    oar_shards_destroy(n->shards);
    oari_fail_with(&keep);
}

/* Makes an operation on a tensor of the old shards fail, instead of reading old
 * numbers. */
static void retire(oar_storage *storage)
{
    oar_storage_detach(storage);
    oar_storage_explain_absence(storage,
                                "that is of the shards before "
                                "oar_fsdp_regroup: ask for the new ones");
}

static void retire_old(const oari_fsdp *d, const regrouping *n)
{
    for (int i = 0; i < n->entries_before; i++)
        for (int k = 0; k < 4; k++)
            if (n->before[i].state[k] != NULL)
                retire(oar_tensor_storage(n->before[i].state[k]));
    retire(d->shards->params);
}

/* Forgets the pass that was under way. */
static void forget_pass(oari_fsdp *d)
{
    for (int i = 0; i < d->params; i++)
        oar_tensor_clear_grad(d->param[i].tensor);
    for (int u = 0; u < d->units; u++) {
        d->unit[u].kept = 0;
        d->unit[u].version = UINT64_MAX; /* its backward is refused */
        if (!d->unit[u].joined)
            oari_fsdp_close_grads(d, u);
    }
    d->no_sync = d->changed = d->recorded = d->in_backward = 0;
    d->joined = d->leading = 0;
}

/* Puts the new in the place of the old, which is left in n. */
static void go_over(oari_fsdp *d, oar_group *group, regrouping *n)
{
    regrouping old = { .shards = d->shards, .kept = d->kept, .clip = d->clip };
    oar_optim *optim = d->kept->optim;
    int late = oari_kept_line_of(d->kept, d->shards->part)->done != n->step;

    if (late) { /* the others have taken this step */
        oar_optim_set_steps(optim, oar_optim_steps(optim) + 1);
        for (int i = 0; i < n->entries; i++)
            oar_optim_set_param_steps(optim, i, n->entry[i].steps);
    }
    forget_pass(d);
    attach_flats(d, n->shards, n->shards->flats);
    retire_old(d, n);
    d->group = group;
    d->shards = n->shards;
    d->kept = n->kept;
    d->clip = n->clip;
    n->shards = old.shards;
    n->kept = old.kept;
    n->clip = old.clip;
}

oar_status oar_fsdp_regroup_at(const char *file, int line, oar_module *wrapped,
                               oar_group *group, oar_optim *optim)
{
    OARI_CALLED_FROM(file, line);
    oari_fsdp *d = oari_fsdp_of(wrapped);
    regrouping n = { 0 };
    oar_status status;

    OARI_TRY(check_arguments(d, group, optim));
    OARI_TRY(check_group(d, group));
    OARI_TRY(check_generation(d, group));
    n.step = last_step(d->kept);
    OARI_TRY(check_shards(d->kept, n.step));
    status = make_new(d, group, &n);
    if (status == OAR_OK) {
        status = let_go_together(d, group, &n);
        if (status == OAR_OK)
            go_over(d, group, &n);
        else
            undo(d, &n);
    }
    drop(&n);
    return status;
}
