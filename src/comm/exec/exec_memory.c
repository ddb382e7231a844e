/* SPDX-License-Identifier: Apache-2.0 */
/* exec_memory: copying and reducing, on my own memory and that of peers. */
#include <string.h>

#include "base/reduce/reduce.h"
#include "base/status.h"
#include "comm/exec/exec_run.h"

enum { FETCHED_AT_ONCE = 16 << 20 };

/* ---- buffers ------------------------------------------------------------- */

/* Returns my rank among those whose memory a step names. */
static int self_of(const oari_exec *exec)
{
    return exec->shm != NULL ? exec->shm->rank : exec->rank;
}

unsigned char *oari_exec_locate(oari_exec *exec, oari_buffer buffer, int peer,
                                size_t at)
{
    int self = self_of(exec), rank = peer < 0 ? self : peer;
    unsigned char *base = NULL;

    switch (buffer) {
    case OARI_IN: base = rank == self ? exec->in_data : exec->in[rank]; break;
    case OARI_OUT:
    case OARI_ALL_OUT:
        base = rank == self ? exec->out_data : exec->out[rank];
        break;
    case OARI_SLOT:
        base = oari_sync_slot_data(oari_sync_slot_of(exec->shm, rank));
        break;
    case OARI_BOUNCE:
    case OARI_OTHER_BOUNCES:
    case OARI_BOUNCE_AND_OUT:
        base = oari_shm_bounce_buffer(exec->shm, rank);
        break;
    case OARI_GATHER: base = exec->gather; break;
    case OARI_WORK: base = exec->work; break;
    case OARI_FACTOR: base = (unsigned char *)exec->factor; break;
    case OARI_TABLE: base = (unsigned char *)exec->table; break;
    case OARI_NOWHERE: return NULL;
    }
    return base + at * oari_exec_element(exec, buffer);
}

/* ---- around work on buffers of other ranks ------------------------------- */

static int touches_peers(const oari_exec *exec, const oari_step *step)
{
    return exec->shows != 0 &&
           (step->from == OARI_IN || step->to == OARI_ALL_OUT ||
            step->to_peer >= 0 || (step->from == OARI_OUT && step->peer >= 0));
}

static int enter_peers(const oari_exec *exec)
{
    const oari_shm *b = exec->shm;

    if (b->ops->enter == NULL || b->ops->enter(b->self))
        return 1;
    oari_fail(OAR_E_ABORTED, "a rank has given up on operation #%llu",
              (unsigned long long)exec->sequence);
    return 0;
}

static void leave_peers(const oari_exec *exec)
{
    const oari_shm *b = exec->shm;

    if (b->ops->leave != NULL)
        b->ops->leave(b->self);
}

/* Whether elements lie inside a peer's buffer. No rank goes beyond what a peer
 * has published, whatever sizes the peer has promised. */
static int is_inside(oari_exec *exec, oari_buffer buffer, int peer, size_t at,
                     size_t count)
{
    const oari_shm *b = exec->shm;
    size_t has;

    if (peer < 0 || peer == self_of(exec) ||
        (buffer != OARI_IN && buffer != OARI_OUT))
        return 1;
    has = buffer == OARI_IN ? exec->in_count[peer] : exec->out_count[peer];
    if (at <= has && count <= has - at)
        return 1;
    peer = b->member != NULL ? b->member[peer] : peer;
    oari_exec_report_mismatch(
        exec, peer,
        "rank %d needs elements %zu to %zu of rank %d's %s, which "
        "has %zu",
        exec->rank, at, at + count, peer,
        buffer == OARI_IN ? "input" : "output", has);
    return 0;
}

/* ---- copying ------------------------------------------------------------- */

/* Returns whether a step copies from private memory of another process. */
static int copies_private(const oari_exec *exec, const oari_step *step)
{
    return step->from == OARI_IN && step->peer >= 0 &&
           step->peer != self_of(exec) && exec->in[step->peer] == NULL;
}

/* A rank that goes in the middle takes its memory with it: the operation then
 * waits for that rank until the driver sees that it is gone. One that has given
 * up may have freed its memory, which shows at the next sync point; so does
 * memory that the system does not copy. */
static oari_progress fetch_input(oari_exec *exec, const oari_step *step,
                                 unsigned char *to)
{
    oari_shm *b = exec->shm;
    uint64_t from =
        exec->in_private[step->peer] + step->from_at * exec->element;
    size_t left = step->count * exec->element;
    oar_status status = OAR_OK;

    while (left != 0 && status == OAR_OK) {
        size_t part = left < FETCHED_AT_ONCE ? left : FETCHED_AT_ONCE;

        status = b->ops->fetch(b->self, step->peer, from, to, part);
        from += part;
        to += part;
        left -= part;
    }
    if (status == OAR_E_CLOSED) {
        exec->lost = step->peer;
        return OARI_PENDING;
    }
    exec->missed |= status != OAR_OK;
    exec->at++;
    return OARI_DONE;
}

oari_progress oari_run_copy(oari_exec *exec, const oari_step *step)
{
    void *to = oari_exec_locate(exec, step->to, step->to_peer, step->to_at);
    const void *from =
        oari_exec_locate(exec, step->from, step->peer, step->from_at);
    int peers = touches_peers(exec, step);

    if (!is_inside(exec, step->from, step->peer, step->from_at, step->count) ||
        !is_inside(exec, step->to, step->to_peer, step->to_at, step->count) ||
        (peers && !enter_peers(exec)))
        return OARI_FAILED;
    if (copies_private(exec, step))
        return fetch_input(exec, step, to);
    if (to != from)
        memcpy(to, from, step->count * exec->element);
    if (peers)
        leave_peers(exec);
    exec->at++;
    return OARI_DONE;
}

/* ---- reducing ------------------------------------------------------------ */

/* Fills in where the result goes. Returns the number of destinations. */
static int find_destinations(oari_exec *exec, const oari_step *step)
{
    void **to = exec->destination;

    if (step->to == OARI_ALL_OUT) {
        for (int r = 0; r < exec->shm->ranks; r++)
            to[r] = oari_exec_locate(exec, OARI_OUT, r, step->to_at);
        return exec->shm->ranks;
    }
    to[0] = oari_exec_locate(exec, step->to, step->to_peer, step->to_at);
    if (step->to != OARI_BOUNCE_AND_OUT)
        return 1;
    to[1] = oari_exec_locate(exec, OARI_OUT, -1, step->with_at);
    return 2;
}

/* Fills in the sources of a reduction. Returns their number. What only I read
 * is in my input: GATHER and the bounce buffers need not hold it. */
static int find_sources(oari_exec *exec, const oari_step *step)
{
    const oari_shm *b = exec->shm;
    int gather = step->from == OARI_GATHER;
    int others = step->from == OARI_OTHER_BOUNCES;
    int n = gather ? exec->plan->gather_ranks : b->ranks;

    if (step->from == OARI_SLOT) { /* a shortcut for the smallest operations */
        size_t at = step->from_at * exec->element;
        for (int r = 0; r < n; r++)
            exec->source[r] = oari_sync_slot_data(oari_sync_slot_of(b, r)) + at;
        return n;
    }
    for (int r = 0; r < n; r++) {
        size_t place = gather ? (size_t)((r - step->peer + n) % n) : 0;
        int mine = (gather && r == exec->rank) || (others && r == b->rank);
        exec->source[r] =
            mine ? oari_exec_locate(exec, OARI_IN, -1, step->with_at)
                 : oari_exec_locate(exec, step->from, gather ? -1 : r,
                                    step->from_at +
                                        place * exec->plan->gather_stride);
    }
    return n;
}

static int all_inside(oari_exec *exec, const oari_step *step)
{
    int inside = step->to_peer < 0 || is_inside(exec, OARI_OUT, step->to_peer,
                                                step->to_at, step->count);

    for (int r = 0; inside && step->from == OARI_IN && r < exec->shm->ranks;
         r++)
        inside = is_inside(exec, OARI_IN, r, step->from_at, step->count) &&
                 (step->to != OARI_ALL_OUT ||
                  is_inside(exec, OARI_OUT, r, step->to_at, step->count));
    return inside;
}

/* Factors are by rank of the group; the sources of GATHER too, all others are
 * by shm rank. */
static void reduce_sources(oari_exec *exec, const oari_step *step)
{
    const oari_shm *b = step->from != OARI_GATHER ? exec->shm : NULL;
    const int *member = b != NULL ? b->member : NULL;
    oar_reduce_op_kind kind = exec->call->op.kind;
    int factors = oari_needs_factors(kind);
    oari_reduction r = {
        .kind = oari_computed_kind(kind),
        .dtype = exec->call->out.dtype,
        .sources = find_sources(exec, step),
        .source = exec->source,
        .factor = factors ? exec->scale : NULL,
        .destinations = find_destinations(exec, step),
        .destination = exec->destination,
    };

    for (int i = 0; factors && i < r.sources; i++)
        exec->scale[i] = exec->factor[member != NULL ? member[i] : i];
    if (step->to == OARI_WORK) {
        oari_exec_reduce_partial(exec, r.sources, r.destination[0],
                                 step->count);
        return;
    }
    if (oari_call_widens(exec->call)) {
        oari_exec_reduce_wide(exec, r.sources, r.destination[0], step->count);
        return;
    }
    if (kind != OAR_REDUCE_OP_SUM)
        r.divisor = oari_exec_divisor(exec);
    oari_reduce(&r, step->count);
}

oari_progress oari_run_reduce(oari_exec *exec, const oari_step *step)
{
    int peers = touches_peers(exec, step);

    if (!all_inside(exec, step) || (peers && !enter_peers(exec)))
        return OARI_FAILED;
    reduce_sources(exec, step);
    if (peers)
        leave_peers(exec);
    exec->at++;
    return OARI_DONE;
}
