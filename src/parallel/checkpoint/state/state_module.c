/* SPDX-License-Identifier: Apache-2.0 */
/* state_module: modules as arrays with PyTorch's names, and as values, the
 * counters of layers. What FSDP has spread over the ranks is saved from, and
 * loaded into, each rank's shards: flat ranges of the whole parameters. Of what
 * is tensor parallel each rank saves and loads boxes of the whole. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/ddp.h>

#include "base/status.h"
#include "parallel/checkpoint/state/state.h"
#include "parallel/ddp/ddp.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

enum { NAME_BYTES = OARI_CKPT_LONGEST_NAME + 1 };

/* Writes "PREFIXNAME"; OAR_E_ARG if it does not fit. */
static oar_status join_name(const char *prefix, const char *name,
                            char full[NAME_BYTES])
{
    int n = snprintf(full, NAME_BYTES, "%s%s", prefix, name);

    if (n < 0 || n >= NAME_BYTES)
        return oari_fail(OAR_E_ARG,
                         "state: the name \"%.40s...\" has %d bytes; %d are "
                         "allowed",
                         full, n, OARI_CKPT_LONGEST_NAME);
    return OAR_OK;
}

/* ---- modules ------------------------------------------------------------- */

static oar_status add_alias(oar_state *state, const char *name, const char *of)
{
    oari_ckpt_alias alias;

    OARI_TRY(oari_vec_reserve(&state->alias, 1));
    alias = (oari_ckpt_alias){ oari_strdup("model"), oari_strdup(name),
                               oari_strdup(of) };
    state->alias.data[state->alias.count++] = alias;
    return alias.section != NULL && alias.name != NULL && alias.of != NULL
               ? OAR_OK
               : OAR_E_NOMEM;
}

/* Returns whether a module that was added before has this tensor under this
 * name: stages of a pipeline may share one. */
static int is_there(const oar_state *state, int64_t end,
                    const oar_tensor *tensor, const char *name)
{
    for (int64_t i = 0; i < end; i++) {
        const oari_ckpt_item *item = &state->item.data[i];

        if (item->tensor == tensor && strcmp(item->section, "model") == 0 &&
            strcmp(item->name, name) == 0)
            return 1;
    }
    return 0;
}

/* Adds a parameter or buffer, or an alias if the state has it from `first` on
 * already. */
static oar_status add_named(oar_state *state, int64_t first, oar_tensor *tensor,
                            const char *prefix, const char *name)
{
    char full[NAME_BYTES];

    OARI_TRY(join_name(prefix, name, full));
    if (is_there(state, first, tensor, full))
        return OAR_OK;
    for (int64_t i = first; i < state->item.count; i++)
        if (state->item.data[i].tensor == tensor)
            return add_alias(state, full, state->item.data[i].name);
    return oari_state_add(state, "model", full, tensor, NULL, 0);
}

static oar_status collect_counters(const oari_ckpt_source *source,
                                   oari_ckpt_values *values)
{
    const oar_module *module = source->object;
    char name[NAME_BYTES], full[2 * NAME_BYTES];

    for (int i = 0; i < oar_module_counters(module); i++) {
        OARI_TRY(oar_module_counter_name(module, i, name, sizeof name));
        snprintf(full, sizeof full, "counter.%s%s", source->name, name);
        OARI_TRY(oari_ckpt_add_counter(values, full,
                                       *oar_module_counter(module, i)));
    }
    return OAR_OK;
}

/* Reads each counter, and writes it if `write`. */
static oar_status visit_counters(const oari_ckpt_source *source,
                                 const oari_ckpt_found *found, int write)
{
    const oar_module *module = source->object;
    char name[NAME_BYTES], full[2 * NAME_BYTES];
    uint64_t number;

    for (int i = 0; i < oar_module_counters(module); i++) {
        OARI_TRY(oar_module_counter_name(module, i, name, sizeof name));
        snprintf(full, sizeof full, "counter.%s%s", source->name, name);
        OARI_TRY(oari_ckpt_get_counter(found, full, &number));
        if (write)
            *oar_module_counter(module, i) = number;
    }
    return OAR_OK;
}

static oar_status check_counters(const oari_ckpt_source *source,
                                 const oari_ckpt_found *found)
{
    return visit_counters(source, found, 0);
}

static oar_status apply_counters(const oari_ckpt_source *source,
                                 const oari_ckpt_found *found)
{
    return visit_counters(source, found, 1);
}

static const oari_ckpt_source_class module_class = { .collect =
                                                         collect_counters,
                                                     .check = check_counters,
                                                     .apply = apply_counters };

/* ---- what FSDP wraps ----------------------------------------------------- */

static oar_status collect_nothing(const oari_ckpt_source *source,
                                  oari_ckpt_values *values)
{
    return OAR_OK;
}

static oar_status apply_nothing(const oari_ckpt_source *source,
                                const oari_ckpt_found *found)
{
    return OAR_OK;
}

/* On all ranks, also if the load then fails on one of them: they go on to
 * publish together. */
static void tell_shards(const oari_ckpt_source *source)
{
    oari_fsdp_changed(source->object);
}

static const oari_ckpt_source_class fsdp_class = { .collect = collect_nothing,
                                                   .begin_load = tell_shards,
                                                   .apply = apply_nothing };

/* Adds this rank's shard of parameter `index` of the module inside, or an alias
 * on all ranks. A parameter without elements has no shards. One that FSDP
 * ignores is not added: it may differ from rank to rank. */
static oar_status add_shard(oar_state *state, const oari_fsdp *d,
                            oar_tensor *param, int index, const char *prefix,
                            const char *name, const oari_tp_cut *cut)
{
    int array = oari_fsdp_array_of_param(d, param);
    oar_place place = { .size = sizeof place,
                        .whole = oar_tensor_shape(param),
                        .flat = 1 };
    char full[NAME_BYTES], other[NAME_BYTES];
    oar_shard shard = oar_shard_init();

    if (array < 0)
        return OAR_OK;
    OARI_TRY(join_name(prefix, name, full));
    if (d->param[array].first != index) {
        OARI_TRY(join_name(prefix, d->param[array].name, other));
        return add_alias(state, full, other);
    }
    if (oar_tensor_count(param) == 0 && cut != NULL)
        return OAR_OK;
    if (oar_tensor_count(param) == 0)
        return oari_state_add(state, "model", full, param, NULL, 0);
    OARI_TRY(oari_fsdp_shard_of(d, array, &shard));
    place.first = (int64_t)shard.first;
    if (cut != NULL && shard.count > 0)
        return oari_state_add_cut(state, "model", full, shard.tensor,
                                  place.first, cut);
    if (shard.count == 0)
        return OAR_OK;
    OARI_TRY(oari_state_add(state, "model", full, shard.tensor, &place, 0));
    oari_state_save_by_first(state, d->unit[0].module);
    return OAR_OK;
}

/* ---- what is tensor parallel --------------------------------------------- */

/* Adds this rank's part of parameter `index` of a module, or an alias on all
 * ranks if it was there before. */
static oar_status add_cut(oar_state *state, const oar_module *module, int index,
                          const char *prefix, const char *name,
                          const oari_tp_cut *cut)
{
    oar_tensor *param = oar_module_param(module, index);
    char full[NAME_BYTES], before[NAME_BYTES], other[NAME_BYTES];

    OARI_TRY(join_name(prefix, name, full));
    for (int i = 0; i < index; i++) {
        if (oar_module_param(module, i) != param)
            continue;
        OARI_TRY(oar_module_param_name(module, i, before, sizeof before));
        OARI_TRY(join_name(prefix, before, other));
        return add_alias(state, full, other);
    }
    return oari_state_add_cut(state, "model", full, param, 0, cut);
}

/* Adds what this rank has of parameter `index` of a module: all of it, a part,
 * a shard, or a shard of a part. */
static oar_status add_param(oar_state *state, const oar_module *module,
                            const oari_fsdp *fsdp, int64_t first, int index,
                            const char *prefix)
{
    oar_tensor *param = oar_module_param(module, index);
    const oari_tp_cut *cut = oari_tp_cut_of(module, param);
    char name[NAME_BYTES];

    OARI_TRY(oar_module_param_name(module, index, name, sizeof name));
    if (fsdp != NULL)
        return add_shard(state, fsdp, param, index, prefix, name, cut);
    if (cut != NULL)
        return add_cut(state, module, index, prefix, name, cut);
    return add_named(state, first, param, prefix, name);
}

/* Returns whether another rank's buffers are the ones that are saved. */
static int has_others_buffers(const oari_ddp *ddp, const oari_fsdp *fsdp)
{
    if (fsdp != NULL)
        return oar_group_rank(fsdp->group) != 0 ||
               (fsdp->opts.replicas != NULL &&
                oar_group_rank(fsdp->opts.replicas) != 0);
    return ddp != NULL && oar_group_rank(ddp->group) != ddp->source;
}

/* ---- adding -------------------------------------------------------------- */

oar_status oar_state_add_module(oar_state *state, oar_module *module,
                                const char *prefix)
{
    const oari_ddp *ddp;
    oari_fsdp *fsdp;
    char name[NAME_BYTES];
    int64_t first, params;

    if (state == NULL || module == NULL)
        return oari_fail(OAR_E_ARG, "state_add_module: %s is NULL",
                         state == NULL ? "the state" : "the module");
    ddp = oari_ddp_of(module);
    fsdp = oari_fsdp_of(module);
    if (prefix == NULL)
        prefix = "";
    if (ddp != NULL)
        module = oar_module_child(module, 0);
    first = state->item.count;
    OARI_TRY(oari_vec_reserve(&state->module, 1));
    state->module.data[state->module.count++] =
        (oari_ckpt_module){ oar_module_retain(module), oari_strdup(prefix) };
    if (state->module.data[state->module.count - 1].prefix == NULL)
        return OAR_E_NOMEM;
    if (fsdp != NULL) {
        OARI_TRY(oari_state_add_source(state, &fsdp_class, fsdp, prefix));
        module = oar_module_child(module, 0);
    }
    for (int i = 0; i < oar_module_params(module); i++)
        OARI_TRY(add_param(state, module, fsdp, first, i, prefix));
    params = state->item.count;
    for (int i = 0; i < oar_module_buffers(module); i++) {
        OARI_TRY(oar_module_buffer_name(module, i, name, sizeof name));
        OARI_TRY(add_named(state, first, oar_module_buffer(module, i), prefix,
                           name));
    }
    /* Forward changes buffers, on each rank by its own batch. */
    for (int64_t i = params; i < state->item.count; i++) {
        state->item.data[i].at_once = 1;
        state->item.data[i].only_loaded = has_others_buffers(ddp, fsdp);
    }
    return oari_state_add_source(state, &module_class, module, prefix);
}
