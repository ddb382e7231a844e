/* SPDX-License-Identifier: Apache-2.0 */
/* exec_message: the messages of a plan. They are kept in a ring buffer in the
 * order they were started, and a WAIT is for the oldest.
 *
 * The tag of a message has 32 bits of the collective's number and, if the
 * backend can receive with some bits left open, 30 bits of its link
 * (history.h): then a message of another operation is received, noticed and
 * named, instead of being waited for. Bits 62 and 63 are for messages that are
 * not a plan's. */
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
        return oar_dtype_size(oari_partial_dtype(
            exec->call->op.kind, oari_call_input_dtype(exec->call)));
    case OARI_OUT:
    case OARI_ALL_OUT: return exec->out_element;
    default: return exec->element;
    }
}

oari_progress oari_run_message(oari_exec *exec, const oari_step *step)
{
    int sending = step->kind == OARI_SEND;
    oari_buffer buffer = sending ? step->from : step->to;
    size_t at = sending ? step->from_at : step->to_at;
    int slot = (exec->oldest + exec->transfers) % exec->transfer_room;
    oar_transfer *t = &exec->transfer[slot];
    uint64_t check = exec->checks_tags ? exec->link & check_mask : 0;
    oar_status status;

    *t = (oar_transfer){ .size = sizeof *t,
                         .peer = step->peer,
                         .tag =
                             (exec->number & UINT32_MAX) << CHECK_BITS | check,
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

/* Whether a message that has arrived belongs to this operation. */
static int belongs_here(oari_exec *exec, const oar_transfer *t)
{
    if (t->any == 0 || t->got_tag == t->tag)
        return 1;
    oari_exec_report_mismatch(exec, t->peer, "%s", "");
    return 0;
}

/* Says why a message failed. A receiver that refuses a message knows both sizes
 * and reports them; so its sender only waits, unless no rank can ask the
 * receiver. */
static oari_progress report_failure(oari_exec *exec, const oar_transfer *t)
{
    int whole =
        t->bytes % exec->element == 0 && t->got_bytes % exec->element == 0;
    size_t unit = whole ? exec->element : 1;

    if (t->status != OAR_E_SIZE)
        oari_fail(t->status, "message with rank %d failed", t->peer);
    else if (t->source < 0 && exec->checks_tags)
        return OARI_PENDING;
    else if (t->source < 0)
        oari_exec_report_mismatch(exec, t->peer,
                                  "rank %d sends %zu bytes to rank %d, which "
                                  "expects another number",
                                  exec->rank, t->bytes, t->peer);
    else if (belongs_here(exec, t))
        oari_exec_report_mismatch(
            exec, t->peer, "rank %d expects %zu %s of rank %d, which sends %zu",
            exec->rank, t->bytes / unit,
            unit == 1 && exec->element != 1 ? "bytes" : "elements", t->peer,
            t->got_bytes / unit);
    return OARI_FAILED;
}

/* A message that has failed ends the operation, even if an older one is still
 * in flight: that one may never arrive. */
static oari_progress look_for_failure(oari_exec *exec)
{
    for (int i = 0; i < exec->transfers; i++) {
        int slot = (exec->oldest + i) % exec->transfer_room;
        const oar_transfer *t = &exec->transfer[slot];
        if (t->done && t->status != OAR_OK &&
            report_failure(exec, t) == OARI_FAILED)
            return OARI_FAILED;
    }
    return OARI_PENDING;
}

oari_progress oari_run_wait(oari_exec *exec, const oari_step *step)
{
    if (exec->waiting == 0)
        exec->waiting = (int)step->count;
    while (exec->waiting != 0) {
        const oar_transfer *t = &exec->transfer[exec->oldest];
        if (!t->done)
            return look_for_failure(exec);
        if (t->status != OAR_OK)
            return report_failure(exec, t);
        if (!belongs_here(exec, t))
            return OARI_FAILED;
        if (++exec->oldest == exec->transfer_room)
            exec->oldest = 0;
        exec->transfers--;
        exec->waiting--;
    }
    exec->at++;
    return OARI_DONE;
}

int oari_exec_awaits_message(const oari_exec *exec, int rank)
{
    for (int i = 0; i < exec->transfers; i++) {
        int slot = (exec->oldest + i) % exec->transfer_room;
        const oar_transfer *t = &exec->transfer[slot];
        if (t->peer == rank && !t->done)
            return 1;
    }
    return 0;
}
