/* SPDX-License-Identifier: Apache-2.0 */
/* whole_buffer: memory for units and gradients while they are whole. Memory
 * that peers reach is slow to get and to give back, so buffers are kept. A
 * buffer that is too small for every later use is replaced: there are never
 * more buffers than were in use at once, and none is larger than the largest
 * flat.
 */
#include <math.h>
#include <string.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/shards/shards.h"

#include <oarsong/shared.h>

int oari_shards_poison;

static void free_buffer(oari_buffer_pool *pool, oari_whole_buffer *b)
{
    if (b == NULL)
        return;
    if (b->unread != NULL) {
        oar_error keep = *oar_last_error();
        oar_work_wait(b->unread);
        oar_work_release(b->unread);
        oari_fail_with(&keep);
    }
    if (b->busy != NULL) {
        oar_event_synchronize(pool->device, b->busy);
        oar_event_destroy(pool->device, b->busy);
    }
    if (b->storage != NULL) /* behind what is on the current stream */
        oar_storage_release(b->storage);
    else if (b->window != NULL)
        oar_window_release(b->window);
    else
        oar_shared_free(b->data);
    *pool->held -= b->bytes;
    oari_free(b);
}

static oar_status make_buffer(oari_buffer_pool *pool, size_t bytes,
                              oari_whole_buffer **buffer)
{
    oari_whole_buffer *b = oari_alloc(1, sizeof *b);
    oar_status status;

    if (b == NULL)
        return OAR_E_NOMEM;
    if (pool->device.kind == OAR_CUDA)
        status = oar_storage_create_on(pool->device, bytes, &b->storage);
    else if (pool->local != NULL)
        status = oar_window_create(pool->local, bytes, NULL, &b->window);
    else
        status = oar_shared_alloc(bytes, &b->data);
    if (status != OAR_OK) {
        oari_free(b);
        return status;
    }
    if (b->storage != NULL)
        b->data = oar_storage_data(b->storage);
    else if (b->window != NULL)
        b->data = oar_window_data(b->window);
    b->bytes = bytes;
    *pool->held += bytes;
    if (*pool->most < *pool->held)
        *pool->most = *pool->held;
    b->next = pool->first;
    pool->first = b;
    *buffer = b;
    return OAR_OK;
}

/* Returns the smallest free buffer that is large enough, or NULL. */
static oari_whole_buffer *fitting_buffer(const oari_buffer_pool *pool,
                                         size_t bytes)
{
    oari_whole_buffer *best = NULL;

    for (oari_whole_buffer *b = pool->first; b != NULL; b = b->next)
        if (!b->taken && b->bytes >= bytes &&
            (best == NULL || b->bytes < best->bytes))
            best = b;
    return best;
}

/* Frees one buffer that is not taken, if there is one. */
static void drop_free_buffer(oari_buffer_pool *pool)
{
    for (oari_whole_buffer **at = &pool->first; *at != NULL;
         at = &(*at)->next) {
        oari_whole_buffer *b = *at;
        if (b->taken)
            continue;
        *at = b->next;
        free_buffer(pool, b);
        return;
    }
}

oar_status oari_buffer_take(oari_buffer_pool *pool, size_t bytes,
                            oari_whole_buffer **buffer)
{
    oari_whole_buffer *b;

    if (bytes == 0)
        bytes = 1;
    b = fitting_buffer(pool, bytes);
    if (b == NULL) {
        drop_free_buffer(pool);
        OARI_TRY(make_buffer(pool, bytes, &b));
    }
    if (b->unread != NULL) {
        oar_status status = oar_work_wait(b->unread);
        oar_work_release(b->unread);
        b->unread = NULL;
        OARI_TRY(status);
    }
    if (b->busy != NULL)
        OARI_TRY(oar_stream_wait(pool->device, oar_stream_current(pool->device),
                                 b->busy));
    b->taken = 1;
    *buffer = b;
    return OAR_OK;
}

/* Fills a buffer that no rank of the host uses any more with 0xff. */
static oar_status poison(oari_buffer_pool *pool, oari_whole_buffer *buffer)
{
    if (pool->local != NULL)
        OARI_TRY(oar_barrier(pool->local,
                             OAR_OPTS(oar_call_opts, .label = "poison"), NULL));
    if (buffer->busy != NULL)
        OARI_TRY(oar_stream_wait(pool->device, oar_stream_current(pool->device),
                                 buffer->busy));
    if (buffer->storage != NULL) {
        oar_span all = oari_span_on(pool->device, buffer->data,
                                    buffer->bytes / sizeof(float), OAR_F32);
        return oar_device_fill(all, NAN, oar_stream_current(pool->device));
    }
    if (pool->local == NULL || oar_group_rank(pool->local) == 0)
        memset(buffer->data, 0xff, buffer->bytes);
    return OAR_OK;
}

oar_status oari_buffer_give_back(oari_buffer_pool *pool,
                                 oari_whole_buffer *buffer)
{
    if (buffer == NULL)
        return OAR_OK;
    buffer->taken = 0;
    if (oari_shards_poison)
        OARI_TRY(poison(pool, buffer));
    if (pool->local == NULL)
        return OAR_OK;
    return oar_barrier(pool->local,
                       OAR_OPTS(oar_call_opts, .label = "buffer is unread"),
                       &buffer->unread);
}

void oari_buffers_free(oari_buffer_pool *pool)
{
    while (pool->first != NULL) {
        oari_whole_buffer *b = pool->first;

        pool->first = b->next;
        free_buffer(pool, b);
    }
}
