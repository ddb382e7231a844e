/* SPDX-License-Identifier: Apache-2.0 */
/* shard_reduce: from whole gradients to the mean in each rank's shards.
 *
 * Units are reduced in one order on all ranks: at first the last unit first,
 * after the first pass in the order in which they got ready on rank 0. A unit
 * is posted when its gradients are ready and all units before it in that order
 * are posted. The end of a pass posts the rest, with zeros for what is not
 * ready.
 *
 * Memory for gradients is bounded: with two reductions under way, the next unit
 * waits for the older one; with one, where operations do not go on beside the
 * caller's work and a second buffer would hide nothing. It must not wait for
 * ever. A rank that has no
 * gradient for an array posts its unit at the end of the pass, and may need
 * this rank before, to gather a unit. So where units are gathered the wait is
 * short, and it is left out after passes in which ranks had different
 * gradients.
 */
#include <string.h>

#include "base/call_site.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"
#include "parallel/shards/shards.h"

enum { KEY_REDUCE = 3, KEY_FLAGS = 4, KEY_WEIGHT = 5, KEY_ORDER = 6 };
enum { PATIENCE_MS = 1000 };

static oar_span whole_grad(oar_device device, const oari_flat *flat)
{
    return oari_span_on(device, flat->grad->data, flat->count,
                        flat->whole_dtype);
}

/* ---- after a reduction --------------------------------------------------- */

static oar_status post_replicas(oar_shards *s, oari_shard_unit *u)
{
    oar_reduce_op op = s->opts.weighted ? OAR_WEIGHTED_MEAN : OAR_AVG;
    oari_unit_name name = oari_shards_unit_name(s, (int)(u - s->unit));
    oar_status status;

    u->replicated = 1;
    for (int f = u->first; f < u->first + u->flats; f++) {
        oari_flat *flat = &s->flat[f];

        if (flat->frozen)
            continue;
        oar_work_release(flat->reduce);
        flat->reduce = NULL;
        oari_busy_begin(&s->busy);
        status = oar_all_reduce(s->replicas, oari_mean_of(s, flat), op,
                                OAR_OPTS(oar_call_opts, .label = name.text,
                                         .weight = s->group_weight,
                                         .canonical = s->opts.canonical,
                                         .key = oari_shards_key(KEY_REDUCE, f)),
                                &flat->reduce);
        OARI_TRY(oari_busy_end(&s->busy, status, flat->reduce));
    }
    return OAR_OK;
}

/* Waits for the operations of a unit; *done: whether they are. */
static oar_status wait_for_unit(oar_shards *s, const oari_shard_unit *u,
                                int64_t timeout_ms, int *done)
{
    *done = 0;
    for (int f = u->first; f < u->first + u->flats; f++) {
        oar_status status = OAR_OK;

        if (s->flat[f].reduce != NULL)
            status = oari_shards_await(s, s->flat[f].reduce, timeout_ms);
        if (status == OAR_E_TIMEOUT && timeout_ms >= 0 &&
            oar_group_fault(s->reduce, NULL) == OAR_OK)
            return OAR_OK;
        OARI_TRY(status);
    }
    *done = 1;
    return OAR_OK;
}

static oar_status close_unit(oar_shards *s, oari_shard_unit *u)
{
    for (int f = u->first; f < u->first + u->flats; f++) {
        oari_flat *flat = &s->flat[f];

        if (flat->frozen)
            continue;
        oar_work_release(flat->reduce);
        flat->reduce = NULL;
        OARI_TRY(oari_mean_give(s, flat));
        OARI_TRY(oari_buffer_give_back(&s->grads_pool, flat->mean));
        OARI_TRY(oari_buffer_give_back(&s->grads_pool, flat->wide));
        flat->mean = flat->wide = NULL;
        if (s->opts.stage != OAR_ZERO_STAGE_1) {
            OARI_TRY(oari_buffer_give_back(&s->grads_pool, flat->grad));
            flat->grad = NULL;
        }
    }
    u->open = s->opts.stage == OAR_ZERO_STAGE_1;
    u->replicated = 0;
    return OAR_OK;
}

/* Brings the oldest unit that is under way to its end, if that takes no longer
 * than the timeout (below 0: none). */
static oar_status settle_oldest(oar_shards *s, int64_t timeout_ms, int *done)
{
    oari_shard_unit *u = &s->unit[s->order[s->settled]];

    OARI_TRY(wait_for_unit(s, u, timeout_ms, done));
    if (*done && s->replicas != NULL && !u->replicated) {
        if (s->weight_work != NULL)
            OARI_TRY(oar_work_wait(s->weight_work));
        OARI_TRY(post_replicas(s, u));
        OARI_TRY(wait_for_unit(s, u, timeout_ms, done));
    }
    if (!*done)
        return OAR_OK;
    s->settled++;
    return close_unit(s, u);
}

/* ---- posting ------------------------------------------------------------- */

static int gathers_units(const oar_shards *s)
{
    return !s->resident && s->offload == NULL &&
           (s->gather_group != NULL || s->local != NULL);
}

/* Gives a unit memory for its gradients. */
static oar_status open_unit(oar_shards *s, int unit)
{
    oari_shard_unit *u = &s->unit[unit];
    int may_block = s->ending || !gathers_units(s), done = 1;
    int64_t since = oari_now_ns();

    while (s->posted - s->settled >= s->most_under_way && !s->impatient &&
           done) {
        OARI_TRY(settle_oldest(s, may_block ? -1 : PATIENCE_MS, &done));
        s->impatient = !done;
    }
    if (!s->ending) /* else it is part of a longer wait */
        s->stats.exposed_s += (double)(oari_now_ns() - since) * 1e-9;
    for (int f = u->first; f < u->first + u->flats; f++) {
        oari_flat *flat = &s->flat[f];

        if (!flat->frozen && flat->grad == NULL)
            OARI_TRY(oari_buffer_take(
                &s->grads_pool, flat->count * oar_dtype_size(flat->whole_dtype),
                &flat->grad));
    }
    u->open = 1;
    return OAR_OK;
}

static oar_status clear_missing(oar_shards *s, int unit)
{
    for (int i = 0; i < s->arrays; i++) {
        const oari_sharded_array *a = &s->array[i];
        const oari_flat *flat = &s->flat[a->flat];
        size_t size = oar_dtype_size(flat->whole_dtype);

        if (a->unit == unit && !a->ready && !flat->frozen) {
            oar_span missing = oari_span_on(
                s->device, (unsigned char *)flat->grad->data + a->at * size,
                a->count, flat->whole_dtype);
            OARI_TRY(oari_span_clear(&missing));
        }
    }
    return OAR_OK;
}

/* The weight of all ranks of this group counts in the mean over replicas. */
static oar_status post_weight(oar_shards *s)
{
    s->group_weight = s->weight;
    return oar_all_reduce(
        s->reduce, oar_span_of(&s->group_weight, 1, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "weights",
                 .key = oari_shards_key(KEY_WEIGHT, s->passes)),
        &s->weight_work);
}

/* Posts the next unit of the order. */
static oar_status post_unit(oar_shards *s)
{
    int unit = s->order[s->posted];
    oari_shard_unit *u = &s->unit[unit];
    oari_unit_name name = oari_shards_unit_name(s, unit);

    if (s->posted == 0 && s->replicas != NULL && s->opts.weighted)
        OARI_TRY(post_weight(s));
    if (!u->open)
        OARI_TRY(open_unit(s, unit));
    if (u->ready < u->trained)
        OARI_TRY(clear_missing(s, unit));
    for (int f = u->first; f < u->first + u->flats; f++) {
        oari_flat *flat = &s->flat[f];
        const oar_call_opts *opts;
        oar_status status;
        oar_span whole;

        if (flat->frozen)
            continue;
        whole = whole_grad(s->device, flat);
        OARI_TRY(oari_mean_open(s, flat));
        oari_busy_begin(&s->busy);
        opts = OAR_OPTS(oar_call_opts, .label = name.text, .weight = s->weight,
                        .canonical = s->opts.canonical,
                        .key = oari_shards_key(KEY_REDUCE, f));
        if (oari_shards_on_gpu(s))
            status = oari_gpu_post_reduce(s, flat, oari_mean_of(s, flat), opts);
        else
            status = oar_reduce_scatter_v(
                s->reduce, whole, flat->counts, oari_mean_of(s, flat),
                s->opts.weighted ? OAR_WEIGHTED_MEAN : OAR_AVG, opts,
                &flat->reduce);
        OARI_TRY(oari_busy_end(&s->busy, status, flat->reduce));
        s->stats.reduced_bytes += oari_span_bytes(&whole);
    }
    s->posted++;
    s->stats.reductions++;
    return OAR_OK;
}

static oar_status post_ready_units(oar_shards *s)
{
    while (s->posted < s->units) {
        const oari_shard_unit *u = &s->unit[s->order[s->posted]];

        if (u->ready < u->trained)
            break;
        OARI_TRY(post_unit(s));
    }
    return OAR_OK;
}

/* ---- a pass -------------------------------------------------------------- */

static void begin_pass(oar_shards *s)
{
    if (s->in_pass)
        return;
    s->in_pass = 1;
    s->impatient = s->uneven && gathers_units(s);
}

oar_status oari_shards_open_grads(oar_shards *s, int unit)
{
    begin_pass(s);
    if (!s->unit[unit].open && open_unit(s, unit) != OAR_OK)
        return oari_shards_break(s);
    return OAR_OK;
}

oar_span oar_shards_grad(oar_shards *shards, int array)
{
    const oar_span none = oar_span_of(NULL, 0, OAR_F32);
    const oari_sharded_array *a;
    const oari_flat *flat;

    if (oari_shards_check(shards, "shards_grad") != OAR_OK)
        return none;
    if (array < 0 || array >= shards->arrays) {
        oari_fail(OAR_E_ARG, "shards_grad: array %d of %d", array,
                  shards->arrays);
        return none;
    }
    a = &shards->array[array];
    flat = &shards->flat[a->flat];
    if (flat->frozen || a->ready)
        return none;
    if (oari_shards_open_grads(shards, a->unit) != OAR_OK)
        return none;
    return oari_span_on(shards->device,
                        (unsigned char *)flat->grad->data +
                            a->at * oar_dtype_size(flat->whole_dtype),
                        a->count, flat->whole_dtype);
}

oar_status oar_shards_ready_at(const char *file, int line, oar_shards *shards,
                               int array)
{
    OARI_CALLED_FROM(file, line);
    oar_shards *s = shards;
    oari_sharded_array *a;
    oari_shard_unit *u;

    OARI_TRY(oari_shards_check(s, "shards_ready"));
    if (array < 0 || array >= s->arrays || s->flat[s->array[array].flat].frozen)
        return oari_fail(OAR_E_ARG, "shards_ready: array %d of %d%s", array,
                         s->arrays,
                         array < 0 || array >= s->arrays ? "" : " is frozen");
    a = &s->array[array];
    u = &s->unit[a->unit];
    if (a->ready || !u->open)
        return oari_fail(OAR_E_STATE, "shards_ready: array %d %s", array,
                         a->ready ? "is ready twice in one pass"
                                  : "has not been asked for by shards_grad");
    begin_pass(s);
    a->ready = 1;
    if (++u->ready == u->trained)
        s->came[s->completed++] = a->unit;
    if (post_ready_units(s) != OAR_OK)
        return oari_shards_break(s);
    return OAR_OK;
}

/* Two flags for each array: some rank has a gradient; some rank has none. */
static oar_status post_flags(oar_shards *s)
{
    int counts = !s->opts.weighted || s->weight > 0;

    for (int i = 0; i < s->arrays; i++) {
        s->flags[i] = s->array[i].ready && counts;
        s->flags[s->arrays + i] = !s->array[i].ready;
    }
    return oar_all_reduce(
        s->reduce, oar_span_of(s->flags, 2 * (size_t)s->arrays, OAR_U8),
        OAR_MAX,
        OAR_OPTS(oar_call_opts, .label = "used gradients",
                 .key = oari_shards_key(KEY_FLAGS, s->passes)),
        NULL);
}

/* Over replicas, too: a gradient that another group of ranks had is in the
 * mean. */
static oar_status read_flags(oar_shards *s)
{
    if (s->replicas != NULL)
        OARI_TRY(oar_all_reduce(
            s->replicas, oar_span_of(s->flags, 2 * (size_t)s->arrays, OAR_U8),
            OAR_MAX,
            OAR_OPTS(oar_call_opts, .label = "used gradients",
                     .key = oari_shards_key(KEY_FLAGS, s->passes)),
            NULL));
    s->uneven = 0;
    for (int i = 0; i < s->arrays; i++) {
        s->array[i].used = s->flags[i];
        s->uneven |= s->flags[i] && s->flags[s->arrays + i];
    }
    for (int i = 0; i < s->shards; i++)
        if (s->array[s->shard[i].array].used)
            OARI_TRY(oar_tensor_mark_grad(s->shard[i].tensor));
    return OAR_OK;
}

/* Rank 0's order counts from the second pass on. */
static oar_status learn_order(oar_shards *s)
{
    int n = s->completed;

    for (int u = s->units - 1; u >= 0; u--)
        if (s->unit[u].ready < s->unit[u].trained || s->unit[u].trained == 0)
            s->came[n++] = u;
    OARI_TRY(oar_broadcast(
        s->reduce, oar_span_of(s->came, (size_t)s->units, OAR_I32), 0,
        OAR_OPTS(oar_call_opts, .label = "order of gradients",
                 .key = oari_shards_key(KEY_ORDER, 0)),
        NULL));
    memcpy(s->order, s->came, (size_t)s->units * sizeof *s->order);
    return OAR_OK;
}

static oar_status end_pass(oar_shards *s)
{
    int done;

    begin_pass(s);
    s->ending = 1; /* nobody needs this rank to gather a unit */
    s->impatient = 0;
    while (s->posted < s->units)
        OARI_TRY(post_unit(s));
    if (!oari_shards_on_gpu(s)) /* ranks then need not read units any more */
        OARI_TRY(post_flags(s));
    while (s->settled < s->posted)
        OARI_TRY(settle_oldest(s, -1, &done));
    if (oari_shards_on_gpu(s)) {
        if (s->opts.host_state)
            OARI_TRY(oari_offload_wait(s));
        else if (s->local != NULL) /* ranks have units in common: as above */
            OARI_TRY(oari_gpu_fence(s));
        OARI_TRY(post_flags(s));
    }
    OARI_TRY(read_flags(s));
    if (s->passes++ == 0)
        OARI_TRY(learn_order(s));
    oar_work_release(s->weight_work);
    s->weight_work = NULL;
    for (int i = 0; i < s->arrays; i++)
        s->array[i].ready = 0;
    for (int u = 0; u < s->units; u++)
        s->unit[u].ready = 0;
    s->posted = s->settled = s->completed = s->in_pass = s->ending = 0;
    return OAR_OK;
}

oar_status oar_shards_wait_at(const char *file, int line, oar_shards *shards)
{
    OARI_CALLED_FROM(file, line);
    int64_t since = oari_now_ns();

    OARI_TRY(oari_shards_check(shards, "shards_wait"));
    if (end_pass(shards) != OAR_OK)
        return oari_shards_break(shards);
    shards->stats.exposed_s += (double)(oari_now_ns() - since) * 1e-9;
    return OAR_OK;
}

void oari_reductions_end(oar_shards *s)
{
    for (int f = 0; f < s->flats; f++)
        if (s->flat[f].reduce != NULL) {
            oar_work_wait(s->flat[f].reduce);
            oar_work_release(s->flat[f].reduce);
            s->flat[f].reduce = NULL;
        }
    if (s->weight_work != NULL) {
        oar_work_wait(s->weight_work);
        oar_work_release(s->weight_work);
    }
    oari_buffers_free(&s->grads_pool);
}
