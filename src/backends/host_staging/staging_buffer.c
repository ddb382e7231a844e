/* SPDX-License-Identifier: Apache-2.0 */
/* staging_buffer: pinned memory between a GPU and the ranks of this host, and
 * the copies. Two streams, so that one piece goes down while another goes up.
 * The memory is shared, so that peers combine straight from it, and pinned by
 * all of them, so that their GPUs take straight from it. */
#include <time.h>

#include <oarsong/shared.h>

#include "backends/host_staging/staging.h"
#include "base/alloc.h"
#include "base/status.h"
#include "base/thread.h"
#include "link/shm/board.h"
#include "device/segment.h"

enum {
    SPINS = 2000,
    SHORT_NAPS = 2000,
    SHORT_NAP_NS = 20000,
    LONG_NAP_NS = 1000000
};

/* ---- memory and streams -------------------------------------------------- */

enum { PORTABLE = 1, NON_BLOCKING = 1, ALREADY_REGISTERED = 712 };

/* Memory for all slots, registered with the driver for all its devices. */
static oar_status make_stage(const oari_cuda *cu, hosted *h)
{
    size_t bytes = hosted_stage_bytes(h);
    void *made;
    oar_status status;

    if (h->stage != NULL)
        return OAR_OK;
    OARI_TRY(oar_shared_alloc(bytes, &made));
    status = oari_cuda_check(cu->MemHostRegister(made, bytes, PORTABLE),
                             "pin memory for the way through the host");
    if (status != OAR_OK) {
        oar_shared_free(made);
        return status;
    }
    h->stage = made;
    h->home = h->device;
    for (int i = 0; i < HOSTED_SLOTS; i++)
        h->slot[i].data = h->stage + (size_t)i * h->slot_bytes;
    return OAR_OK;
}

static oar_status make_stream(const oari_cuda *cu, oari_cu_stream *stream)
{
    return oari_cuda_check(
        cu->StreamCreateWithPriority(stream, NON_BLOCKING, 0),
        "make a stream for the way through the host");
}

static oar_status open_all(const oari_cuda *cu, hosted *h)
{
    OARI_TRY(make_stage(cu, h));
    OARI_TRY(make_stream(cu, &h->down));
    OARI_TRY(make_stream(cu, &h->up));
    for (int i = 0; i < HOSTED_SLOTS; i++) {
        OARI_TRY(oari_cuda_event_take(h->device, &h->slot[i].loaded));
        OARI_TRY(oari_cuda_event_take(h->device, &h->slot[i].stored));
    }
    return OAR_OK;
}

static void close_stream(const oari_cuda *cu, oari_cu_stream *stream)
{
    if (*stream == NULL)
        return;
    cu->StreamSynchronize(*stream);
    cu->StreamDestroy(*stream);
    *stream = NULL;
}

static void close_slot(const hosted *h, hosted_slot *s)
{
    if (s->loaded != NULL)
        oari_cuda_event_give(h->device, s->loaded);
    if (s->stored != NULL)
        oari_cuda_event_give(h->device, s->stored);
    s->loaded = s->stored = NULL;
}

/* What is of one device. */
static void close_streams(const oari_cuda *cu, hosted *h)
{
    close_stream(cu, &h->down);
    close_stream(cu, &h->up);
    for (int i = 0; i < HOSTED_SLOTS; i++)
        close_slot(h, &h->slot[i]);
}

static void leave_device(hosted *h)
{
    const oari_cuda *cu;

    if (h->device < 0 || oari_cuda_enter(h->device, &cu) != OAR_OK)
        return;
    close_streams(cu, h);
    oari_cuda_leave();
    h->device = -1;
}

/* The stage stays when the device is another one: peers have mapped it. */
oar_status hosted_stage_open(hosted *h, int device)
{
    const oari_cuda *cu;
    oar_status status;

    if (h->device == device)
        return OAR_OK;
    leave_device(h);
    OARI_TRY(oari_cuda_enter(device, &cu));
    h->device = device;
    status = open_all(cu, h);
    oari_cuda_leave();
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        leave_device(h);
        return oari_fail_with(&why);
    }
    return OAR_OK;
}

/* Threads of this process use the very same pages. */
static int is_of_one_process(const hosted *h)
{
    for (int r = 0; r < h->ranks; r++)
        if (r != h->rank && h->near[r] != NULL && !h->pinned[r])
            return 1;
    return 0;
}

static void unpin_all(hosted *h)
{
    const oari_cuda *cu;

    if (oari_cuda_enter(h->home, &cu) != OAR_OK)
        return;
    for (int r = 0; r < h->ranks; r++)
        if (h->pinned[r])
            cu->MemHostUnregister(h->near[r]);
    cu->MemHostUnregister(h->stage);
    oari_cuda_leave();
}

/* After a failure peers may not know of it yet, and still add something up in
 * this stage. So its pages are taken away from other processes; from threads
 * they cannot be, and stay. */
void hosted_stage_close(hosted *h)
{
    leave_device(h);
    if (h->stage == NULL || (h->torn && is_of_one_process(h)))
        return;
    unpin_all(h);
    if (!h->torn ||
        oari_segment_detach(h->stage, hosted_stage_bytes(h)) == OAR_OK)
        oar_shared_free(h->stage);
    h->stage = NULL;
}

/* ---- the others' stages -------------------------------------------------- */

/* Ranks in one process find it registered. */
static oar_status pin_near(const oari_cuda *cu, hosted *h, int rank)
{
    int result =
        cu->MemHostRegister(h->near[rank], hosted_stage_bytes(h), PORTABLE);

    if (result == ALREADY_REGISTERED)
        return OAR_OK;
    OARI_TRY(oari_cuda_check(result, "pin memory of a peer's"));
    h->pinned[rank] = 1;
    return OAR_OK;
}

static oar_status map_near(hosted *h, const oari_board *board,
                           const uint64_t *place)
{
    const oari_cuda *cu;
    oar_status status = OAR_OK;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    for (int r = 0; r < h->ranks && status == OAR_OK; r++) {
        if (r == h->rank) {
            h->near[r] = h->stage;
            continue;
        }
        h->near[r] = board->ops->resolve(board->self, oari_board_rank(board, r),
                                         place[r], hosted_stage_bytes(h));
        status =
            h->near[r] != NULL ? pin_near(cu, h, r) : oar_last_error()->status;
    }
    oari_cuda_leave();
    return status;
}

static int all_placed(const hosted *h, const oari_board *board,
                      const uint64_t *place)
{
    for (int r = 0; r < h->ranks; r++)
        if (place[r] == 0 || oari_board_rank(board, r) < 0)
            return 0;
    return 1;
}

/* They are near if every rank has found every other's. */
static oar_status find_near(hosted *h, uint64_t *place)
{
    const oari_board *board = h->inner->board;
    oar_call_opts o = hosted_patience();
    int32_t found;

    if (board != NULL)
        place[h->rank] =
            board->ops->place(board->self, h->stage, hosted_stage_bytes(h));
    OARI_TRY(oar_all_gather(h->inner, oar_span_of(&place[h->rank], 1, OAR_U64),
                            oar_span_of(place, (size_t)h->ranks, OAR_U64), &o,
                            NULL));
    found = board != NULL && all_placed(h, board, place) &&
            map_near(h, board, place) == OAR_OK;
    OARI_TRY(oar_all_reduce(h->inner, oar_span_of(&found, 1, OAR_I32), OAR_MIN,
                            &o, NULL));
    h->is_near = found;
    return OAR_OK;
}

oar_status hosted_meet(hosted *h)
{
    uint64_t *place;
    oar_status status;

    if (h->met || h->ranks == 1)
        return OAR_OK;
    place = oari_alloc((size_t)h->ranks, sizeof *place);
    if (place == NULL)
        return OAR_E_NOMEM;
    status = find_near(h, place);
    oari_free(place);
    h->met = status == OAR_OK;
    return status;
}

/* ---- order --------------------------------------------------------------- */

oar_status hosted_has_come(hosted *h, oari_cu_event event, int *has)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    result = cu->EventQuery(event);
    oari_cuda_leave();
    *has = result != OARI_CU_NOT_READY;
    return *has ? oari_cuda_check(result, "copy between a GPU and the host")
                : OAR_OK;
}

oar_status hosted_goes_on(const hosted *h)
{
    if (h->why == OAR_OK)
        return OAR_OK;
    return oari_fail((oar_status)h->why, "the group has ended");
}

oar_status hosted_rest(hosted *h, int *looks)
{
    int64_t nap = *looks < SPINS + SHORT_NAPS ? SHORT_NAP_NS : LONG_NAP_NS;

    if (*looks < SPINS)
        oari_cpu_pause();
    else
        nanosleep(&(struct timespec){ 0, nap }, NULL);
    *looks += *looks < SPINS + SHORT_NAPS;
    return hosted_goes_on(h);
}

oar_status hosted_await(hosted *h, oari_cu_event event)
{
    int has = 0, looks = 0;

    OARI_TRY(hosted_goes_on(h));
    OARI_TRY(hosted_has_come(h, event, &has));
    while (!has) {
        OARI_TRY(hosted_rest(h, &looks));
        OARI_TRY(hosted_has_come(h, event, &has));
    }
    return OAR_OK;
}

oar_status hosted_begin(hosted *h, const oar_collective *call)
{
    const oari_cuda *cu;
    int first, second;

    if (call->ready == NULL)
        return OAR_OK;
    OARI_TRY(oari_cuda_enter(h->device, &cu));
    first = cu->StreamWaitEvent(h->down, call->ready, 0);
    second = cu->StreamWaitEvent(h->up, call->ready, 0);
    oari_cuda_leave();
    OARI_TRY(oari_cuda_check(first, "order a copy behind the caller's work"));
    return oari_cuda_check(second, "order a copy behind the caller's work");
}

oar_status hosted_record(hosted *h, oari_cu_event event, oari_cu_stream stream)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    result = cu->EventRecord(event, stream);
    oari_cuda_leave();
    return oari_cuda_check(result, "mark the end of a copy");
}

oar_status hosted_finish(hosted *h, const oar_collective *call)
{
    return hosted_record(h, call->finished, h->up);
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
