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

/* A buffer of no elements: nothing to reach. */
static const uint64_t no_place = UINT64_MAX;

/* ---- publishing my slot -------------------------------------------------- */

static uint64_t place_of(oari_shm *b, const oar_span *span)
{
    if (span->count == 0)
        return no_place;
    return b->ops->place(b->self, span->data, oari_span_bytes(span));
}

static int is_exposed(uint64_t place)
{
    return place != 0 && place != no_place;
}

static void show_buffers(oari_exec *exec, oari_sync_slot *line)
{
    const oari_call *call = exec->call;
    int same =
        call->in.data == call->out.data && call->in.count == call->out.count;

    line->in_count = call->in.count;
    line->out_count = call->out.count;
    if (exec->shows & OARI_SHOWS_IN)
        line->in = place_of(exec->shm, &call->in);
    if (exec->shows & OARI_SHOWS_OUT)
        line->out =
            same && line->in != 0 ? line->in : place_of(exec->shm, &call->out);
    exec->exposed = (is_exposed(line->in) ? OARI_SHOWS_IN : 0) |
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
    line->in = line->out = 0;
    if (exec->syncs == 0 && exec->shows != 0)
        show_buffers(exec, line);
    if (step->from == OARI_TABLE)
        memcpy(table_of(exec, exec->shm->rank, line), exec->table,
               oari_table_words(&exec->request) * sizeof *exec->table);
    if (step->count != 0)
        memcpy(oari_sync_slot_data(line),
               exec->in_data + step->from_at * exec->element,
               step->count * exec->element);
    oari_sync_begin(exec->shm);
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
    int here = exec->begun ? oari_shm_rank(b, rank) : -1;

    return here >= 0 && atomic_load(&b->line[here][b->sync_point & 1]->stamp) !=
                            b->sync_point;
}

/* ---- every rank has published its slot ----------------------------------- */

/* What was read from peers' buffers is valid only if all peers were still in
 * the operation afterwards: a rank that had given up, though its slot is there,
 * may have used its memory for something else. */
static int all_stayed(const oari_exec *exec)
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

    if (place == no_place) {
        *found = exec; /* it is empty: never read or written */
        return 1;
    }
    if (count > SIZE_MAX / 2 / element)
        count = SIZE_MAX / 2 / element;
    *found = b->ops->resolve(b->self, rank, place, count * element);
    return place == 0 || *found != NULL;
}

/* A rank's table says where its part for me begins, how long that is and how
 * long its longest part is. In a scatter only root's table counts, all of it.
 */
static void read_table(oari_exec *exec, int rank)
{
    const oari_shm *b = exec->shm;
    const uint64_t *theirs =
        table_of(exec, rank, b->line[rank][b->sync_point & 1]);
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

/* Reads every rank's slot: whether all agree, and where their buffers are. */
static oari_progress read_slots(oari_exec *exec, const oari_step *step)
{
    oari_shm *b = exec->shm;
    int first = exec->syncs == 0, shown = first && exec->shows != 0;
    int factors = first && oari_needs_factors(exec->call->op.kind);

    for (int r = 0; r < b->ranks; r++) {
        const oari_sync_slot *line = oari_sync_slot_of(b, r);
        if (line->fingerprint != exec->link) {
            oari_exec_report_mismatch(exec, member_of(b, r), "%s", "");
            return OARI_FAILED;
        }
        if (factors)
            exec->factor[member_of(b, r)] = line->factor;
        if (shown) {
            exec->in_count[r] = line->in_count;
            exec->out_count[r] = line->out_count;
        }
        if (shown && (!find_buffer(exec, r, line->in, line->in_count,
                                   exec->element, &exec->in[r]) ||
                      !find_buffer(exec, r, line->out, line->out_count,
                                   exec->out_element, &exec->out[r])))
            return OARI_FAILED;
        if (step->from == OARI_TABLE)
            read_table(exec, r);
    }
    if (!first && exec->shows != 0 && !all_stayed(exec))
        return OARI_FAILED;
    exec->syncs++;
    exec->begun = 0;
    exec->at++;
    return OARI_DONE;
}

oari_progress oari_run_sync(oari_exec *exec, const oari_step *step)
{
    int polls = exec->shm->spin_ns != 0 ? POLLS_IN_A_ROW : 1;

    if (!exec->begun)
        begin_sync(exec, step);
    if (exec->never_waits) {
        oari_sync_wake(exec->shm);
        return OARI_PENDING;
    }
    while (!oari_sync_poll(exec->shm)) {
        if (--polls == 0)
            return OARI_PENDING;
        oari_cpu_pause();
    }
    return read_slots(exec, step);
}

void oari_run_unless_reachable(oari_exec *exec, const oari_step *step)
{
    void *const *buffer = step->from == OARI_IN ? exec->in : exec->out;
    int reachable = 1;

    if (step->peer >= 0)
        reachable = buffer[step->peer] != NULL;
    for (int r = 0; r < exec->shm->ranks && step->peer < 0; r++)
        reachable &= buffer[r] != NULL;
    exec->at = reachable ? exec->at + 1 : step->jump;
}
