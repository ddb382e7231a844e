/* SPDX-License-Identifier: Apache-2.0 */
/* state_data: where a loader is in its data, and a scaler's numbers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "parallel/checkpoint/state/state.h"

enum { NAME_BYTES = OARI_CKPT_LONGEST_NAME + 32 };

static const char *value_name(const oari_ckpt_source *source, const char *name,
                              char full[NAME_BYTES])
{
    snprintf(full, NAME_BYTES, "%s.%s", source->name, name);
    return full;
}

static oar_status add_source(oar_state *state, const char *kind,
                             const oari_ckpt_source_class *class, void *object,
                             const char *name)
{
    char full[NAME_BYTES];

    if (state == NULL || name == NULL || object == NULL)
        return oari_fail(OAR_E_ARG, "state_add_%s: %s is NULL", kind,
                         state == NULL  ? "the state"
                         : name == NULL ? "the name"
                                        : "the object");
    if (strlen(name) > OARI_CKPT_LONGEST_NAME)
        return oari_fail(OAR_E_ARG, "state_add_%s: a name of %zu bytes", kind,
                         strlen(name));
    snprintf(full, sizeof full, "%s.%s", kind, name);
    return oari_state_add_source(state, class, object, full);
}

/* ---- loaders ------------------------------------------------------------- */

static oar_status collect_loader(const oari_ckpt_source *source,
                                 oari_ckpt_values *values)
{
    const oar_loader *loader = source->object;
    oar_loader_opts opts = { .size = sizeof opts };
    char name[NAME_BYTES], *identity;
    uint64_t epoch;
    int64_t sample;
    oar_status status;

    OARI_TRY(oar_loader_position(loader, &epoch, &sample));
    OARI_TRY(oar_loader_describe(loader, &opts));
    OARI_TRY(oar_dataset_identity(oar_loader_dataset(loader), &identity));
    status =
        oari_ckpt_add_text(values, value_name(source, "data", name), identity);
    oar_free(identity);
    OARI_TRY(status);
    OARI_TRY(oari_ckpt_add_number(values, value_name(source, "epoch", name),
                                  (int64_t)epoch));
    OARI_TRY(oari_ckpt_add_number(values, value_name(source, "sample", name),
                                  sample));
    OARI_TRY(oari_ckpt_add_number(values, value_name(source, "seed", name),
                                  (int64_t)opts.seed));
    return oari_ckpt_add_number(values, value_name(source, "shuffled", name),
                                !opts.no_shuffle);
}

static oar_status check_loader(const oari_ckpt_source *source,
                               const oari_ckpt_found *found)
{
    const oar_loader *loader = source->object;
    oar_loader_opts opts = { .size = sizeof opts };
    char name[NAME_BYTES], *identity;
    int64_t seed, shuffled;
    const char *saved;
    int same;

    OARI_TRY(oar_loader_describe(loader, &opts));
    OARI_TRY(
        oari_ckpt_get_text(found, value_name(source, "data", name), &saved));
    OARI_TRY(oar_dataset_identity(oar_loader_dataset(loader), &identity));
    same = strcmp(identity, saved) == 0;
    if (!same)
        oari_fail(OAR_E_STATE,
                  "load: %s was saved on the data \"%.100s\", this is "
                  "\"%.100s\"",
                  source->name, saved, identity);
    oar_free(identity);
    if (!same)
        return OAR_E_STATE;
    OARI_TRY(
        oari_ckpt_get_number(found, value_name(source, "seed", name), &seed));
    OARI_TRY(oari_ckpt_get_number(found, value_name(source, "shuffled", name),
                                  &shuffled));
    if ((uint64_t)seed != opts.seed || (shuffled != 0) == opts.no_shuffle)
        return oari_fail(OAR_E_STATE,
                         "load: %s was saved with seed %" PRId64 ", %s; this "
                         "one has seed %" PRIu64 ", %s",
                         source->name, seed,
                         shuffled ? "shuffled" : "not shuffled", opts.seed,
                         opts.no_shuffle ? "not shuffled" : "shuffled");
    return OAR_OK;
}

static oar_status apply_loader(const oari_ckpt_source *source,
                               const oari_ckpt_found *found)
{
    char name[NAME_BYTES];
    int64_t epoch, sample;

    OARI_TRY(
        oari_ckpt_get_number(found, value_name(source, "epoch", name), &epoch));
    OARI_TRY(oari_ckpt_get_number(found, value_name(source, "sample", name),
                                  &sample));
    return oar_loader_seek(source->object, (uint64_t)epoch, sample);
}

static const oari_ckpt_source_class loader_class = { .collect = collect_loader,
                                                     .check = check_loader,
                                                     .apply = apply_loader };

oar_status oar_state_add_loader(oar_state *state, const char *name,
                                oar_loader *loader)
{
    return add_source(state, "loader", &loader_class, loader, name);
}

/* ---- scalers ------------------------------------------------------------- */

static oar_status collect_scaler(const oari_ckpt_source *source,
                                 oari_ckpt_values *values)
{
    char name[NAME_BYTES];
    double scale;
    int64_t good;

    OARI_TRY(oar_scaler_read(source->object, &scale, &good));
    OARI_TRY(
        oari_ckpt_add_float(values, value_name(source, "scale", name), scale));
    return oari_ckpt_add_number(values, value_name(source, "good", name), good);
}

static oar_status find_scaler(const oari_ckpt_source *source,
                              const oari_ckpt_found *found, double *scale,
                              int64_t *good)
{
    char name[NAME_BYTES];

    OARI_TRY(
        oari_ckpt_get_float(found, value_name(source, "scale", name), scale));
    return oari_ckpt_get_number(found, value_name(source, "good", name), good);
}

static oar_status check_scaler(const oari_ckpt_source *source,
                               const oari_ckpt_found *found)
{
    double scale;
    int64_t good;

    return find_scaler(source, found, &scale, &good);
}

static oar_status apply_scaler(const oari_ckpt_source *source,
                               const oari_ckpt_found *found)
{
    double scale;
    int64_t good;

    OARI_TRY(find_scaler(source, found, &scale, &good));
    return oar_scaler_set(source->object, scale, good);
}

static const oari_ckpt_source_class scaler_class = { .collect = collect_scaler,
                                                     .check = check_scaler,
                                                     .apply = apply_scaler };

oar_status oar_state_add_scaler(oar_state *state, const char *name,
                                oar_scaler *scaler)
{
    return add_source(state, "scaler", &scaler_class, scaler, name);
}
