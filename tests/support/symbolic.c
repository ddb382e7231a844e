/* SPDX-License-Identifier: Apache-2.0 */
#include "support/symbolic.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/board.h"

/* ---- symbols ------------------------------------------------------------- */

typedef uint64_t symbol; /* 0: never written */

static symbol mix(symbol a, symbol b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    a = (a ^ a >> 32) * 0xd6e8feb86659fd93u;
    a ^= a >> 29;
    return a != 0 ? a : 1;
}

enum { INPUT = 11, GARBAGE, FACTOR, REDUCED, HEADER };

static symbol name(int what, int op, int rank, size_t at)
{
    return mix((symbol)what << 48 | (symbol)op << 40 | (symbol)rank << 32,
               (symbol)at);
}

/* ---- the world ----------------------------------------------------------- */

/* Memory of a rank that others may reach. */
enum { IN, OUT, STAGE, LINE_0, LINE_1, MEMORIES };
static const char *const memory_name[] = { "in", "out", "stage", "line 0",
                                           "line 1" };

enum { NOBODY = -1, SEVERAL = -2 };

typedef struct cell {
    symbol value;
    uint32_t clock; /* of its writer, when it wrote */
    int writer;
    int reader;    /* since then */
    uint32_t seen; /* its clock, if it is one */
    uint32_t run;  /* the run it was last used in; else it is blank */
} cell;

typedef struct memory {
    size_t room;
    cell *cell;
    uint32_t *read; /* by cell, then rank: clocks of several readers */
} memory;

/* Kept from run to run: most of it is never touched. */
static struct arena {
    size_t room;
    cell *cell;
    uint32_t *read;
} arena[SYMBOLIC_RANKS][MEMORIES];
static uint32_t run_number;

typedef struct transfer {
    int sending, peer, done;
    oari_where where;
    size_t at, count;
} transfer;

typedef struct one_rank {
    int op; /* how many it has ended */
    int started;
    oari_plan plan;
    int at, begun, met;
    uint64_t meeting;
    memory memory[MEMORIES];
    symbol *gather;
    size_t gather_room;
    symbol factor[SYMBOLIC_RANKS];
    transfer transfer[2 * SYMBOLIC_RANKS];
    int transfers;
    uint32_t clock[SYMBOLIC_RANKS];
    uint32_t shown[2][SYMBOLIC_RANKS]; /* the clock at the line's meeting */
} one_rank;

typedef struct world {
    const symbolic_case *c;
    symbolic_counts counts;
    uint64_t random;
    int broken;
    char text[512];
    symbol *expected[SYMBOLIC_OPS];
    one_rank rank[SYMBOLIC_RANKS];
} world;

static world w;

static void broke(const char *format, ...) OAR_PRINTF(1, 2);
static void broke(const char *format, ...)
{
    va_list args;
    int used;

    if (w.broken)
        return;
    w.broken = 1;
    used = snprintf(w.text, sizeof w.text,
                    "%d ranks, order %d, seed %llu: ", w.c->ranks,
                    (int)w.c->order, (unsigned long long)w.c->seed);
    va_start(args, format);
    vsnprintf(w.text + used, sizeof w.text - (size_t)used, format, args);
    va_end(args);
}

static unsigned draw(unsigned below)
{
    w.random = w.random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(w.random >> 33) % below;
}

static const symbolic_op *op_of(int me)
{
    return &w.c->op[w.rank[me].op];
}

/* ---- memory that is watched ---------------------------------------------- */

static cell *touch(int me, int owner, int what, size_t at)
{
    memory *m = &w.rank[owner].memory[what];
    cell *c = &m->cell[at];

    if (at < m->room) {
        if (c->run != run_number)
            *c = (cell){ 0, 0, 0, NOBODY, 0, run_number };
        return c;
    }
    broke("rank %d goes to %s[%zu] of rank %d, which has %zu", me,
          memory_name[what], at, owner, m->room);
    return NULL;
}

static void note_reader(memory *m, size_t at, int me)
{
    cell *c = &m->cell[at];
    uint32_t *read = m->read + at * (size_t)w.c->ranks;
    uint32_t now = w.rank[me].clock[me];

    if (c->reader == NOBODY || c->reader == me) {
        c->reader = me;
        c->seen = now;
        return;
    }
    if (c->reader != SEVERAL) {
        memset(read, 0, (size_t)w.c->ranks * sizeof *read);
        read[c->reader] = c->seen;
        c->reader = SEVERAL;
    }
    read[me] = now;
}

/* A rank whose reading of the cell `me` has not heard of, or NOBODY. */
static int reader_beside(const memory *m, size_t at, int me)
{
    const cell *c = &m->cell[at];
    const uint32_t *read = m->read + at * (size_t)w.c->ranks;
    const uint32_t *clock = w.rank[me].clock;

    if (c->reader >= 0)
        return c->reader != me && c->seen > clock[c->reader] ? c->reader
                                                             : NOBODY;
    for (int r = 0; r < w.c->ranks && c->reader == SEVERAL; r++)
        if (r != me && read[r] > clock[r])
            return r;
    return NOBODY;
}

static symbol get(int me, int owner, int what, size_t at)
{
    memory *m = &w.rank[owner].memory[what];
    uint32_t *clock = w.rank[me].clock;
    cell *c = touch(me, owner, what, at);

    if (c == NULL)
        return 0;
    if (c->value == 0)
        broke("rank %d reads %s[%zu] of rank %d before it is written", me,
              memory_name[what], at, owner);
    if (c->writer != me && c->clock > clock[c->writer])
        broke("rank %d reads %s[%zu] of rank %d while rank %d writes it", me,
              memory_name[what], at, owner, c->writer);
    note_reader(m, at, me);
    return c->value;
}

static void put(int me, int owner, int what, size_t at, symbol value)
{
    memory *m = &w.rank[owner].memory[what];
    uint32_t *clock = w.rank[me].clock;
    cell *c = touch(me, owner, what, at);
    int reader;

    if (c == NULL)
        return;
    if (c->writer != me && c->clock > clock[c->writer])
        broke("rank %d writes %s[%zu] of rank %d while rank %d writes it", me,
              memory_name[what], at, owner, c->writer);
    if ((reader = reader_beside(m, at, me)) != NOBODY)
        broke("rank %d writes %s[%zu] of rank %d while rank %d reads it", me,
              memory_name[what], at, owner, reader);
    *c = (cell){ value, clock[me], me, NOBODY, 0, run_number };
}

/* ---- places of a plan ---------------------------------------------------- */

static int in_of(int owner, int op)
{
    const symbolic_op *o = &w.c->op[op];

    return o->ask.kind == OAR_COLL_BROADCAST || o->in_place >> owner & 1 ? OUT
                                                                         : IN;
}

/* Whether `me` may go to the buffers of another rank by now. */
static void check_reach(int me, int owner, oari_where where)
{
    const one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);
    int shown = o->ask.kind != OAR_COLL_BROADCAST ||
                (where == OARI_IN && owner == o->ask.root);

    if (owner == me || (r->plan.shows_buffers && r->met > 0 && shown &&
                        o->reachable && w.rank[owner].op == r->op))
        return;
    broke("rank %d goes to a buffer of rank %d that it cannot reach", me,
          owner);
}

static int watched(int me, int owner, oari_where where)
{
    switch (where) {
    case OARI_IN:
        check_reach(me, owner, where);
        return in_of(owner, w.rank[me].op);
    case OARI_OUT:
    case OARI_ALL_OUT: check_reach(me, owner, where); return OUT;
    case OARI_LINE: return w.rank[me].meeting & 1 ? LINE_1 : LINE_0;
    case OARI_STAGE: return STAGE;
    case OARI_GATHER:
    case OARI_FACTOR: break;
    }
    return -1;
}

static symbol *scratch(int me, oari_where where, size_t at)
{
    one_rank *r = &w.rank[me];

    if (where == OARI_GATHER && at < r->gather_room)
        return &r->gather[at];
    if (where == OARI_FACTOR && at < (size_t)w.c->ranks)
        return &r->factor[at];
    broke("rank %d goes to scratch place %d[%zu]", me, (int)where, at);
    return &r->factor[0];
}

/* Messages under way that hold any of these elements: 1 if one reads, 2 if one
 * writes. */
static int held(int me, oari_where where, size_t at, size_t count)
{
    const one_rank *r = &w.rank[me];
    int how = 0;

    for (int i = 0; i < r->transfers; i++) {
        const transfer *t = &r->transfer[i];
        int same = t->where == where ||
                   (where <= OARI_OUT && t->where <= OARI_OUT &&
                    watched(me, me, where) == watched(me, me, t->where));
        if (same && at < t->at + t->count && t->at < at + count)
            how |= t->sending ? 1 : 2;
    }
    return how;
}

static symbol take(int me, int owner, oari_where where, size_t at)
{
    int what = watched(me, owner, where);
    symbol value;

    if (owner == me && w.rank[me].transfers != 0 && held(me, where, at, 1) & 2)
        broke("rank %d reads place %d[%zu], where a message arrives", me,
              (int)where, at);
    if (what >= 0)
        return get(me, owner, what, at);
    value = *scratch(me, where, at);
    if (value == 0)
        broke("rank %d reads scratch place %d[%zu] before it is written", me,
              (int)where, at);
    return value;
}

static void leave(int me, int owner, oari_where where, size_t at, symbol value)
{
    int what = watched(me, owner, where);

    if (owner == me && w.rank[me].transfers != 0 && held(me, where, at, 1))
        broke("rank %d writes place %d[%zu], which a message uses", me,
              (int)where, at);
    if (what >= 0)
        put(me, owner, what, at, value);
    else
        *scratch(me, where, at) = value;
}

/* ---- steps over memory --------------------------------------------------- */

static void begin_meeting(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];
    int slot = (int)(r->meeting + 1) & 1, line = slot ? LINE_1 : LINE_0;
    size_t room = w.rank[me].memory[line].room - 1;

    if (s->count > room)
        broke("rank %d puts %zu elements in a line of %zu", me, s->count, room);
    for (size_t i = 0; i < s->count && !w.broken; i++)
        put(me, me, line, i, take(me, me, OARI_IN, s->from_at + i));
    r->meeting++;
    put(me, me, line, room, name(HEADER, r->op, me, r->meeting));
    memcpy(r->shown[slot], r->clock, sizeof r->clock);
    r->clock[me]++;
    r->begun = 1;
    w.counts.meetings[me]++;
}

static void join(int me, int peer, int slot)
{
    uint32_t *mine = w.rank[me].clock;
    const uint32_t *theirs = w.rank[peer].shown[slot];

    for (int i = 0; i < w.c->ranks; i++)
        if (theirs[i] > mine[i])
            mine[i] = theirs[i];
}

static void end_meeting(int me)
{
    one_rank *r = &w.rank[me];
    int slot = (int)r->meeting & 1, line = slot ? LINE_1 : LINE_0;

    for (int p = 0; p < w.c->ranks; p++)
        join(me, p, slot);
    for (int p = 0; p < w.c->ranks; p++) {
        size_t head = w.rank[p].memory[line].room - 1;
        if (get(me, p, line, head) != name(HEADER, r->op, p, r->meeting))
            broke("rank %d finds another meeting in the line of rank %d", me,
                  p);
        if (r->met == 0)
            r->factor[p] = name(FACTOR, r->op, p, 0);
    }
    r->met++;
    r->begun = 0;
    r->at++;
}

static int run_meet(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];

    if (!r->begun) {
        begin_meeting(me, s);
        return 1;
    }
    for (int p = 0; p < w.c->ranks; p++)
        if (w.rank[p].meeting < r->meeting)
            return 0;
    end_meeting(me);
    return 1;
}

static int run_unless_reachable(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);

    if (r->met != 1 || !r->plan.shows_buffers || s->jump <= r->at ||
        s->jump >= r->plan.steps)
        broke("rank %d: step %d asks what it cannot know", me, r->at);
    r->at = o->reachable || o->ask.count == 0 ? r->at + 1 : s->jump;
    return 1;
}

static int run_copy(int me, const oari_step *s)
{
    int from = s->peer < 0 ? me : s->peer;

    for (size_t i = 0; i < s->count && !w.broken; i++)
        leave(me, me, s->to, s->to_at + i,
              take(me, from, s->from, s->from_at + i));
    w.rank[me].at++;
    return 1;
}

static symbol combine_one(int me, const oari_step *s, size_t i)
{
    const one_rank *r = &w.rank[me];
    symbol sum = (symbol)REDUCED;

    for (int p = 0; p < w.c->ranks; p++) {
        size_t slot = s->from == OARI_GATHER ? r->plan.slot_count : 0;
        int owner = s->from == OARI_GATHER ? me : p;
        symbol part =
            take(me, owner, s->from, s->from_at + (size_t)p * slot + i);
        if (op_of(me)->ask.weighted)
            part = mix(part, take(me, me, OARI_FACTOR, (size_t)p));
        sum = mix(sum, part);
    }
    return sum;
}

static int run_reduce(int me, const oari_step *s)
{
    for (size_t i = 0; i < s->count && !w.broken; i++) {
        symbol sum = combine_one(me, s, i);
        if (s->to == OARI_ALL_OUT)
            for (int p = 0; p < w.c->ranks; p++)
                leave(me, p, OARI_OUT, s->to_at + i, sum);
        else
            leave(me, me, s->to, s->to_at + i, sum);
        if (s->to == OARI_STAGE)
            leave(me, me, OARI_OUT, s->out_at + i, sum);
    }
    w.rank[me].at++;
    return 1;
}

/* ---- messages ------------------------------------------------------------ */

static int run_message(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];
    int sending = s->kind == OARI_SEND;
    transfer t = { sending,
                   s->peer,
                   0,
                   sending ? s->from : s->to,
                   sending ? s->from_at : s->to_at,
                   s->count };

    if (s->peer < 0 || s->peer >= w.c->ranks || s->peer == me)
        broke("rank %d has a message with rank %d", me, s->peer);
    if (r->transfers == 2 * w.c->ranks) { /* oari_exec.transfer_room */
        broke("rank %d starts more than %d messages", me, r->transfers);
        return 1;
    }
    if (held(me, t.where, t.at, t.count) & (sending ? 2 : 3))
        broke("rank %d: two messages use place %d[%zu ..]", me, (int)t.where,
              t.at);
    r->transfer[r->transfers++] = t;
    if (sending) {
        w.counts.messages[me]++;
        *(t.where == OARI_FACTOR ? &w.counts.factors[me]
                                 : &w.counts.sent[me]) += t.count;
    }
    r->at++;
    return 1;
}

/* The other end of the first message of its kind between two ranks. */
static transfer *other_end(int me, const transfer *mine)
{
    one_rank *r = &w.rank[mine->peer];

    if (r->op != w.rank[me].op || !r->started)
        return NULL;
    for (int i = 0; i < r->transfers; i++) {
        transfer *t = &r->transfer[i];
        if (t->peer == me && t->sending != mine->sending && !t->done)
            return t;
    }
    return NULL;
}

static void deliver(int from, transfer *send, int to, transfer *receive)
{
    if (send->count != receive->count ||
        (send->where == OARI_FACTOR) != (receive->where == OARI_FACTOR))
        broke("rank %d sends %zu elements to rank %d, which expects %zu", from,
              send->count, to, receive->count);
    send->done = receive->done = 1;
    for (size_t i = 0; i < send->count && !w.broken; i++) {
        int a = watched(from, from, send->where);
        int b = watched(to, to, receive->where);
        symbol value = a >= 0 ? get(from, from, a, send->at + i)
                              : *scratch(from, send->where, send->at + i);
        if (value == 0)
            broke("rank %d sends scratch[%zu] before it is written", from, i);
        if (b >= 0)
            put(to, to, b, receive->at + i, value);
        else
            *scratch(to, receive->where, receive->at + i) = value;
    }
}

static int run_wait(int me)
{
    one_rank *r = &w.rank[me];
    int moved = 0, left = 0;

    for (int i = 0; i < r->transfers; i++) {
        transfer *mine = &r->transfer[i], *theirs;
        if (mine->done)
            continue;
        if ((theirs = other_end(me, mine)) == NULL) {
            left++;
            continue;
        }
        moved = 1;
        if (mine->sending)
            deliver(me, mine, mine->peer, theirs);
        else
            deliver(mine->peer, theirs, me, mine);
    }
    if (left != 0)
        return moved;
    w.counts.rounds[me]++;
    r->transfers = 0;
    r->at++;
    return 1;
}

/* ---- a rank's user ------------------------------------------------------- */

static symbol result_of(const symbolic_op *o, int op, size_t at)
{
    symbol sum = (symbol)REDUCED;

    if (o->ask.kind == OAR_COLL_BROADCAST)
        return name(INPUT, op, o->ask.root, at);
    for (int p = 0; p < w.c->ranks; p++) {
        symbol part = name(INPUT, op, p, at);
        if (o->ask.weighted)
            part = mix(part, name(FACTOR, op, p, 0));
        sum = mix(sum, part);
    }
    return sum;
}

static void start_op(int me)
{
    one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);
    oari_ask ask = o->ask;
    int in = in_of(me, r->op);

    ask.rank = me;
    if (oari_plan_make(o->algorithm, &ask, &r->plan) != OAR_OK)
        broke("rank %d: no plan: %s", me, oar_last_error_text());
    for (size_t i = 0; i < ask.count; i++)
        put(me, me, in, i, name(INPUT, r->op, me, i));
    for (size_t i = 0; i < ask.count && in != OUT; i++)
        put(me, me, OUT, i, name(GARBAGE, r->op, me, i));
    memset(r->factor, 0, sizeof r->factor);
    r->factor[me] = name(FACTOR, r->op, me, 0);
    r->gather_room = r->plan.slot_count * (size_t)w.c->ranks;
    free(r->gather);
    r->gather = calloc(r->gather_room + 1, sizeof *r->gather);
    r->at = r->begun = r->met = r->transfers = 0;
    r->started = 1;
}

static void check_result(int me)
{
    const one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);
    int in = in_of(me, r->op);

    for (size_t i = 0; i < o->ask.count && !w.broken; i++) {
        if (get(me, me, OUT, i) != w.expected[r->op][i])
            broke("%s %s of %zu: rank %d ends with the wrong out[%zu]",
                  o->algorithm->name, oar_coll_name(o->ask.kind), o->ask.count,
                  me, i);
        if (in != OUT && get(me, me, in, i) != name(INPUT, r->op, me, i))
            broke("%s: the input of rank %d was changed at %zu",
                  o->algorithm->name, me, i);
    }
    for (int p = 0; p < w.c->ranks && o->ask.kind == OAR_COLL_BARRIER; p++)
        if (w.rank[p].op < r->op ||
            (w.rank[p].op == r->op && !w.rank[p].started))
            broke("rank %d passes a barrier that rank %d has not reached", me,
                  p);
}

static void end_op(int me)
{
    one_rank *r = &w.rank[me];

    if (r->transfers != 0)
        broke("rank %d ends with messages under way", me);
    check_result(me);
    oari_plan_clear(&r->plan);
    r->started = 0;
    r->op++;
}

/* ---- running ------------------------------------------------------------- */

/* One step of a rank; whether it moved. */
static int run_step(int me)
{
    one_rank *r = &w.rank[me];
    const oari_step *s;

    if (r->op == w.c->ops)
        return 0;
    if (!r->started) {
        start_op(me);
        return 1;
    }
    if (r->at < 0 || r->at >= r->plan.steps) {
        broke("rank %d leaves its plan", me);
        return 0;
    }
    s = &r->plan.step[r->at];
    switch (s->kind) {
    case OARI_MEET: return run_meet(me, s);
    case OARI_UNLESS_REACHABLE: return run_unless_reachable(me, s);
    case OARI_COPY: return run_copy(me, s);
    case OARI_REDUCE: return run_reduce(me, s);
    case OARI_SEND:
    case OARI_RECV: return run_message(me, s);
    case OARI_WAIT: return run_wait(me);
    case OARI_END: end_op(me); return 1;
    }
    broke("rank %d has a step of no kind", me);
    return 0;
}

/* Some rank but `spared` that can move does; -1: none can. */
static int run_any(int spared)
{
    int n = w.c->ranks, first = (int)draw((unsigned)n);

    for (int i = 0; i < n; i++) {
        int r = (first + i) % n;
        if (r != spared && run_step(r))
            return r;
    }
    return -1;
}

/* Steps until all have ended, or nobody can move. */
static void run_all(void)
{
    int n = w.c->ranks, one = (int)(w.c->seed % (uint64_t)n), last = -1;
    int moved = 1;

    while (moved && !w.broken)
        switch (w.c->order) {
        case SYMBOLIC_EAGER: moved = run_step(one) || run_any(one) >= 0; break;
        case SYMBOLIC_LAZY: moved = run_any(one) >= 0 || run_step(one); break;
        default:
            if (last < 0 || draw(4) == 0 || !run_step(last))
                last = run_any(-1);
            moved = last >= 0;
        }
    for (int r = 0; r < n; r++)
        if (w.rank[r].op != w.c->ops)
            broke("rank %d waits for ever in operation %d at step %d", r,
                  w.rank[r].op, w.rank[r].at);
}

static void make_memory(memory *m, struct arena *a, size_t room)
{
    if (a->room < room) {
        free(a->cell);
        free(a->read);
        a->room = room;
        a->cell = calloc(room, sizeof *a->cell);
        a->read = malloc(room * SYMBOLIC_RANKS * sizeof *a->read);
    }
    *m = (memory){ room, a->cell, a->read };
}

/* As much of each as a group has: see board.c. */
static void make_rank(int rank)
{
    one_rank *r = &w.rank[rank];
    size_t room[MEMORIES] = { 0 };

    for (int i = 0; i < w.c->ops; i++) {
        const oari_ask *a = &w.c->op[i].ask;
        oari_layout l =
            oari_board_layout(a->ranks, a->small_bytes, a->stage_bytes);
        size_t line = a->line_bytes / a->element + 1;
        room[IN] = a->count > room[IN] ? a->count : room[IN];
        room[OUT] = room[IN];
        room[STAGE] = l.stage_room / a->element;
        room[LINE_0] = room[LINE_1] = line;
    }
    for (int m = 0; m < MEMORIES; m++)
        make_memory(&r->memory[m], &arena[rank][m], room[m]);
}

static void clear_rank(one_rank *r)
{
    free(r->gather);
    oari_plan_clear(&r->plan);
}

static void make_expected(int op)
{
    const symbolic_op *o = &w.c->op[op];

    w.expected[op] = malloc((o->ask.count + 1) * sizeof(symbol));
    for (size_t i = 0; i < o->ask.count; i++)
        w.expected[op][i] = result_of(o, op, i);
}

const char *symbolic_run(const symbolic_case *c, symbolic_counts *counts)
{
    memset(&w, 0, offsetof(world, rank));
    memset(w.rank, 0, (size_t)c->ranks * sizeof *w.rank);
    w.c = c;
    w.random = c->seed * 0x9e3779b97f4a7c15u + 1;
    run_number++;
    for (int r = 0; r < c->ranks; r++) {
        make_rank(r);
        w.rank[r].clock[r] = 1;
    }
    for (int i = 0; i < c->ops; i++)
        make_expected(i);
    run_all();
    for (int r = 0; r < c->ranks; r++)
        clear_rank(&w.rank[r]);
    for (int i = 0; i < c->ops; i++)
        free(w.expected[i]);
    if (counts != NULL)
        *counts = w.counts;
    return w.broken ? w.text : NULL;
}
