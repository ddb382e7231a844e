/* SPDX-License-Identifier: Apache-2.0 */
/* conform_gpu: buffers of the same sizes on a GPU. The result of a blocking
 * call is fetched on the stream of the call, without a wait before; the result
 * of an operation that was waited for is fetched on another stream. */
#include "conform.h"

#include <stdlib.h>

oar_status gpu_open(conform_context *d)
{
    oar_status status;

    d->gpu = oar_device_current();
    status = oar_device_alloc(d->gpu, 2 * d->room, (void **)&d->on_gpu);
    if (status == OAR_OK)
        status = oar_stream_create(d->gpu, 0, &d->stream);
    if (status == OAR_OK)
        status = oar_stream_create(d->gpu, 0, &d->other);
    return status;
}

oar_status gpu_abilities(conform_settings *s)
{
    oar_backend_caps caps = oar_backend_caps_init();
    oar_status status = oar_backend_available(s->backend, &caps);

    s->can = caps.can;
    if (caps.devices != 1u << OAR_CUDA) /* through the host, or ipc */
        s->can = OAR_CAN_ANY | OAR_CAN_ORDER;
    return status;
}

void gpu_close(conform_context *d)
{
    if (d->on_gpu == NULL)
        return;
    oar_stream_destroy(d->gpu, d->stream);
    oar_stream_destroy(d->gpu, d->other);
    oar_device_free(d->gpu, d->on_gpu, NULL);
}

static unsigned char *like_of(const conform_context *d,
                              const unsigned char *host)
{
    if (host >= d->shared && host < d->shared + d->room)
        return d->on_gpu + (host - d->shared);
    return d->on_gpu + d->room + (host - d->private);
}

oar_span gpu_span(const conform_job *j, oar_span span)
{
    if (j->d->on_gpu == NULL)
        return span;
    if (span.data != NULL)
        span.data = like_of(j->d, span.data);
    span.device = j->d->gpu;
    return span;
}

static void move(const conform_job *j, int up, void *stream)
{
    const oar_device host = oar_device_of(OAR_CPU, 0);
    const conform_context *d = j->d;

    for (int i = 0; i < 2; i++) {
        size_t bytes = j->guarded_bytes[i] + 2 * CONFORM_GUARD;
        unsigned char *there, *here = j->guarded[i];

        if (here == NULL)
            continue;
        there = like_of(d, here);
        if ((up ? oar_device_copy(there, d->gpu, here, host, bytes, stream)
                : oar_device_copy(here, host, there, d->gpu, bytes, stream)) !=
            OAR_OK)
            abort();
    }
    if (oar_stream_synchronize(d->gpu, stream) != OAR_OK)
        abort();
}

void gpu_bring(const conform_job *j)
{
    if (j->d->on_gpu != NULL)
        move(j, 1, j->d->stream);
}

void gpu_fetch(const conform_job *j)
{
    if (j->d->on_gpu != NULL)
        move(j, 0,
             j->t.how == BLOCKING || j->t.how == SYNCHRONOUS ? j->d->stream
                                                             : j->d->other);
}
