/* SPDX-License-Identifier: Apache-2.0 */
/* syncbn: merges a batch norm's statistics over ranks (Chan et al.): from
 * (count, mean, spread) of two parts to that of both, rank by rank, in the same
 * order on all ranks. */
#include <oarsong/syncbn.h>

#include <string.h>

#include <oarsong/collective.h>
#include <oarsong/replay.h>
#include <oarsong/tensor.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/syncbn/syncbn.h"

static void release_group(oari_sync_group *c)
{
    if (atomic_fetch_sub(&c->layers, 1) != 1)
        return;
    oar_group_destroy(c->group);
    oari_free(c);
}

/* ---- merging ------------------------------------------------------------- */

/* Adds a part to (*count, mean, spread). */
static void add_part(int64_t channels, double *count, double *mean,
                     double *spread, const double *part)
{
    double n = part[0], total = *count + n;

    if (n == 0)
        return;
    for (int64_t c = 0; c < channels; c++) {
        double far = part[1 + c] - mean[c];
        mean[c] += far * (n / total);
        spread[c] += part[1 + channels + c] + far * far * (*count * n / total);
    }
    *count = total;
}

static oar_status merge_moments(void *arg, int64_t channels, double *count,
                                double *mean, double *spread)
{
    oari_sync_layer *l = arg;
    size_t n = (size_t)channels, each = 2 * n + 1;
    int ranks = oar_group_size(l->shared->group);
    double *all;

    if (l->channels < channels || l->room == NULL) {
        oari_free(l->room);
        l->room = oari_alloc(each * ((size_t)ranks + 1), sizeof *l->room);
        l->channels = channels;
        if (l->room == NULL)
            return OAR_E_NOMEM;
    }
    OARI_TRY(oari_syncbn_announce(l, OARI_SYNC_MOMENTS, channels));
    l->room[0] = *count;
    memcpy(l->room + 1, mean, n * sizeof *mean);
    memcpy(l->room + 1 + n, spread, n * sizeof *spread);
    all = l->room + each;
    OARI_TRY(oar_all_gather(
        l->shared->group, oar_span_of(l->room, each, OAR_F64),
        oar_span_of(all, each * (size_t)ranks, OAR_F64),
        OAR_OPTS(oar_call_opts, .label = "batch norm statistics"), NULL));
    *count = 0;
    memset(mean, 0, n * sizeof *mean);
    memset(spread, 0, n * sizeof *spread);
    for (int r = 0; r < ranks; r++)
        add_part(channels, count, mean, spread, all + (size_t)r * each);
    return OAR_OK;
}

/* A rank's gradients are multiplied by its weight in the end; the part that
 * comes from another rank's loss must have that rank's weight instead. */
static oar_status merge_sums(void *arg, int64_t count, double *sum)
{
    const oari_sync_layer *l = arg;
    const oari_sync_group *c = l->shared;
    double own = c->weight > 0 ? c->weight : 1;

    OARI_TRY(oari_syncbn_announce(l, OARI_SYNC_SUMS, count / 2));
    for (int64_t i = 0; i < count; i++)
        sum[i] *= c->weight;
    OARI_TRY(oar_all_reduce(
        c->group, oar_span_of(sum, (size_t)count, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "batch norm gradients",
                 .canonical = 1),
        NULL));
    for (int64_t i = 0; i < count; i++)
        sum[i] /= own;
    return OAR_OK;
}

/* ---- on a GPU ------------------------------------------------------------ */

static int count_parts(void *arg)
{
    const oari_sync_layer *l = arg;

    return oar_group_size(l->shared->group);
}

/* Scales f64 numbers on the current stream. */
static oar_status scale_numbers(oar_span span, double factor)
{
    oar_tensor *numbers = NULL, *scaled = NULL;
    oar_storage *storage;
    oar_status status;

    if (factor == 1)
        return OAR_OK;
    OARI_TRY(oar_storage_create_detached_on(
        span.device, span.count * sizeof(double), &storage));
    status = oar_storage_attach(storage, span.data, NULL, NULL);
    if (status == OAR_OK)
        numbers = oar_view_of(NULL, storage, 0, OAR_F64,
                              OAR_SHAPE((int64_t)span.count));
    if (numbers != NULL)
        scaled = oar_scale(NULL, numbers, factor);
    if (status == OAR_OK)
        status = scaled != NULL ? oar_tensor_copy(numbers, scaled)
                                : oar_last_error()->status;
    oar_tensor_release(scaled);
    oar_tensor_release(numbers);
    oar_storage_release(storage);
    return status;
}

typedef struct part_exchange {
    const oari_sync_layer *layer;
    int sums;
    oar_span mine, all;
} part_exchange;

/* Reads what may change from step to step: the weight, and whether there are
 * announcements. The weight is that of merge_sums above. */
static oar_status exchange_parts(void *arg)
{
    const part_exchange *e = arg;
    const oari_sync_group *c = e->layer->shared;
    int64_t channels = (int64_t)e->mine.count / 2; /* moments have one more */
    double weight = e->sums ? c->weight : 1;

    OARI_TRY(oari_syncbn_announce(
        e->layer, e->sums ? OARI_SYNC_SUMS : OARI_SYNC_MOMENTS, channels));
    OARI_TRY(scale_numbers(e->mine, weight));
    OARI_TRY(oar_all_gather(c->group, e->mine, e->all,
                            OAR_OPTS(oar_call_opts, .label = "batch norm"),
                            NULL));
    return weight > 0 ? scale_numbers(e->all, 1 / weight) : OAR_OK;
}

static oar_status gather_on(void *arg, int sums, oar_span mine, oar_span all)
{
    part_exchange *e = oari_alloc(1, sizeof *e);

    if (e == NULL)
        return OAR_E_NOMEM;
    *e = (part_exchange){ arg, sums, mine, all };
    return oar_replay_cut_with(exchange_parts, e, oari_free);
}

oari_sync_layer *oari_sync_layer_of(const oar_module *module)
{
    const oar_batch_norm_merge *merge = oar_batch_norm_merge_of(module);

    return merge != NULL && merge->sums == merge_sums ? merge->arg : NULL;
}

void oari_syncbn_weigh(const oar_module *module, double weight)
{
    oari_sync_layer *l = oari_sync_layer_of(module);

    if (l != NULL)
        l->shared->weight = weight;
    for (int i = 0; i < oar_module_children(module); i++)
        oari_syncbn_weigh(oar_module_child(module, i), weight);
}

/* ---- making -------------------------------------------------------------- */

static void drop_layer(void *arg)
{
    oari_sync_layer *l = arg;

    release_group(l->shared);
    oari_free(l->room);
    oari_free(l);
}

static oar_status convert_layer(oar_module *module, oari_sync_group *c)
{
    oari_sync_layer *l = oari_alloc(1, sizeof *l);
    oar_status status;

    if (l == NULL)
        return OAR_E_NOMEM;
    l->shared = c;
    atomic_fetch_add(&c->layers, 1);
    status = oar_batch_norm_merge_by(
        module,
        &(oar_batch_norm_merge){ .arg = l,
                                 .moments = merge_moments,
                                 .sums = merge_sums,
                                 .parts = count_parts,
                                 .gather_on = gather_on },
        drop_layer);
    if (status != OAR_OK)
        drop_layer(l);
    return status;
}

static oar_status convert_all(oar_module *module, oari_sync_group *c,
                              int *joined)
{
    if (oar_batch_norm_dims(module) > 0) {
        OARI_TRY(convert_layer(module, c));
        ++*joined;
    }
    for (int i = 0; i < oar_module_children(module); i++)
        OARI_TRY(convert_all(oar_module_child(module, i), c, joined));
    return OAR_OK;
}

oar_status oar_sync_batch_norm_convert_at(const char *file, int line,
                                          oar_module *module, oar_group *group,
                                          int *converted)
{
    OARI_CALLED_FROM(file, line);
    oari_sync_group *c;
    int joined = 0;
    oar_status status;

    if (module == NULL || group == NULL)
        return oari_fail(OAR_E_ARG, "sync_batch_norm_convert without a %s",
                         module == NULL ? "module" : "group");
    if ((c = oari_alloc(1, sizeof *c)) == NULL)
        return OAR_E_NOMEM;
    status = oar_group_dup(group, &c->group);
    if (status != OAR_OK) {
        oari_free(c);
        return status;
    }
    atomic_store(&c->layers, 1);
    c->weight = 1;
    status = convert_all(module, c, &joined);
    release_group(c);
    if (status == OAR_OK && converted != NULL)
        *converted = joined;
    return status;
}

oar_status oar_sync_batch_norm_create_at(const char *file, int line, int dims,
                                         int64_t channels, oar_group *group,
                                         const oar_batch_norm_opts *opts,
                                         oar_module **module)
{
    OARI_CALLED_FROM(file, line);
    oar_module *made = NULL;
    oar_status status;

    if (group == NULL || module == NULL)
        return oari_fail(OAR_E_ARG, "sync_batch_norm without a %s",
                         group == NULL ? "group" : "place for it");
    if (channels < 1)
        return oari_fail(OAR_E_ARG, "sync_batch_norm of %lld channels",
                         (long long)channels);
    OARI_TRY(oar_batch_norm_create(dims, channels, opts, &made));
    status = oar_sync_batch_norm_convert(made, group, NULL);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_module_release(made);
        return oari_fail_with(&why);
    }
    *module = made;
    return OAR_OK;
}
