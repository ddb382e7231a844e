/* SPDX-License-Identifier: Apache-2.0 */
/* state_module: modules and optimizers as arrays with PyTorch's names, and as
 * values: counters of layers, steps and numbers of optimizers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/ddp.h>

#include "base/status.h"
#include "parallel/checkpoint/state.h"
#include "parallel/ddp/ddp.h"

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

/* The module inside a wrapper of DDP, or the module itself. */
static oar_module *unwrap(oar_module *module)
{
    return oari_ddp_of(module) != NULL ? oar_module_child(module, 0) : module;
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

/* Adds a parameter or buffer, or an alias if the state has it from `first` on
 * already. */
static oar_status add_named(oar_state *state, int64_t first, oar_tensor *tensor,
                            const char *prefix, const char *name)
{
    char full[NAME_BYTES];

    OARI_TRY(join_name(prefix, name, full));
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

oar_status oar_state_add_module(oar_state *state, oar_module *module,
                                const char *prefix)
{
    char name[NAME_BYTES];
    int64_t first;

    if (state == NULL || module == NULL)
        return oari_fail(OAR_E_ARG, "state_add_module: %s is NULL",
                         state == NULL ? "the state" : "the module");
    module = unwrap(module);
    if (prefix == NULL)
        prefix = "";
    first = state->item.count;
    OARI_TRY(oari_vec_reserve(&state->module, 1));
    state->module.data[state->module.count++] = oar_module_retain(module);
    for (int i = 0; i < oar_module_params(module); i++) {
        OARI_TRY(oar_module_param_name(module, i, name, sizeof name));
        OARI_TRY(
            add_named(state, first, oar_module_param(module, i), prefix, name));
    }
    for (int i = 0; i < oar_module_buffers(module); i++) {
        OARI_TRY(oar_module_buffer_name(module, i, name, sizeof name));
        OARI_TRY(add_named(state, first, oar_module_buffer(module, i), prefix,
                           name));
    }
    return oari_state_add_source(state, &module_class, module, prefix);
}
