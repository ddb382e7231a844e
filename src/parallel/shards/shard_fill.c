/* SPDX-License-Identifier: Apache-2.0 */
/* shard_fill: the first numbers of shards: rank 0's, or each rank's own. */
#include <oarsong/device.h>
#include <oarsong/shared.h>

#include "base/dtype.h"
#include "base/status.h"
#include "parallel/reducer/reducer.h"
#include "parallel/shards/shards.h"

/* Writes the arrays of a flat to `to`, from element `first` on. */
static oar_status pack_arrays(const oar_shards *s, const oar_span *array,
                              int flat, size_t first, oar_span to)
{
    size_t size = oar_dtype_size(s->flat[flat].dtype);
    size_t end = first + to.count;

    for (int i = 0; i < s->arrays; i++) {
        const oari_sharded_array *a = &s->array[i];
        size_t low = a->at > first ? a->at : first;
        size_t high = a->at + a->count < end ? a->at + a->count : end;

        if (a->flat != flat || array[i].data == NULL || low >= high)
            continue;
        OARI_TRY(oar_device_copy(
            (unsigned char *)to.data + (low - first) * size, to.device,
            (const unsigned char *)array[i].data + (low - a->at) * size,
            array[i].device, (high - low) * size,
            oari_shards_on_gpu(s) ? oar_stream_current(s->device) : NULL));
    }
    return OAR_OK;
}

/* Memory for a whole flat on the device of the shards. */
static oar_status take_room(const oar_shards *s, size_t bytes, void **memory)
{
    return s->shard_device.kind == OAR_CUDA
               ? oar_device_alloc(s->shard_device, bytes, memory)
               : oar_shared_alloc(bytes, memory);
}

static void free_room(const oar_shards *s, void *memory)
{
    if (s->shard_device.kind == OAR_CUDA)
        oar_device_free(s->shard_device, memory,
                        oar_stream_current(s->shard_device));
    else
        oar_shared_free(memory);
}

/* Sends rank 0's numbers to the ranks that have them. */
static oar_status scatter_flat(oar_shards *s, const oar_span *array, int f)
{
    oari_flat *flat = &s->flat[f];
    int root = s->part_of[0];
    oar_span whole = oari_span_on(s->shard_device, NULL, 0, flat->dtype);
    void *memory = NULL;
    oar_status status = OAR_OK;

    if (s->part == root) {
        status = take_room(s, (flat->count + 1) * oar_dtype_size(flat->dtype),
                           &memory);
        if (status != OAR_OK)
            return oari_shards_break(s);
        whole.data = memory;
        whole.count = flat->count;
        status = oari_span_clear(&whole); /* the gaps, too */
        if (status == OAR_OK)
            status = pack_arrays(s, array, f, 0, whole);
        if (status != OAR_OK) {
            free_room(s, memory);
            return oari_shards_break(s);
        }
    }
    status = oar_scatter_v(
        s->reduce, whole, flat->counts, oari_shards_part(s, flat), root,
        OAR_OPTS(oar_call_opts, .label = "shards_create"), NULL);
    free_room(s, memory);
    return status;
}

oar_status oari_shards_fill(oar_shards *s, const oar_span *array)
{
    int common = s->opts.hold == OAR_HOLD_MAPPED && !s->apart;

    for (int f = 0; f < s->flats; f++) {
        const oari_flat *flat = &s->flat[f];
        oar_span part = oari_shards_part(s, flat);

        if (s->opts.no_scatter) {
            OARI_TRY(pack_arrays(s, array, f, flat->first, part));
        } else if (!common) {
            OARI_TRY(scatter_flat(s, array, f));
        } else if (s->part == s->part_of[0]) {
            part.data =
                (unsigned char *)oar_storage_data(s->params) + flat->whole_at;
            part.count = flat->count;
            OARI_TRY(pack_arrays(s, array, f, 0, part));
        }
    }
    return oar_shards_publish(s);
}
