/* SPDX-License-Identifier: Apache-2.0 */
/* shard_offload: whole arrays in pinned memory of the host, one copy for all
 * ranks there; a unit is copied to the GPU while it is used.
 *
 * Copies to the GPU have a stream of their own. A copy waits for what is on the
 * current stream when it is posted, which has the last user of its buffer and
 * the last fence; the current stream waits for it when the unit is used. So the
 * copy of the next unit goes on beside the work of this one.
 *
 * A rank writes to its own parts only, when they are published, and between two
 * fences: the reads of all ranks are before it, or behind it. With host_state
 * the host writes them; then the host waits, once a pass.
 */
#include <string.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "device/gpu_share.h"
#include "parallel/reducer/agreement.h"
#include "parallel/shards/shards.h"

enum { KEY_PUBLISH = 8 };

struct oari_offload {
    void *host;      /* pinned: the whole arrays */
    void *up, *down; /* streams */
    void *posted;    /* an event of the current stream */
    void **here;     /* by flat: events of `up` */
    int flats;
};

static unsigned char *place_of(const oar_shards *s, const oari_flat *flat)
{
    return (unsigned char *)s->offload->host + flat->whole_at;
}

/* ---- opening and closing ------------------------------------------------- */

static oar_status make_streams(oar_shards *s, oari_offload *o)
{
    o->here = oari_alloc((size_t)s->flats + 1, sizeof *o->here);
    if (o->here == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oar_stream_create(s->device, 0, &o->up));
    OARI_TRY(oar_stream_create(s->device, 0, &o->down));
    OARI_TRY(oar_event_create(s->device, 0, &o->posted));
    for (; o->flats < s->flats; o->flats++)
        OARI_TRY(oar_event_create(s->device, 0, &o->here[o->flats]));
    return OAR_OK;
}

oar_status oari_offload_open(oar_shards *s)
{
    oar_group *group = s->local != NULL ? s->local : s->reduce;
    size_t bytes = s->whole_bytes != 0 ? s->whole_bytes : 1;
    oari_offload *o;
    oar_status status;

    OARI_TRY(oar_window_create(group, bytes, NULL, &s->window));
    s->offload = o = oari_alloc(1, sizeof *o);
    status = o != NULL
                 ? oari_gpu_pin(s->device, oar_window_data(s->window), bytes)
                 : OAR_E_NOMEM;
    if (status == OAR_OK) {
        o->host = oar_window_data(s->window);
        status = make_streams(s, o);
    }
    return oari_agree_on_status(group, status, "shards_create");
}

oar_status oari_offload_make_grads(oar_shards *s)
{
    void *memory;
    oar_status status;

    OARI_TRY(oar_pinned_alloc(s->grad_bytes, &memory));
    status = oar_storage_create_detached_on(oar_device_of(OAR_CPU, 0),
                                            s->grad_bytes, &s->grads);
    if (status != OAR_OK) {
        oar_pinned_free(memory);
        return status;
    }
    return oar_storage_attach(s->grads, memory, oar_pinned_free, memory);
}

void oari_offload_close(oar_shards *s)
{
    oari_offload *o = s->offload;

    if (o == NULL)
        return;
    if (o->up != NULL)
        oar_stream_synchronize(s->device, o->up);
    if (o->down != NULL)
        oar_stream_synchronize(s->device, o->down);
    oar_stream_synchronize(s->device, oar_stream_current(s->device));
    for (int f = 0; f < o->flats; f++)
        oar_event_destroy(s->device, o->here[f]);
    if (o->posted != NULL)
        oar_event_destroy(s->device, o->posted);
    if (o->up != NULL)
        oar_stream_destroy(s->device, o->up);
    if (o->down != NULL)
        oar_stream_destroy(s->device, o->down);
    oari_gpu_unpin(s->device, o->host);
    oari_free(o->here);
    oari_free(o);
    s->offload = NULL;
    oar_window_release(s->window);
    s->window = NULL;
}

/* ---- to the GPU ---------------------------------------------------------- */

/* Makes a stream wait for what is on the current one. */
static oar_status follow_current(const oar_shards *s, void *stream)
{
    const oari_offload *o = s->offload;

    OARI_TRY(
        oar_event_record(s->device, o->posted, oar_stream_current(s->device)));
    return oar_stream_wait(s->device, stream, o->posted);
}

oar_status oari_offload_begin(oar_shards *s, int unit)
{
    oari_shard_unit *u = &s->unit[unit];
    oari_offload *o = s->offload;

    for (int f = u->first; f < u->first + u->flats; f++) {
        oari_flat *flat = &s->flat[f];
        size_t bytes = flat->count * oar_dtype_size(flat->whole_dtype);

        OARI_TRY(oari_buffer_take(&s->arrays_pool, bytes, &flat->whole));
        OARI_TRY(follow_current(s, o->up));
        OARI_TRY(oar_device_copy(flat->whole->data, s->device,
                                 place_of(s, flat), oar_device_of(OAR_CPU, 0),
                                 bytes, o->up));
        OARI_TRY(oar_event_record(s->device, o->here[f], o->up));
        s->stats.gathered_bytes += bytes;
    }
    return OAR_OK;
}

oar_status oari_offload_finish(const oar_shards *s, int unit)
{
    const oari_shard_unit *u = &s->unit[unit];
    void *stream = oar_stream_current(s->device);

    for (int f = u->first; f < u->first + u->flats; f++)
        OARI_TRY(oar_stream_wait(s->device, stream, s->offload->here[f]));
    return OAR_OK;
}

/* ---- from the GPU -------------------------------------------------------- */

/* Copies this rank's part of a flat to the host's copy, converted before. */
static oar_status write_part(oar_shards *s, const oari_flat *flat)
{
    size_t size = oar_dtype_size(flat->whole_dtype);
    size_t bytes = flat->counts[s->part] * size;
    unsigned char *to = place_of(s, flat) + flat->first * size;
    oari_numbers part = oari_part_numbers(s, flat), same = part;
    oari_whole_buffer *room = NULL;

    if (bytes == 0)
        return OAR_OK;
    if (flat->dtype != flat->whole_dtype) {
        OARI_TRY(oari_buffer_take(&s->arrays_pool, bytes, &room));
        same =
            (oari_numbers){ room->storage, 0, part.count, flat->whole_dtype };
        OARI_TRY(oari_numbers_copy(&same, &part));
    }
    OARI_TRY(oar_device_copy(to, oar_device_of(OAR_CPU, 0),
                             (unsigned char *)oar_storage_data(same.storage) +
                                 same.at,
                             s->device, bytes, oar_stream_current(s->device)));
    return oari_buffer_give_back(&s->arrays_pool, room);
}

oar_status oari_offload_publish(oar_shards *s)
{
    for (int f = 0; f < s->flats; f++) {
        const oari_flat *flat = &s->flat[f];
        size_t size = oar_dtype_size(flat->whole_dtype);
        oar_span part = oari_shards_part(s, flat);

        if (!s->opts.host_state)
            OARI_TRY(write_part(s, flat));
        else if (part.count != 0)
            oari_convert(place_of(s, flat) + flat->first * size,
                         flat->whole_dtype, part.data, part.dtype, part.count);
    }
    if (!s->opts.host_state)
        return oari_gpu_fence(s);
    if (s->local == NULL)
        return OAR_OK;
    return oar_barrier(s->local,
                       OAR_OPTS(oar_call_opts, .label = "shards_publish",
                                .key = oari_shards_key(KEY_PUBLISH, s->passes)),
                       NULL);
}

/* ---- gradients for the host ---------------------------------------------- */

/* Adds to what is there: the host waits. */
static oar_status add_on_host(oar_shards *s, const oari_flat *flat)
{
    size_t count = flat->counts[s->part];
    size_t bytes = count * oar_dtype_size(flat->mean_dtype);
    void *room = oari_alloc(bytes + 1, 1);
    oar_status status;

    if (room == NULL)
        return OAR_E_NOMEM;
    status = oar_device_copy(room, oar_device_of(OAR_CPU, 0), flat->mean->data,
                             s->device, bytes, oar_stream_current(s->device));
    if (status == OAR_OK)
        oari_shards_add_mean(s, flat,
                             oar_span_of(room, count, flat->mean_dtype));
    oari_free(room);
    return status;
}

oar_status oari_offload_land(oar_shards *s, oari_flat *flat)
{
    oari_offload *o = s->offload;
    size_t bytes = flat->counts[s->part] * oar_dtype_size(flat->mean_dtype);
    oari_whole_buffer *mean = flat->mean;

    if (bytes == 0)
        return OAR_OK;
    if (flat->mean_dtype != flat->dtype || oari_flat_has_grads(s, flat))
        return add_on_host(s, flat);
    if (mean->busy == NULL)
        OARI_TRY(oar_event_create(s->device, 0, &mean->busy));
    OARI_TRY(follow_current(s, o->down));
    OARI_TRY(oar_device_copy(
        (unsigned char *)oar_storage_data(s->grads) + flat->grad_at,
        oar_device_of(OAR_CPU, 0), mean->data, s->device, bytes, o->down));
    return oar_event_record(s->device, mean->busy, o->down);
}

oar_status oari_offload_wait(oar_shards *s)
{
    OARI_TRY(oar_stream_synchronize(s->device, s->offload->down));
    /* Units are read until here: the host writes them next. */
    return oar_stream_synchronize(s->device, oar_stream_current(s->device));
}
