/* SPDX-License-Identifier: Apache-2.0 */
/* exec_message: the messages of a plan. They are kept in a ring in the order
 * they were started, and a WAIT is for the oldest.
 *
 * The tag of a message is 32 bits of the collective's number and, where the
 * backend can receive with some bits left open, 30 of its link (history.h):
 * then a message of another operation is taken, noticed and named, instead of
 * being waited for. Bits 62 and 63 are other messages'. */
#include "base/status.h"
#include "comm/exec/exec_run.h"

enum { CHECK_BITS = 30 };

static const uint64_t check_mask = (UINT64_C(1) << CHECK_BITS) - 1;

size_t oari_exec_element(const oari_exec *exec, oari_buffer buffer)
{
    switch (buffer) {
    case OARI_FACTOR:
    case OARI_TABLE: return sizeof(uint64_t);
    case OARI_WORK:
        return oar_dtype_size(
            oari_partial_dtype(exec->call->op.kind, exec->call->out.dtype));
    default: return exec->element;
    }
}

static uint64_t tag_of(const oari_exec *exec)
{
    uint64_t check = exec->checks_tags ? exec->link & check_mask : 0;

    return (exec->number & UINT32_MAX) << CHECK_BITS | check;
}

oari_progress oari_run_message(oari_exec *exec, const oari_step *step)
{
    int sending = step->kind == OARI_SEND;
    oari_buffer buffer = sending ? step->from : step->to;
    size_t at = sending ? step->from_at : step->to_at;
    int slot = (exec->oldest + exec->transfers) % exec->transfer_room;
    oar_transfer *t = &exec->transfer[slot];
    oar_status status;

    *t = (oar_transfer){ .size = sizeof *t,
                         .peer = step->peer,
                         .tag = tag_of(exec),
                         .any = exec->checks_tags && !sending ? check_mask : 0,
                         .data = oari_exec_locate(exec, buffer, -1, at),
                         .bytes = step->count * oari_exec_element(exec, buffer),
                         .source = -1 };
    exec->transfers++;
    status = sending ? exec->backend->send(exec->self, t)
                     : exec->backend->recv(exec->self, t);
    if (status != OAR_OK) {
        exec->transfers--; /* the backend does not have it */
        return OARI_FAILED;
    }
    exec->at++;
    return OARI_DONE;
}

/* What did not fit, of a receive. */
static oari_progress wrong_size(oari_exec *exec, const oar_transfer *t)
{
    size_t unit =
        t->bytes % exec->element == 0 && t->got_bytes % exec->element == 0
            ? exec->element
            : 1;

    oari_exec_report_mismatch(
        exec, t->peer, "rank %d expects %zu %s of rank %d, which sends %zu",
        exec->rank, t->bytes / unit,
        unit == 1 && exec->element != 1 ? "bytes" : "elements", t->peer,
        t->got_bytes / unit);
    return OARI_FAILED;
}

/* A send that the receiver has refused: that rank knows both sizes, and says
 * so. Where nobody can ask it, this one does. */
static oari_progress refused(oari_exec *exec, const oar_transfer *t)
{
    if (exec->checks_tags)
        return OARI_PENDING;
    oari_exec_report_mismatch(
        exec, t->peer,
        "rank %d sends %zu bytes to rank %d, which expects another "
        "number",
        exec->rank, t->bytes, t->peer);
    return OARI_FAILED;
}

/* Whether a message that has come belongs to this operation. */
static int belongs(oari_exec *exec, const oar_transfer *t)
{
    if (t->any == 0 || t->got_tag == t->tag)
        return 1;
    oari_exec_report_mismatch(exec, t->peer, "%s", "");
    return 0;
}

static oari_progress failed(oari_exec *exec, const oar_transfer *t)
{
    if (t->status != OAR_E_SIZE) {
        oari_fail(t->status, "message with rank %d failed", t->peer);
        return OARI_FAILED;
    }
    if (t->source < 0)
        return refused(exec, t);
    return belongs(exec, t) ? wrong_size(exec, t) : OARI_FAILED;
}

static oari_progress take_oldest(oari_exec *exec)
{
    const oar_transfer *t = &exec->transfer[exec->oldest];

    if (t->status != OAR_OK)
        return failed(exec, t);
    if (!belongs(exec, t))
        return OARI_FAILED;
    if (++exec->oldest == exec->transfer_room)
        exec->oldest = 0;
    exec->transfers--;
    exec->waiting--;
    return OARI_DONE;
}

/* A message that has failed ends the operation, even if an older one is still
 * under way: that may never come. */
static oari_progress look_for_failure(oari_exec *exec)
{
    for (int i = 0; i < exec->transfers; i++) {
        int slot = (exec->oldest + i) % exec->transfer_room;
        const oar_transfer *t = &exec->transfer[slot];
        if (t->done && t->status != OAR_OK && failed(exec, t) == OARI_FAILED)
            return OARI_FAILED;
    }
    return OARI_PENDING;
}

oari_progress oari_run_wait(oari_exec *exec, const oari_step *step)
{
    if (exec->waiting == 0)
        exec->waiting = (int)step->count;
    while (exec->waiting != 0) {
        if (!exec->transfer[exec->oldest].done)
            return look_for_failure(exec);
        oari_progress taken = take_oldest(exec);
        if (taken != OARI_DONE)
            return taken;
    }
    exec->at++;
    return OARI_DONE;
}

int oari_exec_owes_message(const oari_exec *exec, int rank)
{
    for (int i = 0; i < exec->transfers; i++) {
        int slot = (exec->oldest + i) % exec->transfer_room;
        const oar_transfer *t = &exec->transfer[slot];
        if (t->peer == rank && !t->done)
            return 1;
    }
    return 0;
}
