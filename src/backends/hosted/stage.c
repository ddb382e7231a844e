/* SPDX-License-Identifier: Apache-2.0 */
/* stage: pinned memory between a GPU and the ranks of this host, and the
 * copies. Two streams, so that one piece goes down while another goes up. The
 * memory is shared, so that peers combine straight from it. */
#include <time.h>

#include <oarsong/shared.h>

#include "backends/hosted/hosted.h"
#include "base/status.h"

enum { NAP_NS = 20000, SPINS = 2000 };

/* ---- memory and streams -------------------------------------------------- */

/* Memory for one side, registered with the driver for all its devices. */
static oar_status pin(const oari_cuda *cu, size_t bytes, unsigned char **memory)
{
    enum { PORTABLE = 1 };
    void *made;
    oar_status status;

    if (*memory != NULL)
        return OAR_OK;
    OARI_TRY(oar_shared_alloc(bytes, &made));
    status = oari_cuda_check(cu->MemHostRegister(made, bytes, PORTABLE),
                             "pin memory for the way through the host");
    if (status != OAR_OK) {
        oar_shared_free(made);
        return status;
    }
    *memory = made;
    return OAR_OK;
}

static void unpin(const oari_cuda *cu, unsigned char **memory)
{
    if (*memory == NULL)
        return;
    cu->MemHostUnregister(*memory);
    oar_shared_free(*memory);
    *memory = NULL;
}

static oar_status open_slot(const oari_cuda *cu, hosted *h, hosted_slot *s)
{
    OARI_TRY(pin(cu, h->slot_bytes, &s->in));
    OARI_TRY(pin(cu, h->slot_bytes, &s->out));
    OARI_TRY(oari_cuda_event_take(h->device, &s->loaded));
    return oari_cuda_event_take(h->device, &s->stored);
}

static oar_status open_all(const oari_cuda *cu, hosted *h)
{
    enum { NON_BLOCKING = 1 };

    OARI_TRY(
        oari_cuda_check(cu->StreamCreateWithPriority(&h->down, NON_BLOCKING, 0),
                        "make a stream for the way through the host"));
    OARI_TRY(
        oari_cuda_check(cu->StreamCreateWithPriority(&h->up, NON_BLOCKING, 0),
                        "make a stream for the way through the host"));
    for (int i = 0; i < HOSTED_SLOTS; i++)
        OARI_TRY(open_slot(cu, h, &h->slot[i]));
    return OAR_OK;
}

oar_status hosted_stage_open(hosted *h, int device)
{
    const oari_cuda *cu;
    oar_status status;

    if (h->device == device)
        return OAR_OK;
    hosted_stage_close(h);
    OARI_TRY(oari_cuda_enter(device, &cu));
    h->device = device;
    status = open_all(cu, h);
    oari_cuda_leave();
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        hosted_stage_close(h);
        return oari_fail_with(&why);
    }
    return OAR_OK;
}

static void close_slot(const oari_cuda *cu, hosted *h, hosted_slot *s)
{
    if (s->loaded != NULL)
        oari_cuda_event_give(h->device, s->loaded);
    if (s->stored != NULL)
        oari_cuda_event_give(h->device, s->stored);
    unpin(cu, &s->in);
    unpin(cu, &s->out);
    *s = (hosted_slot){ 0 };
}

void hosted_stage_close(hosted *h)
{
    const oari_cuda *cu;

    if (h->device < 0 || oari_cuda_enter(h->device, &cu) != OAR_OK)
        return;
    if (h->down != NULL) {
        cu->StreamSynchronize(h->down);
        cu->StreamDestroy(h->down);
    }
    if (h->up != NULL) {
        cu->StreamSynchronize(h->up);
        cu->StreamDestroy(h->up);
    }
    for (int i = 0; i < HOSTED_SLOTS; i++)
        close_slot(cu, h, &h->slot[i]);
    oari_cuda_leave();
    h->down = h->up = NULL;
    h->device = -1;
}

/* ---- order --------------------------------------------------------------- */

static oar_status is_aborted(const hosted *h)
{
    return oari_fail((oar_status)h->why, "the group has ended");
}

oar_status hosted_await(hosted *h, oari_cu_event event)
{
    const oari_cuda *cu;
    int result = OARI_CU_NOT_READY;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    for (int i = 0; h->why == OAR_OK; i++) {
        result = cu->EventQuery(event);
        if (result != OARI_CU_NOT_READY)
            break;
        if (i > SPINS)
            nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
    }
    oari_cuda_leave();
    if (result == OARI_CU_NOT_READY)
        return is_aborted(h);
    return oari_cuda_check(result, "copy between a GPU and the host");
}

oar_status hosted_begin(hosted *h, const oar_collective *call)
{
    const oari_cuda *cu;
    int first, second;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    first = cu->StreamWaitEvent(h->down, call->ready, 0);
    second = cu->StreamWaitEvent(h->up, call->ready, 0);
    oari_cuda_leave();
    OARI_TRY(oari_cuda_check(first, "order a copy behind the caller's work"));
    return oari_cuda_check(second, "order a copy behind the caller's work");
}

oar_status hosted_finish(hosted *h, const oar_collective *call)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    result = cu->EventRecord(call->finished, h->up);
    oari_cuda_leave();
    return oari_cuda_check(result, "mark the end of a copy to a GPU");
}

/* ---- copies -------------------------------------------------------------- */

oar_status hosted_load(hosted *h, void *to, const void *from, size_t bytes)
{
    const oari_cuda *cu;
    int result;

    if (bytes == 0)
        return OAR_OK;
    OARI_TRY(oari_cuda_enter(h->device, &cu));
    result = cu->MemcpyDtoHAsync(to, (uintptr_t)from, bytes, h->down);
    oari_cuda_leave();
    return oari_cuda_check(result, "copy from a GPU to the host");
}

oar_status hosted_store(hosted *h, void *to, const void *from, size_t bytes)
{
    const oari_cuda *cu;
    int result;

    if (bytes == 0)
        return OAR_OK;
    OARI_TRY(oari_cuda_enter(h->device, &cu));
    result = cu->MemcpyHtoDAsync((uintptr_t)to, from, bytes, h->up);
    oari_cuda_leave();
    return oari_cuda_check(result, "copy from the host to a GPU");
}
