/* SPDX-License-Identifier: Apache-2.0 */
/* shards: makes shards, and answers what is where.
 *
 * Making them goes in steps that all ranks take together: compare the arrays,
 * decide where whole arrays are held, make the groups, make the memory, deal
 * out rank 0's numbers. After the step that can fail on one rank alone, for
 * want of memory, the ranks tell each other how it went.
 */
#include "parallel/shards/shards.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/reducer/agreement.h"

enum { LEAST_PAGE = 4096 };

/* ---- small answers ------------------------------------------------------- */

oari_unit_name oari_shards_unit_name(const oar_shards *s, int unit)
{
    oari_unit_name name;

    if (s->unit[unit].name != NULL)
        snprintf(name.text, sizeof name.text, "unit \"%.50s\"",
                 s->unit[unit].name);
    else
        snprintf(name.text, sizeof name.text, "unit %d", unit);
    return name;
}

oar_status oari_shards_check(const oar_shards *s, const char *call)
{
    if (s == NULL)
        return oari_fail(OAR_E_ARG, "%s without shards", call);
    return s->fault.status == OAR_OK ? OAR_OK : oari_fail_with(&s->fault);
}

oar_status oari_shards_break(oar_shards *s)
{
    if (s->fault.status == OAR_OK) {
        s->fault = *oar_last_error();
        oar_group_abort(s->reduce, s->fault.text);
        if (s->gather_group != NULL)
            oar_group_abort(s->gather_group, s->fault.text);
        if (s->local != NULL)
            oar_group_abort(s->local, s->fault.text);
        if (s->replicas != NULL)
            oar_group_abort(s->replicas, s->fault.text);
    }
    return oari_fail_with(&s->fault);
}

size_t oari_shards_part_at(const oar_shards *s, const oari_flat *flat)
{
    return s->resident && !s->apart
               ? flat->whole_at + flat->first * oar_dtype_size(flat->dtype)
               : flat->part_at;
}

oar_span oari_shards_part(const oar_shards *s, const oari_flat *flat)
{
    unsigned char *data = oar_storage_data(s->params);

    return oari_span_on(s->shard_device, data + oari_shards_part_at(s, flat),
                        flat->counts[s->part], flat->dtype);
}

/* ---- comparing the ranks ------------------------------------------------- */

typedef struct array_list {
    const oar_span *array;
    const int *unit;
    const oar_shards_opts *opts;
} array_list;

static void describe_array(const void *of, int64_t index, char *line,
                           size_t bytes)
{
    const array_list *list = of;
    const oar_shards_opts *o = list->opts;

    snprintf(line, bytes, "%zu %s%s in unit %d%s%s, rows of %zu%s",
             list->array[index].count, oar_dtype_name(list->array[index].dtype),
             list->array[index].device.kind == OAR_CUDA ? " of a GPU" : "",
             list->unit[index], o->names != NULL ? " for " : "",
             o->names != NULL ? o->names[index] : "",
             o->rows != NULL ? o->rows[index] : 0,
             o->frozen != NULL && o->frozen[index] ? ", frozen" : "");
}

/* part: below 0, or this rank's, which its replicas have as well. */
static oar_status agree_on_arrays(oar_group *group, int arrays,
                                  const array_list *list, int part)
{
    const oar_shards_opts *o = list->opts;
    char options[320];
    oari_manifest manifest = { .options = options,
                               .does = "spread arrays over the ranks",
                               .has = "arrays",
                               .items = arrays,
                               .of = list,
                               .describe = describe_array };

    snprintf(options, sizeof options,
             "part %d, stage %d, hold %d, prefetch %d, no_scatter %d, weighted "
             "%d, canonical %d, replicas %s, host_state %d, mixed %d: %s and "
             "%s",
             part, (int)o->stage, (int)o->hold, o->prefetch, o->no_scatter != 0,
             o->weighted != 0, o->canonical != 0,
             o->replicas != NULL ? "given" : "none", o->host_state != 0,
             o->mixed != 0, oar_dtype_name(o->whole_dtype),
             oar_dtype_name(o->reduce_dtype));
    return oari_agree(&manifest, group);
}

/* ---- memory -------------------------------------------------------------- */

static oar_status make_own_memory(oar_shards *s)
{
    size_t units = (size_t)s->units + 1;

    if (s->resident && s->whole == NULL)
        OARI_TRY(oari_shards_zeros(s->device, s->whole_bytes, &s->whole));
    if (s->resident && !s->apart)
        s->params = oar_storage_retain(s->whole);
    else
        OARI_TRY(oari_shards_zeros(s->shard_device, s->part_bytes, &s->params));
    if (s->opts.host_state)
        OARI_TRY(oari_offload_make_grads(s));
    else if (oari_shards_on_gpu(s))
        OARI_TRY(oar_storage_create_on(s->device, s->grad_bytes, &s->grads));
    else
        OARI_TRY(oar_storage_create(s->grad_bytes, 1, &s->grads));
    if (oari_shards_on_gpu(s))
        OARI_TRY(oari_shards_zeros(s->device, sizeof(float), &s->fence));
    s->gathered = oari_alloc(4 * units, sizeof *s->gathered);
    s->gathered_before = oari_alloc(4 * units, sizeof *s->gathered_before);
    s->order = oari_alloc(units, sizeof *s->order);
    s->came = oari_alloc(units, sizeof *s->came);
    s->flags = oari_alloc(2 * (size_t)s->arrays + 1, 1);
    if (s->gathered == NULL || s->gathered_before == NULL || s->order == NULL ||
        s->came == NULL || s->flags == NULL)
        return OAR_E_NOMEM;
    for (int u = 0; u < s->units; u++)
        s->order[u] = s->units - 1 - u; /* backward begins with the last one */
    return OAR_OK;
}

/* ---- shards as tensors --------------------------------------------------- */

static oar_status make_shard(oar_shards *s, oar_shard *shard, int array)
{
    const oari_flat *flat = &s->flat[s->array[array].flat];
    size_t size = oar_dtype_size(flat->dtype);
    oar_span part = oari_shards_part(s, flat);
    size_t at = s->array[array].at + shard->first - flat->first;
    unsigned char *data = (unsigned char *)part.data + at * size;
    unsigned char *base = oar_storage_data(s->params);
    oar_shape shape = OAR_SHAPE((int64_t)shard->count);
    oar_tensor *grad;
    oar_status status;

    shard->array = array;
    shard->size = sizeof *shard;
    shard->data =
        oari_span_on(s->shard_device, data, shard->count, flat->dtype);
    shard->tensor =
        oar_view_of(NULL, s->params, (int64_t)((size_t)(data - base) / size),
                    flat->dtype, shape);
    if (shard->tensor == NULL)
        return oar_last_error()->status;
    if (flat->frozen)
        return OAR_OK;
    s->tensor[s->trained_shards++] = shard->tensor;
    shard->grad = oari_span_on(s->shard_device,
                               (unsigned char *)oar_storage_data(s->grads) +
                                   flat->grad_at + at * size,
                               shard->count, flat->dtype);
    grad = oar_view_of(NULL, s->grads, (int64_t)(flat->grad_at / size + at),
                       flat->dtype, shape);
    if (grad == NULL)
        return oar_last_error()->status;
    status = oar_tensor_require_grad(shard->tensor, 1);
    if (status == OAR_OK)
        status = oar_tensor_bind_grad(shard->tensor, grad);
    oar_tensor_release(grad);
    return status;
}

/* Makes the shards of this rank, those of one flat together. */
static oar_status make_shards(oar_shards *s)
{
    size_t n = (size_t)s->arrays + 1;
    int *next = oari_alloc((size_t)s->flats + 1, sizeof *next);
    oar_status status = OAR_OK;

    s->shard = oari_alloc(n, sizeof *s->shard);
    s->tensor = oari_alloc(n, sizeof(oar_tensor *));
    if (next == NULL || s->shard == NULL || s->tensor == NULL)
        status = OAR_E_NOMEM;
    for (int round = 0; round < 2 && status == OAR_OK; round++) {
        for (int i = 0; i < s->arrays && status == OAR_OK; i++) {
            oari_flat *flat = &s->flat[s->array[i].flat];
            oar_shard *shard;
            size_t first, count;

            oari_flat_range(s, i, s->part, &first, &count);
            if (count == 0)
                continue;
            if (round == 0) {
                flat->shards++;
                continue;
            }
            shard = &s->shard[flat->first_shard + next[s->array[i].flat]++];
            shard->first = first;
            shard->count = count;
            status = make_shard(s, shard, i);
        }
        for (int f = 0; f < s->flats && round == 0; f++) {
            s->flat[f].first_shard = s->shards;
            s->shards += s->flat[f].shards;
        }
    }
    oari_free(next);
    return status;
}

/* ---- making -------------------------------------------------------------- */

static oar_status check_arguments(oar_group *group, int arrays,
                                  const oar_span *array, const int *unit,
                                  const oar_shards_opts *o, oar_shards **shards)
{
    if (group == NULL || shards == NULL || arrays < 0 ||
        (arrays > 0 && (array == NULL || unit == NULL)))
        return oari_fail(OAR_E_ARG, "shards_create without %s",
                         group == NULL    ? "a group"
                         : shards == NULL ? "a place for them"
                                          : "a list of arrays and their units");
    if (oar_batch_is_open(group))
        return oari_fail(OAR_E_STATE, "shards_create inside a batch");
    if (o->stage < OAR_ZERO_STAGE_3 || o->stage > OAR_ZERO_STAGE_2 ||
        o->hold < OAR_HOLD_AUTO || o->hold > OAR_HOLD_OWN)
        return oari_fail(OAR_E_ARG, "shards_create: stage %d, hold %d",
                         (int)o->stage, (int)o->hold);
    if (o->mixed &&
        (!oari_dtype_is_float(o->whole_dtype) ||
         (o->reduce_dtype != o->whole_dtype &&
          (o->reduce_dtype != OAR_F32 || !oari_dtype_is_half(o->whole_dtype)))))
        return oari_fail(OAR_E_DTYPE,
                         "mixed precision with whole arrays in %s and "
                         "gradients added in %s: the first must be a float, "
                         "the second the same or, for a half, f32",
                         oar_dtype_name(o->whole_dtype),
                         oar_dtype_name(o->reduce_dtype));
    for (int i = 0; i < arrays; i++) {
        if (unit[i] < 0 || unit[i] > arrays) /* one may have no array */
            return oari_fail(OAR_E_ARG,
                             "shards_create: array %d is in unit %d; units of "
                             "%d arrays are numbered from 0 to %d",
                             i, unit[i], arrays, arrays);
    }
    return OAR_OK;
}

static oar_status copy_names(oar_shards *s)
{
    for (int i = 0; s->opts.names != NULL && i < s->arrays; i++)
        if ((s->array[i].name = oari_strdup(s->opts.names[i])) == NULL)
            return OAR_E_NOMEM;
    for (int u = 0; s->opts.unit_names != NULL && u < s->units; u++)
        if ((s->unit[u].name = oari_strdup(s->opts.unit_names[u])) == NULL)
            return OAR_E_NOMEM;
    return OAR_OK;
}

/* Makes what needs no other rank; page: bytes, the same on all ranks. */
static oar_status lay_out(oar_shards *s, const oar_span *array, const int *unit,
                          size_t page)
{
    oari_flat_cut cut = { .parts = s->ranks, .mine = s->part, .page = page };
    size_t n = (size_t)s->arrays + 1;

    s->array = oari_alloc(n, sizeof *s->array);
    s->flat = oari_alloc(n, sizeof *s->flat);
    s->unit = oari_alloc(n, sizeof *s->unit);
    if (s->array == NULL || s->flat == NULL || s->unit == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < s->arrays; i++) {
        s->array[i].unit = unit[i];
        s->array[i].row = s->opts.rows != NULL ? s->opts.rows[i] : 0;
        if (unit[i] >= s->units)
            s->units = unit[i] + 1;
    }
    OARI_TRY(copy_names(s));
    return oari_flats_make(s, array, s->opts.frozen, &cut);
}

static oar_status agree_on_page(oar_group *group, size_t *page)
{
    int64_t bytes = sysconf(_SC_PAGESIZE);

    OARI_TRY(oar_all_reduce(group, oar_span_of(&bytes, 1, OAR_I64), OAR_MAX,
                            OAR_OPTS(oar_call_opts, .label = "shards_create"),
                            NULL));
    *page = bytes > LEAST_PAGE ? (size_t)bytes : LEAST_PAGE;
    return OAR_OK;
}

/* Makes groups, layout and common memory for the hold that is chosen. */
static oar_status place_arrays(oar_shards *s, oar_group *group,
                               const oar_span *array, const int *unit,
                               size_t page)
{
    oar_status status;

    OARI_TRY(oari_hold_choose(s, group));
    status = oari_hold_number_parts(s, group);
    if (status == OAR_OK)
        status = lay_out(s, array, unit, page);
    OARI_TRY(oari_agree_on_status(group, status, "shards_create"));
    return oari_hold_open(s, group);
}

static void forget_layout(oar_shards *s)
{
    for (int i = 0; s->array != NULL && i < s->arrays; i++)
        oari_free(s->array[i].name);
    for (int u = 0; s->unit != NULL && u < s->units; u++)
        oari_free(s->unit[u].name);
    for (int f = 0; s->flat != NULL && f < s->flats; f++)
        oari_free(s->flat[f].counts);
    oari_free(s->array);
    oari_free(s->unit);
    oari_free(s->flat);
    oari_free(s->part_of);
    s->array = NULL;
    s->unit = NULL;
    s->flat = NULL;
    s->part_of = NULL;
    s->units = s->flats = s->apart = 0;
    s->whole_bytes = s->part_bytes = s->grad_bytes = 0;
}

/* Makes the group of the ranks that have the same shards, once it is known that
 * they do. */
static oar_status open_replicas(oar_shards *s, const array_list *list)
{
    oar_group *others = s->opts.replicas;
    int ranks[2] = { s->ranks, -s->ranks };

    OARI_TRY(oar_all_reduce(others, oar_span_of(ranks, 2, OAR_I32), OAR_MAX,
                            OAR_OPTS(oar_call_opts, .label = "shards_create"),
                            NULL));
    if (ranks[0] != -ranks[1])
        return oari_fail(OAR_E_MISMATCH,
                         "replicas are in groups of %d to %d ranks: their "
                         "shards are not the same",
                         -ranks[1], ranks[0]);
    OARI_TRY(agree_on_arrays(others, s->arrays, list, s->part));
    return oar_group_split(others, 0, oar_group_rank(others), &s->replicas);
}

static oar_status build_shards(oar_shards *s, oar_group *group,
                               const oar_span *array, const int *unit)
{
    int any = s->opts.hold == OAR_HOLD_AUTO, overlaps;
    oar_status status;
    size_t page;

    OARI_TRY(agree_on_page(group, &page));
    OARI_TRY(oari_agree_on_status(group, oari_gpu_find_device(s, array),
                                  "shards_create"));
    if (oari_shards_on_gpu(s))
        OARI_TRY(oari_gpu_compare(s, group));
    overlaps = oari_shards_on_gpu(s) || oar_group_overlaps(group);
    if (s->opts.prefetch == 0)
        s->opts.prefetch = overlaps;
    s->most_under_way = overlaps ? 2 : 1;
    status = place_arrays(s, group, array, unit, page);
    if (status == OAR_E_UNSUPPORTED && any) { /* on all ranks */
        oari_offload_close(s);
        oari_hold_close(s);
        forget_layout(s);
        s->opts.hold = OAR_HOLD_OWN;
        status = place_arrays(s, group, array, unit, page);
    }
    OARI_TRY(status);
    status = make_own_memory(s);
    if (status == OAR_OK)
        status = make_shards(s);
    OARI_TRY(oari_agree_on_status(group, status, "shards_create"));
    if (s->opts.replicas != NULL) {
        array_list list = { array, unit, &s->opts };
        OARI_TRY(oari_agree_on_status(group, open_replicas(s, &list),
                                      "shards_create"));
    }
    OARI_TRY(oari_shards_fill(s, array));
    return oari_hold_protect(s);
}

oar_status oar_shards_create_at(const char *file, int line, oar_group *group,
                                int arrays, const oar_span *array,
                                const int *unit, const oar_shards_opts *opts,
                                oar_shards **shards)
{
    OARI_CALLED_FROM(file, line);
    oar_shards_opts o;
    array_list list = { array, unit, &o };
    oar_shards *s;
    oar_status status;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(check_arguments(group, arrays, array, unit, &o, shards));
    OARI_TRY(agree_on_arrays(group, arrays, &list, -1));
    s = oari_alloc(1, sizeof *s);
    status = oari_agree_on_status(group, s != NULL ? OAR_OK : OAR_E_NOMEM,
                                  "shards_create");
    if (status != OAR_OK) {
        oari_free(s);
        return status;
    }
    s->opts = o;
    s->arrays = arrays;
    s->ranks = oar_group_size(group);
    s->weight = s->group_weight = 1;
    pthread_mutex_init(&s->busy.lock, NULL);
    s->arrays_pool.held = s->grads_pool.held = &s->stats.whole_bytes;
    s->arrays_pool.most = s->grads_pool.most = &s->stats.most_bytes;
    status = build_shards(s, group, array, unit);
    if (status != OAR_OK) {
        oar_shards_destroy(s);
        return status;
    }
    s->opts.names = s->opts.unit_names = NULL; /* the caller's */
    s->opts.rows = NULL;
    s->opts.frozen = NULL;
    *shards = s;
    return OAR_OK;
}

void oar_shards_destroy(oar_shards *shards)
{
    oar_shards *s = shards;
    oar_error keep;

    if (s == NULL)
        return;
    keep = *oar_last_error();
    if (s->in_pass && s->fault.status == OAR_OK) {
        oari_fail(OAR_E_STATE, "the shards were destroyed in mid-pass");
        oari_shards_break(s); /* so that what is posted ends */
    }
    oari_gathers_end(s);
    oari_reductions_end(s);
    oari_offload_close(s);
    oari_hold_close(s);
    for (int i = 0; i < s->shards && s->shard != NULL; i++)
        oar_tensor_release(s->shard[i].tensor);
    oar_storage_release(s->whole);
    oar_storage_release(s->params);
    oar_storage_release(s->grads);
    oar_storage_release(s->fence);
    oar_window_release(s->window);
    forget_layout(s);
    oari_free(s->shard);
    oari_free(s->tensor);
    oari_free(s->gathered);
    oari_free(s->gathered_before);
    oari_free(s->order);
    oari_free(s->came);
    oari_free(s->flags);
    pthread_mutex_destroy(&s->busy.lock);
    oari_free(s);
    oari_fail_with(&keep);
}

/* ---- questions ----------------------------------------------------------- */

int oar_shards_units(const oar_shards *shards)
{
    return shards != NULL ? shards->units : 0;
}

oar_hold oar_shards_hold(const oar_shards *shards)
{
    return shards != NULL ? shards->opts.hold : OAR_HOLD_OWN;
}

int oar_shards_count(const oar_shards *shards)
{
    return shards != NULL ? shards->shards : 0;
}

oar_status oar_shards_shard(const oar_shards *shards, int index,
                            oar_shard *shard)
{
    if (shards == NULL || index < 0 || index >= shards->shards)
        return oari_fail(OAR_E_ARG, "shards_shard: shard %d of %d", index,
                         oar_shards_count(shards));
    return oari_struct_give(shard, &shards->shard[index], sizeof *shard,
                            "shard");
}

oar_tensor *const *oar_shards_tensors(const oar_shards *shards, int *count)
{
    if (count != NULL)
        *count = shards != NULL ? shards->trained_shards : 0;
    return shards != NULL ? shards->tensor : NULL;
}

oar_status oar_shards_range(const oar_shards *shards, int array, int rank,
                            size_t *first, size_t *count)
{
    if (shards == NULL || first == NULL || count == NULL || array < 0 ||
        array >= shards->arrays || rank < 0 || rank >= shards->ranks)
        return oari_fail(OAR_E_ARG,
                         "shards_range: array %d of %d, rank %d of "
                         "%d",
                         array, shards != NULL ? shards->arrays : 0, rank,
                         shards != NULL ? shards->ranks : 0);
    oari_flat_range(shards, array, shards->part_of[rank], first, count);
    return OAR_OK;
}

int oar_shards_used(const oar_shards *shards, int array)
{
    return shards != NULL && array >= 0 && array < shards->arrays &&
           shards->array[array].used;
}

oar_status oar_shards_weigh(oar_shards *shards, double weight)
{
    OARI_TRY(oari_shards_check(shards, "shards_weigh"));
    if (!shards->opts.weighted)
        return oari_fail(OAR_E_ARG, "a weight for shards whose mean is not "
                                    "weighted");
    if (!(weight >= 0) || weight > 1e300)
        return oari_fail(OAR_E_ARG, "a weight of %g", weight);
    shards->weight = weight;
    return OAR_OK;
}

void oar_shards_zero_grad(oar_shards *shards)
{
    for (int i = 0; shards != NULL && i < shards->trained_shards; i++)
        oar_tensor_clear_grad(shards->tensor[i]);
}

oar_status oar_shards_read_stats(const oar_shards *shards,
                                 oar_shards_stats *stats)
{
    oar_shards_stats now;
    int common;

    if (shards == NULL)
        return oari_fail(OAR_E_ARG, "shards_read_stats without shards");
    common = shards->window != NULL ? oar_window_ranks(shards->window) : 1;
    now = shards->stats;
    now.size = sizeof now;
    now.units = shards->units;
    now.passes = shards->passes;
    now.communication_s = oari_busy_read(&shards->busy);
    now.shard_bytes = shards->grad_bytes;
    if (shards->resident)
        now.shard_bytes += shards->whole_bytes / (size_t)common;
    if (!shards->resident || shards->apart)
        now.shard_bytes += shards->part_bytes;
    return oari_struct_give(stats, &now, sizeof now, "shards stats");
}
