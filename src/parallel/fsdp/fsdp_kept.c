/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_kept: what survivors need of a rank that is lost, in a window that all
 * ranks of the host map.
 *
 * Every rank has a region of the window that only it can write to:
 *
 *     its line      optimizer steps that it has begun and done
 *     its records   for each array, what its optimizer knows of its shard
 *     its journal   the chunk of a parameter and its state that is being moved,
 *                   as it was before
 *     planes        of its shards: a slot of the optimizer's state each; the
 *                   gradients; with mixed precision also the shards themselves
 *
 * A plane is laid out as the rank's parts of the flats are. Any rank can
 * compute where anything is, from the cut of the flats alone.
 *
 * A step begins on all ranks or on none: they meet before it. Once it has
 * begun, gradients, journal and progress of a rank that is lost are enough for
 * others to finish the step for it.
 */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/reducer/agreement.h"
#include "parallel/syncbn/syncbn.h"

enum { LINE = 64, KEY_STEP = 7, LARGEST = 8 };
static const uint64_t NOWHERE = UINT64_MAX;

/* ---- where things are ---------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Returns how many bytes an element of a flat has in a plane. */
static size_t element_bytes(const oari_kept *k, const oari_flat *flat,
                            int plane)
{
    if (plane == oari_kept_shards_plane(k))
        return oar_dtype_size(flat->dtype);
    if (flat->frozen)
        return 0;
    if (plane == oari_kept_grads_plane(k))
        return oar_dtype_size(flat->dtype);
    return flat->dtype == OAR_F64 ? 8 : 4;
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

size_t oari_kept_journal_at(const oari_kept *k, int part, int slot)
{
    size_t records = 2 * (size_t)k->shards->arrays * sizeof(oari_kept_record);

    return records_at(k, part) + round_up(records, LINE) +
           (size_t)slot * OAR_OPTIM_CHUNK * LARGEST;
}

static size_t plane_at(const oari_kept *k, int part, int plane)
{
    size_t at = oari_kept_journal_at(k, part, k->slots + 1);

    for (int i = 0; i < plane; i++)
        at += bytes_before(k, part, i, k->shards->flats);
    return at;
}

oari_kept_line *oari_kept_line_of(const oari_kept *k, int part)
{
    return (oari_kept_line *)((unsigned char *)oar_window_data(k->window) +
                              k->begin[part]);
}

oari_kept_record *oari_kept_record_of(const oari_kept *k, int part,
                                      uint64_t step, int array)
{
    return (oari_kept_record *)((unsigned char *)oar_window_data(k->window) +
                                records_at(k, part)) +
           (step % 2 == 0 ? 0 : k->shards->arrays) + array;
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
            round_up(plane_at(k, p, slots + (s->apart ? 2 : 1)), page);
    return oar_storage_create_detached(k->begin[s->ranks], 0, &k->storage);
}

/* A rank can write to its own region only. */
static oar_status open_region(const oari_kept *k)
{
    const oar_shards *s = k->shards;
    size_t bytes = k->begin[s->ranks], end = k->begin[s->part + 1];

    OARI_TRY(oar_window_protect(k->window, 0, k->begin[s->part], 0));
    OARI_TRY(oar_window_protect(k->window, end, bytes - end, 0));
    for (int i = 0; i < 2 * s->arrays; i++)
        oari_kept_record_of(k, s->part, 0, i)->group = -1;
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

/* Moves a storage of this rank's parts to a plane. */
static oar_status take_storage(const oari_kept *k, oar_storage *storage,
                               int plane)
{
    size_t at = plane_at(k, k->shards->part, plane);
    size_t bytes = oar_storage_bytes(storage);

    if (bytes != 0)
        memcpy((unsigned char *)oar_window_data(k->window) + at,
               oar_storage_const_data(storage), bytes);
    OARI_TRY(oar_storage_detach(storage));
    return attach_window(k, storage, at);
}

oar_status oari_kept_take_shards(const oari_kept *k, oar_shards *s)
{
    unsigned char *window = oar_window_data(k->window);
    int part = s->part;

    OARI_TRY(take_storage(k, s->grads, oari_kept_grads_plane(k)));
    if (s->apart)
        OARI_TRY(take_storage(k, s->params, oari_kept_shards_plane(k)));
    for (int i = 0; i < s->shards; i++) {
        oar_shard *shard = &s->shard[i];

        if (s->apart)
            shard->data.data =
                window + oari_kept_at(k, part, oari_kept_shards_plane(k),
                                      shard->array, shard->first);
        if (shard->grad.data != NULL)
            shard->grad.data =
                window + oari_kept_at(k, part, oari_kept_grads_plane(k),
                                      shard->array, shard->first);
    }
    return OAR_OK;
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

/* Writes down what the optimizer has before a step, or, with no gradients, what
 * it has after it. */
static void write_records(const oari_fsdp *d, uint64_t step, int before)
{
    const oari_kept *k = d->kept;

    for (int i = 0; i < k->params; i++) {
        oari_kept_record *r =
            oari_kept_record_of(k, d->shards->part, step, k->array[i]);

        r->index = i;
        r->steps = oar_optim_param_steps(k->optim, i);
        r->has_grad =
            before && oar_tensor_grad(oar_optim_param(k->optim, i)) != NULL;
        oar_optim_param_group(k->optim, i, &r->group);
    }
}

void oari_kept_begin_change(const oari_fsdp *d)
{
    if (d->kept != NULL)
        oari_kept_line_of(d->kept, d->shards->part)->changing = 1;
}

/* The optimizer's steps may have been set, too. */
void oari_kept_note_change(const oari_fsdp *d)
{
    const oari_kept_line *line;

    if (d->kept == NULL)
        return;
    line = oari_kept_line_of(d->kept, d->shards->part);
    if (line->changing)
        write_records(d, line->done, 0);
}

void oari_kept_end_change(const oari_fsdp *d)
{
    if (d->kept != NULL)
        oari_kept_line_of(d->kept, d->shards->part)->changing = 0;
}

/* All ranks begin a step, or none does: if one has, all have written down what
 * finishing it takes. */
static oar_status begin_step(oar_optim *optim, void *arg)
{
    oari_fsdp *d = arg;
    oar_shards *s = d->shards;
    oari_kept_line *line = oari_kept_line_of(d->kept, s->part);
    oar_call_opts o = oar_call_opts_init();

    OARI_TRY(oari_shards_check(s, "optim_step"));
    write_records(d, line->done + 1, 1);
    line->journal = NOWHERE;
    line->progress = 0;
    line->lr = oar_optim_lr(optim);
    o.label = "optim_step";
    o.key = oari_shards_key(KEY_STEP, oar_optim_steps(optim));
    if (s->local != NULL && oar_barrier(s->local, &o, NULL) != OAR_OK)
        return oari_shards_break(s);
    line->begun = line->done + 1;
    return OAR_OK;
}

/* Copies a chunk to the journal before it is moved. */
static void write_journal(oar_optim *optim, int index, int64_t first,
                          int64_t count, void *arg)
{
    const oari_fsdp *d = arg;
    const oari_kept *k = d->kept;
    int part = d->shards->part;
    oari_kept_line *line = oari_kept_line_of(k, part);
    uint64_t position = oari_kept_position(index, first);

    line->progress = position;
    for (int slot = 0; slot <= k->slots; slot++) {
        const oar_tensor *from = slot < k->slots
                                     ? oar_optim_state(optim, index, slot)
                                     : oar_optim_param(optim, index);
        size_t size = oar_dtype_size(oar_tensor_dtype(from));

        if (from != NULL)
            memcpy((unsigned char *)oar_window_data(k->window) +
                       oari_kept_journal_at(k, part, slot),
                   (const unsigned char *)oar_tensor_const_data(from) +
                       (size_t)first * size,
                   (size_t)count * size);
    }
    line->chunk = count;
    line->journal = position;
    atomic_thread_fence(memory_order_seq_cst);
}

static void end_step(oar_optim *optim, void *arg)
{
    const oari_fsdp *d = arg;
    oari_kept_line *line = oari_kept_line_of(d->kept, d->shards->part);

    line->progress = NOWHERE; /* all is moved */
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
    if (oari_shards_on_gpu(d->shards))
        return oari_fail(
            OAR_E_DEVICE,
            "fsdp_keep_state: the module is on a GPU, whose memory "
            "goes with the process that has it");
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
    if (d->shards->in_pass)
        return oari_fail(OAR_E_STATE,
                         "fsdp_keep_state in the middle of a pass");
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
    OARI_TRY(oar_optim_on_move(k->optim, write_journal, d, &k->hook[2]));
    d->kept = k;
    write_records(d, 0, 0);
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
        for (int i = 0; i < 3; i++)
            oar_hook_remove(k->hook[i]);
        oari_kept_free(k);
    }
    return status;
}
