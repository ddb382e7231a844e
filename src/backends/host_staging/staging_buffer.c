/* SPDX-License-Identifier: Apache-2.0 */
/* staging_buffer: pinned memory between a GPU and the ranks of this host, and
 * the copies. There are two streams, so that one chunk is loaded while another
 * is stored. The memory is shared, so that peers combine straight from it, and
 * pinned by all of them, so that their GPUs read straight from it. */
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

/* Makes memory for all slots, registered with the driver for all devices. */
static oar_status make_buffer(const oari_cuda *cu, staging *h)
{
    size_t bytes = h->buffer_bytes;
    void *made;
    oar_status status;

    if (h->buffer != NULL)
        return OAR_OK;
    OARI_TRY(oar_shared_alloc(bytes, &made));
    status = oari_cuda_check(cu->MemHostRegister(made, bytes, PORTABLE),
                             "pin memory for the way through the host");
    if (status != OAR_OK) {
        oar_shared_free(made);
        return status;
    }
    h->buffer = made;
    h->home = h->device;
    for (int i = 0; i < STAGING_SLOTS; i++)
        h->slot[i].data = h->buffer + (size_t)i * h->slot_bytes;
    return OAR_OK;
}

static oar_status open_device(const oari_cuda *cu, staging *h)
{
    OARI_TRY(make_buffer(cu, h));
    for (int i = 0; i < 2; i++)
        OARI_TRY(
            oari_cuda_check(cu->StreamCreateWithPriority(
                                i == 0 ? &h->down : &h->up, NON_BLOCKING, 0),
                            "make a stream for the way through the host"));
    for (int i = 0; i < STAGING_SLOTS; i++) {
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

/* Frees what belongs to one device. */
static void close_device(staging *h)
{
    const oari_cuda *cu;

    if (h->device < 0 || oari_cuda_enter(h->device, &cu) != OAR_OK)
        return;
    close_stream(cu, &h->down);
    close_stream(cu, &h->up);
    for (int i = 0; i < STAGING_SLOTS; i++) {
        staging_slot *s = &h->slot[i];

        if (s->loaded != NULL)
            oari_cuda_event_give(h->device, s->loaded);
        if (s->stored != NULL)
            oari_cuda_event_give(h->device, s->stored);
        s->loaded = s->stored = NULL;
    }
    oari_cuda_leave();
    h->device = -1;
}

/* The buffer stays when the device changes: peers have mapped it. */
oar_status staging_buffer_open(staging *h, int device)
{
    const oari_cuda *cu;
    oar_status status;

    if (h->device == device)
        return OAR_OK;
    close_device(h);
    OARI_TRY(oari_cuda_enter(device, &cu));
    h->device = device;
    status = open_device(cu, h);
    oari_cuda_leave();
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();

        close_device(h);
        return oari_fail_with(&why);
    }
    return OAR_OK;
}

/* After a failure peers may not know of it yet, and still combine something in
 * this buffer. So its pages are taken away from other processes; from threads
 * they cannot be, and stay. */
void staging_buffer_close(staging *h)
{
    const oari_cuda *cu;
    int has_peer_thread = 0; /* which uses the same pages */

    for (int r = 0; r < h->ranks; r++)
        has_peer_thread |=
            r != h->rank && h->mapped[r] != NULL && !h->pinned[r];
    close_device(h);
    if (h->buffer == NULL || (h->failed && has_peer_thread))
        return;
    if (oari_cuda_enter(h->home, &cu) == OAR_OK) {
        for (int r = 0; r < h->ranks; r++)
            if (h->pinned[r])
                cu->MemHostUnregister(h->mapped[r]);
        cu->MemHostUnregister(h->buffer);
        oari_cuda_leave();
    }
    if (!h->failed || oari_segment_detach(h->buffer, h->buffer_bytes) == OAR_OK)
        oar_shared_free(h->buffer);
    h->buffer = NULL;
}

/* ---- the peers' buffers -------------------------------------------------- */

static oar_status map_buffers(staging *h, const oari_board *board,
                              const uint64_t *place)
{
    const oari_cuda *cu;
    oar_status status = OAR_OK;
    int result;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    for (int r = 0; r < h->ranks && status == OAR_OK; r++) {
        if (r == h->rank) {
            h->mapped[r] = h->buffer;
            continue;
        }
        h->mapped[r] = board->ops->resolve(
            board->self, oari_board_rank(board, r), place[r], h->buffer_bytes);
        if (h->mapped[r] == NULL) {
            status = oar_last_error()->status;
            break;
        }
        result = cu->MemHostRegister(h->mapped[r], h->buffer_bytes, PORTABLE);
        if (result == ALREADY_REGISTERED) /* a thread of this process */
            continue;
        status = oari_cuda_check(result, "pin memory of a peer's");
        h->pinned[r] = status == OAR_OK;
    }
    oari_cuda_leave();
    return status;
}

/* All are mapped if every rank has mapped every other's. */
static oar_status exchange_locations(staging *h, uint64_t *place)
{
    const oari_board *board = h->inner->board;
    int32_t found = board != NULL;

    if (board != NULL)
        place[h->rank] =
            board->ops->place(board->self, h->buffer, h->buffer_bytes);
    OARI_TRY(oar_all_gather(h->inner, oar_span_of(&place[h->rank], 1, OAR_U64),
                            oar_span_of(place, (size_t)h->ranks, OAR_U64),
                            &h->untimed, NULL));
    for (int r = 0; r < h->ranks && found; r++)
        found = place[r] != 0 && oari_board_rank(board, r) >= 0;
    found = found && map_buffers(h, board, place) == OAR_OK;
    OARI_TRY(oar_all_reduce(h->inner, oar_span_of(&found, 1, OAR_I32), OAR_MIN,
                            &h->untimed, NULL));
    h->all_mapped = found;
    return OAR_OK;
}

oar_status staging_map_peers(staging *h)
{
    uint64_t *place;
    oar_status status;

    if (h->has_mapped || h->ranks == 1)
        return OAR_OK;
    place = oari_alloc((size_t)h->ranks, sizeof *place);
    if (place == NULL)
        return OAR_E_NOMEM;
    status = exchange_locations(h, place);
    oari_free(place);
    h->has_mapped = status == OAR_OK;
    return status;
}

/* ---- events -------------------------------------------------------------- */

oar_status staging_test_event(staging *h, oari_cu_event event, int *has)
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

oar_status staging_check_aborted(const staging *h)
{
    if (h->why == OAR_OK)
        return OAR_OK;
    return oari_fail((oar_status)h->why, "the group has ended");
}

oar_status staging_backoff(staging *h, int *spins)
{
    int64_t nap = *spins < SPINS + SHORT_NAPS ? SHORT_NAP_NS : LONG_NAP_NS;

    if (*spins < SPINS)
        oari_cpu_pause();
    else
        nanosleep(&(struct timespec){ 0, nap }, NULL);
    *spins += *spins < SPINS + SHORT_NAPS;
    return staging_check_aborted(h);
}

oar_status staging_wait_event(staging *h, oari_cu_event event)
{
    int has = 0, spins = 0;

    OARI_TRY(staging_check_aborted(h));
    OARI_TRY(staging_test_event(h, event, &has));
    while (!has) {
        OARI_TRY(staging_backoff(h, &spins));
        OARI_TRY(staging_test_event(h, event, &has));
    }
    return OAR_OK;
}

oar_status staging_wait_ready(staging *h, const oar_collective *call)
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

oar_status staging_record_event(staging *h, oari_cu_event event,
                                oari_cu_stream stream)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(h->device, &cu));
    result = cu->EventRecord(event, stream);
    oari_cuda_leave();
    return oari_cuda_check(result, "mark the end of a copy");
}

/* ---- copies -------------------------------------------------------------- */

oar_status staging_copy_down(staging *h, void *to, const void *from,
                             size_t bytes)
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

oar_status staging_copy_up(staging *h, void *to, const void *from, size_t bytes)
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
