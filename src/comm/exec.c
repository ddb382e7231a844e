/* SPDX-License-Identifier: Apache-2.0 */
/* exec: one interpreter for every plan. A step is either done at once, or
 * pending until a later poll; the position in the plan is all the state there
 * is, so nothing is ever re-entered in the middle of a loop. */
#include "comm/exec.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/reduce.h"
#include "base/status.h"
#include "base/thread.h"

void (*oari_exec_hook)(const oari_exec *exec);

enum { POLLS_IN_A_ROW = 256 };

/* ---- making ----------------------------------------------------------------
 */

oar_status oari_exec_init(oari_exec *exec)
{
    size_t n = (size_t)exec->ranks;

    exec->in = oari_alloc(n, sizeof *exec->in);
    exec->out = oari_alloc(n, sizeof *exec->out);
    exec->factor = oari_alloc(n, sizeof *exec->factor);
    exec->source = oari_alloc(n + 1, sizeof *exec->source);
    exec->destination = oari_alloc(n + 1, sizeof *exec->destination);
    exec->transfer_room = 2 * exec->ranks;
    exec->transfer = oari_alloc(2 * n, sizeof *exec->transfer);
    if (exec->in == NULL || exec->out == NULL || exec->factor == NULL ||
        exec->source == NULL || exec->destination == NULL ||
        exec->transfer == NULL)
        return OAR_E_NOMEM;
    return OAR_OK;
}

void oari_exec_clear(oari_exec *exec)
{
    for (int i = 0; i < OARI_PLAN_CACHE; i++)
        oari_plan_clear(&exec->cache[i].plan);
    oari_free(exec->in);
    oari_free(exec->out);
    oari_free(exec->factor);
    oari_free(exec->source);
    oari_free(exec->destination);
    oari_free(exec->transfer);
    oari_free(exec->gather);
}

/* ---- finding the plan
 * -------------------------------------------------------*/

static int needs_factors(oar_op_kind kind)
{
    return kind == OAR_OP_PREMUL_SUM || kind == OAR_OP_WEIGHTED_MEAN;
}

static int same_ask(const oari_ask *a, const oari_ask *b)
{
    return a->count == b->count && a->kind == b->kind &&
           a->element == b->element && a->root == b->root &&
           a->weighted == b->weighted;
}

static oar_status plan_for(oari_exec *exec, const oari_ask *ask)
{
    unsigned hash = (unsigned)(ask->count * 0x9e3779b1u) >> 4;
    oari_cached_plan *c =
        &exec->cache[(hash + (unsigned)ask->kind) % OARI_PLAN_CACHE];
    const oari_algorithm *algorithm;

    if (c->algorithm == NULL || !same_ask(&c->ask, ask)) {
        algorithm = oari_choose(ask, exec->board != NULL, exec->algorithm);
        if (algorithm == NULL)
            return OAR_E_UNSUPPORTED;
        oari_plan_clear(&c->plan);
        c->algorithm = NULL;
        OARI_TRY(oari_plan_make(algorithm, ask, &c->plan));
        c->ask = *ask;
        c->algorithm = algorithm;
    }
    exec->plan = &c->plan;
    return OAR_OK;
}

static oar_status make_gather(oari_exec *exec)
{
    size_t bytes = exec->plan->slot_count * exec->element * (size_t)exec->ranks;

    if (bytes <= exec->gather_bytes)
        return OAR_OK;
    oari_free(exec->gather);
    exec->gather_bytes = 0;
    exec->gather = oari_alloc_aligned(64, bytes);
    if (exec->gather == NULL)
        return OAR_E_NOMEM;
    exec->gather_bytes = bytes;
    return OAR_OK;
}

oar_status oari_exec_start(oari_exec *exec, const oari_call *call,
                           uint64_t sequence)
{
    oari_ask ask = { .kind = call->kind,
                     .rank = exec->rank,
                     .ranks = exec->ranks,
                     .root = call->root,
                     .count = call->out.count,
                     .element = oar_dtype_size(call->out.dtype),
                     .weighted = needs_factors(call->op.kind),
                     .small_bytes = exec->small_bytes,
                     .line_bytes = oari_line_bytes(exec->small_bytes),
                     .stage_bytes = exec->stage_bytes };

    exec->call = call;
    exec->sequence = sequence;
    exec->fingerprint = oari_call_fingerprint(call);
    exec->element = ask.element;
    exec->at = exec->begun = exec->met = exec->exposed = 0;
    exec->transfers = 0;
    exec->number++;
    exec->factor[exec->rank] = call->weight;
    OARI_TRY(plan_for(exec, &ask));
    if (exec->plan->slot_count != 0)
        OARI_TRY(make_gather(exec));
    return OAR_OK;
}

/* ---- meetings ---------------------------------------------------------------
 */

static void show_buffers(oari_exec *exec, oari_line *line)
{
    const oari_call *call = exec->call;
    oari_board *b = exec->board;
    size_t bytes = oari_call_bytes(call);

    line->in = b->ops->place(b->self, call->in.data, bytes);
    if (call->kind == OAR_COLL_BROADCAST)
        line->out = 0; /* nobody writes to another rank's */
    else
        line->out = call->in.data == call->out.data
                        ? line->in
                        : b->ops->place(b->self, call->out.data, bytes);
    exec->exposed = line->in != 0 || line->out != 0;
}

static void begin_meeting(oari_exec *exec, const oari_step *step)
{
    oari_line *line = oari_board_line(exec->board);

    line->fingerprint = exec->fingerprint;
    line->sequence = exec->sequence;
    line->factor = exec->call->weight;
    line->in = line->out = 0;
    if (exec->met == 0 && exec->plan->shows_buffers)
        show_buffers(exec, line);
    if (step->count != 0)
        memcpy(oari_line_data(line),
               (const unsigned char *)exec->call->in.data +
                   step->from_at * exec->element,
               step->count * exec->element);
    oari_meet_begin(exec->board);
    exec->begun = 1;
}

static void describe(const oar_record *r, char *text, size_t bytes)
{
    int n = snprintf(text, bytes, "#%llu %s(", (unsigned long long)r->sequence,
                     oar_coll_name(r->kind));

    if (r->kind != OAR_COLL_BARRIER && n > 0 && (size_t)n < bytes)
        n += snprintf(text + n, bytes - (size_t)n, "%llu %s%s%s",
                      (unsigned long long)r->count, oar_dtype_name(r->dtype),
                      r->kind == OAR_COLL_ALL_REDUCE ? ", " : "",
                      r->kind == OAR_COLL_ALL_REDUCE ? oar_op_name(r->op) : "");
    if (r->root >= 0 && n > 0 && (size_t)n < bytes)
        n += snprintf(text + n, bytes - (size_t)n, ", root %d", r->root);
    if (n > 0 && (size_t)n < bytes)
        snprintf(text + n, bytes - (size_t)n, ") at %s%s%s", r->site,
                 r->label[0] != 0 ? " " : "", r->label);
}

/* What a rank says it did in the operation its line shows. */
static void describe_line(const oari_exec *exec, int rank, char *text,
                          size_t bytes)
{
    const void *recorder = exec->board->recorder[rank];
    const oari_line *line = oari_meet_line(exec->board, rank);
    oar_record record;

    if (recorder != NULL &&
        oari_recorder_by_sequence(recorder, line->sequence, &record) == OAR_OK)
        describe(&record, text, bytes);
    else
        snprintf(text, bytes, "operation #%llu",
                 (unsigned long long)line->sequence);
}

static oari_progress mismatch(const oari_exec *exec, int rank)
{
    char mine[256], theirs[256];

    describe_line(exec, exec->rank, mine, sizeof mine);
    describe_line(exec, rank, theirs, sizeof theirs);
    oari_fail(OAR_E_MISMATCH, "rank %d calls %s, but rank %d calls %s",
              exec->rank, mine, rank, theirs);
    return OARI_FAILED;
}

/* What was read from peers' buffers counts only if they were all still in the
 * operation afterwards: one that had given up, though its line is there, may
 * have used its memory for something else. */
static int all_stayed(const oari_exec *exec)
{
    const oar_error *published;

    atomic_thread_fence(memory_order_acquire); /* after the reading */
    published = oari_board_published(exec->board);
    if (published != NULL)
        oari_fail_with(published);
    return published == NULL;
}

/* Everyone's line is there: do they agree, and where are their buffers? */
static oari_progress read_lines(oari_exec *exec)
{
    oari_board *b = exec->board;
    int first = exec->met++ == 0;
    size_t bytes =
        first && exec->plan->shows_buffers ? oari_call_bytes(exec->call) : 0;

    for (int r = 0; r < exec->ranks; r++) {
        const oari_line *line = oari_meet_line(b, r);
        if (line->fingerprint != exec->fingerprint)
            return mismatch(exec, r);
        if (!first)
            continue;
        exec->factor[r] = line->factor;
        if (bytes == 0)
            continue;
        exec->in[r] = b->ops->resolve(b->self, r, line->in, bytes);
        exec->out[r] = b->ops->resolve(b->self, r, line->out, bytes);
        if ((line->in != 0 && exec->in[r] == NULL) ||
            (line->out != 0 && exec->out[r] == NULL))
            return OARI_FAILED; /* others can: we would go separate ways */
    }
    if (!first && exec->plan->shows_buffers && !all_stayed(exec))
        return OARI_FAILED;
    exec->begun = 0;
    exec->at++;
    return OARI_DONE;
}

static oari_progress run_meet(oari_exec *exec, const oari_step *step)
{
    int polls = exec->board->spin_ns != 0 ? POLLS_IN_A_ROW : 1;

    if (!exec->begun)
        begin_meeting(exec, step);
    while (!oari_meet_poll(exec->board)) {
        if (--polls == 0)
            return OARI_PENDING;
        oari_relax();
    }
    return read_lines(exec);
}

static void run_unless_reachable(oari_exec *exec, const oari_step *step)
{
    int reachable = 1;

    if (step->peer >= 0)
        reachable = exec->in[step->peer] != NULL;
    else
        for (int r = 0; r < exec->ranks; r++)
            reachable &= exec->in[r] != NULL && exec->out[r] != NULL;
    if (exec->call->out.count == 0)
        reachable = 1;
    exec->at = reachable ? exec->at + 1 : step->jump;
}

/* ---- memory
 * ------------------------------------------------------------------*/

static unsigned char *locate(oari_exec *exec, oari_where where, int peer,
                             size_t at)
{
    int rank = peer < 0 ? exec->rank : peer;
    unsigned char *base = NULL;

    switch (where) {
    case OARI_IN:
        base = rank == exec->rank ? exec->call->in.data : exec->in[rank];
        break;
    case OARI_OUT:
    case OARI_ALL_OUT:
        base = rank == exec->rank ? exec->call->out.data : exec->out[rank];
        break;
    case OARI_LINE: {
        oari_board *b = exec->board;
        base = oari_line_data(b->line[rank][b->meeting & 1]);
        break;
    }
    case OARI_STAGE: base = oari_board_stage(exec->board, rank); break;
    case OARI_GATHER: base = exec->gather; break;
    case OARI_FACTOR: return (unsigned char *)(exec->factor + at);
    }
    return base + at * exec->element;
}

/* Around work on buffers of other ranks. */
static int enter_peers(const oari_exec *exec, const oari_step *step)
{
    const oari_board *b = exec->board;

    if (step->from != OARI_IN || b == NULL || b->ops->enter == NULL ||
        b->ops->enter(b->self))
        return 1;
    oari_fail(OAR_E_ABORTED, "a rank has given up on operation #%llu",
              (unsigned long long)exec->sequence);
    return 0;
}

static void leave_peers(const oari_exec *exec, const oari_step *step)
{
    const oari_board *b = exec->board;

    if (step->from == OARI_IN && b != NULL && b->ops->leave != NULL)
        b->ops->leave(b->self);
}

static oari_progress run_copy(oari_exec *exec, const oari_step *step)
{
    void *to = locate(exec, step->to, -1, step->to_at);
    const void *from = locate(exec, step->from, step->peer, step->from_at);

    if (!enter_peers(exec, step))
        return OARI_FAILED;
    if (to != from)
        memcpy(to, from, step->count * exec->element);
    leave_peers(exec, step);
    exec->at++;
    return OARI_DONE;
}

/* Where the result of a reduction goes; how many places. */
static int find_destinations(oari_exec *exec, const oari_step *step)
{
    void **to = exec->destination;

    if (step->to == OARI_ALL_OUT) {
        for (int r = 0; r < exec->ranks; r++)
            to[r] = locate(exec, OARI_OUT, r, step->to_at);
        return exec->ranks;
    }
    to[0] = locate(exec, step->to, -1, step->to_at);
    if (step->to != OARI_STAGE)
        return 1;
    to[1] = locate(exec, OARI_OUT, -1, step->out_at);
    return 2;
}

static void find_sources(oari_exec *exec, const oari_step *step)
{
    size_t slot = step->from == OARI_GATHER ? exec->plan->slot_count : 0;

    for (int r = 0; r < exec->ranks; r++)
        exec->source[r] =
            locate(exec, step->from, r, step->from_at + (size_t)r * slot);
}

static double divisor_of(const oari_exec *exec)
{
    double sum = 0;

    if (exec->call->op.kind == OAR_OP_AVG)
        return exec->ranks;
    if (exec->call->op.kind != OAR_OP_WEIGHTED_MEAN)
        return 0;
    for (int r = 0; r < exec->ranks; r++)
        sum += exec->factor[r];
    return sum;
}

static oari_progress run_reduce(oari_exec *exec, const oari_step *step)
{
    oar_op_kind kind = exec->call->op.kind;
    int factors = needs_factors(kind);
    oari_reduction r = {
        .kind = factors || kind == OAR_OP_AVG ? OAR_OP_SUM : kind,
        .dtype = exec->call->out.dtype,
        .sources = exec->ranks,
        .source = exec->source,
        .factor = factors ? exec->factor : NULL,
        .divisor = divisor_of(exec),
        .destinations = find_destinations(exec, step),
        .destination = exec->destination,
    };

    find_sources(exec, step);
    if (!enter_peers(exec, step))
        return OARI_FAILED;
    oari_reduce(&r, step->count);
    leave_peers(exec, step);
    exec->at++;
    return OARI_DONE;
}

/* ---- messages
 * ----------------------------------------------------------------*/

/* Messages of collectives are told apart by the collective's number and,
 * between one pair, by their order; bit 63 is for the user's. */
static oari_progress run_message(oari_exec *exec, const oari_step *step)
{
    int sending = step->kind == OARI_SEND;
    oari_where where = sending ? step->from : step->to;
    size_t at = sending ? step->from_at : step->to_at;
    size_t element = where == OARI_FACTOR ? sizeof(double) : exec->element;
    oar_transfer *t = &exec->transfer[exec->transfers];
    oar_status status;

    *t = (oar_transfer){ .size = sizeof *t,
                         .peer = step->peer,
                         .tag = exec->number,
                         .data = locate(exec, where, -1, at),
                         .bytes = step->count * element };
    status = sending ? exec->backend->send(exec->self, t)
                     : exec->backend->recv(exec->self, t);
    if (status != OAR_OK)
        return OARI_FAILED;
    exec->transfers++;
    exec->at++;
    return OARI_DONE;
}

static oari_progress message_failed(const oari_exec *exec,
                                    const oar_transfer *t)
{
    if (t->status == OAR_E_SIZE)
        oari_fail(OAR_E_MISMATCH,
                  "rank %d expected %zu bytes of rank %d, which sent a "
                  "message of another size in operation #%llu",
                  exec->rank, t->bytes, t->peer,
                  (unsigned long long)exec->sequence);
    else
        oari_fail(t->status, "message with rank %d failed", t->peer);
    return OARI_FAILED;
}

static oari_progress run_wait(oari_exec *exec)
{
    for (int i = 0; i < exec->transfers; i++)
        if (!exec->transfer[i].done)
            return OARI_PENDING;
    for (int i = 0; i < exec->transfers; i++)
        if (exec->transfer[i].status != OAR_OK)
            return message_failed(exec, &exec->transfer[i]);
    exec->transfers = 0;
    exec->at++;
    return OARI_DONE;
}

/* ---- the interpreter
 * ----------------------------------------------------------*/

static oari_progress run_step(oari_exec *exec, const oari_step *step)
{
    switch (step->kind) {
    case OARI_MEET: return run_meet(exec, step);
    case OARI_UNLESS_REACHABLE: run_unless_reachable(exec, step); break;
    case OARI_COPY: return run_copy(exec, step);
    case OARI_REDUCE: return run_reduce(exec, step);
    case OARI_SEND:
    case OARI_RECV: return run_message(exec, step);
    case OARI_WAIT: return run_wait(exec);
    case OARI_END: break;
    }
    return OARI_DONE;
}

oari_progress oari_exec_poll(oari_exec *exec)
{
    for (;;) {
        const oari_step *step = &exec->plan->step[exec->at];
        oari_progress progress;
        if (oari_exec_hook != NULL && !exec->begun)
            oari_exec_hook(exec);
        if (step->kind == OARI_END)
            return OARI_DONE;
        progress = run_step(exec, step);
        if (progress != OARI_DONE)
            return progress;
    }
}

void oari_exec_withdraw(oari_exec *exec)
{
    oari_board *b = exec->board;

    if (!exec->exposed)
        return;
    exec->exposed = 0;
    b->ops->detach(b->self, exec->call->out.data,
                   exec->call->kind == OAR_COLL_BROADCAST
                       ? 0
                       : oari_call_bytes(exec->call));
}

void oari_exec_missing(const oari_exec *exec, int rank, char *text,
                       size_t bytes)
{
    const oari_board *b = exec->board;
    int here = b != NULL ? oari_board_rank(b, rank) : -1;
    const void *recorder = here >= 0 ? b->recorder[here] : NULL;
    char what[256] = "";
    oar_record record;

    if (recorder != NULL &&
        oari_recorder_newest(recorder, 0, &record) == OAR_OK)
        describe(&record, what, sizeof what);
    if (here < 0)
        snprintf(text, bytes, "rank %d", rank);
    else
        snprintf(text, bytes, "rank %d (pid %lld; %s%s)", rank,
                 (long long)b->control[here]->pid,
                 what[0] != 0 ? "its last operation was "
                              : "it has not called anything yet",
                 what);
}
