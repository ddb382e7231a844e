/* SPDX-License-Identifier: Apache-2.0 */
/* shard_gather: makes units whole and lets them go.
 *
 * A rank gathers with the ranks of its gather group. Where the ranks of a host
 * have one copy in common, they wait for each other when all have gathered, and
 * a buffer is not filled again before all of them have let go of it.
 *
 * The units that are gathered ahead are those that followed in the last pass,
 * which is the same on all ranks because all make the same calls.
 */
#include <stdio.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/shards/shards.h"

enum { KEY_GATHER = 1, KEY_PUBLISH = 2, KEY_ARRAY = 7 };

/* ---- one unit ------------------------------------------------------------ */

void *oari_shards_whole(const oar_shards *s, const oari_flat *flat)
{
    if (s->resident)
        return (unsigned char *)oar_storage_data(s->whole) + flat->whole_at;
    return flat->whole != NULL ? flat->whole->data : NULL;
}

/* Returns this rank's part of a flat in its whole memory. */
static oar_span part_of_whole(const oar_shards *s, const oari_flat *flat)
{
    size_t at = flat->first * oar_dtype_size(flat->whole_dtype);

    return oari_span_on(s->device,
                        (unsigned char *)oari_shards_whole(s, flat) + at,
                        flat->counts[s->part], flat->whole_dtype);
}

/* Copies this rank's part to where the flat is whole, converted. */
static oar_status copy_part(const oar_shards *s, const oari_flat *flat)
{
    oar_span mine = oari_shards_part(s, flat), to = part_of_whole(s, flat);

    if (oari_shards_on_gpu(s)) {
        oari_numbers whole = oari_whole_numbers(s, flat);
        oari_numbers part = oari_part_numbers(s, flat);
        return oari_numbers_copy(&whole, &part);
    }
    if (mine.count != 0)
        oari_convert(to.data, to.dtype, mine.data, mine.dtype, mine.count);
    return OAR_OK;
}

/* Posts the gather of a flat into its whole memory. If shards are apart, or the
 * flat is always whole, this rank's part is there already. */
static oar_status post_gather(oar_shards *s, oari_flat *flat, int kind,
                              oar_work **work)
{
    size_t size = oar_dtype_size(flat->whole_dtype);
    size_t from = oari_flat_part_first(flat, s->gather_first), count = 0;
    const size_t *counts = flat->counts + s->gather_first;
    oar_span mine =
        s->apart ? part_of_whole(s, flat) : oari_shards_part(s, flat);
    oar_span whole;
    oari_unit_name name = oari_shards_unit_name(s, flat->unit);
    oar_status status;

    for (int i = 0; i < oar_group_size(s->gather_group); i++)
        count += counts[i];
    whole = oari_span_on(
        s->device, (unsigned char *)oari_shards_whole(s, flat) + from * size,
        count, flat->whole_dtype);
    s->stats.gathered_bytes += (count - mine.count) * size;
    oari_busy_begin(&s->busy);
    status =
        oar_all_gather_v(s->gather_group, mine, whole, counts,
                         OAR_OPTS(oar_call_opts, .label = name.text,
                                  .key = oari_shards_key(kind, flat - s->flat)),
                         work);
    return oari_busy_end(&s->busy, status, work != NULL ? *work : NULL);
}

/* now: the caller waits for it at once, and does the work itself. */
static oar_status begin_gather(oar_shards *s, int unit, int now)
{
    oari_shard_unit *u = &s->unit[unit];

    u->coming = 1;
    s->stats.gathers++;
    if (s->offload != NULL)
        return oari_offload_begin(s, unit);
    for (int f = u->first; f < u->first + u->flats; f++) {
        oari_flat *flat = &s->flat[f];
        size_t bytes = flat->count * oar_dtype_size(flat->whole_dtype);

        OARI_TRY(oari_buffer_take(&s->arrays_pool, bytes, &flat->whole));
        if (s->apart || s->gather_group == NULL)
            OARI_TRY(copy_part(s, flat));
        if (s->gather_group != NULL)
            OARI_TRY(
                post_gather(s, flat, KEY_GATHER, now ? NULL : &flat->gather));
    }
    return OAR_OK;
}

static oar_status wait_for_work(const oar_shards *s, oar_work **work)
{
    oar_status status;

    if (*work == NULL)
        return OAR_OK;
    status = oari_shards_await(s, *work, -1);
    oar_work_release(*work);
    *work = NULL;
    return status;
}

static oar_status finish_gather(oar_shards *s, int unit)
{
    oari_shard_unit *u = &s->unit[unit];

    for (int f = u->first; f < u->first + u->flats; f++)
        OARI_TRY(wait_for_work(s, &s->flat[f].gather));
    if (s->offload != NULL)
        OARI_TRY(oari_offload_finish(s, unit));
    if (s->local != NULL && !oari_shards_on_gpu(s)) {
        oari_unit_name name = oari_shards_unit_name(s, unit);
        OARI_TRY(oar_barrier(s->local,
                             OAR_OPTS(oar_call_opts, .label = name.text,
                                      .key = oari_shards_key(KEY_GATHER, unit)),
                             NULL));
    }
    u->coming = 0;
    u->here = 1;
    return OAR_OK;
}

/* Lets go of a unit's memory; its gather has ended, well or not. */
static oar_status drop_unit(oar_shards *s, int unit)
{
    oari_shard_unit *u = &s->unit[unit];
    oar_status status = OAR_OK;

    for (int f = u->first; f < u->first + u->flats; f++) {
        oari_whole_buffer *whole = s->flat[f].whole;

        s->flat[f].whole = NULL;
        if (status == OAR_OK)
            status = oari_buffer_give_back(&s->arrays_pool, whole);
    }
    u->here = u->coming = 0;
    return status;
}

/* ---- the order of units -------------------------------------------------- */

/* Makes the order so far the one to go by, and begins a new one. */
static void begin_order(oar_shards *s)
{
    int *before = s->gathered_before;

    s->gathered_before = s->gathered;
    s->gathers_before = s->gathers;
    s->gathered = before;
    s->gathers = s->position = 0;
}

/* Notes that a unit was asked for. A program that only evaluates never
 * publishes: its order begins again where it would grow without end. */
static void note_unit(oar_shards *s, int unit)
{
    if (s->gathers == 4 * s->units)
        begin_order(s);
    s->gathered[s->gathers++] = unit;
    for (int i = s->position; i < s->gathers_before; i++)
        if (s->gathered_before[i] == unit) {
            s->position = i + 1;
            return;
        }
}

static oar_status gather_ahead(oar_shards *s)
{
    int ahead = s->opts.prefetch;

    if (s->gather_group == NULL && s->offload == NULL)
        return OAR_OK;
    for (int i = s->position; i < s->gathers_before && ahead > 0; i++) {
        int unit = s->gathered_before[i];
        const oari_shard_unit *u = &s->unit[unit];

        ahead--;
        if (!u->here && !u->coming)
            OARI_TRY(begin_gather(s, unit, 0));
    }
    return OAR_OK;
}

/* ---- public calls -------------------------------------------------------- */

static oar_status check_unit(const oar_shards *s, int unit, const char *call)
{
    OARI_TRY(oari_shards_check(s, call));
    if (unit < 0 || unit >= s->units)
        return oari_fail(OAR_E_ARG, "%s: unit %d of %d", call, unit, s->units);
    return OAR_OK;
}

static oar_status make_whole(oar_shards *s, int unit)
{
    if (!s->unit[unit].coming)
        OARI_TRY(begin_gather(s, unit, 1));
    return finish_gather(s, unit);
}

oar_status oar_shards_unshard_at(const char *file, int line, oar_shards *shards,
                                 int unit)
{
    OARI_CALLED_FROM(file, line);
    oar_shards *s = shards;
    int64_t since = oari_now_ns();

    OARI_TRY(check_unit(s, unit, "shards_unshard"));
    if (!s->unit[unit].here && !s->resident) {
        if (make_whole(s, unit) != OAR_OK)
            return oari_shards_break(s);
        s->stats.exposed_s += (double)(oari_now_ns() - since) * 1e-9;
    }
    if (!s->resident && s->unit[unit].users == 0) {
        note_unit(s, unit);
        if (gather_ahead(s) != OAR_OK)
            return oari_shards_break(s);
    }
    s->unit[unit].users++;
    return OAR_OK;
}

oar_status oar_shards_prefetch_at(const char *file, int line,
                                  oar_shards *shards, int unit)
{
    OARI_CALLED_FROM(file, line);
    OARI_TRY(check_unit(shards, unit, "shards_prefetch"));
    if (shards->resident || shards->unit[unit].here ||
        shards->unit[unit].coming)
        return OAR_OK;
    if (begin_gather(shards, unit, 0) != OAR_OK)
        return oari_shards_break(shards);
    return OAR_OK;
}

oar_status oar_shards_reshard_at(const char *file, int line, oar_shards *shards,
                                 int unit)
{
    OARI_CALLED_FROM(file, line);
    oari_shard_unit *u;

    OARI_TRY(check_unit(shards, unit, "shards_reshard"));
    u = &shards->unit[unit];
    if (u->users == 0)
        return oari_fail(OAR_E_STATE,
                         "shards_reshard of %s, which is not whole by an "
                         "unshard",
                         oari_shards_unit_name(shards, unit).text);
    if (--u->users > 0 || shards->resident)
        return OAR_OK;
    if (drop_unit(shards, unit) != OAR_OK)
        return oari_shards_break(shards);
    return OAR_OK;
}

oar_span oar_shards_array(const oar_shards *shards, int array)
{
    const oari_sharded_array *a;
    const oari_flat *flat;
    unsigned char *data;

    if (shards == NULL || array < 0 || array >= shards->arrays)
        return oar_span_of(NULL, 0, OAR_F32);
    a = &shards->array[array];
    flat = &shards->flat[a->flat];
    if (!shards->resident && shards->unit[a->unit].users == 0)
        return oari_span_on(shards->device, NULL, a->count, flat->whole_dtype);
    data = oari_shards_whole(shards, flat);
    return oari_span_on(shards->device,
                        data + a->at * oar_dtype_size(flat->whole_dtype),
                        a->count, flat->whole_dtype);
}

oar_status oari_shards_gather_array(oar_shards *s, int array, void *to)
{
    const oari_sharded_array *a = &s->array[array];
    const oari_flat *flat = &s->flat[a->flat];
    size_t *counts = oari_alloc((size_t)s->ranks, sizeof *counts);
    oar_span mine = oari_shards_part(s, flat);
    size_t first = 0;
    oar_status status = OAR_E_NOMEM;
    char label[80];

    for (int p = 0; counts != NULL && p < s->ranks; p++)
        oari_flat_range(s, array, p, p == s->part ? &first : &(size_t){ 0 },
                        &counts[p]);
    snprintf(label, sizeof label, "array %d%s%.50s", array,
             a->name != NULL ? ", " : "", a->name != NULL ? a->name : "");
    if (counts != NULL) {
        if (counts[s->part] > 0)
            mine.data =
                (unsigned char *)mine.data +
                (a->at + first - flat->first) * oar_dtype_size(flat->dtype);
        mine.count = counts[s->part];
        status = oar_all_gather_v(
            s->reduce, mine,
            oari_span_on(s->shard_device, to, a->count, flat->dtype), counts,
            OAR_OPTS(oar_call_opts, .label = label,
                     .key = oari_shards_key(KEY_ARRAY, array)),
            NULL);
    }
    oari_free(counts);
    return status == OAR_OK ? OAR_OK : oari_shards_break(s);
}

/* ---- publish ------------------------------------------------------------- */

/* Brings memory that is always whole up to date: this rank's part, if shards
 * are apart, and those of other hosts or of all other ranks. */
static oar_status gather_resident(oar_shards *s)
{
    oar_status status = OAR_OK;

    for (int f = 0; s->apart && f < s->flats; f++)
        OARI_TRY(copy_part(s, &s->flat[f]));
    for (int f = 0; s->gather_group != NULL && f < s->flats && status == OAR_OK;
         f++)
        status = post_gather(s, &s->flat[f], KEY_PUBLISH, &s->flat[f].gather);
    if (s->gather_group != NULL)
        s->stats.gathers += s->units;
    for (int f = 0; s->gather_group != NULL && f < s->flats; f++) {
        oar_status waited = wait_for_work(s, &s->flat[f].gather);
        if (status == OAR_OK)
            status = waited;
    }
    if (status == OAR_OK && s->local != NULL && oari_shards_on_gpu(s))
        status = oari_gpu_fence(s);
    else if (status == OAR_OK && s->local != NULL)
        status = oar_barrier(
            s->local,
            OAR_OPTS(oar_call_opts, .label = "shards_publish",
                     .key = oari_shards_key(KEY_PUBLISH, s->passes)),
            NULL);
    return status;
}

/* Drops units that were gathered ahead and never used: they are out of date. */
static oar_status drop_unused(oar_shards *s)
{
    for (int u = 0; u < s->units; u++) {
        if (s->unit[u].coming)
            OARI_TRY(finish_gather(s, u));
        if (s->unit[u].here)
            OARI_TRY(drop_unit(s, u));
    }
    return OAR_OK;
}

oar_status oar_shards_publish_at(const char *file, int line, oar_shards *shards)
{
    OARI_CALLED_FROM(file, line);
    oar_shards *s = shards;
    int64_t since = oari_now_ns();
    oar_status status;

    OARI_TRY(oari_shards_check(s, "shards_publish"));
    for (int u = 0; u < s->units && !s->resident; u++)
        if (s->unit[u].users > 0)
            return oari_fail(OAR_E_STATE,
                             "shards_publish while %s is whole: reshard first",
                             oari_shards_unit_name(s, u).text);
    s->stats.gathers = s->stats.reductions = 0;
    s->stats.gathered_bytes = s->stats.reduced_bytes = 0;
    s->stats.exposed_s = 0;
    oari_busy_clear(&s->busy);
    status = s->resident ? gather_resident(s) : drop_unused(s);
    if (status == OAR_OK && s->offload != NULL)
        status = oari_offload_publish(s);
    if (status != OAR_OK)
        return oari_shards_break(s);
    begin_order(s);
    s->stats.exposed_s += (double)(oari_now_ns() - since) * 1e-9;
    return OAR_OK;
}

void oari_gathers_end(oar_shards *s)
{
    for (int f = 0; f < s->flats; f++)
        if (s->flat[f].gather != NULL) {
            oar_work_wait(s->flat[f].gather);
            oar_work_release(s->flat[f].gather);
            s->flat[f].gather = NULL;
        }
    oari_buffers_free(&s->arrays_pool);
}
