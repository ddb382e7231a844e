/* SPDX-License-Identifier: Apache-2.0 */
/* reducer: a pass over the buckets.
 *
 * A bucket is reduced as soon as the last of its arrays is ready, but never
 * before the bucket in front of it: so all ranks post in the same order,
 * whatever order their arrays come in. A large array's bucket goes in pieces,
 * each as soon as its elements are said to be there; on a rank that says
 * nothing of parts, all of them when the array is ready.
 */
#include "dist/reducer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"

static size_t bytes_of(const oar_span *span)
{
    return span->count * oar_dtype_size(span->dtype);
}

/* ---- one bucket, one piece ----------------------------------------------- */

static void note_done(void *arg, oar_status status)
{
    atomic_store(&((oari_piece *)arg)->done_ns, oari_now_ns());
}

/* An array that is not ready is zero, unless its owner has numbers for it. */
static oar_status fill_absent(oar_reducer *r, int array)
{
    oar_status status = OAR_OK;
    oar_span place = oari_bucket_place(r, array);

    r->slot[array].given = r->owner.absent != NULL &&
                           r->owner.absent(r->owner.arg, array, &status);
    if (status == OAR_OK && !r->slot[array].given && place.count != 0)
        memset(place.data, 0, bytes_of(&place));
    return status;
}

static oar_status fill_bucket(oar_reducer *r, const oari_bucket *b)
{
    for (int i = 0; i < b->is.arrays; i++) {
        oari_slot *s = &r->slot[b->is.array[i]];

        if (b->told > 0)
            s->given = 1;
        else if (!s->ready)
            OARI_TRY(fill_absent(r, b->is.array[i]));
    }
    return OAR_OK;
}

/* Before its first piece goes. */
static oar_status open_bucket(oar_reducer *r, oari_bucket *b)
{
    b->is.weighted = r->opts.weighted;
    b->is.canonical = r->opts.canonical;
    b->is.weight = r->weight;
    return fill_bucket(r, b);
}

/* The flags of all arrays are known when the last bucket goes. */
static oar_status post_flags(oar_reducer *r, oar_work **work)
{
    return oar_all_reduce(
        r->group, oar_span_of(r->flags, (size_t)r->arrays, OAR_F32), OAR_MAX,
        OAR_OPTS(oar_call_opts, .label = "used gradients"), work);
}

static oar_status scatter(oar_reducer *r, const oari_bucket *b, oar_work **work)
{
    oar_span mine = oari_bucket_slice(r, b->is.index, oar_group_rank(r->group));
    int beside = work != NULL || oar_group_overlaps(r->group);

    if (b->is.index == r->buckets - 1)
        OARI_TRY(post_flags(r, beside ? &r->flags_work : NULL));
    return oar_reduce_scatter(
        r->group, b->is.data, mine, oari_bucket_op(&b->is),
        OAR_OPTS(oar_call_opts, .label = "gradients", .weight = b->is.weight,
                 .canonical = b->is.canonical),
        work);
}

static oar_span span_of(const oari_bucket *b, const oari_piece *p)
{
    const oar_span *data = &b->is.data;

    return oar_span_of((unsigned char *)data->data +
                           p->first * oar_dtype_size(data->dtype),
                       p->end - p->first, data->dtype);
}

/* now: the caller waits anyway, so it may as well do the work itself, and the
 * engine's thread is not woken. */
static oar_status post(oar_reducer *r, const oari_bucket *b, oari_piece *p,
                       int now)
{
    oar_work **work = now && !oar_batch_is_open(r->group) ? NULL : &p->work;

    if (r->scatter)
        return scatter(r, b, work);
    if (r->hook.start != NULL)
        return r->hook.start(r->hook.arg, r->group, &b->is, &p->work);
    return oar_all_reduce(r->group, span_of(b, p), oari_bucket_op(&b->is),
                          OAR_OPTS(oar_call_opts, .label = "gradients",
                                   .weight = b->is.weight,
                                   .canonical = b->is.canonical),
                          work);
}

static int is_last_piece(const oar_reducer *r)
{
    const oari_bucket *b = &r->bucket[r->begun];

    return r->begun == r->buckets - 1 && b->begun == b->pieces - 1;
}

static oar_status watch(oari_piece *p)
{
    if (p->work != NULL)
        return oar_work_then(p->work, note_done, p);
    note_done(p, OAR_OK);
    return OAR_OK;
}

static oar_status begin_piece(oar_reducer *r, int now)
{
    oari_bucket *b = &r->bucket[r->begun];
    oari_piece *p = &b->piece[b->begun];
    oar_span data = span_of(b, p);

    if (b->begun == 0)
        OARI_TRY(open_bucket(r, b));
    if (is_last_piece(r))
        oari_flags_write(r);
    p->started_ns = oari_now_ns();
    atomic_store(&p->done_ns, 0);
    OARI_TRY(post(r, b, p, now));
    b->begun++;
    r->begun += b->begun == b->pieces;
    r->stats.reduced_bytes += bytes_of(&data);
    return watch(p);
}

/* The last piece has everybody's flags in it: it waits for all arrays. */
static int may_begin(const oar_reducer *r)
{
    const oari_bucket *b = &r->bucket[r->begun];

    if (is_last_piece(r) && r->owner.ends_there)
        return 0;
    if (b->ready >= b->expected)
        return 1;
    return b->told > 0 && b->piece[b->begun].end <= b->told &&
           !is_last_piece(r);
}

static oar_status begin_ready(oar_reducer *r)
{
    while (r->begun < r->buckets && may_begin(r))
        OARI_TRY(begin_piece(r, 0));
    return OAR_OK;
}

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
    if (r == NULL)
        return oari_fail(OAR_E_ARG, "reducer_ready without a reducer");
    if (array < 0 || array >= r->arrays)
        return oari_fail(OAR_E_ARG, "array %d of a reducer of %d", array,
                         r->arrays);
    if (r->slot[array].ready)
        return oari_fail(OAR_E_STATE, "array %d is ready twice in one pass",
                         array);
    if (r->slot[array].bucket < r->begun &&
        r->bucket[r->slot[array].bucket].told == 0)
        return oari_fail(OAR_E_STATE,
                         "array %d is ready, but was not in the first pass, "
                         "and the graph is said to be static",
                         array);
    return OAR_OK;
}

oar_status oar_reducer_ready(oar_reducer *reducer, int array)
{
    oari_slot *s;
    oar_span place;

    OARI_TRY(check_array(reducer, array));
    begin_pass(reducer);
    s = &reducer->slot[array];
    if (s->array.data != NULL) {
        place = oari_bucket_place(reducer, array);
        memcpy(place.data, s->array.data, bytes_of(&place));
        reducer->stats.copied_bytes += bytes_of(&place);
    }
    s->ready = s->given = 1;
    reducer->came[reducer->ready++] = array;
    reducer->bucket[s->bucket].ready += !s->skipped;
    return begin_ready(reducer);
}

oar_status oari_reducer_part_ready(oar_reducer *r, int array, size_t elements)
{
    const oari_slot *s = &r->slot[array];
    oari_bucket *b = &r->bucket[s->bucket];

    if (b->pieces == 1 || s->ready || s->skipped || s->array.data != NULL)
        return OAR_OK;
    begin_pass(r);
    b->told = elements < s->array.count ? elements : b->is.data.count;
    return begin_ready(r);
}

size_t oari_reducer_next_part(const oar_reducer *r, int array, size_t elements)
{
    const oari_slot *s = &r->slot[array];
    const oari_bucket *b = &r->bucket[s->bucket];

    for (int i = 0; i < b->pieces - 1; i++)
        if (b->piece[i].end > elements && b->piece[i].end < s->array.count)
            return b->piece[i].end;
    return s->array.count;
}

static oar_status wait_for_pieces(const oari_bucket *b)
{
    for (int i = 0; i < b->begun; i++)
        if (b->piece[i].work != NULL)
            OARI_TRY(oar_work_wait(b->piece[i].work));
    return OAR_OK;
}

/* Waits for all and lets hooks finish; the first failure counts. */
static oar_status wait_for_all(oar_reducer *r)
{
    oar_status status = OAR_OK;

    if (r->flags_work != NULL)
        status = oar_work_wait(r->flags_work);
    for (int i = 0; i < r->begun && status == OAR_OK; i++) {
        oari_bucket *b = &r->bucket[i];
        status = wait_for_pieces(b);
        if (status == OAR_OK && r->hook.finish != NULL) {
            status = r->hook.finish(r->hook.arg, r->group, &b->is);
            note_done(b->piece, status);
        }
    }
    return status;
}

/* What a piece adds to the time that ended at *end. */
static int64_t time_beyond(const oari_piece *p, int64_t *end)
{
    int64_t from = p->started_ns > *end ? p->started_ns : *end;
    int64_t to = atomic_load(&p->done_ns);

    if (to <= from)
        return 0;
    *end = to;
    return to - from;
}

/* How long at least one piece was under way. */
static double time_under_way(const oar_reducer *r)
{
    int64_t sum = 0, end = 0;

    for (int i = 0; i < r->begun; i++)
        for (int k = 0; k < r->bucket[i].begun; k++)
            sum += time_beyond(&r->bucket[i].piece[k], &end);
    return (double)sum * 1e-9;
}

static void copy_out(oar_reducer *r)
{
    for (int i = 0; i < r->arrays; i++) {
        oar_span place = oari_bucket_place(r, i);
        if (r->slot[i].array.data == NULL || place.count == 0)
            continue;
        memcpy(r->slot[i].array.data, place.data, bytes_of(&place));
        r->stats.copied_bytes += bytes_of(&place);
    }
}

/* Waits for it, without a word about how it ended. */
static void let_go(oar_work **work)
{
    oar_error keep = *oar_last_error();

    if (*work == NULL)
        return;
    oar_work_wait(*work);
    oar_work_release(*work);
    oari_fail_with(&keep);
    *work = NULL;
}

static void reset_bucket(oari_bucket *b)
{
    for (int i = 0; i < b->pieces; i++)
        let_go(&b->piece[i].work);
    b->ready = b->begun = 0;
    b->told = 0;
}

void oari_reducer_reset(oar_reducer *r)
{
    for (int i = 0; i < r->buckets; i++)
        reset_bucket(&r->bucket[i]);
    let_go(&r->flags_work);
    for (int i = 0; i < r->arrays; i++)
        r->slot[i].ready = 0;
    r->begun = r->ready = 0;
}

/* ---- after the first pass ------------------------------------------------ */

/* Those that did not come go to the end. */
static oar_status agree_on_order(oar_reducer *r)
{
    int n = r->ready;

    for (int i = r->arrays - 1; i >= 0; i--)
        if (!r->slot[i].ready)
            r->came[n++] = i;
    return oar_broadcast(
        r->group, oar_span_of(r->came, (size_t)r->arrays, OAR_I32), 0,
        OAR_OPTS(oar_call_opts, .label = "order of gradients"), NULL);
}

static void move_numbers(const oar_reducer *r, const oari_slot *from,
                         const oari_bucket *old)
{
    for (int i = 0; i < r->arrays; i++) {
        const oar_span *data = &old[from[i].bucket].is.data;
        oar_span to = oari_bucket_place(r, i);
        if (to.count != 0)
            memcpy(to.data,
                   (unsigned char *)data->data +
                       from[i].at * oar_dtype_size(data->dtype),
                   bytes_of(&to));
    }
}

static oar_status cut_anew(oar_reducer *r, oari_slot *before)
{
    oari_bucket *old = NULL;
    int olds = 0;
    oar_status status;

    memcpy(before, r->slot, (size_t)r->arrays * sizeof *before);
    memcpy(r->order, r->came, (size_t)r->arrays * sizeof *r->order);
    status = oari_buckets_cut(r, &old, &olds);
    if (status != OAR_OK) {
        memcpy(r->slot, before, (size_t)r->arrays * sizeof *before);
        return status;
    }
    if (r->hook.forget != NULL)
        r->hook.forget(r->hook.arg, 0);
    move_numbers(r, before, old);
    if (r->owner.moved != NULL)
        status = r->owner.moved(r->owner.arg);
    oari_buckets_drop(old, olds);
    return status;
}

static oar_status learn_from_first(oar_reducer *r)
{
    oari_slot *before;
    oar_status status;

    for (int i = 0; r->opts.static_graph && i < r->arrays; i++) {
        oari_slot *s = &r->slot[i];
        s->skipped = !s->ready;
        r->bucket[s->bucket].expected -= s->skipped;
    }
    if (!r->opts.reorder)
        return OAR_OK;
    before = oari_alloc((size_t)r->arrays + 1, sizeof *before);
    if (before == NULL)
        return OAR_E_NOMEM;
    status = agree_on_order(r);
    oari_reducer_reset(r);
    if (status == OAR_OK)
        status = cut_anew(r, before);
    oari_free(before);
    return status;
}

/* ---- the end of a pass ----------------------------------------------------
 */

static oar_status end_pass(oar_reducer *r, int64_t since)
{
    OARI_TRY(wait_for_all(r));
    r->stats.exposed_s = (double)(oari_now_ns() - since) * 1e-9;
    r->stats.communication_s = time_under_way(r);
    if (r->stats.exposed_s > r->stats.communication_s)
        r->stats.exposed_s = r->stats.communication_s;
    oari_flags_read(r);
    copy_out(r);
    if (r->passes++ == 0)
        return learn_from_first(r);
    return OAR_OK;
}

oar_status oari_reducer_begin_rest(oar_reducer *r)
{
    if (r->arrays == 0)
        return OAR_OK;
    begin_pass(r);
    while (r->begun < r->buckets)
        OARI_TRY(begin_piece(r, is_last_piece(r)));
    return OAR_OK;
}

oar_status oar_reducer_wait(oar_reducer *reducer)
{
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

/* ---- making and asking --------------------------------------------------- */

static oar_status check_arrays(int arrays, const oar_span *array)
{
    for (int i = 0; i < arrays; i++)
        if (array[i].dtype > OAR_BF16)
            return oari_fail(OAR_E_DTYPE,
                             "array %d of a reducer is %s: there is no mean "
                             "of whole numbers",
                             i, oar_dtype_name(array[i].dtype));
    return OAR_OK;
}

static oar_status take_names(oar_reducer *r)
{
    for (int i = 0; r->opts.names != NULL && i < r->arrays; i++) {
        size_t bytes = strlen(r->opts.names[i]) + 1;
        char *name = oari_alloc(bytes, 1);
        if (name == NULL)
            return OAR_E_NOMEM;
        r->slot[i].name = memcpy(name, r->opts.names[i], bytes);
    }
    r->opts.names = NULL;
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
    r->at = oari_alloc(n, sizeof *r->at);
    r->count = oari_alloc(n, sizeof *r->count);
    r->flags = oari_alloc(n, sizeof *r->flags);
    if (r->flags == NULL || r->slot == NULL || r->order == NULL ||
        r->came == NULL || r->at == NULL || r->count == NULL)
        return OAR_E_NOMEM;
    r->arrays = arrays;
    for (int i = 0; i < arrays; i++) {
        r->slot[i].array = array[i];
        r->order[i] = arrays - 1 - i; /* backward comes to the last one first */
    }
    oari_buckets_settle(r);
    OARI_TRY(take_names(r));
    return oari_buckets_cut(r, &old, &olds);
}

oar_status oar_reducer_create(oar_group *group, int arrays,
                              const oar_span *array,
                              const oar_reducer_opts *opts,
                              oar_reducer **reducer)
{
    return oari_reducer_make(group, arrays, array, opts, 0, reducer);
}

oar_status oari_reducer_make(oar_group *group, int arrays,
                             const oar_span *array,
                             const oar_reducer_opts *opts, int scatter,
                             oar_reducer **reducer)
{
    oar_reducer_opts o;
    oar_reducer *r;
    oar_status status;

    if (group == NULL || reducer == NULL || arrays < 0 ||
        (arrays > 0 && array == NULL))
        return oari_fail(OAR_E_ARG, "reducer_create without a %s",
                         group == NULL     ? "group"
                         : reducer == NULL ? "place for it"
                                           : "list of arrays");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(check_arrays(arrays, array));
    r = oari_alloc(1, sizeof *r);
    if (r == NULL)
        return OAR_E_NOMEM;
    r->group = group;
    r->opts = o;
    r->scatter = scatter;
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
    oari_free(r->flags);
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
