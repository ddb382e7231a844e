/* SPDX-License-Identifier: Apache-2.0 */
#include "support/operation_case.h"

#include <stdio.h>
#include <stdlib.h>

#include <oarsong/p2p.h>
#include <oarsong/shared.h>

enum {
    IN_LINE = 100,    /* up to small_bytes: travels in the line */
    IN_REST = 1000,   /* too large for that, but fits a line's room */
    IN_CHUNKS = 3000, /* three chunks of a bounce buffer */
    IN_MAIL = 60000   /* a slice of it is longer than a ring */
};

const operation_case operation_cases[] = {
    { .name = "barrier, line", .kind = OAR_COLL_BARRIER },
    { .name = "barrier, dissemination",
      .kind = OAR_COLL_BARRIER,
      .algorithm = "dissemination" },
    { .name = "broadcast, line", .kind = OAR_COLL_BROADCAST, .count = IN_LINE },
    { .name = "broadcast, line, shared, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_LINE,
      .memory = OPERATION_SHARED,
      .last_root = 1 },
    { .name = "broadcast, direct",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .memory = OPERATION_SHARED },
    { .name = "broadcast, direct, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .memory = OPERATION_SHARED,
      .last_root = 1 },
    { .name = "broadcast, direct, mixed",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .memory = OPERATION_MIXED },
    { .name = "broadcast, direct, private, in a line",
      .kind = OAR_COLL_BROADCAST,
      .algorithm = "direct",
      .count = IN_REST },
    { .name = "broadcast, direct, private, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .last_root = 1 },
    { .name = "broadcast, staged, shared",
      .kind = OAR_COLL_BROADCAST,
      .algorithm = "staged",
      .count = IN_CHUNKS,
      .memory = OPERATION_SHARED },
    { .name = "broadcast, binomial",
      .kind = OAR_COLL_BROADCAST,
      .algorithm = "binomial",
      .count = IN_CHUNKS },
    { .name = "broadcast, binomial, long, shared, last root",
      .kind = OAR_COLL_BROADCAST,
      .algorithm = "binomial",
      .count = IN_MAIL,
      .memory = OPERATION_SHARED,
      .last_root = 1 },
    { .name = "all_reduce, line",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_LINE },
    { .name = "all_reduce, line, shared, apart",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_LINE,
      .memory = OPERATION_SHARED,
      .apart = 1 },
    { .name = "all_reduce, direct",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS,
      .memory = OPERATION_SHARED },
    { .name = "all_reduce, direct, apart",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS,
      .memory = OPERATION_SHARED,
      .apart = 1 },
    { .name = "all_reduce, direct, mixed",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS,
      .memory = OPERATION_MIXED },
    { .name = "all_reduce, direct, private, in a line",
      .kind = OAR_COLL_ALL_REDUCE,
      .algorithm = "direct",
      .count = IN_REST },
    { .name = "all_reduce, direct, private",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS },
    { .name = "all_reduce, direct, private, apart",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS,
      .apart = 1 },
    { .name = "all_reduce, staged, shared",
      .kind = OAR_COLL_ALL_REDUCE,
      .algorithm = "staged",
      .count = IN_CHUNKS,
      .memory = OPERATION_SHARED },
    { .name = "all_reduce, staged, weighted",
      .kind = OAR_COLL_ALL_REDUCE,
      .algorithm = "staged",
      .count = IN_CHUNKS,
      .weighted = 1 },
    { .name = "all_reduce, exchange",
      .kind = OAR_COLL_ALL_REDUCE,
      .algorithm = "exchange",
      .count = IN_CHUNKS },
    { .name = "all_reduce, exchange, long, shared, weighted",
      .kind = OAR_COLL_ALL_REDUCE,
      .algorithm = "exchange",
      .count = IN_MAIL,
      .memory = OPERATION_SHARED,
      .weighted = 1 },
    { .name = "scatter, direct, private, fetched, last root",
      .kind = OAR_COLL_SCATTER,
      .count = IN_CHUNKS,
      .fetched = 1,
      .last_root = 1 },
    { .name = "all_gather, direct, mixed, fetched",
      .kind = OAR_COLL_ALL_GATHER,
      .count = IN_CHUNKS,
      .memory = OPERATION_MIXED,
      .fetched = 1 },
    { .name = NULL },
};

int operation_is_chosen(const operation_case *d, int ranks)
{
    return ranks == 2 || getenv("OARSONG_TEST_ALL") != NULL ||
           (d - operation_cases) % 3 == 0;
}

oar_group_opts operation_opts(const operation_case *d, int64_t timeout_ms)
{
    oar_group_opts o = oar_group_opts_init();

    if (d->algorithm != NULL)
        setenv("OARSONG_ALGO", d->algorithm, 1);
    else
        unsetenv("OARSONG_ALGO");
    if (d->fetched)
        setenv("OARSONG_FETCH_BYTES", "1", 1);
    else
        unsetenv("OARSONG_FETCH_BYTES");
    o.timeout_ms = timeout_ms;
    o.small_bytes = 512;
    o.stage_bytes = 4096;
    o.eager_bytes = 64; /* so that a send waits for its receive */
    return o;
}

/* ---- buffers ------------------------------------------------------------- */

static int root_of(const operation_buffers *h)
{
    return h->operation->last_root ? h->ranks - 1 : 0;
}

static void find_counts(operation_buffers *h)
{
    size_t part = h->operation->count, row = part * (size_t)h->ranks;
    int root = h->rank == root_of(h);

    h->in_count = h->out_count = part;
    switch (h->operation->kind) {
    case OAR_COLL_REDUCE: h->out_count = root ? part : 0; break;
    case OAR_COLL_GATHER: h->out_count = root ? row : 0; break;
    case OAR_COLL_SCATTER: h->in_count = root ? row : 0; break;
    case OAR_COLL_ALL_GATHER: h->out_count = row; break;
    case OAR_COLL_REDUCE_SCATTER: h->in_count = row; break;
    case OAR_COLL_ALL_TO_ALL: h->in_count = h->out_count = row; break;
    default: break;
    }
}

static int in_one_memory(const operation_case *d)
{
    return d->kind == OAR_COLL_BARRIER || d->kind == OAR_COLL_BROADCAST ||
           (d->kind == OAR_COLL_ALL_REDUCE && !d->apart);
}

static oar_status make_buffer(const operation_buffers *h, size_t count,
                              float **buffer)
{
    void *memory = NULL;

    if (h->shared) {
        oar_status status = oar_shared_alloc(count * sizeof(float), &memory);
        if (status != OAR_OK)
            return status;
    } else if ((memory = malloc(count * sizeof(float) + 1)) == NULL)
        return OAR_E_NOMEM;
    *buffer = memory;
    return OAR_OK;
}

static void drop_buffer(const operation_buffers *h, float *buffer)
{
    if (h->shared)
        oar_shared_free(buffer);
    else
        free(buffer);
}

oar_status operation_buffers_alloc(operation_buffers *h,
                                   const operation_case *d, int rank, int ranks)
{
    oar_status status;

    *h = (operation_buffers){ .operation = d, .rank = rank, .ranks = ranks };
    h->shared =
        d->memory == OPERATION_SHARED || (d->memory == OPERATION_MIXED && rank);
    find_counts(h);
    status = make_buffer(h, h->in_count, &h->in);
    if (status == OAR_OK && !in_one_memory(d))
        status = make_buffer(h, h->out_count, &h->out);
    else
        h->out = h->in;
    if (status == OAR_OK)
        operation_buffers_fill(h);
    return status;
}

static float value_of(int rank, size_t i)
{
    return (float)(rank + 1) + (float)(i % 97);
}

void operation_buffers_fill(operation_buffers *h)
{
    for (size_t i = 0; i < h->out_count; i++)
        h->out[i] = 0;
    for (size_t i = 0; i < h->in_count; i++)
        h->in[i] = value_of(h->rank, i);
}

void operation_buffers_free(operation_buffers *h)
{
    if (h->out != h->in)
        drop_buffer(h, h->out);
    drop_buffer(h, h->in);
    h->in = h->out = NULL;
}

/* ---- steps --------------------------------------------------------------- */

static _Thread_local struct {
    int step, visits; /* when */
    void (*fn)(void *arg);
    void *arg;
    uint64_t number; /* of the collective; 0: not known yet */
    int seen, at, visited;
} watched;

static int is_time(void)
{
    int now = watched.seen - 1;

    return watched.fn != NULL && watched.step >= 0 &&
           (now > watched.step ||
            (now == watched.step && watched.visited > watched.visits));
}

static void reach_step(int step)
{
    void (*fn)(void *arg) = watched.fn;

    if (step != watched.at) {
        watched.at = step;
        watched.visited = 0;
        watched.seen++;
    }
    watched.visited++;
    if (!is_time())
        return;
    watched.fn = NULL;
    fn(watched.arg);
}

/* A step that is not done yet is shown again: it is counted once. */
static void count_step(const oari_exec *exec)
{
    if (watched.number == 0)
        watched.number = exec->number;
    if (exec->number == watched.number)
        reach_step(exec->at);
}

void step_hook_set_waiting(int step, int visits, void (*fn)(void *arg),
                           void *arg)
{
    watched.step = step;
    watched.visits = visits;
    watched.fn = fn;
    watched.arg = arg;
    watched.number = 0;
    watched.seen = 0;
    watched.at = -1;
    if (oari_exec_hook != count_step)
        oari_exec_hook = count_step;
}

void step_hook_set(int step, void (*fn)(void *arg), void *arg)
{
    step_hook_set_waiting(step, 0, fn, arg);
}

int step_hook_count(void)
{
    return watched.seen;
}

/* ---- doing it ------------------------------------------------------------ */

/* What all calls have in common. */
typedef struct case_call {
    const char *file;
    int line;
    oar_group *group;
    oar_call_opts opts;
    oar_span in, out;
} case_call;

enum { RING_PARTS = 3 };

static oar_span part_of(oar_span s, int part)
{
    size_t first = s.count * (size_t)part / RING_PARTS;
    size_t end = s.count * (size_t)(part + 1) / RING_PARTS;

    return oar_span_of((float *)s.data + first, end - first, OAR_F32);
}

/* One part to the next rank and one from the one before, with steps between. */
static oar_status pass_on(const operation_buffers *h, const case_call *c,
                          int part)
{
    int next = (h->rank + 1) % h->ranks;
    int before = (h->rank + h->ranks - 1) % h->ranks;
    oar_work *work[2] = { NULL, NULL };
    oar_status status;
    int done;

    reach_step(4 * part);
    status = oar_recv_at(c->file, c->line, c->group, part_of(c->out, part),
                         before, part, &c->opts, &work[0]);
    reach_step(4 * part + 1);
    if (status == OAR_OK)
        status = oar_send_at(c->file, c->line, c->group, part_of(c->in, part),
                             next, part, &c->opts, &work[1]);
    reach_step(4 * part + 2);
    if (status == OAR_OK)
        status = oar_work_test(work[1], &done);
    reach_step(4 * part + 3);
    if (status == OAR_OK)
        status = oar_work_wait_all(2, work);
    oar_work_release(work[0]);
    oar_work_release(work[1]);
    return status;
}

static oar_status run_ring(const operation_buffers *h, const case_call *c)
{
    oar_status status = OAR_OK;

    for (int part = 0; part < RING_PARTS && status == OAR_OK; part++)
        status = pass_on(h, c, part);
    return status;
}

#define AT c->file, c->line, c->group

static oar_status run_rooted(const operation_buffers *h, const case_call *c)
{
    int root = root_of(h);

    switch (h->operation->kind) {
    case OAR_COLL_BROADCAST:
        return oar_broadcast_at(AT, c->out, root, &c->opts, NULL);
    case OAR_COLL_REDUCE:
        return oar_reduce_at(AT, c->in, c->out, OAR_SUM, root, &c->opts, NULL);
    case OAR_COLL_GATHER:
        return oar_gather_at(AT, c->in, c->out, root, &c->opts, NULL);
    default: return oar_scatter_at(AT, c->in, c->out, root, &c->opts, NULL);
    }
}

static oar_status run_call(const operation_buffers *h, const case_call *c)
{
    const operation_case *d = h->operation;

    switch (d->kind) {
    case OAR_COLL_BARRIER: return oar_barrier_at(AT, &c->opts, NULL);
    case OAR_COLL_ALL_REDUCE:
        return oar_all_reduce_into_at(AT, c->in, c->out,
                                      d->weighted ? OAR_WEIGHTED_MEAN : OAR_SUM,
                                      &c->opts, NULL);
    case OAR_COLL_ALL_GATHER:
        return oar_all_gather_v_at(AT, c->in, c->out, NULL, &c->opts, NULL);
    case OAR_COLL_REDUCE_SCATTER:
        return oar_reduce_scatter_v_at(AT, c->in, NULL, c->out, OAR_SUM,
                                       &c->opts, NULL);
    case OAR_COLL_ALL_TO_ALL:
        return oar_all_to_all_v_at(AT, c->in, NULL, c->out, NULL, &c->opts,
                                   NULL);
    case OAR_COLL_SEND: return run_ring(h, c);
    default: return run_rooted(h, c);
    }
}

oar_status operation_run(operation_buffers *h, oar_group *group,
                         int64_t timeout_ms)
{
    case_call c = { .file = h->file != NULL ? h->file : __FILE__,
                    .line = h->file != NULL ? h->line : __LINE__,
                    .group = group,
                    .opts = oar_call_opts_init(),
                    .in = oar_span_of(h->in, h->in_count, OAR_F32),
                    .out = oar_span_of(h->out, h->out_count, OAR_F32) };

    c.opts.timeout_ms = timeout_ms;
    c.opts.weight = 1;
    return run_call(h, &c);
}

/* ---- what must come out -------------------------------------------------- */

/* Of all ranks' values at i of their inputs. */
static float sum_of(const operation_buffers *h, size_t i)
{
    int n = h->ranks;

    return (float)(n * (n + 1) / 2) + (float)n * (float)(i % 97);
}

static float expected(const operation_buffers *h, size_t i)
{
    size_t part = h->operation->count, mine = (size_t)h->rank * part;
    int n = h->ranks;

    switch (h->operation->kind) {
    case OAR_COLL_BROADCAST: return value_of(root_of(h), i);
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: return value_of((int)(i / part), i % part);
    case OAR_COLL_SCATTER: return value_of(root_of(h), mine + i);
    case OAR_COLL_REDUCE_SCATTER: return sum_of(h, mine + i);
    case OAR_COLL_ALL_TO_ALL: return value_of((int)(i / part), mine + i % part);
    case OAR_COLL_SEND: return value_of((h->rank + n - 1) % n, i);
    default:
        return h->operation->weighted ? sum_of(h, i) / (float)n : sum_of(h, i);
    }
}

static int is_right(const operation_buffers *h, const char *where, size_t i,
                    float found, float wanted)
{
    if (found == wanted)
        return 1;
    fprintf(stderr, "rank %d: %s[%zu] is %g, not %g\n", h->rank, where, i,
            (double)found, (double)wanted);
    return 0;
}

int operation_result_is_right(const operation_buffers *h)
{
    for (size_t i = 0; i < h->out_count; i++)
        if (!is_right(h, "out", i, h->out[i], expected(h, i)))
            return 0;
    for (size_t i = 0; h->out != h->in && i < h->in_count; i++)
        if (!is_right(h, "in", i, h->in[i], value_of(h->rank, i)))
            return 0;
    return 1;
}
