/* SPDX-License-Identifier: Apache-2.0 */
/* exec_sync: sync points over shared memory: what this rank publishes, whether
 * all ranks agree, where every rank's buffers are, and which rank is missing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/reduce/reduce.h"
#include "base/status.h"
#include "base/thread.h"
#include "record/op_report.h"
#include "comm/exec/exec_run.h"
#include "plan/planners.h"

enum { POLLS_IN_A_ROW = 256 };

/* ---- publishing my slot -------------------------------------------------- */

static uint64_t place_of(oari_shm *b, const oar_span *span)
{
    if (span->count == 0)
        return OARI_PLACE_NONE;
    return b->ops->place(b->self, span->data, oari_span_bytes(span));
}

static int is_exposed(uint64_t place)
{
    return place != 0 && place != OARI_PLACE_NONE;
}

/* Returns what a slot says of the input: its place, or its address for peers
 * that fetch it. */
static uint64_t show_input(oari_shm *b, const oar_span *in, uint64_t place)
{
    uint64_t address = (uint64_t)(uintptr_t)in->data;

    if (b->ops->fetch == NULL)
        return place;
    if (place == 0 && address < OARI_PLACE_NONE)
        place = OARI_PLACE_PRIVATE | address;
    return b->ops->fetches(b->self) ? place | OARI_PLACE_FETCHES : place;
}

static void show_buffers(oari_exec *exec, oari_sync_slot *line)
{
    const oari_call *call = exec->call;
    int same =
        call->in.data == call->out.data && call->in.count == call->out.count;
    uint64_t in = 0;

    line->in_count = call->in.count;
    line->out_count = call->out.count;
    if (exec->shows & OARI_SHOWS_IN) {
        in = place_of(exec->shm, &call->in);
        line->in = exec->shows & OARI_SHOWS_PRIVATE
                       ? show_input(exec->shm, &call->in, in)
                       : in;
    }
    if (exec->shows & OARI_SHOWS_OUT)
        line->out = same && in != 0 ? in : place_of(exec->shm, &call->out);
    exec->exposed = (is_exposed(in) ? OARI_SHOWS_IN : 0) |
                    (is_exposed(line->out) ? OARI_SHOWS_OUT : 0);
}

/* Returns where a rank's table of sizes is: behind the addresses in its slot at
 * the first sync point, else in its bounce buffer. */
static uint64_t *table_of(oari_exec *exec, int rank, oari_sync_slot *line)
{
    if (exec->syncs == 0)
        return (uint64_t *)(line + 1);
    return (uint64_t *)oari_shm_bounce_buffer(exec->shm, rank);
}

static void begin_sync(oari_exec *exec, const oari_step *step)
{
    oari_sync_slot *line = oari_shm_next_slot(exec->shm);

    line->fingerprint = exec->link;
    line->sequence = exec->sequence;
    line->factor = exec->call->weight;
    line->in = exec->missed ? OARI_PLACE_MISSED : 0;
    line->out = 0;
    if (exec->syncs == 0 && exec->shows != 0)
        show_buffers(exec, line);
    if (step->from == OARI_TABLE)
        memcpy(table_of(exec, exec->shm->rank, line), exec->table,
               oari_table_words(&exec->request) * sizeof *exec->table);
    if (step->count != 0)
        memcpy(oari_sync_slot_data(line),
               exec->in_data + step->from_at * exec->element,
               step->count * exec->element);
    oari_sync_begin(exec->shm, step->peer);
    exec->begun = 1;
}

/* ---- what other ranks did ------------------------------------------------ */

/* Returns the rank in the group of a shm rank. */
static int member_of(const oari_shm *b, int rank)
{
    return b->member != NULL ? b->member[rank] : rank;
}

/* The text is for backends over which the other rank cannot be asked. */
oar_status oari_exec_report_mismatch(oari_exec *exec, int peer,
                                     const char *format, ...)
{
    const oari_call *call = exec->call;
    oari_exec_mismatch *doubt = &exec->doubt;
    char site[96];
    va_list args;

    doubt->found = 1;
    doubt->peer = peer;
    va_start(args, format);
    vsnprintf(doubt->claim, sizeof doubt->claim, format, args);
    va_end(args);
    oari_site_text(call->file, call->line, site, sizeof site);
    return oari_fail(OAR_E_MISMATCH,
                     "rank %d calls #%llu %s of %zu %s at %s, rank %d calls "
                     "something else%s%s",
                     exec->rank, (unsigned long long)exec->sequence,
                     oar_coll_name(call->kind), oari_call_count(call),
                     oar_dtype_name(call->out.dtype), site, peer,
                     doubt->claim[0] != 0 ? ": " : "", doubt->claim);
}

int oari_exec_awaits_slot(const oari_exec *exec, int rank)
{
    const oari_shm *b = exec->shm;
    int waits = oari_exec_is_at_sync(exec) || exec->lost >= 0;
    int here = waits ? oari_shm_rank(b, rank) : -1;

    if (here < 0 || exec->lost >= 0)
        return here >= 0 && here == exec->lost;
    return oari_sync_awaits(b, here);
}

/* ---- every rank has published its slot ----------------------------------- */

/* What was read from peers' buffers is valid only if all peers were still in
 * the operation afterwards: a rank that had given up, though its slot is there,
 * may have used its memory for something else. */
static int peers_stay(const oari_exec *exec)
{
    oari_fault published;

    atomic_thread_fence(memory_order_acquire); /* after the reading */
    if (!oari_shm_published(exec->shm, OARI_FACT_FAULT, &published))
        return 1;
    oari_fail_with(&published.error);
    return 0;
}

/* Resolves a place that a rank has published. Returns 0 if this rank cannot
 * resolve it, though others may: the ranks would take different steps. */
static int find_buffer(oari_exec *exec, int rank, uint64_t place, size_t count,
                       size_t element, void **found)
{
    oari_shm *b = exec->shm;

    if (place == OARI_PLACE_NONE) {
        *found = exec; /* it is empty: never read or written */
        return 1;
    }
    if (count > SIZE_MAX / 2 / element)
        count = SIZE_MAX / 2 / element;
    *found = b->ops->resolve(b->self, rank, place, count * element);
    return place == 0 || *found != NULL;
}

/* Takes where a rank's buffers are from its slot at the first sync point. */
static int find_buffers(oari_exec *exec, int rank, const oari_sync_slot *line)
{
    uint64_t in = line->in & ~OARI_PLACE_FETCHES;

    exec->in_count[rank] = line->in_count;
    exec->out_count[rank] = line->out_count;
    exec->fetches &= (line->in & OARI_PLACE_FETCHES) != 0;
    exec->in_private[rank] =
        in & OARI_PLACE_PRIVATE ? in & ~OARI_PLACE_PRIVATE : 0;
    if (in & OARI_PLACE_PRIVATE)
        in = 0;
    return find_buffer(exec, rank, in, line->in_count, exec->element,
                       &exec->in[rank]) &&
           find_buffer(exec, rank, line->out, line->out_count,
                       exec->out_element, &exec->out[rank]);
}

/* A rank's table says where its part for me begins, how long that is and how
 * long its longest part is. In a scatter only root's table counts, all of it.
 */
static void read_table(oari_exec *exec, int rank)
{
    const oari_shm *b = exec->shm;
    const uint64_t *theirs = table_of(exec, rank, oari_sync_slot_of(b, rank));
    size_t n = (size_t)exec->ranks, me = (size_t)exec->rank;

    if (exec->call->kind == OAR_COLL_SCATTER) {
        if (rank == exec->call->root)
            for (size_t i = 0; i <= n; i++)
                exec->part_at[i] = theirs[i];
        return;
    }
    exec->their_at[rank] = theirs[me];
    exec->table[rank] = theirs[me + 1] - theirs[me]; /* mine has been shown */
    if (theirs[n + 1] > exec->request.longest_part)
        exec->request.longest_part = theirs[n + 1];
}

/* Returns whether a rank's slot at the last sync point is of the operation with
 * that link. If not, reports the mismatch. */
static int is_of_operation(oari_exec *exec, int rank, uint64_t link)
{
    if (oari_sync_slot_of(exec->shm, rank)->fingerprint == link)
        return 1;
    oari_exec_report_mismatch(exec, member_of(exec->shm, rank), "%s", "");
    return 0;
}

/* Returns whether a rank has not got all, as its slot says at a sync point that
 * is not the first. */
static int has_missed(const oari_exec *exec, const oari_step *step,
                      const oari_sync_slot *line)
{
    return (exec->shows & OARI_SHOWS_PRIVATE) != 0 && step->count == 0 &&
           line->in == OARI_PLACE_MISSED;
}

/* Reads the slots of the ranks that were awaited: whether they agree, and where
 * their buffers are, or whether they have got all. */
static oari_progress read_slots(oari_exec *exec, const oari_step *step)
{
    oari_shm *b = exec->shm;
    int first = exec->syncs == 0, shown = first && exec->shows != 0;
    int factors = first && oari_needs_factors(exec->call->op.kind);
    int from = step->peer > 0 ? step->peer : 0;
    int end = step->peer == OARI_PEER_ALL ? b->ranks
              : step->peer >= 0           ? step->peer + 1
                                          : 0;

    if (shown)
        exec->fetches = 1;
    for (int r = from; r < end; r++) {
        const oari_sync_slot *line = oari_sync_slot_of(b, r);
        if (!is_of_operation(exec, r, exec->link))
            return OARI_FAILED;
        if (factors)
            exec->factor[member_of(b, r)] = line->factor;
        if (shown && !find_buffers(exec, r, line))
            return OARI_FAILED;
        if (!first)
            exec->missed |= has_missed(exec, step, line);
        if (step->from == OARI_TABLE)
            read_table(exec, r);
    }
    if (!first && exec->shows != 0 && !peers_stay(exec))
        return OARI_FAILED;
    exec->syncs++;
    exec->begun = 0;
    exec->at++;
    return OARI_DONE;
}

/* Polls for the ranks that are awaited. Returns whether they are there. */
static int await_ranks(oari_exec *exec)
{
    int polls =
        exec->shm->spin_ns != 0 && !exec->never_waits ? POLLS_IN_A_ROW : 1;

    while (!oari_sync_poll(exec->shm)) {
        if (--polls == 0)
            return 0;
        oari_cpu_pause();
    }
    return 1;
}

/* A rank that needs nothing of the others still waits where something has gone
 * wrong, so that the driver finds out what. */
oari_progress oari_run_sync(oari_exec *exec, const oari_step *step)
{
    if (!exec->begun)
        begin_sync(exec, step);
    if (exec->never_waits) {
        oari_sync_wake(exec->shm);
        return OARI_PENDING;
    }
    if (step->peer == OARI_PEER_NONE && oari_shm_is_troubled(exec->shm))
        oari_sync_await_all(exec->shm);
    if (!await_ranks(exec))
        return OARI_PENDING;
    return read_slots(exec, step);
}

/* ---- the sync point before ----------------------------------------------- */

int oari_exec_must_settle(const oari_exec *exec)
{
    const oari_shm *b = exec->shm;

    return b != NULL &&
           !oari_sync_has_room(b->sync_point, b->complete, OARI_SLOTS);
}

/* The fingerprints are links (history.h), so they show whether the operations
 * agree that this rank has not waited for, too. */
oari_progress oari_run_settle(oari_exec *exec)
{
    oari_shm *b = exec->shm;
    uint64_t mine = oari_sync_slot_of(b, b->rank)->fingerprint;

    oari_sync_await_all(b);
    if (!await_ranks(exec))
        return OARI_PENDING;
    for (int r = 0; r < b->ranks; r++)
        if (!is_of_operation(exec, r, mine))
            return OARI_FAILED;
    exec->settles = 0;
    return OARI_DONE;
}

void oari_run_unless_reachable(oari_exec *exec, const oari_step *step)
{
    void *const *buffer = step->from == OARI_IN ? exec->in : exec->out;
    int fetches = step->kind == OARI_UNLESS_READABLE && exec->fetches;
    int reachable = 1;

    for (int r = 0; r < exec->shm->ranks; r++)
        if (step->peer < 0 || step->peer == r)
            reachable &=
                buffer[r] != NULL || (fetches && exec->in_private[r] != 0);
    exec->at = reachable ? exec->at + 1 : step->jump;
}
