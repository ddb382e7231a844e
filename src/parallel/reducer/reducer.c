/* SPDX-License-Identifier: Apache-2.0 */
/* reducer: one pass over the buckets.
 *
 * A bucket is reduced as soon as the last of its arrays is ready, but never
 * before the bucket in front of it. The bucket of a large array is reduced in
 * pieces (piece.c), each as soon as its elements are ready; on a rank that does
 * not report parts of an array, all of them when the array is ready.
 */
#include "parallel/reducer/reducer.h"

#include <stdio.h>
#include <string.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/call_site.h"
#include "base/status.h"
#include "parallel/reducer/agreement.h"

/* ---- a pass -------------------------------------------------------------- */

static void begin_pass(oar_reducer *r)
{
    if (r->ready == 0 && r->bucket[0].begun == 0) {
        r->stats.reduced_bytes = r->stats.copied_bytes = 0;
        r->stats.communication_s = r->stats.exposed_s = 0;
    }
}

static oar_status check_array(const oar_reducer *r, int array)
{
    const oari_bucket *b;

    if (r == NULL)
        return oari_fail(OAR_E_ARG, "reducer_ready without a reducer");
    if (array < 0 || array >= r->arrays)
        return oari_fail(OAR_E_ARG, "array %d of a reducer of %d", array,
                         r->arrays);
    if (r->slot[array].ready)
        return oari_fail(OAR_E_STATE, "array %d is ready twice in one pass",
                         array);
    b = &r->bucket[r->slot[array].bucket];
    if (b->begun > 0 && b->told == 0)
        return oari_fail(OAR_E_STATE,
                         "array %d is ready, but was not in the first pass, "
                         "and the graph is said to be static",
                         array);
    return OAR_OK;
}

oar_status oar_reducer_ready_at(const char *file, int line,
                                oar_reducer *reducer, int array)
{
    OARI_CALLED_FROM(file, line);
    oari_reducer_array *s;
    oar_span place;

    OARI_TRY(check_array(reducer, array));
    begin_pass(reducer);
    s = &reducer->slot[array];
    if (s->array.data != NULL) {
        place = oari_bucket_place(reducer, array);
        OARI_TRY(oari_span_copy(&place, &s->array));
        reducer->stats.copied_bytes += oari_span_bytes(&place);
    }
    s->ready = s->given = 1;
    reducer->came[reducer->ready++] = array;
    reducer->bucket[s->bucket].ready += !s->skipped;
    return oari_pieces_begin(reducer);
}

oar_status oari_reducer_part_ready(oar_reducer *r, int array, size_t elements)
{
    const oari_reducer_array *s = &r->slot[array];
    oari_bucket *b = &r->bucket[s->bucket];

    if (b->pieces == 1 || s->ready || s->skipped || s->array.data != NULL)
        return OAR_OK;
    begin_pass(r);
    b->told = elements < s->array.count ? elements : b->is.data.count;
    return oari_pieces_begin(r);
}

/* Waits for a work and releases it; keeps the last error as it is. */
static void wait_and_release(oar_work **work)
{
    oar_error keep = *oar_last_error();

    if (*work == NULL)
        return;
    oar_work_wait(*work);
    oar_work_release(*work);
    oari_fail_with(&keep);
    *work = NULL;
}

void oari_reducer_reset(oar_reducer *r)
{
    for (int i = 0; i < r->buckets; i++) {
        oari_bucket *b = &r->bucket[i];

        for (int k = 0; k < b->pieces; k++) {
            wait_and_release(&b->piece[k].work);
            b->piece[k].held = 0;
        }
        b->ready = b->begun = 0;
        b->told = 0;
    }
    for (int i = 0; i < r->arrays; i++)
        r->slot[i].ready = 0;
    r->begun = r->ready = 0;
}

/* ---- after the first pass ------------------------------------------------ */

static oar_status rebuild_buckets(oar_reducer *r, oari_reducer_array *before)
{
    oari_bucket *old = NULL;
    int olds = 0;
    oar_status status;

    memcpy(before, r->slot, (size_t)r->arrays * sizeof *before);
    memcpy(r->order, r->came, (size_t)r->arrays * sizeof *r->order);
    status = oari_buckets_make(r, &old, &olds);
    if (status != OAR_OK) {
        memcpy(r->slot, before, (size_t)r->arrays * sizeof *before);
        return status;
    }
    if (r->hook.forget != NULL)
        r->hook.forget(r->hook.arg, 0);
    for (int i = 0; i < r->arrays && status == OAR_OK; i++) {
        const oar_span *data = &old[before[i].bucket].is.data;
        oar_span to = oari_bucket_place(r, i), from = to;

        from.data = (unsigned char *)data->data +
                    before[i].at * oar_dtype_size(data->dtype);
        status = oari_span_copy(&to, &from);
    }
    if (status == OAR_OK && r->owner.moved != NULL)
        status = r->owner.moved(r->owner.arg);
    oari_buckets_drop(old, olds);
    return status;
}

static oar_status learn_from_first(oar_reducer *r)
{
    oari_reducer_array *before;
    int n = r->ready;
    oar_status status;

    for (int i = 0; r->opts.static_graph && i < r->arrays; i++) {
        oari_reducer_array *s = &r->slot[i];
        s->skipped = !s->ready;
        r->bucket[s->bucket].expected -= s->skipped;
    }
    if (!r->opts.reorder)
        return OAR_OK;
    before = oari_alloc((size_t)r->arrays + 1, sizeof *before);
    if (before == NULL)
        return OAR_E_NOMEM;
    for (int i = r->arrays - 1; i >= 0; i--)
        if (!r->slot[i].ready) /* goes to the end */
            r->came[n++] = i;
    /* rank 0's order counts */
    status = oar_broadcast(
        r->group, oar_span_of(r->came, (size_t)r->arrays, OAR_I32), 0,
        OAR_OPTS(oar_call_opts, .label = "order of gradients"), NULL);
    oari_reducer_reset(r);
    if (status == OAR_OK)
        status = rebuild_buckets(r, before);
    oari_free(before);
    return status;
}

/* ---- the end of a pass --------------------------------------------------- */

static oar_status end_pass(oar_reducer *r, int64_t since)
{
    int first = r->passes == 0;

    OARI_TRY(oari_pieces_wait(r));
    r->stats.exposed_s = (double)(oari_now_ns() - since) * 1e-9;
    r->stats.communication_s = oari_pieces_time(r);
    if (r->stats.exposed_s > r->stats.communication_s)
        r->stats.exposed_s = r->stats.communication_s;
    if (!oari_reducer_on_gpu(r)) {
        oari_flags_read(r);
        r->passes++;
    }
    for (int i = 0; i < r->arrays; i++) {
        oar_span place = oari_bucket_place(r, i);
        if (r->slot[i].array.data == NULL || place.count == 0)
            continue;
        OARI_TRY(oari_span_copy(&r->slot[i].array, &place));
        r->stats.copied_bytes += oari_span_bytes(&place);
    }
    return first ? learn_from_first(r) : OAR_OK;
}

oar_status oari_reducer_begin_rest(oar_reducer *r)
{
    if (r->arrays == 0)
        return OAR_OK;
    begin_pass(r);
    return oari_pieces_begin_rest(r);
}

oar_status oar_reducer_wait_at(const char *file, int line, oar_reducer *reducer)
{
    OARI_CALLED_FROM(file, line);
    oar_reducer *r = reducer;
    int64_t since = oari_now_ns();
    oar_status status;

    if (r == NULL)
        return oari_fail(OAR_E_ARG, "reducer_wait without a reducer");
    if (r->arrays == 0)
        return OAR_OK;
    status = oari_reducer_begin_rest(r);
    if (status == OAR_OK)
        status = end_pass(r, since);
    oari_reducer_reset(r);
    return status;
}

/* ---- making a reducer ---------------------------------------------------- */

/* Gives the device that all arrays are on. */
static oar_status check_arrays(int arrays, const oar_span *array,
                               oar_device *device)
{
    for (int i = 0; i < arrays; i++) {
        if (array[i].device.kind != array[0].device.kind ||
            array[i].device.index != array[0].device.index)
            return oari_fail(OAR_E_DEVICE,
                             "arrays 0 and %d of a reducer are on %s and %s: "
                             "all on one device",
                             i, oar_device_text(array[0].device).text,
                             oar_device_text(array[i].device).text);
        *device = array[i].device;
        if (array[i].dtype > OAR_BF16)
            return oari_fail(OAR_E_DTYPE,
                             "array %d of a reducer is %s: integers have no "
                             "mean",
                             i, oar_dtype_name(array[i].dtype));
        if (array[i].read_only && array[i].data != NULL)
            return oari_fail(OAR_E_ARG, "array %d of a reducer is read-only",
                             i);
    }
    return OAR_OK;
}

static oar_status take_arrays(oar_reducer *r, int arrays, const oar_span *array)
{
    size_t n = (size_t)arrays + 1;
    oari_bucket *old;
    int olds;

    r->slot = oari_alloc(n, sizeof *r->slot);
    r->order = oari_alloc(n, sizeof *r->order);
    r->came = oari_alloc(n, sizeof *r->came);
    r->flag = oari_alloc(n, 1);
    r->at = oari_alloc(n, sizeof *r->at);
    r->count = oari_alloc(n, sizeof *r->count);
    if (r->slot == NULL || r->order == NULL || r->came == NULL ||
        r->at == NULL || r->count == NULL || r->flag == NULL)
        return OAR_E_NOMEM;
    r->arrays = arrays;
    for (int i = 0; i < arrays; i++) {
        r->slot[i].array = array[i];
        r->order[i] = arrays - 1 - i; /* backward begins with the last one */
    }
    oari_buckets_set_limits(r);
    for (int i = 0; r->opts.names != NULL && i < arrays; i++)
        if ((r->slot[i].name = oari_strdup(r->opts.names[i])) == NULL)
            return OAR_E_NOMEM;
    r->opts.names = NULL;
    return oari_buckets_make(r, &old, &olds);
}

/* ---- comparing the ranks ------------------------------------------------- */

typedef struct array_list {
    const oar_span *array;
    const char *const *names; /* may be NULL */
} array_list;

static void describe_array(const void *of, int64_t index, char *line,
                           size_t bytes)
{
    const array_list *list = of;
    const oar_span *s = &list->array[index];

    snprintf(line, bytes, "%zu %s%s%s", s->count, oar_dtype_name(s->dtype),
             list->names != NULL ? " for " : "",
             list->names != NULL ? list->names[index] : "");
}

/* Without this check, arrays that differ would give wrong means, not errors. */
static oar_status agree_on_arrays(oar_group *group, int arrays,
                                  const oar_span *array,
                                  const oar_reducer_opts *opts)
{
    char options[256];
    oar_reducer_opts o;
    array_list list = { array, NULL };
    oari_manifest manifest = { .options = options,
                               .does = "make a reducer",
                               .has = "arrays",
                               .items = arrays,
                               .of = &list,
                               .describe = describe_array };

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    list.names = o.names;
    snprintf(options, sizeof options,
             "bucket_bytes %zu, first_bucket_bytes %zu, reorder %d, weighted "
             "%d, static_graph %d, canonical %d, hook %s",
             o.bucket_bytes, o.first_bucket_bytes, o.reorder != 0,
             o.weighted != 0, o.static_graph != 0, o.canonical != 0,
             o.hook != NULL ? "given" : "none");
    return oari_agree(&manifest, group);
}

oar_status oar_reducer_create_at(const char *file, int line, oar_group *group,
                                 int arrays, const oar_span *array,
                                 const oar_reducer_opts *opts,
                                 oar_reducer **reducer)
{
    OARI_CALLED_FROM(file, line);
    if (group == NULL || reducer == NULL || arrays < 0 ||
        (arrays > 0 && array == NULL))
        return oari_fail(OAR_E_ARG, "reducer_create without a %s",
                         group == NULL     ? "group"
                         : reducer == NULL ? "place for it"
                                           : "list of arrays");
    OARI_TRY(agree_on_arrays(group, arrays, array, opts));
    return oari_reducer_make(group, arrays, array, opts, reducer);
}

oar_status oari_reducer_make(oar_group *group, int arrays,
                             const oar_span *array,
                             const oar_reducer_opts *opts,
                             oar_reducer **reducer)
{
    oar_device device = oar_device_of(OAR_CPU, 0);
    oar_reducer_opts o;
    oar_reducer *r;
    oar_status status;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(check_arrays(arrays, array, &device));
    r = oari_alloc(1, sizeof *r);
    if (r == NULL)
        return OAR_E_NOMEM;
    r->group = group;
    r->device = device;
    r->opts = o;
    r->weight = 1;
    status = take_arrays(r, arrays, array);
    if (status == OAR_OK && o.hook != NULL) /* taken only by one that is made */
        status = oari_opts_read(&r->hook, sizeof r->hook, o.hook);
    if (status != OAR_OK) {
        oar_reducer_destroy(r);
        return status;
    }
    r->stats.size = sizeof r->stats;
    *reducer = r;
    return OAR_OK;
}

void oar_reducer_destroy(oar_reducer *reducer)
{
    oar_reducer *r = reducer;

    if (r == NULL)
        return;
    oari_reducer_reset(r);
    if (r->hook.forget != NULL)
        r->hook.forget(r->hook.arg, 1);
    for (int i = 0; i < r->arrays; i++)
        oari_free((char *)(uintptr_t)r->slot[i].name);
    oari_buckets_drop(r->bucket, r->buckets);
    oari_free(r->slot);
    oari_free(r->order);
    oari_free(r->came);
    oari_free(r->at);
    oari_free(r->count);
    oari_free(r->flag);
    oari_free(r);
}

oar_span oar_reducer_span(const oar_reducer *reducer, int array)
{
    if (reducer == NULL || array < 0 || array >= reducer->arrays)
        return oar_span_of(NULL, 0, OAR_F32);
    if (reducer->slot[array].array.data != NULL)
        return reducer->slot[array].array;
    return oari_bucket_place(reducer, array);
}

int oar_reducer_used(const oar_reducer *reducer, int array)
{
    return reducer != NULL && array >= 0 && array < reducer->arrays &&
           reducer->slot[array].used;
}

oar_status oar_reducer_weigh(oar_reducer *reducer, double weight)
{
    if (reducer == NULL || !reducer->opts.weighted)
        return oari_fail(OAR_E_ARG, "a weight for a reducer whose mean is not "
                                    "weighted");
    if (!(weight >= 0) || weight > 1e300)
        return oari_fail(OAR_E_ARG, "a weight of %g", weight);
    reducer->weight = weight;
    return OAR_OK;
}

oar_status oar_reducer_read_stats(const oar_reducer *reducer,
                                  oar_reducer_stats *stats)
{
    oar_reducer_stats now;

    if (reducer == NULL)
        return oari_fail(OAR_E_ARG, "reducer_read_stats without a reducer");
    now = reducer->stats;
    now.size = sizeof now;
    now.buckets = reducer->buckets;
    now.passes = reducer->passes;
    return oari_struct_give(stats, &now, sizeof now, "reducer stats");
}
