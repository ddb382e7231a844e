/* SPDX-License-Identifier: Apache-2.0 */
#include "support/symbolic.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/shm/control_page.h"
#include "plan/planners.h"

/* ---- symbols ------------------------------------------------------------- */

typedef enum symbol_state {
    UNWRITTEN,
    INPUT,
    PARTIAL,
    FINISHED,
    OTHER
} symbol_state;

typedef struct symbol {
    symbol_state state;
    uint64_t text; /* what was done, in which order */
    uint64_t id;   /* of a contribution: which element */
    uint64_t from; /* bit r: rank r's is in it */
} symbol;

static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    a = (a ^ a >> 32) * 0xd6e8feb86659fd93u;
    return a ^ a >> 29;
}

enum { ELEMENT = 11, GARBAGE, FACTOR, SIZE, FINISH, HEADER };

static uint64_t name_of(int what, int op, int rank, size_t at)
{
    return mix((uint64_t)what << 48 | (uint64_t)op << 40 | (uint64_t)rank << 32,
               (uint64_t)at);
}

static symbol input(int op, int rank, size_t at)
{
    return (symbol){ INPUT, name_of(ELEMENT, op, rank, at),
                     name_of(0, op, 0, at), UINT64_C(1) << rank };
}

static symbol other(int what, int op, int rank, size_t at)
{
    return (symbol){ OTHER, name_of(what, op, rank, at), 0, 0 };
}

/* ---- the world ----------------------------------------------------------- */

/* Memory of a rank that others may reach. */
enum {
    IN = SYMBOLIC_IN,
    OUT = SYMBOLIC_OUT,
    BOUNCE,
    SLOT_0,
    MEMORIES = SLOT_0 + SYMBOLIC_SLOTS
};
static const char *const memory_name[] = { "in",     "out",    "bounce buffer",
                                           "slot 0", "slot 1", "slot 2" };

enum { NOBODY = -1, SEVERAL = -2 };

typedef struct cell {
    symbol value;
    uint32_t clock; /* of its writer, when it wrote */
    int writer;
    int reader;    /* since then */
    uint32_t seen; /* its clock, if it is one */
    uint32_t run;  /* the run it was last used in; else it is blank */
} cell;

typedef struct rank_memory {
    size_t room;
    cell *cell;
    uint32_t *read; /* by cell, then rank: clocks of several readers */
} rank_memory;

/* Kept from run to run: most of it is never touched. */
static struct arena {
    size_t room;
    cell *cell;
    uint32_t *read;
} arena[SYMBOLIC_RANKS][MEMORIES];
static uint32_t run_number;

typedef struct transfer {
    int sending, peer, done;
    oari_buffer buffer;
    size_t at, count;
    uint32_t clock[SYMBOLIC_RANKS]; /* the sender's, when it began */
} transfer;

typedef struct one_rank {
    int op; /* how many it has ended */
    int started;
    int settled; /* the sync point before the operation is dealt with */
    int sync_op; /* in which the last sync point was */
    oari_plan plan;
    int at, begun, syncs, shows, missed;
    uint64_t sync, complete; /* the last that it has begun, and seen of all */
    rank_memory memory[MEMORIES];
    symbolic_region in, out; /* of the operation */
    symbol *gather, *work;
    symbol factor[SYMBOLIC_RANKS], table[SYMBOLIC_RANKS];
    transfer *transfer;
    int transfers, room;
    uint32_t clock[SYMBOLIC_RANKS];
    /* the clock at the slot's sync point */
    uint32_t shown[SYMBOLIC_SLOTS][SYMBOLIC_RANKS];
    int says_missed[SYMBOLIC_SLOTS];
    int member[SYMBOLIC_RANKS]; /* ranks of its host */
    int members, self;
} one_rank;

typedef struct symbolic_world {
    const symbolic_case *c;
    symbolic_counts counts;
    uint64_t random;
    int broken;
    int slots; /* of a rank */
    char text[512];
    uint64_t *result[SYMBOLIC_OPS]; /* of reductions: by element */
    one_rank rank[SYMBOLIC_RANKS];
} symbolic_world;

static symbolic_world w;

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

/* Returns which slot a sync point uses. */
static int turn_of(uint64_t sync)
{
    return (int)(sync % (uint64_t)w.slots);
}

/* Returns the rank of a shm rank of my host. */
static int member(int me, int peer)
{
    const one_rank *r = &w.rank[me];

    if (peer < 0)
        return me;
    if (peer < r->members)
        return r->member[peer];
    broke("rank %d goes to shm rank %d of %d", me, peer, r->members);
    return me;
}

/* ---- memory that is watched ---------------------------------------------- */

static cell *touch(int me, int owner, int what, size_t at)
{
    rank_memory *m = &w.rank[owner].memory[what];
    cell *c = &m->cell[at];

    if (at < m->room) {
        if (c->run != run_number)
            *c = (cell){ { UNWRITTEN, 0, 0, 0 }, 0, 0, NOBODY, 0, run_number };
        return c;
    }
    broke("rank %d goes to %s[%zu] of rank %d, which has %zu", me,
          memory_name[what], at, owner, m->room);
    return NULL;
}

static void note_reader(rank_memory *m, size_t at, int me)
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

/* Returns a rank that reads the cell, with no sync point or message between it
 * and `me`; or NOBODY. */
static int reader_beside(const rank_memory *m, size_t at, int me)
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
    rank_memory *m = &w.rank[owner].memory[what];
    uint32_t *clock = w.rank[me].clock;
    cell *c = touch(me, owner, what, at);

    if (c == NULL)
        return (symbol){ UNWRITTEN, 0, 0, 0 };
    if (c->value.state == UNWRITTEN)
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
    rank_memory *m = &w.rank[owner].memory[what];
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

/* ---- buffers of a plan --------------------------------------------------- */

/* Where a location of a plan really is. */
typedef struct cells {
    int what; /* memory; -1: scratch */
    size_t at;
    symbol *scratch;
} cells;

/* Fails if `me` cannot reach the buffers of another rank yet. */
static void check_reach(int me, int owner, int in)
{
    const one_rank *r = &w.rank[me], *o = &w.rank[owner];
    uint64_t reach = in ? op_of(me)->in_reach : op_of(me)->out_reach;
    int shown = o->shows & (in ? OARI_SHOWS_IN : OARI_SHOWS_OUT);

    if (in && op_of(me)->fetches && r->plan.step[r->at].kind == OARI_COPY)
        reach = UINT64_MAX;
    if (owner == me ||
        (shown && r->syncs > 0 && o->op == r->op && (reach >> owner & 1)))
        return;
    broke("rank %d goes to the %s of rank %d that it cannot reach", me,
          in ? "input" : "output", owner);
}

static cells in_buffer(int me, int owner, int in, size_t at, size_t count)
{
    const symbolic_region *b = in ? &w.rank[owner].in : &w.rank[owner].out;

    check_reach(me, owner, in);
    if (at + count > b->count)
        broke("rank %d goes to the %s of rank %d at %zu to %zu, which has %zu",
              me, in ? "input" : "output", owner, at, at + count, b->count);
    return (cells){ (int)b->memory, b->base + at, NULL };
}

static cells in_scratch(int me, symbol *s, size_t room, size_t at, size_t count)
{
    if (at + count > room)
        broke("rank %d goes to scratch %zu to %zu of %zu", me, at, at + count,
              room);
    return (cells){ -1, at, s };
}

static cells find(int me, int owner, oari_buffer buffer, size_t at,
                  size_t count)
{
    one_rank *r = &w.rank[me];

    switch (buffer) {
    case OARI_IN: return in_buffer(me, owner, 1, at, count);
    case OARI_OUT:
    case OARI_ALL_OUT: return in_buffer(me, owner, 0, at, count);
    case OARI_SLOT: return (cells){ SLOT_0 + turn_of(r->sync), at, NULL };
    case OARI_BOUNCE:
    case OARI_OTHER_BOUNCES:
    case OARI_BOUNCE_AND_OUT: return (cells){ BOUNCE, at, NULL };
    case OARI_GATHER:
        return in_scratch(me, r->gather, r->plan.gather_count, at, count);
    case OARI_WORK:
        return in_scratch(me, r->work, r->plan.work_count, at, count);
    case OARI_FACTOR:
        return in_scratch(me, r->factor, (size_t)w.c->ranks, at, count);
    case OARI_TABLE:
        return in_scratch(me, r->table, (size_t)w.c->ranks, at, count);
    case OARI_NOWHERE: break;
    }
    return (cells){ -1, 0, NULL };
}

static symbol load(int me, int owner, const cells *s, size_t i)
{
    symbol value;

    if (s->what >= 0)
        return get(me, owner, s->what, s->at + i);
    value = s->scratch[s->at + i];
    if (value.state == UNWRITTEN)
        broke("rank %d reads scratch[%zu] before it is written", me, s->at + i);
    return value;
}

static void store(int me, int owner, const cells *s, size_t i, symbol value)
{
    if (s->what >= 0)
        put(me, owner, s->what, s->at + i, value);
    else
        s->scratch[s->at + i] = value;
}

/* Fails if a message in flight uses any of these elements of mine; if I only
 * read them, if it writes any. */
static void check_free(int me, const cells *s, size_t count, int writing)
{
    const one_rank *r = &w.rank[me];

    for (int i = 0; i < r->transfers && !w.broken; i++) {
        const transfer *t = &r->transfer[i];
        cells theirs = find(me, me, t->buffer, t->at, t->count);
        int same = s->what >= 0
                       ? s->what == theirs.what
                       : theirs.what < 0 && s->scratch == theirs.scratch;
        if (same && (writing || !t->sending) && t->count != 0 &&
            s->at < theirs.at + t->count && theirs.at < s->at + count)
            broke("rank %d %s %zu elements at %zu, which a message uses", me,
                  writing ? "writes" : "reads", count, s->at);
    }
}

static cells use(int me, int owner, oari_buffer buffer, size_t at, size_t count,
                 int writing)
{
    cells s = find(me, owner, buffer, at, count);

    if (owner == me && !w.broken)
        check_free(me, &s, count, writing);
    return s;
}

/* ---- sync points --------------------------------------------------------- */

static void begin_sync(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];
    int turn = turn_of(r->sync + 1), slot = SLOT_0 + turn;
    size_t room = r->memory[slot].room - 1;
    cells from = { -1, 0, NULL };

    if (s->count != 0)
        from = use(me, me, OARI_IN, s->from_at, s->count, 0);
    if (s->count > room)
        broke("rank %d puts %zu elements in a slot of %zu", me, s->count, room);
    for (size_t i = 0; i < s->count && !w.broken; i++)
        put(me, me, slot, i, load(me, me, &from, i));
    r->sync++;
    put(me, me, slot, room, other(HEADER, r->op, me, r->sync));
    memcpy(r->shown[turn], r->clock, sizeof r->clock);
    r->says_missed[turn] = r->missed;
    r->clock[me]++;
    r->begun = 1;
    w.counts.syncs[me]++;
}

static void join_clock(int me, const uint32_t *theirs)
{
    uint32_t *mine = w.rank[me].clock;

    for (int i = 0; i < w.c->ranks; i++)
        if (theirs[i] > mine[i])
            mine[i] = theirs[i];
}

/* Whether a member is awaited: peer is that of a SYNC. */
static int awaits(int member, int peer)
{
    return peer == OARI_PEER_ALL || peer == member;
}

/* Whether those that are awaited have reached the last sync point. */
static int have_arrived(int me, int peer)
{
    const one_rank *r = &w.rank[me];

    for (int i = 0; i < r->members; i++)
        if (awaits(i, peer) && w.rank[r->member[i]].sync < r->sync)
            return 0;
    return 1;
}

/* Reads the slots of those that are awaited. The operation is that of the last
 * sync point. */
static void read_slots(int me, int peer, int op)
{
    one_rank *r = &w.rank[me];
    int turn = turn_of(r->sync), slot = SLOT_0 + turn;

    for (int i = 0; i < r->members; i++)
        if (awaits(i, peer))
            join_clock(me, w.rank[r->member[i]].shown[turn]);
    for (int i = 0; i < r->members; i++) {
        int p = r->member[i];
        size_t head = w.rank[p].memory[slot].room - 1;
        if (!awaits(i, peer))
            continue;
        if (get(me, p, slot, head).text != other(HEADER, op, p, r->sync).text)
            broke("rank %d finds another sync point in the slot of rank %d", me,
                  p);
        if (r->syncs == 0 && op == r->op)
            r->factor[p] = other(FACTOR, r->op, p, 0);
        else
            r->missed |= w.rank[p].says_missed[turn];
    }
    if (peer == OARI_PEER_ALL)
        r->complete = r->sync;
}

static int run_sync(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];

    if (!r->begun) {
        begin_sync(me, s);
        r->sync_op = r->op;
        return 1;
    }
    if (!have_arrived(me, s->peer))
        return 0;
    read_slots(me, s->peer, r->op);
    r->syncs++;
    r->begun = 0;
    r->at++;
    return 1;
}

/* Completes the last sync point where a plan needs that, before its first step.
 * Returns -1 if there is nothing to do. */
static int run_settle(int me)
{
    one_rank *r = &w.rank[me];

    if (r->settled)
        return -1;
    if (w.c->careless ||
        oari_sync_has_room(r->sync, r->complete, (unsigned)w.slots)) {
        r->settled = 1;
        return -1;
    }
    if (!have_arrived(me, OARI_PEER_ALL))
        return 0;
    read_slots(me, OARI_PEER_ALL, r->sync_op);
    r->settled = 1;
    return 1;
}

static int run_unless_reachable(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);
    uint64_t reach = s->from == OARI_IN ? o->in_reach : o->out_reach;
    int bit = s->from == OARI_IN ? OARI_SHOWS_IN : OARI_SHOWS_OUT, all = 1;

    if (s->kind == OARI_UNLESS_READABLE && o->fetches)
        reach = UINT64_MAX;
    if (r->syncs == 0 || r->shows == 0 || s->jump <= r->at ||
        s->jump >= r->plan.steps)
        broke("rank %d: step %d asks what it cannot know", me, r->at);
    for (int i = 0; i < r->members; i++) {
        int p = r->member[i];
        if (s->peer < 0 || s->peer == i)
            all &= (w.rank[p].shows & bit) != 0 && (reach >> p & 1);
    }
    r->at = all ? r->at + 1 : s->jump;
    return 1;
}

/* What this rank got of the last sync point must be of all ranks. */
static int run_unless_copied(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];

    if (r->syncs < 2 || r->complete != r->sync || s->jump <= r->at ||
        s->jump >= r->plan.steps)
        broke("rank %d: step %d asks what it cannot know", me, r->at);
    r->at = r->missed ? s->jump : r->at + 1;
    return 1;
}

/* ---- copying and combining ----------------------------------------------- */

/* Whether the system refuses to copy from a rank's input. */
static int is_missed(int me, int owner, const oari_step *s)
{
    const symbolic_op *o = op_of(me);

    return owner != me && s->from == OARI_IN && o->fetches &&
           (o->misses >> me & 1) && !(o->in_reach >> owner & 1);
}

static int run_copy(int me, const oari_step *s)
{
    int owner = member(me, s->peer), target = member(me, s->to_peer);
    cells from = find(me, owner, s->from, s->from_at, s->count);
    cells to = find(me, target, s->to, s->to_at, s->count);

    if (owner == target && from.what == to.what && from.what >= 0 &&
        from.at == to.at) {
        w.rank[me].at++;
        return 1; /* in place: nothing to do */
    }
    from = use(me, owner, s->from, s->from_at, s->count, 0);
    to = use(me, target, s->to, s->to_at, s->count, 1);
    w.rank[me].at++;
    if (is_missed(me, owner, s)) {
        w.rank[me].missed = 1;
        return 1;
    }
    for (size_t i = 0; i < s->count && !w.broken; i++)
        store(me, target, &to, i, load(me, owner, &from, i));
    return 1;
}

/* A rank's contribution, widened and weighted. */
static symbol promote(int me, int rank, symbol s)
{
    const symbolic_op *o = op_of(me);

    if (s.state != INPUT)
        broke("rank %d takes something else for a contribution", me);
    s.state = PARTIAL;
    if (o->req.weighted) {
        symbol f = w.rank[me].factor[rank];
        if (f.state == UNWRITTEN)
            broke("rank %d does not know the factor of rank %d", me, rank);
        s.text = mix(s.text, f.text);
    }
    return s;
}

static symbol join_parts(int me, symbol a, symbol b)
{
    if (a.id != b.id)
        broke("rank %d combines different elements", me);
    if ((a.from & b.from) != 0)
        broke("rank %d combines a contribution twice", me);
    return (symbol){ PARTIAL, mix(a.text, b.text), a.id, a.from | b.from };
}

static symbol finish(int me, symbol s)
{
    const symbolic_op *o = op_of(me);

    for (int p = 0; p < w.c->ranks && o->req.mean; p++)
        if (w.rank[me].factor[p].state == UNWRITTEN)
            broke("rank %d divides without the factor of rank %d", me, p);
    return (symbol){ FINISHED, mix(s.text, FINISH), s.id, s.from };
}

/* Sources of a reduction: whose, and where. */
typedef struct sources {
    int n;
    int rank[SYMBOLIC_RANKS], owner[SYMBOLIC_RANKS];
    cells at[SYMBOLIC_RANKS];
} sources;

static void find_sources(int me, const oari_step *s, sources *from)
{
    const one_rank *r = &w.rank[me];

    from->n = s->from == OARI_GATHER ? r->plan.gather_ranks : r->members;
    for (int i = 0; i < from->n; i++) {
        size_t slot = (size_t)((i - s->peer + from->n) % from->n);
        if (s->from != OARI_GATHER) {
            int own = s->from == OARI_OTHER_BOUNCES && r->member[i] == me;
            from->rank[i] = from->owner[i] = r->member[i];
            from->at[i] = use(me, r->member[i], own ? OARI_IN : s->from,
                              own ? s->with_at : s->from_at, s->count, 0);
            continue;
        }
        from->rank[i] = i;
        from->owner[i] = me;
        from->at[i] = i == me ? use(me, me, OARI_IN, s->with_at, s->count, 0)
                              : use(me, me, OARI_GATHER,
                                    s->from_at + slot * r->plan.gather_stride,
                                    s->count, 0);
    }
}

static symbol reduce_one(int me, const oari_step *s, const sources *from,
                         size_t i)
{
    symbol sum =
        promote(me, from->rank[0], load(me, from->owner[0], &from->at[0], i));

    for (int p = 1; p < from->n; p++)
        sum = join_parts(me, sum,
                         promote(me, from->rank[p],
                                 load(me, from->owner[p], &from->at[p], i)));
    return s->to == OARI_WORK ? sum : finish(me, sum);
}

static int run_reduce(int me, const oari_step *s)
{
    const one_rank *r = &w.rank[me];
    int all = s->to == OARI_ALL_OUT, both = s->to == OARI_BOUNCE_AND_OUT;
    int target = member(me, s->to_peer);
    sources from;
    cells to[SYMBOLIC_RANKS], out = { -1, 0, NULL };

    find_sources(me, s, &from);
    for (int i = 0; i < (all ? r->members : 1); i++)
        to[i] =
            use(me, all ? r->member[i] : target, s->to, s->to_at, s->count, 1);
    if (both)
        out = use(me, me, OARI_OUT, s->with_at, s->count, 1);
    for (size_t i = 0; i < s->count && !w.broken; i++) {
        symbol sum = reduce_one(me, s, &from, i);
        for (int p = 0; p < (all ? r->members : 1); p++)
            store(me, all ? r->member[p] : target, &to[p], i, sum);
        if (both)
            store(me, me, &out, i, sum);
    }
    w.rank[me].at++;
    return 1;
}

static symbol partial(int me, oari_buffer buffer, symbol s)
{
    if (buffer == OARI_IN)
        return promote(me, me, s);
    if (s.state == INPUT && !op_of(me)->req.promote)
        s.state = PARTIAL;
    if (s.state != PARTIAL)
        broke("rank %d combines what is no partial result", me);
    return s;
}

static int run_combine(int me, const oari_step *s)
{
    int two = s->with != OARI_NOWHERE;
    cells left = use(me, me, s->from, s->from_at, s->count, 0);
    cells right = use(me, me, s->with, s->with_at, two ? s->count : 0, 0);
    cells to = use(me, me, s->to, s->to_at, s->count, 1);

    if (!s->finish && s->to != OARI_WORK)
        broke("rank %d leaves a partial result in place %d", me, (int)s->to);
    for (size_t i = 0; i < s->count && !w.broken; i++) {
        symbol sum = partial(me, s->from, load(me, me, &left, i));
        if (two)
            sum = join_parts(me, sum,
                             partial(me, s->with, load(me, me, &right, i)));
        store(me, me, &to, i, s->finish ? finish(me, sum) : sum);
    }
    w.rank[me].at++;
    return 1;
}

/* ---- messages ------------------------------------------------------------ */

static size_t element_of(int me, oari_buffer buffer)
{
    switch (buffer) {
    case OARI_FACTOR:
    case OARI_TABLE: return 8;
    case OARI_WORK: return op_of(me)->req.wide;
    default: return op_of(me)->req.element;
    }
}

static void count_message(int me, const transfer *t)
{
    if (t->buffer == OARI_FACTOR || t->buffer == OARI_TABLE)
        w.counts.words[me] += t->count;
    else {
        w.counts.messages[me]++;
        w.counts.sent[me] += t->count * element_of(me, t->buffer);
    }
}

static int run_message(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];
    int sending = s->kind == OARI_SEND;
    transfer t = { .sending = sending,
                   .peer = s->peer,
                   .buffer = sending ? s->from : s->to,
                   .at = sending ? s->from_at : s->to_at,
                   .count = s->count };

    if (s->peer < 0 || s->peer >= w.c->ranks || s->peer == me)
        broke("rank %d has a message with rank %d", me, s->peer);
    if (r->transfers == r->plan.max_in_flight)
        broke("rank %d starts more than %d messages", me, r->transfers);
    if (w.broken)
        return 1;
    if (t.count != 0)
        use(me, me, t.buffer, t.at, t.count, !sending);
    memcpy(t.clock, r->clock, sizeof t.clock);
    r->clock[me]++;
    r->transfer[r->transfers++] = t;
    if ((size_t)r->transfers > w.counts.most[me])
        w.counts.most[me] = (size_t)r->transfers;
    if (sending)
        count_message(me, &t);
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
    size_t sent = send->count * element_of(from, send->buffer);
    size_t wanted = receive->count * element_of(to, receive->buffer);
    cells a = find(from, from, send->buffer, send->at, send->count);
    cells b = find(to, to, receive->buffer, receive->at, receive->count);

    if (sent != wanted)
        broke("rank %d sends %zu bytes to rank %d, which expects %zu", from,
              sent, to, wanted);
    send->done = receive->done = 1;
    memcpy(receive->clock, send->clock, sizeof send->clock);
    for (size_t i = 0; i < send->count && !w.broken; i++)
        store(to, to, &b, i, load(from, from, &a, i));
}

static void try_messages(int me, int *moved)
{
    one_rank *r = &w.rank[me];

    for (int i = 0; i < r->transfers && !w.broken; i++) {
        transfer *mine = &r->transfer[i], *theirs;
        if (mine->done || (theirs = other_end(me, mine)) == NULL)
            continue;
        *moved = 1;
        if (mine->sending)
            deliver(me, mine, mine->peer, theirs);
        else
            deliver(mine->peer, theirs, me, mine);
    }
}

static int run_wait(int me, const oari_step *s)
{
    one_rank *r = &w.rank[me];
    int moved = 0, k = (int)s->count;

    if (k < 1 || k > r->transfers) {
        broke("rank %d waits for %d of %d messages", me, k, r->transfers);
        return 0;
    }
    try_messages(me, &moved);
    for (int i = 0; i < k; i++)
        if (!r->transfer[i].done)
            return moved;
    for (int i = 0; i < k; i++)
        if (!r->transfer[i].sending)
            join_clock(me, r->transfer[i].clock);
    r->transfers -= k;
    memmove(r->transfer, r->transfer + k,
            (size_t)r->transfers * sizeof *r->transfer);
    w.counts.rounds[me]++;
    r->at++;
    return 1;
}

/* ---- a rank's user ------------------------------------------------------- */

static void take_plan(int me)
{
    one_rank *r = &w.rank[me];

    free(r->gather);
    free(r->work);
    free(r->transfer);
    r->gather = calloc(r->plan.gather_count + 1, sizeof *r->gather);
    r->work = calloc(r->plan.work_count + 1, sizeof *r->work);
    r->transfer =
        calloc((size_t)r->plan.max_in_flight + 1, sizeof *r->transfer);
    r->at = r->transfers = 0;
}

static void make_plan(int me, int sizes_known)
{
    one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);
    const oari_algorithm *a = o->algorithm;
    oari_plan_request req = symbolic_request(o, me, sizes_known);
    oari_rules rules = { .bruck_ranks = 4, .chain_bytes = 400 };
    oari_planner planner = a->plan;

    req.shm_rank = r->self;
    req.shm_member = w.c->hosts > 1 ? r->member : NULL;
    req.hosts = w.c->hosts > 1 ? w.c->host : NULL;
    if (sizes_known && r->syncs != 0)
        planner = oari_plan_direct_after_sync;
    else if (sizes_known && (a = oari_choose(&req, &rules)) != NULL)
        planner = a->plan;
    if (a == NULL || oari_plan_make(a->name, planner, &req, &r->plan) != OAR_OK)
        broke("rank %d: no plan: %s", me, oar_last_error_text());
    take_plan(me);
}

static void start_op(int me)
{
    one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);

    r->in = symbolic_input(o, me);
    r->out = symbolic_output(o, me);
    for (size_t i = 0; i < r->out.count; i++)
        put(me, me, (int)r->out.memory, r->out.base + i,
            other(GARBAGE, r->op, me, i));
    for (size_t i = 0; i < r->in.count; i++)
        put(me, me, (int)r->in.memory, r->in.base + i, input(r->op, me, i));
    memset(r->factor, 0, sizeof r->factor);
    memset(r->table, 0, sizeof r->table);
    r->factor[me] = other(FACTOR, r->op, me, 0);
    r->table[me] = other(SIZE, r->op, me, 0);
    for (int p = 0; p < w.c->ranks && me == o->req.root; p++)
        r->table[p] = other(SIZE, r->op, p, 0);
    r->begun = r->syncs = r->settled = r->missed = 0;
    make_plan(me, 0);
    r->shows = r->plan.shows;
    r->started = 1;
}

/* Sizes are known when the messages with them, or the slots, have arrived. */
static int run_replan(int me)
{
    one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);
    int all = o->req.kind == OAR_COLL_ALL_GATHER;

    for (int p = 0; p < w.c->ranks && r->syncs == 0; p++)
        if ((all || p == me) && r->table[p].state == UNWRITTEN &&
            o->req.kind != OAR_COLL_BROADCAST)
            broke("rank %d replans without the size of rank %d", me, p);
    if (r->transfers != 0)
        broke("rank %d replans with messages in flight", me);
    make_plan(me, 1);
    return 1;
}

/* ---- what came out ------------------------------------------------------- */

static uint64_t canonical_text(const symbolic_op *o, int op, size_t at)
{
    uint64_t sum = 0;

    for (int p = 0; p < w.c->ranks; p++) {
        uint64_t part = name_of(ELEMENT, op, p, at);
        if (o->req.weighted)
            part = mix(part, other(FACTOR, op, p, 0).text);
        sum = p == 0 ? part : mix(sum, part);
    }
    return mix(sum, FINISH);
}

/* Whether it has the right elements, of every rank once, and the same bits on
 * every rank. */
static int is_reduced(int me, symbol got, size_t at)
{
    const one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);
    uint64_t all =
        w.c->ranks == 64 ? UINT64_MAX : (UINT64_C(1) << w.c->ranks) - 1;
    uint64_t *result = &w.result[r->op][at];

    if (*result == 0)
        *result =
            o->algorithm->canonical ? canonical_text(o, r->op, at) : got.text;
    return got.state == FINISHED && got.from == all &&
           got.id == name_of(0, r->op, 0, at) && got.text == *result;
}

static int is_right(int me, size_t i)
{
    const one_rank *r = &w.rank[me];
    symbol got = get(me, me, (int)r->out.memory, r->out.base + i);
    symbolic_origin from = symbolic_origin_of(op_of(me), me, i);

    if (symbolic_reduces(op_of(me)->req.kind))
        return is_reduced(me, got, from.at);
    return got.text == input(r->op, from.rank, from.at).text;
}

static int is_output(const one_rank *r, size_t i)
{
    size_t at = r->in.base + i;

    return r->in.memory == r->out.memory && at >= r->out.base &&
           at < r->out.base + r->out.count;
}

static void check_result(int me)
{
    const one_rank *r = &w.rank[me];
    const symbolic_op *o = op_of(me);

    for (size_t i = 0; i < r->out.count && !w.broken; i++)
        if (!is_right(me, i))
            broke("%s %s of %zu: rank %d ends with the wrong out[%zu]",
                  o->algorithm->name, oar_coll_name(o->req.kind), o->req.count,
                  me, i);
    for (size_t i = 0; i < r->in.count && !w.broken; i++)
        if (!is_output(r, i) &&
            get(me, me, (int)r->in.memory, r->in.base + i).text !=
                input(r->op, me, i).text)
            broke("%s: the input of rank %d was changed at %zu",
                  o->algorithm->name, me, i);
    for (int p = 0; p < w.c->ranks && o->req.kind == OAR_COLL_BARRIER; p++)
        if (w.rank[p].op < r->op ||
            (w.rank[p].op == r->op && !w.rank[p].started))
            broke("rank %d passes a barrier that rank %d has not reached", me,
                  p);
}

static void end_op(int me)
{
    one_rank *r = &w.rank[me];

    if (r->transfers != 0)
        broke("rank %d ends with messages in flight", me);
    check_result(me);
    oari_plan_clear(&r->plan);
    r->started = 0;
    r->op++;
}

/* ---- running ------------------------------------------------------------- */

/* Takes one step of a rank. Returns whether it moved. */
static int run_step(int me)
{
    one_rank *r = &w.rank[me];
    const oari_step *s;
    int moved;

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
    if ((moved = run_settle(me)) >= 0)
        return moved;
    s = &r->plan.step[r->at];
    switch (s->kind) {
    case OARI_SYNC: return run_sync(me, s);
    case OARI_UNLESS_REACHABLE:
    case OARI_UNLESS_READABLE: return run_unless_reachable(me, s);
    case OARI_UNLESS_COPIED: return run_unless_copied(me, s);
    case OARI_COPY: return run_copy(me, s);
    case OARI_REDUCE: return run_reduce(me, s);
    case OARI_COMBINE: return run_combine(me, s);
    case OARI_SEND:
    case OARI_RECV: return run_message(me, s);
    case OARI_WAIT: return run_wait(me, s);
    case OARI_REPLAN: return run_replan(me);
    case OARI_POST: break;
    case OARI_END: end_op(me); return 1;
    }
    broke("rank %d has a step of no kind", me);
    return 0;
}

/* Moves a rank that can move, but not `spared`. Returns it; -1: none can. */
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

/* Takes steps until all ranks have ended, or none can move. */
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
            broke("rank %d waits forever in operation %d at step %d", r,
                  w.rank[r].op, w.rank[r].at);
}

static void make_memory(rank_memory *m, struct arena *a, size_t room)
{
    if (a->room < room) {
        free(a->cell);
        free(a->read);
        a->room = room;
        a->cell = calloc(room, sizeof *a->cell);
        a->read = malloc(room * SYMBOLIC_RANKS * sizeof *a->read);
    }
    *m = (rank_memory){ room, a->cell, a->read };
}

static void widen(size_t *room, symbolic_region region)
{
    size_t end = region.base + region.count;

    if (end > room[region.memory])
        room[region.memory] = end;
}

/* Gives a rank as much of each memory as it has in a group. */
static void make_rank(int rank)
{
    one_rank *r = &w.rank[rank];
    size_t room[MEMORIES] = { 0 };

    for (int i = 0; i < w.c->ops; i++) {
        const oari_plan_request *a = &w.c->op[i].req;
        oari_control_layout l =
            oari_control_page_layout(a->ranks, a->small_bytes, a->stage_bytes);
        widen(room, symbolic_input(&w.c->op[i], rank));
        widen(room, symbolic_output(&w.c->op[i], rank));
        room[BOUNCE] = l.stage_room / a->element;
        for (int s = 0; s < SYMBOLIC_SLOTS; s++)
            room[SLOT_0 + s] = a->slot_bytes / a->element + 1;
    }
    for (int m = 0; m < MEMORIES; m++)
        make_memory(&r->memory[m], &arena[rank][m], room[m] + 1);
    for (int m = IN; m <= OUT; m++)
        r->memory[m].room = room[m];
    r->clock[rank] = 1;
    for (int p = 0; p < w.c->ranks; p++)
        if (w.c->hosts < 2 || w.c->host[p] == w.c->host[rank]) {
            r->self = p == rank ? r->members : r->self;
            r->member[r->members++] = p;
        }
}

static void clear_rank(one_rank *r)
{
    free(r->gather);
    free(r->work);
    free(r->transfer);
    oari_plan_clear(&r->plan);
}

static void make_results(int op)
{
    size_t most = symbolic_input(&w.c->op[op], 0).count;

    w.result[op] = calloc(most + 1, sizeof *w.result[op]);
}

const char *symbolic_run(const symbolic_case *c, symbolic_counts *counts)
{
    memset(&w, 0, offsetof(symbolic_world, rank));
    memset(w.rank, 0, (size_t)c->ranks * sizeof *w.rank);
    w.c = c;
    w.random = c->seed * 0x9e3779b97f4a7c15u + 1;
    w.slots = 2 + (int)(c->seed >> 3 & 1);
    run_number++;
    for (int r = 0; r < c->ranks; r++)
        make_rank(r);
    for (int i = 0; i < c->ops; i++)
        make_results(i);
    run_all();
    for (int r = 0; r < c->ranks; r++)
        clear_rank(&w.rank[r]);
    for (int i = 0; i < c->ops; i++)
        free(w.result[i]);
    if (counts != NULL)
        *counts = w.counts;
    return w.broken ? w.text : NULL;
}
