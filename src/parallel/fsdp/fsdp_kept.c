/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_kept: what survivors need of a rank that is lost, in a window that all
 * ranks of the host map.
 *
 * Every rank has a region of the window that only it can write to:
 *
 *     its line      optimizer steps that it has begun and done
 *     its records   for each array, the steps and group of its shard
 *     planes        for each slot of the optimizer's state: that of its shards;
 *                   with mixed precision also the shards themselves
 *
 * A plane is laid out as the rank's parts of the flats are. Any rank can
 * compute where anything is, from the cut of the flats alone.
 *
 * A step begins on all ranks or on none: they meet before it. So if a rank is
 * lost elsewhere than inside its own step, all shards are of one step.
 */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/reducer/agreement.h"
#include "parallel/syncbn/syncbn.h"

enum { LINE = 64, KEY_STEP = 7 };

/* ---- where things are ---------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Returns how many bytes an element of a flat has in a plane. */
static size_t element_bytes(const oari_kept *k, const oari_flat *flat,
                            int plane)
{
    if (plane == k->slots) /* the shards */
        return oar_dtype_size(flat->dtype);
    return flat->frozen ? 0 : flat->dtype == OAR_F64 ? 8 : 4;
}

/* Returns how many bytes of a part's plane lie before a flat. */
static size_t bytes_before(const oari_kept *k, int part, int plane, int flat)
{
    const oar_shards *s = k->shards;
    size_t bytes = 0;

    for (int f = 0; f < flat; f++)
        bytes += round_up(s->flat[f].counts[part] *
                              element_bytes(k, &s->flat[f], plane),
                          LINE);
    return bytes;
}

static size_t records_at(const oari_kept *k, int part)
{
    return k->begin[part] + round_up(sizeof(oari_kept_line), LINE);
}

static size_t plane_at(const oari_kept *k, int part, int plane)
{
    const oar_shards *s = k->shards;
    size_t at = records_at(k, part) +
                round_up((size_t)s->arrays * sizeof(oari_kept_record), LINE);

    for (int i = 0; i < plane; i++)
        at += bytes_before(k, part, i, s->flats);
    return at;
}

oari_kept_line *oari_kept_line_of(const oari_kept *k, int part)
{
    return (oari_kept_line *)((unsigned char *)oar_window_data(k->window) +
                              k->begin[part]);
}

oari_kept_record *oari_kept_record_of(const oari_kept *k, int part, int array)
{
    return (oari_kept_record *)((unsigned char *)oar_window_data(k->window) +
                                records_at(k, part)) +
           array;
}

size_t oari_kept_at(const oari_kept *k, int part, int plane, int array,
                    size_t first)
{
    const oari_sharded_array *a = &k->shards->array[array];
    const oari_flat *flat = &k->shards->flat[a->flat];
    size_t inside = a->at + first - oari_flat_part_first(flat, part);

    return plane_at(k, part, plane) + bytes_before(k, part, plane, a->flat) +
           inside * element_bytes(k, flat, plane);
}

/* ---- making -------------------------------------------------------------- */

static void release_window(void *window)
{
    oar_window_release(window);
}

static oar_status attach_window(const oari_kept *k, oar_storage *storage,
                                size_t at)
{
    OARI_TRY(oar_storage_attach(
        storage, (unsigned char *)oar_window_data(k->window) + at,
        release_window, k->window));
    oar_window_retain(k->window); /* the storage's */
    return OAR_OK;
}

/* Makes what needs no other rank. */
static oar_status lay_out(const oar_shards *s, int slots, oari_kept **kept)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    oari_kept *k = oari_alloc(1, sizeof *k);

    if (k == NULL)
        return OAR_E_NOMEM;
    *kept = k;
    k->shards = s;
    k->slots = slots;
    k->begin = oari_alloc((size_t)s->ranks + 1, sizeof *k->begin);
    k->array = oari_alloc((size_t)s->shards + 1, sizeof *k->array);
    if (k->begin == NULL || k->array == NULL)
        return OAR_E_NOMEM;
    for (int p = 0; p < s->ranks; p++)
        k->begin[p + 1] =
            round_up(plane_at(k, p, slots + (s->apart ? 1 : 0)), page);
    return oar_storage_create_detached(k->begin[s->ranks], 0, &k->storage);
}

/* A rank can write to its own region only. */
static oar_status open_region(const oari_kept *k)
{
    const oar_shards *s = k->shards;
    size_t bytes = k->begin[s->ranks], end = k->begin[s->part + 1];

    OARI_TRY(oar_window_protect(k->window, 0, k->begin[s->part], 0));
    OARI_TRY(oar_window_protect(k->window, end, bytes - end, 0));
    for (int i = 0; i < s->arrays; i++)
        oari_kept_record_of(k, s->part, i)->group = -1;
    return attach_window(k, k->storage, 0);
}

oar_status oari_kept_make(const oar_shards *s, oar_group *group, int slots,
                          oari_kept **kept)
{
    static const char *const call = "fsdp_keep_state";
    oari_kept *k = NULL;
    oar_status status = lay_out(s, slots, &k);

    status = oari_agree_on_status(group, status, call);
    if (status == OAR_OK)
        status = oar_window_create(group, k->begin[s->ranks],
                                   OAR_OPTS(oar_window_opts, .label = call),
                                   &k->window);
    if (status == OAR_OK)
        status = oari_agree_on_status(group, open_region(k), call);
    if (status != OAR_OK) {
        oari_kept_free(k);
        return status;
    }
    *kept = k;
    return OAR_OK;
}

void oari_kept_free(oari_kept *k)
{
    if (k == NULL)
        return;
    oar_storage_release(k->storage);
    oar_window_release(k->window);
    oari_free(k->begin);
    oari_free(k->array);
    oari_free(k);
}

/* ---- moving what there is ------------------------------------------------ */

/* Moves the shards, which are apart from whole arrays, into the window. */
oar_status oari_kept_take_shards(const oari_kept *k, oar_shards *s)
{
    size_t at = plane_at(k, s->part, k->slots);
    unsigned char *to = (unsigned char *)oar_window_data(k->window) + at;
    const unsigned char *from = oar_storage_const_data(s->params);

    if (!s->apart)
        return OAR_OK;
    if (s->part_bytes != 0)
        memcpy(to, from, s->part_bytes);
    for (int i = 0; i < s->shards; i++) {
        oar_span *data = &s->shard[i].data;
        data->data = to + ((const unsigned char *)data->data - from);
    }
    OARI_TRY(oar_storage_detach(s->params));
    return attach_window(k, s->params, at);
}

/* Moves the state of one parameter of the optimizer, which keeps its tensors.
 */
static oar_status take_state(const oari_kept *k, int index,
                             const oar_shard *shard)
{
    for (int slot = 0; slot < k->slots; slot++) {
        oar_tensor *state = oar_optim_state(k->optim, index, slot);
        size_t at =
            oari_kept_at(k, k->shards->part, slot, shard->array, shard->first);
        oar_storage *storage;

        if (state == NULL)
            continue;
        storage = oar_tensor_storage(state);
        memcpy((unsigned char *)oar_window_data(k->window) + at,
               oar_tensor_const_data(state), oar_storage_bytes(storage));
        OARI_TRY(oar_storage_detach(storage));
        OARI_TRY(attach_window(k, storage, at));
    }
    return OAR_OK;
}

/* What is moved before a failure is as good in the window as elsewhere. */
static oar_status take_states(const oari_fsdp *d, const oari_kept *k)
{
    oar_shard shard = oar_shard_init();

    for (int i = 0; i < k->params; i++) {
        k->array[i] = oari_fsdp_array_of_shard(d, oar_optim_param(k->optim, i));
        OARI_TRY(oari_fsdp_shard_of(d, k->array[i], &shard));
        OARI_TRY(take_state(k, i, &shard));
    }
    return oari_kept_take_shards(k, d->shards);
}

/* ---- while training ------------------------------------------------------ */

void oari_kept_note_steps(const oari_fsdp *d)
{
    oari_kept *k = d->kept;

    for (int i = 0; k != NULL && i < k->params; i++) {
        oari_kept_record *r =
            oari_kept_record_of(k, d->shards->part, k->array[i]);

        r->steps = oar_optim_param_steps(k->optim, i);
        oar_optim_param_group(k->optim, i, &r->group);
    }
}

void oari_kept_note_change(const oari_fsdp *d, int begins)
{
    if (d->kept != NULL)
        oari_kept_line_of(d->kept, d->shards->part)->changing = begins;
}

/* All ranks begin a step, or none does. */
static oar_status begin_step(oar_optim *optim, void *arg)
{
    oari_fsdp *d = arg;
    oar_shards *s = d->shards;
    oari_kept_line *line = oari_kept_line_of(d->kept, s->part);

    OARI_TRY(oari_shards_check(s, "optim_step"));
    if (s->local != NULL &&
        oar_barrier(
            s->local,
            OAR_OPTS(oar_call_opts, .label = "optim_step",
                     .key = oari_shards_key(KEY_STEP, oar_optim_steps(optim))),
            NULL) != OAR_OK)
        return oari_shards_break(s);
    line->begun = line->done + 1;
    return OAR_OK;
}

static void end_step(oar_optim *optim, void *arg)
{
    const oari_fsdp *d = arg;
    oari_kept_line *line = oari_kept_line_of(d->kept, d->shards->part);

    oari_kept_note_steps(d);
    line->done = line->begun;
}

/* ---- the public call ----------------------------------------------------- */

int oari_kept_slots(const oar_optim *optim)
{
    int slots = 0;

    while (oar_optim_state_name(optim, slots) != NULL)
        slots++;
    return slots;
}

static oar_status check_keep(const oari_fsdp *d, oar_optim *optim)
{
    if (d->kept != NULL)
        return oari_fail(OAR_E_STATE,
                         "fsdp_keep_state: the state of %s "
                         "optimizer is kept already",
                         d->kept->optim == optim ? "this" : "another");
    if (oar_shards_hold(d->shards) != OAR_HOLD_MAPPED)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "fsdp_keep_state: parameters are not mapped "
                         "(OAR_HOLD_MAPPED): other ranks do not have the "
                         "shards of one that is lost");
    if (d->opts.replicas != NULL ||
        oari_fsdp_has_sync_layers(d->unit[0].module))
        return oari_fail(
            OAR_E_UNSUPPORTED, "fsdp_keep_state of a model with %s",
            d->opts.replicas != NULL ? "replicas" : "synchronised batch norms");
    for (int i = 0; i < oar_optim_params(optim); i++)
        if (oari_fsdp_array_of_shard(d, oar_optim_param(optim, i)) < 0)
            return oari_fail(OAR_E_ARG,
                             "fsdp_keep_state: parameter %d of the optimizer "
                             "is no shard of the module",
                             i);
    return OAR_OK;
}

/* Makes this rank's part of what is kept. */
static oar_status begin_keeping(oari_fsdp *d, oari_kept *k)
{
    OARI_TRY(take_states(d, k));
    OARI_TRY(oar_optim_on_step(k->optim, begin_step, d, &k->hook[0]));
    OARI_TRY(oar_optim_after_step(k->optim, end_step, d, &k->hook[1]));
    d->kept = k;
    oari_kept_note_steps(d);
    return OAR_OK;
}

oar_status oar_fsdp_keep_state_at(const char *file, int line,
                                  oar_module *wrapped, oar_optim *optim)
{
    OARI_CALLED_FROM(file, line);
    oari_fsdp *d = oari_fsdp_of(wrapped);
    oari_kept *k;
    oar_status status;

    if (d == NULL || optim == NULL)
        return oari_fail(OAR_E_ARG, "fsdp_keep_state %s",
                         d == NULL ? "of a module that FSDP does not wrap"
                                   : "without an optimizer");
    OARI_TRY(oari_shards_check(d->shards, "fsdp_keep_state"));
    OARI_TRY(oari_agree_on_status(d->group, check_keep(d, optim),
                                  "fsdp_keep_state"));
    OARI_TRY(oari_fsdp_publish(d));
    OARI_TRY(oari_kept_make(d->shards, d->group, oari_kept_slots(optim), &k));
    k->optim = optim;
    k->params = oar_optim_params(optim);
    status =
        oari_agree_on_status(d->group, begin_keeping(d, k), "fsdp_keep_state");
    if (status != OAR_OK) {
        d->kept = NULL;
        oar_hook_remove(k->hook[0]);
        oar_hook_remove(k->hook[1]);
        oari_kept_free(k);
    }
    return status;
}
