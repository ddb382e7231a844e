/* SPDX-License-Identifier: Apache-2.0 */
#include "support/deed.h"

#include <stdlib.h>

#include <oarsong/shared.h>

enum {
    IN_LINE = 100,    /* up to small_bytes: travels in the line */
    IN_REST = 1000,   /* too large for that, but fits a line's room */
    IN_CHUNKS = 3000, /* three chunks of a stage */
    IN_MAIL = 60000   /* a slice of it is longer than a ring */
};

const deed deed_list[] = {
    { .name = "barrier, line", .kind = OAR_COLL_BARRIER },
    { .name = "barrier, dissemination",
      .kind = OAR_COLL_BARRIER,
      .algorithm = "dissemination" },
    { .name = "broadcast, line", .kind = OAR_COLL_BROADCAST, .count = IN_LINE },
    { .name = "broadcast, line, shared, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_LINE,
      .memory = DEED_SHARED,
      .last_root = 1 },
    { .name = "broadcast, direct",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .memory = DEED_SHARED },
    { .name = "broadcast, direct, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .memory = DEED_SHARED,
      .last_root = 1 },
    { .name = "broadcast, direct, mixed",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .memory = DEED_MIXED },
    { .name = "broadcast, direct, private, in a line",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_REST },
    { .name = "broadcast, direct, private, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = IN_CHUNKS,
      .last_root = 1 },
    { .name = "broadcast, staged, shared",
      .kind = OAR_COLL_BROADCAST,
      .algorithm = "staged",
      .count = IN_CHUNKS,
      .memory = DEED_SHARED },
    { .name = "broadcast, binomial",
      .kind = OAR_COLL_BROADCAST,
      .algorithm = "binomial",
      .count = IN_CHUNKS },
    { .name = "broadcast, binomial, long, shared, last root",
      .kind = OAR_COLL_BROADCAST,
      .algorithm = "binomial",
      .count = IN_MAIL,
      .memory = DEED_SHARED,
      .last_root = 1 },
    { .name = "all_reduce, line",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_LINE },
    { .name = "all_reduce, line, shared, apart",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_LINE,
      .memory = DEED_SHARED,
      .apart = 1 },
    { .name = "all_reduce, direct",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS,
      .memory = DEED_SHARED },
    { .name = "all_reduce, direct, apart",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS,
      .memory = DEED_SHARED,
      .apart = 1 },
    { .name = "all_reduce, direct, mixed",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = IN_CHUNKS,
      .memory = DEED_MIXED },
    { .name = "all_reduce, direct, private, in a line",
      .kind = OAR_COLL_ALL_REDUCE,
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
      .memory = DEED_SHARED },
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
      .memory = DEED_SHARED,
      .weighted = 1 },
    { .name = NULL },
};

oar_group_opts deed_opts(const deed *d, int64_t timeout_ms)
{
    oar_group_opts o = oar_group_opts_init();

    if (d->algorithm != NULL)
        setenv("OARSONG_ALGO", d->algorithm, 1);
    else
        unsetenv("OARSONG_ALGO");
    o.timeout_ms = timeout_ms;
    o.small_bytes = 512;
    o.stage_bytes = 4096;
    o.eager_bytes = 64; /* so that a send waits for its receive */
    return o;
}

static oar_status make_buffer(const deed_hands *h, float **buffer)
{
    void *memory = NULL;

    if (h->shared) {
        oar_status status =
            oar_shared_alloc(h->deed->count * sizeof(float), &memory);
        if (status != OAR_OK)
            return status;
    } else if ((memory = malloc(h->deed->count * sizeof(float) + 1)) == NULL)
        return OAR_E_NOMEM;
    *buffer = memory;
    return OAR_OK;
}

static void drop_buffer(const deed_hands *h, float *buffer)
{
    if (h->shared)
        oar_shared_free(buffer);
    else
        free(buffer);
}

oar_status deed_take(deed_hands *h, const deed *d, int rank, int ranks)
{
    oar_status status;

    *h = (deed_hands){ .deed = d, .rank = rank, .ranks = ranks };
    h->shared = d->memory == DEED_SHARED || (d->memory == DEED_MIXED && rank);
    status = make_buffer(h, &h->in);
    if (status == OAR_OK && d->apart)
        status = make_buffer(h, &h->out);
    else
        h->out = h->in;
    if (status == OAR_OK)
        deed_fill(h);
    return status;
}

static float value_of(int rank, size_t i)
{
    return (float)(rank + 1) + (float)(i % 97);
}

void deed_fill(deed_hands *h)
{
    for (size_t i = 0; i < h->deed->count; i++) {
        h->out[i] = 0;
        h->in[i] = value_of(h->rank, i);
    }
}

void deed_drop(deed_hands *h)
{
    if (h->out != h->in)
        drop_buffer(h, h->out);
    drop_buffer(h, h->in);
    h->in = h->out = NULL;
}

oar_status deed_run(deed_hands *h, oar_group *group, int64_t timeout_ms)
{
    const deed *d = h->deed;
    oar_call_opts o = oar_call_opts_init();
    oar_span in = oar_span_of(h->in, d->count, OAR_F32);
    oar_span out = oar_span_of(h->out, d->count, OAR_F32);

    o.timeout_ms = timeout_ms;
    o.weight = 1;
    if (d->kind == OAR_COLL_BARRIER)
        return oar_barrier(group, &o, NULL);
    if (d->kind == OAR_COLL_BROADCAST)
        return oar_broadcast(group, out, d->last_root ? h->ranks - 1 : 0, &o,
                             NULL);
    return oar_all_reduce_into(
        group, in, out, d->weighted ? OAR_WEIGHTED_MEAN : OAR_SUM, &o, NULL);
}

static float expected(const deed_hands *h, size_t i)
{
    int n = h->ranks;
    float sum = (float)(n * (n + 1) / 2) + (float)n * (float)(i % 97);

    if (h->deed->kind == OAR_COLL_BROADCAST)
        return value_of(h->deed->last_root ? n - 1 : 0, i);
    return h->deed->weighted ? sum / (float)n : sum;
}

int deed_right(const deed_hands *h)
{
    for (size_t i = 0; i < h->deed->count; i++)
        if (h->out[i] != expected(h, i) ||
            (h->out != h->in && h->in[i] != value_of(h->rank, i)))
            return 0;
    return 1;
}

/* ---- steps ----------------------------------------------------------------
 */

static _Thread_local struct {
    int step, seen, at;
    void (*fn)(void *arg);
    void *arg;
} watched;

/* A step that is not done yet is shown again: it is counted once. */
static void count_step(const oari_exec *exec)
{
    if (exec->number != 1 || exec->at == watched.at)
        return;
    watched.at = exec->at;
    if (watched.seen++ == watched.step && watched.fn != NULL)
        watched.fn(watched.arg);
}

void deed_watch(int step, void (*fn)(void *arg), void *arg)
{
    watched.step = step;
    watched.fn = fn;
    watched.arg = arg;
    watched.seen = 0;
    watched.at = -1;
    if (oari_exec_hook != count_step)
        oari_exec_hook = count_step;
}

int deed_steps(void)
{
    return watched.seen;
}
